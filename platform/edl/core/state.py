"""The state of a job as the master knows it.

``JobStateMachine`` (module ``job``) decides. Its decisions about the ledger become journal entries, and
``apply_entry`` is the only code that changes the ledger, live and in replay. So a master that has
replayed the journal has the state of its predecessor. ``ENTRY_HANDLERS`` has the effect of each entry;
docs/design/0002-record-accounting.md lists the entries. State that is not journaled (deadlines,
attachments of PS, cuts in progress) is rebuilt from reports of the cluster, the PS and the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl.api.cluster_port import MOST_WORKERS
from edl.api.journal_entries import (
    BestWeightsRestored,
    CallbacksDeclared,
    CheckpointReplaced,
    CheckpointWritten,
    CutAnnounced,
    CutCalledOff,
    CutTaken,
    DatasetEntered,
    EvaluationAbandoned,
    EvaluationBegun,
    EvaluationCompleted,
    FinalCutPinned,
    JobPhaseChanged,
    JobResumed,
    JournalEntry,
    LeaseCompleted,
    LeaseGranted,
    LeaseProgressed,
    LeaseReturned,
    MasterStarted,
    ParametersHandedOver,
    ParametersHeld,
    ParametersRestored,
    ParametersRolledBack,
    RevocationStarted,
    Sources,
    StepsApplied,
    StoppedByCallback,
    WorkerChanged,
    WorkerDismissed,
    WorkerMemoryRaised,
    WorkersScaled,
    WorkerWarned,
    WorldAnnounced,
    WorldStarted,
)
from edl.api.run_events import JobEvent
from edl.core import evaluation, update_accounting, world_entries
from edl.core.crash_suspects import CrashSuspects
from edl.core.cuts import (
    WORLD_STEP_KEY,
    CheckpointFailure,
    CutStage,
    PendingCut,
    SavedCheckpoint,
    WorldCheckpoint,
)
from edl.core.evaluation import CallbackState, DeclaredCallback, EvaluationRound, callbacks_from_json, model_files
from edl.core.evaluation_copies import EvaluationCopies
from edl.core.events import (
    CoreCommand,
    EmitEvent,
    EndJob,
    NotifyWorkers,
    PhaseEntered,
    RecordEntry,
    TrainingStalled,
)
from edl.core.job_counters import JobCounters
from edl.core.job_pods import JobPods
from edl.core.lease_timeouts import LeaseHolder, LeaseTimeouts
from edl.core.ledger import (
    BEST_MODEL,
    DESCRIBE,
    EVALUATION,
    EXPORT,
    LEASE_COUNTER_BITS,
    METRICS,
    MODEL_FILE,
    PREDICTION,
    TRAINING,
    Lease,
    LeaseRevocation,
    Ledger,
    shuffled_ledger,
    single_task_ledger,
)
from edl.core.model_files import ModelFiles
from edl.core.pod_lifecycle import MemoryRaise
from edl.core.shuffle import RecordRange, RecordSource, ShardPlan, ShuffleOrder
from edl.core.task_results import parse_export
from edl.core.world_rounds import WorldRounds

LEASE_RETURN_SECONDS = 5.0
"""Enough for a worker of parameter servers to end: it waits for a push in flight, and returns its leases."""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """The part of the JobSpec that matters to decisions; units are records and steps.

    Attributes:
        task_records: records per lease.
        evaluation_steps, checkpoint_steps: steps between two of them; None: none during training.
        predict, evaluate: whether the job only predicts, or only evaluates, with stored weights and without PS.
        weights_step: with ``evaluate``, the global step of these weights; 0 if it is unknown.
        describe: whether a worker describes the data set, because the user has a reader of their own.
        shuffle: the shuffle window in records; 0: only ranges are shuffled; None: as large as memory and
            reader allow.
        max_corrupt: maximum number of corrupt records in one pass over a data set, of all workers together.
        skip_crashing: whether a range that makes workers crash is quarantined instead of failing the job.
        workers, workers_min: the spec's values; users may change them (``JobState.workers_max``).
        elevated_share: share of workers with the higher class of a split priority; 0: it is not split.
        oom_memory_factor: factor for the memory of new workers after one ran out of memory; 1: the job
            ends instead.
        worker_memory, ps_memory: the requested memory, for messages.
        grace: seconds between asking a pod to stop and killing it.
        checkpoint_full_timeout: seconds that training waits for disk space before the job fails.
        durable: whether checkpoints outlive the pods. Otherwise none are written, and the parameters of a
            lost PS are lost.
        has_parameters: whether the job has parameters to save and export. Without, a program of the user's has them,
            and the job is done when its records are.
        all_reduce: whether the workers hold the parameters and reduce gradients in rounds, without PS.
        global_batch: the records of each step of all workers together; None: each has a minibatch. With it, a step
            of the training ledger is a single record, because a worker's share of a step has any number of them.
        evaluation_workers: with ``all_reduce``, the most workers that evaluate a copy while the others train; 0: all
            pause.
        buckets: whether workers put records of similar length into a minibatch, among those of a lease.
        drop_remainder: whether minibatches with fewer records than ``minibatch`` are done without being trained.
    """

    minibatch: int
    task_records: int
    epochs: int = 1
    seed: int | None = 0
    max_steps: int | None = None
    evaluation_steps: int | None = None
    checkpoint_steps: int | None = None
    checkpoint_full_timeout: float = 1800.0
    export: bool = False
    predict: bool = False
    evaluate: bool = False
    weights_step: int = 0
    describe: bool = False
    skip_crashing: bool = False
    shuffle: int | None = None
    max_corrupt: int = 0
    ps: int = 1
    workers: int = 1
    workers_min: int = 1
    elevated_share: float = 0.0
    oom_memory_factor: float = 1.0
    worker_memory: str = ""
    ps_memory: str = ""
    grace: float = LEASE_RETURN_SECONDS
    durable: bool = True
    has_parameters: bool = True
    all_reduce: bool = False
    global_batch: int | None = None
    evaluation_workers: int = 1
    buckets: bool = False
    drop_remainder: bool = False

    @property
    def main_kind(self) -> str:
        """The kind of task that is the job's main work."""
        if self.predict:
            return PREDICTION
        return EVALUATION if self.evaluate else TRAINING

    @property
    def step_records(self) -> int:
        """Records of a step of the training ledger."""
        return self.minibatch if self.global_batch is None else 1

    @property
    def suspect_records(self) -> int:
        """The most records that are held together for the end of a worker: those of one minibatch."""
        return self.minibatch if self.global_batch is None else min(self.minibatch, self.global_batch)


