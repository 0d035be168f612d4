"""Counts what a job has lost so far. Only the newest events are published, so losses are counted over all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Self

from edl.api.cluster_port import TerminationCause
from edl.api.run_events import JobEvent, RecordsRequeued, RequeuedRecordsLeased, RoleEnded, RoleLeaving, RollbackDone
from edl.api.status import DisruptionReport

# reasons of ends that are part of a normal run
_PLANNED_REASONS = ("Completed", "Deleted", "succeeded")
_EXTERNAL_CAUSES = {cause.value for cause in TerminationCause}


class DisruptionCounter:
    """Counts losses over the events of a job, in the order in which they happened."""

    def __init__(self) -> None:
        self._lost: dict[str, Counter[str]] = {role: Counter() for role in ("worker", "ps", "master")}
        self._told_to_leave: set[tuple[str, int]] = set()
        self._rollbacks, self._rolled_back, self._reason = 0, 0, ""
        self._returned, self._leased = 0, 0

    @classmethod
    def from_events(cls, events: Iterable[JobEvent]) -> Self:
        """A counter that has counted these events."""
        counter = cls()
        for event in events:
            counter.count_event(event)
        return counter

    def count_event(self, event: JobEvent) -> None:
        """Count one event. A role that the master itself told to exit is not a loss."""
        match event:
            case RoleLeaving() if event.cause not in _EXTERNAL_CAUSES:
                self._told_to_leave.add((event.role, event.index))
            case RoleEnded() if event.role in self._lost and event.reason not in _PLANNED_REASONS:
                if (event.role, event.index) not in self._told_to_leave:
                    # the text before the colon is the category; the rest differs from pod to pod
                    self._lost[event.role][event.reason.partition(": ")[0] or "no reason known"] += 1
            case RollbackDone():
                self._rollbacks += 1
                self._rolled_back += event.records
                self._reason = event.reason
            case RecordsRequeued():
                self._returned += event.end - event.start
            case RequeuedRecordsLeased():
                self._leased += event.end - event.start

    @property
    def report(self) -> DisruptionReport:
        """The totals so far."""
        return DisruptionReport(
            dict(self._lost["worker"]),
            dict(self._lost["ps"]),
            dict(self._lost["master"]),
            self._rollbacks,
            self._rolled_back,
            self._reason,
            self._returned,
            min(self._leased, self._returned),
        )
