"""What must hold of whatever finds distinct ids: one suite, which each implementation runs with a fixture ``make``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edl.numerics.aligned_memory import is_aligned
from edl.numerics.unique_ids import FindUnique, UniqueIdFinder

Make = Callable[[], FindUnique]
ANY_ID = st.integers(-(2**63), 2**63 - 1)
IDS = st.one_of(
    arrays.arrays(np.int64, st.integers(0, 60), elements=st.integers(0, 20)),
    arrays.arrays(np.int64, st.integers(0, 60), elements=ANY_ID),
)
SHARED = settings(
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
    ],
)


def check(found: Any, ids: Any) -> None:
    np.testing.assert_array_equal(np.asarray(found)[found.positions], ids)
    assert found.tolist() == list(dict.fromkeys(ids.tolist())), "each once, in the order in which they come first"
    assert found.positions.dtype == np.int32


class DistinctContract:
    """A subclass gives the fixture ``make``."""

    @SHARED
    @given(tables=st.lists(IDS, max_size=4))
    def test_every_lookup_finds_its_id_among_those_that_come_once(self, make: Make, tables: list[Any]) -> None:
        distinct = UniqueIdFinder(make)
        for ids, unique_ids in zip(tables, distinct.find_by_table(tables), strict=True):
            check(unique_ids, ids)

    @pytest.mark.parametrize("count", [1, 15, 16, 17, 5000, 70_000])
    @pytest.mark.parametrize("stride", [1, -1, 26, 1 << 20, 1 << 32, (1 << 32) + 1, 102_334_155])
    def test_ids_with_equal_distances_are_told_apart(self, make: Make, count: int, stride: int) -> None:
        distinct, ids = UniqueIdFinder(make), np.arange(count, dtype=np.int64) % 50_000 * stride
        check(distinct.find(ids), ids)
        check(distinct.find(ids[: count // 2]), ids[: count // 2])

    def test_ids_that_cannot_be_written_to_are_taken_as_they_are(self, make: Make) -> None:
        """Features are TensorFlow's memory."""
        ids = np.array([7, 7, 5])
        ids.flags.writeable = False
        check(UniqueIdFinder(make).find(ids), ids)

    def test_positions_go_to_tensorflow_without_a_copy(self, make: Make) -> None:
        assert is_aligned(UniqueIdFinder(make).find(np.arange(100)).positions)

    def test_threads_do_not_disturb_each_other(self, make: Make) -> None:
        distinct, random = UniqueIdFinder(make), np.random.default_rng(1)
        batches = [random.integers(0, 3000, 4000) for _ in range(8)]
        failed: list[BaseException] = []

        def find() -> None:
            try:
                for ids in batches * 5:
                    check(distinct.find(ids), ids)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=find) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
