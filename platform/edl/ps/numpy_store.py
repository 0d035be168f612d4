"""The parameter store in NumPy."""

from __future__ import annotations

import numpy as np

from edl.ps.arrays import Floats, Ids
from edl.ps.declaration import Declaration
from edl.ps.numpy_table import NumpyTable
from edl.ps.optimizers import Scratch, Update, blocks, rule
from edl.ps.snapshot import Snapshot, StoredRows
from edl.ps.store import Gradients


class NumpyStore:
    """A :class:`edl.ps.store.ParameterStore` whose dense part is one contiguous float32 slab.

    Args:
        declaration: what it holds.
        dense: initial slab, copied.
    """

    def __init__(self, declaration: Declaration, dense: Floats) -> None:
        optimizer = declaration.optimizer
        self._declaration = declaration
        self._dense = np.array(dense, np.float32)
        trained = declaration.trained
        self._trained, self._statistics = self._dense[:trained], self._dense[trained:]
        self._slots = {name: np.full(trained, start, np.float32) for name, start in optimizer.slots.items()}
        self._tables = {
            table.name: NumpyTable(table, optimizer.slots, rule(optimizer, optimizer.decay_of(table.name)))
            for table in declaration.tables
        }
        self._blocks = tuple((block, rule(optimizer, block.decay)) for block in blocks(declaration))
        self._scratch = Scratch.like(self._trained)

    @classmethod
    def restored(cls, snapshot: Snapshot) -> NumpyStore:
        """A store that holds what a snapshot holds."""
        store = cls(snapshot.declaration, snapshot.dense)
        for name, slot in store._slots.items():
            slot[:] = snapshot.slots[name]
        for name, rows in snapshot.tables.items():
            store._tables[name].load(rows)
        return store

    @property
    def declaration(self) -> Declaration:
        """What it holds."""
        return self._declaration

    def read_dense(self, out: Floats) -> None:
        """As the port says."""
        np.copyto(out, self._dense)

    def read_rows(self, table: str, ids: Ids) -> Floats:
        """As the port says."""
        return self._tables[table].read(ids)

    def apply(self, gradients: Gradients, step: int) -> None:
        """As the port says."""
        trained = len(self._trained)
        update = Update(gradients.slab[:trained], gradients.learning_rate, step)
        for block, block_rule in self._blocks:
            block.apply(block_rule, self._trained, self._slots.values(), update, self._scratch)
        if len(self._statistics):
            self._statistics += gradients.slab[trained:] * np.float32(gradients.weight)
        for name, rows in gradients.rows.items():
            self._tables[name].apply(rows.ids, rows.values, gradients.learning_rate, step)

    def scan(self, table: str, start: int, limit: int) -> StoredRows:
        """As the port says."""
        return self._tables[table].scan(start, limit)

    def snapshot(self) -> Snapshot:
        """As the port says."""
        slots = {name: slot.copy() for name, slot in self._slots.items()}
        tables = {name: table.copy() for name, table in self._tables.items()}
        return Snapshot(self._declaration, self._dense.copy(), slots, tables)
