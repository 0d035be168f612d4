"""A store that is a slab and tables; ``numpy_store`` and ``native_store`` say which tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import numpy as np

from edl.optimizers import Rule, rule
from edl.ps.arrays import Floats, Ids
from edl.ps.declaration import Declaration
from edl.ps.retention import Retention
from edl.ps.slab import Slab
from edl.ps.snapshot import Snapshot, StoredRows
from edl.ps.store import Gradients
from edl.ps.table import Table
from edl.spec.optimizer import OptimizerSpec


class TableStore(ABC):
    """A :class:`edl.ps.store.ParameterStore`.

    Args:
        declaration: what it holds.
        dense: initial slab, copied.
        retention: which rows its tables keep; by default all.
    """

    def __init__(self, declaration: Declaration, dense: Floats, retention: Retention | None = None) -> None:
        self._declaration = declaration
        self._retention = retention or Retention()
        self._slab = Slab(declaration, dense, self._rule)
        self._tables = self._made(declaration)

    @abstractmethod
    def _made(self, declaration: Declaration) -> Mapping[str, Table]:
        """The declared tables by name, empty."""

    @staticmethod
    def _rule(optimizer: OptimizerSpec, decay: float) -> Rule:
        """What moves the slab."""
        return rule(optimizer, decay)

    @classmethod
    def restored(cls, snapshot: Snapshot) -> Self:
        """A store that holds what a snapshot holds."""
        store = cls(snapshot.declaration, snapshot.dense)
        store.load(snapshot)
        return store

    def load(self, snapshot: Snapshot, version: int = 0) -> None:
        """Hold what a snapshot of the same declaration holds, after ``version`` steps; nothing was applied yet."""
        np.copyto(self._slab.values, snapshot.dense)
        for name, slot in self._slab.slots.items():
            np.copyto(slot, snapshot.slots[name])
        for name, rows in snapshot.tables.items():
            for piece in rows.pieces():
                self._tables[name].load(piece, version)

    @property
    def declaration(self) -> Declaration:
        """What it holds."""
        return self._declaration

    @property
    def tables(self) -> Mapping[str, Table]:
        """As the port says."""
        return self._tables

    def read_dense(self, out: Floats) -> None:
        """As the port says."""
        np.copyto(out, self._slab.values)

    def read_rows(self, table: str, ids: Ids) -> Floats:
        """As the port says."""
        return self._tables[table].read(ids)

    def apply(self, gradients: Gradients, step: int) -> None:
        """As the port says."""
        for name, rows in gradients.rows.items():
            self._tables[name].admit(rows.ids, step)
        self._slab.apply(gradients, step)
        for name, rows in gradients.rows.items():
            self._tables[name].apply(rows.ids, rows.values, gradients.learning_rate, step)

    def extent(self, table: str) -> int:
        """As the port says."""
        return self._tables[table].extent

    def scan(self, table: str, start: int, limit: int) -> StoredRows:
        """As the port says."""
        return self._tables[table].scan(start, limit)

    def snapshot(self) -> Snapshot:
        """As the port says."""
        slab = self._slab.copy()
        tables = {name: table.snapshot() for name, table in self._tables.items()}
        return Snapshot(self._declaration, slab.values, slab.slots, tables)

    def make_room(self) -> None:
        """As the port says."""
        self._slab.make_room()
