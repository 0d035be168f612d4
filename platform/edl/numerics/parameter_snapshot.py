"""Snapshots of a store, for writing checkpoints and reading pinned versions.

A snapshot of a table need not be a copy; :class:`TableSnapshot` is the port. ``numpy_table`` copies the
rows. In ``native_table`` the table itself keeps the old values of rows that it changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from edl.api.errors import RefusedError
from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.numerics.array_types import Floats, Ids, StepNumbers
from edl.numerics.initializers import initial_rows
from edl.numerics.model_declaration import ModelDeclaration


class PinError(RefusedError):
    """The pinned version is not kept on this server."""

    kind = "pin"


class TableSnapshot(Protocol):
    """The stored rows of a table at one moment. Thread-safe.

    Snapshots count references: taking one adds the first, :meth:`retain` another. After the last
    :meth:`release` the rows are freed, and reading raises PinError.
    """

    def __len__(self) -> int:
        """The number of rows."""

    @property
    def position_limit(self) -> int:
        """Exclusive upper bound of row positions; some positions may be free."""

    @property
    def has_last_steps(self) -> bool:
        """Whether the snapshot has the last step that used each row."""

    def read(self, ids: Ids, table_spec: TableSpec) -> Floats:
        """The rows of these ids ``[n, dim]``, a new array.

        Rows that were not stored have their initial values.
        """

    def scan(self, start: int, limit: int) -> RowArrays:
        """As :meth:`edl.numerics.parameter_store.ParameterStore.scan_rows`."""

    def iter_chunks(self) -> Iterator[RowArrays]:
        """All rows with slot variables, in chunks; only a sole holder may do this, and only once.

        The next chunk may overwrite the previous one.
        """

    def read_all(self) -> RowArrays:
        """All rows with slot variables."""

    def retain(self) -> None:
        """Add a reference."""

    def release(self) -> None:
        """Drop a reference."""


@dataclass(frozen=True)
class RowArrays:
    """Rows of a table that were ever updated, in memory.

    Attributes:
        ids: ``[n]``, each once, in no order.
        values: ``[n, dim]``.
        slots: by slot variable, ``[n, dim]``.
        last_steps: the step that named each last; None where that is not known.
    """

    ids: Ids
    values: Floats
    slots: Mapping[str, Floats]
    last_steps: StepNumbers | None = None

    @classmethod
    def allocate(
        cls, row_count: int, dim: int, slot_names: Sequence[str] = (), *, with_last_steps: bool = False
    ) -> Self:
        """Allocate uninitialized space for this many rows."""
        ids, values = np.empty(row_count, np.int64), np.empty((row_count, dim), np.float32)
        last_steps = np.empty(row_count, np.uint32) if with_last_steps else None
        return cls(ids, values, {name: np.empty_like(values) for name in slot_names}, last_steps)

    def select_rows(self, selection: np.ndarray | slice) -> RowArrays:
        """The rows that an index array, a mask or a slice selects."""
        slots = {name: slot[selection] for name, slot in self.slots.items()}
        return RowArrays(
            self.ids[selection],
            self.values[selection],
            slots,
            None if self.last_steps is None else self.last_steps[selection],
        )

    def first_rows(self, count: int) -> RowArrays:
        """The first rows; the object itself if these are all."""
        return self if count == len(self.ids) else self.select_rows(slice(count))

    def find_positions(self, ids: Ids) -> Ids:
        """The position of each id; -1 if it is not stored."""
        if not len(self.ids):
            return np.full(len(ids), -1, np.int64)
        nearest = np.minimum(np.searchsorted(self.ids, ids, sorter=self._id_order), len(self.ids) - 1)
        positions = self._id_order[nearest]
        return np.where(self.ids[positions] == ids, positions, -1)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def position_limit(self) -> int:
        return len(self.ids)

    @property
    def has_last_steps(self) -> bool:
        return self.last_steps is not None

    def read(self, ids: Ids, table_spec: TableSpec) -> Floats:
        positions = self.find_positions(ids)
        missing = positions < 0
        values = np.empty((len(ids), table_spec.dim), np.float32)
        values[~missing] = self.values[positions[~missing]]
        if missing.any():
            values[missing] = initial_rows(table_spec.initializer, table_spec.seed, ids[missing], table_spec.dim)
        return values

    def scan(self, start: int, limit: int) -> RowArrays:
        part = slice(start, start + limit)
        return RowArrays(self.ids[part], self.values[part], {})

    def iter_chunks(self) -> Iterator[RowArrays]:
        """All rows as one chunk."""
        yield self

    def read_all(self) -> RowArrays:
        return self

    def retain(self) -> None:
        """Do nothing: Python frees arrays without references."""

    def release(self) -> None:
        """See TableSnapshot."""

    @cached_property
    def _id_order(self) -> Ids:
        return np.argsort(self.ids)


@dataclass(frozen=True)
class ParameterSnapshot:
    """A snapshot of a complete store.

    Attributes:
        declaration: of the store.
        flat_values: the slab, copied.
        slots: by slot variable, one element for each trained element of the slab; copied.
        tables: by table.
    """

    declaration: ModelDeclaration
    flat_values: Floats
    slots: Mapping[str, Floats]
    tables: Mapping[str, TableSnapshot]

    def __enter__(self) -> Self:
        """Add no reference: taking a snapshot has added one."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def retain(self) -> None:
        """Add a reference to its tables; see TableSnapshot."""
        for rows in self.tables.values():
            rows.retain()

    def release(self) -> None:
        """Drop a reference."""
        for rows in self.tables.values():
            rows.release()

    def read_rows(self, table: str, ids: Ids) -> Floats:
        """The rows ``[n, dim]``; rows that are not stored have their initial values."""
        return self.tables[table].read(ids, self.declaration.get_table(table))

    def position_limit(self, table: str) -> int:
        """As :meth:`edl.numerics.parameter_store.ParameterStore.position_limit`."""
        return self.tables[table].position_limit

    def scan_rows(self, table: str, start: int, limit: int) -> RowArrays:
        """As :meth:`edl.numerics.parameter_store.ParameterStore.scan_rows`."""
        return self.tables[table].scan(start, limit)

    def rearrange(self, variables: Sequence[VariableSpec]) -> ParameterSnapshot:
        """The same values with a subset of the dense variables, in a given order."""
        declaration = replace(self.declaration, variables=tuple(variables))
        places = {variable.name: place for variable, place in self.declaration.variable_slices()}
        trained = [places[variable.name] for variable in variables if not variable.statistic]
        return ParameterSnapshot(
            declaration,
            _pick_slices(self.flat_values, [places[variable.name] for variable in variables]),
            {slot: _pick_slices(values, trained) for slot, values in self.slots.items()},
            self.tables,
        )


def join_rows(parts: Sequence[RowArrays]) -> RowArrays:
    """Join the rows of disjoint parts, at least one."""
    last_steps = [part.last_steps for part in parts if part.last_steps is not None]
    return RowArrays(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.values for part in parts]),
        {slot: np.concatenate([part.slots[slot] for part in parts]) for slot in parts[0].slots},
        np.concatenate(last_steps) if len(last_steps) == len(parts) else None,
    )


def _pick_slices(flat_values: Floats, places: Sequence[slice]) -> Floats:
    return np.concatenate([flat_values[:0], *(flat_values[place] for place in places)])
