"""Aggregates the statistics that parameter servers report.

They are for users only and are not journaled. Each PS process counts from its start. When a PS is
replaced, the counts of the lost process are kept; a restarted master starts from the processes that
are there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from edl.api.status import AWAITED_SHOWN, NAME_LENGTH, TABLES_SHOWN, ParametersStatus, RoundStatus, TableStatus
from edl.api.strategy import PushStrategy
from edl.transport import edl_pb2 as pb

_MAX_AGE_SECONDS = 5.0
"""Maximum age in seconds of a shown report about a pending round; a PS reports every second."""


@dataclass(frozen=True, slots=True)
class PushTotals:
    """Push counts, as in the message."""

    admitted: int = 0
    updates: int = 0
    refused: int = 0
    staleness: int = 0
    max_staleness: int = 0

    @classmethod
    def from_message(cls, message: pb.PsFigures) -> PushTotals:
        """From a message; negative values become 0."""
        # A message is untrusted, and these numbers are added up.
        numbers = (message.entered, message.updates, message.refused, message.staleness, message.stalest)
        return cls(*(max(0, number) for number in numbers))

    def __add__(self, other: PushTotals) -> PushTotals:
        return PushTotals(
            self.admitted + other.admitted,
            self.updates + other.updates,
            self.refused + other.refused,
            self.staleness + other.staleness,
            max(self.max_staleness, other.max_staleness),
        )


@dataclass(frozen=True, slots=True)
class _PsReport:
    """The latest report of process ``uid`` at ``reported_at``, and the totals of its predecessors."""

    uid: str
    message: pb.PsFigures
    reported_at: float
    previous_totals: PushTotals

    @property
    def totals(self) -> PushTotals:
        return self.previous_totals + PushTotals.from_message(self.message)


class PsMetrics:
    """Merges the reports of all parameter servers. Thread-safe.

    Args:
        strategy: the job's strategy.
        max_rows: ``ps.max_rows``.
        clock: returns monotonic seconds.
    """

    def __init__(
        self, strategy: PushStrategy, max_rows: int | None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._strategy, self._max_rows, self._clock = strategy, max_rows, clock
        self._reports: Mapping[int, _PsReport] = {}
        self._lock = threading.Lock()

    def record_report(self, uid: str, index: int, message: pb.PsFigures) -> None:
        """Record the report of process ``uid`` of the PS ``index``."""
        with self._lock:
            last = self._reports.get(index)
            # Another uid is a successor, which counts from zero again.
            before = PushTotals() if last is None else last.previous_totals if last.uid == uid else last.totals
            self._reports = {**self._reports, index: _PsReport(uid, message, self._clock(), before)}

    def parameters_status(self) -> ParametersStatus:
        """The latest report of all parameter servers."""
        # The mapping is replaced with each report and never changed, so no lock is needed.
        reports = self._reports
        counts = [one.totals for one in reports.values()]
        # A step is pushed to every PS, so the maximum counts it once.
        most = max(counts, key=lambda each: each.admitted, default=PushTotals())
        entered = sum(each.admitted for each in counts)
        tables = table_statuses([one.message for one in reports.values()], self._max_rows)
        return ParametersStatus(
            strategy=self._strategy,
            pushes=most.admitted,
            updates=most.updates,
            # Only the first PS refuses stale pushes.
            refused=max((each.refused for each in counts), default=0),
            staleness=sum(each.staleness for each in counts) / entered if entered else None,
            stalest=max((each.max_staleness for each in counts), default=0),
            round=self._round_status(reports.get(0)),
            tables=tuple(tables[:TABLES_SHOWN]),
            tables_total=len(tables),
        )

    def _round_status(self, first: _PsReport | None) -> RoundStatus | None:
        if (
            first is None
            or not first.message.HasField("forming")
            or self._clock() - first.reported_at > _MAX_AGE_SECONDS
        ):
            return None
        forming = first.message.forming
        # The message is untrusted: the index of a worker is never negative.
        awaited = sorted(worker for worker in forming.awaited if worker >= 0)
        return RoundStatus(
            arrived=len(forming.arrived),
            wanted=max(0, forming.wanted),
            awaited=tuple(awaited[:AWAITED_SHOWN]),
            awaited_total=len(awaited),
            seconds=max(0.0, forming.seconds),
        )


def table_statuses(messages: Iterable[pb.PsFigures], max_rows: int | None) -> list[TableStatus]:
    """The tables of all parameter servers, the fullest first."""
    parts: dict[str, list[pb.TableUse]] = {}
    for figures in messages:
        for use in figures.tables:
            parts.setdefault(use.name, []).append(use)
    tables = [_table_status(name, uses, max_rows) for name, uses in parts.items()]
    return sorted(tables, key=lambda table: (-(table.full or 0.0), -table.rows, table.name))


def _table_status(name: str, uses: Sequence[pb.TableUse], max_rows: int | None) -> TableStatus:
    shares = [max(0, use.rows) / use.bound for use in uses if use.bound > 0]
    return TableStatus(
        name=name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…",
        rows=sum(max(0, use.rows) for use in uses),
        bytes=sum(max(0, use.bytes) for use in uses),
        evicted=sum(max(0, use.dropped) for use in uses),
        max_rows=max_rows,
        full=max(shares, default=None),
    )
