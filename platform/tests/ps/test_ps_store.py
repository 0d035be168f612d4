"""The NumPy store against a dictionary of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edl.core.errors import BadInputError
from edl.ps.declaration import Declaration, DenseVariable, RowTable
from edl.ps.numpy_store import NumpyStore
from edl.ps.numpy_table import sum_duplicates
from edl.ps.store import Gradients, RowGradients
from edl.spec.initializer import initial_rows
from edl.spec.optimizer import OptimizerSpec

UNIFORM = {"name": "uniform", "minval": -0.05, "maxval": 0.05}
TABLE = RowTable("emb", 5000, 2, UNIFORM, seed=9)
SGD = OptimizerSpec("sgd")
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
NOTHING = np.empty(0, np.float32)
pushes = st.lists(st.lists(st.integers(0, TABLE.rows - 1), max_size=40), max_size=12)


def store(*tables: RowTable) -> NumpyStore:
    return NumpyStore(Declaration((), tables, SGD, "model"), NOTHING)


def ones(ids: list[int]) -> Gradients:
    rows = RowGradients(np.array(ids, np.int64), np.ones((len(ids), TABLE.dim), np.float32))
    return Gradients(NOTHING, {"emb": rows}, 1.0, 1.0)


@PATIENT
@given(pushes)
def test_rows_are_what_a_dictionary_of_rows_would_hold(pushes):
    held, expected = store(TABLE), {}
    for step, ids in enumerate(pushes, start=1):
        held.apply(ones(ids), step)
        for row in ids:
            before = expected.get(row, initial_rows(UNIFORM, 9, np.array([row]), 2)[0])
            expected[row] = before - np.float32(1)
    copy = held.snapshot()
    assert sorted(copy.tables["emb"].ids.tolist()) == sorted(expected)
    asked = np.array([*expected, 17, 4999, 17], np.int64)
    for reader in (held, copy):
        values = reader.read_rows("emb", asked)
        for row, value in zip(asked.tolist(), values, strict=True):
            wanted = expected.get(row, initial_rows(UNIFORM, 9, np.array([row]), 2)[0])
            np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)


@PATIENT
@given(pushes)
def test_reading_stores_nothing(pushes):
    held = store(TABLE)
    for ids in pushes:
        held.read_rows("emb", np.array(ids, np.int64))
    assert len(held.snapshot().tables["emb"].ids) == 0


def test_tables_grow_past_their_first_capacity_and_scan_in_a_stable_order():
    held = store(TABLE)
    held.apply(ones(list(range(0, 5000, 2))), 1)
    first = held.scan("emb", 0, 100)
    held.apply(ones(list(range(5000))), 2)
    np.testing.assert_array_equal(held.scan("emb", 0, 100).ids, first.ids)
    chunks = [held.scan("emb", start, 700).ids for start in range(0, 5600, 700)]
    assert sorted(np.concatenate(chunks).tolist()) == list(range(5000))


@PATIENT
@given(st.lists(st.integers(0, 30), min_size=1, max_size=50))
def test_duplicates_are_summed(ids):
    values = np.arange(len(ids), dtype=np.float32)[:, None] + 1
    unique, summed = sum_duplicates(np.array(ids), values)
    expected = {row: sum(i + 1 for i, other in enumerate(ids) if other == row) for row in ids}
    assert dict(zip(unique.tolist(), summed[:, 0].tolist(), strict=True)) == expected
    assert len(unique) == len(expected)


def test_a_snapshot_does_not_change_with_the_store():
    declared = Declaration((DenseVariable("w", (3,)), DenseVariable("mean", (1,), True)), (TABLE,), SGD, "model")
    held = NumpyStore(declared, np.ones(4, np.float32))
    held.apply(Gradients(np.ones(4, np.float32), ones([1]).rows, 1.0, 0.5), 1)
    copy = held.snapshot()
    before = copy.dense.copy(), copy.tables["emb"].values.copy()
    np.testing.assert_array_equal(copy.dense, [0, 0, 0, 1.5])
    held.apply(Gradients(np.ones(4, np.float32), ones([1]).rows, 1.0, 0.5), 2)
    np.testing.assert_array_equal(copy.dense, before[0])
    np.testing.assert_array_equal(copy.tables["emb"].values, before[1])


def test_a_declaration_that_cannot_be_is_refused():
    w, mean = DenseVariable("w", (2,)), DenseVariable("mean", (2,), statistic=True)
    with pytest.raises(BadInputError, match="declared before"):
        Declaration((mean, w), (), SGD, "model")
    with pytest.raises(BadInputError, match="twice"):
        Declaration((w, w), (), SGD, "model")
    with pytest.raises(BadInputError, match="rows"):
        RowTable("emb", 0, 4, UNIFORM, 0)
    with pytest.raises(BadInputError, match="initializer"):
        RowTable("emb", 4, 4, {"name": "orthogonal"}, 0)
    declared = Declaration((w, mean), (TABLE,), SGD, "model")
    assert Declaration.from_json(declared.to_json()) == declared


def test_a_snapshot_has_slot_variables_of_its_own():
    declared = Declaration((DenseVariable("w", (3,)),), (TABLE,), OptimizerSpec("adam"), "model")
    held = NumpyStore(declared, np.ones(3, np.float32))
    push = Gradients(np.ones(3, np.float32), ones([1]).rows, 1.0, 1.0)
    held.apply(push, 1)
    copy = held.snapshot()
    slots = [*copy.slots.values(), *copy.tables["emb"].slots.values()]
    before = [slot.copy() for slot in slots]
    held.apply(push, 2)
    assert len(slots) == 4
    for slot, old in zip(slots, before, strict=True):
        np.testing.assert_array_equal(slot, old)
