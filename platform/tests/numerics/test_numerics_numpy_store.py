"""The NumPy store keeps the contract of stores; declarations that cannot be are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.store_contract import PATIENT, SGD, TABLE, UNIFORM, Make, StoreContract

from edl.api.errors import BadInputError
from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.numerics.model_declaration import ModelDeclaration, check_table_shape
from edl.numerics.numpy_table import sum_duplicates
from edl.numerics.parameter_store import NumpyParameterStore


class TestNumpyStore(StoreContract):
    @pytest.fixture
    def make(self) -> Make:
        return NumpyParameterStore


@PATIENT
@given(st.lists(st.integers(0, 30), min_size=1, max_size=50))
def test_duplicates_are_summed(ids):
    values = np.arange(len(ids), dtype=np.float32)[:, None] + 1
    unique, summed = sum_duplicates(np.array(ids), values)
    expected = {row: sum(i + 1 for i, other in enumerate(ids) if other == row) for row in ids}
    assert dict(zip(unique.tolist(), summed[:, 0].tolist(), strict=True)) == expected
    assert len(unique) == len(expected)


def test_a_declaration_that_cannot_be_is_refused():
    w, mean = VariableSpec("w", (2,)), VariableSpec("mean", (2,), statistic=True)
    with pytest.raises(BadInputError, match="declared before"):
        ModelDeclaration((mean, w), (), SGD, "model")
    with pytest.raises(BadInputError, match="twice"):
        ModelDeclaration((w, w), (), SGD, "model")
    with pytest.raises(BadInputError, match="rows"):
        ModelDeclaration((), (TableSpec("emb", -1, 4, UNIFORM, 0),), SGD, "model")
    with pytest.raises(BadInputError, match="initializer"):
        ModelDeclaration((), (TableSpec("emb", 4, 4, {"name": "orthogonal"}, 0),), SGD, "model")
    declared = ModelDeclaration((w, mean), (TABLE,), SGD, "model")
    assert ModelDeclaration.from_json(declared.to_json()) == declared


@pytest.mark.parametrize("value", [math.nan, math.inf, "x"])
def test_an_initializer_that_cannot_be_names_its_table(value):
    with pytest.raises(BadInputError, match=r"^table 'users' \(any id x 4\): .*constant"):
        check_table_shape(TableSpec("users", 0, 4, {"name": "constant", "value": value}, seed=1))