@dataclass(slots=True)
class PendingStop:
    """A final checkpoint is being taken, after which the job ends (module ``checkpointing``).

    Attributes:
        reason: why the job ends.
        timeout_seconds: maximum seconds for the checkpoint.
        deadline: when the job ends without the checkpoint.
        cut_number: number of its cut; 0: not started yet.
        obstacle: why the last attempt failed.
    """

    reason: str
    timeout_seconds: float
    deadline: float
    cut_number: int = 0
    obstacle: str = ""


@dataclass(slots=True)
class StallState:
    """Training is blocked by missing parameter servers or by a checkpoint that cannot be written.

    Module ``stall`` maintains it.

    Attributes:
        since: when this master first saw the stall.
        reported_ps: index of each reported PS, and whether its node was reported as unreachable.
        missing_ps: names of the PS that were missing last.
        lost_nodes: by PS index, the reason and the time of a lost node; its successor is awaited.
        unsaved: whether training waits for a checkpoint.
        reported_unsaved: whether that was reported.
    """

    since: float
    reported_ps: set[tuple[int, bool]] = field(default_factory=set)
    missing_ps: tuple[str, ...] = ()
    lost_nodes: dict[int, tuple[str, float]] = field(default_factory=dict)
    unsaved: bool = False
    reported_unsaved: bool = False


