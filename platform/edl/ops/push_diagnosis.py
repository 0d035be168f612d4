"""Why updates wait or are small, why pushes are for nothing, which tables are nearly full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edl.api.events import RoleEnded, RoleStarted
from edl.api.status import ParametersStatus, RoundStatus
from edl.ops.job_findings import JobFinding, format_short_list
from edl.ops.job_view import JobView
from edl.reporting.ps_statistics_text import format_bytes, format_percent

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


def diagnose_pushes(job: JobView, called: str) -> Iterator[JobFinding]:
    """What holds updates up or will; ``called`` is the job as the next command names it."""
    told = job.status.parameters if job.status else None
    if told is None:
        return
    if not job.ended:
        yield from list(_find_waiting_update(job, told, called)) or _find_small_updates(job, told)
        yield from _find_full_tables(job, told)
    yield from _find_refused_pushes(job, told)


def _find_waiting_update(job: JobView, told: ParametersStatus, called: str) -> Iterator[JobFinding]:
    """An update that has not got its gradients for long."""
    now = told.round
    if now is None or now.seconds < LONG_UPDATE_SECONDS or not now.awaited:
        return
    missing = max(1, min(now.wanted - now.arrived, now.awaited_total))  # a worker that was refused once is waited for
    gradients = "1 gradient" if missing == 1 else f"{missing} gradients"
    text = (
        f"an update has been waiting for {gradients} for {now.seconds:.0f} s (sync, {now.arrived} of {now.wanted}"
        f" arrived); awaited: {_awaited_workers(now)}{_missing_workers_text(job, now)}"
    )
    remedy = f"`edl logs {called} -r worker` shows what they do. A lower strategy.grads_to_wait leaves slow ones out."
    yield JobFinding(job.name, text, remedy)


def _find_small_updates(job: JobView, told: ParametersStatus) -> Iterator[JobFinding]:
    """Updates of fewer gradients than the job wants, because workers are not there."""
    wanted, running = told.strategy.grads_to_wait, job.running
    if told.strategy.mode == "sync" and 0 < running < wanted:
        text = (
            f"updates are of {running} of {wanted} gradients (sync): fewer workers run than strategy.grads_to_wait"
            f"{_missing_workers_text(job, None)}"
        )
        yield JobFinding(job.name, text, "Nothing need be done: those that join are waited for from their first push.")


def _find_full_tables(job: JobView, told: ParametersStatus) -> Iterator[JobFinding]:
    """Tables that are close to their bound."""
    for table in told.tables:
        if table.full is not None and table.full >= FULL_TABLE_SHARE and table.max_rows:
            text = (
                f"table {table.name} has {format_percent(table.full)} of ps.max_rows ({table.rows:,} rows of "
                f"{table.max_rows:,}, {format_bytes(table.bytes)}); a push beyond that fails the job"
            )
            yield JobFinding(job.name, text, _FULL_TABLE_HINT)


def _find_refused_pushes(job: JobView, told: ParametersStatus) -> Iterator[JobFinding]:
    """Work that was thrown away because the values it was computed at were too old."""
    share = told.refused_share
    if share < HIGH_REFUSED_SHARE or told.pushes + told.refused < MIN_PUSHES:
        return
    strategy = told.strategy
    text = (
        f"{format_percent(share)} of pushes were rejected as too old and computed again (sync, {strategy.grads_to_wait}"
        f" gradients an update, tolerance {strategy.version_tolerance})"
    )
    remedy = (
        "Lower workers.max or raise strategy.version_tolerance; or raise strategy.grads_to_wait, so that an update "
        "takes in what slow workers push."
    )
    yield JobFinding(job.name, text, remedy)


def _awaited_workers(now: RoundStatus) -> str:
    more = now.awaited_total - len(now.awaited)
    if more:
        return f"{', '.join(_worker_labels(now.awaited))} and {more} more"
    return format_short_list(_worker_labels(now.awaited), _MAX_NAMED_WORKERS)


def _missing_workers_text(job: JobView, now: RoundStatus | None) -> str:
    """``; worker-1 is gone, not waited for``; empty when everybody is there."""
    awaited = set(now.awaited) if now else set()
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
    for event in job.told.events:
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
