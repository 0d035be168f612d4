"""Functions that are traced once, on whatever thread they are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow

import tensorflow as tf  # noqa: E402

from edl.keras.traced_function import TRACING_LOCK, TracedFunction, as_array  # noqa: E402
from edl.numerics import aligned_memory  # noqa: E402


@pytest.mark.parametrize(
    "make", [lambda: np.zeros((2, 3), np.float32), lambda: tf.ragged.constant([[1.0], [2.0, 3.0]])]
)
def test_a_function_is_traced_while_no_other_of_its_model_is(make: Any) -> None:
    """Layers remember what they are traced for: rows that are lent to one graph must not appear in another."""
    lock_states: list[bool] = []

    def function(value: Any) -> Any:
        lock_states.append(TRACING_LOCK.locked())
        return value

    traced, argument = TracedFunction(function), make()
    traced(argument)
    traced(argument)

    assert lock_states == [True]
    assert not TRACING_LOCK.locked()


def test_an_aligned_array_is_not_copied() -> None:
    values = aligned_memory.allocate_aligned(2, 3)
    assert np.shares_memory(as_array(TracedFunction(lambda given: tf.reshape(given, [-1]))(values)), values)


def misaligned() -> Any:
    return aligned_memory.allocate_aligned(4)[1:]


def not_writable() -> Any:
    values = aligned_memory.allocate_aligned(4)
    values.flags.writeable = False
    return values


def columns() -> Any:
    return aligned_memory.allocate_aligned(4, 4)[:, :2]


@pytest.mark.parametrize(
    "make",
    [
        misaligned,
        not_writable,
        columns,
        lambda: aligned_memory.allocate_aligned(0),
        lambda: np.zeros(64, bool),
        lambda: 3.0,
    ],
)
def test_what_tensorflow_cannot_take_as_it_is_is_copied(make: Callable[[], Any]) -> None:
    values = make()
    np.testing.assert_array_equal(as_array(TracedFunction(lambda given: tf.identity(given))(values)), values)


def test_arguments_go_where_the_function_names_them() -> None:
    """Also those of several components, of dicts in any order, and of one that the function does not use."""

    def function(first: Any, second: Any, unused: Any) -> Any:
        return first["b"] - first["a"], second.flat_values * 2

    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
    traced = TracedFunction(function)
    for _ in range(2):
        difference, doubled = traced({"b": np.array([5.0]), "a": np.array([3.0])}, ragged, [np.array([7.0]), ragged])
        assert as_array(difference).tolist() == [2.0]
        assert as_array(doubled).tolist() == [2.0, 4.0, 6.0]
    assert traced.trace_count == 1