@dataclass(slots=True)
class JobState:
    """The complete state of the master.

    Attributes:
        incarnation: incarnation of the present master.
        ledgers: the ledgers by kind of work; a kind is added when there is such work.
        model_files: the files that callbacks write without an evaluation.
        shuffle_order: the order of the training records if they are shuffled. The training ledger then
            contains positions of this order.
        file_digests: of the files of each data set whose records were counted; empty: unknown.
        revoked_leases: returned training leases that are not below the lowest open lease.
        revocations: pending lease revocations.
        final_pin: the cut at the end of training, once taken.
        evaluated_step: the step after which the variables were evaluated last, unless they were lost since; 0: none.
        scale_override: minimum and maximum of workers that users set; None: the spec's value.
        world: the rounds of strategy AllReduce; None under another strategy.
        pods_synced: whether the cluster has listed all existing pods.
        cut: the cut in progress, if any; ``cut_number`` is the last number used.
        cut_ledger: the ledger position of the cut in progress.
        cuts_blocked_until: no cut starts before this time.
        checkpoint_failure: why the newest checkpoint was not written; None if it was.
        unconfirmed_leases: by lease, the done steps when a cut failed because of it. No cut starts until
            the lease has a further done step or is closed.
        last_step: when a worker last reported a step.
        stall: the present stall of training, if any.
        pending_stop: the requested end of the job after a final checkpoint, if any.
        paused_cut: all PS pause updates after this cut, until every PS that was handed over has a
            successor; 0: none.
        paused_ps: uids of the PS that pause them; unknown (empty) after a restart of the master.
        leaving_ps: uids of PS that received SIGTERM and wait until they may exit.
        unsaved_ps: by uid, why a leaving PS may exit although no checkpoint has its parameters.
        best_restored: the checkpoint whose copy is now the newest one (``restore_best_weights``); 0: none.
        declared_callbacks: the callbacks that workers of this master declared; None: none has yet.
        copy_cut: number of the checkpoint copy in progress; 0: none.
        pinned_cuts: the cuts that each PS keeps, by uid.
        stopped_after: the step after which a callback of the user's ended training; None: none did.
        has_more_missing: whether more pods are missing than one event may request.
        workers_replaced: whether PS and workers were replaced because the journal lacks their progress.
        crash_suspects: the minibatches that may have made workers crash.
        crashed_members: workers of AllReduce that crashed or exited without a report in a minibatch. The next
            round says how far they were.
        returned_work: by worker of AllReduce whose leases have returned before the cluster said how it ended:
            these leases.
        world_pauses: whether the workers of the world were told to train nothing until an evaluation is done.
        world_version: rises whenever a worker of the world may have to act.
        world_pods_version: ``pods.version`` when the rounds were last told which workers are gone or leave.
        world_checkpoint: the checkpoint of the world in progress, if any.
        workers_heard_since: since when some worker of AllReduce has been heard all the time; None: none is.
        evaluation_copies: who copies the variables of the world for an evaluation, and who has a copy.
        next_holder_check: when ``next_deadline`` has to look at all holders again.
    """

    settings: JobSettings
    incarnation: int = 1
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    validation: tuple[RecordSource, ...] = ()
    shuffle_order: ShuffleOrder | None = None
    file_digests: Mapping[str, str] = field(default_factory=dict)
    is_dataset_known: bool = False
    pods: JobPods = field(init=False)
    counters: JobCounters = field(default_factory=JobCounters)
    checkpoint: SavedCheckpoint | None = None
    evaluation: EvaluationRound | None = None
    cut_number: int = 0
    last_evaluation: int = 0
    last_checkpoint: int = 0
    final_pin: int = 0
    paused_cut: int = 0
    scale_override: tuple[int | None, int | None] = (None, None)
    evaluated_final: bool = False
    evaluated_step: int = 0
    phase: str = "Starting"
    reason: str = ""
    lease_counter: int = 0
    revoked_leases: set[int] = field(default_factory=set)
    revocations: list[LeaseRevocation] = field(default_factory=list)
    callbacks: CallbackState = field(default_factory=CallbackState)
    model_files: ModelFiles = field(default_factory=ModelFiles)
    best_restored: int = 0
    world: WorldRounds | None = None
    # Rebuilt after a restart; never journaled:
    pods_synced: bool = False
    cut: PendingCut | None = None
    cut_ledger: dict[str, Any] = field(default_factory=dict)
    cuts_blocked_until: float = 0.0
    checkpoint_failure: CheckpointFailure | None = None
    unconfirmed_leases: dict[int, int] = field(default_factory=dict)
    last_step: float = 0.0
    stall: StallState | None = None
    pending_stop: PendingStop | None = None
    paused_ps: frozenset[str] = frozenset()
    leaving_ps: set[str] = field(default_factory=set)
    unsaved_ps: dict[str, str] = field(default_factory=dict)
    declared_callbacks: tuple[DeclaredCallback, ...] | None = None
    stopped_after: int | None = None
    copy_cut: int = 0
    pinned_cuts: dict[str, frozenset[int]] = field(default_factory=dict)
    world_pauses: bool = False
    world_version: int = 1
    world_pods_version: int = -1
    world_checkpoint: WorldCheckpoint | None = None
    evaluation_copies: EvaluationCopies = field(default_factory=EvaluationCopies)
    workers_replaced: bool = False
    holders: dict[str, LeaseHolder] = field(default_factory=dict)
    lease_timeouts: LeaseTimeouts = field(default_factory=LeaseTimeouts)
    workers_heard_since: float | None = None
    has_more_missing: bool = False
    next_holder_check: float = float("-inf")
    crash_suspects: CrashSuspects = field(default_factory=CrashSuspects)
    crashed_members: set[str] = field(default_factory=set)
    returned_work: dict[str, list[Lease]] = field(default_factory=dict)
    range_crashes: dict[tuple[str, RecordRange], int] = field(default_factory=dict)
    """Workers that crashed in a range of an evaluation or prediction, by kind and range."""
    last_failure: tuple[str, str] | None = None
    pending_commands: list[CoreCommand] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pods = JobPods(self.settings.ps)
        if self.settings.all_reduce:
            self.world = WorldRounds(
                self.incarnation,
                self.settings.workers_min,
                saves_last=self.settings.durable,
                node_of=self._node_of,
            )

    def _node_of(self, worker: str) -> str:
        pod = self.pods.by_uid.get(worker)
        return pod.node if pod is not None else ""

    # ------------------------------------------------------------------ queries

    @property
    def training_ledger(self) -> Ledger | None:
        """The training ledger; None until the data set is known."""
        return self.ledgers.get(TRAINING)

    @property
    def step(self) -> int:
        """The number of done training steps: minibatches, or under AllReduce the updates of all workers together."""
        if self.world is not None:
            return self.world.committed_step
        return self.training_ledger.done_steps if self.training_ledger else 0

    def has_evaluated(self, step: int) -> bool:
        """Whether the present variables, which are those after ``step``, were evaluated."""
        return 0 < self.evaluated_step == step

    @property
    def has_ended(self) -> bool:
        """Whether the job is over."""
        return self.phase in ("Done", "Failed", "Interrupted")

    @property
    def main_ledger(self) -> Ledger | None:
        """The ledger of the job's main work: training, prediction, or the only evaluation."""
        return self.ledgers.get(self.settings.main_kind)

    @property
    def workers_max(self) -> int:
        """The number of workers to request while there is work."""
        wanted = self.scale_override[1]
        # With more, a rank would have no record of any step.
        most = min(MOST_WORKERS, self.settings.global_batch or MOST_WORKERS)
        return min(most, max(1, self.settings.workers if wanted is None else wanted))

    @property
    def workers_min(self) -> int:
        """The job is starved below this number of workers."""
        wanted = self.scale_override[0]
        return min(self.workers_max, self.settings.workers_min if wanted is None else wanted)

    @property
    def members_needed(self) -> int:
        """How many workers a round of AllReduce needs; after training, one can evaluate and export alone."""
        return 1 if self.is_training_over() else self.workers_min

    def is_training_over(self) -> bool:
        """Whether every required step is done."""
        return self.training_ledger is not None and self.is_ledger_over(self.training_ledger)

    def is_ledger_over(self, training: Ledger) -> bool:
        """Whether a training ledger, possibly that of a cut, has no required work left."""
        # A held lease keeps training open in any case: its range may return.
        reached = self.has_reached_limit(training)
        return not training.leases and (reached or not training.has_work or bool(self.callback_stop_reason))

    @property
    def callback_stop_reason(self) -> str:
        """Why a callback ended training; empty if none did."""
        if self.callbacks.stop_reason or self.stopped_after is None:
            return self.callbacks.stop_reason
        return f"a callback set model.stop_training after step {self.stopped_after}"

    def has_reached_limit(self, training: Ledger) -> bool:
        """Whether ``train.max_steps`` steps are done."""
        limit, done = self.settings.max_steps, training.done_steps if self.world is None else self.world.committed_step
        return limit is not None and done >= limit

    def find_lease(self, number: int) -> tuple[str, Lease] | None:
        """The kind and lease with this number."""
        for kind, ledger in self.ledgers.items():
            if number in ledger.leases:
                return kind, ledger.leases[number]
        return None

    def worker_leases(self, worker: str) -> list[tuple[str, Lease]]:
        """The worker's leases that are not being revoked, oldest first."""
        leases = [
            (kind, lease)
            for kind, ledger in self.ledgers.items()
            for lease in ledger.worker_leases(worker)
            if lease.revoke_reason is None
        ]
        return sorted(leases, key=lambda item: item[1].number)

    def next_lease_number(self) -> int:
        """The number that the next lease gets."""
        return (self.incarnation << LEASE_COUNTER_BITS) + self.lease_counter + 1

    def oldest_training_lease(self) -> int:
        """The oldest training lease, or the number of the next one."""
        lowest = self.training_ledger.oldest_lease() if self.training_ledger else None
        return self.next_lease_number() if lowest is None else lowest

    def lowest_open_lease(self) -> int:
        """All leases below are closed.

        Leases of a cut in progress count as open, because their pushes may still arrive.
        """
        floor = self.oldest_training_lease()
        if self.cut is not None and self.cut.stage is CutStage.SNAPSHOT:
            floor = min([floor, *self.cut.included_steps])
        return floor

    # ------------------------------------------------------------------ decisions

    def add_commands(self, *commands: CoreCommand) -> None:
        """Append commands to the current decision."""
        self.pending_commands.extend(commands)

    def notify_workers(self) -> None:
        """What the world's workers should do has changed: each gets a new view of it."""
        self.world_version += 1
        self.add_commands(NotifyWorkers())

    def emit(self, event: JobEvent | TrainingStalled | PhaseEntered) -> None:
        """Emit an event for users."""
        self.pending_commands.append(EmitEvent(event))


