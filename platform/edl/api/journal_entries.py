"""The entries of a job's journal: one class for each kind.

An entry is one JSON object on disk. Its ``kind`` selects the class; its other members are the fields of the class, in
their order. ``edl.core.journal_application`` applies them to the job's state. docs/design/0002-record-accounting.md
has a table of all entries.

Later versions must read the journals of earlier ones. Therefore kinds and field names never change. A field that was
added later has the default None and is not written while it is None. Unknown members are ignored. An unknown kind or a
missing field raises KeyError: a job must not continue from a journal that it understands only in part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self, get_origin, get_type_hints

Sources = Sequence[Sequence[Any]]
"""``[name, records]`` of each source of a data set."""
LedgerPosition = Mapping[str, Any]
"""A ledger as ``Ledger.to_snapshot`` returns it, with the additional members of a checkpoint's manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One decision of the master."""

    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON; ``from_json`` returns an equal entry."""
        written: dict[str, Any] = {"kind": self.kind}
        for field in _fields_of(self.kind):
            value = getattr(self, field.name)
            # a field that was added later is absent in older journals, and is written only if it has a value
            if value is not None or field.required:
                written[field.name] = list(value) if isinstance(value, tuple) else value
        return written

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> JournalEntry:
        """Parse the result of ``to_json``.

        Raises:
            KeyError: the kind is unknown, or a field is missing.
        """
        return ENTRY_CLASSES[entry["kind"]].from_fields(entry)

    @classmethod
    def from_fields(cls, members: Mapping[str, Any]) -> Self:
        """Make an entry of this class from the members of a JSON object; unknown members are ignored.

        Raises:
            KeyError: a field is missing.
        """
        values = {}
        for name, required, is_tuple in _fields_of(cls.kind):
            if required or name in members:
                value = members[name]
                values[name] = tuple(value) if is_tuple else value
        return cls(**values)


# ------------------------------------------------------------------------------------------------ masters and the job


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterStarted(JournalEntry):
    """A new master takes over. ``number`` is its incarnation; its lease counter starts at zero."""

    kind: ClassVar[str] = "incarnation"
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEntered(JournalEntry):
    """The sources of each data set. Together with the spec they determine which ranges there are to lease.

    Attributes:
        order: window, seed and blocks of the shuffled order. None: training records are not shuffled, and ranges are
            ranges of files, as in older journals.
        digests: of the files of each data set (``edl.data.file_digests``). None: unknown, as in older journals.
    """

    kind: ClassVar[str] = "dataset"
    training: Sources | None = None
    validation: Sources | None = None
    prediction: Sources | None = None
    order: Mapping[str, Any] | None = None
    digests: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPhaseChanged(JournalEntry):
    """The job entered a phase; ``reason`` is text for people."""

    kind: ClassVar[str] = "phase"
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResumed(JournalEntry):
    """``--resume`` continues an ended run. Workers of earlier entries ended with it and do not count as lost."""

    kind: ClassVar[str] = "resumed"


# ------------------------------------------------------------------------------------------------ leases


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGranted(JournalEntry):
    """A range of records is leased to a worker.

    Attributes:
        task: kind of the task: training, evaluation, prediction, export.
        work: epoch, source, start and end. With a shuffled order, the source of a training lease is empty, and start
            and end are positions in the epoch.
        minibatch: records per step.
        worker: uid of the worker's pod.
    """

    kind: ClassVar[str] = "leased"
    lease: int
    task: str
    work: tuple[int, str, int, int]
    minibatch: int
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseProgressed(JournalEntry):
    """All steps of a lease below ``through`` are done.

    Attributes:
        loss: mean training loss of the newly done steps.
        skipped: number of corrupt records that were skipped.
        updates_skipped: number of the newly done steps that changed nothing (``train.on_nan``).
    """

    kind: ClassVar[str] = "progress"
    lease: int
    through: int
    loss: float | None = None
    skipped: int | None = None
    updates_skipped: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseCompleted(JournalEntry):
    """The rest of a lease's range is done; ``result`` is the result of an evaluation, an export or a model's file."""

    kind: ClassVar[str] = "done"
    lease: int
    result: Any = None
    loss: float | None = None
    skipped: int | None = None
    updates_skipped: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationStarted(JournalEntry):
    """Training leases of a worker are being revoked. Each parameter server must answer how many steps it has applied.

    Attributes:
        in_flight: the worker may have had a minibatch in work, which then counts as repeated.
        crashed: the worker ended by an error of its own.
    """

    kind: ClassVar[str] = "revoking"
    worker: str
    leases: tuple[int, ...]
    reason: str
    in_flight: bool
    crashed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReturned(JournalEntry):
    """A lease is closed after ``through`` done steps; the rest of its range will be leased again.

    Attributes:
        partial: steps that some parameter servers have applied and others have not.
        repeated: number of records that are trained again.
        extra: how many of the partial steps each parameter server has applied, by uid.
        quarantine: number of records that are quarantined.
        records: the quarantined records by source, ``[[first, after last], ...]``; only with a shuffled order, where
            positions of the range are not records of a file.
    """

    kind: ClassVar[str] = "returned"
    lease: int
    through: int
    partial: int
    repeated: int
    extra: Mapping[str, int] | None = None
    quarantine: int | None = None
    records: Mapping[str, Any] | None = None


# ------------------------------------------------------------------------------------------------ cuts and checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class CutAnnounced(JournalEntry):
    """The number of a cut is used, even if the cut is aborted later."""

    kind: ClassVar[str] = "cut_announced"
    cut: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CutTaken(JournalEntry):
    """Every parameter server has copied its state for the cut.

    Attributes:
        version: updates that were applied before the cut.
        below: leases with this number or a higher one were granted after the cut; None in journals of older versions.
        lacking: updates that each parameter server lacks, by index; None: they were not counted.
        differs: steps done minus steps applied, by uid, as far as losses do not explain the difference.
        applied: number of steps of each live lease that the cut contains, by number of the lease.
        pause: longest pause of a parameter server for the cut, in seconds.
    """

    kind: ClassVar[str] = "cut_taken"
    cut: int
    step: int
    version: int
    below: int | None = None
    lacking: Mapping[str, int] | None = None
    differs: Mapping[str, int] | None = None
    applied: Mapping[str, int]
    pause: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CutCalledOff(JournalEntry):
    """A cut was aborted. The entry is for people; when it is replayed, it only marks the number as used."""

    kind: ClassVar[str] = "cut_off"
    cut: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten(JournalEntry):
    """A checkpoint is complete on disk; ``ledger`` is the ledger position that a rollback to it restores."""

    kind: ClassVar[str] = "saved"
    cut: int
    step: int
    version: int
    ledger: LedgerPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReplaced(JournalEntry):
    """No parameter server can read the newest checkpoint, so this older one replaces it. A rollback follows."""

    kind: ClassVar[str] = "checkpoint_back"
    cut: int
    step: int
    version: int
    ledger: LedgerPosition
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BestWeightsRestored(JournalEntry):
    """Checkpoint ``of`` has the best weights. Its copy ``cut`` is now the newest checkpoint; ``metrics`` are its."""

    kind: ClassVar[str] = "best_restored"
    cut: int
    of: int
    step: int
    version: int
    ledger: LedgerPosition
    metrics: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalCutPinned(JournalEntry):
    """The cut at the end of training is pinned for evaluation and export; 0: its pin is released."""

    kind: ClassVar[str] = "final"
    cut: int


# ------------------------------------------------------------------------------------------------ evaluations


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationBegun(JournalEntry):
    """An evaluation of the pinned cut begins; its tasks are granted and completed as leases.

    Attributes:
        of_copy: whether workers of AllReduce evaluate copies while the others train; None: no.
    """

    kind: ClassVar[str] = "evaluation"
    pin: int
    step: int
    final: bool
    of_copy: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationCompleted(JournalEntry):
    """An evaluation is complete; ``callbacks`` is the state of the job's callbacks after it (``Callbacks.state``)."""

    kind: ClassVar[str] = "evaluated"
    metrics: Mapping[str, float | None]
    step: int
    pin: int
    final: bool
    callbacks: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationAbandoned(JournalEntry):
    """The evaluation is abandoned, and its pin is released."""

    kind: ClassVar[str] = "evaluation_off"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbacksDeclared(JournalEntry):
    """Workers declared these Keras callbacks, with the user's arguments."""

    kind: ClassVar[str] = "callbacks"
    declared: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedByCallback(JournalEntry):
    """A callback of the user's ended training after ``step``; with parameter servers, after what was leased then."""

    kind: ClassVar[str] = "stopped_by_callback"
    step: int


