"""What a job reports: its current status, its timeline, its losses, and at its end its summary or failure.

``status.json``, the events of edl.api.run_events and, on Kubernetes, the status ConfigMap consist of these values.
Times are unix seconds, record ranges are half open. Numbers that are not finite are null in JSON and read as None.
``edl.jobfile.section_type`` reads and writes them, strictly: an unknown or missing field raises SpecError.

Sizes are bounded: the status lists the fullest tables only, with the number of all tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from edl.api.fields import NAME, Field
from edl.api.strategy import PushStrategy

# Names of phases are part of status.json and of the journal, and never change.
ENDED = ("Done", "Failed", "Interrupted")
"""Final phases of a job."""
STALLED = "Stalled"
"""The job trained and now waits for a parameter server or for room for a checkpoint, or its master does not report.
``reason`` says which, and why."""
PHASES = ("Starting", "Training", "Evaluating", "Exporting", "Predicting", STALLED, *ENDED)
ROLES = ("supervisor", "master", "ps", "worker")

# Bounds that keep a status small: it is published in a ConfigMap, which holds 1 MiB.
TABLES_SHOWN = 16
AWAITED_SHOWN = 8
RANKS_SHOWN = 64
NAME_LENGTH = 120
"""Characters of a table's name that the status shows."""


@dataclass(frozen=True, slots=True)
class TableStatus:
    """One embedding table, on all parameter servers together."""

    name: Annotated[str, Field("Name of the variable.")]
    rows: Annotated[int, Field("Rows that are stored.", unit="rows")]
    bytes: Annotated[int, Field("Memory of the table, with slot variables and index.", unit="bytes")]
    evicted: Annotated[
        int, Field("Rows dropped under ps.evict_after_steps since the parameter servers loaded the table.", unit="rows")
    ] = 0
    max_rows: Annotated[int | None, Field("The limit, ps.max_rows; null: no limit.", unit="rows")] = None
    full: Annotated[
        float | None, Field("Share of the limit that the fullest parameter server has reached; null: no limit.")
    ] = None


@dataclass(frozen=True, slots=True)
class RoundStatus:
    """An update of synchronous mode that waits for more pushes."""

    arrived: Annotated[int, Field("Pushes that have arrived.", unit="pushes")]
    wanted: Annotated[int, Field("Pushes that form the update, if so many workers can send.", unit="pushes")]
    awaited: Annotated[tuple[int, ...], Field("Indexes of workers whose pushes it waits for; the first few.")] = ()
    awaited_total: Annotated[int, Field("Number of workers whose pushes it waits for.", unit="workers")] = 0
    seconds: Annotated[float, Field("Time for which it has waited.", unit="seconds")] = 0.0


@dataclass(frozen=True, slots=True)
class ParametersStatus:
    """Statistics of the parameter servers since the last start of the run. Only pushes with a gradient count."""

    strategy: Annotated[PushStrategy, Field("How pushes become updates, as in the job file.")]
    pushes: Annotated[
        int, Field("Pushes that became part of an update, including those rolled back since.", unit="pushes")
    ] = 0
    updates: Annotated[int, Field("Updates that were made of these pushes.", unit="updates")] = 0
    refused: Annotated[
        int, Field("Pushes that were refused as too old and computed again with current values.", unit="pushes")
    ] = 0
    staleness: Annotated[
        float | None,
        Field(
            "Mean number of updates between the values of a gradient and its own update; null before the first.",
            unit="updates",
        ),
    ] = None
    stalest: Annotated[int, Field("The largest of these numbers.", unit="updates")] = 0
    round: Annotated[RoundStatus | None, Field("The update that waits for pushes; null: none.")] = None
    tables: Annotated[tuple[TableStatus, ...], Field("The fullest embedding tables, fullest first.")] = ()
    tables_total: Annotated[int, Field("Number of all embedding tables.", unit="tables")] = 0

    @property
    def refused_share(self) -> float:
        """Refused pushes as a share of all pushes, 0 to 1."""
        return self.refused / (self.pushes + self.refused) if self.refused else 0.0


StatesTaken = Annotated[
    int,
    Field(
        "With AllReduce, how often all workers took the variables of one of them, because their processors or "
        "TensorFlow's threads round differently."
    ),
]


