"""A push of ids that were read before finds their rows, whatever became of the rows meanwhile.

The native table remembers where rows were when they were read; the NumPy table remembers nothing, and is right.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.table_contract import PATIENT, array, declared, dyadic

from edl.numerics.array_types import Ids
from edl.numerics.embedding_table import EmbeddingTable, RowRetention
from edl.numerics.numpy_table import NumpyTable
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers import make_rule

if importlib.util.find_spec("edl.numerics._native") is not None:
    from edl.numerics.native_table import NativeTable

pytestmark = pytest.mark.native
DIM, FEW = 3, 12
SHAPE, ADAGRAD = declared(dim=DIM, rows=0), OptimizerSpec("adagrad")
REMEMBERED = 4 << 20
"""Bytes of positions that a table remembers."""

Act = tuple[str, list[int], int]
"""What is done, to which ids, and how many steps later."""


class TablePair:
    """A native table and a NumPy table to which the same is done."""

    def __init__(self, evict_after: int | None = None, threads: int = 1) -> None:
        self._retention = RowRetention(evict_after_steps=evict_after)
        self._native = NativeTable(SHAPE, ADAGRAD, threads=threads, retention=self._retention)
        self._numpy = NumpyTable(SHAPE, ADAGRAD.slot_starts, make_rule(ADAGRAD, 0.0), self._retention)
        self.step = 0

    def read(self, ids: Ids) -> None:
        np.testing.assert_array_equal(self._native.read(ids), self._numpy.read(ids))

    def push(self, ids: Ids, later: int = 1) -> None:
        self.step += later
        gradients = dyadic(np.random.default_rng(self.step), len(ids), DIM)
        for table in self._both():
            table.apply_gradients(ids, gradients, 0.5, self.step)

    def restore(self) -> None:
        """Both go on from a checkpoint, the native table as one that was made anew."""
        rows = self._numpy.take_snapshot().read_all()
        self._native = NativeTable(SHAPE, ADAGRAD, retention=self._retention)
        self._native.load(rows, self.step)

    def check(self) -> None:
        """Both hold the same rows, with their slot variables."""
        rows, expected = (table.take_snapshot().read_all() for table in self._both())
        order, wanted = np.argsort(rows.ids), np.argsort(expected.ids)
        np.testing.assert_array_equal(rows.ids[order], expected.ids[wanted])
        np.testing.assert_array_equal(rows.values[order], expected.values[wanted])
        for name, slot in expected.slots.items():
            np.testing.assert_array_equal(rows.slots[name][order], slot[wanted])

    def _both(self) -> tuple[EmbeddingTable, EmbeddingTable]:
        return self._native, self._numpy


def nothing(pair: TablePair) -> None:
    """The rows stay where they are."""


def growth(pair: TablePair) -> None:
    for start in range(10**6, 10**6 + 200_000, 50_000):
        pair.push(np.arange(start, start + 50_000))


def eviction(pair: TablePair) -> None:
    pair.push(array([]), later=9)


def eviction_and_others_at_their_positions(pair: TablePair) -> None:
    pair.push(np.arange(500, 600), later=9)


def eviction_and_return(pair: TablePair) -> None:
    """The same rows at one another's positions."""
    pair.push(np.arange(FEW), later=9)


def restore(pair: TablePair) -> None:
    pair.restore()


def other_reads(pair: TablePair) -> None:
    for start in range(600):
        pair.read(array([start, start + 1]))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "meanwhile",
    [
        nothing,
        growth,
        eviction,
        eviction_and_others_at_their_positions,
        eviction_and_return,
        restore,
        other_reads,
    ],
)
def test_rows_that_were_read_are_found_whatever_became_of_them(
    meanwhile: Callable[[TablePair], None], threads: int
) -> None:
    pair = TablePair(evict_after=5, threads=threads)
    pair.push(np.arange(FEW)[::-1])
    ids = array([3, 900, 1, 5, 901])  # two of them are not stored
    pair.read(ids)
    meanwhile(pair)
    pair.push(ids)
    pair.check()
    pair.read(ids)


@pytest.mark.parametrize(
    ("read", "pushed"),
    [
        ([1, 4, 900], [2, 3, 900]),  # as many, with the same sum
        ([1, 2, 3], [3, 2, 1]),
        ([1, 2, 3], [1, 2]),
        ([7, 7, 900, 900], [7, 7, 900, 900]),
        ([2**63 - 1, -(2**63), 1], [-1, 0, 1]),  # a sum that overflows
        ([], []),
    ],
)
def test_other_ids_than_were_read_may_be_pushed(read: list[int], pushed: list[int]) -> None:
    pair = TablePair()
    pair.push(np.arange(FEW))
    pair.read(array(read))
    pair.push(array(pushed))
    pair.check()


def test_several_workers_read_before_any_of_them_pushes() -> None:
    """Reads and pushes come through different connections, in any order."""
    pair = TablePair(threads=3)
    minibatches = [np.random.default_rng(seed).permutation(12_000)[:9000] for seed in range(4)]
    for ids in (*minibatches, *minibatches):
        pair.read(ids)
    for ids in (*minibatches[::-1], *minibatches):
        pair.push(ids)
    pair.check()


def test_what_no_push_follows_is_forgotten() -> None:
    table = NativeTable(SHAPE, ADAGRAD)
    before = table.memory_usage.resident
    for start in range(0, 16_000_000, 40_000):
        table.read(np.arange(start, start + 40_000))
    assert before + REMEMBERED // 2 < table.memory_usage.resident < before + REMEMBERED + (1 << 16)
    table.read(np.arange(REMEMBERED))  # more ids than are remembered at all
    assert table.memory_usage.resident < before + REMEMBERED + (1 << 16)


few = st.lists(st.integers(0, FEW), max_size=8)
acts = st.tuples(st.sampled_from(["read", "push", "read and push", "restore"]), few, st.integers(1, 4))


@PATIENT
@given(st.lists(acts, max_size=30))
def test_any_reads_and_pushes_leave_what_they_leave_in_numpy(done: list[Act]) -> None:
    pair = TablePair(evict_after=2)
    for act, ids, later in done:
        if "read" in act:
            pair.read(array(ids))
        if "push" in act:
            pair.push(array(ids), later)
        if act == "restore":
            pair.restore()
    pair.check()
