"""A copy of a store at one moment: what checkpoints are written from, and what pinned versions are read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from edl.ps.arrays import Floats, Ids
from edl.ps.declaration import Declaration, DenseVariable
from edl.spec.initializer import initial_rows


@dataclass(frozen=True)
class StoredRows:
    """The rows of a table that were ever updated.

    Attributes:
        ids: ``[n]``, each once, in no order.
        values: ``[n, dim]``.
        slots: by slot variable, ``[n, dim]``.
    """

    ids: Ids
    values: Floats
    slots: Mapping[str, Floats]

    def select(self, which: np.ndarray) -> StoredRows:
        """The rows that an index array, a mask or a slice selects."""
        return StoredRows(self.ids[which], self.values[which], {name: s[which] for name, s in self.slots.items()})

    def find(self, ids: Ids) -> Ids:
        """Position of each id, -1 where it is not stored."""
        if not len(self.ids):
            return np.full(len(ids), -1, np.int64)
        nearest = np.minimum(np.searchsorted(self.ids, ids, sorter=self._order), len(self.ids) - 1)
        positions = self._order[nearest]
        return np.where(self.ids[positions] == ids, positions, -1)

    @cached_property
    def _order(self) -> Ids:
        return np.argsort(self.ids)


@dataclass(frozen=True)
class Snapshot:
    """Everything that a store holds.

    Attributes:
        declaration: of the store.
        dense: the slab.
        slots: by slot variable, one element for each trained element of the slab.
        tables: by table.
    """

    declaration: Declaration
    dense: Floats
    slots: Mapping[str, Floats]
    tables: Mapping[str, StoredRows]

    def read_rows(self, table: str, ids: Ids) -> Floats:
        """Rows ``[n, dim]``, initial values for those that are not stored."""
        declared, stored = self.declaration.table(table), self.tables[table]
        positions = stored.find(ids)
        missing = positions < 0
        values = np.empty((len(ids), declared.dim), np.float32)
        values[~missing] = stored.values[positions[~missing]]
        if missing.any():
            values[missing] = initial_rows(declared.initializer, declared.seed, ids[missing], declared.dim)
        return values

    def scan(self, table: str, start: int, limit: int) -> StoredRows:
        """As :meth:`edl.ps.store.ParameterStore.scan`."""
        stored, part = self.tables[table], slice(start, start + limit)
        return StoredRows(stored.ids[part], stored.values[part], {})

    def arranged(self, dense: Sequence[DenseVariable]) -> Snapshot:
        """The same values with some of the dense variables, in another order."""
        declaration = replace(self.declaration, dense=tuple(dense))
        places = {variable.name: place for variable, place in self.declaration.places()}
        trained = [places[variable.name] for variable in dense if not variable.statistic]
        return Snapshot(
            declaration,
            _picked(self.dense, [places[variable.name] for variable in dense]),
            {slot: _picked(values, trained) for slot, values in self.slots.items()},
            self.tables,
        )


def joined(parts: Sequence[StoredRows]) -> StoredRows:
    """The rows of disjoint parts."""
    return StoredRows(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.values for part in parts]),
        {slot: np.concatenate([part.slots[slot] for part in parts]) for slot in parts[0].slots},
    )


def _picked(slab: Floats, places: Sequence[slice]) -> Floats:
    return np.concatenate([slab[:0], *(slab[place] for place in places)])
