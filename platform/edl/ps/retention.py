"""Which rows a table keeps: how many, and how long after a push last named them."""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.errors import RefusedError


class TableFullError(RefusedError):
    """A push that would store more rows than a table may hold; it has changed nothing."""

    kind = "full"


@dataclass(frozen=True, slots=True)
class Retention:
    """Of each table of one parameter server.

    Attributes:
        max_rows: rows that a table may hold there; None for no bound.
        evict_after_steps: a row that no push named for so many steps is dropped: its initial value, with new slot
            variables, is what comes back. None keeps all. Steps are updates of this server; reading a row does not
            count.
    """

    max_rows: int | None = None
    evict_after_steps: int | None = None

    @classmethod
    def share(cls, max_rows: int | None, evict_after_steps: int | None, servers: int) -> Retention:
        """Of one of so many servers, among which the rows of a table are spread evenly."""
        return cls(None if max_rows is None else -(-max_rows // servers), evict_after_steps)

    def check(self, table: str, stored: int, new: int) -> None:
        """Refuse a push that would store ``new`` more rows where that is too many.

        Raises:
            TableFullError: it is.
        """
        if self.max_rows is None or stored + new <= self.max_rows:
            return
        dropped = "set ps.evict_after_steps, so that rows which are not used any more make room"
        if self.evict_after_steps is not None:
            dropped = f"lower ps.evict_after_steps ({self.evict_after_steps}): no row has gone unused for so long"
        raise TableFullError(
            f"table '{table}' holds {stored} rows on this parameter server, {new} more do not fit: it may hold "
            f"{self.max_rows} there",
            hint=f"Raise ps.max_rows or ps.count, or {dropped}; then go on with `edl run --resume`.",
        )
