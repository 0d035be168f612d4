"""A copy of a model's variables is evaluated as the model was at that step, and training is not disturbed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from support.repetition import repetitions

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.keras.model_contract import ModelModule  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.05),
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "averages": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5),
    "loss scaling": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01)),
}


def make_model() -> Any:
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(5, activation="tanh", kernel_regularizer=keras.regularizers.L2(0.01)),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )


def train(replica: ModelReplica, x: Any, y: Any) -> None:
    for features, labels in zip(x, y, strict=True):
        replica.apply(replica.compute(features, labels).weight)


@pytest.mark.parametrize("optimizer", ["averages", "loss scaling", *repetitions(("SGD", "Adam"))])
def test_a_copy_has_the_metrics_of_its_step_while_the_model_trains_on(optimizer: str) -> None:
    user = ModelModule(
        zoo=Path(__file__).parent,
        make_model=make_model,
        loss=lambda labels, predictions: tf.square(labels - predictions),
        optimizer=OPTIMIZERS[optimizer],
        eval_metrics_fn=lambda: {"error": keras.metrics.MeanAbsoluteError()},
        feed=make_model,
    )
    replica = ModelReplica(user, seed=3, rank_seed=0, sample=None)
    generator = np.random.default_rng(7)
    x = generator.normal(size=(12, 8, 3)).astype("float32")
    y = x.sum(axis=2, keepdims=True)
    train(replica, x[:5], y[:5])
    values, state = replica.copy_final_values(), replica.pack_state()
    replica.finalize()
    replica.reset_metrics()
    replica.evaluate(x[0], y[0])
    expected = replica.metric_states()
    replica.unpack_state(state)
    train(replica, x[5:], y[5:])
    trained, evaluator = replica.pack_state(), replica.make_copy_evaluator()
    evaluator.check(x[0])
    replica.reset_metrics()
    thread = Thread(target=evaluator.evaluate, args=(values, x[0], y[0]))
    thread.start()
    thread.join(60)
    assert replica.metric_states() == expected
    np.testing.assert_array_equal(replica.pack_state(), trained)
    replica.reset_metrics()
    replica.evaluate(x[0], y[0])
    assert replica.metric_states() != expected


class Traced(keras.layers.Layer):  # type: ignore[misc]
    """A layer whose computation is a TensorFlow function of its own."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], 1), name="kernel")

    @tf.function  # type: ignore[untyped-decorator]
    def multiply(self, x: Any) -> Any:
        return tf.matmul(x, self.kernel)

    def call(self, x: Any) -> Any:
        return self.multiply(x)


@pytest.mark.parametrize("records", [8, 5])
def test_a_model_that_would_read_the_trained_variables_is_refused_by_name(records: int) -> None:
    user = ModelModule(
        zoo=Path(__file__).parent,
        make_model=lambda: keras.Sequential([keras.Input((3,)), Traced(name="traced")]),
        loss=lambda labels, predictions: tf.square(labels - predictions),
        optimizer=OPTIMIZERS["SGD"],
        eval_metrics_fn=lambda: {"error": keras.metrics.MeanAbsoluteError()},
        feed=make_model,
    )
    replica = ModelReplica(user, seed=3, rank_seed=0, sample=None)
    x = np.random.default_rng(7).normal(size=(2, 8, 3)).astype("float32")
    y = x.sum(axis=2, keepdims=True)
    train(replica, x, y)
    with pytest.raises(BadInputError, match=r"reads the variable '.*traced/kernel' itself"):
        replica.make_copy_evaluator().check(x[0])
    with pytest.raises(BadInputError, match=r"reads the variable '.*traced/kernel' itself"):
        replica.make_copy_evaluator().evaluate(replica.copy_final_values(), x[0, :records], y[0, :records])
    train(replica, x, y)
    # With a pause the variables do not change.
    replica.evaluate(x[0, :records], y[0, :records])
