"""Events and commands: the interface of ``edl.core.job``.

Events are facts that the master's shell observed; commands are actions that it executes. All of them
are values, so a failure is a list of events that can be replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from edl.api.cluster_port import DEFAULT_OPTIONS, PodOptions, PodStatus, Role
from edl.api.journal_entries import JournalEntry
from edl.api.round_id import RoundId
from edl.api.run_events import JobEvent as PublishedEvent
from edl.api.run_events import StallBegan
from edl.core.callback_decisions import DeclaredCallback
from edl.core.cuts import SavedCheckpoint, WrittenShard
from edl.core.evaluation_copies import NO_COPY, CopyReport
from edl.core.rank_state import RankPhase
from edl.core.record_ranges import RecordRange
from edl.core.shuffle import BlockLayout
from edl.core.world_rounds import MemberReport, RoundPhase

# ------------------------------------------------------------------------------------------------ events


# Events are facts and name no decision. So what the core does follows from the list of events
# alone, and a recorded list replays without a cluster, a disk or a clock.
@dataclass(frozen=True, slots=True)
class PodChanged:
    """The cluster reports the state of a pod."""

    pod: PodStatus


@dataclass(frozen=True, slots=True)
class PodsSynced:
    """All existing pods have been reported. Pods in the journal that were not reported are gone."""


@dataclass(frozen=True, slots=True)
class StartRefused:
    """The cluster refused to start a pod; a later attempt may succeed if ``retry``."""

    role: Role
    index: int
    reason: str
    retry: bool


@dataclass(frozen=True, slots=True)
class PsRegistered:
    """A PS registers the address that it listens on."""

    uid: str


@dataclass(frozen=True, slots=True)
class PsHeartbeat:
    """The heartbeat of a PS that this master knows; sent every second."""

    uid: str


@dataclass(frozen=True, slots=True)
class PsLeaving:
    """A PS received SIGTERM. It keeps serving and repeats this message until it is allowed to exit."""

    uid: str


@dataclass(frozen=True, slots=True)
class DatasetDescribed:
    """The records of the data set: ``[[name, records], ...]`` for each part.

    Attributes:
        blocks: the blocks of the training sources; None: their reader has no random access.
        digests: of the files of each part; see ``edl.data.file_digests``. Parts without digests are absent.
    """

    training: tuple[tuple[str, int], ...] = ()
    validation: tuple[tuple[str, int], ...] = ()
    prediction: tuple[tuple[str, int], ...] = ()
    # With random access the master can shuffle: it leases positions of an order that it computes
    # from the sizes of the blocks. Without, it leases ranges of the sources as they are listed.
    blocks: BlockLayout | None = None
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PsAttached:
    """A PS attached to this master.

    Attributes:
        initialized: it holds variables (declared by a worker, or restored).
        version: pushes it has applied.
        pins: cuts it still keeps.
    """

    uid: str
    initialized: bool
    version: int
    # A pin is usable only while every PS keeps it. A new master learns here which ones they keep.
    pins: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PsSilent:
    """A PS whose pod is alive has not answered for ``seconds``; the request is still being retried."""

    uid: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PsRefused:
    """A PS permanently refuses a request.

    Attributes:
        cut: the refused cut; the next one may succeed. 0: it refuses a request that the job depends on.
        kind: the kind of refusal; ``storage`` if a checkpoint cannot be read.
    """

    uid: str
    kind: str
    message: str
    # A cut can be aborted and taken again, so its refusal costs the job nothing. A refused
    # attachment or revocation cannot: the parameters, or the progress of a lease, stay unknown.
    cut: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointRefused:
    """A PS cannot read the checkpoint that it was asked to load.

    Attributes:
        cut: number of the checkpoint.
        fallback: the newest older checkpoint that is intact; None if there is none.
        skipped_reasons: for users, why the checkpoints in between (or all) cannot be used.
    """

    uid: str
    cut: int
    message: str
    # Found by the shell, which reads every byte of the older checkpoints: the core reads no files.
    fallback: SavedCheckpoint | None = None
    skipped_reasons: str = ""


@dataclass(frozen=True, slots=True)
class ModelDeclared:
    """A worker declared the variables and the optimizer to every PS.

    Attributes:
        callbacks: the callbacks about which the master decides; None if the worker does not say.
    """

    worker: str
    # A restarted master has them in its journal. It compares them, because all workers of a run
    # must declare the same ones.
    callbacks: tuple[DeclaredCallback, ...] | None = None


@dataclass(frozen=True, slots=True)
class LeaseRequested:
    """A worker requests work.

    Attributes:
        known_leases: the leases that the worker knows; None if it does not say.
    """

    worker: str
    # A lease in the journal that the worker does not name was granted in an answer that was lost.
    # It is granted again, so that its range does not stay idle until the lease expires.
    known_leases: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class LeaseProgress:
    """The progress of one lease: steps below ``done_steps`` are applied on all PS."""

    # ``done_steps`` is absolute, so a message that arrives twice changes nothing. The other fields
    # are about the steps since the previous message, and count only with a message that adds steps.
    lease: int
    done_steps: int
    loss_sum: float = 0.0
    loss_steps: int = 0
    skipped_records: int = 0
    skipped_updates: int = 0


@dataclass(frozen=True, slots=True)
class WorkerWarning:
    """A warning for the user. Texts of one ``topic`` differ only in what they name."""

    topic: str
    text: str


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """Batched progress of a worker; also its heartbeat."""

    worker: str
    steps: tuple[LeaseProgress, ...] = ()
    warnings: tuple[WorkerWarning, ...] = ()
    # With parameter servers: a callback of the user's has ended training in this worker.
    has_stopped_training: bool = False


@dataclass(frozen=True, slots=True)
class TaskReported:
    """A worker finished a task."""

    worker: str
    lease: int
    # In the same message as the result: the end of a task then needs one journal entry, and a
    # master that dies cannot have recorded half of it.
    last_progress: LeaseProgress | None = None
    result: Any = None


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """A worker that was asked to stop exits; none of its pushes is in flight."""

    worker: str
    reason: str
    # What the worker applied and had not reported. With it nothing is repeated: only a worker that
    # is killed can lose the minibatch that it was computing.
    steps: tuple[LeaseProgress, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A worker cannot continue. ``kind``: after ``crash`` its pod exits; every other kind ends the job."""

    worker: str
    kind: str
    message: str
    detail: str = ""
    lease: int = 0


