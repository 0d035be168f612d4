"""Rows of one embedding table in NumPy arrays that double as they fill.

A row is stored when it is first updated; until then its initial value is computed on each read. So reading changes
nothing, in training as in evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edl.optimizers import Rule, Scratch, Update
from edl.ps.arrays import Floats, Ids
from edl.ps.declaration import RowTable
from edl.ps.snapshot import StoredRows
from edl.spec.initializer import initial_rows

_FIRST_CAPACITY = 256


class NumpyTable:
    """One table.

    Args:
        declared: its shape and initial values.
        slots: slot variables and the value they start at.
        rule: moves its rows.
    """

    def __init__(self, declared: RowTable, slots: Mapping[str, float], rule: Rule) -> None:
        self._declared = declared
        self._initial_slots = slots
        self._rule = rule
        # Position + 1 of each id. The kernel gives memory only for the pages that are written.
        self._index = np.zeros(declared.rows, np.int32)
        self._count = 0
        self._ids = np.empty(_FIRST_CAPACITY, np.int64)
        self._values = np.empty((_FIRST_CAPACITY, declared.dim), np.float32)
        self._slots = {name: np.empty_like(self._values) for name in slots}

    def read(self, ids: Ids) -> Floats:
        """Rows ``[n, dim]``, a new array."""
        positions = self._index[ids] - 1
        missing = positions < 0
        if not missing.any():
            return self._values[positions]
        values = np.empty((len(ids), self._declared.dim), np.float32)
        values[~missing] = self._values[positions[~missing]]
        values[missing] = self._initial(ids[missing])
        return values

    def apply(self, ids: Ids, gradients: Floats, learning_rate: float, step: int) -> None:
        """Sum the gradients of equal ids and update those rows, and no others."""
        if not len(ids):
            return
        ids, gradients = sum_duplicates(ids, gradients)
        positions = self._positions(ids)
        values = self._values[positions]
        slots = {name: slot[positions] for name, slot in self._slots.items()}
        self._rule(values, tuple(slots.values()), Update(gradients, learning_rate, step), Scratch.like(values))
        self._values[positions] = values
        for name, slot in slots.items():
            self._slots[name][positions] = slot

    def scan(self, start: int, limit: int) -> StoredRows:
        """The stored rows from a position, copied, without slot variables."""
        part = slice(start, min(start + limit, self._count))
        return StoredRows(self._ids[part].copy(), self._values[part].copy(), {})

    def snapshot(self) -> StoredRows:
        """All stored rows with their slot variables, copied."""
        part = slice(0, self._count)
        slots = {name: slot[part].copy() for name, slot in self._slots.items()}
        return StoredRows(self._ids[part].copy(), self._values[part].copy(), slots)

    def load(self, rows: StoredRows) -> None:
        """Store rows that are not stored yet."""
        positions = self._append(rows.ids)
        self._values[positions] = rows.values
        for name, slot in self._slots.items():
            slot[positions] = rows.slots[name]

    def _positions(self, ids: Ids) -> np.ndarray:
        """Where the rows are stored, after storing those that were not."""
        missing = ids[self._index[ids] == 0]
        if len(missing):
            positions = self._append(missing)
            self._values[positions] = self._initial(missing)
            for name, slot in self._slots.items():
                slot[positions] = self._initial_slots[name]
        return self._index[ids] - 1

    def _append(self, ids: Ids) -> slice:
        positions = slice(self._count, self._count + len(ids))
        self._grow(positions.stop)
        self._ids[positions] = ids
        self._index[ids] = np.arange(positions.start + 1, positions.stop + 1, dtype=np.int32)
        self._count = positions.stop
        return positions

    def _grow(self, count: int) -> None:
        capacity = len(self._ids)
        if count <= capacity:
            return
        while capacity < count:
            capacity *= 2
        self._ids = _extended(self._ids, capacity)
        self._values = _extended(self._values, capacity)
        self._slots = {name: _extended(slot, capacity) for name, slot in self._slots.items()}

    def _initial(self, ids: Ids) -> Floats:
        table = self._declared
        return initial_rows(table.initializer, table.seed, ids, table.dim)


def sum_duplicates(ids: Ids, gradients: Floats) -> tuple[Ids, Floats]:
    """Each id once, with the sum of its gradients; the arguments themselves if no id repeats."""
    order = np.argsort(ids, kind="stable")
    in_order = ids[order]
    first = np.flatnonzero(np.diff(in_order, prepend=in_order[0] - 1))
    if len(first) == len(ids):
        return ids, gradients
    return in_order[first], np.add.reduceat(gradients[order], first, axis=0)


def _extended(array: np.ndarray, capacity: int) -> np.ndarray:
    larger = np.empty((capacity, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
