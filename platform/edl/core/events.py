"""Events and commands: the interface of ``edl.core.job``.

Events are facts that the master's shell saw; commands are wishes that it carries out. All are values: a failure is a
list of events that can be replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from edl.api.cluster_port import DEFAULT_OPTIONS, PodOptions, PodStatus, Role
from edl.api.events import JobEvent as PublishedEvent
from edl.api.events import StallBegan
from edl.api.journal_entries import JournalEntry
from edl.core.cuts import SavedCheckpoint
from edl.core.evaluation import CallbackSpec
from edl.core.shuffle import BlockLayout, RecordRange

# ------------------------------------------------------------------------------------------------ events


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
        blocks: of the training sources; None: their reader has no random access.
    """

    training: tuple[tuple[str, int], ...] = ()
    validation: tuple[tuple[str, int], ...] = ()
    prediction: tuple[tuple[str, int], ...] = ()
    blocks: BlockLayout | None = None


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
        cut: that it takes no part in: the next one may succeed; 0: it refuses what a job cannot do without.
        kind: of the refusal; ``storage`` when a checkpoint cannot be read.
    """

    uid: str
    kind: str
    message: str
    cut: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointRefused:
    """A PS cannot read the checkpoint that it was asked to load.

    Attributes:
        cut: of the checkpoint.
        fallback: the newest one before it of which every byte is intact; None when there is none.
        skipped_reasons: those in between, or all, and why they cannot be used; for people.
    """

    uid: str
    cut: int
    message: str
    fallback: SavedCheckpoint | None = None
    skipped_reasons: str = ""


@dataclass(frozen=True, slots=True)
class ModelDeclared:
    """A worker declared the variables and the optimizer to every PS.

    Attributes:
        callbacks: those that the master is to decide; None if the worker does not say.
    """

    worker: str
    callbacks: tuple[CallbackSpec, ...] | None = None


@dataclass(frozen=True, slots=True)
class LeaseRequested:
    """A worker requests work.

    Attributes:
        known_leases: the leases that it knows of; None if it does not say.
    """

    worker: str
    known_leases: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class LeaseProgress:
    """The progress of one lease: steps below ``done_steps`` are applied on all PS."""

    lease: int
    done_steps: int
    loss_sum: float = 0.0
    loss_steps: int = 0
    skipped_records: int = 0


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """Batched progress of a worker; also its heartbeat."""

    worker: str
    steps: tuple[LeaseProgress, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskReported:
    """A worker finished a task."""

    worker: str
    lease: int
    last_progress: LeaseProgress | None = None
    result: Any = None


@dataclass(frozen=True, slots=True)
class WorkerLeft:
    """A worker that was asked to stop exits; none of its pushes is in flight."""

    worker: str
    reason: str
    steps: tuple[LeaseProgress, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A worker cannot continue. ``kind``: input, nan and refused end the job; after crash its pod exits."""

    worker: str
    kind: str
    message: str
    detail: str = ""
    lease: int = 0


@dataclass(frozen=True, slots=True)
class LeasesRevoked:
    """A PS refuses these leases from now on; the counts say how many steps of each it had applied.

    Attributes:
        first_steps: the first step of each that it let in since it began, or went back to a checkpoint.
    """

    ps: str
    applied_steps: Mapping[int, int]
    first_steps: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CutPrepared:
    """A PS has allocated memory for its copy of a cut."""

    ps: str
    cut: int


@dataclass(frozen=True, slots=True)
class UpdatesHeld:
    """A PS admits no further steps for a cut.

    The counts say how many it has applied of each lease it has seen.
    """

    ps: str
    cut: int
    applied_steps: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A PS has made its copy of a cut; updates were paused for ``pause`` seconds.

    Attributes:
        admitted_steps: steps that it let in since it began, or went back to a checkpoint; None if it does not count
            them.
    """

    ps: str
    cut: int
    version: int
    pause: float
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
        reason: for people.
        checkpoint_seconds: how long a final checkpoint may take before the job ends; 0: it ends now.
    """

    reason: str
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
        late_seconds: seconds by which this comes later than it was due: the master itself was held up, and heard
            nobody.
        speaking_workers: workers whose messages are in the master's hands, waiting for its disk: they cannot say more.
    """

    late_seconds: float = 0.0
    speaking_workers: frozenset[str] = frozenset()


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
    | Tick
)

# ------------------------------------------------------------------------------------------------ commands


@dataclass(frozen=True, slots=True)
class MissingPs:
    """A PS that the job is waiting for.

    Attributes:
        why: for people; what follows "ps-0, ".
        since: when that began, where the cluster says so: unix seconds; 0: it does not.
    """

    index: int
    why: str
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """Append an entry to the journal. Answers of the same batch are held back until it is on disk."""

    entry: JournalEntry


@dataclass(frozen=True, slots=True)
class LeaseReply:
    """Answer: a lease for the worker.

    Attributes:
        timeout_seconds: without progress for so long, the lease is revoked.
        window: the work is positions of a shuffled order with such windows; 0: records of a source.
        order: fingerprint of that order.
        one_by_one: each minibatch is read and fed after the one before it is in (``lease_timeouts.CrashSuspects``).
    """

    lease: int
    kind: str
    record_range: RecordRange
    minibatch: int
    timeout_seconds: float
    pin: int = 0
    step: int = 0
    payload: Any = None
    window: int = 0
    order: str = ""
    one_by_one: bool = False


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
        lost_leases: leases that are not the worker's (any more).
        refusal: why a report cannot be entered; nothing of it was.
    """

    lost_leases: tuple[int, ...] = ()
    fatal: bool = False
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class MayEnd:
    """Answer to a leaving PS: whether it may exit now."""

    value: bool
    reason: str


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
        restore_cut: the cut whose checkpoint it loads first.
        complete: nothing was applied after that checkpoint: what it says of leases is all that there is.
    """

    uid: str
    lowest_open_lease: int
    revoked_leases: tuple[int, ...]
    live_leases: tuple[int, ...]
    passed_cut: int
    restore_cut: int | None = None
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

    ``lowest_open_lease``: every lease below was closed when the ledger's half of the cut was taken; a later one would
    not do. ``keep_paused``: the others are not let in before ``ReleaseCut``.
    """

    cut: int
    checkpoint: bool
    pin: bool
    lowest_open_lease: int = 0
    included_steps: Mapping[int, int] = field(default_factory=dict)
    keep_paused: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseCut:
    """Resume updates: the cut was aborted, or updates need not stay paused after it."""

    cut: int


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """Write the manifest with this ledger position once every PS has its shard on disk.

    ``dataset`` goes into it too: with it a checkpoint can stand for a journal that was damaged.
    """

    cut: int
    step: int
    version: int
    ledger: Mapping[str, Any]
    pause: float
    dataset: Mapping[str, Any] = field(default_factory=dict)


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
        missing: parameter servers for want of which training stands.
        unsaved: why no checkpoint can be written, if training stands for that.
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
        detail: more lines for people: the user's traceback.
        failure_kind: of a failure: input (the user's model, feed or data), nan, refused, crash, storage or job.
    """

    phase: str
    reason: str
    detail: str = ""
    failure_kind: str = "job"


RequestAnswer = LeaseReply | WaitForWork | StopWork | Acknowledged | MayEnd
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
    | EmitEvent
    | EndJob
)
