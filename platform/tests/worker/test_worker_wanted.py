"""Each id once, and where each look-up finds it: for any ids, in any number of tables."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edl.worker import wanted as module
from edl.worker.wanted import Distinct, positions_among

ANY_ID = st.integers(-(2**63), 2**63 - 1)
IDS = st.one_of(
    arrays.arrays(np.int64, st.integers(0, 60), elements=st.integers(0, 20)),
    arrays.arrays(np.int64, st.integers(0, 60), elements=ANY_ID),
)


def check(found: Any, ids: Any) -> None:
    np.testing.assert_array_equal(np.asarray(found)[found.positions], ids)
    assert sorted(found.tolist()) == sorted(set(ids.tolist()))
    assert found.positions.dtype == np.int32


@given(st.lists(IDS, max_size=4))
def test_every_lookup_finds_its_id_among_those_that_come_once(tables: list[Any]) -> None:
    distinct = Distinct()
    for ids, found in zip(tables, distinct.each(tables), strict=True):
        check(found, ids)


@given(IDS, st.randoms(use_true_random=False))
def test_positions_follow_ids_that_are_given_in_another_order(ids: Any, random: Any) -> None:
    found = Distinct().of(ids)
    other = np.array(random.sample(found.tolist(), len(found)), np.int64)
    np.testing.assert_array_equal(other[positions_among(other, found)], ids)
    assert positions_among(found, found) is found.positions


def test_ids_that_always_meet_in_the_hash_table_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number times zero is in the same slot."""
    monkeypatch.setattr(module, "_ODD", (np.uint64(0),) * module._ROUNDS)
    ids = np.random.default_rng(0).integers(0, 40, 200)
    check(Distinct().of(ids), ids)


def test_tables_that_are_looked_up_alike_share_what_was_found() -> None:
    ids, others = np.array([3, 1, 3]), np.array([3, 1, 4])
    weights, vectors, different = Distinct().each([ids, ids.copy(), others])
    assert weights is vectors
    check(different, others)


def test_threads_do_not_disturb_each_other() -> None:
    distinct, random = Distinct(), np.random.default_rng(1)
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
