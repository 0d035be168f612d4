"""The events of a run, one class for each kind. Each is a line of ``events.jsonl`` and of ``--json``.

A line is a JSON object: ``{"event": "role_started", "time": 1700000000.5, "role": "worker", "index": 0, …}``.
``edl.jobfile.event_json`` reads and writes lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from edl.api.fields import NAME, Field
from edl.api.status import ROLES, Index, Metrics, Phase, Pid, Reason, Step, Summary

NOT_STAMPED = 0.0
"""Time of an event that the core emitted: the core has no clock. The writer of the line sets the time."""

Role = Annotated[str, Field("Which role.", choices=ROLES)]
Worker = Annotated[int | None, Field("Index of the worker; null if no worker had the range.")]
Source = Annotated[str, Field("Source of the records.", text=NAME)]
Start = Annotated[int, Field("First record of the range in its source.", unit="records")]
End = Annotated[int, Field("First record after the range.", unit="records")]


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something that happened; ``kind`` is its name in JSON."""

    kind: ClassVar[str]
    time: Annotated[float, Field("When it happened.", unit="unix seconds", required=True)] = field(
        default=NOT_STAMPED, kw_only=True
    )


@dataclass(frozen=True, slots=True)
class RunStarted(JobEvent):
    """A run started, or continues after --resume."""

    kind: ClassVar[str] = "run_started"
    run: Annotated[str, Field("The run's id.", text=NAME)]
    run_dir: Annotated[str, Field("The run's directory.", text=NAME)]
    resumed: Annotated[bool, Field("Whether the run continues an earlier one.")] = False
    changes: Annotated[
        tuple[str, ...], Field("Fields of the job file that changed since the previous start, as text for people.")
    ] = ()


@dataclass(frozen=True, slots=True)
class RoleRequested(JobEvent):
    """The master requested a process or pod."""

    kind: ClassVar[str] = "role_asked"
    role: Role
    index: Index
    reason: Reason


@dataclass(frozen=True, slots=True)
class RoleStarted(JobEvent):
    """A process or pod of the job started."""

    kind: ClassVar[str] = "role_started"
    role: Role
    index: Index
    pid: Pid


@dataclass(frozen=True, slots=True)
class RoleLeaving(JobEvent):
    """A process or pod of the job was told to exit and still runs."""

    kind: ClassVar[str] = "role_leaving"
    role: Role
    index: Index
    cause: Annotated[str, Field("Who or what requested it; empty if the cluster does not say.")]
    message: Annotated[str, Field("The cluster's message.")] = ""


@dataclass(frozen=True, slots=True)
class RoleEnded(JobEvent):
    """A process or pod of the job is gone."""

    kind: ClassVar[str] = "role_ended"
    role: Role
    index: Index
    pid: Pid
    reason: Reason
    exit_code: Annotated[
        int | None, Field("Exit code as a shell reports it: 128 + n for signal n; null if unknown.", minimum=None)
    ]


@dataclass(frozen=True, slots=True)
class LeaseRevoked(JobEvent):
    """A worker may no longer push for a range."""

    kind: ClassVar[str] = "lease_revoked"
    worker: Worker
    source: Source
    start: Start
    end: End
    reason: Reason


@dataclass(frozen=True, slots=True)
class RecordsRequeued(JobEvent):
    """A range was returned to the head of the queue."""

    kind: ClassVar[str] = "records_returned"
    start: Start
    end: End
    source: Source
    worker: Worker
    reason: Reason


@dataclass(frozen=True, slots=True)
class RequeuedRecordsLeased(JobEvent):
    """A range that was returned to the queue is leased to a worker again."""

    kind: ClassVar[str] = "records_leased"
    start: Start
    end: End
    source: Source
    worker: Worker


@dataclass(frozen=True, slots=True)
class WorkerCountChanged(JobEvent):
    """The wanted number of workers changed, by edl scale."""

    kind: ClassVar[str] = "scaled"
    min: Annotated[int, Field("With fewer running workers the job counts as starved.", unit="workers")]
    max: Annotated[int, Field("Number of workers that the job requests while there is work.", unit="workers")]


