"""A store that is a slab and tables; ``numpy_store`` and ``native_store`` say which tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import numpy as np

from edl.api.tables import TableSpec
from edl.numerics.array_types import Floats, Ids
from edl.numerics.embedding_table import EmbeddingTable
from edl.numerics.flat_parameters import FlatParameters
from edl.numerics.memory_errors import out_of_memory_error, partial_update_error
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers import UpdateRule, make_rule
from edl.numerics.parameter_snapshot import ParameterSnapshot, RowArrays, TableSnapshot
from edl.numerics.parameter_store import PushGradients
from edl.numerics.row_retention import RowRetention


class TableParameterStore(ABC):
    """A :class:`edl.numerics.parameter_store.ParameterStore`.

    Args:
        declaration: what it holds.
        dense: initial slab, copied.
        retention: which rows its tables keep; by default all.

    Raises:
        OutOfMemoryError: for the dense values, or a table.
    """

    def __init__(self, declaration: ModelDeclaration, dense: Floats, retention: RowRetention | None = None) -> None:
        self._declaration = declaration
        self._retention = retention or RowRetention()
        self._slab = self._make_flat_parameters(dense)
        self._tables = {table.name: self._make_empty_table(table) for table in declaration.tables}

    def _make_flat_parameters(self, dense: Floats) -> FlatParameters:
        try:
            return FlatParameters(self._declaration, dense, self._rule)
        except MemoryError as error:
            raise out_of_memory_error(f"{self._dense}, with their slot variables") from error

    def _make_empty_table(self, table: TableSpec) -> EmbeddingTable:
        try:
            return self._made(table)
        except MemoryError as error:
            raise out_of_memory_error(table.described) from error

    @abstractmethod
    def _made(self, table: TableSpec) -> EmbeddingTable:
        """A declared table, empty."""

    @staticmethod
    def _rule(optimizer: OptimizerSpec, decay: float) -> UpdateRule:
        """What moves the slab."""
        return make_rule(optimizer, decay)

    @classmethod
    def restored(cls, snapshot: ParameterSnapshot) -> Self:
        """A store that holds what a snapshot holds."""
        store = cls(snapshot.declaration, snapshot.dense)
        store.load(snapshot)
        return store

    def load(self, snapshot: ParameterSnapshot, version: int = 0) -> None:
        """Hold what a snapshot of the same declaration holds, after ``version`` steps; nothing was applied yet.

        Raises:
            OutOfMemoryError: only a part of it is held.
        """
        np.copyto(self._slab.values, snapshot.dense)
        for name, slot in self._slab.slots.items():
            np.copyto(slot, snapshot.slots[name])
        for name, rows in snapshot.tables.items():
            try:
                for piece in rows.iter_chunks():
                    self._tables[name].load(piece, version)
            except MemoryError as error:
                raise out_of_memory_error(f"{len(rows)} rows of {self._declaration.table(name).described}") from error

    @property
    def declaration(self) -> ModelDeclaration:
        """What it holds."""
        return self._declaration

    @property
    def tables(self) -> Mapping[str, EmbeddingTable]:
        """As the port says."""
        return self._tables

    def read_flat(self, out: Floats) -> None:
        """As the port says."""
        np.copyto(out, self._slab.values)

    def read_rows(self, table: str, ids: Ids) -> Floats:
        """As the port says."""
        try:
            return self._tables[table].read(ids)
        except MemoryError as error:
            raise out_of_memory_error(self._rows(table, ids)) from error

    def apply(self, gradients: PushGradients, step: int) -> None:
        """As the port says."""
        for name, rows in gradients.rows.items():
            try:
                self._tables[name].prepare_update(rows.ids, step)
            except MemoryError as error:
                raise out_of_memory_error(self._rows(name, rows.ids)) from error
        try:
            self._slab.apply(gradients, step)
        except MemoryError as error:
            raise partial_update_error(self._dense) from error
        for name, rows in gradients.rows.items():
            try:
                self._tables[name].apply(rows.ids, rows.values, gradients.learning_rate, step)
            except MemoryError as error:
                raise partial_update_error(self._rows(name, rows.ids)) from error

    def position_limit(self, table: str) -> int:
        """As the port says."""
        return self._tables[table].position_limit

    def scan(self, table: str, start: int, limit: int) -> RowArrays:
        """As the port says."""
        return self._tables[table].scan(start, limit)

    def snapshot(self) -> ParameterSnapshot:
        """As the port says."""
        tables: dict[str, TableSnapshot] = {}
        try:
            slab = self._slab.copy()
            for name, table in self._tables.items():
                tables[name] = table.snapshot()
        except MemoryError as error:
            for rows in tables.values():
                rows.release()
            raise out_of_memory_error(f"a copy of {self._copy_description}") from error
        return ParameterSnapshot(self._declaration, slab.values, slab.slots, tables)

    def make_room(self) -> None:
        """As the port says."""
        try:
            self._slab.make_room()
        except MemoryError as error:
            raise out_of_memory_error(f"a copy of {self._dense}") from error

    def _rows(self, table: str, ids: Ids) -> str:
        return f"{len(ids)} rows of {self._declaration.table(table).described}"

    @property
    def _dense(self) -> str:
        return f"the {self._declaration.size} dense values"

    @property
    def _copy_description(self) -> str:
        return ", ".join([self._dense, *(table.described for table in self._declaration.tables)])
