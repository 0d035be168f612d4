"""What a job tells about its parameter servers: how pushes become updates, what became of them, what tables hold.

A part of the status and of the summary. Sizes are bounded: the fullest tables are told, and how many more there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edl.spec.collection import ListOf, Nullable
from edl.spec.job import Strategy
from edl.spec.kind import Number, Text, Whole
from edl.spec.report import Report
from edl.spec.section import Option, Section

TABLES_SHOWN = 16
AWAITED_SHOWN = 8
NAME_LENGTH = 120
"""Characters of a table's name that are told."""

_COUNT = Whole(0)
_SHARE = Number(0.0)


@dataclass(frozen=True, slots=True)
class TableStatus(Report):
    """One embedding table, on all parameter servers together."""

    name: Annotated[str, Option(Text(r"^[\s\S]*$"), "The variable.")]
    rows: Annotated[int, Option(_COUNT, "Rows that are stored.", "rows")]
    bytes: Annotated[int, Option(_COUNT, "Memory that it occupies, with slot variables and index.", "bytes")]
    evicted: Annotated[
        int, Option(_COUNT, "Rows dropped under ps.evict_after_steps since the parameter servers have it.", "rows")
    ] = 0
    max_rows: Annotated[int | None, Option(Nullable(_COUNT), "The bound, ps.max_rows; null for none.", "rows")] = None
    full: Annotated[
        float | None, Option(Nullable(_SHARE), "Share of the bound that the fullest parameter server has; null: none.")
    ] = None


@dataclass(frozen=True, slots=True)
class RoundStatus(Report):
    """An update of synchronous mode that waits for more pushes."""

    arrived: Annotated[int, Option(_COUNT, "Pushes that wait.", "pushes")]
    wanted: Annotated[int, Option(_COUNT, "Pushes that it waits for, if so many can come.", "pushes")]
    awaited: Annotated[
        tuple[int, ...], Option(ListOf(_COUNT), "Workers, by index, whose pushes may come; the first few.")
    ] = ()
    awaited_total: Annotated[int, Option(_COUNT, "How many those are.", "workers")] = 0
    seconds: Annotated[float, Option(Number(0.0), "For how long it has been waiting.", "seconds")] = 0.0


@dataclass(frozen=True, slots=True)
class ParametersStatus(Report):
    """What the parameter servers did since they, or the run, were started last. Pushes are those with a gradient."""

    strategy: Annotated[Strategy, Option(Section(Strategy), "How pushes become updates, as in the job file.")]
    pushes: Annotated[
        int, Option(_COUNT, "Pushes that entered an update, also if that was rolled back since.", "pushes")
    ] = 0
    updates: Annotated[int, Option(_COUNT, "Updates that they became.", "updates")] = 0
    refused: Annotated[
        int, Option(_COUNT, "Pushes that were refused as too old, and computed again on fresh values.", "pushes")
    ] = 0
    staleness: Annotated[
        float | None,
        Option(
            Nullable(Number(0.0)),
            "Updates between the values of a gradient and the update it entered: their mean; null before the first.",
            "updates",
        ),
    ] = None
    stalest: Annotated[int, Option(_COUNT, "The largest of these.", "updates")] = 0
    round: Annotated[
        RoundStatus | None, Option(Nullable(Section(RoundStatus)), "The update that waits now; null: none does.")
    ] = None
    tables: Annotated[
        tuple[TableStatus, ...], Option(ListOf(Section(TableStatus)), "Embedding tables, the fullest first.")
    ] = ()
    tables_total: Annotated[int, Option(_COUNT, "How many there are.", "tables")] = 0

    @property
    def refused_share(self) -> float:
        """Of all pushes, 0 to 1."""
        return self.refused / (self.pushes + self.refused) if self.refused else 0.0
