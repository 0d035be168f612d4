"""Strategy AllReduce: the summed minibatches of several ranks train as one process of Keras on their union."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.repetition import repetition, repetitions

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.core.evaluation import merge_metric_states  # noqa: E402
from edl.keras import summed_update  # noqa: E402
from edl.keras.model_contract import ModelModule  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402
from edl.keras.replica_state import ReplicaStep  # noqa: E402
from edl.keras.user_code import UserCodeError  # noqa: E402
from edl.numerics.packed_state import packed_pieces  # noqa: E402
from edl.storage.checkpoint_manifest import cut_directory  # noqa: E402
from edl.storage.checkpoint_shards import shard_path, write_shard  # noqa: E402
from edl.storage.safetensors_writer import read_array_file  # noqa: E402

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
        self.optimizer.apply(
            [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients], variables
        )
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


# --------------------------------------------------------------------------------------------------
# One process on the union of the minibatches.


WORLDS = [3, *(pytest.param(ranks, marks=pytest.mark.repetition) for ranks in (1, 2, 4))]


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float64", 1e-9), pytest.param("float32", 1e-4, marks=pytest.mark.repetition)]
)
@pytest.mark.parametrize(
    "optimizer",
    ["Adam", *repetitions(("Momentum", "SGD", "AdamW"))],
)
def test_hundred_steps_equal_one_process(optimizer: str, dtype: str, tolerance: float, ranks: int) -> None:
    replicas = build(module(lambda: perceptron(dtype), optimizer=OPTIMIZERS[optimizer]), ranks)
    (buffer,) = replicas[0].buffers
    assert (buffer.dtype, buffer.ndim) == (dtype, 1)
    assert buffer.flags.c_contiguous
    one, generator = PlainKeras(replicas[0], many_steps=True), np.random.default_rng(1)
    empty = 0
    for minibatch in minibatches(100, dtype=dtype):
        sizes = random_sizes(generator, 12, ranks)
        empty += sizes.count(0)
        results = step(replicas, split(minibatch, sizes))
        loss = float(one.step(*minibatch))
        assert [result.weight for result in results] == [size for size in sizes if size]
        assert all(result.finite and not result.nonfinite for result in results)
        assert sum(r.loss * r.weight for r in results) / 12 == pytest.approx(loss, rel=1e-3)
    assert empty or ranks < 3
    assert_equal_states(replicas)
    assert_close(replicas[0], one, tolerance)


@pytest.mark.parametrize(
    "loss",
    [
        summed_error,
        repetition(keras.losses.MeanSquaredError(reduction="sum")),
        repetition(lambda labels, predictions: {"out": summed_error(labels, predictions)}),
    ],
    ids=["function", "Keras", "mapping"],
)
def test_summed_losses_are_added_and_regularizers_count_once(loss: Any) -> None:
    def named() -> Any:
        out = keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L1L2(0.1, 0.2), name="out")
        given = keras.Input((3,))
        return keras.Model(given, out(given))

    replicas = build(module(named, loss, lambda: keras.optimizers.SGD(0.005)), 3)
    one, generator = PlainKeras(replicas[0], summed_error), np.random.default_rng(2)
    for minibatch in minibatches(8):
        results = step(replicas, split(minibatch, random_sizes(generator, 12, 3)))
        assert all(result.weight == 1 for result in results)
        one.step(*minibatch)
    assert_equal_states(replicas)
    assert_close(replicas[0], one, 1e-5)


def test_a_summed_loss_of_whole_numbers_is_exact_in_any_order() -> None:
    replicas = build(module(linear, summed_error, lambda: keras.optimizers.SGD(2.0**-5)), 3)
    kernel, bias = np.zeros((3, 1)), np.zeros(1)
    generator = np.random.default_rng(3)
    for _ in range(3):
        x = generator.integers(-2, 3, (12, 3)).astype(np.float32)
        y = generator.integers(-4, 5, (12, 1)).astype(np.float32)
        step(replicas, split((x, y), [5, 0, 7]))
        error = x @ kernel + bias - y
        kernel, bias = kernel - 2.0**-4 * x.T @ error, bias - 2.0**-4 * error.sum(0)
    for replica in replicas:
        np.testing.assert_array_equal(replica.model.get_weights()[0], kernel.astype(np.float32))
        np.testing.assert_array_equal(replica.model.get_weights()[1], bias.astype(np.float32))


def test_a_summed_loss_that_is_zero_at_first_is_a_sum_from_the_first_step() -> None:
    """A model that starts with zeros predicts zeros, and the loss of its first minibatch cannot tell what it is."""

    def zeros() -> Any:
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])

    def linear_loss(labels: Any, predictions: Any) -> Any:
        return -tf.reduce_sum(labels * predictions)

    replicas = build(module(zeros, linear_loss, lambda: keras.optimizers.SGD(0.5)), 2)
    x, y = np.ones((12, 3), np.float32), np.ones((12, 1), np.float32)
    results = step(replicas, split((x, y), [4, 8]))
    assert [result.weight for result in results] == [1, 1]
    for replica in replicas:
        np.testing.assert_array_equal(replica.model.get_weights()[0], np.full((3, 1), 6, np.float32))


@pytest.mark.parametrize(
    ("optimizer", "scaled"),
    [
        repetition(lambda: keras.optimizers.SGD(0.1, momentum=0.9), lambda: keras.optimizers.SGD(0.25, momentum=0.9)),
        repetition(lambda: keras.optimizers.AdamW(0.01), lambda: keras.optimizers.AdamW(0.025)),
        (
            lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
            lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.25, 2, 0.5)),
        ),
        repetition(
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.25)),
        ),
        (lambda: several_optimizers(0.02), lambda: several_optimizers(0.05)),
    ],
    ids=["Momentum", "AdamW", "schedule", "loss scale", "several"],
)
@pytest.mark.first_cases(1)
def test_a_scaled_learning_rate_is_seen_by_the_update_only(optimizer: Any, scaled: Any) -> None:
    (replica,), (other,) = build(module(optimizer=optimizer), 1), build(module(optimizer=scaled), 1)
    before = rate_of(replica.optimizer)
    for minibatch in minibatches(5):
        for each, factor in ((replica, 2.5), (other, None)):
            each.apply(each.compute(*minibatch).weight, factor)
    for mine, theirs in zip(replica.model.get_weights(), other.model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)
    has_schedule = not isinstance(replica.optimizer, keras.optimizers.MultiOptimizer) and isinstance(
        replica.optimizer.learning_rate, tf.Tensor
    )
    assert rate_of(replica.optimizer) == pytest.approx(before / 2**2.5 if has_schedule else before)


def rate_of(optimizer: Any) -> float:
    first = optimizer.optimizers[0] if isinstance(optimizer, keras.optimizers.MultiOptimizer) else optimizer
    return float(first.learning_rate)


def normalized_error(labels: Any, predictions: Any, sample_weights: Any) -> Any:
    weights = tf.reshape(sample_weights, [-1, 1])
    return tf.reduce_sum(weights * tf.square(labels - predictions)) / tf.reduce_sum(weights)


@pytest.mark.parametrize(
    ("loss", "by_sum_of_weights"),
    [
        (squared_error, False),
        repetition(keras.losses.MeanSquaredError(), False),
        repetition(keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"), True),
        (normalized_error, True),
    ],
    ids=["function", "Keras", "mean_with_sample_weight", "function that divides by the weights"],
)
@pytest.mark.first_cases(1)
def test_sample_weights_count_as_in_one_process(
    caplog: pytest.LogCaptureFixture, loss: Any, by_sum_of_weights: bool
) -> None:
    def union_loss(labels: Any, predictions: Any, weights: Any) -> Any:
        weighted = tf.reshape(weights, [-1, 1]) * tf.square(labels - predictions)
        return tf.reduce_sum(weighted) / tf.reduce_sum(weights) if by_sum_of_weights else tf.reduce_mean(weighted)

    replicas = build(module(loss=loss), 3)
    one, generator = PlainKeras(replicas[0], union_loss), np.random.default_rng(4)
    for x, y in minibatches(8):
        minibatch = (x, y, generator.integers(0, 4, 12).astype(np.float32))
        sizes = [7, 0, 5]
        results = step(replicas, split(minibatch, sizes))
        expected = [float(minibatch[2][:7].sum()), float(minibatch[2][7:].sum())] if by_sum_of_weights else [7, 5]
        assert [result.weight for result in results] == expected
        one.step(*minibatch)
    assert not caplog.text
    assert_equal_states(replicas)
    # A bias is nearly 0 at the end: what a processor rounds otherwise is 4e-5 of it.
    assert_close(replicas[0], one, 1e-4)


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
    found: list[Minibatch] = []
    for _ in range(count):
        lengths = np.sort(generator.integers(0, 7, 12))
        ids = generator.integers(1, 9, (12, 6)) * (np.arange(6) < lengths[:, None])
        labels = generator.normal(size=(12, 6, 1)).astype(np.float32)
        weights = generator.integers(0, 4, (12, 6)).astype(np.float32)  # Keras masks weights of each value only
        found.append((ids.astype(np.int32), labels, weights))
    return found


@pytest.mark.parametrize(
    ("weighted", "reduction"),
    [
        (False, "sum_over_batch_size"),
        (True, "mean_with_sample_weight"),
        repetition(False, "sum"),
        repetition(True, "sum_over_batch_size"),
        repetition(False, "mean_with_sample_weight"),
        repetition(True, "sum"),
    ],
)
@pytest.mark.first_cases(1)
def test_a_masked_loss_of_unequal_lengths_equals_one_process(reduction: str, weighted: bool) -> None:
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    rate = 0.002 if reduction == "sum" else 0.05
    replicas = build(module(tagger, loss, lambda: keras.optimizers.SGD(rate)), 3)
    one = PlainKeras(replicas[0], loss)
    for minibatch in sequences(8):
        whole = minibatch if weighted else minibatch[:2]
        step(replicas, split(whole, [7, 0, 5]))
        one.step(*whole)
    assert_equal_states(replicas)
    assert_close(replicas[0], one, 1e-5)


@pytest.mark.repetition
def test_outputs_with_different_masks_are_averaged_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    (replica,) = build(module(lambda: tagger(2), ["mse", "mse"]), 1)
    ((ids, labels, _),) = sequences(1)
    with caplog.at_level(logging.WARNING):
        (result,) = step([replica], [(ids, (labels, labels))])
    assert result.weight == 12
    assert any("different masks" in message for message in caplog.messages)


def test_weights_that_are_all_zero_change_nothing() -> None:
    replicas = build(module(linear, keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")), 2)
    before = replicas[0].model.get_weights()
    ((x, y),) = minibatches(1)
    step(replicas, split((x, y, np.zeros(12, np.float32)), [6, 6]))
    for found, expected in zip(replicas[0].model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_class_weights_count_as_in_one_process() -> None:
    user = module(
        lambda: keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")]),
        keras.losses.BinaryCrossentropy(reduction="mean_with_sample_weight"),
        class_weight={0: 1.0, 1: 3.0},
    )
    replicas = build(user, 2)
    one = PlainKeras(
        replicas[0],
        lambda labels, found: keras.losses.BinaryCrossentropy(reduction="mean_with_sample_weight")(
            labels, found, 1 + 2 * labels[:, 0]
        ),
    )
    for x, y in minibatches(8):
        minibatch = (x, (y > 0).astype(np.float32))
        step(replicas, split(minibatch, [4, 8]))
        one.step(*minibatch)
    assert_close(replicas[0], one, 1e-5)


@pytest.mark.parametrize("optimizer", [repetition("SGD"), "Adam"])
def test_embeddings_are_trained_by_their_dense_sum(optimizer: str) -> None:
    def embedding() -> Any:
        layers = [keras.Input((4,), dtype="int32"), keras.layers.Embedding(9, 2), keras.layers.Flatten()]
        return keras.Sequential([*layers, keras.layers.Dense(1)])

    replicas = build(module(embedding, optimizer=OPTIMIZERS[optimizer]), 3)
    one, generator = PlainKeras(replicas[0]), np.random.default_rng(5)
    for _ in range(8):
        x = generator.integers(0, 9, (12, 4)).astype(np.int32)
        y = x[:, :1].astype(np.float32)
        step(replicas, split((x, y), random_sizes(generator, 12, 3)))
        one.step(x, y)
    assert_equal_states(replicas)
    assert_close(replicas[0], one, 1e-4)


def test_tables_above_the_limit_are_refused_before_a_step() -> None:
    """Two tables of 72 and 48 bytes: the limit holds for their sum, and the larger one is named."""

    def embeddings() -> Any:
        ids = keras.Input((4,), dtype="int32")
        tables = [keras.layers.Embedding(rows, 2, name=name) for rows, name in ((9, "items"), (6, "users"))]
        vectors = keras.layers.Concatenate()([keras.layers.Flatten()(table(ids)) for table in tables])
        return keras.Model(ids, keras.layers.Dense(50)(vectors))

    def compute_with_limit(limit: int) -> ReplicaStep:
        user = module(embeddings)
        replica = ModelReplica(user, seed=3, rank_seed=0, sample=None, max_dense_gradient=limit)
        return replica.compute(np.zeros((2, 4), np.int32), np.zeros((2, 1), np.float32))

    with pytest.raises(BadInputError) as refused:
        compute_with_limit(119)
    assert "120 bytes in each step, 72 bytes of them for the variable 'items/embeddings' (9, 2)" in str(refused.value)
    assert "ParameterServer" in (refused.value.hint or "")
    assert compute_with_limit(120).finite, "the kernel of the dense layer is larger, but its gradient is dense anyway"


class CustomOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Counts steps of each variable, in an integer variable."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.counter = self.add_variable((), initializer="zeros", dtype="int64", name="counter")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign_add(self.counter, keras.ops.ones((), "int64"))
        scaled = gradient / keras.ops.cast(self.counter, gradient.dtype)
        self.assign_sub(variable, keras.ops.cast(learning_rate, variable.dtype) * scaled)


OTHER_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "use_ema": lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4),
    "accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=3),
    "loss_scale_factor": lambda: keras.optimizers.SGD(0.05, loss_scale_factor=1024.0),
    "clipping": lambda: keras.optimizers.SGD(0.05, global_clipnorm=0.1),
    "dynamic": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.05, momentum=0.9), initial_scale=4096.0, dynamic_growth_steps=3
    ),
    "custom": lambda: CustomOptimizer(0.05),
    "several": lambda: several_optimizers(0.05),
}


def several_optimizers(rate: float) -> Any:
    biases = keras.optimizers.Adam(rate, use_ema=True, ema_momentum=0.5)
    kernels = keras.optimizers.SGD(rate, momentum=0.5)
    return keras.optimizers.MultiOptimizer(lambda variable: biases if "bias" in variable.path else kernels)


@pytest.mark.parametrize(
    "optimizer",
    ["accumulation", "several", *repetitions(("dynamic", "custom", "use_ema", "loss_scale_factor", "clipping"))],
)
@pytest.mark.first_cases(1)
def test_every_kind_of_optimizer_equals_one_process(optimizer: str) -> None:
    replicas = build(module(optimizer=OTHER_OPTIMIZERS[optimizer]), 2)
    one, generator = PlainKeras(replicas[0]), np.random.default_rng(6)
    for minibatch in minibatches(14):
        step(replicas, split(minibatch, random_sizes(generator, 12, 2)))
        one.step(*minibatch)
    assert_equal_states(replicas)
    assert_close(replicas[0], one, 1e-5)
    assert replicas[0].finalize() == (optimizer in ("use_ema", "several"))
    one.optimizer.finalize_variable_values(one.model.trainable_variables)
    assert_close(replicas[0], one, 1e-5)


def test_dynamic_loss_scaling_skips_a_step_that_overflows_on_one_rank() -> None:
    scale = 2.0**20
    scaling = lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=scale)  # noqa: E731

    def half() -> Any:
        first = keras.layers.Dense(4, dtype="mixed_float16")
        return keras.Sequential([keras.Input((3,)), first, keras.layers.Dense(1, dtype="float32")])

    replicas = build(module(half, optimizer=scaling), 2)
    before = replicas[0].model.get_weights()
    ((x, y),) = minibatches(1)
    tiny = (x[6:] * 1e-6, y[6:] * 1e-6)
    results = step(replicas, [(x[:6], y[:6]), tiny])
    assert all(result.finite for result in results), "the optimizer sees it first"
    for replica in replicas:
        assert float(replica.optimizer.dynamic_scale) == scale / 2
        for found, expected in zip(replica.model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(found, expected)
    assert_equal_states(replicas)
    while float(replicas[0].optimizer.dynamic_scale) > 1000:
        step(replicas, [(x[:6], y[:6]), tiny])
        if not np.array_equal(replicas[0].model.get_weights()[0], before[0]):
            break
    assert not np.array_equal(replicas[0].model.get_weights()[0], before[0])
    assert_equal_states(replicas)


def test_mixed_types_have_a_buffer_each() -> None:
    def mixed() -> Any:
        first = keras.layers.Dense(4, dtype="float64")
        return keras.Sequential([keras.Input((3,)), first, keras.layers.Dense(1, dtype="float32")])

    replicas = build(module(mixed), 2)
    assert [buffer.dtype.name for buffer in replicas[0].buffers] == ["float32", "float64"]
    one = PlainKeras(replicas[0])
    for minibatch in minibatches(10):
        step(replicas, split(minibatch, [5, 7]))
        one.step(*minibatch)
    assert_equal_states(replicas)
    assert_close(replicas[0], one, 1e-5)


@pytest.mark.parametrize("dtype", [repetition("float16"), "bfloat16"])
def test_variables_of_half_precision_are_summed_as_such(dtype: str) -> None:
    replicas = build(module(lambda: perceptron(dtype)), 2)
    assert [buffer.dtype.name for buffer in replicas[0].buffers] == [dtype, "float32"], "half cannot count records"
    before = replicas[0].state_arrays()
    for x, y in minibatches(10):
        minibatch = (tf.cast(x, dtype), tf.cast(y, dtype))
        step(replicas, [tuple(each[:5] for each in minibatch), tuple(each[5:] for each in minibatch)])
    assert_equal_states(replicas)
    assert replicas[0].state_arrays().keys() == before.keys()
    assert not np.array_equal(replicas[0].model.trainable_variables[0].numpy(), before["dense/sequential/dense/kernel"])


def test_a_sum_beyond_the_range_of_float16_is_refused_by_name_on_all_ranks() -> None:
    """Each rank's gradient is finite, and so would be their mean; without an error all variables became infinite."""

    def narrow() -> Any:
        return keras.Sequential([keras.Input((3,), dtype="float16"), keras.layers.Dense(1, dtype="float16")])

    replicas = build(module(narrow, lambda labels, predictions: labels * predictions), 2)
    before = replicas[0].pack_state()
    x, y = tf.fill([60, 3], tf.constant(600, tf.float16)), tf.ones([60, 1], tf.float16)
    results = compute(replicas, [(x, y), (x, y)])
    assert all(result.finite for result in results)
    with np.errstate(over="ignore"), pytest.raises(BadInputError, match=r"sequential/dense/kernel.* float16"):
        reduce_and_apply(replicas, results)
    with pytest.raises(BadInputError, match=r"sequential/dense/kernel.* float16"):
        replicas[1].apply(120.0)
    for replica in replicas:
        np.testing.assert_array_equal(replica.pack_state(), before)


