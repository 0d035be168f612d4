"""The update of a replica: what the sums over ranks and the only rank's own gradients have in common, and what not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
    pytest.mark.filterwarnings("ignore:Gradients do not exist"),
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from edl.keras.all_reduce_update import SummedUpdate  # noqa: E402
from edl.keras.local_strategy_update import SingleRankUpdate  # noqa: E402
from edl.keras.model_loss import LossReduction  # noqa: E402
from edl.keras.optimizer_update import ReplicaUpdate  # noqa: E402
from edl.keras.user_code import UserCodeError  # noqa: E402

X = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)


class CallCounter(keras.layers.Layer):  # type: ignore[misc]
    """Counts its calls, in variables of these types."""

    def __init__(self, *types: str) -> None:
        super().__init__(name="counting")
        self.counts = [
            self.add_weight(shape=(), initializer="zeros", dtype=each, trainable=False, name=f"calls_{each}")
            for each in types
        ]

    def call(self, x: Any) -> Any:
        for count in self.counts:
            count.assign(count + 1)
        return x


class Updated:
    """A model, and the update that trains it; ``step`` traces a step and writes what it returns."""

    def __init__(self, make: Callable[..., ReplicaUpdate], optimizer: Any, *types: str) -> None:
        keras.utils.set_random_seed(2)
        layers = [keras.layers.Dense(4, name="used"), keras.layers.BatchNormalization(), CallCounter(*types)]
        self.model = keras.Sequential([keras.Input((3,)), *layers])
        self.unused = self.model.add_weight(shape=(2,), initializer="ones", name="unused")
        optimizer.build(self.model.trainable_variables)
        counts = self.model.get_layer("counting").counts
        statistics = [*self.model.layers[1].non_trainable_variables, *counts]
        self.update = make(self.model, optimizer, self.model.trainable_variables, statistics)
        self._traced = tf.function(self._trace, autograph=False)

    def step(self, x: Any = X) -> bool:
        gradients, tails = self._traced(tf.constant(x))
        return self.update.write(gradients, tails, float(len(x)), adds=False)

    def _trace(self, x: Any) -> Any:
        update = self.update
        before = update.read_statistics()
        with tf.GradientTape() as tape:
            loss = update.optimizer.scale_loss(tf.reduce_mean(self.model(x, training=True) ** 2))
        gradients = tape.gradient(loss, [variable.value for variable in update.trained])
        return update.make_addend(gradients, before, LossReduction.MEAN, tf.cast(tf.shape(x)[0], tf.float64))

    def values(self) -> list[Any]:
        return [variable.numpy() for variable in self.model.variables]


def fail() -> Any:
    raise AssertionError


MODULE: Any = SimpleNamespace(zoo=Path("/zoo"), optimizer=fail)


def summed(model: Any, optimizer: Any, trained: Any, statistics: Any) -> ReplicaUpdate:
    return SummedUpdate(MODULE, model, optimizer, trained, statistics, 1 << 30)


def single(model: Any, optimizer: Any, trained: Any, statistics: Any) -> ReplicaUpdate:
    return SingleRankUpdate(MODULE, optimizer, trained, statistics)


each_kind = pytest.mark.parametrize("make", [summed, single])


def train_plainly(optimizer: Any, steps: int, *types: str) -> list[Any]:
    """The values after these steps of Keras alone."""
    plain = Updated(single, optimizer, *types)

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def take_step(x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(plain.model(x, training=True) ** 2)
        variables = plain.model.trainable_variables
        optimizer.apply(tape.gradient(loss, [each.value for each in variables]), variables)

    for _ in range(steps):
        take_step(tf.constant(X))
    return plain.values()


@each_kind
def test_steps_are_those_of_keras(make: Any) -> None:
    """The only rank's to the bit; sums are multiplied by a weight and divided again."""
    mine = Updated(make, keras.optimizers.SGD(0.1, momentum=0.9), "float32")
    for _ in range(3):
        assert mine.step()
        mine.update.apply(float(len(X)))
    tolerance = 0.0 if make is single else 1e-5
    for value, expected in zip(
        mine.values(), train_plainly(keras.optimizers.SGD(0.1, momentum=0.9), 3, "float32"), strict=True
    ):
        np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance)
    assert mine.unused.numpy().tolist() == [1, 1], "it has no gradient"


@each_kind
def test_nothing_changes_until_a_step_is_applied(make: Any) -> None:
    mine = Updated(make, keras.optimizers.SGD(0.1), "float32")
    before = mine.values()
    mine.step(2 * X)
    mine.step()
    for value, expected in zip(mine.values(), before, strict=True):
        np.testing.assert_array_equal(value, expected)
    mine.update.apply(float(len(X)))
    assert [each.numpy() for each in mine.model.get_layer("counting").counts] == [1]
    assert not np.array_equal(mine.model.layers[1].moving_mean.numpy(), np.zeros(4))


@each_kind
def test_the_variable_of_a_gradient_that_is_not_finite_is_named(make: Any) -> None:
    mine = Updated(make, keras.optimizers.SGD(0.1), "float32")
    assert mine.step()
    assert mine.update.find_nonfinite() == "loss"
    assert not mine.step(np.where(X[2, 1] == X, np.inf, X))
    assert mine.update.find_nonfinite().endswith("/used/kernel")


@each_kind
def test_an_optimizer_that_scales_the_loss_gets_gradients_that_are_not_finite(make: Any) -> None:
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)
    mine = Updated(make, scaling, "float32")
    kernel = mine.model.get_layer("used").kernel
    before = kernel.numpy()
    assert mine.update.skips_infinite_gradients
    assert mine.step(np.full_like(X, np.inf))
    mine.update.apply(float(len(X)))
    np.testing.assert_array_equal(kernel.numpy(), before)
    assert float(scaling.dynamic_scale) == 4


@each_kind
def test_an_error_of_the_optimizer_is_the_users(make: Any) -> None:
    class Broken(keras.optimizers.SGD):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            raise KeyError("mine")

    mine = Updated(make, Broken(0.1), "float32")
    mine.step()
    with pytest.raises(UserCodeError, match="mine"):
        mine.update.apply(float(len(X)))


def test_statistics_of_the_only_rank_may_have_any_type() -> None:
    types = ("int32", "uint8", "float16", "float64")
    mine = Updated(single, keras.optimizers.SGD(0.1), *types)
    for _ in range(2):
        mine.step()
        mine.update.apply(1.0)
    assert [int(each.numpy()) for each in mine.model.get_layer("counting").counts] == [2] * len(types)


def test_the_only_rank_keeps_no_gradient_after_its_update() -> None:
    mine = Updated(single, keras.optimizers.SGD(0.1))
    mine.step()
    mine.update.apply(1.0)
    assert not mine.update._gradients  # type: ignore[attr-defined]
    assert mine.update.buffers == ()