# --------------------------------------------------------------------------------------------------
# The effect of each journal entry. Nothing here decides, reads a clock or fails on an entry that a
# master produced: an entry must mean the same in replay, years later, as when it was decided.
# Entries of earlier versions lack fields; the defaults here say what they meant.


_LEASE_COUNTER_MASK = (1 << LEASE_COUNTER_BITS) - 1


def _apply_dataset(state: JobState, entry: DatasetEntered) -> None:
    s = state.settings
    state.is_dataset_known = True
    state.ledgers.pop(DESCRIBE, None)
    for kind, rows, epochs, seed in (
        (TRAINING, entry.training, s.epochs, s.seed),
        (PREDICTION, entry.prediction, 1, None),
        # A job that also trains has a ledger for each evaluation.
        (EVALUATION, entry.validation, 1, None),
    ):
        sources = _nonempty_sources(rows)
        # A worker describes whatever parts the job names.
        if sources and kind == s.main_kind:
            state.ledgers[kind] = _range_ledger(s, kind, ShardPlan(sources, s.task_records, seed), epochs)
    # Journals from before shuffled orders have ranges of files.
    if entry.order is not None and entry.training is not None and TRAINING in state.ledgers:
        state.shuffle_order = ShuffleOrder.from_json(entry.training, entry.order)
        state.ledgers[TRAINING] = shuffled_ledger(
            state.shuffle_order, s.epochs, s.step_records, s.task_records, splits_leases=s.all_reduce
        )
    state.validation = _nonempty_sources(entry.validation)
    state.file_digests = entry.digests or {}


def _range_ledger(settings: JobSettings, kind: str, plan: ShardPlan, epochs: int) -> Ledger:
    # Leases shorten at the end of training. What is left of a shard is not work that has come back.
    if kind == TRAINING and settings.all_reduce:
        return Ledger(plan, epochs, settings.step_records, settings.task_records)
    return Ledger(plan, epochs, settings.minibatch)


def _nonempty_sources(rows: Sources | None) -> tuple[RecordSource, ...]:
    return tuple(RecordSource(name, records) for name, records in rows or () if records)


def _apply_leased(state: JobState, entry: LeaseGranted) -> None:
    ledger = state.ledgers.setdefault(entry.task, single_task_ledger(entry.task))
    ledger.grant_range(entry.lease, RecordRange(*entry.work), entry.worker)
    state.lease_counter = entry.lease & _LEASE_COUNTER_MASK


def _apply_progress(state: JobState, entry: LeaseProgressed) -> None:
    lease_place = state.find_lease(entry.lease)
    if lease_place:
        _count_reported_fields(state, entry, *lease_place)
        state.ledgers[lease_place[0]].record_progress(entry.lease, entry.through)


def _apply_done(state: JobState, entry: LeaseCompleted) -> None:
    lease_place = state.find_lease(entry.lease)
    if not lease_place:
        return
    kind = lease_place[0]
    _count_reported_fields(state, entry, *lease_place)
    # After the count, which needs the open lease.
    state.ledgers[kind].finish_lease(entry.lease)
    if kind == TRAINING:
        _close_revoked_lease(state, entry.lease)
    if kind == EVALUATION and state.evaluation:
        state.evaluation.states = evaluation.merge_metric_states(state.evaluation.states, entry.result)
    if kind == EXPORT:
        state.counters.exported, state.counters.loading = parse_export(entry.result)
    if kind == BEST_MODEL:
        state.ledgers.pop(BEST_MODEL)
        state.callbacks = state.callbacks.mark_written(entry.result["place"], entry.result["cut"])
    if kind == MODEL_FILE:
        state.ledgers.pop(MODEL_FILE)
        state.model_files = state.model_files.mark_written(dict(entry.result["written"]))


