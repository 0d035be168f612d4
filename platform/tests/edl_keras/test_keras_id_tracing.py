"""The ids that a model looks up: what a graph would compute, whether it is run or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow

import tensorflow as tf  # noqa: E402

from edl.keras.row_binding import IdTracer  # noqa: E402

FEATURES: dict[str, Any] = {"wide": np.arange(6, dtype=np.int64).reshape(2, 3), "narrow": np.array([7, -1], np.int32)}
Calls = Callable[[Any], list[list[Any]]]


def flat(ids: Any) -> Any:
    return tf.reshape(tf.cast(ids, tf.int64), [-1])


DIRECT: dict[str, Calls] = {
    "as they came": lambda given: [[flat(given["wide"])]],
    "of another type and shape": lambda given: [[flat(tf.expand_dims(given["narrow"], 1))]],
    "several calls": lambda given: [[flat(given["wide"]), flat(given["narrow"])], [flat(given["wide"])]],
    "no call": lambda given: [[], [flat(given["narrow"])]],
}
COMPUTED: dict[str, Calls] = {
    "shifted": lambda given: [[flat(given["wide"] + 1)]],
    "in another order": lambda given: [[flat(tf.transpose(given["wide"]))]],
    "a part": lambda given: [[flat(given["wide"][:, 0])]],
    "cut to fewer bits": lambda given: [[flat(tf.cast(given["wide"] + 2**32, tf.int32))]],
    "one of two": lambda given: [[flat(given["wide"])], [flat(given["narrow"] * 2)]],
}


def expected(calls: Calls, features: Any) -> list[list[int]]:
    tensors = tf.nest.map_structure(tf.convert_to_tensor, features)
    return [[int(value) for ids in table for value in ids.numpy()] for table in calls(tensors)]


@pytest.mark.parametrize("how", DIRECT | COMPUTED)
def test_ids_are_those_of_the_graph(how: str) -> None:
    calls = (DIRECT | COMPUTED)[how]
    looked_up = IdTracer(calls)
    for features in (FEATURES, {name: values[:1] + 1 for name, values in FEATURES.items()}):
        traced_ids = looked_up(features)
        assert [ids.tolist() for ids in traced_ids] == expected(calls, features)
        assert all(ids.dtype == np.int64 for ids in traced_ids)


@pytest.mark.parametrize("how", DIRECT)
def test_what_is_in_the_features_is_taken_from_there(how: str) -> None:
    looked_up = IdTracer(DIRECT[how])
    looked_up(FEATURES)
    assert None not in looked_up._argument_indices.values()


def test_ids_that_would_lose_bits_are_computed() -> None:
    looked_up = IdTracer(lambda given: [[flat(tf.cast(given, tf.int32))]])
    (ids,) = looked_up(np.array([2**32 + 5]))
    assert ids.tolist() == [5]


def test_ragged_features() -> None:
    (ids,) = IdTracer(lambda given: [[flat(given.flat_values)]])(tf.ragged.constant([[4, 2], [], [9]], tf.int64))
    assert ids.tolist() == [4, 2, 9]
