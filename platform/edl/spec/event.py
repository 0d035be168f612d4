"""What happens in a run, one value for each kind of event: a line of ``events.jsonl`` and of ``--json``.

A line is a JSON object: ``{"event": "role_started", "time": 1700000000.5, "role": "worker", "index": 0, …}``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from edl.spec.collection import ListOf, Nullable
from edl.spec.kind import Choice, Flag, Number, Text, Whole
from edl.spec.node import Json
from edl.spec.problem import Problem, SpecError
from edl.spec.report import Report
from edl.spec.section import Option, Section
from edl.spec.status import ROLES, Index, Metrics, Phase, Pid, Reason, Step, Summary

_COUNT = Whole(0)
_NAME = Text(meaning="a name")
_FREE = Text(r"^[\s\S]*$")

Role = Annotated[str, Option(Choice(ROLES), "Which role.")]
Worker = Annotated[int | None, Option(Nullable(_COUNT), "Index of the worker; null when none was at it.")]
Source = Annotated[str, Option(_NAME, "Source of the records.")]
Start = Annotated[int, Option(_COUNT, "First record of the range in its source.", "records")]
End = Annotated[int, Option(_COUNT, "First record after the range.", "records")]


@dataclass(frozen=True, slots=True)
class Event(Report):
    """Something that happened; ``kind`` is its name in JSON."""

    kind: ClassVar[str]
    time: Annotated[float, Option(Number(0.0), "When it happened.", "unix seconds")]

    @classmethod
    def section(cls) -> Section:
        """All fields and the kind, which comes first."""
        return Section(cls, constants=(("event", cls.kind),))

    def line(self) -> str:
        """The event as one line, without the line feed."""
        return json.dumps(self.to_json(), allow_nan=False)


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """A run began, or goes on after --resume."""

    kind: ClassVar[str] = "run_started"
    run: Annotated[str, Option(_NAME, "The run's id.")]
    run_dir: Annotated[str, Option(_NAME, "The run's directory.")]
    resumed: Annotated[bool, Option(Flag(), "Whether it goes on with what an earlier start left.")] = False
    changes: Annotated[
        tuple[str, ...], Option(ListOf(_FREE), "Fields of the job file that are not as at the start before; in words.")
    ] = ()


@dataclass(frozen=True, slots=True)
class RoleAsked(Event):
    """The master asked for a process or pod."""

    kind: ClassVar[str] = "role_asked"
    role: Role
    index: Index
    reason: Reason


@dataclass(frozen=True, slots=True)
class RoleStarted(Event):
    """A process or pod of the job started."""

    kind: ClassVar[str] = "role_started"
    role: Role
    index: Index
    pid: Pid


@dataclass(frozen=True, slots=True)
class RoleLeaving(Event):
    """A process or pod of the job was told to go and is still there."""

    kind: ClassVar[str] = "role_leaving"
    role: Role
    index: Index
    cause: Annotated[str, Option(_FREE, "Who or what wanted that; empty if the cluster does not say.")]
    message: Annotated[str, Option(_FREE, "The cluster's own words.")] = ""


@dataclass(frozen=True, slots=True)
class RoleEnded(Event):
    """A process or pod of the job is gone."""

    kind: ClassVar[str] = "role_ended"
    role: Role
    index: Index
    pid: Pid
    reason: Reason
    exit_code: Annotated[
        int | None, Option(Nullable(Whole(None)), "Exit code as a shell has it: 128 + n for signal n; null if unknown.")
    ]


@dataclass(frozen=True, slots=True)
class LeaseRevoked(Event):
    """A worker may no longer push for a range."""

    kind: ClassVar[str] = "lease_revoked"
    worker: Worker
    source: Source
    start: Start
    end: End
    reason: Reason


@dataclass(frozen=True, slots=True)
class RecordsReturned(Event):
    """A range went back to the head of the queue."""

    kind: ClassVar[str] = "records_returned"
    start: Start
    end: End
    source: Source
    worker: Worker
    reason: Reason


@dataclass(frozen=True, slots=True)
class RecordsLeased(Event):
    """A range that had gone back to the queue is in the hands of a worker again."""

    kind: ClassVar[str] = "records_leased"
    start: Start
    end: End
    source: Source
    worker: Worker


@dataclass(frozen=True, slots=True)
class Scaled(Event):
    """Somebody wants other numbers of workers than before."""

    kind: ClassVar[str] = "scaled"
    min: Annotated[int, Option(_COUNT, "Below so many the job is called starved.", "workers")]
    max: Annotated[int, Option(_COUNT, "As many are asked for while there is work.", "workers")]


@dataclass(frozen=True, slots=True)
class Stalled(Event):
    """Training stands for want of parameter servers, or of a checkpoint; again when another server is missing."""

    kind: ClassVar[str] = "stalled"
    reason: Reason


@dataclass(frozen=True, slots=True)
class StallEnded(Event):
    """Training goes on; not told of a job that ends."""

    kind: ClassVar[str] = "stall_ended"
    seconds: Annotated[float, Option(Number(0.0), "How long the master saw it stand.", "seconds")]
    reason: Reason


@dataclass(frozen=True, slots=True)
class EvaluationStarted(Event):
    """An evaluation of one pinned version began."""

    kind: ClassVar[str] = "evaluation_started"
    step: Step


@dataclass(frozen=True, slots=True)
class EvaluationEnded(Event):
    """Every validation record was evaluated once."""

    kind: ClassVar[str] = "evaluation_ended"
    step: Step
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class CheckpointSaved(Event):
    """A cut is on disk."""

    kind: ClassVar[str] = "checkpoint_saved"
    cut: Annotated[int, Option(_COUNT, "Number of the cut.")]
    step: Step
    pause_seconds: Annotated[
        float,
        Option(
            Number(0.0),
            "How long updates waited for it at most: no parameter server kept them out for longer.",
            "seconds",
        ),
    ]


@dataclass(frozen=True, slots=True)
class RolledBack(Event):
    """Parameters, and with ``records`` also the ledger, went back to a cut."""

    kind: ClassVar[str] = "rolled_back"
    records: Annotated[int, Option(_COUNT, "Records that are leased again.", "records")]
    to_cut: Annotated[int | None, Option(Nullable(_COUNT), "Number of the cut; null is the start of the job.")]
    reason: Reason
    updates: Annotated[int, Option(_COUNT, "Updates that were lost without leasing records again.")] = 0


@dataclass(frozen=True, slots=True)
class Quarantined(Event):
    """A range made workers crash again and again and is left out."""

    kind: ClassVar[str] = "quarantined"
    source: Source
    start: Start
    end: End
    reason: Reason


@dataclass(frozen=True, slots=True)
class Warned(Event):
    """Something the user should know that does not end the job."""

    kind: ClassVar[str] = "warning"
    message: Annotated[str, Option(_NAME, "What, for people.")]


@dataclass(frozen=True, slots=True)
class CallbackDecided(Event):
    """A Keras callback that goes by evaluations decided something for the whole job."""

    kind: ClassVar[str] = "callback_decided"
    step: Step
    callback: Annotated[str, Option(_NAME, "Class of the callback.")]
    decision: Annotated[str, Option(_FREE, "What follows, for people.")]


@dataclass(frozen=True, slots=True)
class Exported(Event):
    """The trained model is on disk."""

    kind: ClassVar[str] = "exported"
    path: Annotated[str, Option(_NAME, "Directory of the model.")]
    loading: Annotated[
        str | None, Option(Nullable(_FREE), "Python that loads the .keras file; null: keras.models.load_model alone.")
    ] = None


@dataclass(frozen=True, slots=True)
class JobEnded(Event):
    """The last event of a run."""

    kind: ClassVar[str] = "job_ended"
    phase: Phase
    reason: Reason
    summary: Annotated[Summary, Option(Section(Summary), "What the run came to.")]


EVENTS: Mapping[str, type[Event]] = {
    event.kind: event
    for event in (
        RunStarted,
        RoleAsked,
        RoleStarted,
        RoleLeaving,
        RoleEnded,
        Scaled,
        LeaseRevoked,
        RecordsReturned,
        RecordsLeased,
        Stalled,
        StallEnded,
        EvaluationStarted,
        EvaluationEnded,
        CheckpointSaved,
        RolledBack,
        Quarantined,
        Warned,
        CallbackDecided,
        Exported,
        JobEnded,
    )
}


def parse(line: str, where: str = "event") -> Event:
    """The event of a line; raises SpecError for anything that Event.line did not write."""
    try:
        value = json.loads(line)
    except ValueError as error:
        raise SpecError([Problem(where, "", f"not JSON: {error}")]) from error
    return from_json(value, where)


def from_json(value: object, where: str = "event") -> Event:
    """The event of a JSON object; raises SpecError that names ``where`` and every wrong field."""
    kind = value.get("event") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in EVENTS:
        raise SpecError([Problem(where, "event", f"found {kind!r}, must be one of {', '.join(EVENTS)}")])
    return EVENTS[kind].from_json(value, where)


def schema() -> dict[str, Json]:
    """JSON Schema of one event."""
    return {"oneOf": [_schema(event) for event in EVENTS.values()]}


def _schema(event: type[Event]) -> dict[str, Json]:
    section = event.section()
    return {"title": event.kind, "description": event.__doc__} | section.schema(required=("event",))