def _count_reported_fields(state: JobState, entry: LeaseProgressed | LeaseCompleted, kind: str, lease: Lease) -> None:
    state.counters.updates_skipped += entry.updates_skipped or 0
    if entry.skipped:
        state.counters.skipped += entry.skipped
        one_pass = f"{kind} {lease.record_range.epoch}"
        state.counters.corrupt[one_pass] = state.counters.corrupt.get(one_pass, 0) + entry.skipped
    if entry.loss is not None:
        state.counters.loss = entry.loss


def _apply_revoking(state: JobState, entry: RevocationStarted) -> None:
    revocation = LeaseRevocation(entry.worker, entry.leases, entry.reason, entry.in_flight, entry.crashed)
    if revocation.mark_leases(state.training_ledger.leases if state.training_ledger else {}):
        state.revocations.append(revocation)


def _apply_returned(state: JobState, entry: LeaseReturned) -> None:
    number = entry.lease
    found = state.find_lease(number)
    if not found:
        return
    state.ledgers[found[0]].requeue_lease(number, entry.through, entry.quarantine or 0)
    update_accounting.add_repeated_steps(state.pods, entry.extra or {})
    state.counters.repeated += entry.repeated
    state.counters.partial += entry.partial
    if found[0] == TRAINING:
        state.revoked_leases.add(number)
        # PS forget leases below the oldest open one, so they need not be named to them any more.
        oldest = state.oldest_training_lease()
        state.revoked_leases = {other for other in state.revoked_leases if other >= oldest}
        _close_revoked_lease(state, number)


def _close_revoked_lease(state: JobState, number: int) -> None:
    """Remove a closed lease from its revocation, which ends with its last lease."""
    for revocation in state.revocations:
        if number in revocation.leases:
            revocation.leases = tuple(other for other in revocation.leases if other != number)
            if not revocation.leases:
                state.revocations.remove(revocation)
            return


def _apply_cut(state: JobState, entry: CutAnnounced | CutTaken | CutCalledOff) -> None:
    state.cut_number = max(state.cut_number, entry.cut)
    if isinstance(entry, CutTaken):
        update_accounting.apply_balance_entry(state.pods, state.counters, entry)


def _apply_saved(state: JobState, entry: CheckpointWritten | CheckpointReplaced | BestWeightsRestored) -> None:
    state.checkpoint = SavedCheckpoint(entry.cut, entry.step, entry.version, entry.ledger)
    state.last_checkpoint = entry.step
    if state.world is not None:
        state.world.checkpoint_step = entry.step
    state.callbacks = state.callbacks.trim_history(entry.step)
    # Only evaluated weights that are in a checkpoint can be kept as the best. Under AllReduce a pin is a step.
    if state.world is None and state.evaluation is not None and state.evaluation.pin == entry.cut:
        state.evaluation.saved = True


def _apply_evaluation(state: JobState, entry: EvaluationBegun) -> None:
    plan = ShardPlan(state.validation, state.settings.task_records)
    ledger = Ledger(plan, 1, state.settings.minibatch)
    state.evaluation = EvaluationRound(entry.pin, entry.step, entry.final, ledger, of_copy=bool(entry.of_copy))
    is_cut_saved = state.world is None and state.checkpoint is not None and state.checkpoint.cut == entry.pin
    state.evaluation.saved = is_cut_saved
    # ``data.max_corrupt_records`` counts for each pass over the validation data.
    state.counters.corrupt.pop(f"{EVALUATION} 0", None)
    state.ledgers[EVALUATION] = ledger
    state.ledgers.pop(METRICS, None)
    state.last_evaluation = entry.step


def _apply_evaluated(state: JobState, entry: EvaluationCompleted) -> None:
    state.counters.metrics = dict(entry.metrics)
    state.evaluated_final |= entry.final
    state.evaluated_step = entry.step
    if entry.callbacks is not None:
        state.callbacks = state.callbacks.apply_evaluated_state(entry.step, entry.callbacks)
    evaluated = state.ledgers.get(EVALUATION)
    _give_up_evaluation(state)
    if state.settings.evaluate and evaluated is not None:
        # The summary counts its records.
        state.ledgers[EVALUATION] = evaluated


def _apply_evaluation_off(state: JobState, entry: EvaluationAbandoned) -> None:
    _give_up_evaluation(state)


def _forget_stop_after(state: JobState, step: int) -> None:
    """Steps after ``step`` are made again, and the callbacks see them again."""
    if state.stopped_after is not None and state.stopped_after > step:
        state.stopped_after = None


def _forget_evaluated_step(state: JobState) -> None:
    """The variables are others now, or will be: those of the same step are evaluated again."""
    state.evaluated_step = 0


def _give_up_evaluation(state: JobState) -> None:
    state.evaluation = None
    for kind in (EVALUATION, METRICS):
        state.ledgers.pop(kind, None)


def _apply_final(state: JobState, entry: FinalCutPinned) -> None:
    # Evaluation and export of an earlier final cut are void.
    state.final_pin = entry.cut
    state.evaluated_final = False
    state.best_restored = 0
    state.ledgers.pop(EXPORT, None)
    state.counters.exported = []


def _apply_holds(state: JobState, entry: ParametersHeld) -> None:
    state.pods.parameter_holders[entry.index] = entry.ps
    # The last successor has the parameters, so nothing waits for the pause any more.
    if len(state.pods.parameter_holders) == state.pods.ps_count:
        _release_paused_updates(state)


def _apply_handed_over(state: JobState, entry: ParametersHandedOver) -> None:
    # No holder any more: losing this PS now loses nothing.
    state.pods.parameter_holders.pop(entry.index, None)
    state.pods.handed_over_ps[entry.ps] = entry.index
    state.paused_cut = entry.cut