# ------------------------------------------------------------------------------------------------ parameter servers


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersHeld(JournalEntry):
    """The parameter server with uid ``ps`` holds the parameters of its index: losing the process loses them."""

    kind: ClassVar[str] = "holds"
    index: int
    ps: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersHandedOver(JournalEntry):
    """The checkpoint of ``cut`` has everything that a leaving parameter server holds, so losing it loses nothing.

    Updates stay paused until its index has a holder again.
    """

    kind: ClassVar[str] = "handed_over"
    index: int
    ps: str
    cut: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersRestored(JournalEntry):
    """A parameter server loads the newest checkpoint. It may lack steps of leases below ``born``."""

    kind: ClassVar[str] = "restored"
    ps: str
    born: int
    index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersRolledBack(JournalEntry):
    """Parameters went back to a checkpoint, or to the start.

    With a ``ledger``, all parameters and the ledger went back: no lease is held, and no parameter server is a holder.
    Without one, only the parameters of the parameter server with the index ``ps`` went back.

    Attributes:
        cut: number of the checkpoint; 0: the start of the job.
        records: number of records that are leased again.
        updates: number of updates that are lost without leasing records again; only without a ledger.
    """

    kind: ClassVar[str] = "rolled_back"
    cut: int
    records: int
    ledger: LedgerPosition | None
    updates: int | None = None
    ps: int | None = None
    reason: str


