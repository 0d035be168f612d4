"""Why a job was slower than it might have been: the workers it had over time, and what was lost on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from edl.kube.complaint import Complaint
from edl.kube.jobs import JobSeen
from edl.spec.event import Event, RecordsReturned, RoleEnded, RolledBack
from edl.spec.publication import Moment

ENOUGH = 0.9
"""Share of the wanted workers below which too few are worth a word."""
_PLANNED = ("Completed", "Deleted")


def slowed(job: JobSeen) -> Iterator[Complaint]:
    """What cost time so far."""
    yield from _few_workers(job)
    yield from _losses(job.name, job.told.events)


def _few_workers(job: JobSeen) -> Iterator[Complaint]:
    """Fewer workers than were wanted, on average."""
    moments, status = job.told.timeline, job.status
    if status is None or len(moments) < 2:
        return
    wanted, had = status.workers_wanted, average_workers(moments)
    if wanted and had < ENOUGH * wanted:
        waiting = sum(moment.pending > 0 for moment in moments) / len(moments)
        text = f"{had:.1f} workers on average of {wanted} that were wanted"
        more = f"; in {waiting:.0%} of the time some waited for room" if waiting >= 0.05 else ""
        yield Complaint(job.name, text + more, f"`edl status {job.name}` draws the workers over time.")


def average_workers(moments: Sequence[Moment]) -> float:
    """Workers at work on average, each count weighed with how long it held."""
    spans = [(after.time - before.time, before.workers) for before, after in pairwise(moments)]
    whole = sum(span for span, _ in spans)
    return sum(span * workers for span, workers in spans) / whole if whole > 0 else float(moments[-1].workers)


def _losses(job: str, events: Sequence[Event]) -> Iterator[Complaint]:
    """What the newest events tell of losses; older ones are forgotten."""
    for role, what in (("worker", "workers"), ("ps", "parameter servers"), ("master", "the master")):
        ends = Counter(e.reason or "no reason known" for e in events if isinstance(e, RoleEnded) and e.role == role)
        lost = {reason: count for reason, count in ends.items() if reason not in _PLANNED}
        if lost:
            told = ", ".join(f"{count} x {reason}" for reason, count in sorted(lost.items()))
            yield Complaint(job, f"{what} lost: {told}", f"`edl events {job}` shows when.")
    repeated = sum(e.end - e.start for e in events if isinstance(e, RecordsReturned))
    back = [e for e in events if isinstance(e, RolledBack)]
    if back:
        records = sum(e.records for e in back)
        text = f"rolled back {len(back)} times, {records:,} records again: {back[-1].reason}"
        yield Complaint(job, text, "More frequent checkpoints (checkpoint.every_steps) make that cheaper.")
    if repeated:
        yield Complaint(job, f"{repeated:,} records went back to the queue and were leased again")
