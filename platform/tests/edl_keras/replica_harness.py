"""Ranks of strategy AllReduce as replicas in one process, beside plain Keras on the union of their minibatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.keras.model_contract import ModelModule
from edl.keras.replica import ModelReplica
from edl.keras.replica_state import ReplicaStep

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.05),
    "Momentum": lambda: keras.optimizers.SGD(0.02, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "AdamW": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.01),
}
Minibatch = tuple[Any, ...]
"""Features, labels and, in some tests, sample weights."""


def squared_error(labels: Any, predictions: Any) -> Any:
    return tf.square(labels - predictions)


def summed_error(labels: Any, predictions: Any) -> Any:
    return tf.reduce_sum(tf.square(labels - predictions))


def perceptron(dtype: str = "float32") -> Any:
    keep = {"dtype": dtype}
    return keras.Sequential(
        [
            keras.Input((3,), dtype=dtype),
            keras.layers.Dense(5, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01), **keep),
            keras.layers.Dense(1, **keep),
        ]
    )


def linear() -> Any:
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])


def module(
    make_model: Callable[[], Any] = perceptron,
    loss: Any = squared_error,
    optimizer: Callable[[], Any] = OPTIMIZERS["SGD"],
    **more: Any,
) -> ModelModule:
    facts = {"eval_metrics_fn": dict, "feed": squared_error, **more}
    return ModelModule(zoo=Path(__file__).parent, make_model=make_model, loss=loss, optimizer=optimizer, **facts)


def build(user: ModelModule, ranks: int, sample: Any = None) -> list[ModelReplica]:
    return [ModelReplica(user, seed=3, rank_seed=rank, sample=sample) for rank in range(ranks)]


def compute(replicas: Sequence[ModelReplica], parts: Sequence[Minibatch | None]) -> list[ReplicaStep]:
    """All ranks' gradients; None: a rank without records."""
    results = []
    for replica, part in zip(replicas, parts, strict=True):
        if part is None:
            replica.clear()
        else:
            results.append(replica.compute(*part, *[None] * (3 - len(part))))
    return results


def reduce_and_apply(replicas: Sequence[ModelReplica], results: Sequence[ReplicaStep]) -> None:
    for buffers in zip(*(replica.buffers for replica in replicas), strict=True):
        total = sum(buffer.copy() for buffer in buffers)
        for buffer in buffers:
            np.copyto(buffer, total)
    for replica in replicas:
        replica.apply(sum(result.weight for result in results))


def step(replicas: Sequence[ModelReplica], parts: Sequence[Minibatch | None]) -> list[ReplicaStep]:
    results = compute(replicas, parts)
    reduce_and_apply(replicas, results)
    return results


def split(minibatch: Minibatch, sizes: Sequence[int]) -> list[Minibatch | None]:
    """Parts of these sizes; None for a part without records."""
    ends = np.cumsum(sizes)
    assert ends[-1] == len(minibatch[1])
    cut = [tuple(each[end - size : end] for each in minibatch) for size, end in zip(sizes, ends, strict=True)]
    return [part if size else None for part, size in zip(cut, sizes, strict=True)]


def random_sizes(generator: np.random.Generator, records: int, ranks: int) -> list[int]:
    """Unequal shares; in every third step or so, a rank has no records."""
    cuts = np.sort(generator.integers(0, records + 1, ranks - 1))
    return [int(size) for size in np.diff([0, *cuts, records])]


def minibatches(count: int, records: int = 12, dtype: str = "float32") -> list[Minibatch]:
    generator = np.random.default_rng(7)
    x = generator.normal(size=(count, records, 3)).astype(dtype)
    y = (x @ np.array([[1.0], [-2.0], [0.5]]) + 0.1).astype(dtype)
    return list(zip(x, y, strict=True))