@dataclass(frozen=True, slots=True)
class LeasesRevoked:
    """A PS refuses these leases from now on; the counts say how many steps of each it had applied.

    Attributes:
        first_steps: the first step of each lease that the PS admitted since it started or rolled back.
    """

    ps: str
    # Needed for every lease: until all live PS have answered for all of them, nothing of these
    # ranges is leased again.
    applied_steps: Mapping[int, int]
    # A PS that rolled back admitted no step before its first one, so ``applied_steps`` alone would
    # count too many.
    first_steps: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CutPrepared:
    """A PS has allocated memory for its copy of a cut."""

    ps: str
    # A stage of its own: memory is allocated and touched while updates go on, so that updates pause
    # for the copy only.
    cut: int


@dataclass(frozen=True, slots=True)
class UpdatesHeld:
    """A PS has paused updates for a cut.

    The counts are its applied steps of each lease with a push since it started or rolled back.
    """

    ps: str
    cut: int
    # Leases without a push are left out. A PS that loaded a checkpoint cannot tell a step that is
    # on its way from one that it had and lost, so the cut is aborted while such a lease is missing.
    applied_steps: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A PS has made its copy of a cut; updates were paused for ``pause`` seconds.

    Attributes:
        admitted_steps: steps that the PS admitted since it started or rolled back; None if it does not
            count them.
    """

    ps: str
    cut: int
    version: int
    pause: float
    # At a cut no step is on its way, so with this number it is exact how many updates the PS lacks
    # (``update_accounting``).
    admitted_steps: int | None = None


@dataclass(frozen=True, slots=True)
class CheckpointSaveFinished:
    """Saving a checkpoint finished: it is complete on disk, or ``error`` says why not."""

    cut: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointCopyFinished:
    """Copying a checkpoint to another number finished, or ``error`` says why not."""

    source: int
    cut: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A user wants the job to end.

    Attributes:
        reason: the reason, for users.
        checkpoint_seconds: maximum seconds for a final checkpoint before the job ends; 0: end now.
    """

    reason: str
    # The senders limit their patience: ``edl run`` allows 10 s, because the supervisor sends
    # SIGTERM to all roles after 11 s; ``edl stop`` allows 30 s.
    checkpoint_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ScaleRequested:
    """A user wants other worker counts than the spec; None: as in the spec."""

    min: int | None = None
    max: int | None = None


