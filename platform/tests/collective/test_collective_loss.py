"""Every implementation of reductions ends a round in the same ways."""

from __future__ import annotations

import pytest
from support.loss_contract import LossContract
from support.rank_threads import NATIVE, NUMPY, Variant


class TestNumpyLoss(LossContract):
    @pytest.fixture(params=NUMPY, ids=lambda variant: variant.name)
    def variant(self, request: pytest.FixtureRequest) -> Variant:
        variant: Variant = request.param
        return variant


@pytest.mark.native
class TestNativeLoss(LossContract):
    @pytest.fixture(params=NATIVE, ids=lambda variant: variant.name)
    def variant(self, request: pytest.FixtureRequest) -> Variant:
        variant: Variant = request.param
        return variant
