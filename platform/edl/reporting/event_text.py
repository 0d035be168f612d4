"""The words for events and statuses, as people read them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from edl.api.run_events import (
    CallbackDecided,
    CheckpointSaved,
    EvaluationEnded,
    EvaluationStarted,
    JobEnded,
    JobEvent,
    LeaseRevoked,
    ModelExported,
    RangeQuarantined,
    RecordsRequeued,
    RequeuedRecordsLeased,
    RoleEnded,
    RoleLeaving,
    RoleRequested,
    RoleStarted,
    RollbackDone,
    RunStarted,
    StallBegan,
    StallEnded,
    WarningRaised,
    WorkerCountChanged,
    WorldChanged,
)
from edl.api.status import ParametersStatus, Status, Summary, WorldStatus
from edl.core.short_list import format_short_list
from edl.reporting import ps_statistics_text
from edl.reporting.terminal_text import to_single_line
from edl.reporting.unit_formats import format_duration

# --------------------------------------------------------------------------------------------------
# The summary of a run, as ``edl run`` and strategy Local print it at the end.


_WIDTH = 10
_TABLES = 4


def summary_heading(phase: str, summary: Summary) -> str:
    """How the run ended, in one line."""
    pace = f", {summary.samples_per_second:,.0f} samples/s" if summary.samples_per_second else ""
    done = f"{summary.records_done:,} of {summary.records_total:,} records"
    return f"{phase} after {format_duration(summary.seconds)}: {done}{pace}"


def summary_rows(summary: Summary, *, output: str | None = None) -> list[tuple[str, str]]:
    """The summary as names and values; ``output`` is the directory of predictions."""
    lines = [("records", _format_record_counts(summary))]
    if summary.updates_rolled_back:
        lines.append(("updates", f"{summary.updates_rolled_back:,} rolled back with a parameter server"))
    if summary.updates_skipped:
        skipped = _count_updates(summary.updates_skipped)
        lines.append(("skipped", f"{skipped}: the loss or a gradient was not finite (train.on_nan: skip)"))
    if summary.steps_not_applied:
        lines.append(("steps", f"{summary.steps_not_applied:,} differ between what was reported and what was applied"))
    if summary.steps_added:
        count = f"{summary.steps_added:,} {'step' if summary.steps_added == 1 else 'steps'}"
        lines.append(
            ("steps", f"{count} more than with full batches: records were tried alone after a worker was lost")
        )
    if summary.workers_lost:
        lines.append(("workers", f"{summary.workers_lost} lost"))
    if summary.parameters:
        lines += ps_statistics_text.push_rows(summary.parameters) + ps_statistics_text.table_rows(
            summary.parameters, _TABLES
        )
    if summary.metrics:
        lines.append(("evaluated", format_metrics(summary.metrics)))
    loading = summary.export_loading
    # Why Keras cannot load it is one of the warnings.
    if loading and loading.startswith("# ") and any(loading[2:] in text for text in summary.warnings):
        loading = None
    locations = (
        ("init from", summary.began_with),
        ("export", summary.export),
        ("load with", loading),
        ("output", output),
        ("logs", summary.logs),
    )
    lines += [("warning", to_single_line(text)) for text in summary.warnings]
    return [*lines, *((name, place) for name, place in locations if place)]


def format_block(title: str, values: Iterable[tuple[str, str]]) -> list[str]:
    """A title, and below it names and values, one per line."""
    return [title, *(to_single_line(f"  {name:<{_WIDTH}}{value}") for name, value in values)]


def format_metrics(values: Mapping[str, float | None]) -> str:
    """Metrics and their values, in one line."""
    return ", ".join(f"{to_single_line(name)} {format_metric(value)}" for name, value in values.items())


def format_metric(value: float | None) -> str:
    """The value of a metric; None is NaN or infinite."""
    return "not finite" if value is None else f"{value:.4g}"


def _count_updates(count: int) -> str:
    return "1 update" if count == 1 else f"{count:,} updates"


def _format_record_counts(summary: Summary) -> str:
    parts = [f"{summary.records_lost:,} lost", f"{summary.records_repeated:,} repeated"]
    parts.append(f"{summary.records_rolled_back:,} rolled back")
    if summary.records_skipped:
        parts.append(f"{summary.records_skipped:,} skipped")
    if summary.records_not_trained:
        parts.append(f"{summary.records_not_trained:,} not trained")
    return ", ".join(parts)


EXPORT_SOURCE = "export"
"""Source of the lease of an export, which is not a range of records."""
_LARGEST_OWN_EXIT_CODE = 128
"""Larger exit codes stand for signals, which the reason names."""
_NOT_READY_STATES = ("pending", "starting", "joining", "leaving")
"""States of workers that cannot work yet, or not any more."""
_MAX_TABLES = 8
"""Number of tables whose names are listed."""
_WORKING_PHASES = ("Training", "Predicting")
"""Phases in which rate and remaining time make sense."""


def describe_event(event: JobEvent) -> str:
    """An event in one line, without its time."""
    return to_single_line(_describe_event(event))


def describe_leased_again(events: Sequence[RequeuedRecordsLeased]) -> str:
    """Ranges that were leased again one after the other, in one line; `edl events` lists each."""
    if len(events) == 1:
        return describe_event(events[0])
    records = sum(event.end - event.start for event in events)
    workers = ", ".join(dict.fromkeys(_worker_or_nobody(event.worker) for event in events))
    files = list(dict.fromkeys(PurePosixPath(event.source).name for event in events))
    where = files[0] if len(files) == 1 else f"{len(files):,} files"
    return to_single_line(f"{records:,} records of {where} leased again in {len(events):,} ranges by {workers}")


def _describe_event(event: JobEvent) -> str:
    match event:
        case RunStarted():
            changed = f", changed: {'; '.join(event.changes)}" if event.changes else ""
            return f"run {event.run} {'continues' if event.resumed else 'starts'} in {event.run_dir}{changed}"
        case RoleRequested():
            return f"{format_role(event.role, event.index)} requested{_reason_suffix(event.reason)}"
        case RoleStarted():
            return f"{format_role(event.role, event.index)} started{_pid_suffix(event.pid)}"
        case RoleLeaving():
            cause_text = ", ".join(part for part in (event.cause, event.message) if part)
            return f"{format_role(event.role, event.index)} is terminating{_reason_suffix(cause_text)}"
        case RoleEnded():
            return f"{format_role(event.role, event.index)} ended{_pid_suffix(event.pid)}: {_describe_exit(event)}"
        case WorkerCountChanged():
            return f"{format_worker_count(event.max)} wanted, at least {event.min}"
        case WorldChanged():
            worker_text = format_worker_count(event.workers)
            return f"round {event.round}: {worker_text} from step {event.step:,}{_reason_suffix(event.reason)}"
        case StallBegan():
            return f"stalled{_reason_suffix(event.reason)}"
        case StallEnded():
            return f"continues after {format_duration(event.seconds)}{_reason_suffix(event.reason)}"
        case JobEnded():
            return f"job {event.phase.lower()}{_reason_suffix(event.reason.partition(chr(10))[0])}"
        case WarningRaised():
            return f"warning: {event.message}"
        case CallbackDecided():
            return f"step {event.step:,}: {event.decision}"
        case ModelExported():
            return f"model exported to {event.path}{_loading_suffix(event.loading or '')}"
    return _describe_record_event(event) or _describe_parameter_event(event) or event.kind.replace("_", " ")


def _describe_record_event(event: JobEvent) -> str | None:
    match event:
        case LeaseRevoked():
            return (
                f"lease on {_describe_range(event)} revoked from"
                f" {_worker_or_nobody(event.worker)}{_reason_suffix(event.reason)}"
            )
        case RecordsRequeued():
            what = "the export" if event.source == EXPORT_SOURCE else _describe_range(event)
            return f"{what} of {_worker_or_nobody(event.worker)} returned to the queue{_reason_suffix(event.reason)}"
        case RequeuedRecordsLeased():
            what = "the export" if event.source == EXPORT_SOURCE else _describe_range(event)
            return f"{what} leased again by {_worker_or_nobody(event.worker)}"
        case RangeQuarantined():
            return f"{_describe_range(event)} skipped{_reason_suffix(event.reason)}"
    return None


def _describe_parameter_event(event: JobEvent) -> str | None:
    match event:
        case EvaluationStarted():
            return f"evaluation of step {event.step:,} started"
        case EvaluationEnded():
            return f"evaluation of step {event.step:,}: {format_metrics(event.metrics) or 'done'}"
        case CheckpointSaved():
            waited = f"updates paused for at most {event.pause_seconds:.3f} s"
            return f"checkpoint {event.cut} at step {event.step:,} saved, {waited}"
        case RollbackDone():
            to = "the start" if event.to_cut is None else f"checkpoint {event.to_cut}"
            lost = f", {event.updates:,} updates lost" if event.updates else ""
            return f"rolled back to {to}: {event.records:,} records to repeat{lost}{_reason_suffix(event.reason)}"
    return None


def status_headline(status: Status) -> str:
    """The progress of the job, in one line."""
    share = 100 * status.records_done // status.records_total if status.records_total else 0
    waits_for = status.world.reason if status.world is not None and not status.world.running else ""
    doing = "waiting" if waits_for and status.phase in _WORKING_PHASES else status.phase.lower()
    parts = [f"{doing}: {status.records_done:,} of {status.records_total:,} records ({share} %)"]
    if status.epochs > 1 and status.epoch:
        parts.append(f"epoch {status.epoch}/{status.epochs}")
    parts += format_measurements(status)
    live = sum(worker.state not in _NOT_READY_STATES for worker in status.workers)
    parts.append(
        f"{live}/{len(status.workers)} workers ready" if live < len(status.workers) else format_worker_count(live)
    )
    if status.phase == "Starting" and not status.records_total and status.reason:
        # What master.prepare says, before there are records.
        return f"starting: {to_single_line(status.reason)}"
    if doing == "waiting":
        parts.append(f"no worker trains: {waits_for}")
    elif status.phase == "Exporting" and status.reason.startswith("master.finish"):
        parts.append(to_single_line(status.reason))
    return ", ".join(parts)


def format_measurements(status: Status) -> list[str]:
    """Loss, skipped updates, metrics of the newest evaluation, rate and remaining time, as far as known."""
    parts = [] if status.loss is None else [f"loss {status.loss:.4g}"]
    if status.updates_skipped:
        parts.append(f"{_count_updates(status.updates_skipped)} skipped")
    parts += [
        f"evaluated {to_single_line(name)} {format_metric(value)}"
        for name, value in status.metrics.items()
        if name != "loss"
    ]
    if status.samples_per_second and status.phase in _WORKING_PHASES:
        parts.append(f"{status.samples_per_second:,.0f} samples/s")
    if status.seconds_left is not None and status.phase in _WORKING_PHASES:
        parts.append(f"{format_duration(status.seconds_left)} left")
    return parts


def format_earlier_evaluations(evaluations: Sequence[EvaluationEnded]) -> str:
    """The evaluations before the newest one, newest first, in one line; empty if there are none."""
    parts = []
    for each in reversed(evaluations[:-1]):
        shown = {name: value for name, value in each.metrics.items() if name != "loss"} or each.metrics
        if shown:
            parts.append(f"step {each.step:,} {format_metrics(shown)}")
    return "earlier: " + "   ".join(parts) if parts else ""


def describe_world(world: WorldStatus) -> str:
    """The round, the worker of each rank, and what it waits for: ``round 4: worker-0, worker-2; worker-3 joins``."""
    ranks = [f"worker-{index}" if index >= 0 else "a worker" for index in world.ranks]
    named = format_short_list(ranks, len(ranks), hidden=world.size - len(ranks))
    members = f"round {world.round}: {named}" if world.round else "no round yet"
    if world.running:
        repairs = f"took one worker's variables {world.states_taken:,} times" if world.difference else ""
        return "; ".join(filter(None, (members, world.awaited, world.evaluation, world.reason, repairs)))
    return "; ".join(filter(None, (members, f"no worker trains: {world.reason}", world.awaited)))


def describe_served_tables(ps_status: ParametersStatus | None) -> str:
    """The embedding tables on the parameter servers, in one line; empty if there are none, or none is known yet."""
    if ps_status is None or not ps_status.tables:
        return ""
    tables = [to_single_line(table.name) for table in ps_status.tables]
    names = format_short_list(tables, _MAX_TABLES, hidden=ps_status.tables_total - len(tables))
    return f"{format_table_count(ps_status.tables_total)} served by the parameter servers: {names}"


def format_table_count(count: int) -> str:
    """A number of tables."""
    return "1 table" if count == 1 else f"{count} tables"


def format_local_time(unix_seconds: float) -> str:
    """The local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(unix_seconds))


