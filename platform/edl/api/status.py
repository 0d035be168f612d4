"""What a job tells about itself: its status now, its course, its losses, and the summary or the failure at its end.

One set of values for ``status.json``, for the events of edl.api.events and, on Kubernetes, for the status ConfigMap.
Times are unix seconds, record ranges are half open. Numbers that are not finite are null in JSON and come back as None.
``edl.jobfile.section_type`` reads and writes them, strictly: an unknown or missing field raises SpecError.

Sizes are bounded: of the tables the fullest are told, and how many more there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from edl.api.fields import NAME, Field
from edl.api.strategy import Strategy

ENDED = ("Done", "Failed", "Interrupted")
"""Phases of a job of which nothing more will come."""
STALLED = "Stalled"
"""A job that was at work waits for parameter servers or for room for a checkpoint, or nobody hears of its master;
``reason`` says which, and why."""
PHASES = ("Starting", "Training", "Evaluating", "Exporting", "Predicting", STALLED, *ENDED)
ROLES = ("supervisor", "master", "ps", "worker")

TABLES_SHOWN = 16
AWAITED_SHOWN = 8
NAME_LENGTH = 120
"""Characters of a table's name that are told."""


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One embedding table, on all parameter servers together."""

    name: Annotated[str, Field("The variable.")]
    rows: Annotated[int, Field("Rows that are stored.", unit="rows")]
    bytes: Annotated[int, Field("Memory that it occupies, with slot variables and index.", unit="bytes")]
    evicted: Annotated[
        int, Field("Rows dropped under ps.evict_after_steps since the parameter servers have it.", unit="rows")
    ] = 0
    max_rows: Annotated[int | None, Field("The bound, ps.max_rows; null for none.", unit="rows")] = None
    full: Annotated[float | None, Field("Share of the bound that the fullest parameter server has; null: none.")] = None


@dataclass(frozen=True, slots=True)
class RoundStatus:
    """An update of synchronous mode that waits for more pushes."""

    arrived: Annotated[int, Field("Pushes that wait.", unit="pushes")]
    wanted: Annotated[int, Field("Pushes that it waits for, if so many can come.", unit="pushes")]
    awaited: Annotated[tuple[int, ...], Field("Workers, by index, whose pushes may come; the first few.")] = ()
    awaited_total: Annotated[int, Field("How many those are.", unit="workers")] = 0
    seconds: Annotated[float, Field("For how long it has been waiting.", unit="seconds")] = 0.0


@dataclass(frozen=True, slots=True)
class ParametersStatus:
    """What the parameter servers did since they, or the run, were started last. Pushes are those with a gradient."""

    strategy: Annotated[Strategy, Field("How pushes become updates, as in the job file.")]
    pushes: Annotated[
        int, Field("Pushes that entered an update, also if that was rolled back since.", unit="pushes")
    ] = 0
    updates: Annotated[int, Field("Updates that they became.", unit="updates")] = 0
    refused: Annotated[
        int, Field("Pushes that were refused as too old, and computed again on fresh values.", unit="pushes")
    ] = 0
    staleness: Annotated[
        float | None,
        Field(
            "Updates between the values of a gradient and the update it entered: their mean; null before the first.",
            unit="updates",
        ),
    ] = None
    stalest: Annotated[int, Field("The largest of these.", unit="updates")] = 0
    round: Annotated[RoundStatus | None, Field("The update that waits now; null: none does.")] = None
    tables: Annotated[tuple[TableStatus, ...], Field("Embedding tables, the fullest first.")] = ()
    tables_total: Annotated[int, Field("How many there are.", unit="tables")] = 0

    @property
    def refused_share(self) -> float:
        """Of all pushes, 0 to 1."""
        return self.refused / (self.pushes + self.refused) if self.refused else 0.0


Pid = Annotated[int | None, Field("Process id; null where there is no process here.", minimum=1)]
Index = Annotated[int, Field("Number of the role's process or pod, from 0.")]
Reason = Annotated[str, Field("Why, for people.")]
Step = Annotated[int, Field("Updates of the parameters since the job began.", unit="steps")]
Phase = Annotated[str, Field("What the job is doing, or how it ended.", choices=PHASES)]
Metrics = Annotated[Mapping[str, float | None], Field("Values of the newest evaluation by metric.", measured=True)]
Parameters = Annotated[
    ParametersStatus | None,
    Field("What the parameter servers did; null where there are none to train."),
]

StepsNotApplied = Annotated[
    int,
    Field(
        "Steps that workers reported as done and parameter servers did not apply, or the other way round; 0 unless "
        "something other than EDL's own worker speaks to them with the job's token.",
        unit="steps",
    ),
]


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """One worker or parameter server as it is now."""

    index: Index
    pid: Pid
    state: Annotated[str, Field("What it is doing.", text=NAME)]
    uid: Annotated[str, Field("Names this incarnation of the process or pod.")] = ""
    node: Annotated[str, Field("Where it runs; empty while it has no place, and under edl run.")] = ""
    reason: Annotated[str, Field("Why it is pending or leaving, in the cluster's words.")] = ""
    samples_per_second: Annotated[
        float | None,
        Field("Records a second that this worker does, lately; null where none.", unit="records/s"),
    ] = None


@dataclass(frozen=True, slots=True)
class Status:
    """The job as it is now: the content of ``status.json``."""

    job: Annotated[str, Field("The job's name.", text=NAME)]
    run: Annotated[str, Field("The run's id.", text=NAME)]
    run_dir: Annotated[str, Field("The run's directory.", text=NAME)]
    phase: Phase
    updated: Annotated[float, Field("When this was written.", unit="unix seconds")]
    incarnation: Annotated[int, Field("The master's number, growing with every start of it.")] = 0
    reason: Reason = ""
    epoch: Annotated[int, Field("The epoch in progress, from 1; 0 before the first.")] = 0
    epochs: Annotated[int, Field("Epochs of the whole job.")] = 0
    step: Step = 0
    records_total: Annotated[int, Field("Records of the whole job.", unit="records")] = 0
    records_done: Annotated[int, Field("Records that are done for good.", unit="records")] = 0
    loss: Annotated[float | None, Field("Newest training loss.", measured=True)] = None
    metrics: Metrics = field(default_factory=dict)
    samples_per_second: Annotated[float, Field("Records a second, lately.", unit="records/s")] = 0.0
    records_worked: Annotated[
        int, Field("Records done since the last start of the run, with those that went back.", unit="records")
    ] = 0
    seconds_worked: Annotated[float, Field("From the first to the newest of these.", unit="seconds")] = 0.0
    seconds_left: Annotated[float | None, Field("Time left, as far as known.", unit="seconds")] = None
    workers: Annotated[tuple[RoleStatus, ...], Field("Every live worker.")] = ()
    ps: Annotated[tuple[RoleStatus, ...], Field("Every parameter server.")] = ()
    workers_wanted: Annotated[int, Field("As many are asked for while there is work.", unit="workers")] = 0
    workers_min: Annotated[int, Field("Below so many the job is called starved.", unit="workers")] = 0
    starved: Annotated[bool, Field("Work waits, and fewer workers run than the job should have.")] = False
    refusals: Annotated[
        Mapping[str, str],
        Field("What the cluster would not start, such as worker-7, and what it said."),
    ] = field(default_factory=dict)
    parameters: Parameters = None
    steps_not_applied: StepsNotApplied = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run came to."""

    records_total: Annotated[int, Field("Records that the job was to work through, all epochs.", unit="records")]
    records_done: Annotated[int, Field("Records that are done, each counted once an epoch.", unit="records")]
    records_repeated: Annotated[int, Field("Records that were worked on again after a loss.", unit="records")] = 0
    records_lost: Annotated[int, Field("Records that are neither done nor skipped.", unit="records")] = 0
    records_rolled_back: Annotated[int, Field("Records that went back to a checkpoint.", unit="records")] = 0
    records_skipped: Annotated[int, Field("Corrupt or quarantined records, left out.", unit="records")] = 0
    updates_rolled_back: Annotated[int, Field("Updates that were lost with a parameter server.")] = 0
    steps_not_applied: StepsNotApplied = 0
    updates_rolled_back_of: Annotated[
        Mapping[str, int], Field("The same, by variable: updates of each that were lost.")
    ] = field(default_factory=dict)
    samples_per_second: Annotated[
        float,
        Field("Records a second, from the first to the last done since the last start of the run.", unit="records/s"),
    ] = 0.0
    seconds: Annotated[float, Field("From start to end.", unit="seconds")] = 0.0
    workers_lost: Annotated[int, Field("Workers that ended before their work did; an interruption loses none.")] = 0
    metrics: Metrics = field(default_factory=dict)
    export: Annotated[str | None, Field("Directory of the exported model.", text=NAME)] = None
    export_loading: Annotated[
        str | None, Field("Python that loads the .keras file; null: keras.models.load_model alone.", text=NAME)
    ] = None
    logs: Annotated[str | None, Field("Directory of the roles' logs.", text=NAME)] = None
    parameters: Parameters = None


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """The job at one time of its life, for plots."""

    time: Annotated[float, Field("When.", unit="unix seconds")]
    workers: Annotated[int, Field("Workers that run.", unit="workers")]
    pending: Annotated[int, Field("Workers that were asked for and wait for room.", unit="workers")] = 0
    samples_per_second: Annotated[float, Field("Records a second, lately.", unit="records/s")] = 0.0
    records_done: Annotated[int, Field("Records that are done for good.", unit="records")] = 0


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why a job failed: the content of ``failure.json``."""

    kind: Annotated[str, Field("What sort of thing failed: job, input, storage, crash ...")]
    reason: Annotated[str, Field("Why, in a sentence or a few.")]
    detail: Annotated[str, Field("More: a traceback, a log.")] = ""


@dataclass(frozen=True, slots=True)
class DisruptionReport:
    """The content of ``losses.json``."""

    workers: Annotated[Mapping[str, int], Field("Workers that were lost, by reason.")] = field(default_factory=dict)
    ps: Annotated[Mapping[str, int], Field("Parameter servers that were lost, by reason.")] = field(
        default_factory=dict
    )
    master: Annotated[Mapping[str, int], Field("Masters that were lost, by reason.")] = field(default_factory=dict)
    rollbacks: Annotated[int, Field("How often parameters went back to a checkpoint.")] = 0
    records_rolled_back: Annotated[int, Field("Records that went back with them.", unit="records")] = 0
    rollback_reason: Annotated[str, Field("Why, the newest time.")] = ""
    records_returned: Annotated[int, Field("Records that went back to the queue.", unit="records")] = 0
    records_leased_again: Annotated[int, Field("Of them, those that were leased again.", unit="records")] = 0
