"""The parameter store over native tables; importing it without the extension is an ImportError."""

from __future__ import annotations

from collections.abc import Mapping

from edl.optimizers import Rule
from edl.ps.arrays import Floats
from edl.ps.declaration import Declaration
from edl.ps.native_rules import slab_rule
from edl.ps.native_table import NativeTable
from edl.ps.retention import Retention
from edl.ps.table import Table
from edl.ps.table_store import TableStore
from edl.spec.optimizer import OptimizerSpec


class NativeStore(TableStore):
    """A store whose tables are native, and whose slab is moved by their kernels.

    Args:
        declaration: what it holds; its optimizer is one of ``edl.ps.native_table.OPTIMIZERS``.
        dense: initial slab, copied.
        retention: which rows its tables keep; by default all.
        threads: that share a large batch of one table.

    Raises:
        BadInputError: the optimizer has no native kernel.
    """

    def __init__(
        self, declaration: Declaration, dense: Floats, retention: Retention | None = None, *, threads: int = 1
    ) -> None:
        self._threads = threads
        super().__init__(declaration, dense, retention)

    def _made(self, declaration: Declaration) -> Mapping[str, Table]:
        optimizer = declaration.optimizer
        return {
            table.name: NativeTable(table, optimizer, threads=self._threads, retention=self._retention)
            for table in declaration.tables
        }

    @staticmethod
    def _rule(optimizer: OptimizerSpec, decay: float) -> Rule:
        return slab_rule(optimizer, decay)
