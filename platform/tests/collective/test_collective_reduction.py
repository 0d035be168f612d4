"""Every implementation of reductions passes the same suite."""

from __future__ import annotations

import pytest
from support.rank_threads import NATIVE, NUMPY, Variant
from support.reduction_contract import ReductionContract


class TestNumpyReduction(ReductionContract):
    @pytest.fixture(params=NUMPY, ids=lambda variant: variant.name)
    def variant(self, request: pytest.FixtureRequest) -> Variant:
        variant: Variant = request.param
        return variant


@pytest.mark.native
class TestNativeReduction(ReductionContract):
    @pytest.fixture(params=NATIVE, ids=lambda variant: variant.name)
    def variant(self, request: pytest.FixtureRequest) -> Variant:
        variant: Variant = request.param
        return variant
