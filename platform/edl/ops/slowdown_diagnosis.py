"""Why a job was slower than it might have been: the workers it had over time, and what was lost on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import dropwhile, pairwise

from edl.api.events import WarningRaised
from edl.jobfile.disruptions import DisruptionCounter, DisruptionReport
from edl.jobfile.published_status import TimelinePoint
from edl.ops.job_findings import JobFinding
from edl.ops.job_view import JobView

ENOUGH_WORKERS_SHARE = 0.9
"""Share of the wanted workers below which too few are worth a word."""
MIN_TIMELINE_SECONDS = 60.0
"""Workers that have been awaited for a shorter time are no reason for anything."""


def diagnose_slowdown(job: JobView, called: str) -> Iterator[JobFinding]:
    """What cost time so far; ``called`` is the job as the next command names it."""
    yield from _find_missing_workers(job, called)
    yield from _find_unapplied_steps(job, called)
    told = job.told
    yield from _find_losses(job.name, told.losses or DisruptionCounter.of(told.events).losses, called)
    for message in dict.fromkeys(event.message for event in job.told.events if isinstance(event, WarningRaised)):
        yield JobFinding(job.name, message)


def _find_unapplied_steps(job: JobView, called: str) -> Iterator[JobFinding]:
    """Steps done and pushes applied differ: the parameters are not what the records would have made of them."""
    steps = job.status.steps_not_applied if job.status is not None else 0
    if steps:
        text = f"{steps:,} steps differ between what workers reported as done and what parameter servers applied"
        remedy = (
            f"Something other than EDL's worker speaks to them with the job's token; `edl logs {called}` says when."
        )
        yield JobFinding(job.name, text, remedy)


def _find_missing_workers(job: JobView, called: str) -> Iterator[JobFinding]:
    """Fewer workers than were wanted, on average."""
    status, moments = job.status, list(dropwhile(lambda moment: not moment.workers, job.told.timeline))
    if status is None or len(moments) < 2 or moments[-1].time - moments[0].time < MIN_TIMELINE_SECONDS:
        return
    wanted, had = status.workers_wanted, average_workers(moments)
    if wanted and had < ENOUGH_WORKERS_SHARE * wanted:
        waiting = sum(moment.pending > 0 for moment in moments) / len(moments)
        text = f"{had:.1f} workers on average of {wanted} that were wanted"
        more = f"; in {waiting:.0%} of the time some waited for room" if waiting >= 0.05 else ""
        yield JobFinding(job.name, text + more, f"`edl status {called}` draws the workers over time.")


def average_workers(moments: Sequence[TimelinePoint]) -> float:
    """Workers at work on average, each count weighed with how long it held."""
    spans = [(after.time - before.time, before.workers) for before, after in pairwise(moments)]
    whole = sum(span for span, _ in spans)
    return sum(span * workers for span, workers in spans) / whole if whole > 0 else float(moments[-1].workers)


def _find_losses(job: str, losses: DisruptionReport, called: str) -> Iterator[JobFinding]:
    """What was lost, over the job's whole life."""
    for what, by_reason in (
        ("workers", losses.workers),
        ("parameter servers", losses.ps),
        ("the master", losses.master),
    ):
        if by_reason:
            told = ", ".join(f"{count} x {reason}" for reason, count in sorted(by_reason.items()))
            yield JobFinding(job, f"{what} lost: {told}", f"`edl events {called}` shows when.")
    if losses.rollbacks:
        text = (
            f"rolled back {losses.rollbacks} times, {losses.records_rolled_back:,} records again: "
            f"{losses.rollback_reason}"
        )
        yield JobFinding(job, text, "More frequent checkpoints (checkpoint.every_steps) make that cheaper.")
    if losses.records_returned:
        yield JobFinding(
            job,
            f"{losses.records_returned:,} records went back to the queue; {losses.records_leased_again:,} of them were "
            "leased again since",
        )
