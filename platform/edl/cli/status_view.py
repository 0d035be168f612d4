"""A job on a cluster as lines of text: where it is, what it has, what it waits for; drawn once or again and again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edl.api.events import EvaluationEnded
from edl.api.status import ParametersStatus, RoleStatus, Status, TableStatus
from edl.ops.job_findings import listed_briefly
from edl.ops.job_view import JobSeen
from edl.ops.pod_problems import unscheduled
from edl.reporting import ps_statistics_text
from edl.reporting.event_text import clock, earlier_evaluations, measurements, sentence, workers
from edl.reporting.summary_text import block, heading, rows
from edl.reporting.terminal_text import one_line
from edl.reporting.text_table import age, aligned
from edl.reporting.worker_plot import plot

RECENT_EVENTS = 5
_EVALUATIONS = 6
_ROLES_SHOWN = 24
_STALE_SECONDS = 30.0
_WAITING_SECONDS = 1.0


def view(job: JobSeen, now: float, width: int) -> list[str]:
    """The lines of a job at ``now``; the drawn ones fit ``width`` characters, paths and reasons may be longer."""
    return [one_line(line) for line in [_title(job, now), *_body(job, now, width)]]


def _title(job: JobSeen, now: float) -> str:
    starved = " (starved)" if job.status and job.status.starved and not job.ended else ""
    return f"{job.name}  {job.phase}{starved}  {job.place} {age(now - job.created)} ago"


def _body(job: JobSeen, now: float, width: int) -> Iterator[str]:
    status = job.status
    if job.unreadable:
        yield f"What the master says cannot be read: {job.unreadable}"
        return
    if status is None:
        yield "The master has not said anything yet."
        return
    ended = [event for event in job.told.events if isinstance(event, EvaluationEnded)]
    yield from _progress(status, width, ended[-_EVALUATIONS:])
    if status.parameters is not None and not job.ended:
        yield from _exchange(status.parameters)
    yield from _wishes(job)
    drawn = plot(job.told.timeline, status.workers_wanted, width, None if job.ended else now)
    if drawn:
        yield from ("", "workers", *drawn)
    if not job.ended:
        yield from _roles(status)
        yield from _tables(status.parameters)
    yield from _events(job)
    if job.told.summary is not None and job.ended:
        yield ""
        yield from block(heading(job.phase, job.told.summary), rows(job.told.summary))
    if not job.ended and now - status.updated > _STALE_SECONDS:
        yield f"The master said this {age(now - status.updated)} ago: {job.silence or 'it may be away'}."


def _progress(status: Status, width: int, evaluations: Sequence[EvaluationEnded]) -> Iterator[str]:
    total, done = status.records_total, status.records_done
    share = 100 * done // total if total else 0
    epoch = f", epoch {status.epoch} of {status.epochs}" if status.epochs > 1 and status.epoch else ""
    text = f" {share} %  {done:,} of {total:,} records{epoch}"
    size = max(10, min(60, width - len(text)))
    full = size * done // total if total else 0
    yield f"{'█' * full}{'░' * (size - full)}{text}"
    yield "   ".join([f"step {status.step:,}", *measurements(status)])
    if earlier := earlier_evaluations(evaluations):
        yield earlier[:width]
    yield f"run {status.run}"
    if status.reason and status.phase not in ("Done",):
        yield status.reason.splitlines()[0]


def _wishes(job: JobSeen) -> Iterator[str]:
    status, wanted = job.status, job.desired
    assert status is not None
    if wanted.stop and not job.ended:
        yield "It was asked to stop."
    if not job.ended:
        starting = f" and {job.starting} starting" if job.starting else ""
        yield f"{workers(job.working)}{starting} of {status.workers_wanted} wanted, at least {status.workers_min}"


def _exchange(told: ParametersStatus) -> Iterator[str]:
    """How pushes become updates, and an update that waits for more of them."""
    yield from (f"{name} {text}" for name, text in ps_statistics_text.rows(told))
    waits = told.round
    if waits is not None and waits.seconds >= _WAITING_SECONDS:
        who = listed_briefly([f"worker-{index}" for index in waits.awaited])
        come = f"{waits.arrived} of {waits.wanted} gradients"
        yield f"an update with {come} has been waiting for {who} for {waits.seconds:.0f} s"


def _tables(told: ParametersStatus | None) -> Iterator[str]:
    if told is None or not told.tables:
        return
    yield ""
    head = ["TABLE", "ROWS", "MEMORY", "EVICTED", "OF ps.max_rows"]
    yield from aligned([head, *map(_table, told.tables)], right=(1, 2, 3, 4))
    if told.tables_total > len(told.tables):
        yield f"and {told.tables_total - len(told.tables)} more"


def _table(table: TableStatus) -> list[str]:
    share = "-" if table.full is None else ps_statistics_text.percent(table.full)
    return [table.name, f"{table.rows:,}", ps_statistics_text.size(table.bytes), f"{table.evicted:,}", share]


def _roles(status: Status) -> Iterator[str]:
    members = [*(("ps", each) for each in status.ps), *(("worker", each) for each in status.workers)]
    shown = members[:_ROLES_SHOWN]
    if shown:
        yield ""
        head = ["POD", "STATE", "SAMPLES/S", "NODE", "WHY"]
        table = [head, *(_role(name, each) for name, each in shown)]
        if not any(each.samples_per_second for _, each in shown):
            table = [[*row[:2], *row[3:]] for row in table]
        yield from aligned(table, right=(2,) if len(table[0]) == len(head) else ())
    if len(members) > len(shown):
        yield f"and {len(members) - len(shown)} more"
    for text in dict.fromkeys(status.refusals.values()):
        yield f"refused: {listed_briefly([who for who, said in status.refusals.items() if said == text])}: {text}"


def _role(name: str, member: RoleStatus) -> list[str]:
    why = unscheduled(member.reason).text if member.state == "pending" and member.reason else member.reason
    pace = f"{member.samples_per_second:,.0f}" if member.samples_per_second else "-"
    return [f"{name}-{member.index}", member.state, pace, member.node or "-", why]


def _events(job: JobSeen) -> Iterator[str]:
    newest = job.told.events[-RECENT_EVENTS:]
    if newest:
        yield ""
    for event in newest:
        yield f"{clock(event.time)}  {sentence(event)}"


def next_step(job: JobSeen, called: str) -> str:
    """What to call next; ``called`` is the job as commands name it."""
    if job.here:
        return _next_step_here(job, called)
    if job.phase == "Done":
        return f"`edl logs {called}` shows what it printed; `edl delete {called}` removes it."
    if job.ended:
        run = f" {job.status.run}" if job.status else ""
        return f"`edl why {called}` says more; go on with: edl submit JOB.yaml --resume{run}"
    waiting = job.status is None or job.status.starved or job.running < job.status.workers_wanted
    return f"`edl why {called}` says what it waits for." if waiting else f"Follow it with: edl status {called} --watch"


def _next_step_here(job: JobSeen, called: str) -> str:
    if not job.ended:
        return f"Follow it with: edl status {called} --watch"
    if job.phase == "Done":
        return f"`edl logs {called}` shows what its roles printed; `edl clean {job.name}/{job.uid}` removes it."
    return f"`edl logs {called}` says more; go on with: edl run JOB.yaml --resume {job.uid}"