def _release_paused_updates(state: JobState) -> None:
    """Resume updates: every PS that was handed over has a successor, or its state was rolled back."""
    state.pods.handed_over_ps.clear()
    state.paused_cut = 0


def _apply_rolled_back(state: JobState, entry: ParametersRolledBack) -> None:
    # One PS of several went back. The others keep their parameters, and the ledger stays.
    if entry.ledger is None:
        fleet = state.pods
        assert entry.ps is not None
        fleet.parameter_holders.pop(entry.ps, None)
        # A successor that was lost as well may have applied updates that the checkpoint lacks.
        fleet.handed_over_ps = {uid: index for uid, index in fleet.handed_over_ps.items() if index != entry.ps}
        update_accounting.add_lost_updates(state.counters, str(entry.ps), entry.updates or 0)
    else:
        training = state.ledgers[TRAINING]
        training.restore_snapshot(entry.ledger)
        if entry.records:
            # These steps are no longer done.
            state.counters.loss = None
        # Under AllReduce a step contains a minibatch of each worker.
        step = entry.ledger.get(WORLD_STEP_KEY, training.done_steps)
        if state.last_evaluation > step:
            state.counters.metrics = {}
        state.counters.rolled_back += entry.records
        # They are read, and counted, again.
        state.counters.corrupt.clear()
        state.last_checkpoint = state.last_evaluation = step
        # Every lease is below the lowest open one now, so none has to be named to the PS.
        state.revoked_leases.clear()
        state.revocations.clear()
        state.pods.parameter_holders.clear()
        _release_paused_updates(state)
        lacking = entry.ledger.get("lacking", None if entry.cut else {})
        update_accounting.apply_full_rollback(state.pods, state.counters, lacking)
        state.callbacks = state.callbacks.roll_back_to(step)
        _forget_stop_after(state, step)
    # In both cases, a PS that kept a part of the pinned cuts is gone.
    _give_up_evaluation(state)
    _forget_evaluated_step(state)
    _apply_final(state, FinalCutPinned(cut=0))


def _apply_world_announced(state: JobState, entry: WorldAnnounced) -> None:
    assert state.world is not None
    world_entries.apply_announced_entry(state.world, entry)
    if entry.ledger is None:
        return
    # Nobody has a state any more, so training goes on from the newest checkpoint, or starts again.
    state.ledgers[TRAINING].restore_snapshot(entry.ledger)
    state.counters.rolled_back += entry.records or 0
    if entry.records:
        # These steps are no longer done.
        state.counters.loss = None
    if state.last_evaluation > entry.step or not entry.step:
        state.counters.metrics = {}
    # They are read, and counted, again.
    state.counters.corrupt.clear()
    state.last_evaluation = state.last_checkpoint = entry.step
    state.callbacks = state.callbacks.roll_back_to(entry.step)
    if _lacks_evaluation(state, entry.step):
        state.last_evaluation = entry.step - 1
    state.model_files = state.model_files.roll_back_to(entry.step, state.ledgers[TRAINING].open_epoch()[0])
    state.ledgers.pop(MODEL_FILE, None)
    _forget_stop_after(state, entry.step)
    _give_up_evaluation(state)
    _forget_evaluated_step(state)
    _apply_final(state, FinalCutPinned(cut=0))


def _lacks_evaluation(state: JobState, step: int) -> bool:
    """Whether the evaluation after this step, whose parameters are kept if they are the best, is not complete."""
    every = state.settings.evaluation_steps
    if not state.callbacks.keeps_best_checkpoint or not every or not step or step % every:
        return False
    return all(evaluated != step for evaluated, _ in state.callbacks.history)


def _apply_world_started(state: JobState, entry: WorldStarted) -> None:
    assert state.world is not None
    _count_skipped(state, world_entries.apply_started_entry(state.world, state.training_ledger, entry))
    state.counters.repeated += entry.repeated
    state.counters.updates_skipped += entry.updates_skipped or 0


def _apply_steps(state: JobState, entry: StepsApplied) -> None:
    assert state.world is not None
    _count_skipped(state, world_entries.apply_steps_entry(state.world, state.training_ledger, entry))
    state.counters.updates_skipped += entry.updates_skipped or 0
    if entry.loss is not None:
        state.counters.loss = entry.loss


def _count_skipped(state: JobState, skipped: Mapping[int, int]) -> None:
    """Count corrupt records of some epochs that are in the steps of the world."""
    for epoch, count in skipped.items():
        state.counters.skipped += count
        one_pass = f"{TRAINING} {epoch}"
        state.counters.corrupt[one_pass] = state.counters.corrupt.get(one_pass, 0) + count


def _apply_worker_warned(state: JobState, entry: WorkerWarned) -> None:
    state.counters.warnings.setdefault(entry.topic, []).append(entry.text)


def _apply_callbacks(state: JobState, entry: CallbacksDeclared) -> None:
    declared = callbacks_from_json(entry.declared)
    state.callbacks = state.callbacks.declare_callbacks(declared)
    if files := model_files(declared):
        state.model_files = state.model_files.declare(files, *_reached_place(state))
    else:
        state.model_files = ModelFiles()


def _reached_place(state: JobState) -> tuple[int, int]:
    """The step at which training is or will go on, and the epochs that have ended there."""
    training, saved = state.training_ledger, state.checkpoint
    if training is None or not training.plan.records:
        return 0, 0
    if state.step or saved is None:
        return state.step, training.open_epoch()[0]
    at_checkpoint = training.empty_copy()
    at_checkpoint.restore_snapshot(saved.ledger)
    return saved.step, at_checkpoint.open_epoch()[0]


def _apply_stopped_by_callback(state: JobState, entry: StoppedByCallback) -> None:
    state.stopped_after = entry.step


