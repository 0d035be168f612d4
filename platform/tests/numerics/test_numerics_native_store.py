"""The native store keeps the contract of stores and has the NumPy store's bits. ``make native-test`` runs this."""

from __future__ import annotations

import importlib.util
from functools import partial

import numpy as np
import pytest
from support.store_contract import DENSE, TABLE, WIDE, Make, StoreContract, assert_same, draw_gradients
from support.table_contract import OPTIMIZERS

from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_store import NumpyParameterStore
from edl.ps.model_state import StoreFactory

if importlib.util.find_spec("edl.numerics._native") is not None:
    from edl.numerics.native_table import NativeParameterStore

pytestmark = pytest.mark.native


class TestNativeStore(StoreContract):
    @pytest.fixture(params=[1, 2], ids=lambda threads: f"{threads} threads")
    def make(self, request) -> Make:
        return partial(NativeParameterStore, threads=request.param)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_fifty_pushes_leave_the_bits_of_the_numpy_store(optimizer):
    declared = ModelDeclaration(DENSE, (TABLE, WIDE), optimizer, "model")
    stores = [make(declared, np.ones(4, np.float32)) for make in (NativeParameterStore, NumpyParameterStore)]
    random = np.random.default_rng(5)
    for step in range(1, 51):
        push = draw_gradients(declared, random)
        for store in stores:
            store.apply_gradients(push, step)
    assert_same(*stores)


@pytest.mark.parametrize(("before", "after"), [("numpy", "native"), ("native", "numpy")])
def test_a_snapshot_of_one_store_goes_on_in_the_other(before, after):
    declared = ModelDeclaration(DENSE, (TABLE, WIDE), OptimizerSpec("adagrad"), "model")
    random = np.random.default_rng(6)
    original = StoreFactory(before).make_store(declared, np.ones(4, np.float32))
    original.apply_gradients(draw_gradients(declared, random), 1)
    other = StoreFactory(after).restore_store(original.take_snapshot())
    assert type(other) is not type(original)
    push = draw_gradients(declared, random)
    for store in (original, other):
        store.apply_gradients(push, 2)
    assert_same(original, other)


def test_the_native_store_is_taken_where_it_can_be():
    declared = ModelDeclaration((), (TABLE,), OptimizerSpec("adam"), "model")
    assert type(StoreFactory().make_store(declared, np.empty(0, np.float32))) is NativeParameterStore
