"""Why a job was slower than it might have been: the workers it had over time, and what was lost on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import dropwhile, pairwise

from edl.core.cluster import Cause
from edl.kube.inspection.complaint import Complaint
from edl.kube.inspection.jobs import JobSeen
from edl.spec.event import Event, RecordsLeased, RecordsReturned, RoleEnded, RoleLeaving, RolledBack, Warned
from edl.spec.publication import Moment

ENOUGH = 0.9
"""Share of the wanted workers below which too few are worth a word."""
LONG_SECONDS = 60.0
"""Workers that have been awaited for a shorter time are no reason for anything."""
_PLANNED = ("Completed", "Deleted")
_CAUSES = {cause.value for cause in Cause}


def slowed(job: JobSeen, called: str) -> Iterator[Complaint]:
    """What cost time so far; ``called`` is the job as the next command names it."""
    yield from _few_workers(job, called)
    yield from _not_applied(job, called)
    yield from _losses(job.name, job.told.events, called)
    for message in dict.fromkeys(event.message for event in job.told.events if isinstance(event, Warned)):
        yield Complaint(job.name, message)


def _not_applied(job: JobSeen, called: str) -> Iterator[Complaint]:
    """Steps done and pushes applied differ: the parameters are not what the records would have made of them."""
    steps = job.status.steps_not_applied if job.status is not None else 0
    if steps:
        text = f"{steps:,} steps differ between what workers reported as done and what parameter servers applied"
        remedy = (
            f"Something other than EDL's worker speaks to them with the job's token; `edl logs {called}` says when."
        )
        yield Complaint(job.name, text, remedy)


def _few_workers(job: JobSeen, called: str) -> Iterator[Complaint]:
    """Fewer workers than were wanted, on average."""
    status, moments = job.status, list(dropwhile(lambda moment: not moment.workers, job.told.timeline))
    if status is None or len(moments) < 2 or moments[-1].time - moments[0].time < LONG_SECONDS:
        return
    wanted, had = status.workers_wanted, average_workers(moments)
    if wanted and had < ENOUGH * wanted:
        waiting = sum(moment.pending > 0 for moment in moments) / len(moments)
        text = f"{had:.1f} workers on average of {wanted} that were wanted"
        more = f"; in {waiting:.0%} of the time some waited for room" if waiting >= 0.05 else ""
        yield Complaint(job.name, text + more, f"`edl status {called}` draws the workers over time.")


def average_workers(moments: Sequence[Moment]) -> float:
    """Workers at work on average, each count weighed with how long it held."""
    spans = [(after.time - before.time, before.workers) for before, after in pairwise(moments)]
    whole = sum(span for span, _ in spans)
    return sum(span * workers for span, workers in spans) / whole if whole > 0 else float(moments[-1].workers)


def _losses(job: str, events: Sequence[Event], called: str) -> Iterator[Complaint]:
    """What the newest events tell of losses; older ones are forgotten."""
    for role, what in (("worker", "workers"), ("ps", "parameter servers"), ("master", "the master")):
        lost = Counter(end.reason.partition(": ")[0] or "no reason known" for end in _lost(events) if end.role == role)
        if lost:
            told = ", ".join(f"{count} x {reason}" for reason, count in sorted(lost.items()))
            yield Complaint(job, f"{what} lost: {told}", f"`edl events {called}` shows when.")
    returned, again = _records(events, RecordsReturned), _records(events, RecordsLeased)
    back = [e for e in events if isinstance(e, RolledBack)]
    if back:
        records = sum(e.records for e in back)
        text = f"rolled back {len(back)} times, {records:,} records again: {back[-1].reason}"
        yield Complaint(job, text, "More frequent checkpoints (checkpoint.every_steps) make that cheaper.")
    if returned:
        yield Complaint(
            job,
            f"{returned:,} records went back to the queue; {min(again, returned):,} of them were leased again since",
        )


def _records(events: Sequence[Event], kind: type[RecordsReturned] | type[RecordsLeased]) -> int:
    return sum(event.end - event.start for event in events if isinstance(event, kind))


def _lost(events: Sequence[Event]) -> Iterator[RoleEnded]:
    """Ends that nobody had planned; whom the master itself told to go is none of them."""
    dismissed: set[tuple[str, int]] = set()
    for event in events:
        if isinstance(event, RoleLeaving) and event.cause not in _CAUSES:
            dismissed.add((event.role, event.index))
        if not isinstance(event, RoleEnded) or event.reason in _PLANNED:
            continue
        if (event.role, event.index) not in dismissed:
            yield event