@dataclass(frozen=True, slots=True)
class DesiredStateInvalid:
    """The desired state of the job cannot be read or carried out."""

    message: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed.

    Attributes:
        late_seconds: seconds by which this event is late: the master was blocked and received no messages.
        speaking_workers: workers whose messages have arrived and wait for the master's disk.
    """

    # Both fields protect workers from delays of the master: a worker whose messages were not read,
    # or wait for an fsync, is not silent.
    late_seconds: float = 0.0
    speaking_workers: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class CopiedState:
    """A worker has copied its state for a checkpoint.

    Attributes:
        cut: number of the checkpoint.
        step: the step of the copied state.
        pause: seconds that the copy took.
        shard: the file with the copy; None while it is being written.
        done: by lease, the done records of the steps in the copy that no master had acknowledged.
        writers: from rank 0, the workers that each copied a share of the state, in the order of the shards; empty: it
            copied all of it.
    """

    cut: int
    step: int
    pause: float
    shard: WrittenShard | None = None
    done: Mapping[int, int] = field(default_factory=dict)
    writers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorldReported:
    """A worker of strategy AllReduce says what it knows of the rounds; also its heartbeat.

    Attributes:
        phase: what the worker does about the rounds.
        round: the newest round that it knows.
        report: its state. ``digest`` counts only in phase ``CONFIRMED``.
        stable_step: the newest step that every member has applied, as far as it knows.
        loss: mean loss of the steps since its last message; None: it does not report it.
        is_leaving: whether it was told to end.
        is_paused: whether no rank trains, and all have the state of ``stable_step``.
        copied: the copy of its state for a checkpoint; None: there is none.
        is_stopped: whether a callback of the user's ended training, as all ranks have heard.
        difference: in phase ``CONFIRMED``, why the ranks of the round may round differently; empty: they do not.
        evaluation_copy: its copy of the variables for an evaluation.
        entered: how many exchanges of the round its main thread has entered; None: it does not say.
    """

    worker: str
    phase: RankPhase
    round: RoundId
    report: MemberReport
    stable_step: int = 0
    loss: float | None = None
    is_leaving: bool = False
    is_paused: bool = False
    copied: CopiedState | None = None
    is_stopped: bool = False
    difference: str = ""
    evaluation_copy: CopyReport = NO_COPY
    entered: int | None = None


@dataclass(frozen=True, slots=True)
class WorldViewed:
    """A worker asks for the present view of the world."""

    worker: str


CoreEvent = (
    PodChanged
    | PodsSynced
    | StartRefused
    | PsRegistered
    | PsHeartbeat
    | PsLeaving
    | DatasetDescribed
    | PsAttached
    | PsSilent
    | PsRefused
    | CheckpointRefused
    | ModelDeclared
    | LeaseRequested
    | ProgressReported
    | TaskReported
    | WorkerLeft
    | WorkerFailed
    | LeasesRevoked
    | CutPrepared
    | UpdatesHeld
    | SnapshotTaken
    | CheckpointSaveFinished
    | CheckpointCopyFinished
    | StopRequested
    | ScaleRequested
    | DesiredStateInvalid
    | WorldReported
    | WorldViewed
    | Tick
)

# ------------------------------------------------------------------------------------------------ commands


@dataclass(frozen=True, slots=True)
class MissingPs:
    """A PS that the job is waiting for.

    Attributes:
        reason: the reason, for users; follows "ps-0, ".
        since: when it began, in unix seconds, if the cluster reports that; otherwise 0.
    """

    index: int
    reason: str
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """Append an entry to the journal. Answers of the same batch are held back until it is on disk."""

    # The order of a batch matters: a command depends on the entries before it and on no later one.
    # The shell executes it when these are on disk.
    entry: JournalEntry


@dataclass(frozen=True, slots=True)
class LeaseReply:
    """Answer: a lease for the worker.

    Attributes:
        timeout_seconds: the lease is revoked after so many seconds without a message.
        window: the window of the shuffled order whose positions are leased; 0: records of a source.
        order: fingerprint of that order.
        one_by_one: whether each minibatch must be read and fed only after the previous one is applied
            (``crash_suspects.CrashSuspects``).
        of_copy: whether the worker evaluates its copy of the variables of ``step``, and not the present ones.
        digests: of the files whose records were counted; the worker refuses other files. Empty: unknown.
    """

    lease: int
    kind: str
    record_range: RecordRange
    minibatch: int
    # The worker sends several heartbeats within this time (``lease_client``). It grows and shrinks
    # with the measured silences, so it is sent with every lease.
    timeout_seconds: float
    pin: int = 0
    step: int = 0
    payload: Any = None
    window: int = 0
    # The worker computes the order from its own reader. If the files differ, so do the
    # fingerprints, and it refuses to train on other records than the ledger counts.
    order: str = ""
    one_by_one: bool = False
    of_copy: bool = False
    digests: str = ""


@dataclass(frozen=True, slots=True)
class WaitForWork:
    """Answer: no work at the moment."""

    reason: str


@dataclass(frozen=True, slots=True)
class StopWork:
    """Answer: exit, there will be no more work."""

    reason: str


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Answer to progress and task reports.

    Attributes:
        lost_leases: named leases that the worker does not hold (any more).
        fatal: whether the worker must exit.
        refusal: why the report is invalid; nothing of it was recorded.
    """

    lost_leases: tuple[int, ...] = ()
    fatal: bool = False
    # Nothing is recorded, because a result of the wrong form would make a later decision raise, and
    # an exception in a decision ends the master.
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class MayEnd:
    """Answer to a leaving PS: whether it may exit now."""

    value: bool
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointOrder:
    """What the writer of a checkpoint under AllReduce has to do.

    Attributes:
        cut: number of the checkpoint.
        at_step: copy the state after this step, or after the next one that is finished.
        when_paused: copy it only when no rank trains any more.
    """

    cut: int
    at_step: int
    when_paused: bool


