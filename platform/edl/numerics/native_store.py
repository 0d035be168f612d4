"""The parameter store over native tables; importing it without the extension is an ImportError."""

from __future__ import annotations

from edl.api.tables import TableSpec
from edl.numerics.array_types import Floats
from edl.numerics.embedding_table import EmbeddingTable, RowRetention
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.native_kernels import make_flat_rule
from edl.numerics.native_table import NativeTable
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers import UpdateRule
from edl.numerics.parameter_store import TableParameterStore


class NativeParameterStore(TableParameterStore):
    """A store with native tables, whose dense values are updated by the native kernels.

    Args:
        declaration: what it holds; its optimizer is one of ``edl.numerics.native_table.NATIVE_OPTIMIZERS``.
        initial_values: initial slab, copied.
        retention: which rows its tables keep; by default all.
        threads: that share a large batch of one table.

    Raises:
        BadInputError: the optimizer has no native kernel.
        OutOfMemoryError: for the dense values, or a table.
    """

    def __init__(
        self,
        declaration: ModelDeclaration,
        initial_values: Floats,
        retention: RowRetention | None = None,
        *,
        threads: int = 1,
    ) -> None:
        self._threads = threads
        super().__init__(declaration, initial_values, retention)

    def _make_table(self, table: TableSpec) -> EmbeddingTable:
        return NativeTable(table, self._declaration.optimizer, threads=self._threads, retention=self._retention)

    @staticmethod
    def _make_rule(optimizer: OptimizerSpec, decay: float) -> UpdateRule:
        return make_flat_rule(optimizer, decay)
