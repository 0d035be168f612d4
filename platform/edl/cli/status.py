"""``edl status``: the current state of a job, once or as a live view."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import typer

from edl.api.run_events import EvaluationEnded
from edl.api.status import ParametersStatus, RoleStatus, Status, TableStatus, TimelinePoint
from edl.cli.job_choice import JobLookup, LocalOption, job_lookup
from edl.cli.list import job_json
from edl.cli.options import ContextOption, JobArgument, NamespaceOption
from edl.core.short_list import format_short_list
from edl.ops.followup_command import command_arguments
from edl.ops.job_view import JobView
from edl.ops.pod_problems import parse_scheduler_message
from edl.reporting import ps_statistics_text
from edl.reporting.event_text import (
    describe_event,
    describe_world,
    format_block,
    format_earlier_evaluations,
    format_local_time,
    format_measurements,
    format_worker_count,
    status_headline,
    summary_heading,
    summary_rows,
)
from edl.reporting.terminal_text import to_single_line
from edl.reporting.text_table import align_columns
from edl.reporting.unit_formats import format_age, format_bytes, format_duration, format_percent

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_WAITING_CELL = "░"
MAX_HEIGHT = 6


def plot_workers(moments: Sequence[TimelinePoint], wanted: int, width: int, now: float | None = None) -> list[str]:
    """A plot of the number of workers over time, in lines of at most ``width`` characters.

    It is empty for fewer than two points.

    Args:
        moments: points of the timeline, oldest first. Each value holds until the next point.
        wanted: the number of workers wanted now. The plot's axis reaches at least this value.
        width: the width of the terminal.
        now: unix seconds until which the last value holds; by default the time of its point.
    """
    if len(moments) < 2:
        return []
    begin, end = moments[0].time, max(now or 0.0, moments[-1].time)
    top = max(wanted, *(moment.workers + moment.pending for moment in moments), 1)
    label = len(str(top)) + 2
    columns = max(8, min(width - label, 72))
    running = column_averages(moments, begin, end, columns, lambda moment: moment.workers)
    requested = column_averages(moments, begin, end, columns, lambda moment: moment.workers + moment.pending)
    height = min(top, MAX_HEIGHT)
    lines = [
        "".join(
            _plot_cell(height * run / top - row, height * ask / top - row)
            for run, ask in zip(running, requested, strict=True)
        )
        for row in reversed(range(height))
    ]
    marks = [str(top), *[""] * (height - 1)]
    drawn = [f"{mark:>{label - 2}} ┤{line}".rstrip() for mark, line in zip(marks, lines, strict=True)]
    return [*drawn, f"{0:>{label - 2}} └{'─' * columns}", f"{'':{label}}{_time_axis(end - begin, columns)}"]


def column_averages(
    moments: Sequence[TimelinePoint], begin: float, end: float, columns: int, value: Callable[[TimelinePoint], int]
) -> list[float]:
    """The value's average over the time span of each column."""
    # `or`: all points of a job may have the same time, and a span of 0 would divide by zero.
    step = (end - begin) / columns or 1.0
    sums = [0.0] * columns
    borders = [*(moment.time for moment in moments[1:]), end]
    for moment, until in zip(moments, borders, strict=True):
        sample_time = moment.time
        column = min(columns - 1, int((sample_time - begin) / step))
        while sample_time < until and column < columns:
            border = begin + (column + 1) * step if column < columns - 1 else end
            sums[column] += (min(until, border) - sample_time) * value(moment)
            sample_time, column = max(sample_time, min(until, border)), column + 1
    return [each / step for each in sums]


def _plot_cell(running: float, requested: float) -> str:
    """The character of one cell; both arguments are the filled share, where 1 is the whole cell."""
    if running >= 1:
        return "█"
    if running > 1 / 16:
        return _EIGHTHS[min(8, max(1, round(8 * running)))]
    return _WAITING_CELL if requested >= 0.5 else " "


def _time_axis(seconds: float, columns: int) -> str:
    """The line below the plot: how long ago it begins, and ``now`` at its end."""
    left = f"{format_duration(seconds)} ago"
    return f"{left}{'now':>{max(4, columns - len(left))}}"


RECENT_EVENTS = 5
_EVALUATIONS = 6
_ROLES_SHOWN = 24
# Age of a status from which the output says that the master is silent.
_STALE_STATUS_SECONDS = 30.0
# Shorter waits of an update for gradients are not shown.
_LONG_WAIT_SECONDS = 1.0


def status_lines(job: JobView, now: float, width: int) -> list[str]:
    """The lines about a job at ``now``.

    Bars and plots fit into ``width`` characters. Paths and reasons may be longer.
    """
    # Single lines: a reason may contain line breaks and control characters from a pod's message.
    return [to_single_line(line) for line in [_title_line(job, now), *_body_lines(job, now, width)]]


