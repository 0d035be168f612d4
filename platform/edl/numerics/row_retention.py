"""Which rows a table keeps: how many, and how long after a push last named them."""

from __future__ import annotations

from dataclasses import dataclass

from edl.api.errors import RefusedError
from edl.api.tables import TableSpec


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
        servers: among which the rows of a table are spread evenly.
    """

    max_rows: int | None = None
    evict_after_steps: int | None = None
    servers: int = 1

    @property
    def share(self) -> int | None:
        """Rows of a table that one server may hold."""
        return None if self.max_rows is None else -(-self.max_rows // self.servers)

    def check(self, table: TableSpec, stored: int, new: int) -> None:
        """Refuse a push that would store ``new`` more rows on this server where that is too many.

        Raises:
            TableFullError: it is.
        """
        if not new or self.share is None or stored + new <= self.share:
            return
        bound = "as ps.max_rows says"
        if self.servers > 1:
            bound = f"its part of ps.max_rows {self.max_rows} on {self.servers} parameter servers"
        dropped = "set ps.evict_after_steps, so that rows which are not used any more make room"
        if self.evict_after_steps is not None:
            dropped = f"lower ps.evict_after_steps ({self.evict_after_steps}): no row has gone unused for so long"
        raise TableFullError(
            f"{table.described} holds {stored} rows on this parameter server, {new} more do not fit: it may hold "
            f"{self.share}, {bound}",
            hint=f"raise ps.max_rows or ps.count, or {dropped}; then go on with --resume",
        )