@dataclass(frozen=True, slots=True)
class WorldStatus:
    """The workers that train together under strategy AllReduce; their number and order change from round to round."""

    round: Annotated[int, Field("Number of the newest round; 0 before the first.")] = 0
    running: Annotated[bool, Field("Whether its workers train. If not, reason says what they wait for.")] = False
    size: Annotated[int, Field("Workers of the round.", unit="workers")] = 0
    ranks: Annotated[
        tuple[int, ...], Field("Index of the worker with each rank; the first few. -1: not seen yet.", minimum=-1)
    ] = ()
    step: Annotated[
        int, Field("Steps that all workers have made together and that are in the ledger.", unit="steps")
    ] = 0
    changed: Annotated[str, Field("Why this round took the place of the one before.")] = ""
    reason: Annotated[str, Field("Why the world is about to change, or why no round runs; empty: neither.")] = ""
    difference: Annotated[str, Field("Why the workers may round differently; empty: all compute the same bits.")] = ""
    states_taken: StatesTaken = 0
    evaluation: Annotated[
        str, Field("Which workers evaluate while the others train, or why training pauses; empty: neither.")
    ] = ""
    awaited: Annotated[
        str,
        Field("For which workers the others have waited far longer than a step takes; empty: for none."),
    ] = ""


Pid = Annotated[int | None, Field("Process id; null if there is no process on this machine.", minimum=1)]
Index = Annotated[int, Field("Number of the role's process or pod, from 0.")]
Reason = Annotated[str, Field("The reason, as text for people.")]
Step = Annotated[int, Field("Updates of the parameters since the job began.", unit="steps")]
Phase = Annotated[str, Field("What the job is doing, or how it ended.", choices=PHASES)]
Metrics = Annotated[Mapping[str, float | None], Field("Values of the newest evaluation by metric.", measured=True)]
Parameters = Annotated[
    ParametersStatus | None,
    Field("Statistics of the parameter servers; null if none of them trains."),
]

StepsNotApplied = Annotated[
    int,
    Field(
        "Steps that workers reported as done and parameter servers did not apply, or the reverse. 0 unless a program "
        "other than EDL's worker sends messages with the job's token.",
        unit="steps",
    ),
]

RecordsNotTrained = Annotated[
    int,
    Field("Done records of minibatches that were not full, with train.batches.drop_remainder.", unit="records"),
]
UpdatesSkipped = Annotated[
    int,
    Field(
        "Steps that changed nothing because a loss or gradient was NaN or infinite (train.on_nan is skip). Their "
        "records count as done. Under AllReduce a step of all workers counts once.",
        unit="steps",
    ),
]


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """One worker or parameter server."""

    index: Index
    pid: Pid
    state: Annotated[str, Field("What the role is doing.", text=NAME)]
    uid: Annotated[str, Field("Unique id of the process or pod.")] = ""
    node: Annotated[str, Field("Node that the pod runs on; empty until it is scheduled, and under edl run.")] = ""
    reason: Annotated[str, Field("Why it is pending or leaving, as the cluster says.")] = ""
    samples_per_second: Annotated[
        float | None,
        Field("Current rate of this worker; null if it has none.", unit="records/s"),
    ] = None


@dataclass(frozen=True, slots=True)
class Status:
    """The current state of the job: the content of ``status.json``."""

    job: Annotated[str, Field("The job's name.", text=NAME)]
    run: Annotated[str, Field("The run's id.", text=NAME)]
    run_dir: Annotated[str, Field("The run's directory.", text=NAME)]
    phase: Phase
    updated: Annotated[float, Field("When this status was written.", unit="unix seconds")]
    incarnation: Annotated[int, Field("Number of the master; it increases with every new master.")] = 0
    reason: Reason = ""
    epoch: Annotated[int, Field("The epoch in progress, from 1; 0 before the first.")] = 0
    epochs: Annotated[int, Field("Number of epochs of the job.")] = 0
    step: Step = 0
    records_total: Annotated[int, Field("Records of the job, over all epochs.", unit="records")] = 0
    records_done: Annotated[int, Field("Records that are done.", unit="records")] = 0
    loss: Annotated[float | None, Field("Newest training loss.", measured=True)] = None
    metrics: Metrics = field(default_factory=dict)
    samples_per_second: Annotated[float, Field("Current rate of all workers.", unit="records/s")] = 0.0
    records_worked: Annotated[
        int, Field("Records done since the last start of the run, including those rolled back since.", unit="records")
    ] = 0
    seconds_worked: Annotated[float, Field("Time from the first to the newest of these.", unit="seconds")] = 0.0
    seconds_left: Annotated[float | None, Field("Estimated time left; null if unknown.", unit="seconds")] = None
    workers: Annotated[tuple[RoleStatus, ...], Field("All live workers.")] = ()
    ps: Annotated[tuple[RoleStatus, ...], Field("All parameter servers.")] = ()
    workers_wanted: Annotated[
        int, Field("Number of workers that the job requests while there is work.", unit="workers")
    ] = 0
    workers_min: Annotated[int, Field("With fewer running workers the job counts as starved.", unit="workers")] = 0
    starved: Annotated[bool, Field("Work waits, and fewer than workers_min workers run.")] = False
    refusals: Annotated[
        Mapping[str, str],
        Field("Pods that the cluster refused, such as worker-7, and its message for each."),
    ] = field(default_factory=dict)
    parameters: Parameters = None
    steps_not_applied: StepsNotApplied = 0
    updates_skipped: UpdatesSkipped = 0
    records_not_trained: RecordsNotTrained = 0
    world: Annotated[WorldStatus | None, Field("The world of strategy AllReduce; null under other strategies.")] = None