class PlainKeras:
    """One process on the union of the minibatches: Keras without EDL."""

    def __init__(
        self, replica: ModelReplica, mean_loss: Callable[..., Any] | None = None, *, many_steps: bool = False
    ) -> None:
        self.model = replica.module.make_model()
        if not self.model.built:
            self.model(replica._sample)
        for mine, other in zip(self.model.weights, replica.model.weights, strict=True):
            mine.assign(other)
        self.optimizer = replica.module.optimizer()
        self.optimizer.build(self.model.trainable_variables)
        self._mean_loss = mean_loss or (lambda *given: tf.reduce_mean(replica.module.loss(*given)))
        # To trace a few steps would take longer than to make them.
        self.step = tf.function(self._step, autograph=False, reduce_retracing=True) if many_steps else self._step

    def _step(self, features: Any, *given: Any) -> Any:
        with tf.GradientTape() as tape:
            predictions = self.model(features, training=True)
            loss = self._mean_loss(given[0], predictions, *given[1:])
            loss = tf.add_n([loss, *(tf.cast(each, loss.dtype) for each in self.model.losses)])
            scaled = self.optimizer.scale_loss(loss)
        variables = self.model.trainable_variables
        gradients = tape.gradient(scaled, [variable.value for variable in variables])
        dense = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]
        self.optimizer.apply_gradients(zip(dense, variables, strict=True))
        return loss


def distance(found: Any, expected: Any) -> float:
    """The norm of the difference, relative to the norm of the expected values."""
    a, b = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-30))


def assert_equal_states(replicas: Sequence[ModelReplica]) -> None:
    assert len({replica.digest() for replica in replicas}) == 1
    first, *others = (replica.state_arrays() for replica in replicas)
    for other in others:
        assert first.keys() == other.keys()
        for name in first:
            assert first[name].tobytes() == other[name].tobytes(), name


def assert_close(replica: ModelReplica, one: PlainKeras, tolerance: float) -> None:
    pairs = zip(replica.model.weights, one.model.weights, strict=True)
    slots = zip(replica.optimizer.variables, one.optimizer.variables, strict=True)
    for mine, other in (*pairs, *slots):
        assert distance(mine, other) <= tolerance, mine.path


def tagger(outputs: int = 1) -> Any:
    """One value for each step of a sequence; id 0 is padding, and predictions for it are masked."""
    ids = keras.Input((6,), dtype="int32")
    vectors = keras.layers.Embedding(9, 3, mask_zero=True)(ids)
    if outputs == 1:
        return keras.Model(ids, keras.layers.Dense(1)(vectors))
    other = keras.layers.Embedding(9, 3)(ids)
    return keras.Model(ids, [keras.layers.Dense(1)(vectors), keras.layers.Dense(1)(other)])


def sequences(count: int) -> list[Minibatch]:
    """Sequences of unequal lengths, sorted, so that parts of a minibatch have unequal numbers of unmasked values."""
    generator = np.random.default_rng(5)
    batches: list[Minibatch] = []
    for _ in range(count):
        lengths = np.sort(generator.integers(0, 7, 12))
        ids = generator.integers(1, 9, (12, 6)) * (np.arange(6) < lengths[:, None])
        labels = generator.normal(size=(12, 6, 1)).astype(np.float32)
        weights = generator.integers(0, 4, (12, 6)).astype(np.float32)  # Keras masks weights of each value only
        batches.append((ids.astype(np.int32), labels, weights))
    return batches


def several_optimizers(rate: float) -> Any:
    biases = keras.optimizers.Adam(rate, use_ema=True, ema_momentum=0.5)
    kernels = keras.optimizers.SGD(rate, momentum=0.5)
    return keras.optimizers.MultiOptimizer(lambda variable: biases if "bias" in variable.path else kernels)


def normalized(dtype: str = "float32") -> Any:
    inputs = keras.Input((3,), dtype=dtype)
    first = keras.layers.BatchNormalization(momentum=0.8, dtype=dtype)
    return keras.Model(inputs, keras.layers.Dense(1, dtype=dtype)(first(inputs)))


def noisy() -> Any:
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(8),
            keras.layers.Dropout(0.5),
            keras.layers.GaussianNoise(0.1),
            keras.layers.Dense(1),
        ]
    )


def seed_values(replica: ModelReplica) -> list[list[int]]:
    return [v.numpy().tolist() for v in replica.model.variables if v.path.endswith("seed_generator_state")]


@cache
def generator() -> Any:
    with tf.init_scope():
        return tf.random.Generator.from_seed(1)