def format_role(name: str, index: int) -> str:
    """A role and its index; master and supervisor have none."""
    return f"{name} {index}" if name in ("worker", "ps") else name


def format_worker_count(count: int) -> str:
    """A number of workers."""
    return "1 worker" if count == 1 else f"{count} workers"


def _pid_suffix(pid: int | None) -> str:
    return f" (pid {pid})" if pid else ""


def _describe_exit(event: RoleEnded) -> str:
    reason = event.reason or "no reason known"
    own = event.exit_code is not None and 0 < event.exit_code <= _LARGEST_OWN_EXIT_CODE and event.reason != "Deleted"
    return f"{reason}, exit code {event.exit_code}" if own else reason


def _loading_suffix(loading: str) -> str:
    """How to load the export. If its .keras file cannot be loaded, the text is a comment with the reason."""
    if loading.startswith("#"):
        return f"; {loading.removeprefix('#').strip()}"
    return f"; load it with {loading}" if loading else ""


def _reason_suffix(reason: str) -> str:
    return f": {' '.join(reason.split())}" if reason else ""


def _worker_or_nobody(index: int | None) -> str:
    return "nobody" if index is None else f"worker {index}"


def _describe_range(event: LeaseRevoked | RecordsRequeued | RequeuedRecordsLeased | RangeQuarantined) -> str:
    return f"records {event.start:,} to {event.end:,} of {PurePosixPath(event.source).name}"