@dataclass(frozen=True, slots=True)
class Summary:
    """Totals of a run."""

    records_total: Annotated[int, Field("Records of the job, over all epochs.", unit="records")]
    records_done: Annotated[int, Field("Records that are done; each counts once per epoch.", unit="records")]
    records_repeated: Annotated[
        int, Field("Records that were trained again after a worker was lost.", unit="records")
    ] = 0
    records_lost: Annotated[int, Field("Records that are neither done nor skipped.", unit="records")] = 0
    records_rolled_back: Annotated[
        int, Field("Records that were trained again after parameters went back to a checkpoint.", unit="records")
    ] = 0
    records_skipped: Annotated[int, Field("Corrupt or quarantined records that were skipped.", unit="records")] = 0
    updates_rolled_back: Annotated[int, Field("Updates that were lost with a parameter server.")] = 0
    steps_not_applied: StepsNotApplied = 0
    updates_skipped: UpdatesSkipped = 0
    records_not_trained: RecordsNotTrained = 0
    states_taken: StatesTaken = 0
    steps_added: Annotated[
        int,
        Field(
            "With strategy.global_batch, steps beyond those of full batches since the last start of the master. "
            "Records that may have crashed a worker are tried alone.",
            unit="steps",
        ),
    ] = 0
    updates_rolled_back_of: Annotated[
        Mapping[str, int], Field("updates_rolled_back by variable: lost updates of each.")
    ] = field(default_factory=dict)
    samples_per_second: Annotated[
        float,
        Field("Mean rate from the first to the last record since the last start of the run.", unit="records/s"),
    ] = 0.0
    seconds: Annotated[float, Field("Time from start to end.", unit="seconds")] = 0.0
    workers_lost: Annotated[
        int, Field("Workers that ended before the job was done; those of an interrupted job do not count.")
    ] = 0
    metrics: Metrics = field(default_factory=dict)
    export: Annotated[str | None, Field("Directory of the exported model.", text=NAME)] = None
    export_loading: Annotated[
        str | None, Field("Python that loads the .keras file; null: keras.models.load_model alone.", text=NAME)
    ] = None
    logs: Annotated[str | None, Field("Directory of the roles' logs.", text=NAME)] = None
    began_with: Annotated[
        str | None, Field("The weights that a run began to train with (model.init_from); null: its own.", text=NAME)
    ] = None
    parameters: Parameters = None
    warnings: Annotated[
        tuple[str, ...], Field("Warnings of workers about the model, its export and skipped updates; each text once.")
    ] = ()


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """The job at one point in time, for plots."""

    time: Annotated[float, Field("When.", unit="unix seconds")]
    workers: Annotated[int, Field("Running workers.", unit="workers")]
    pending: Annotated[int, Field("Workers that were requested and do not run yet.", unit="workers")] = 0
    samples_per_second: Annotated[float, Field("Current rate of all workers.", unit="records/s")] = 0.0
    records_done: Annotated[int, Field("Records that are done.", unit="records")] = 0


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why a job failed: the content of ``failure.json``."""

    kind: Annotated[str, Field("Category of the failure: job, input, storage, crash ...")]
    reason: Annotated[str, Field("What failed and why, in one or a few sentences.")]
    detail: Annotated[str, Field("Details, such as a traceback or a log.")] = ""


@dataclass(frozen=True, slots=True)
class DisruptionReport:
    """The content of ``losses.json``."""

    workers: Annotated[Mapping[str, int], Field("Workers that were lost, by reason.")] = field(default_factory=dict)
    ps: Annotated[Mapping[str, int], Field("Parameter servers that were lost, by reason.")] = field(
        default_factory=dict
    )
    master: Annotated[Mapping[str, int], Field("Masters that were lost, by reason.")] = field(default_factory=dict)
    rollbacks: Annotated[int, Field("Number of times that parameters went back to a checkpoint.")] = 0
    records_rolled_back: Annotated[int, Field("Records that were rolled back with them.", unit="records")] = 0
    rollback_reason: Annotated[str, Field("Reason of the newest rollback.")] = ""
    records_returned: Annotated[int, Field("Records that were returned to the queue.", unit="records")] = 0
    records_leased_again: Annotated[int, Field("Returned records that were leased again.", unit="records")] = 0
