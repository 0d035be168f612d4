"""What every table of rows must do: one suite, which each implementation runs with a fixture ``table`` of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples

from edl.api.tables import TableSpec
from edl.numerics.array_types import Floats, Ids
from edl.numerics.initializers import initial_rows
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_snapshot import RowArrays, TableSnapshot

INITIALIZERS = (
    {"name": "zeros"},
    {"name": "constant", "value": 0.3},
    {"name": "uniform", "minval": -0.05, "maxval": 0.05},
    {"name": "normal", "mean": 0.1, "stddev": 0.7},
)
OPTIMIZERS = (
    OptimizerSpec("sgd"),
    OptimizerSpec("sgd", {"weight_decay": 0.01}),
    OptimizerSpec("momentum", {"momentum": 0.8}),
    OptimizerSpec("momentum", {"nesterov": True}),
    OptimizerSpec("adagrad"),
    OptimizerSpec("adam"),
    OptimizerSpec("adam", {"amsgrad": True, "weight_decay": 0.004}),
)
ROWS = 3000
PATIENT = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    max_examples=examples(60),
)
batches = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=60), max_size=10)


class StoreTable(Protocol):
    """What a store asks of a table."""

    def read(self, ids: Ids) -> Floats: ...
    def apply_gradients(self, ids: Ids, gradients: Floats, learning_rate: float, step: int) -> None: ...
    def scan(self, start: int, limit: int) -> RowArrays: ...
    def take_snapshot(self) -> TableSnapshot: ...
    def load(self, rows: RowArrays) -> None: ...


Make = Callable[..., StoreTable]
"""Of a TableSpec and an OptimizerSpec; it takes ``retention``, too."""


def declared(initializer=INITIALIZERS[2], *, dim: int = 3, rows: int = ROWS) -> TableSpec:
    return TableSpec("emb", rows, dim, initializer, seed=11)


def array(ids) -> Ids:
    return np.array(ids, np.int64)


def initial(table: TableSpec, ids: Ids) -> Floats:
    return initial_rows(table.initializer, table.seed, ids, table.dim)


def dyadic(random: np.random.Generator, *shape: int) -> Floats:
    """Gradients whose sums are exact, in whatever order they are added."""
    return (random.integers(-512, 513, shape) / 64).astype(np.float32)


class TableContract:
    """A subclass gives the fixture ``make``."""

    @pytest.mark.parametrize("dim", [1, 7, 8, 16, 33])
    @pytest.mark.parametrize("initializer", INITIALIZERS, ids=lambda initializer: initializer["name"])
    def test_what_was_never_updated_has_its_initial_value_to_the_last_bit(self, make: Make, initializer, dim):
        shape = declared(initializer, dim=dim)
        ids = array(np.random.default_rng(2).integers(0, ROWS, 500))
        np.testing.assert_array_equal(make(shape, OPTIMIZERS[0]).read(ids), initial(shape, ids))

    def test_reading_stores_nothing(self, make: Make):
        table = make(declared(), OPTIMIZERS[0])
        for ids in ([], [4, 4, 9], range(ROWS)):
            assert table.read(array(ids)).shape == (len(ids), 3)
        assert len(table.take_snapshot().read_all().ids) == len(table.scan(0, 100).ids) == 0

    @PATIENT
    @given(batches)
    def test_it_holds_what_a_dictionary_of_rows_would(self, make: Make, pushes):
        shape = declared()
        table, expected = make(shape, OPTIMIZERS[0]), {}
        for step, ids in enumerate(pushes, start=1):
            gradients = dyadic(np.random.default_rng(step), len(ids), 3)
            table.apply_gradients(array(ids), gradients, 0.5, step)
            for row in set(ids):
                total = gradients[[i for i, other in enumerate(ids) if other == row]].sum(axis=0)
                before = expected.get(row, initial(shape, array([row]))[0])
                expected[row] = before - total * np.float32(0.5)
        copy = table.take_snapshot().read_all()
        assert sorted(copy.ids.tolist()) == sorted(expected)
        for row, values in zip(copy.ids.tolist(), copy.values, strict=True):
            np.testing.assert_array_equal(values, expected[row])
        read_ids = array([*expected, 17, ROWS - 1, 17])
        wanted = [expected.get(row, initial(shape, array([row]))[0]) for row in read_ids.tolist()]
        np.testing.assert_array_equal(table.read(read_ids), np.stack(wanted))

    @PATIENT
    @given(st.lists(st.integers(0, 30), min_size=1, max_size=200))
    def test_duplicates_are_summed_before_the_update(self, make: Make, ids):
        """Adagrad of a sum is not the sum of two steps of Adagrad."""
        gradients = dyadic(np.random.default_rng(3), len(ids), 3)
        distinct = sorted(set(ids))
        sums = np.stack([gradients[array(ids) == row].sum(axis=0) for row in distinct])
        table, other = (make(declared(), OptimizerSpec("adagrad")) for _ in range(2))
        table.apply_gradients(array(ids), gradients, 0.1, 1)
        other.apply_gradients(array(distinct), sums, 0.1, 1)
        np.testing.assert_array_equal(table.read(array(distinct)), other.read(array(distinct)))

    @pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
    def test_rows_that_no_push_names_stand_still(self, make: Make, optimizer):
        table = make(declared(), optimizer)
        table.apply_gradients(array([1, 2]), np.ones((2, 3), np.float32), 0.1, 1)
        before = table.take_snapshot().read_all()
        table.apply_gradients(array([2, 3]), np.ones((2, 3), np.float32), 0.1, 2)
        after = table.take_snapshot().read_all()
        row = after.select_rows(after.find_positions(array([1])))
        np.testing.assert_array_equal(row.values, before.select_rows(before.find_positions(array([1]))).values)
        for name, slot in row.slots.items():
            np.testing.assert_array_equal(slot, before.select_rows(before.find_positions(array([1]))).slots[name])

    def test_a_push_of_nothing_changes_nothing(self, make: Make):
        table = make(declared(), OPTIMIZERS[0])
        table.apply_gradients(array([]), np.empty((0, 3), np.float32), 1.0, 1)
        assert len(table.take_snapshot().read_all().ids) == 0

    @PATIENT
    @given(batches, st.data())
    def test_a_snapshot_is_a_copy_of_its_moment(self, make: Make, pushes, data):
        """However late, in whatever pieces it is read, and however many there are at a time."""
        shape, spec = declared(), OptimizerSpec("adagrad")
        table, snapshots = make(shape, spec), []
        for step, ids in enumerate([*pushes, [], []], start=1):
            if data.draw(st.booleans()):
                snapshots.append((snapshot := table.take_snapshot(), snapshot.read_all(), table.read(np.arange(ROWS))))
            table.apply_gradients(array(ids), dyadic(np.random.default_rng(step), len(ids), 3), 0.5, step)
            if snapshots and data.draw(st.booleans()):
                snapshot, copy, every = snapshots.pop(data.draw(st.integers(0, len(snapshots) - 1)))
                np.testing.assert_array_equal(snapshot.read(np.arange(ROWS), shape), every)
                limit = data.draw(st.integers(1, 70))
                scanned = [snapshot.scan(start, limit) for start in range(0, len(copy.ids) + limit, limit)]
                np.testing.assert_array_equal(np.concatenate([part.ids for part in scanned]), copy.ids)
                np.testing.assert_array_equal(np.concatenate([part.values for part in scanned]), copy.values)
                assert len(snapshot) == len(copy.ids)
                for piece in snapshot.iter_chunks():
                    for name, slot in piece.slots.items():
                        np.testing.assert_array_equal(
                            slot, copy.select_rows(copy.find_positions(piece.ids)).slots[name]
                        )
                snapshot.release()

    def test_positions_belong_to_rows_for_ever(self, make: Make):
        random = np.random.default_rng(4)
        shape = declared(rows=200_000)
        table, stored_ids = make(shape, OPTIMIZERS[0]), array([])
        for step in range(1, 9):
            ids = array(random.integers(0, shape.rows, 20_000))
            table.apply_gradients(ids, np.ones((len(ids), 3), np.float32), 0.1, step)
            scanned = table.scan(0, len(stored_ids))
            np.testing.assert_array_equal(scanned.ids, stored_ids)
            np.testing.assert_array_equal(scanned.values, table.read(stored_ids))
            stored_ids = table.take_snapshot().read_all().ids
        parts = [table.scan(start, 7000).ids for start in range(0, len(stored_ids) + 7000, 7000)]
        np.testing.assert_array_equal(np.concatenate(parts), stored_ids)
        assert len(np.unique(stored_ids)) == len(stored_ids)
        assert len(table.scan(len(stored_ids), 5).ids) == len(table.scan(len(stored_ids) + 9, 5).ids) == 0

    @pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
    def test_a_copy_that_is_loaded_goes_on_alike(self, make: Make, optimizer):
        random = np.random.default_rng(6)
        table = make(declared(), optimizer)
        ids = array(random.permutation(ROWS)[:900])
        table.apply_gradients(ids, dyadic(random, len(ids), 3), 0.1, 1)
        copy = table.take_snapshot().read_all()
        restored = make(declared(), optimizer)
        restored.load(copy)
        values = copy.values.copy()
        gradients = dyadic(random, len(ids), 3)
        for each in (table, restored):
            each.apply_gradients(ids, gradients, 0.1, 2)
        np.testing.assert_array_equal(restored.read(ids), table.read(ids))
        np.testing.assert_array_equal(copy.values, values)
        for name, slot in restored.take_snapshot().read_all().slots.items():
            same = table.take_snapshot().read_all()
            np.testing.assert_array_equal(
                slot, same.slots[name][same.find_positions(restored.take_snapshot().read_all().ids)]
            )
