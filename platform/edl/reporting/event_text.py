"""What events and statuses are called when people read them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import PurePosixPath

from edl.api.events import (
    CallbackDecided,
    CheckpointSaved,
    EvaluationEnded,
    EvaluationStarted,
    Event,
    Exported,
    JobEnded,
    LeaseRevoked,
    Quarantined,
    RecordsLeased,
    RecordsReturned,
    RoleAsked,
    RoleEnded,
    RoleLeaving,
    RoleStarted,
    RolledBack,
    RunStarted,
    Scaled,
    Stalled,
    StallEnded,
    Warned,
)
from edl.api.status import ParametersStatus, Status
from edl.reporting.summary_text import duration, measure, measures
from edl.reporting.terminal_text import one_line

EXPORT = "export"
"""The source of a lease that is no range of the user's records."""
_LARGEST_OWN_EXIT = 128
"""Exit codes above it stand for signals, which the reason names."""
_NOT_READY = ("pending", "starting", "leaving")
"""What workers are doing that cannot work yet, or not any more."""
_TABLES = 8
"""Names of tables that are told in a line."""
_AT_WORK = ("Training", "Predicting")
"""Phases in which records are done, so that pace and time left mean something."""


def sentence(event: Event) -> str:
    """What happened, in one line without time."""
    return one_line(_sentence(event))


def _sentence(event: Event) -> str:
    match event:
        case RunStarted():
            changed = f", changed: {'; '.join(event.changes)}" if event.changes else ""
            return f"run {event.run} {'goes on' if event.resumed else 'starts'} in {event.run_dir}{changed}"
        case RoleAsked():
            return f"{role(event.role, event.index)} asked for{_because(event.reason)}"
        case RoleStarted():
            return f"{role(event.role, event.index)} started{_pid(event.pid)}"
        case RoleLeaving():
            why = ", ".join(part for part in (event.cause, event.message) if part)
            return f"{role(event.role, event.index)} was told to go{_because(why)}"
        case RoleEnded():
            return f"{role(event.role, event.index)} ended{_pid(event.pid)}: {_ending(event)}"
        case Scaled():
            return f"{workers(event.max)} wanted, at least {event.min}"
        case Stalled():
            return f"stalled{_because(event.reason)}"
        case StallEnded():
            return f"goes on after {duration(event.seconds)}{_because(event.reason)}"
        case JobEnded():
            return f"job {event.phase.lower()}{_because(event.reason.partition(chr(10))[0])}"
        case Warned():
            return f"warning: {event.message}"
        case CallbackDecided():
            return f"step {event.step:,}: {event.decision}"
        case Exported():
            return f"model exported to {event.path}" + (f"; load it with {event.loading}" if event.loading else "")
    return _of_records(event) or _of_parameters(event) or event.kind.replace("_", " ")


def _of_records(event: Event) -> str | None:
    match event:
        case LeaseRevoked():
            return f"lease on {_range(event)} revoked from {_worker(event.worker)}{_because(event.reason)}"
        case RecordsReturned():
            what = "the export" if event.source == EXPORT else _range(event)
            return f"{what} of {_worker(event.worker)} back in the queue{_because(event.reason)}"
        case RecordsLeased():
            what = "the export" if event.source == EXPORT else _range(event)
            return f"{what} leased again by {_worker(event.worker)}"
        case Quarantined():
            return f"{_range(event)} left out{_because(event.reason)}"
    return None


def _of_parameters(event: Event) -> str | None:
    match event:
        case EvaluationStarted():
            return f"evaluation of step {event.step:,} started"
        case EvaluationEnded():
            return f"evaluation of step {event.step:,}: {measures(event.metrics) or 'done'}"
        case CheckpointSaved():
            waited = f"updates waited at most {event.pause_seconds:.3f} s"
            return f"checkpoint {event.cut} at step {event.step:,} saved, {waited}"
        case RolledBack():
            to = "the start" if event.to_cut is None else f"checkpoint {event.to_cut}"
            lost = f", {event.updates:,} updates lost" if event.updates else ""
            return f"rolled back to {to}: {event.records:,} records again{lost}{_because(event.reason)}"
    return None


def headline(status: Status) -> str:
    """Where the job is, in one line."""
    share = 100 * status.records_done // status.records_total if status.records_total else 0
    parts = [f"{status.phase.lower()}: {status.records_done:,} of {status.records_total:,} records ({share} %)"]
    if status.epochs > 1 and status.epoch:
        parts.append(f"epoch {status.epoch}/{status.epochs}")
    parts += measurements(status)
    live = sum(worker.state not in _NOT_READY for worker in status.workers)
    parts.append(f"{live}/{len(status.workers)} workers ready" if live < len(status.workers) else workers(live))
    return ", ".join(parts)


def measurements(status: Status) -> list[str]:
    """Training loss, metrics of the newest evaluation, pace and time left, as far as known."""
    parts = [] if status.loss is None else [f"loss {status.loss:.4g}"]
    parts += [
        f"evaluated {one_line(name)} {measure(value)}" for name, value in status.metrics.items() if name != "loss"
    ]
    if status.samples_per_second and status.phase in _AT_WORK:
        parts.append(f"{status.samples_per_second:,.0f} samples/s")
    if status.seconds_left is not None and status.phase in _AT_WORK:
        parts.append(f"{duration(status.seconds_left)} left")
    return parts


def earlier_evaluations(ended: Sequence[EvaluationEnded]) -> str:
    """The evaluations before the newest, newest first, in a line; empty where there are none."""
    told = []
    for each in reversed(ended[:-1]):
        shown = {name: value for name, value in each.metrics.items() if name != "loss"} or each.metrics
        if shown:
            told.append(f"step {each.step:,} {measures(shown)}")
    return "earlier: " + "   ".join(told) if told else ""


def served(told: ParametersStatus | None) -> str:
    """Which embedding tables the parameter servers have; empty when there are none, or none is known yet."""
    if told is None or not told.tables:
        return ""
    names = ", ".join(one_line(table.name) for table in told.tables[:_TABLES])
    more = f" and {told.tables_total - _TABLES} more" if told.tables_total > _TABLES else ""
    return f"{tables(told.tables_total)} served by the parameter servers: {names}{more}"


def tables(count: int) -> str:
    """So many tables."""
    return "1 table" if count == 1 else f"{count} tables"


def clock(moment: float) -> str:
    """The local time of day of unix seconds."""
    return time.strftime("%H:%M:%S", time.localtime(moment))


def role(name: str, index: int) -> str:
    """A process by its role; there is one master and one supervisor, they have no number."""
    return f"{name} {index}" if name in ("worker", "ps") else name


def workers(count: int) -> str:
    """So many workers."""
    return "1 worker" if count == 1 else f"{count} workers"


def _pid(pid: int | None) -> str:
    return f" (pid {pid})" if pid else ""


def _ending(event: RoleEnded) -> str:
    reason = event.reason or "no reason known"
    own = event.exit_code is not None and 0 < event.exit_code <= _LARGEST_OWN_EXIT and event.reason != "Deleted"
    return f"{reason}, exit code {event.exit_code}" if own else reason


def _because(reason: str) -> str:
    return f": {' '.join(reason.split())}" if reason else ""


def _worker(index: int | None) -> str:
    return "nobody" if index is None else f"worker {index}"


def _range(event: LeaseRevoked | RecordsReturned | RecordsLeased | Quarantined) -> str:
    return f"records {event.start:,} to {event.end:,} of {PurePosixPath(event.source).name}"