def _apply_best_restored(state: JobState, entry: BestWeightsRestored) -> None:
    _apply_saved(state, entry)
    state.best_restored = entry.of
    state.counters.metrics = dict(entry.metrics)


def _apply_restored(state: JobState, entry: ParametersRestored) -> None:
    state.pods.restore_lease[entry.ps] = entry.born
    if entry.index is not None:
        update_accounting.apply_ps_restore(state.pods, state.counters, state.checkpoint, entry.ps, entry.index)


def _apply_worker(state: JobState, entry: WorkerChanged) -> None:
    fleet, uid = state.pods, entry.uid or ""
    fleet.next_worker_index = max(fleet.next_worker_index, entry.index + 1)
    if entry.lost:
        fleet.worker_indices.pop(uid, None)
        state.counters.workers_lost += uid not in fleet.leaving_workers
        fleet.leaving_workers.discard(uid)
    elif uid:
        fleet.worker_indices[uid] = entry.index


def _apply_dismissed(state: JobState, entry: WorkerDismissed) -> None:
    state.pods.leaving_workers.add(entry.uid)


def _apply_memory(state: JobState, entry: WorkerMemoryRaised) -> None:
    state.pods.worker_memory = MemoryRaise(entry.raised, entry.since)


def _apply_scaled(state: JobState, entry: WorkersScaled) -> None:
    state.scale_override = entry.min, entry.max


def _apply_phase(state: JobState, entry: JobPhaseChanged) -> None:
    state.phase, state.reason = entry.name, entry.reason


def _apply_resumed(state: JobState, entry: JobResumed) -> None:
    state.phase, state.reason = "Starting", "resumed"
    # These workers ended with the run and do not count as lost.
    state.pods.leaving_workers = set(state.pods.worker_indices)


def _apply_incarnation(state: JobState, entry: MasterStarted) -> None:
    # Lease numbers stay unique, because the incarnation is their upper half.
    state.incarnation, state.lease_counter = entry.number, 0
    if state.world is not None:
        state.world.incarnation = entry.number


ENTRY_HANDLERS: Mapping[type[JournalEntry], Callable[[JobState, Any], None]] = {
    DatasetEntered: _apply_dataset,
    LeaseGranted: _apply_leased,
    LeaseProgressed: _apply_progress,
    LeaseCompleted: _apply_done,
    RevocationStarted: _apply_revoking,
    LeaseReturned: _apply_returned,
    CutAnnounced: _apply_cut,
    CutTaken: _apply_cut,
    CutCalledOff: _apply_cut,
    CheckpointWritten: _apply_saved,
    CheckpointReplaced: _apply_saved,
    EvaluationBegun: _apply_evaluation,
    EvaluationCompleted: _apply_evaluated,
    EvaluationAbandoned: _apply_evaluation_off,
    FinalCutPinned: _apply_final,
    ParametersHeld: _apply_holds,
    ParametersHandedOver: _apply_handed_over,
    ParametersRolledBack: _apply_rolled_back,
    ParametersRestored: _apply_restored,
    WorldAnnounced: _apply_world_announced,
    WorldStarted: _apply_world_started,
    StepsApplied: _apply_steps,
    CallbacksDeclared: _apply_callbacks,
    StoppedByCallback: _apply_stopped_by_callback,
    BestWeightsRestored: _apply_best_restored,
    WorkerWarned: _apply_worker_warned,
    WorkerChanged: _apply_worker,
    WorkerDismissed: _apply_dismissed,
    WorkerMemoryRaised: _apply_memory,
    WorkersScaled: _apply_scaled,
    JobPhaseChanged: _apply_phase,
    JobResumed: _apply_resumed,
    MasterStarted: _apply_incarnation,
}


def apply_entry(state: JobState, entry: JournalEntry) -> None:
    """Apply a journaled decision. Never decides, and never fails on an entry that ``handle`` produced."""
    ENTRY_HANDLERS[type(entry)](state, entry)


def record_entry(state: JobState, entry: JournalEntry) -> None:
    """Change the ledger: the entry is journaled and applied at once."""
    # Applied before it is on disk. What follows from it waits for the disk in the shell.
    state.pending_commands.append(RecordEntry(entry))
    apply_entry(state, entry)


def end_job(state: JobState, phase: str, reason: str, detail: str = "", kind: str = "job") -> None:
    """End the job; later events have no effect."""
    # Several parts may find a reason while they handle one event. The first one counts.
    if not state.has_ended:
        record_entry(state, JobPhaseChanged(name=phase, reason=reason))
        # What is reported from now on is about the time after the end.
        state.last_failure = None
        state.add_commands(EndJob(phase, reason, detail, kind))


# --------------------------------------------------------------------------------------------------
# The state as one JSON object, with which a compacted journal starts.


# Their order is part of the file format.
_SNAPSHOT_FIELDS = (
    "cut_number",
    "last_evaluation",
    "last_checkpoint",
    "final_pin",
    "evaluated_final",
    "phase",
    "reason",
    "lease_counter",
    "incarnation",
)


_LATER_COUNTERS = ("updates_skipped", "warnings")
"""Counters that a snapshot of an earlier version lacks. They are written only if there is something in them."""


def _counters_to_snapshot(counters: JobCounters) -> dict[str, Any]:
    named = {name: getattr(counters, name) for name in JobCounters.__slots__}
    return {name: value for name, value in named.items() if value or name not in _LATER_COUNTERS}


