"""Each id once, and where each look-up finds it: for any ids, in any number of tables.

The native finder has the same tests in ``platform/tests/numerics/test_numerics_native_unique_ids.py``.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.unique_ids_contract import IDS, DistinctContract, Make, check

from edl.numerics import unique_ids
from edl.numerics.unique_ids import NumpyUniqueFinder, UniqueIdFinder, make_fastest_finder, positions_in


class TestNumpyDistinct(DistinctContract):
    @pytest.fixture
    def make(self) -> Make:
        return NumpyUniqueFinder


@given(IDS, st.randoms(use_true_random=False))
def test_positions_follow_ids_that_are_given_in_another_order(ids: Any, random: Any) -> None:
    distinct = UniqueIdFinder().find(ids)
    other = np.array(random.sample(distinct.tolist(), len(distinct)), np.int64)
    np.testing.assert_array_equal(other[positions_in(other, distinct)], ids)
    assert positions_in(distinct, distinct) is distinct.positions


def test_ids_that_always_meet_in_the_hash_table_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number times zero is in the same slot."""
    monkeypatch.setattr(unique_ids, "_HASH_MULTIPLIERS", (np.uint64(0),) * unique_ids._HASH_ROUNDS)
    ids = np.random.default_rng(0).integers(0, 40, 200)
    check(UniqueIdFinder(NumpyUniqueFinder).find(ids), ids)


def test_numpy_does_it_where_there_is_no_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "edl.numerics.native_unique_ids", None)
    assert isinstance(make_fastest_finder(), NumpyUniqueFinder)


def test_tables_that_are_looked_up_alike_share_what_was_found() -> None:
    ids, others = np.array([3, 1, 3]), np.array([3, 1, 4])
    weights, vectors, different = UniqueIdFinder().find_by_table([ids, ids.copy(), others])
    assert weights is vectors
    check(different, others)
