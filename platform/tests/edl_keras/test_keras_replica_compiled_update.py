"""The update of a large model is compiled by XLA."""

from __future__ import annotations

from collections.abc import Callable
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
from edl_keras.replica_harness import (  # noqa: E402
    OPTIMIZERS,
    assert_equal_states,
    build,
    linear,
    minibatches,
    module,
    split,
    step,
)

from edl.keras import all_reduce_update  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402
from edl.keras.user_code import UserCodeError  # noqa: E402


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
    monkeypatch.setattr(all_reduce_update, "COMPILED_UPDATE_ELEMENTS", 1)
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
    arrays, expected = replicas[0].state_arrays(), plain.state_arrays()
    for name, values in expected.items():
        np.testing.assert_allclose(arrays[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_copy_of_variables_does_not_change_with_a_compiled_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_reduce_update, "COMPILED_UPDATE_ELEMENTS", 1)
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
    monkeypatch.setattr(all_reduce_update, "COMPILED_UPDATE_ELEMENTS", 1)
    (replica,) = build(module(linear, optimizer=lambda: Halving(0.1)), 1)
    for minibatch in minibatches(2):
        step([half], [minibatch])
        step([replica], [minibatch])
    assert compiled_updates(replica) == [False]
    for weight, expected in zip(replica.model.weights, half.model.weights, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-6)


def test_an_error_of_the_optimizer_is_not_taken_for_one_of_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    class Strict(keras.optimizers.SGD):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            tf.debugging.assert_less(tf.reduce_max(tf.abs(gradient)), 0.0, "the user's own check")
            super().update_step(gradient, variable, learning_rate)

    monkeypatch.setattr(all_reduce_update, "COMPILED_UPDATE_ELEMENTS", 1)
    (replica,) = build(module(optimizer=lambda: Strict(0.1)), 1)
    result = replica.compute(*minibatches(1)[0])
    with pytest.raises(UserCodeError, match="the user's own check"):
        replica.apply(result.weight)