# ------------------------------------------------------------------------------------------------ rounds of AllReduce


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldAnnounced(JournalEntry):
    """A new round of strategy AllReduce; its members hear of it after this entry is on disk.

    Attributes:
        incarnation, round: the identity of the round.
        members: uids of the workers, by rank.
        step: the step from which the round starts.
        holders: members that have the state of this step. Empty: nobody has one, so rank 0 builds it.
        joined: members that were not in the round before and kept no leases.
        reason: why the world changed, for people.
        ledger: the ledger that belongs to the state that rank 0 builds; None: there are holders, and the ledger stays.
        records: number of records that are leased again because of that.
        cut: the checkpoint that rank 0 loads; None: it builds the initial state, or there are holders.
        left: members of the round before that were told to leave and reported their state: they computed nothing in
            vain. None: there are none.
    """

    kind: ClassVar[str] = "world"
    incarnation: int
    round: int
    members: tuple[str, ...]
    step: int
    holders: tuple[str, ...]
    joined: tuple[str, ...]
    reason: str
    ledger: LedgerPosition | None = None
    records: int | None = None
    cut: int | None = None
    left: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldStarted(JournalEntry):
    """All members of the newest round have the state of ``step``: the steps up to there are done.

    Attributes:
        done: ``[lease, records]``, the done records of each lease whose number rose, counted from its start; and with
            corrupt ones among them ``[lease, records, skipped]``.
        returned: leases of workers that are not in the round any more; their rest is leased again.
        repeated: records of the minibatches that lost workers may have computed, and that are trained again.
        difference: why its members may round differently; empty if all compute the same bits.
        updates_skipped: number of the newly done steps that changed nothing (``train.on_nan``).
    """

    kind: ClassVar[str] = "world_started"
    step: int
    done: Sequence[Sequence[int]]
    returned: tuple[int, ...]
    repeated: int = 0
    difference: str = ""
    updates_skipped: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsApplied(JournalEntry):
    """Every member of the running round has applied the steps up to ``step``.

    Attributes:
        done: as in ``WorldStarted``.
        loss: mean loss of the steps since the last such entry; None: unknown.
        updates_skipped: as in ``WorldStarted``.
    """

    kind: ClassVar[str] = "steps"
    step: int
    done: Sequence[Sequence[int]]
    loss: float | None = None
    updates_skipped: int | None = None


# ------------------------------------------------------------------------------------------------ workers


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerWarned(JournalEntry):
    """A worker warned the user. Texts of one ``topic`` differ only in what they name."""

    kind: ClassVar[str] = "worker_warned"
    topic: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerChanged(JournalEntry):
    """A worker was requested (no ``uid``), runs (``uid``) or ended (``lost`` is 1).

    Indexes are never reused, so a worker that is requested later has a higher index.
    """

    kind: ClassVar[str] = "worker"
    index: int
    uid: str | None = None
    lost: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDismissed(JournalEntry):
    """A worker was told to exit because the job wants fewer workers; it does not count as lost."""

    kind: ClassVar[str] = "dismissed"
    uid: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersScaled(JournalEntry):
    """The wanted number of workers changed, by ``edl scale``; None: as in the spec."""

    kind: ClassVar[str] = "scaled"
    min: int | None
    max: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemoryRaised(JournalEntry):
    """Workers with index ``since`` or a higher one get the memory factor to the power of ``raised``."""

    kind: ClassVar[str] = "memory"
    raised: int
    since: int


ENTRY_CLASSES: Mapping[str, type[JournalEntry]] = {
    entry.kind: entry
    for entry in (
        MasterStarted,
        DatasetEntered,
        JobPhaseChanged,
        JobResumed,
        LeaseGranted,
        LeaseProgressed,
        LeaseCompleted,
        RevocationStarted,
        LeaseReturned,
        CutAnnounced,
        CutTaken,
        CutCalledOff,
        CheckpointWritten,
        CheckpointReplaced,
        BestWeightsRestored,
        FinalCutPinned,
        EvaluationBegun,
        EvaluationCompleted,
        EvaluationAbandoned,
        CallbacksDeclared,
        StoppedByCallback,
        ParametersHeld,
        ParametersHandedOver,
        ParametersRestored,
        ParametersRolledBack,
        WorldAnnounced,
        WorldStarted,
        StepsApplied,
        WorkerWarned,
        WorkerChanged,
        WorkerDismissed,
        WorkersScaled,
        WorkerMemoryRaised,
    )
}
"""Every kind of entry that a journal may have."""


class _Field(NamedTuple):
    name: str
    required: bool
    is_tuple: bool


@cache
def _fields_of(kind: str) -> tuple[_Field, ...]:
    entry = ENTRY_CLASSES[kind]
    # JSON has no tuples: fields that are tuples are written as lists and converted back
    hints = get_type_hints(entry)
    return tuple(
        _Field(field.name, field.default is MISSING, get_origin(hints[field.name]) is tuple) for field in fields(entry)
    )
