"""The progress of a run by its events and statuses, and its end in words: what all renderers of ``edl run`` show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from edl.api.exit_codes import INTERRUPTED_EXIT, OUTPUT_CLOSED_EXIT, SIGTERM_EXIT
from edl.api.run_events import (
    EvaluationEnded,
    JobEnded,
    JobEvent,
    RecordsRequeued,
    RoleEnded,
    RoleStarted,
    RollbackDone,
    RunStarted,
)
from edl.api.status import Status, Summary
from edl.reporting.event_text import EXPORT_SOURCE, format_block, summary_heading, summary_rows

RECENT_EVENTS = 12
"""Number of newest events that are kept for display."""

RECENT_EVALUATIONS = 6
"""Number of newest evaluations that are kept for display."""

NORMAL_END_REASONS = ("Completed", "Deleted")
"""Reasons of workers that ended because there was no more work."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The known state of a run.

    Attributes:
        start_time: when this start of the run began, in unix seconds. Older statuses are from an earlier start.
        status: the newest status; None before the first.
        master_pid: pid of the master; None while there is none.
        recent_events: the newest events, oldest first.
        records_repeated: records that were returned to the queue because a worker was lost.
        records_rolled_back: records that were rolled back to a checkpoint.
        updates_rolled_back: updates that were lost with a parameter server.
        workers_lost: workers that ended by a signal or with an error.
        records_done_before: records that were done before this start of the run.
        evaluations: the newest evaluations, oldest first.
        end_event: the last event of the run since its newest start.
    """

    start_time: float
    status: Status | None = None
    master_pid: int | None = None
    recent_events: tuple[JobEvent, ...] = ()
    records_repeated: int = 0
    records_rolled_back: int = 0
    updates_rolled_back: int = 0
    workers_lost: int = 0
    records_done_before: int = 0
    evaluations: tuple[EvaluationEnded, ...] = ()
    end_event: JobEnded | None = None

    def with_event(self, event: JobEvent) -> RunProgress:
        """The progress after ``event``. Every start of a run resets the counts."""
        known = replace(self, recent_events=(*self.recent_events, event)[-RECENT_EVENTS:])
        match event:
            case RunStarted():
                # events of a resumed run include its earlier end, which must not count
                return RunProgress(self.start_time, recent_events=known.recent_events)
            case RoleStarted(role="master"):
                return replace(known, master_pid=event.pid)
            case RoleEnded(role="master"):
                return replace(known, master_pid=None)
            case RoleEnded(role="worker") if event.reason not in NORMAL_END_REASONS:
                return replace(known, workers_lost=self.workers_lost + 1)
            case RecordsRequeued() if event.source != EXPORT_SOURCE:
                return replace(known, records_repeated=self.records_repeated + event.end - event.start)
            case RollbackDone():
                updates = self.updates_rolled_back + event.updates
                return replace(
                    known, records_rolled_back=self.records_rolled_back + event.records, updates_rolled_back=updates
                )
            case EvaluationEnded():
                known = replace(known, evaluations=(*self.evaluations, event)[-RECENT_EVALUATIONS:])
                return replace(known, status=known._with_newest_metrics(self.status) if self.status else None)
            case JobEnded():
                return replace(known, end_event=event)
        return known

    def with_status(self, status: Status) -> RunProgress:
        """The progress with a newer status. A status from an earlier start of the run changes nothing."""
        if status.updated < self.start_time or (self.status and status.updated <= self.status.updated):
            return self
        return replace(
            self,
            status=self._with_newest_metrics(status),
            records_done_before=self.records_done_before if self.status else status.records_done,
        )

    def _with_newest_metrics(self, status: Status) -> Status:
        """A status with the newest evaluation, if that ended after the status was written."""
        newest = self.evaluations[-1] if self.evaluations else None
        return status if newest is None or newest.time < status.updated else replace(status, metrics=newest.metrics)

    @property
    def phase(self) -> str:
        """What the job is doing, or how it ended."""
        if self.end_event:
            return self.end_event.phase
        return self.status.phase if self.status else "Starting"

    @property
    def share(self) -> float:
        """Share of all records that are done, 0 to 1."""
        status = self.status
        return min(1.0, status.records_done / status.records_total) if status and status.records_total else 0.0

    def partial_summary(self, now: float, logs: str) -> Summary:
        """The summary until ``now``, for a run whose master could not write one."""
        status, seconds = self.status, max(0.0, now - self.start_time)
        done_now = status.records_done - self.records_done_before if status else 0
        if status is None:
            return Summary(records_total=0, records_done=0, seconds=seconds, workers_lost=self.workers_lost, logs=logs)
        return Summary(
            records_total=status.records_total,
            records_done=status.records_done,
            records_repeated=self.records_repeated,
            records_rolled_back=self.records_rolled_back,
            updates_rolled_back=self.updates_rolled_back,
            updates_skipped=status.updates_skipped,
            records_not_trained=status.records_not_trained,
            samples_per_second=max(0, done_now) / seconds if seconds else 0.0,
            seconds=seconds,
            workers_lost=self.workers_lost,
            metrics=status.metrics,
            logs=logs,
            parameters=status.parameters,
        )


# --------------------------------------------------------------------------------------------------
# How a run ended: decided from the master's last event, the supervisor's exit code, and a signal to ``edl run``.


_STOP_REASONS = {
    INTERRUPTED_EXIT: "Ctrl-C",
    OUTPUT_CLOSED_EXIT: "the output was closed",
    SIGTERM_EXIT: "SIGTERM",
}


@dataclass(frozen=True, slots=True)
class RunFailure:
    """What the master reported about a failed job.

    Attributes:
        kind: ``input``, ``nan``, ``crash`` or ``refused``; empty if unknown.
        detail: the user's traceback, or another long text; empty if there is none.
    """

    kind: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended, and the exit code of ``edl run``."""

    phase: str
    reason: str
    summary: Summary
    exit_code: int
    detail: str = ""