@dataclass(frozen=True, slots=True)
class WorldView:
    """The rounds as one worker must see them. Every view is complete, so a lost one does no harm.

    Attributes:
        version: changes whenever a worker may have to act.
        round: the newest round.
        phase: where it is.
        is_member: whether the worker is a member of it.
        members: uids, by rank.
        step: the step from which the round starts.
        holders: members that had the state of this step when the round was announced.
        committed_step: the steps up to it are in the ledger.
        must_change: whether the members leave the round together after the next step.
        reason: why no round runs, or why the world changes; for people.
        leases: the worker's training leases, with the done records of each.
        last_lease: the newest lease number of any worker: a lease up to it that is not in ``leases`` is lost.
        must_pause: train nothing until the view says otherwise: an evaluation of this state is to be done, the job is
            to stop, or no checkpoint can be written.
        evaluate_at: the step after which all pause for the next evaluation; 0: there is none.
        restore_cut: the checkpoint with the state of ``step`` if there are no holders; 0: it is the initial state.
        checkpoint: the checkpoint that the worker has to write; None: none.
        learning_rate: the rate that a callback of the job has set; None: that of the worker's state.
        epoch_left: with ``strategy.global_batch``, the records of the epoch that are not done at ``committed_step``.
        epoch: whose records are processed; in a round without holders all ranks have the same.
        may_be_short: whether a step may have fewer records: a worker holds records that crashed another one.
        source: for a worker outside, the member that lets it follow the running round; empty: there is none.
        helpers: further members, on other nodes, that send it parts of the state.
        copy_at: the step after which the worker copies its variables for an evaluation; 0: it does not.
        evaluated_step: the step whose copies are being evaluated: the worker keeps one that it has. 0: there is none.
    """

    version: int
    round: RoundId
    phase: RoundPhase
    is_member: bool
    members: tuple[str, ...]
    step: int
    holders: tuple[str, ...]
    committed_step: int
    must_change: bool
    reason: str
    leases: Mapping[int, int]
    last_lease: int
    must_pause: bool
    evaluate_at: int
    restore_cut: int = 0
    checkpoint: CheckpointOrder | None = None
    learning_rate: float | None = None
    epoch_left: int = 0
    may_be_short: bool = False
    source: str = ""
    helpers: tuple[str, ...] = ()
    copy_at: int = 0
    evaluated_step: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class NotifyWorkers:
    """Answer the workers that wait for a newer view of the world."""


