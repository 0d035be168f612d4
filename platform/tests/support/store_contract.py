"""What every store must do: one suite, which each implementation runs with a fixture ``make`` of its own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples

from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.numerics.array_types import Floats
from edl.numerics.initializers import initial_rows
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_store import ParameterStore, PushGradients, RowBatch

UNIFORM = {"name": "uniform", "minval": -0.05, "maxval": 0.05}
TABLE = TableSpec("emb", 5000, 2, UNIFORM, seed=9)
WIDE = TableSpec("wide", 700, 5, {"name": "normal", "mean": 0.0, "stddev": 0.1}, seed=4)
DENSE = (VariableSpec("w", (3,)), VariableSpec("mean", (1,), True))
SGD = OptimizerSpec("sgd")
PATIENT = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    max_examples=examples(60),
)
NOTHING = np.empty(0, np.float32)
pushes = st.lists(st.lists(st.integers(0, TABLE.rows - 1), max_size=40), max_size=12)

Make = Callable[[ModelDeclaration, Floats], ParameterStore]


def rows_only(*tables: TableSpec) -> ModelDeclaration:
    return ModelDeclaration((), tables, SGD, "model")


def ones(ids: list[int]) -> PushGradients:
    rows = RowBatch(np.array(ids, np.int64), np.ones((len(ids), TABLE.dim), np.float32))
    return PushGradients(NOTHING, {"emb": rows}, 1.0, 1.0)


def draw_gradients(declared: ModelDeclaration, random: np.random.Generator) -> PushGradients:
    """A push of everything that a model has; the ids of a table do not repeat."""
    rows = {}
    for table in declared.tables:
        ids = random.permutation(table.rows)[: random.integers(table.rows // 3)].astype(np.int64)
        rows[table.name] = RowBatch(ids, random.standard_normal((len(ids), table.dim)).astype(np.float32))
    return PushGradients(random.standard_normal(declared.flat_size).astype(np.float32), rows, 0.03, 0.5)


class StoreContract:
    """A subclass gives the fixture ``make``."""

    @PATIENT
    @given(pushes)
    def test_rows_are_what_a_dictionary_of_rows_would_hold(self, make: Make, pushes):
        store, expected = make(rows_only(TABLE), NOTHING), {}
        for step, ids in enumerate(pushes, start=1):
            store.apply_gradients(ones(ids), step)
            for row in ids:
                before = expected.get(row, initial_rows(UNIFORM, 9, np.array([row]), 2)[0])
                expected[row] = before - np.float32(1)
        copy = store.take_snapshot()
        assert sorted(copy.tables["emb"].read_all().ids.tolist()) == sorted(expected)
        read_ids = np.array([*expected, 17, 4999, 17], np.int64)
        for reader in (store, copy):
            values = reader.read_rows("emb", read_ids)
            for row, value in zip(read_ids.tolist(), values, strict=True):
                wanted = expected.get(row, initial_rows(UNIFORM, 9, np.array([row]), 2)[0])
                np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)

    @PATIENT
    @given(pushes)
    def test_reading_stores_nothing(self, make: Make, pushes):
        store = make(rows_only(TABLE), NOTHING)
        for ids in pushes:
            store.read_rows("emb", np.array(ids, np.int64))
        assert len(store.take_snapshot().tables["emb"]) == 0

    def test_tables_grow_past_their_first_capacity_and_scan_in_a_stable_order(self, make: Make):
        store = make(rows_only(TABLE), NOTHING)
        store.apply_gradients(ones(list(range(0, 5000, 2))), 1)
        first = store.scan_rows("emb", 0, 100)
        store.apply_gradients(ones(list(range(5000))), 2)
        np.testing.assert_array_equal(store.scan_rows("emb", 0, 100).ids, first.ids)
        chunks = [store.scan_rows("emb", start, 700).ids for start in range(0, 5600, 700)]
        assert sorted(np.concatenate(chunks).tolist()) == list(range(5000))

    def test_the_slab_moves_by_gradients_and_statistics_by_weighted_deltas(self, make: Make):
        store = make(ModelDeclaration(DENSE, (), SGD, "model"), np.ones(4, np.float32))
        store.apply_gradients(PushGradients(np.array([1, 2, 3, 4], np.float32), {}, 0.5, 0.25), 1)
        slab = np.empty(4, np.float32)
        store.read_flat(slab)
        np.testing.assert_array_equal(slab, [0.5, 0, -0.5, 2])

    @pytest.mark.parametrize("optimizer", [SGD, OptimizerSpec("adam")], ids=lambda optimizer: optimizer.name)
    def test_a_snapshot_does_not_change_with_the_store(self, make: Make, optimizer):
        declared = ModelDeclaration(DENSE, (TABLE, WIDE), optimizer, "model")
        random = np.random.default_rng(1)
        store = make(declared, np.ones(4, np.float32))
        store.apply_gradients(draw_gradients(declared, random), 1)
        copy = store.take_snapshot()
        arrays = [copy.flat_values, *copy.slots.values()]
        before = [array.copy() for array in arrays]
        rows = {name: frozen.read_all() for name, frozen in copy.tables.items()}
        store.apply_gradients(draw_gradients(declared, random), 2)
        for array, old in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(array, old)
        for name, old in rows.items():
            now = copy.tables[name].read_all()
            np.testing.assert_array_equal(now.ids, old.ids)
            np.testing.assert_array_equal(now.values, old.values)
            for slot, values in now.slots.items():
                np.testing.assert_array_equal(values, old.slots[slot])

    def test_room_that_was_made_before_is_used_once(self, make: Make):
        """The copy in it is of the moment in which it is taken, and the next one has memory of its own."""
        declared = ModelDeclaration(DENSE, (), OptimizerSpec("adam"), "model")
        random = np.random.default_rng(3)
        store = make(declared, np.ones(4, np.float32))
        store.preallocate_copy()
        store.apply_gradients(draw_gradients(declared, random), 1)
        dense = np.empty(4, np.float32)
        store.read_flat(dense)
        first = store.take_snapshot()
        np.testing.assert_array_equal(first.flat_values, dense)
        second = store.take_snapshot()
        for array, other in (
            (first.flat_values, second.flat_values),
            *((first.slots[name], second.slots[name]) for name in first.slots),
        ):
            np.testing.assert_array_equal(array, other)
            assert not np.shares_memory(array, other)

    @pytest.mark.parametrize("optimizer", [SGD, OptimizerSpec("adam")], ids=lambda optimizer: optimizer.name)
    def test_what_a_snapshot_is_loaded_into_goes_on_alike(self, make: Make, optimizer):
        declared = ModelDeclaration(DENSE, (TABLE, WIDE), optimizer, "model")
        random = np.random.default_rng(2)
        original = make(declared, np.ones(4, np.float32))
        original.apply_gradients(draw_gradients(declared, random), 1)
        other = make(declared, np.zeros(4, np.float32))
        other.load_snapshot(original.take_snapshot())
        push = draw_gradients(declared, random)
        for store in (original, other):
            store.apply_gradients(push, 2)
        assert_same(original, other)


def assert_same(one: ParameterStore, other: ParameterStore) -> None:
    """Both hold the same bits; rows may stand in another order."""
    ours, theirs = one.take_snapshot(), other.take_snapshot()
    np.testing.assert_array_equal(ours.flat_values, theirs.flat_values)
    assert ours.slots.keys() == theirs.slots.keys()
    for name, slot in ours.slots.items():
        np.testing.assert_array_equal(slot, theirs.slots[name])
    assert ours.tables.keys() == theirs.tables.keys()
    for name, frozen in ours.tables.items():
        rows, others = frozen.read_all(), theirs.tables[name].read_all()
        in_order = others.select_rows(others.find_positions(rows.ids))
        assert len(in_order.ids) == len(others.ids)
        np.testing.assert_array_equal(rows.ids, in_order.ids)
        np.testing.assert_array_equal(rows.values, in_order.values)
        for slot, values in rows.slots.items():
            np.testing.assert_array_equal(values, in_order.slots[slot])
