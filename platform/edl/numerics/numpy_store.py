"""The parameter store in NumPy: what every machine has, and the oracle of the native one."""

from __future__ import annotations

from edl.api.tables import TableSpec
from edl.numerics.embedding_table import EmbeddingTable
from edl.numerics.numpy_table import NumpyTable
from edl.numerics.optimizers import make_rule
from edl.numerics.table_store import TableParameterStore


class NumpyParameterStore(TableParameterStore):
    """A store whose tables are NumPy arrays."""

    def _made(self, table: TableSpec) -> EmbeddingTable:
        optimizer = self._declaration.optimizer
        return NumpyTable(table, optimizer.slots, make_rule(optimizer, optimizer.decay_of(table.name)), self._retention)
