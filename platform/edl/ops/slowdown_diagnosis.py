"""Why a job was slower than it might have been: the workers it had over time, and what was lost on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import dropwhile, pairwise

from edl.api.events import Warned
from edl.jobfile.disruptions import LossCounter, Losses
from edl.jobfile.published_status import Moment
from edl.ops.job_findings import Complaint
from edl.ops.job_view import JobSeen

ENOUGH = 0.9
"""Share of the wanted workers below which too few are worth a word."""
LONG_SECONDS = 60.0
"""Workers that have been awaited for a shorter time are no reason for anything."""


def slowed(job: JobSeen, called: str) -> Iterator[Complaint]:
    """What cost time so far; ``called`` is the job as the next command names it."""
    yield from _few_workers(job, called)
    yield from _not_applied(job, called)
    told = job.told
    yield from _losses(job.name, told.losses or LossCounter.of(told.events).losses, called)
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


def _losses(job: str, losses: Losses, called: str) -> Iterator[Complaint]:
    """What was lost, over the job's whole life."""
    for what, by_reason in (
        ("workers", losses.workers),
        ("parameter servers", losses.ps),
        ("the master", losses.master),
    ):
        if by_reason:
            told = ", ".join(f"{count} x {reason}" for reason, count in sorted(by_reason.items()))
            yield Complaint(job, f"{what} lost: {told}", f"`edl events {called}` shows when.")
    if losses.rollbacks:
        text = (
            f"rolled back {losses.rollbacks} times, {losses.records_rolled_back:,} records again: "
            f"{losses.rollback_reason}"
        )
        yield Complaint(job, text, "More frequent checkpoints (checkpoint.every_steps) make that cheaper.")
    if losses.records_returned:
        yield Complaint(
            job,
            f"{losses.records_returned:,} records went back to the queue; {losses.records_leased_again:,} of them were "
            "leased again since",
        )