@dataclass(frozen=True, slots=True)
class WorldChanged(JobEvent):
    """Under strategy AllReduce: a round started, and training goes on with these workers."""

    kind: ClassVar[str] = "world_changed"
    round: Annotated[int, Field("Number of the round.", minimum=1)]
    workers: Annotated[int, Field("Number of workers that reduce together.", unit="workers")]
    step: Step
    reason: Reason


@dataclass(frozen=True, slots=True)
class StallBegan(JobEvent):
    """Training waits for a parameter server or a checkpoint. Emitted again if another parameter server is missing."""

    kind: ClassVar[str] = "stalled"
    reason: Reason


@dataclass(frozen=True, slots=True)
class StallEnded(JobEvent):
    """Training continues. Not emitted if the job ends instead."""

    kind: ClassVar[str] = "stall_ended"
    seconds: Annotated[float, Field("Duration of the stall, as observed by the master.", unit="seconds")]
    reason: Reason


@dataclass(frozen=True, slots=True)
class EvaluationStarted(JobEvent):
    """An evaluation of one pinned version started."""

    kind: ClassVar[str] = "evaluation_started"
    step: Step


@dataclass(frozen=True, slots=True)
class EvaluationEnded(JobEvent):
    """An evaluation is complete: every validation record was evaluated once."""

    kind: ClassVar[str] = "evaluation_ended"
    step: Step
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class CheckpointSaved(JobEvent):
    """A checkpoint is complete on disk."""

    kind: ClassVar[str] = "checkpoint_saved"
    cut: Annotated[int, Field("Number of the cut.")]
    step: Step
    pause_seconds: Annotated[
        float,
        Field("Longest time for which a parameter server paused updates for it.", unit="seconds"),
    ]


@dataclass(frozen=True, slots=True)
class RollbackDone(JobEvent):
    """Parameters, and with ``records`` also the ledger, went back to a checkpoint."""

    kind: ClassVar[str] = "rolled_back"
    records: Annotated[int, Field("Records that are leased again.", unit="records")]
    to_cut: Annotated[int | None, Field("Number of the checkpoint's cut; null: the start of the job.")]
    reason: Reason
    updates: Annotated[int, Field("Updates that are lost without leasing records again.")] = 0


@dataclass(frozen=True, slots=True)
class RangeQuarantined(JobEvent):
    """A range crashed workers repeatedly and is skipped from now on."""

    kind: ClassVar[str] = "quarantined"
    source: Source
    start: Start
    end: End
    reason: Reason


@dataclass(frozen=True, slots=True)
class WarningRaised(JobEvent):
    """A problem that does not end the job."""

    kind: ClassVar[str] = "warning"
    message: Annotated[str, Field("The warning, as text for people.", text=NAME)]


@dataclass(frozen=True, slots=True)
class CallbackDecided(JobEvent):
    """A Keras callback that monitors evaluations, such as EarlyStopping, made a decision for the whole job."""

    kind: ClassVar[str] = "callback_decided"
    step: Step
    callback: Annotated[str, Field("Class of the callback.", text=NAME)]
    decision: Annotated[str, Field("The decision, as text for people.")]


@dataclass(frozen=True, slots=True)
class ModelExported(JobEvent):
    """The trained model is on disk."""

    kind: ClassVar[str] = "exported"
    path: Annotated[str, Field("Directory of the model.", text=NAME)]
    loading: Annotated[str | None, Field("Python that loads the .keras file; null: keras.models.load_model alone.")] = (
        None
    )


@dataclass(frozen=True, slots=True)
class JobEnded(JobEvent):
    """The last event of a run."""

    kind: ClassVar[str] = "job_ended"
    phase: Phase
    reason: Reason
    summary: Annotated[Summary, Field("Totals of the run.")]


EVENTS: Mapping[str, type[JobEvent]] = {
    event.kind: event
    for event in (
        RunStarted,
        RoleRequested,
        RoleStarted,
        RoleLeaving,
        RoleEnded,
        WorkerCountChanged,
        WorldChanged,
        LeaseRevoked,
        RecordsRequeued,
        RequeuedRecordsLeased,
        StallBegan,
        StallEnded,
        EvaluationStarted,
        EvaluationEnded,
        CheckpointSaved,
        RollbackDone,
        RangeQuarantined,
        WarningRaised,
        CallbackDecided,
        ModelExported,
        JobEnded,
    )
}