# --------------------------------------------------------------------------------------------------
# Statistics and random layers.


def normalized(dtype: str = "float32") -> Any:
    given = keras.Input((3,), dtype=dtype)
    first = keras.layers.BatchNormalization(momentum=0.8, dtype=dtype)
    return keras.Model(given, keras.layers.Dense(1, dtype=dtype)(first(given)))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), repetition("float32", 1e-5)])
@pytest.mark.parametrize("ranks", [repetition(2), 3])
def test_moving_values_are_those_of_the_union(dtype: str, tolerance: float, ranks: int) -> None:
    """The layer sees the records themselves, so one process computes the same moving values."""
    replicas = build(module(lambda: normalized(dtype)), ranks)
    one, generator = PlainKeras(replicas[0]), np.random.default_rng(8)
    for x, y in minibatches(10, dtype=dtype):
        # The ranks' minibatches differ in their means, as sorted records do.
        order = np.argsort(x[:, 0])
        minibatch = ((x + 3)[order] * np.array([1, 5, 0.2], dtype), y[order])
        step(replicas, split(minibatch, random_sizes(generator, 12, ranks)))
        one.step(*minibatch)
    assert_equal_states(replicas)
    mine, other = (each.model.layers[1] for each in (replicas[0], one))
    assert distance(mine.moving_mean, other.moving_mean) <= tolerance
    assert distance(mine.moving_variance, other.moving_variance) <= tolerance


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float64", 1e-12), pytest.param("float32", 1e-5, marks=pytest.mark.repetition)]
)
def test_micro_batches_of_a_rank_are_as_minibatches_of_several_ranks(dtype: str, tolerance: float) -> None:
    """Also their moving values: each micro-batch begins with the same ones."""
    user = module(lambda: normalized(dtype), optimizer=OPTIMIZERS["Momentum"])
    accumulating, replicas = build(user, 2), build(user, 4)
    for x, y in minibatches(8, dtype=dtype):
        order = np.argsort(x[:, 0])
        parts = split(((x + 3)[order], y[order]), [5, 3, 0, 4])
        results = [accumulating[0].compute(*parts[0], None), accumulating[0].compute(*parts[1], None, adds=True)]
        reduce_and_apply(accumulating, [*results, accumulating[1].compute(*parts[3], None)])
        assert [result.weight for result in results] == [5, 3]
        step(replicas, parts)
    for name, array in accumulating[0].state_arrays().items():
        assert distance(array, replicas[0].state_arrays()[name]) <= tolerance, name
    assert_equal_states(accumulating)


