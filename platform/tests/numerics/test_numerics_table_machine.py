"""Tables and stores against a dictionary, through any sequence of what is done to them (hypothesis' state machine).

The dictionary holds values and slot variables by id and applies the optimizer's rule to one row at a time, so what is
tested is which rows a table finds, makes, changes and copies, not the rule. Gradients are dyadic: their sums are exact.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from support.examples import examples
from support.table_contract import array, declared, dyadic, initial

from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.numerics.array_types import Floats, Ids
from edl.numerics.embedding_table import EmbeddingTable
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.numpy_table import NumpyTable
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers import ParameterUpdate, ScratchArrays
from edl.numerics.optimizers import make_rule as rule_of
from edl.numerics.parameter_snapshot import ParameterSnapshot, RowArrays, TableSnapshot, join_rows
from edl.numerics.parameter_store import NumpyParameterStore, ParameterStore, PushGradients, RowBatch

HAS_NATIVE = importlib.util.find_spec("edl.numerics._native") is not None
if HAS_NATIVE:
    from edl.numerics.native_table import NativeTable

FEW, MANY, DIM, KEPT = 30, 3000, 3, 3
SHAPE = declared(dim=DIM, rows=MANY)
OPTIMIZERS = (
    OptimizerSpec("sgd"),
    OptimizerSpec("momentum", {"momentum": 0.5, "weight_decay": 0.01}),
    OptimizerSpec("adagrad"),
    OptimizerSpec("adam", {"amsgrad": True}),
)
few_ids = st.lists(st.integers(0, FEW - 1), max_size=20)
ranges = st.tuples(st.integers(0, MANY - 1), st.integers(1, 900))

Row = tuple[Floats, dict[str, Floats]]
"""Values and slot variables, ``[1, DIM]`` each."""
Make = Callable[[OptimizerSpec, RowArrays | None], EmbeddingTable]


class DictionaryTable:
    """The dictionary."""

    def __init__(self, spec: OptimizerSpec) -> None:
        self._spec = spec
        self._rule = rule_of(spec, spec.weight_decay_for(SHAPE.name))
        self.rows: dict[int, Row] = {}

    def push(self, ids: Ids, gradients: Floats, rate: float, step: int) -> None:
        sums: dict[int, Floats] = {}
        for row, gradient in zip(ids.tolist(), gradients, strict=True):
            sums[row] = sums.get(row, np.zeros(DIM, np.float32)) + gradient
        for row, total in sums.items():
            values, slots = self.rows.get(row) or self._new(row)
            values, slots = values.copy(), {name: slot.copy() for name, slot in slots.items()}
            self._rule(
                values,
                list(slots.values()),
                ParameterUpdate(total[None], rate, step),
                ScratchArrays.allocate_like(values),
            )
            self.rows[row] = values, slots

    def _new(self, row: int) -> Row:
        slots = {name: np.full((1, DIM), start, np.float32) for name, start in self._spec.slot_starts.items()}
        return initial(SHAPE, array([row])), slots


def values_of(rows: dict[int, Row], ids: Ids) -> Floats:
    """What reading these ids must give."""
    values = [rows[row][0] if row in rows else initial(SHAPE, array([row])) for row in ids.tolist()]
    return np.concatenate([np.empty((0, DIM), np.float32), *values])


def check_rows(found: RowArrays, expected: dict[int, Row]) -> None:
    """These are exactly the expected rows, with their slots."""
    assert sorted(found.ids.tolist()) == sorted(expected)
    for at, row in enumerate(found.ids.tolist()):
        values, slots = expected[row]
        np.testing.assert_array_equal(found.values[at], values[0])
        assert slots.keys() == found.slots.keys()
        for name, slot in slots.items():
            np.testing.assert_array_equal(found.slots[name][at], slot[0])


class TableMachine(RuleBasedStateMachine):
    """What is done to a table; ``make`` and ``spec`` say to which."""

    def __init__(self, make: Make, spec: OptimizerSpec) -> None:
        super().__init__()
        self._make, self._spec = make, spec
        self._table, self._model = make(spec, None), DictionaryTable(spec)
        self._step = 0
        self._order: list[int] = []
        self._frozen: list[tuple[TableSnapshot, dict[int, Row]]] = []

    def _push(self, ids: Ids, seed: int, rate: float) -> None:
        self._step += 1
        gradients = dyadic(np.random.default_rng(seed), len(ids), DIM)
        self._table.apply_gradients(ids, gradients, rate, self._step)
        self._model.push(ids, gradients, rate, self._step)

    @rule(ids=few_ids, seed=st.integers(0, 99), rate=st.sampled_from([0.5, 0.125, 0.0]))
    def push(self, ids: list[int], seed: int, rate: float) -> None:
        self._push(array(ids), seed, rate)

    @rule(ids=few_ids, between=few_ids, seed=st.integers(0, 99))
    def read_and_push(self, ids: list[int], between: list[int], seed: int) -> None:
        """As a worker does, while another one pushes."""
        self._table.read(array(ids))
        self._push(array(between), seed, 0.5)
        self._push(array(ids), seed, 0.5)

    @rule(part=ranges, seed=st.integers(0, 99))
    def push_many(self, part: tuple[int, int], seed: int) -> None:
        start, count = part
        self._push(np.random.default_rng(seed).permutation(np.arange(start, min(MANY, start + count))), seed, 0.5)

    @rule(ids=few_ids, part=ranges)
    def read(self, ids: list[int], part: tuple[int, int]) -> None:
        wanted = array([*ids, *range(part[0], min(MANY, part[0] + part[1] // 20))])
        np.testing.assert_array_equal(self._table.read(wanted), values_of(self._model.rows, wanted))

    @rule(limit=st.integers(1, 700))
    def scan_all(self, limit: int) -> None:
        """Every row once; those that were there before stand where they stood."""
        parts = [self._table.scan(start, limit) for start in range(0, len(self._model.rows) + 1, limit)]
        ids = np.concatenate([part.ids for part in parts])
        values = np.concatenate([part.values for part in parts])
        assert sorted(ids.tolist()) == sorted(self._model.rows)
        assert ids.tolist()[: len(self._order)] == self._order
        np.testing.assert_array_equal(values, values_of(self._model.rows, ids))
        self._order = ids.tolist()

    @rule(start=st.integers(0, MANY), limit=st.integers(0, 50))
    def scan_some(self, start: int, limit: int) -> None:
        scanned = self._table.scan(start, limit)
        assert len(scanned.ids) == min(limit, max(0, len(self._model.rows) - start))
        np.testing.assert_array_equal(scanned.values, values_of(self._model.rows, scanned.ids))

    @precondition(lambda self: len(self._frozen) < KEPT)
    @rule()
    def freeze(self) -> None:
        self._frozen.append((self._table.take_snapshot(), dict(self._model.rows)))

    @precondition(lambda self: self._frozen)
    @rule(which=st.integers(0, KEPT - 1), ids=few_ids, start=st.integers(0, MANY), limit=st.integers(0, 50))
    def read_frozen(self, which: int, ids: list[int], start: int, limit: int) -> None:
        """What was frozen is as it was then, whatever was pushed since."""
        frozen, rows = self._frozen[which % len(self._frozen)]
        assert len(frozen) == len(rows)
        np.testing.assert_array_equal(frozen.read(array(ids), SHAPE), values_of(rows, array(ids)))
        part = frozen.scan(start, limit)
        assert len(part.ids) == min(limit, max(0, len(rows) - start))
        np.testing.assert_array_equal(part.values, values_of(rows, part.ids))

    @precondition(lambda self: self._frozen)
    @rule(which=st.integers(0, KEPT - 1))
    def write(self, which: int) -> None:
        """As a checkpoint is: piece by piece, and then forgotten."""
        frozen, rows = self._frozen.pop(which % len(self._frozen))
        pieces = [
            RowArrays.allocate(0, DIM, list(self._spec.slot_starts)),
            *(deepcopy(piece) for piece in frozen.iter_chunks()),
        ]
        check_rows(join_rows(pieces), rows)
        frozen.release()

    @precondition(lambda self: self._frozen)
    @rule(which=st.integers(0, KEPT - 1))
    def go_back(self, which: int) -> None:
        """A new table goes on from what was frozen, as a parameter server does that was lost."""
        frozen, rows = self._frozen[which % len(self._frozen)]
        self._model.rows = dict(rows)
        self._table = self._make(self._spec, frozen.read_all())
        self._order = []

    def teardown(self) -> None:
        for frozen, rows in self._frozen:
            check_rows(frozen.read_all(), rows)
            frozen.release()


# ------------------------------------------------------------------ what it is done to


def table(
    kind: Callable[[TableSpec, OptimizerSpec], EmbeddingTable], spec: OptimizerSpec, rows: RowArrays | None
) -> EmbeddingTable:
    new_table = kind(SHAPE, spec)
    if rows is not None:
        new_table.load(rows)
    return new_table


class TableOfStore:
    """A table of a store that holds a second one and dense values, too."""

    def __init__(self, store: ParameterStore) -> None:
        self._store = store
        self.read = partial(store.read_rows, SHAPE.name)
        self.scan = partial(store.scan_rows, SHAPE.name)

    def apply_gradients(self, ids: Ids, gradients: Floats, learning_rate: float, step: int) -> None:
        rows = {SHAPE.name: RowBatch(ids, gradients), "other": RowBatch(ids[:1], gradients[:1])}
        self._store.apply_gradients(PushGradients(np.ones(4, np.float32), rows, learning_rate, 1.0), step)

    def take_snapshot(self) -> TableSnapshot:
        return self._store.take_snapshot().tables[SHAPE.name]


def store(kind: Any, spec: OptimizerSpec, rows: RowArrays | None) -> TableOfStore:
    other = TableSpec("other", MANY, DIM, {"name": "zeros"}, 3)
    declaration = ModelDeclaration((VariableSpec("w", (2, 2)),), (SHAPE, other), spec, "model")
    dense = np.zeros(4, np.float32)
    if rows is None:
        return TableOfStore(kind(declaration, dense))
    nothing = np.empty((0, DIM), np.float32)
    none = RowArrays(np.empty(0, np.int64), nothing, dict.fromkeys(spec.slot_starts, nothing))
    slots = {name: np.full(4, start, np.float32) for name, start in spec.slot_starts.items()}
    snapshot = ParameterSnapshot(declaration, dense, slots, {SHAPE.name: rows, "other": none})
    return TableOfStore(kind.from_snapshot(snapshot))


def numpy_table(shape: TableSpec, spec: OptimizerSpec) -> NumpyTable:
    return NumpyTable(shape, spec.slot_starts, rule_of(spec, spec.weight_decay_for(shape.name)))


def check(make: Callable[[OptimizerSpec, RowArrays | None], Any], spec: OptimizerSpec) -> None:
    run_state_machine_as_test(
        lambda: TableMachine(make, spec),
        settings=settings(
            deadline=None,
            max_examples=examples(15),
            stateful_step_count=20,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


@pytest.mark.examples
@pytest.mark.parametrize("spec", OPTIMIZERS, ids=lambda spec: spec.name)
@pytest.mark.parametrize(
    "make", [partial(table, numpy_table), partial(store, NumpyParameterStore)], ids=["table", "store"]
)
@pytest.mark.first_cases(5)  # a table with each optimizer, a store with one
def test_numpy_is_a_dictionary(make: Make, spec: OptimizerSpec) -> None:
    check(make, spec)


@pytest.mark.examples
@pytest.mark.native
@pytest.mark.parametrize("spec", OPTIMIZERS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.first_cases(5)  # all with one thread, one with three
def test_a_native_table_is_a_dictionary(threads: int, spec: OptimizerSpec) -> None:
    check(partial(table, partial(NativeTable, threads=threads)), spec)


@pytest.mark.examples
@pytest.mark.native
@pytest.mark.parametrize("spec", OPTIMIZERS, ids=lambda spec: spec.name)
@pytest.mark.first_cases(2)
def test_a_native_store_is_a_dictionary(spec: OptimizerSpec) -> None:
    from edl.numerics.native_table import NativeParameterStore

    check(partial(store, NativeParameterStore), spec)