def decide_outcome(end_event: JobEnded, failure: RunFailure, stopped_by: int | None) -> RunOutcome:
    """The outcome of a run with a last event.

    Args:
        end_event: the last event.
        failure: what the master reported about a failure.
        stopped_by: exit code for the signal that stopped ``edl run``; None: no signal did.
    """
    code = 0 if end_event.phase == "Done" else 1
    if end_event.phase == "Interrupted":
        code = stopped_by or INTERRUPTED_EXIT
    elif end_event.phase == "Failed" and failure.kind == "input":
        code = 2
    return RunOutcome(
        end_event.phase,
        end_event.reason,
        end_event.summary,
        code,
        failure.detail if end_event.phase == "Failed" else "",
    )


def explain_missing_end(supervisor_exit: int, stopped_by: int | None) -> tuple[str, str]:
    """Phase and reason of a run whose master did not write its end."""
    if stopped_by is not None:
        return "Interrupted", _STOP_REASONS[stopped_by]
    if supervisor_exit < 0:  # a return code of subprocess: -n for signal n
        return "Failed", f"the supervisor was killed by signal {-supervisor_exit}, and all processes with it"
    if supervisor_exit in (INTERRUPTED_EXIT, SIGTERM_EXIT):
        return "Interrupted", "the supervisor was told to stop"
    return "Failed", "the master could not continue; the logs of supervisor and master say why"


class RunInfo(Protocol):
    """One planned run: on this machine ``edl.ops.local_run_plan``, on a cluster ``edl.ops.job_following``."""

    @property
    def job(self) -> str:
        """The job's name."""
        ...

    @property
    def run_id(self) -> str: ...

    @property
    def logs(self) -> str | None:
        """Directory of the run's logs; None: the summary has it."""
        ...

    @property
    def output(self) -> str | None:
        """Directory of predictions; None for a run that trains."""
        ...

    def plan_lines(self) -> list[str]:
        """The plan, as lines for people."""
        ...

    def next_steps(self, outcome: RunOutcome) -> list[str]:
        """What the user can do after the end."""
        ...


# --------------------------------------------------------------------------------------------------
# The end of a run in words: totals, locations, next steps.


def summary_lines(run_info: RunInfo, outcome: RunOutcome) -> list[str]:
    """The summary and the next steps, as lines for people.

    The output directory is listed only if it has predictions: a failed job, or a module that processes predictions
    itself, writes none.
    """
    summary = replace(outcome.summary, logs=run_info.logs or outcome.summary.logs)
    output = run_info.output if run_info.output and any(Path(run_info.output).glob("*.npz")) else None
    return [
        *format_block(summary_heading(outcome.phase, summary), summary_rows(summary, output=output)),
        *run_info.next_steps(outcome),
    ]


def failure_text(outcome: RunOutcome) -> str:
    """Why the run failed, with the user's traceback first."""
    return f"{outcome.detail.rstrip()}\n\n{outcome.reason}".strip()