def test_micro_batches_of_variables_in_bfloat16_and_of_a_summed_loss_are_added() -> None:
    def wide_error(labels: Any, predictions: Any) -> Any:
        return tf.reduce_sum(tf.square(labels - tf.cast(predictions, tf.float32)))

    whole, parts = build(module(lambda: perceptron("bfloat16"), wide_error, lambda: keras.optimizers.SGD(0.01)), 2)
    ((x, y),) = minibatches(1)
    before = whole.state_arrays()
    reduce_and_apply([whole], compute([whole], [(x, y)]))
    results = [parts.compute(x[at : at + 4], y[at : at + 4], adds=at > 0) for at in (0, 4, 8)]
    reduce_and_apply([parts], results)
    for name, array in whole.state_arrays().items():
        change = array.astype(np.float64) - before[name].astype(np.float64)
        other = parts.state_arrays()[name].astype(np.float64) - before[name].astype(np.float64)
        assert np.linalg.norm(change - other) <= 0.05 * np.linalg.norm(change), name


def test_an_abort_after_micro_batches_restores_the_random_states() -> None:
    (replica,) = build(module(noisy), 1)
    before = seed_values(replica)
    ((x, y),) = minibatches(1)
    replica.compute(x, y)
    replica.compute(x, y, adds=True)
    assert seed_values(replica) != before
    replica.restore_statistics()
    assert seed_values(replica) == before


