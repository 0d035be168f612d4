"""A store that is a slab and tables; ``numpy_store`` and ``native_store`` say which tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import numpy as np

from edl.api.tables import TableSpec
from edl.numerics.array_types import Floats, Ids
from edl.numerics.embedding_table import Table
from edl.numerics.flat_parameters import Slab
from edl.numerics.memory_errors import no_memory, torn
from edl.numerics.model_declaration import Declaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers import Rule, rule
from edl.numerics.parameter_snapshot import FrozenRows, Snapshot, StoredRows
from edl.numerics.parameter_store import Gradients
from edl.numerics.row_retention import Retention


class TableStore(ABC):
    """A :class:`edl.numerics.parameter_store.ParameterStore`.

    Args:
        declaration: what it holds.
        dense: initial slab, copied.
        retention: which rows its tables keep; by default all.

    Raises:
        NoMemoryError: for the dense values, or a table.
    """

    def __init__(self, declaration: Declaration, dense: Floats, retention: Retention | None = None) -> None:
        self._declaration = declaration
        self._retention = retention or Retention()
        self._slab = self._taken(dense)
        self._tables = {table.name: self._empty(table) for table in declaration.tables}

    def _taken(self, dense: Floats) -> Slab:
        try:
            return Slab(self._declaration, dense, self._rule)
        except MemoryError as error:
            raise no_memory(f"{self._dense}, with their slot variables") from error

    def _empty(self, table: TableSpec) -> Table:
        try:
            return self._made(table)
        except MemoryError as error:
            raise no_memory(table.described) from error

    @abstractmethod
    def _made(self, table: TableSpec) -> Table:
        """A declared table, empty."""

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
        """Hold what a snapshot of the same declaration holds, after ``version`` steps; nothing was applied yet.

        Raises:
            NoMemoryError: only a part of it is held.
        """
        np.copyto(self._slab.values, snapshot.dense)
        for name, slot in self._slab.slots.items():
            np.copyto(slot, snapshot.slots[name])
        for name, rows in snapshot.tables.items():
            try:
                for piece in rows.pieces():
                    self._tables[name].load(piece, version)
            except MemoryError as error:
                raise no_memory(f"{len(rows)} rows of {self._declaration.table(name).described}") from error

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
        try:
            return self._tables[table].read(ids)
        except MemoryError as error:
            raise no_memory(self._rows(table, ids)) from error

    def apply(self, gradients: Gradients, step: int) -> None:
        """As the port says."""
        for name, rows in gradients.rows.items():
            try:
                self._tables[name].admit(rows.ids, step)
            except MemoryError as error:
                raise no_memory(self._rows(name, rows.ids)) from error
        try:
            self._slab.apply(gradients, step)
        except MemoryError as error:
            raise torn(self._dense) from error
        for name, rows in gradients.rows.items():
            try:
                self._tables[name].apply(rows.ids, rows.values, gradients.learning_rate, step)
            except MemoryError as error:
                raise torn(self._rows(name, rows.ids)) from error

    def extent(self, table: str) -> int:
        """As the port says."""
        return self._tables[table].extent

    def scan(self, table: str, start: int, limit: int) -> StoredRows:
        """As the port says."""
        return self._tables[table].scan(start, limit)

    def snapshot(self) -> Snapshot:
        """As the port says."""
        tables: dict[str, FrozenRows] = {}
        try:
            slab = self._slab.copy()
            for name, table in self._tables.items():
                tables[name] = table.snapshot()
        except MemoryError as error:
            for rows in tables.values():
                rows.release()
            raise no_memory(f"a copy of {self._copied}") from error
        return Snapshot(self._declaration, slab.values, slab.slots, tables)

    def make_room(self) -> None:
        """As the port says."""
        try:
            self._slab.make_room()
        except MemoryError as error:
            raise no_memory(f"a copy of {self._dense}") from error

    def _rows(self, table: str, ids: Ids) -> str:
        return f"{len(ids)} rows of {self._declaration.table(table).described}"

    @property
    def _dense(self) -> str:
        return f"the {self._declaration.size} dense values"

    @property
    def _copied(self) -> str:
        return ", ".join([self._dense, *(table.described for table in self._declaration.tables)])
