"""The state of a job as the master knows it.

``JobStateMachine`` (module ``job``) decides. Its decisions about the ledger become journal entries, and
``journal_application`` is the only code that changes the ledger, live and in replay. So a master that has
replayed the journal has the state of its predecessor. State that is not journaled (deadlines,
attachments of PS, cuts in progress) is rebuilt from reports of the cluster, the PS and the workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edl.api.cluster_port import MOST_WORKERS
from edl.api.run_events import JobEvent
from edl.core.callback_decisions import CallbackState, DeclaredCallback
from edl.core.crash_suspects import CrashSuspects
from edl.core.cuts import CheckpointFailure, CheckpointWrites, CutStage, PendingCut, SavedCheckpoint, WorldCheckpoint
from edl.core.evaluation import PinnedEvaluation
from edl.core.evaluation_copies import EvaluationCopies
from edl.core.events import CoreCommand, EmitEvent, NotifyWorkers, PhaseEntered, TrainingStalled
from edl.core.job_counters import JobCounters
from edl.core.job_pods import JobPods
from edl.core.lease_timeouts import LeaseHolder, LeaseTimeouts
from edl.core.ledger import EVALUATION, LEASE_COUNTER_BITS, PREDICTION, TRAINING, Lease, LeaseRevocation, Ledger
from edl.core.model_files import ModelFiles
from edl.core.record_ranges import RecordRange, RecordSource
from edl.core.shuffle import ShuffleOrder
from edl.core.step_arrivals import StepArrivals
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
        checkpoint_writes: how long its files take, and which workers hang in one.
        workers_heard_since: since when some worker of AllReduce has been heard all the time; None: none is.
        step_arrivals: how far the main threads of the world's members are.
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
    evaluation: PinnedEvaluation | None = None
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
    checkpoint_writes: CheckpointWrites = field(default_factory=CheckpointWrites)
    evaluation_copies: EvaluationCopies = field(default_factory=EvaluationCopies)
    workers_replaced: bool = False
    holders: dict[str, LeaseHolder] = field(default_factory=dict)
    lease_timeouts: LeaseTimeouts = field(default_factory=LeaseTimeouts)
    workers_heard_since: float | None = None
    step_arrivals: StepArrivals = field(default_factory=StepArrivals)
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
