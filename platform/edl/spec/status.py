"""What a job tells about itself: its status now, and the summary at its end.

One set of values for ``status.json``, for the events of edl.spec.event and, on Kubernetes, for the
status ConfigMap. Reading is strict: an unknown or missing field raises SpecError. Numbers that are not finite become
null in JSON and come back as None. Times are unix seconds, record ranges are half open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from edl.spec.collection import ListOf, Named, Nullable
from edl.spec.kind import Choice, Flag, Measure, Number, Text, Whole
from edl.spec.parameters import ParametersStatus
from edl.spec.report import Report
from edl.spec.section import Option, Section

ENDED = ("Done", "Failed", "Interrupted")
"""Phases of a job of which nothing more will come."""
STALLED = "Stalled"
"""A job that was at work waits for parameter servers or for room for a checkpoint, or nobody hears of its master;
``reason`` says which, and why."""
PHASES = ("Starting", "Training", "Evaluating", "Exporting", "Predicting", STALLED, *ENDED)
ROLES = ("supervisor", "master", "ps", "worker")

_COUNT = Whole(0)
_SECONDS = Number(0.0)
_NAME = Text(meaning="a name")
_FREE = Text(r"^[\s\S]*$")
_MEASURES = Named(Nullable(Measure()))

Pid = Annotated[int | None, Option(Nullable(Whole(1)), "Process id; null where there is no process here.")]
Index = Annotated[int, Option(_COUNT, "Number of the role's process or pod, from 0.")]
Reason = Annotated[str, Option(_FREE, "Why, for people.")]
Step = Annotated[int, Option(_COUNT, "Updates of the parameters since the job began.", "steps")]
Phase = Annotated[str, Option(Choice(PHASES), "What the job is doing, or how it ended.")]
Metrics = Annotated[Mapping[str, float | None], Option(_MEASURES, "Values of the newest evaluation by metric.")]
Parameters = Annotated[
    ParametersStatus | None,
    Option(Nullable(Section(ParametersStatus)), "What the parameter servers did; null where there are none to train."),
]

StepsNotApplied = Annotated[
    int,
    Option(
        _COUNT,
        "Steps that workers reported as done and parameter servers did not apply, or the other way round; 0 unless "
        "something other than EDL's own worker speaks to them with the job's token.",
        "steps",
    ),
]


@dataclass(frozen=True, slots=True)
class RoleStatus(Report):
    """One worker or parameter server as it is now."""

    index: Index
    pid: Pid
    state: Annotated[str, Option(_NAME, "What it is doing.")]
    uid: Annotated[str, Option(_FREE, "Names this incarnation of the process or pod.")] = ""
    node: Annotated[str, Option(_FREE, "Where it runs; empty while it has no place, and under edl run.")] = ""
    reason: Annotated[str, Option(_FREE, "Why it is pending or leaving, in the cluster's words.")] = ""
    samples_per_second: Annotated[
        float | None,
        Option(Nullable(_SECONDS), "Records a second that this worker does, lately; null where none.", "records/s"),
    ] = None


@dataclass(frozen=True, slots=True)
class Status(Report):
    """The job as it is now: the content of ``status.json``."""

    job: Annotated[str, Option(_NAME, "The job's name.")]
    run: Annotated[str, Option(_NAME, "The run's id.")]
    run_dir: Annotated[str, Option(_NAME, "The run's directory.")]
    phase: Phase
    updated: Annotated[float, Option(_SECONDS, "When this was written.", "unix seconds")]
    incarnation: Annotated[int, Option(_COUNT, "The master's number, growing with every start of it.")] = 0
    reason: Reason = ""
    epoch: Annotated[int, Option(_COUNT, "The epoch in progress, from 1; 0 before the first.")] = 0
    epochs: Annotated[int, Option(_COUNT, "Epochs of the whole job.")] = 0
    step: Step = 0
    records_total: Annotated[int, Option(_COUNT, "Records of the whole job.", "records")] = 0
    records_done: Annotated[int, Option(_COUNT, "Records that are done for good.", "records")] = 0
    loss: Annotated[float | None, Option(Nullable(Measure()), "Newest training loss.")] = None
    metrics: Metrics = field(default_factory=dict)
    samples_per_second: Annotated[float, Option(_SECONDS, "Records a second, lately.", "records/s")] = 0.0
    records_worked: Annotated[
        int, Option(_COUNT, "Records done since the last start of the run, with those that went back.", "records")
    ] = 0
    seconds_worked: Annotated[float, Option(_SECONDS, "From the first to the newest of these.", "seconds")] = 0.0
    seconds_left: Annotated[float | None, Option(Nullable(_SECONDS), "Time left, as far as known.", "seconds")] = None
    workers: Annotated[tuple[RoleStatus, ...], Option(ListOf(Section(RoleStatus)), "Every live worker.")] = ()
    ps: Annotated[tuple[RoleStatus, ...], Option(ListOf(Section(RoleStatus)), "Every parameter server.")] = ()
    workers_wanted: Annotated[int, Option(_COUNT, "As many are asked for while there is work.", "workers")] = 0
    workers_min: Annotated[int, Option(_COUNT, "Below so many the job is called starved.", "workers")] = 0
    starved: Annotated[bool, Option(Flag(), "Work waits, and fewer workers run than the job should have.")] = False
    refusals: Annotated[
        Mapping[str, str],
        Option(Named(_FREE), "What the cluster would not start, such as worker-7, and what it said."),
    ] = field(default_factory=dict)
    parameters: Parameters = None
    steps_not_applied: StepsNotApplied = 0


@dataclass(frozen=True, slots=True)
class Summary(Report):
    """What a run came to."""

    records_total: Annotated[int, Option(_COUNT, "Records that the job was to work through, all epochs.", "records")]
    records_done: Annotated[int, Option(_COUNT, "Records that are done, each counted once an epoch.", "records")]
    records_repeated: Annotated[int, Option(_COUNT, "Records that were worked on again after a loss.", "records")] = 0
    records_lost: Annotated[int, Option(_COUNT, "Records that are neither done nor skipped.", "records")] = 0
    records_rolled_back: Annotated[int, Option(_COUNT, "Records that went back to a checkpoint.", "records")] = 0
    records_skipped: Annotated[int, Option(_COUNT, "Corrupt or quarantined records, left out.", "records")] = 0
    updates_rolled_back: Annotated[int, Option(_COUNT, "Updates that were lost with a parameter server.")] = 0
    steps_not_applied: StepsNotApplied = 0
    updates_rolled_back_of: Annotated[
        Mapping[str, int], Option(Named(_COUNT), "The same, by variable: updates of each that were lost.")
    ] = field(default_factory=dict)
    samples_per_second: Annotated[
        float,
        Option(
            _SECONDS, "Records a second, from the first to the last done since the last start of the run.", "records/s"
        ),
    ] = 0.0
    seconds: Annotated[float, Option(_SECONDS, "From start to end.", "seconds")] = 0.0
    workers_lost: Annotated[
        int, Option(_COUNT, "Workers that ended before their work did; an interruption loses none.")
    ] = 0
    metrics: Metrics = field(default_factory=dict)
    export: Annotated[str | None, Option(Nullable(_NAME), "Directory of the exported model.")] = None
    export_loading: Annotated[
        str | None, Option(Nullable(_NAME), "Python that loads the .keras file; null: keras.models.load_model alone.")
    ] = None
    logs: Annotated[str | None, Option(Nullable(_NAME), "Directory of the roles' logs.")] = None
    parameters: Parameters = None