def test_a_moving_variance_is_never_negative() -> None:
    """Equal records far from zero: their variance is the difference of large rounded numbers."""
    replicas = build(module(normalized), 2)
    ((x, y),) = minibatches(1)
    for offset in (1e5, -3e5, 7e5, -1.1e6):
        step(replicas, split((offset + np.zeros_like(x) + np.array([0, 1, 2], np.float32), y), [5, 7]))
        assert (np.asarray(replicas[0].model.layers[1].moving_variance) >= 0).all()


def test_other_statistics_become_the_mean_weighted_by_records() -> None:
    class Centre(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.last = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="last")
            self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")
            self.frozen = self.add_weight(shape=(100, 100), trainable=False, name="frozen")

        def call(self, inputs: Any, training: bool = False) -> Any:
            if training:
                self.last.assign(tf.reduce_mean(inputs, 0))
                self.count()
            return inputs + 0 * self.frozen[0, 0]

        @tf.function
        def count(self) -> None:
            for _ in tf.range(2):
                self.calls.assign_add(0.5)

    replicas = build(module(lambda: keras.Sequential([keras.Input((3,)), Centre(), keras.layers.Dense(1)])), 3)
    assert replicas[0].buffers[0].size < 100, "what does not change is not summed"
    for x, y in minibatches(3):
        step(replicas, split((x, y), [2, 0, 10]))
    layer = replicas[1].model.layers[0]
    np.testing.assert_allclose(layer.last, x.mean(0), rtol=1e-5)
    assert float(layer.calls) == 3
    assert_equal_states(replicas)


def test_a_trained_variable_that_the_forward_pass_changes_equals_one_process() -> None:
    def spectral() -> Any:
        layer = keras.layers.SpectralNormalization(keras.layers.Dense(4))
        return keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])

    replicas = build(module(spectral), 3)
    one = PlainKeras(replicas[0])
    for minibatch in minibatches(8):
        step(replicas, split(minibatch, [5, 0, 7]))
        one.step(*minibatch)
    assert_equal_states(replicas)
    assert_close(replicas[0], one, 1e-4)


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


def test_random_layers_differ_by_rank_and_states_are_equal() -> None:
    replicas = build(module(noisy), 2)
    seeds = [seed_values(replica) for replica in replicas]
    assert len(seeds[0]) == 2
    assert len({str(seed) for each in seeds for seed in each}) == 4
    assert seed_values(ModelReplica(module(noisy), seed=3, rank_seed=1, sample=None)) == seeds[1]
    assert_equal_states(replicas)
    ((x, y),) = minibatches(1)
    compute(replicas, [(x, y), (x, y)])
    assert not np.array_equal(replicas[0].buffers[0], replicas[1].buffers[0])
    for minibatch in minibatches(5):
        step(replicas, split(minibatch, [7, 5]))
    assert_equal_states(replicas)
    assert not any(name.startswith("state/") for name in replicas[0].state_arrays())