def state_to_snapshot(state: JobState) -> dict[str, Any]:
    """The state that all journal entries so far have produced."""
    checkpoint, fleet = state.checkpoint, state.pods
    return {
        "sources": dataset_entry(state) if state.is_dataset_known else None,
        # The ledger of an evaluation in progress is in ``round``.
        "ledgers": {k: x.to_snapshot() for k, x in state.ledgers.items() if k != EVALUATION or not state.evaluation},
        "round": state.evaluation.to_snapshot() if state.evaluation else None,
        "counters": _counters_to_snapshot(state.counters),
        "checkpoint": checkpoint and [checkpoint.cut, checkpoint.step, checkpoint.version, checkpoint.ledger],
        "marks": [getattr(state, name) for name in _SNAPSHOT_FIELDS],
        "fleet": [
            fleet.next_worker_index,
            dict(fleet.restore_lease),
            dict(fleet.worker_indices),
            sorted(fleet.parameter_holders.items()),
        ],
        "dismissed": sorted(fleet.leaving_workers),
        "handed_over": [state.paused_cut, dict(fleet.handed_over_ps)],
        "memory": [fleet.worker_memory.raise_count, fleet.worker_memory.first_worker],
        "scaled": list(state.scale_override),
        "balance": [dict(fleet.update_offsets), sorted(fleet.measured_ps.items())],
        "callbacks": state.callbacks.to_snapshot(),
        "best_restored": state.best_restored,
        "revoked": sorted(state.revoked_leases),
        "revocations": [revocation.to_row() for revocation in state.revocations],
        **({"evaluated_step": state.evaluated_step} if state.evaluated_step else {}),
        **({} if state.world is not None or state.stopped_after is None else {"stopped_after": state.stopped_after}),
        **({} if state.world is None else _world_snapshot(state, state.world)),
    }


def _world_snapshot(state: JobState, rounds: WorldRounds) -> dict[str, Any]:
    files = {"model_files": state.model_files.to_snapshot()} if state.model_files.specs else {}
    return {"world": world_entries.rounds_to_snapshot(rounds), "stopped_after": state.stopped_after, **files}


def snapshot_cut_number(snapshot: Mapping[str, Any]) -> int:
    """The number of the last cut in a snapshot."""
    return int(snapshot["marks"][_SNAPSHOT_FIELDS.index("cut_number")])


def restore_state(state: JobState, snapshot: Mapping[str, Any]) -> None:
    """Restore into a new state what ``state_to_snapshot`` returned."""
    # Snapshots of earlier versions lack keys; ``get`` gives the value that they meant. The data set
    # comes first, because it creates the ledgers.
    if snapshot["sources"] is not None:
        apply_entry(state, DatasetEntered.from_fields(snapshot["sources"]))
    if snapshot["round"]:
        _restore_evaluation(state, snapshot["round"])
    for kind, ledger in snapshot["ledgers"].items():
        state.ledgers.setdefault(kind, single_task_ledger(kind)).restore_snapshot(ledger)
    state.counters = JobCounters(**snapshot["counters"])
    state.checkpoint = SavedCheckpoint(*snapshot["checkpoint"]) if snapshot["checkpoint"] else None
    for name, value in zip(_SNAPSHOT_FIELDS, snapshot["marks"], strict=True):
        setattr(state, name, value)
    state.pods.next_worker_index, state.pods.restore_lease, state.pods.worker_indices, holding = snapshot["fleet"]
    state.pods.parameter_holders = dict(holding)
    state.pods.leaving_workers = set(snapshot.get("dismissed", ()))
    state.paused_cut, handed_over = snapshot.get("handed_over", (0, {}))
    state.pods.handed_over_ps = dict(handed_over)
    state.pods.worker_memory = MemoryRaise(*snapshot.get("memory", ()))
    offsets, measured = snapshot.get("balance", ({}, ()))
    state.pods.update_offsets, state.pods.measured_ps = dict(offsets), dict(measured)
    state.stopped_after = snapshot.get("stopped_after")
    if "callbacks" in snapshot:
        state.callbacks = CallbackState.from_snapshot(snapshot["callbacks"])
    if "model_files" in snapshot:
        state.model_files = ModelFiles.from_snapshot(snapshot["model_files"])
    state.best_restored = snapshot.get("best_restored", 0)
    state.evaluated_step = snapshot.get("evaluated_step", 0)
    least, most = snapshot.get("scaled", (None, None))
    state.scale_override = least, most
    state.revoked_leases = set(snapshot["revoked"])
    if state.world is not None and "world" in snapshot:
        world_entries.restore_rounds(state.world, snapshot["world"])
        state.world.checkpoint_step = state.checkpoint.step if state.checkpoint else 0
    leases = state.training_ledger.leases if state.training_ledger else {}
    found = [LeaseRevocation.from_row(row) for row in snapshot["revocations"]]
    state.revocations = [revocation for revocation in found if revocation.mark_leases(leases)]


def _restore_evaluation(state: JobState, snapshot: Mapping[str, Any]) -> None:
    apply_entry(state, EvaluationBegun.from_fields(snapshot))
    assert state.evaluation is not None
    state.evaluation.ledger.restore_snapshot(snapshot["ledger"])
    state.evaluation.states = snapshot["states"]
    state.evaluation.saved = snapshot.get("saved", False)


def dataset_entry(state: JobState) -> dict[str, Any]:
    """The journal's ``dataset`` entry for the current data set."""

    def rows(sources: Sequence[RecordSource]) -> list[list[Any]]:
        return [[source.name, source.records] for source in sources]

    fields: dict[str, Any] = {
        k: rows(state.ledgers[k].plan.sources) for k in (TRAINING, PREDICTION) if k in state.ledgers
    }
    if state.shuffle_order is not None:
        fields |= {TRAINING: rows(state.shuffle_order.sources), "order": state.shuffle_order.to_json()}
    if state.file_digests:
        fields["digests"] = dict(state.file_digests)
    return {**fields, "validation": rows(state.validation)}
