"""Why updates wait or are small, why pushes are for nothing, which tables are nearly full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import dropwhile, pairwise

from edl.api.events import RoleEnded, RoleStarted, WarningRaised
from edl.api.status import DisruptionReport, ParametersStatus, RoundStatus, TimelinePoint
from edl.jobfile.disruptions import DisruptionCounter
from edl.ops.job_findings import JobFinding, format_short_list
from edl.ops.job_view import JobView
from edl.reporting.unit_formats import format_bytes, format_percent

LONG_UPDATE_SECONDS = 5.0
"""An update that waits for a shorter time waits for workers that compute."""
FULL_TABLE_SHARE = 0.9
"""Share of ps.max_rows from which a table is worth a word."""
HIGH_REFUSED_SHARE, MIN_PUSHES = 0.05, 20
"""Share of pushes that is worth a word when it is refused, and below how many pushes no share says anything."""
_MAX_NAMED_WORKERS = 4
_FULL_TABLE_HINT = (
    "Raise ps.max_rows, or let rows go that are not used any more (ps.evict_after_steps; lower it where it is set). "
    "`edl submit JOB.yaml --resume` goes on with what is trained."
)


def diagnose_pushes(job: JobView, command_target: str) -> Iterator[JobFinding]:
    """What holds updates up or will; ``command_target`` is the job as the next command names it."""
    parameters_status = job.status.parameters if job.status else None
    if parameters_status is None:
        return
    if not job.has_ended:
        yield from list(_find_waiting_update(job, parameters_status, command_target)) or _find_small_updates(
            job, parameters_status
        )
        yield from _find_full_tables(job, parameters_status)
    yield from _find_refused_pushes(job, parameters_status)


def _find_waiting_update(
    job: JobView, parameters_status: ParametersStatus, command_target: str
) -> Iterator[JobFinding]:
    """An update that has not got its gradients for long."""
    current_round = parameters_status.round
    if current_round is None or current_round.seconds < LONG_UPDATE_SECONDS or not current_round.awaited:
        return
    missing = max(
        1, min(current_round.wanted - current_round.arrived, current_round.awaited_total)
    )  # a worker that was refused once is waited for
    gradients = "1 gradient" if missing == 1 else f"{missing} gradients"
    text = (
        f"an update has been waiting for {gradients} for {current_round.seconds:.0f} s (sync, "
        f"{current_round.arrived} of {current_round.wanted}"
        f" arrived); awaited: {_awaited_workers(current_round)}{_missing_workers_text(job, current_round)}"
    )
    remedy = (
        f"`edl logs {command_target} -r worker` shows what they do. A lower "
        "strategy.grads_to_wait leaves slow ones out."
    )
    yield JobFinding(job.name, text, remedy)


def _find_small_updates(job: JobView, parameters_status: ParametersStatus) -> Iterator[JobFinding]:
    """Updates of fewer gradients than the job wants, because workers are not there."""
    wanted, running = parameters_status.strategy.grads_to_wait, job.running_workers
    if parameters_status.strategy.mode == "sync" and 0 < running < wanted:
        text = (
            f"updates are of {running} of {wanted} gradients (sync): fewer workers run than strategy.grads_to_wait"
            f"{_missing_workers_text(job, None)}"
        )
        yield JobFinding(job.name, text, "No action is needed: workers that join count from their first push.")


def _find_full_tables(job: JobView, parameters_status: ParametersStatus) -> Iterator[JobFinding]:
    """Tables that are close to their bound."""
    for table in parameters_status.tables:
        if table.full is not None and table.full >= FULL_TABLE_SHARE and table.max_rows:
            text = (
                f"table {table.name} has {format_percent(table.full)} of ps.max_rows ({table.rows:,} rows of "
                f"{table.max_rows:,}, {format_bytes(table.bytes)}); a push beyond that fails the job"
            )
            yield JobFinding(job.name, text, _FULL_TABLE_HINT)


def _find_refused_pushes(job: JobView, parameters_status: ParametersStatus) -> Iterator[JobFinding]:
    """Work that was thrown away because the values it was computed at were too old."""
    share = parameters_status.refused_share
    if share < HIGH_REFUSED_SHARE or parameters_status.pushes + parameters_status.refused < MIN_PUSHES:
        return
    strategy = parameters_status.strategy
    text = (
        f"{format_percent(share)} of pushes were rejected as too old and computed again (sync, {strategy.grads_to_wait}"
        f" gradients an update, tolerance {strategy.version_tolerance})"
    )
    remedy = (
        "Lower workers.max or raise strategy.version_tolerance; or raise strategy.grads_to_wait, so that an update "
        "takes in what slow workers push."
    )
    yield JobFinding(job.name, text, remedy)


def _awaited_workers(current_round: RoundStatus) -> str:
    more = current_round.awaited_total - len(current_round.awaited)
    if more:
        return f"{', '.join(_worker_labels(current_round.awaited))} and {more} more"
    return format_short_list(_worker_labels(current_round.awaited), _MAX_NAMED_WORKERS)


def _missing_workers_text(job: JobView, current_round: RoundStatus | None) -> str:
    """``; worker-1 is gone, not waited for``; empty when everybody is there."""
    awaited = set(current_round.awaited) if current_round else set()
    gone, away = _gone_workers(job) - awaited, _workers_in_state(job, "pending") - awaited
    if not gone | away:
        return ""
    parts = [_workers_text(gone, "is gone", "are gone"), _workers_text(away, "has no place", "have no place")]
    return f"; {' and '.join(part for part in parts if part)}, not waited for"


def _workers_text(workers: set[int], one: str, several: str) -> str:
    if not workers:
        return ""
    return (
        f"{format_short_list(_worker_labels(sorted(workers)), _MAX_NAMED_WORKERS)}"
        f" {one if len(workers) == 1 else several}"
    )


def _gone_workers(job: JobView) -> set[int]:
    """Workers that leave, or ended and that nobody has started anew, as far as events are kept."""
    ended: set[int] = set()
    for event in job.publication.events:
        if isinstance(event, RoleEnded) and event.role == "worker":
            ended.add(event.index)
        elif isinstance(event, RoleStarted) and event.role == "worker":
            ended.discard(event.index)
    return (ended - _workers_in_state(job)) | _workers_in_state(job, "leaving")


def _workers_in_state(job: JobView, state: str | None = None) -> set[int]:
    """The workers of the status that are in a state, or all."""
    workers = job.status.workers if job.status else ()
    return {worker.index for worker in workers if state in (None, worker.state)}


def _worker_labels(workers: Sequence[int]) -> list[str]:
    return [f"worker-{index}" for index in workers]


# --------------------------------------------------------------------------------------------------
# Why a job was slower than it might have been: the workers it had over time, and what was lost on the way.


ENOUGH_WORKERS_SHARE = 0.9
"""Share of the wanted workers below which too few are worth a word."""
MIN_TIMELINE_SECONDS = 60.0
"""Workers that have been awaited for a shorter time are no reason for anything."""


def diagnose_slowdown(job: JobView, command_target: str) -> Iterator[JobFinding]:
    """What cost time so far; ``command_target`` is the job as the next command names it."""
    yield from _find_missing_workers(job, command_target)
    yield from _find_unapplied_steps(job, command_target)
    told = job.publication
    yield from _find_losses(job.name, told.losses or DisruptionCounter.from_events(told.events).report, command_target)
    for message in dict.fromkeys(event.message for event in job.publication.events if isinstance(event, WarningRaised)):
        yield JobFinding(job.name, message)


def _find_unapplied_steps(job: JobView, command_target: str) -> Iterator[JobFinding]:
    """Steps done and pushes applied differ: the parameters are not what the records would have made of them."""
    steps = job.status.steps_not_applied if job.status is not None else 0
    if steps:
        text = f"{steps:,} steps differ between what workers reported as done and what parameter servers applied"
        remedy = (
            "Something other than EDL's workers uses the job's token to call them; `edl logs "
            f"{command_target}` says when."
        )
        yield JobFinding(job.name, text, remedy)


def _find_missing_workers(job: JobView, command_target: str) -> Iterator[JobFinding]:
    """Fewer workers than were wanted, on average."""
    status, moments = job.status, list(dropwhile(lambda moment: not moment.workers, job.publication.timeline))
    if status is None or len(moments) < 2 or moments[-1].time - moments[0].time < MIN_TIMELINE_SECONDS:
        return
    wanted, had = status.workers_wanted, average_workers(moments)
    if wanted and had < ENOUGH_WORKERS_SHARE * wanted:
        waiting = sum(moment.pending > 0 for moment in moments) / len(moments)
        text = f"{had:.1f} workers on average, of {wanted} wanted"
        more = f"; in {waiting:.0%} of the time some waited for free capacity" if waiting >= 0.05 else ""
        yield JobFinding(job.name, text + more, f"`edl status {command_target}` draws the workers over time.")


def average_workers(moments: Sequence[TimelinePoint]) -> float:
    """Workers at work on average, each count weighed with how long it held."""
    spans = [(after.time - before.time, before.workers) for before, after in pairwise(moments)]
    whole = sum(span for span, _ in spans)
    return sum(span * workers for span, workers in spans) / whole if whole > 0 else float(moments[-1].workers)


def _find_losses(job: str, losses: DisruptionReport, command_target: str) -> Iterator[JobFinding]:
    """What was lost, over the job's whole life."""
    for what, by_reason in (
        ("workers", losses.workers),
        ("parameter servers", losses.ps),
        ("the master", losses.master),
    ):
        if by_reason:
            told = ", ".join(f"{count} x {reason}" for reason, count in sorted(by_reason.items()))
            yield JobFinding(job, f"{what} lost: {told}", f"`edl events {command_target}` shows when.")
    if losses.rollbacks:
        text = (
            f"rolled back {losses.rollbacks} times, {losses.records_rolled_back:,} records again: "
            f"{losses.rollback_reason}"
        )
        yield JobFinding(job, text, "More frequent checkpoints (checkpoint.every_steps) reduce that loss.")
    if losses.records_returned:
        yield JobFinding(
            job,
            f"{losses.records_returned:,} records went back to the queue; {losses.records_leased_again:,} of them were "
            "leased again since",
        )