@dataclass(frozen=True, slots=True)
class StartPod:
    """Ask the cluster to start a pod."""

    role: Role
    index: int
    options: PodOptions = DEFAULT_OPTIONS


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Ask the cluster to delete a pod."""

    uid: str
    grace: float


@dataclass(frozen=True, slots=True)
class AttachPs:
    """Attach a PS to this master.

    Attributes:
        restore_cut: the cut whose checkpoint the PS loads first.
        complete: whether no PS applied a step after that checkpoint, so that it has all steps of each lease.
    """

    uid: str
    lowest_open_lease: int
    revoked_leases: tuple[int, ...]
    # A PS believes no lease of an earlier master that is not named as live. So leases that a master
    # granted after it was cut off have no effect.
    live_leases: tuple[int, ...]
    # Updates that are paused for this cut or an earlier one resume. A new master thereby ends the
    # pause of a cut that its predecessor left incomplete.
    passed_cut: int
    restore_cut: int | None = None
    # True only after a planned handover, where updates are paused until the successor has loaded.
    complete: bool = False


@dataclass(frozen=True, slots=True)
class RevokeLeases:
    """Make a PS refuse these leases and report how many steps of each it has applied."""

    ps: str
    leases: tuple[int, ...]
    lowest_open_lease: int


@dataclass(frozen=True, slots=True)
class PrepareCut:
    """Make every PS allocate memory for its copy of a cut; updates continue."""

    cut: int


@dataclass(frozen=True, slots=True)
class HoldUpdates:
    """Make every PS stop admitting steps and report which ones it has applied."""

    cut: int


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Make every PS wait for the steps below ``included_steps`` of each lease, copy its state, and resume.

    ``lowest_open_lease``: every lease below was closed when the ledger position of the cut was taken.
    ``keep_paused``: further steps are admitted only after ``ReleaseCut``.
    """

    cut: int
    checkpoint: bool
    pin: bool
    lowest_open_lease: int = 0
    # The largest number that any PS has: a step that one PS has is on its way to the others,
    # because a worker sends each step to all of them and the next one only after all have answered.
    included_steps: Mapping[int, int] = field(default_factory=dict)
    # For a planned handover: the checkpoint must contain everything that was ever applied.
    keep_paused: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseCut:
    """Resume updates: the cut was aborted, or updates need not stay paused after it."""

    cut: int


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """Write the manifest with this ledger position once every PS has its shard on disk.

    ``dataset`` is written too: with it, a checkpoint can replace a damaged journal. ``shards`` are the files that
    workers have written already (strategy AllReduce).
    """

    cut: int
    step: int
    version: int
    ledger: Mapping[str, Any]
    pause: float
    dataset: Mapping[str, Any] = field(default_factory=dict)
    shards: tuple[WrittenShard, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyCheckpoint:
    """Make an existing checkpoint the newest one, under the number ``cut`` and with this ledger position."""

    source: int
    cut: int
    version: int
    ledger: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Unpin:
    """Release a pinned cut: nobody reads it any more."""

    cut: int


@dataclass(frozen=True, slots=True)
class TrainingStalled:
    """Training stalled. The shell turns this into text because the core has no calendar.

    Attributes:
        missing: the parameter servers that training waits for.
        unsaved: why no checkpoint can be written, if training waits for one.
    """

    kind: ClassVar[str] = StallBegan.kind
    missing: tuple[MissingPs, ...] = ()
    unsaved: str = ""


@dataclass(frozen=True, slots=True)
class PhaseEntered:
    """The job entered a new phase. For the master's log only: users see the phase in the status."""

    kind: ClassVar[str] = "phase"
    phase: str
    reason: str


@dataclass(frozen=True, slots=True)
class EmitEvent:
    """Append an event to ``events.jsonl``; the writer adds the time."""

    event: PublishedEvent | TrainingStalled | PhaseEntered


@dataclass(frozen=True, slots=True)
class EndJob:
    """The job is over; ``phase`` is Done, Failed or Interrupted.

    Attributes:
        detail: further lines for users, such as their traceback.
        failure_kind: ``input`` (the user's model, feed or data), ``nan``, ``refused``, ``crash``, ``storage``
            or ``job``.
    """

    phase: str
    reason: str
    detail: str = ""
    failure_kind: str = "job"


RequestAnswer = LeaseReply | WaitForWork | StopWork | Acknowledged | MayEnd | WorldView
CoreCommand = (
    RecordEntry
    | RequestAnswer
    | StartPod
    | DeletePod
    | AttachPs
    | RevokeLeases
    | PrepareCut
    | HoldUpdates
    | TakeSnapshot
    | ReleaseCut
    | SaveCheckpoint
    | CopyCheckpoint
    | Unpin
    | NotifyWorkers
    | EmitEvent
    | EndJob
)
