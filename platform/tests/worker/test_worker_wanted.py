"""Each id once, and where each look-up finds it: for any ids, in any number of tables."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edl.worker import numpy_distinct
from edl.worker.aligned import is_aligned
from edl.worker.numpy_distinct import NumpyDistinct
from edl.worker.wanted import Distinct, Find, finder, positions_among

HAS_NATIVE = importlib.util.find_spec("edl.worker._distinct") is not None
if HAS_NATIVE:
    from edl.worker import _distinct
    from edl.worker.native_distinct import NativeDistinct
FINDERS: list[Callable[[], Find]] = [NumpyDistinct, *([NativeDistinct] if HAS_NATIVE else [])]

both = pytest.mark.parametrize("make", FINDERS)
native = pytest.mark.skipif(not HAS_NATIVE, reason="the extension is not built")

ANY_ID = st.integers(-(2**63), 2**63 - 1)
IDS = st.one_of(
    arrays.arrays(np.int64, st.integers(0, 60), elements=st.integers(0, 20)),
    arrays.arrays(np.int64, st.integers(0, 60), elements=ANY_ID),
)


def check(found: Any, ids: Any) -> None:
    np.testing.assert_array_equal(np.asarray(found)[found.positions], ids)
    assert found.tolist() == list(dict.fromkeys(ids.tolist())), "each once, in the order in which they come first"
    assert found.positions.dtype == np.int32


@both
@given(tables=st.lists(IDS, max_size=4))
def test_every_lookup_finds_its_id_among_those_that_come_once(make: Callable[[], Find], tables: list[Any]) -> None:
    distinct = Distinct(make)
    for ids, found in zip(tables, distinct.each(tables), strict=True):
        check(found, ids)


@both
@pytest.mark.parametrize("count", [1, 15, 16, 17, 5000, 70_000])
@pytest.mark.parametrize("stride", [1, -1, 26, 1 << 20, 1 << 32, (1 << 32) + 1, 102_334_155])
def test_ids_with_equal_distances_are_told_apart(make: Callable[[], Find], count: int, stride: int) -> None:
    distinct, ids = Distinct(make), np.arange(count, dtype=np.int64) % 50_000 * stride
    check(distinct.of(ids), ids)
    check(distinct.of(ids[: count // 2]), ids[: count // 2])


@both
def test_ids_that_cannot_be_written_to_are_taken_as_they_are(make: Callable[[], Find]) -> None:
    """Features are TensorFlow's memory."""
    ids = np.array([7, 7, 5])
    ids.flags.writeable = False
    check(Distinct(make).of(ids), ids)


@both
def test_positions_go_to_tensorflow_without_a_copy(make: Callable[[], Find]) -> None:
    assert is_aligned(Distinct(make).of(np.arange(100)).positions)


@given(IDS, st.randoms(use_true_random=False))
def test_positions_follow_ids_that_are_given_in_another_order(ids: Any, random: Any) -> None:
    found = Distinct().of(ids)
    other = np.array(random.sample(found.tolist(), len(found)), np.int64)
    np.testing.assert_array_equal(other[positions_among(other, found)], ids)
    assert positions_among(found, found) is found.positions


def test_ids_that_always_meet_in_the_hash_table_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number times zero is in the same slot."""
    monkeypatch.setattr(numpy_distinct, "_ODD", (np.uint64(0),) * numpy_distinct._ROUNDS)
    ids = np.random.default_rng(0).integers(0, 40, 200)
    check(Distinct(NumpyDistinct).of(ids), ids)


def test_numpy_does_it_where_there_is_no_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "edl.worker.native_distinct", None)
    assert isinstance(finder(), NumpyDistinct)


@native
def test_the_extension_does_it_where_there_is_one() -> None:
    assert isinstance(finder(), NativeDistinct)


@native
def test_the_extension_refuses_arrays_that_do_not_fit() -> None:
    distinct, ids = _distinct.Distinct(), np.array([4, 4, 2])
    positions = np.zeros(3, np.int32)
    shifted = np.zeros(13, np.uint8)[1:].view(np.int32)
    for wrong in (
        positions[:2],
        np.zeros(6, np.int32)[::2],
        np.zeros(3, np.int64),
        np.zeros((3, 1), np.int32),
        shifted,
    ):
        with pytest.raises((ValueError, TypeError)):
            distinct.take(ids, wrong)
    assert distinct.take(ids, positions) == 2
    for wrong in (np.zeros(3, np.int64), np.zeros(2, np.int32), np.zeros(17, np.uint8)[1:].view(np.int64)):
        with pytest.raises((ValueError, TypeError)):
            distinct.copy(wrong)


def test_tables_that_are_looked_up_alike_share_what_was_found() -> None:
    ids, others = np.array([3, 1, 3]), np.array([3, 1, 4])
    weights, vectors, different = Distinct().each([ids, ids.copy(), others])
    assert weights is vectors
    check(different, others)


@both
def test_threads_do_not_disturb_each_other(make: Callable[[], Find]) -> None:
    distinct, random = Distinct(make), np.random.default_rng(1)
    batches = [random.integers(0, 3000, 4000) for _ in range(8)]
    failed: list[BaseException] = []

    def find() -> None:
        try:
            for ids in batches * 5:
                check(distinct.of(ids), ids)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=find) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
