"""Everything a master knows about its job.

``JobStateMachine`` (module ``job``) decides; what it decides about the ledger becomes journal entries, and ``apply``
is the only code that changes the ledger, live and in replay alike (module ``entries``). So a master that replays the
journal is where the one before it was. What is not in the journal (deadlines, PS attachments, cuts on their way) is
found again by looking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl.api.cluster_port import MOST_WORKERS
from edl.api.events import JobEvent
from edl.api.journal_entries import JobPhaseChanged, JournalEntry
from edl.core import entry_handlers
from edl.core.cuts import CheckpointFailure, CutStage, PendingCut, SavedCheckpoint
from edl.core.evaluation import CallbackSpec, CallbackState, EvaluationRound
from edl.core.events import CoreCommand, EmitEvent, EndJob, PhaseEntered, RecordEntry, TrainingStalled
from edl.core.job_counters import JobCounters
from edl.core.job_pods import JobPods
from edl.core.job_settings import JobSettings
from edl.core.lease_timeouts import CrashSuspects, LeaseHolder, LeaseRevocation, LeaseTimeouts
from edl.core.ledger import (
    DESCRIBE,
    EVALUATION,
    EXPORT,
    METRICS,
    PREDICTION,
    TRAINING,
    Lease,
    Ledger,
    RecordRange,
    single_task_ledger,
)
from edl.core.shuffle import RecordSource, ShuffleOrder

__all__ = [
    "DESCRIBE",
    "EVALUATION",
    "EXPORT",
    "METRICS",
    "PREDICTION",
    "TRAINING",
    "JobCounters",
    "JobSettings",
    "JobState",
    "SavedCheckpoint",
    "single_task_ledger",
]

INCARNATION_SHIFT = 32


@dataclass(slots=True)
class PendingStop:
    """A final checkpoint is to be taken, and then the job ends (module ``snapshots``).

    Attributes:
        reason: why the job ends.
        seconds: how long the checkpoint may take.
        deadline: when the job ends without it.
        cut: number of its cut; 0: none is begun yet.
        obstacle: why the last try came to nothing.
    """

    reason: str
    seconds: float
    deadline: float
    cut: int = 0
    obstacle: str = ""


@dataclass(slots=True)
class StallState:
    """Training stands for want of parameter servers, or of room for a checkpoint (module ``stall``).

    Attributes:
        since: when this master saw it first.
        told: indices of the PS that people were told of; True beside those whose node is unreachable.
        waits: for these PS, in the end.
        lost: what was said of PS on lost nodes, and since when they are: their successors are waited for.
        unsaved: it waits for a checkpoint that can be written.
        reported_unsaved: people were told of that.
    """

    since: float
    told: set[tuple[int, bool]] = field(default_factory=set)
    waits: tuple[str, ...] = ()
    lost: dict[int, tuple[str, float]] = field(default_factory=dict)
    unsaved: bool = False
    reported_unsaved: bool = False


@dataclass(slots=True)
class JobState:
    """Everything the master knows.

    Attributes:
        incarnation: of the master that decides now.
        ledgers: ranges by kind of work; a kind appears when there is such work.
        order: of the training records, if they are shuffled: its positions are what the training ledger is about.
        revoked: returned training leases at or above the floor.
        revocations: leases on their way back.
        final_pin: the cut at the end of training, once taken.
        scaled: least and most workers that somebody wants instead of what the spec says; None: as it says.
        synced: every pod that exists has been seen.
        cut: the cut on its way, if any; ``cut_number`` is the last number used.
        cut_ledger: the ledger's half of the cut on its way.
        cuts_blocked_until: no cut is begun before.
        checkpoint_failure: why the newest checkpoint was not written; None when it was.
        unconfirmed_leases: nor while one of these leases is held and no further step of it is in: how many are, by
            lease.
        stepped: when a worker last told of a step.
        stalled: training stands now; None: it does not.
        stopping: somebody wants the job to end after a final checkpoint.
        paused_cut: all PS hold updates after this cut, until every PS that was handed over has a successor; 0: none.
        paused_ps: uids of the PS that hold them; empty in a master that came later.
        leaving_ps: uids of PS that were told to go and wait until they may end.
        unsaved_ps: of them, those that may end though a checkpoint lacks what they hold, and why.
        best_restored: the checkpoint whose copy is the newest one, as ``restore_best_weights`` asks for; 0: none.
        declared: the callbacks that workers of this master declare; None: none has done so yet.
        copy_cut: number of the copy of a checkpoint on its way; 0: there is none.
        pins: the cuts that each PS keeps, by uid.
        has_more_missing: more pods are to be asked for than one event asks for.
        workers_replaced: PS and workers were replaced because the journal knew nothing of what they had done.
        crash_suspects: what is known of minibatches that ended workers.
        next_holder_check: until then ``deadline`` need not look at every holder.
    """

    settings: JobSettings
    incarnation: int = 1
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    validation: tuple[RecordSource, ...] = ()
    order: ShuffleOrder | None = None
    is_dataset_known: bool = False
    pods: JobPods = field(init=False)
    counters: JobCounters = field(default_factory=JobCounters)
    checkpoint: SavedCheckpoint | None = None
    round: EvaluationRound | None = None
    cut_number: int = 0
    last_evaluation: int = 0
    last_checkpoint: int = 0
    final_pin: int = 0
    paused_cut: int = 0
    scaled: tuple[int | None, int | None] = (None, None)
    evaluated_final: bool = False
    phase: str = "Starting"
    reason: str = ""
    lease_counter: int = 0
    revoked: set[int] = field(default_factory=set)
    revocations: list[LeaseRevocation] = field(default_factory=list)
    callbacks: CallbackState = field(default_factory=CallbackState)
    best_restored: int = 0
    # Found again after a restart, never in the journal:
    synced: bool = False
    cut: PendingCut | None = None
    cut_ledger: dict[str, Any] = field(default_factory=dict)
    cuts_blocked_until: float = 0.0
    checkpoint_failure: CheckpointFailure | None = None
    unconfirmed_leases: dict[int, int] = field(default_factory=dict)
    stepped: float = 0.0
    stalled: StallState | None = None
    stopping: PendingStop | None = None
    paused_ps: frozenset[str] = frozenset()
    leaving_ps: set[str] = field(default_factory=set)
    unsaved_ps: dict[str, str] = field(default_factory=dict)
    declared: tuple[CallbackSpec, ...] | None = None
    copy_cut: int = 0
    pins: dict[str, frozenset[int]] = field(default_factory=dict)
    workers_replaced: bool = False
    holders: dict[str, LeaseHolder] = field(default_factory=dict)
    patience: LeaseTimeouts = field(default_factory=LeaseTimeouts)
    has_more_missing: bool = False
    next_holder_check: float = float("-inf")
    crash_suspects: CrashSuspects = field(default_factory=CrashSuspects)
    range_crashes: dict[tuple[str, RecordRange], int] = field(default_factory=dict)
    """Workers that crashed in a range of an evaluation or a prediction, by kind and range."""
    failure: tuple[str, str] | None = None
    out: list[CoreCommand] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pods = JobPods(self.settings.ps)

    # ------------------------------------------------------------------ what others ask

    @property
    def training(self) -> Ledger | None:
        """The training ledger, once the data set is known."""
        return self.ledgers.get(TRAINING)

    @property
    def step(self) -> int:
        """Training steps that are done."""
        return self.training.done_steps if self.training else 0

    @property
    def ended(self) -> bool:
        """Whether the job is over."""
        return self.phase in ("Done", "Failed", "Interrupted")

    @property
    def main(self) -> Ledger | None:
        """The ledger that the job is about: training, or prediction."""
        return self.ledgers.get(PREDICTION if self.settings.predict else TRAINING)

    @property
    def workers_max(self) -> int:
        """As many workers as are asked for while there is work."""
        wanted = self.scaled[1]
        return min(MOST_WORKERS, max(1, self.settings.workers if wanted is None else wanted))

    @property
    def workers_min(self) -> int:
        """Below so many workers the job is called starved."""
        wanted = self.scaled[0]
        return min(self.workers_max, self.settings.workers_min if wanted is None else wanted)

    def is_training_over(self) -> bool:
        """Whether every step that is to be made is done."""
        return self.training is not None and self.over(self.training)

    def over(self, training: Ledger) -> bool:
        """Whether a training ledger, perhaps one of a cut, has nothing left that is to be done."""
        limit = self.settings.max_steps
        reached = limit is not None and training.done_steps >= limit
        return not training.leases and (reached or not training.waiting or bool(self.callbacks.stopped))

    def find(self, number: int) -> tuple[str, Lease] | None:
        """Kind and lease of a number that is held."""
        for kind, ledger in self.ledgers.items():
            if number in ledger.leases:
                return kind, ledger.leases[number]
        return None

    def worker_leases(self, worker: str) -> list[tuple[str, Lease]]:
        """What a worker holds and is not being taken back, oldest first."""
        held = [
            (kind, lease)
            for kind, ledger in self.ledgers.items()
            for lease in ledger.held(worker)
            if lease.revoking is None
        ]
        return sorted(held, key=lambda item: item[1].number)

    def next_lease_number(self) -> int:
        """The number that the next lease gets."""
        return (self.incarnation << INCARNATION_SHIFT) + self.lease_counter + 1

    def oldest(self) -> int:
        """The oldest training lease, or the number of the next one."""
        lowest = self.training.oldest_lease() if self.training else None
        return self.next_lease_number() if lowest is None else lowest

    def floor(self) -> int:
        """Every lease below is closed. Leases of a snapshot on its way stay open: their pushes may be, too."""
        floor = self.oldest()
        if self.cut is not None and self.cut.stage is CutStage.SNAPSHOT:
            floor = min([floor, *self.cut.within])
        return floor

    # ------------------------------------------------------------------ deciding

    def do(self, *commands: CoreCommand) -> None:
        """Add commands to what is being decided."""
        self.out.extend(commands)

    def emit(self, event: JobEvent | TrainingStalled | PhaseEntered) -> None:
        """Tell people what happened."""
        self.out.append(EmitEvent(event))

    def record(self, entry: JournalEntry) -> None:
        """Decide a change of the ledger: it is journaled and applied at once."""
        self.out.append(RecordEntry(entry))
        self.apply(entry)

    def end(self, phase: str, reason: str, detail: str = "", kind: str = "job") -> None:
        """End the job; later events change nothing."""
        if not self.ended:
            self.record(JobPhaseChanged(name=phase, reason=reason))
            self.do(EndJob(phase, reason, detail, kind))

    # ------------------------------------------------------------------ what is journaled

    def apply(self, entry: JournalEntry) -> None:
        """Make a journaled decision true. Never decides, never fails on an entry that ``handle`` produced."""
        entry_handlers.ENTRY_HANDLERS[type(entry)](self, entry)

    def replay_journal(self, snapshot: Mapping[str, Any] | None, journaled: Sequence[Mapping[str, Any]]) -> None:
        """Become what the journal says: a snapshot, if there is one, and the entries after it, as they are on disk."""
        if snapshot is not None:
            entry_handlers.restore_state(self, snapshot)
        for entry in journaled:
            self.apply(JournalEntry.from_json(entry))

    def snapshot(self) -> dict[str, Any]:
        """All that the journal's entries so far have led to, as JSON."""
        return entry_handlers.state_to_snapshot(self)
