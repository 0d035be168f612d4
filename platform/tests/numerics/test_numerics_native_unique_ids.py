"""Workers' native finder of distinct ids keeps the contract of finders. ``make native-test`` runs this.

Here, not with the workers: it is compiled with the table, and what is marked ``native`` runs under sanitizers together.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from support.unique_ids_contract import DistinctContract, Make

from edl.numerics.unique_ids import make_fastest_finder

if importlib.util.find_spec("edl.numerics._distinct") is not None:
    from edl.numerics import _distinct
    from edl.numerics.native_unique_ids import NativeUniqueFinder

pytestmark = pytest.mark.native


class TestNativeDistinct(DistinctContract):
    @pytest.fixture
    def make(self) -> Make:
        return NativeUniqueFinder


def test_the_extension_does_it_where_there_is_one() -> None:
    assert isinstance(make_fastest_finder(), NativeUniqueFinder)


def test_the_extension_refuses_arrays_that_do_not_fit() -> None:
    distinct, ids = _distinct.Distinct(0), np.array([4, 4, 2])
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