def _title_line(job: JobView, now: float) -> str:
    starved = " (starved)" if job.status and job.status.starved and not job.has_ended else ""
    kind = {"evaluate": ", evaluation", "predict": ", prediction"}.get(job.task, "")
    return f"{job.name}  {job.phase}{starved}{kind}  {job.location_text} {format_age(now - job.created_at)} ago"


def _body_lines(job: JobView, now: float, width: int) -> Iterator[str]:
    status = job.status
    if job.unreadable_reason:
        yield f"The master's status cannot be read: {job.unreadable_reason}"
        return
    if status is None:
        yield "The master has not reported yet."
        return
    evaluations = [event for event in job.published_status.events if isinstance(event, EvaluationEnded)]
    yield from _progress_lines(status, width, evaluations[-_EVALUATIONS:])
    if status.parameters is not None and not job.has_ended:
        yield from _push_lines(status.parameters)
    if status.world is not None and not job.has_ended:
        yield describe_world(status.world)[:width]
        if status.world.changed and status.world.round > 1:
            yield f"it began because {status.world.changed}"[:width]
    yield from _desired_lines(job)
    plot_lines = plot_workers(
        job.published_status.timeline, status.workers_wanted, width, None if job.has_ended else now
    )
    if plot_lines:
        yield from ("", "workers", *plot_lines)
    if not job.has_ended:
        yield from _role_lines(status)
        yield from _table_lines(status.parameters)
    yield from _event_lines(job)
    if job.published_status.summary is not None and job.has_ended:
        yield ""
        yield from format_block(
            summary_heading(job.phase, job.published_status.summary), summary_rows(job.published_status.summary)
        )
    if not job.has_ended and now - status.updated > _STALE_STATUS_SECONDS:
        yield f"The master reported this {format_age(now - status.updated)} ago: {job.master_silence or 'no answer'}."


def _progress_lines(status: Status, width: int, evaluations: Sequence[EvaluationEnded]) -> Iterator[str]:
    total, done = status.records_total, status.records_done
    percent = 100 * done // total if total else 0
    epoch = f", epoch {status.epoch} of {status.epochs}" if status.epochs > 1 and status.epoch else ""
    text = f" {percent} %  {done:,} of {total:,} records{epoch}"
    size = max(10, min(60, width - len(text)))
    full = size * done // total if total else 0
    yield f"{'█' * full}{'░' * (size - full)}{text}"
    yield "   ".join([f"step {status.step:,}", *format_measurements(status)])
    if earlier := format_earlier_evaluations(evaluations):
        yield earlier[:width]
    yield f"run {status.run}"
    if status.reason and status.phase not in ("Done",):
        yield status.reason.splitlines()[0]


def _desired_lines(job: JobView) -> Iterator[str]:
    status, wanted = job.status, job.desired_state
    assert status is not None
    if wanted.stop and not job.has_ended:
        yield "A stop was requested."
    if not job.has_ended:
        starting = f" and {job.starting_workers} starting" if job.starting_workers else ""
        yield (
            f"{format_worker_count(job.ready_workers)}{starting} of {status.workers_wanted} wanted, at least"
            f" {status.workers_min}"
        )


def _push_lines(parameters_status: ParametersStatus) -> Iterator[str]:
    """Statistics of pushes, and the update that has been waiting for gradients, if one has."""
    yield from (f"{name} {text}" for name, text in ps_statistics_text.push_rows(parameters_status))
    waits = parameters_status.round
    if waits is not None and waits.seconds >= _LONG_WAIT_SECONDS:
        workers = format_short_list([f"worker-{index}" for index in waits.awaited])
        come = f"{waits.arrived} of {waits.wanted} gradients"
        yield f"an update with {come} has been waiting for {workers} for {format_duration(waits.seconds)}"


def _table_lines(parameters_status: ParametersStatus | None) -> Iterator[str]:
    if parameters_status is None or not parameters_status.tables:
        return
    yield ""
    head = ["TABLE", "ROWS", "MEMORY", "EVICTED", "OF ps.max_rows"]
    yield from align_columns([head, *map(_table_row, parameters_status.tables)], right=(1, 2, 3, 4))
    if parameters_status.tables_total > len(parameters_status.tables):
        yield f"and {parameters_status.tables_total - len(parameters_status.tables)} more"


def _table_row(table: TableStatus) -> list[str]:
    share = "-" if table.full is None else format_percent(table.full)
    return [table.name, f"{table.rows:,}", format_bytes(table.bytes), f"{table.evicted:,}", share]


