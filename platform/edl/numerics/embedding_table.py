"""The port to the rows of one embedding table, which are lazily initialised; docs/design/0007 has its guarantees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from edl.api.errors import RefusedError
from edl.api.tables import TableSpec
from edl.numerics.array_types import Floats, Ids
from edl.numerics.parameter_snapshot import RowArrays, TableSnapshot


class EmbeddingTable(Protocol):
    """Rows ``[dim]`` by id, each with its slot variables. A row is stored when it is first updated."""

    def read(self, ids: Ids) -> Floats:
        """Rows ``[n, dim]`` as a new array. Rows that are not stored have their initial values; reading stores none."""

    def __len__(self) -> int:
        """Number of stored rows."""

    @property
    def evicted_count(self) -> int:
        """Number of rows that were dropped because no push used them for too long."""

    @property
    def row_limit(self) -> int | None:
        """Maximum number of stored rows; None: no limit."""

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory in use.

        May be read while other threads use the table. These may wait for it, some ten milliseconds for a
        large table.
        """

    @property
    def position_limit(self) -> int:
        """Exclusive upper bound of row positions; some positions may be free."""

    def prepare_update(self, ids: Ids, step: int) -> None:
        """Drop the rows that no push has used for too long at ``step``, and check that ``ids`` fit.

        Raises:
            TableFullError: the new rows exceed the limit.
            MemoryError: there is no memory for them; a table that can allocate it in advance does so here.
        """

    def apply_gradients(self, ids: Ids, gradients: Floats, learning_rate: float, step: int) -> None:
        """Drop unused rows, sum the gradients ``[n, dim]`` of equal ids, and update the rows of these ids only.

        Raises:
            MemoryError: some of the rows may be updated.
        """

    def scan(self, start: int, limit: int) -> RowArrays:
        """The stored rows at positions ``start`` to ``start + limit``, copied, without slot variables.

        A row keeps its position as long as it is stored. The position of a dropped row may be reused.
        """

    def take_snapshot(self) -> TableSnapshot:
        """The stored rows as they are now, while the table goes on."""

    def load(self, rows: RowArrays, step: int = 0) -> None:
        """Store rows with their slot variables; ``step`` named those last that do not say which one did."""


# --------------------------------------------------------------------------------------------------
# Which rows a table keeps: how many, and how long after a push last named them.


class TableFullError(RefusedError):
    """A push that would store more rows than a table may hold; it has changed nothing."""

    kind = "full"


@dataclass(frozen=True, slots=True)
class RowRetention:
    """Of each table, as the job's parameter servers have it in common.

    Attributes:
        max_rows: rows that a table may have on all of them together; None for no bound.
        evict_after_steps: a row that no push named for so many steps is dropped: its initial value, with new slot
            variables, is what comes back. None keeps all. Steps are updates of this server; reading a row does not
            count.
        server_count: among which the rows of a table are spread evenly.
    """

    max_rows: int | None = None
    evict_after_steps: int | None = None
    server_count: int = 1

    @property
    def row_limit(self) -> int | None:
        """Rows of a table that one server may hold."""
        return None if self.max_rows is None else -(-self.max_rows // self.server_count)

    def check_capacity(self, table: TableSpec, stored_rows: int, new_rows: int) -> None:
        """Refuse a push that would store ``new_rows`` more rows on this server where that is too many.

        Raises:
            TableFullError: it is.
        """
        if not new_rows or self.row_limit is None or stored_rows + new_rows <= self.row_limit:
            return
        limit_source = "ps.max_rows"
        if self.server_count > 1:
            limit_source = f"ps.max_rows {self.max_rows}, divided among {self.server_count} parameter servers"
        eviction_hint = "set ps.evict_after_steps to evict unused rows"
        if self.evict_after_steps is not None:
            eviction_hint = (
                f"lower ps.evict_after_steps ({self.evict_after_steps}): no row has been unused for that long"
            )
        raise TableFullError(
            f"{table.described} holds {stored_rows} rows on this parameter server; {new_rows} new rows would exceed "
            f"its limit of {self.row_limit} rows ({limit_source})",
            hint=f"raise ps.max_rows or ps.count, or {eviction_hint}; then continue with --resume",
        )