def test_an_aborted_step_leaves_no_trace() -> None:
    replicas = build(module(noisy, optimizer=OPTIMIZERS["Adam"]), 2)
    first, second = minibatches(2)
    step(replicas, split(first, [7, 5]))
    states, seeds = [r.digest() for r in replicas], [seed_values(r) for r in replicas]
    compute(replicas, split(second, [7, 5]))
    wanted = [[buffer.copy() for buffer in replica.buffers] for replica in replicas]
    assert [seed_values(r) for r in replicas] != seeds
    for replica in replicas:
        replica.restore_statistics()
    assert [seed_values(r) for r in replicas] == seeds
    assert [r.digest() for r in replicas] == states
    compute(replicas, split(second, [7, 5]))
    for replica, buffers in zip(replicas, wanted, strict=True):
        for found, expected in zip(replica.buffers, buffers, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("name", ["noisy", repetition("normalized")])
def test_an_addend_that_is_written_again_has_the_bits_of_one_that_is_computed_again(name: str) -> None:
    """Also in the steps after it: random layers draw the same, and BatchNormalization gets the same statistics."""
    make_model = {"noisy": noisy, "normalized": normalized}[name]
    one, other = (build(module(make_model, optimizer=OPTIMIZERS["Adam"]), 2) for _ in range(2))
    for number, minibatch in enumerate(minibatches(4)):
        parts = split(minibatch, [7, 5])
        results = compute(one, parts)
        assert compute(other, parts) == results
        for _ in range(number):
            for replica in (*one, *other):
                for buffer in replica.buffers:
                    buffer.fill(17)  # a partial sum
                replica.restore_statistics()
            for replica in one:
                replica.write_again()
            assert compute(other, parts) == results
        for kept, computed in zip(one, other, strict=True):
            assert seed_values(kept) == seed_values(computed)
            for found, expected in zip(kept.buffers, computed.buffers, strict=True):
                np.testing.assert_array_equal(found, expected)
        for replicas in (one, other):
            reduce_and_apply(replicas, results)
    assert [replica.digest() for replica in one] == [replica.digest() for replica in other]


def test_no_addend_is_kept_of_a_step_that_was_applied_or_had_several_minibatches() -> None:
    (replica,) = build(module(), 1)
    assert not replica.keeps_addend
    first, second = minibatches(2)
    step([replica], [first])
    assert not replica.keeps_addend
    replica.compute(*first)
    replica.compute(*second, adds=True)
    assert not replica.keeps_addend
    replica.compute(first[0] * np.inf, first[1])
    assert not replica.keeps_addend


def test_a_model_of_a_fixed_number_of_records_is_trained() -> None:
    def fixed() -> Any:
        return keras.Sequential([keras.Input((3,), batch_size=6), keras.layers.Dense(1)])

    replicas = build(module(fixed), 2)
    before = replicas[0].digest()
    step(replicas, split(minibatches(1)[0], [6, 6]))
    assert_equal_states(replicas)
    assert replicas[0].digest() != before


def test_a_step_that_was_applied_is_not_undone() -> None:
    replicas = build(module(noisy), 1)
    step(replicas, minibatches(1))
    seeds = seed_values(replicas[0])
    replicas[0].restore_statistics()
    assert seed_values(replicas[0]) == seeds


# --------------------------------------------------------------------------------------------------
# State.


@pytest.mark.repetition
def test_a_rank_that_only_follows_has_the_same_state() -> None:
    replicas = build(module(noisy, summed_error, OPTIMIZERS["AdamW"]), 3)
    for minibatch in minibatches(5):
        step(replicas, [*split(minibatch, [7, 5]), None])
    assert_equal_states(replicas)


def test_arrays_have_the_names_of_strategy_local() -> None:
    user = module(noisy, optimizer=OPTIMIZERS["Adam"])
    local = ModelReplica(user, seed=3, rank_seed=None, sample=None)
    (replica,) = build(user, 1)
    mine, other = replica.state_arrays(), local.state_arrays()
    left = {name for name in other if name not in mine}
    assert all(name.startswith("state/") for name in left)
    assert len(left) == 2
    for name, array in mine.items():
        assert (array.dtype, array.shape) == (other[name].dtype, other[name].shape)
        np.testing.assert_array_equal(array, other[name], err_msg=name)


class ManyTypes(keras.layers.Layer):  # type: ignore[misc]
    def build(self, shape: Any) -> None:
        for dtype in ("bool", "int64", "uint8", "int8", "float16", "bfloat16", "float64"):
            initializer = "zeros" if dtype != "bool" else lambda shape, dtype: tf.zeros(shape, "bool")
            setattr(self, f"a_{dtype}", self.add_weight((3,), initializer, dtype, trainable=False, name=f"a_{dtype}"))

    def call(self, inputs: Any) -> Any:
        return inputs


def many_types() -> Any:
    return keras.Sequential(
        [keras.Input((3,)), ManyTypes(name="many"), keras.layers.Dense(1), keras.layers.Dropout(0.5)]
    )


@pytest.mark.parametrize("elements", [0, repetition(1 << 30)])
def test_a_state_that_is_held_does_not_change_with_the_variables(elements: int, monkeypatch: Any) -> None:
    """An update that XLA has compiled, and one op by op."""
    monkeypatch.setattr(summed_update, "COMPILED_UPDATE_ELEMENTS", elements)
    (replica,) = build(module(normalized, optimizer=OPTIMIZERS["Momentum"]), 1)
    first, second, third = minibatches(3)
    step([replica], [first])
    packed, held = replica.pack_state().tobytes(), replica.hold_state()
    for minibatch in (second, third):
        step([replica], [minibatch])
    assert replica.pack_state().tobytes() != packed
    assert b"".join(piece.tobytes() for piece in packed_pieces(held)) == packed


def test_a_packed_state_is_equal_to_the_bit() -> None:
    source, target = build(module(many_types, optimizer=OPTIMIZERS["Adam"]), 2)
    layer = source.model.get_layer("many")
    layer.a_bool.assign([True, False, True])
    layer.a_int64.assign([2**62 + 1, -1, 7])
    layer.a_uint8.assign([255, 0, 3])
    layer.a_int8.assign([-128, 0, 3])
    layer.a_float16.assign(np.array([np.inf, -0.0, 6e-8], np.float16))
    layer.a_bfloat16.assign([1.5, -2.25, 1e30])
    layer.a_float64.assign(np.array([0x7FF8_0000_0000_1234, 1, 2**63], np.uint64).view(np.float64))
    step([source], minibatches(1))
    packed = source.pack_state()
    assert (packed.ndim, packed.size % 4) == (1, 0)
    kept, expected = packed.copy(), source.state_arrays()
    seeds = seed_values(target)
    assert source.digest() != target.digest()
    assert source.fingerprint() == target.fingerprint()
    target.unpack_state(packed)
    assert_equal_states([source, target])
    assert seed_values(target) == seeds
    step([source, target], [None, minibatches(1)[0]])
    np.testing.assert_array_equal(packed, kept)
    # Neither the packed state nor the arrays change with the model.
    assert not np.array_equal(expected["slot/0"], source.state_arrays()["slot/0"])
    target.unpack_state(np.frombuffer(kept.tobytes(), np.uint8))
    for name, array in target.state_arrays().items():
        assert array.tobytes() == expected[name].tobytes(), name


def test_the_state_of_another_model_is_refused_before_anything_is_assigned() -> None:
    (mine,) = build(module(), 1)
    (other,) = build(module(optimizer=OPTIMIZERS["Adam"]), 1)
    before = mine.digest()
    with pytest.raises(BadInputError, match="optimizers differ"):
        mine.unpack_state(other.pack_state())
    assert mine.digest() == before
    assert mine.fingerprint() != other.fingerprint()


def test_the_variables_of_the_state_are_described_for_users() -> None:
    (replica,) = build(module(many_types, optimizer=OPTIMIZERS["Adam"]), 1)
    described = replica.describe_variables()
    assert described.keys() == replica.state_arrays().keys()
    assert {"bool of shape (3,)", "bfloat16 of shape (3,)", "float32 of shape (3, 1)"} <= set(described.values())


@pytest.mark.parametrize("optimizer", ["Adam", *repetitions(("AdamW", "Momentum", "SGD"))])
def test_a_checkpoint_brings_the_state_back_to_the_bit(optimizer: str, tmp_path: Path) -> None:
    source, target = build(module(many_types, optimizer=OPTIMIZERS[optimizer]), 2)
    step([source], minibatches(1))
    write_shard(cut_directory(tmp_path, 1), 0, source.state_arrays())
    arrays, _ = read_array_file(shard_path(cut_directory(tmp_path, 1), 0))
    seeds = seed_values(target)
    target.load_state(arrays)
    assert target.digest() == source.digest()
    assert seed_values(target) == seeds
    step([source, target], [None, minibatches(1)[0]])
    assert_equal_states([source, target])


@pytest.mark.parametrize(("callbacks", "rate"), [(None, 0.02), (list, 0.5)], ids=["no callbacks", "callbacks"])
def test_a_learning_rate_that_the_user_corrects_counts_unless_callbacks_may_set_it(
    callbacks: Callable[[], Any] | None, rate: float
) -> None:
    (old,) = build(module(optimizer=lambda: keras.optimizers.SGD(0.5)), 1)
    (new,) = build(module(optimizer=lambda: keras.optimizers.SGD(0.02), callbacks=callbacks), 1)
    new.load_state(old.state_arrays())
    assert float(new.optimizer.learning_rate) == pytest.approx(rate)


def test_the_checkpoint_of_another_model_is_refused_before_anything_is_assigned() -> None:
    (mine,) = build(module(), 1)
    (other,) = build(module(optimizer=OPTIMIZERS["Adam"]), 1)
    before = mine.digest()
    arrays = dict(other.state_arrays())
    with pytest.raises(BadInputError, match="another model or optimizer"):
        mine.load_state({name: array.astype("float64") for name, array in mine.state_arrays().items()})
    with pytest.raises(BadInputError, match="another model or optimizer"):
        mine.load_state({name: array for name, array in arrays.items() if not name.startswith("slot/")})
    assert mine.digest() == before


def test_a_digest_sees_a_single_bit() -> None:
    (replica,) = build(module(), 1)
    before, of_variables = replica.digest(), replica.variable_digests()
    assert 0 <= before < 2**64
    assert list(of_variables) == list(replica.state_arrays())
    kernel = replica.model.trainable_variables[0]
    values = kernel.numpy()
    values.view(np.uint32)[0, 0] ^= 1
    kernel.assign(values)
    assert replica.digest() != before
    found = replica.variable_digests()
    assert [name for name, digest in found.items() if digest != of_variables[name]] == [f"dense/{kernel.path}"]
    values.view(np.uint32)[0, 0] ^= 1
    kernel.assign(values)
    assert replica.digest() == before


def test_evaluations_of_several_ranks_are_merged() -> None:
    user = module(eval_metrics_fn=lambda: {"mae": keras.metrics.MeanAbsoluteError()})
    replicas = build(user, 2)
    local = ModelReplica(user, seed=3, rank_seed=None, sample=None)
    ((x, y),) = minibatches(1)
    merged: dict[str, Any] = {}
    for replica, (features, labels) in zip(replicas, split((x, y), [5, 7]), strict=True):  # type: ignore[misc]
        replica.reset_metrics()
        replica.evaluate(features, labels)
        merged = merge_metric_states(merged, replica.metric_states())
    local.evaluate(x, y)
    found = replicas[0].metric_values(merged)
    expected = local.metric_values(merge_metric_states({}, local.metric_states()))
    assert found.keys() == expected.keys() == {"loss", "mae"}
    assert found == pytest.approx(expected, rel=1e-5)
    assert replicas[0].metric_directions == local.metric_directions
    assert [spec.name for spec in replicas[0].exportable().variables] == [spec.name for spec in local.variables.specs]


# --------------------------------------------------------------------------------------------------
# Errors, by name.


def test_a_gradient_that_is_not_finite_is_named() -> None:
    replicas = build(module(), 2)
    before = replicas[0].digest()
    ((x, y),) = minibatches(1)
    y = y.copy()
    y[3] = np.nan
    results = compute(replicas, split((x, y), [6, 6]))
    assert [result.finite for result in results] == [False, True]
    assert results[0].nonfinite == replicas[0].model.trainable_variables[0].path
    assert results[1].nonfinite == ""
    assert replicas[0].digest() == before


def test_one_infinite_value_at_the_end_of_a_large_gradient_is_noticed() -> None:
    def wide() -> Any:
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(70_000, use_bias=False)])

    (replica,) = build(module(wide), 1)
    ((x, _),) = minibatches(1)
    y = np.zeros((12, 70_000), np.float32)
    assert replica.compute(x, y).finite
    y[:, -1] = np.inf
    result = replica.compute(x, y)
    assert not result.finite
    assert result.nonfinite == replica.model.trainable_variables[0].path


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_variable_without_a_gradient_keeps_its_value_on_all_ranks() -> None:
    def unused() -> Any:
        given = keras.Input((3,))
        first, second = (keras.layers.Dense(1, name=name)(given) for name in ("used", "unused"))
        return keras.Model(given, [first, second])

    user = module(unused, lambda labels, found: squared_error(labels, found[0]), OPTIMIZERS["AdamW"])
    replicas = build(user, 3)
    before = [np.asarray(weight) for weight in replicas[0].model.get_layer("unused").weights]
    for minibatch in minibatches(2):
        step(replicas, split(minibatch, [5, 0, 7]))
    for found, expected in zip(replicas[0].model.get_layer("unused").weights, before, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert_equal_states(replicas)


def test_an_integer_that_training_changes_is_refused_by_name() -> None:
    class Counter(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.seen = self.add_weight((), "zeros", "int32", trainable=False, name="seen")

        def call(self, inputs: Any, training: bool = False) -> Any:
            if training:
                self.seen.assign_add(1)
            return inputs

    with pytest.raises(BadInputError, match=r"counter_layer/seen.*int32"):
        build(
            module(lambda: keras.Sequential([keras.Input((3,)), Counter(name="counter_layer"), keras.layers.Dense(1)])),
            1,
        )


class Late(keras.Model):  # type: ignore[misc]
    """Builds a layer when a condition in Python first holds."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        super().__init__()
        self.first, self.second = keras.layers.Dense(1), keras.layers.Dense(1, name="late")
        self.condition = condition

    def build(self, shape: Any) -> None:
        self.first.build(shape)

    def call(self, inputs: Any, training: bool = False) -> Any:
        found = self.first(inputs)
        return found + self.second(inputs) if training and self.condition() else found


def test_a_variable_made_by_the_first_training_step_is_refused_by_name() -> None:
    with pytest.raises(BadInputError, match="late/kernel"):
        build(module(lambda: Late(lambda: True)), 1, sample=np.zeros((2, 3), np.float32))


def test_a_variable_made_by_a_later_step_is_refused_by_name() -> None:
    conditions = iter([False, True])
    (replica,) = build(module(lambda: Late(lambda: next(conditions, True))), 1, sample=np.zeros((2, 3), np.float32))
    with pytest.raises(BadInputError, match="late/kernel"):
        replica.compute(*minibatches(1)[0], None)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: keras.layers.BatchNormalization(synchronized=True, name="both"), "'both'.*synchronized"),
        (lambda: keras.layers.LSTM(2, stateful=True, name="memory"), "'memory'.*stateful"),
    ],
    ids=["synchronized", "stateful"],
)
def test_layers_that_several_ranks_cannot_train_are_refused_by_name(layer: Callable[[], Any], message: str) -> None:
    def make() -> Any:
        layers = [keras.Input((4, 3), batch_size=5), layer(), keras.layers.Flatten(), keras.layers.Dense(1)]
        return keras.Sequential(layers)

    with pytest.raises(BadInputError, match=message):
        build(module(make), 1)


def test_a_summed_loss_with_a_layers_own_loss_is_refused() -> None:
    def active() -> Any:
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activity_regularizer="l2")])

    (replica,) = build(module(active, summed_error), 1)
    with pytest.raises(BadInputError, match="add_loss"):
        replica.compute(*minibatches(1)[0], None)
    (replica,) = build(module(active), 1)
    assert step([replica], minibatches(1))[0].finite


def test_outputs_with_different_reductions_are_refused_by_name() -> None:
    def two() -> Any:
        given = keras.Input((3,))
        return keras.Model(given, {name: keras.layers.Dense(1, name=name)(given) for name in ("a", "b")})

    losses = {"a": "mse", "b": keras.losses.MeanSquaredError(reduction="sum")}
    with pytest.raises(BadInputError, match=r"loss\['a'\].*loss\['b'\]"):
        build(module(two, losses), 1)


def test_ranks_that_disagree_about_the_loss_stop() -> None:
    replicas = [
        *build(module(loss=squared_error), 1),
        *build(module(loss=summed_error), 1),
    ]
    with pytest.raises(BadInputError, match="one rank"):
        step(replicas, split(minibatches(1)[0], [6, 6]))


def test_a_minibatch_without_a_loss_does_not_decide_what_the_loss_is() -> None:
    replicas = build(module(linear, summed_error, lambda: keras.optimizers.SGD(0.01)), 2)
    one = PlainKeras(replicas[0], summed_error)
    (x, y), *others = minibatches(4)
    y = np.concatenate([np.zeros((6, 1), np.float32), y[6:]])
    for minibatch in [(x, y), *others]:
        step(replicas, split(minibatch, [6, 6]))
        one.step(*minibatch)
    assert_close(replicas[0], one, 1e-5)


def test_a_loss_that_compares_records_is_averaged_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def spread(labels: Any, predictions: Any) -> Any:
        return tf.math.reduce_logsumexp(tf.square(labels - predictions))

    replicas = build(module(loss=spread), 2)
    with caplog.at_level(logging.WARNING):
        results = step(replicas, split(minibatches(1)[0], [4, 8]))
    assert [result.weight for result in results] == [4, 8]
    assert "neither" in caplog.text
    assert_equal_states(replicas)


def own_dice(labels: Any, predictions: Any) -> Any:
    return 1 - 2 * tf.reduce_sum(labels * predictions) / (tf.reduce_sum(labels) + tf.reduce_sum(predictions))


class OwnDice(keras.losses.Loss):  # type: ignore[misc]
    def call(self, labels: Any, predictions: Any) -> Any:
        return own_dice(labels, predictions)


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        (own_dice, "not the mean of the losses of its records"),
        (OwnDice(), "not the mean of the losses of its records"),
        (keras.losses.Dice(), "loss is Dice"),
        ({"out": keras.losses.Tversky()}, r"loss['out'] is Tversky"),
        ("dice", "loss is"),
        (squared_error, ""),
        (keras.losses.Dice(axis=(1,)), ""),
    ],
    ids=["function", "class", "Dice", "Tversky", "name", "mean", "Dice by record"],
)
@pytest.mark.first_cases(3)
def test_a_loss_of_the_whole_minibatch_is_named(caplog: pytest.LogCaptureFixture, loss: Any, named: str) -> None:
    def make() -> Any:
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid", name="out")])

    ((x, y),) = minibatches(1)
    with caplog.at_level(logging.WARNING):
        step(build(module(make, loss), 1), [(x, np.abs(y))])
    assert named in caplog.text if named else not caplog.text


def test_the_mask_of_predictions_does_not_decide_what_a_function_of_compile_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (replica,) = build(module(tagger, squared_error, loss_of_each_output=True), 1)
    ((ids, labels, _),) = sequences(1)
    with caplog.at_level(logging.WARNING):
        (result,) = step([replica], [(ids, np.where(ids[:, :, None] > 0, labels + 5, 0).astype(np.float32))])
    assert result.weight == np.count_nonzero(ids)
    assert not caplog.text


def test_the_averages_of_one_of_several_optimizers_are_what_is_evaluated() -> None:
    (replica,) = build(module(optimizer=lambda: several_optimizers(0.2)), 1)
    for minibatch in minibatches(3):
        step([replica], [minibatch])
    before = replica.digest()
    copied = replica.copy_final_values()
    assert replica.digest() == before
    pairs = zip(replica.model.variables, copied, strict=True)
    averaged = [variable.path for variable, copy in pairs if distance(copy, variable) > 1e-3]
    assert averaged
    assert all("bias" in path for path in averaged)


class Tracking(keras.layers.Layer):  # type: ignore[misc]
    """Keeps a moving mean, and counts records."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False, name="mean")
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(inputs, 0))
            self.count.assign_add(tf.cast(tf.shape(inputs)[0], tf.float32))
        return inputs


def test_other_weights_that_a_step_changes_become_the_mean_of_the_ranks() -> None:
    replicas = build(module(lambda: keras.Sequential([keras.Input((3,)), Tracking(), keras.layers.Dense(1)])), 2)
    one = PlainKeras(replicas[0])
    for minibatch in minibatches(3):
        step(replicas, split(minibatch, [4, 8]))
        one.step(*minibatch)
    mine, other = replicas[0].model.layers[0], one.model.layers[0]
    assert distance(mine.mean, other.mean) < 1e-5
    assert float(other.count) == 36
    assert float(mine.count) == pytest.approx(3 * (4 * 4 + 8 * 8) / 12), "the docs say so"


@cache
def calls() -> Any:
    """A variable that no model has, also where it is made inside of a graph."""
    with tf.init_scope():
        return tf.Variable(0.0, name="calls")


def annealed_error(labels: Any, predictions: Any) -> Any:
    calls().assign_add(1.0)
    return tf.minimum(1.0, calls() / 10) * tf.square(labels - predictions)


class Counted(keras.layers.Layer):  # type: ignore[misc]
    def call(self, inputs: Any) -> Any:
        calls().assign_add(1.0)
        return inputs


class Drawing(keras.layers.Layer):  # type: ignore[misc]
    """Draws from Keras' and TensorFlow's global generators."""

    def call(self, inputs: Any) -> Any:
        return (
            inputs + keras.random.normal(tf.shape(inputs), stddev=1e-6) + generator().normal(tf.shape(inputs), 0, 1e-6)
        )


@cache
def generator() -> Any:
    with tf.init_scope():
        return tf.random.Generator.from_seed(1)


@pytest.mark.parametrize("place", ["the loss", "the model"])
def test_a_variable_that_the_model_does_not_have_is_not_written(place: str) -> None:
    def counted() -> Any:
        return keras.Sequential([keras.Input((3,)), Counted(), keras.layers.Dense(1)])

    user = module(counted) if place == "the model" else module(loss=annealed_error)
    with pytest.raises(BadInputError, match=f"{place} writes the variable 'calls'"):
        step(build(user, 1), [minibatches(1)[0]])


@pytest.mark.repetition
def test_global_generators_may_draw() -> None:
    replicas = build(module(lambda: keras.Sequential([keras.Input((3,)), Drawing(), keras.layers.Dense(1)])), 2)
    assert all(result.finite for result in step(replicas, split(minibatches(1)[0], [4, 8])))


def test_a_step_without_records_is_no_step() -> None:
    replicas = build(module(), 2)
    with pytest.raises(ValueError, match="records"):
        step(replicas, [None, None])


def test_an_optimizer_that_makes_a_variable_late_is_refused_by_name() -> None:
    class Tardy(keras.optimizers.SGD):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            with tf.init_scope():
                self.add_variable((), name="tardy")
            super().update_step(gradient, variable, learning_rate)

    replicas = build(module(optimizer=lambda: Tardy(0.1)), 1)
    with pytest.raises(BadInputError, match="tardy"):
        step(replicas, minibatches(1))


# --------------------------------------------------------------------------------------------------
# The update of a large model is compiled.


def compiled_updates(replica: ModelReplica) -> list[bool]:
    return [update.is_compiled for update in replica._update._apply_by_case.values()]


def small_model() -> Any:
    # Without a bias before the normalization: its gradient would be what rounding leaves of zero.
    first = keras.layers.Dense(5, use_bias=False, kernel_regularizer="l2")
    return keras.Sequential([keras.Input((3,)), first, keras.layers.BatchNormalization(), keras.layers.Dense(1)])


@pytest.mark.repetition
@pytest.mark.parametrize("optimizer", ["Momentum", *repetitions(("scaled loss", "SGD", "Adam", "AdamW"))])
def test_a_compiled_update_is_one_op_by_op_but_for_rounding(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled() -> Any:
        return keras.optimizers.LossScaleOptimizer(OPTIMIZERS["Adam"](), initial_scale=16.0)

    user = module(small_model, optimizer=OPTIMIZERS.get(optimizer, scaled))
    (plain,) = build(user, 1)
    monkeypatch.setattr(summed_update, "COMPILED_UPDATE_ELEMENTS", 1)
    replicas = build(user, 2)
    for minibatch in minibatches(5):
        parts = split(minibatch, [5, 7])
        step(replicas, parts)
        # The addends of the same parts, so that only the update differs.
        for buffer in plain.buffers:
            buffer.fill(0)
        plain.compute(*parts[0], None)
        plain.compute(*parts[1], None, adds=True)
        plain.apply(12.0)
    assert compiled_updates(plain) == [False]
    assert [compiled_updates(replica) for replica in replicas] == [[True], [True]]
    assert_equal_states(replicas)
    found, expected = replicas[0].state_arrays(), plain.state_arrays()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_copy_of_variables_does_not_change_with_a_compiled_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summed_update, "COMPILED_UPDATE_ELEMENTS", 1)
    (replica,) = build(module(optimizer=OPTIMIZERS["Momentum"]), 1)
    first, second, third = minibatches(3)
    step([replica], [first])
    copied = replica.copy_final_values()
    values = [np.array(value) for value in copied]
    step([replica], [second])
    step([replica], [third])
    assert compiled_updates(replica) == [True]
    for tensor, value, variable in zip(copied, values, replica.model.variables, strict=True):
        np.testing.assert_array_equal(tensor, value)
        assert not np.array_equal(tensor, variable)


def halve_in_python(gradient: Any) -> Any:
    return tf.numpy_function(lambda value: value / np.float32(2), [gradient], tf.float32)


def halve_by_chance(gradient: Any) -> Any:
    # XLA would draw other numbers on each rank.
    return gradient * tf.random.uniform((), 0.5, 0.5 + 1e-7, seed=1)


@pytest.mark.parametrize("halve", [halve_in_python, halve_by_chance])
@pytest.mark.first_cases(1)
def test_an_optimizer_that_xla_cannot_compile_runs_op_by_op(
    halve: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Halving(keras.optimizers.SGD):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            super().update_step(tf.ensure_shape(halve(gradient), variable.shape), variable, learning_rate)

    (half,) = build(module(linear, optimizer=lambda: keras.optimizers.SGD(0.05)), 1)
    monkeypatch.setattr(summed_update, "COMPILED_UPDATE_ELEMENTS", 1)
    (replica,) = build(module(linear, optimizer=lambda: Halving(0.1)), 1)
    for minibatch in minibatches(2):
        step([half], [minibatch])
        step([replica], [minibatch])
    assert compiled_updates(replica) == [False]
    for found, expected in zip(replica.model.weights, half.model.weights, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_an_error_of_the_optimizer_is_not_taken_for_one_of_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    class Strict(keras.optimizers.SGD):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            tf.debugging.assert_less(tf.reduce_max(tf.abs(gradient)), 0.0, "the user's own check")
            super().update_step(gradient, variable, learning_rate)

    monkeypatch.setattr(summed_update, "COMPILED_UPDATE_ELEMENTS", 1)
    (replica,) = build(module(optimizer=lambda: Strict(0.1)), 1)
    result = replica.compute(*minibatches(1)[0])
    with pytest.raises(UserCodeError, match="the user's own check"):
        replica.apply(result.weight)