def _role_lines(status: Status) -> Iterator[str]:
    members = [*(("ps", each) for each in status.ps), *(("worker", each) for each in status.workers)]
    shown = members[:_ROLES_SHOWN]
    if shown:
        yield ""
        # Processes of this machine have no node.
        head = ["POD", "STATE", "SAMPLES/S", "PID" if any(each.pid for _, each in members) else "NODE", "REASON"]
        table = [head, *(_role_row(name, each) for name, each in shown)]
        # Without a measured speed, as before the first step, the column would be empty.
        if not any(each.samples_per_second for _, each in shown):
            table = [[*row[:2], *row[3:]] for row in table]
        yield from align_columns(table, right=(2,) if len(table[0]) == len(head) else ())
    if len(members) > len(shown):
        yield f"and {len(members) - len(shown)} more"
    # Many pods may have the same reason, so each reason is shown once with all its pods.
    for text in dict.fromkeys(status.refusals.values()):
        yield f"refused: {format_short_list([who for who, said in status.refusals.items() if said == text])}: {text}"


def _role_row(name: str, member: RoleStatus) -> list[str]:
    reason = (
        parse_scheduler_message(member.reason).text if member.state == "pending" and member.reason else member.reason
    )
    pace = f"{member.samples_per_second:,.0f}" if member.samples_per_second else "-"
    return [f"{name}-{member.index}", member.state, pace, member.node or str(member.pid or "-"), reason]


def _event_lines(job: JobView) -> Iterator[str]:
    newest = job.published_status.events[-RECENT_EVENTS:]
    if newest:
        yield ""
    for event in newest:
        yield f"{format_local_time(event.time)}  {describe_event(event)}"


def suggest_next_step(job: JobView, job_arguments: str) -> str:
    """The command to run next. ``job_arguments`` are the arguments that select the job."""
    if job.is_local:
        return _suggest_local_step(job, job_arguments)
    if job.phase == "Done":
        return f"`edl logs {job_arguments}` shows its output; `edl delete {job_arguments}` removes it."
    if job.has_ended:
        run = f" {job.status.run}" if job.status else ""
        return f"`edl why {job_arguments}` explains it; continue with: edl submit JOB.yaml --resume{run}"
    waiting = job.status is None or job.status.starved or job.running_workers < job.status.workers_wanted
    return (
        f"`edl why {job_arguments}` shows what it waits for."
        if waiting
        else f"Follow it with: edl status {job_arguments} --watch"
    )


def _suggest_local_step(job: JobView, job_arguments: str) -> str:
    if not job.has_ended:
        return f"Follow it with: edl status {job_arguments} --watch"
    if job.phase == "Done":
        shows = f"`edl logs {job_arguments}` shows its output; " if job.has_logs else ""
        return f"{shows}`edl clean {job.name}/{job.uid}` removes it."
    beginning = f"`edl logs {job_arguments}` shows its output; continue" if job.has_logs else "Continue"
    return f"{beginning} with: edl run JOB.yaml --resume {job.uid}"


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def status(
    job: JobArgument,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Update until the job has ended.")] = False,
    local: LocalOption = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --watch one line per change.")] = False,
) -> None:
    """Show a job on a cluster, or a run of this machine (JOB or JOB/RUN): phase, records, pace, its pods, its workers.

    If both exist, the job on the cluster is shown. --local selects runs of this machine; -n and --context a cluster.
    """
    look = job_lookup(job, local=local, context=context, namespace=namespace)
    if watch:
        _watch_job(look, command_arguments(job, context, namespace), as_json=as_json)
        return
    job_view = look()
    if as_json:
        print(json.dumps(job_json(job_view)))
        return
    for line in status_lines(job_view, time.time(), shutil.get_terminal_size().columns):
        print(line)
    print(f"\n{suggest_next_step(job_view, command_arguments(job, context, namespace))}")


def _watch_job(look: JobLookup, name: str, *, as_json: bool) -> None:
    """Show the job until it has ended or is deleted."""
    # A live view redraws the screen, so a pipe gets lines instead.
    if as_json or not sys.stdout.isatty():
        _watch_lines(look, as_json=as_json)
    else:
        _watch_live(look, name)


def _watch_live(look: JobLookup, name: str) -> None:
    from rich.live import Live
    from rich.text import Text

    from edl.ops.job_following import poll_repeatedly
    from edl.reporting.rich_console import make_console

    on = make_console()
    with Live(console=on, auto_refresh=False, vertical_overflow="crop") as live:
        for job in poll_repeatedly(look):
            lines = status_lines(job, time.time(), on.width)
            live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)
            if job.has_ended:
                break
    print(suggest_next_step(job, name))


def _watch_lines(look: JobLookup, *, as_json: bool) -> None:
    from edl.ops.job_following import poll_repeatedly

    last_shown: object = None
    for job in poll_repeatedly(look):
        # Polls without a change print nothing.
        known = (job.phase, job.status)
        if known != last_shown:
            text = status_headline(job.status) if job.status else job.phase
            print(json.dumps(job_json(job)) if as_json else f"{format_local_time(time.time())}  {text}", flush=True)
            last_shown = known
        if job.has_ended:
            return
