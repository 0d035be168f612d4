"""The entries of a job's journal: one class for each kind.

An entry is one JSON object on disk; ``kind`` says which class it is of, and its other members are the class's fields,
in their order. What each entry makes true is in ``edl.core.state``; the table of entries is in
docs/design/0002-record-accounting.md.

Journals outlive the version that wrote them. So kinds and field names never change, a field that was added later has
the default None and is left out of the object while it is None, and members that this version does not know are
ignored. An unknown kind and a missing field raise KeyError: nobody goes on from a journal that is only half understood.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, ClassVar, NamedTuple, Self, get_origin, get_type_hints

Sources = Sequence[Sequence[Any]]
"""``[name, records]`` of each source of a part of the data set."""
LedgerPosition = Mapping[str, Any]
"""A ledger as ``Ledger.to_snapshot`` gives it, with what a checkpoint says beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """A decision as the journal keeps it."""

    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """The object that is written; ``from_json`` gives an equal entry back."""
        written: dict[str, Any] = {"kind": self.kind}
        for field in _fields_of(self.kind):
            value = getattr(self, field.name)
            if value is not None or field.required:
                written[field.name] = list(value) if isinstance(value, tuple) else value
        return written

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> JournalEntry:
        """The entry of an object that was read.

        Raises:
            KeyError: its kind is unknown, or a field is missing.
        """
        return ENTRY_CLASSES[entry["kind"]].from_fields(entry)

    @classmethod
    def from_fields(cls, members: Mapping[str, Any]) -> Self:
        """An entry of this kind; members that are no fields are ignored.

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
    """A new master decides from here on; lease counters begin anew."""

    kind: ClassVar[str] = "incarnation"
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetEntered(JournalEntry):
    """What the records of the job are. Together with the spec this gives the plan.

    Attributes:
        order: window, seed and blocks of the shuffled order; None: ranges are of files, as in older journals.
    """

    kind: ClassVar[str] = "dataset"
    training: Sources | None = None
    validation: Sources | None = None
    prediction: Sources | None = None
    order: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPhaseChanged(JournalEntry):
    """The job entered a phase, for a reason that people read."""

    kind: ClassVar[str] = "phase"
    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResumed(JournalEntry):
    """``--resume``: the job is not over. Workers that are entered here ended with it and do not count as lost."""

    kind: ClassVar[str] = "resumed"


# ------------------------------------------------------------------------------------------------ leases


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGranted(JournalEntry):
    """A range of records is in the hands of a worker.

    Attributes:
        task: kind of the work.
        work: epoch, source, start and end; with a shuffled order the source of a training lease is empty, and start and
            end are positions of the epoch.
        worker: uid of its pod.
    """

    kind: ClassVar[str] = "leased"
    lease: int
    task: str
    work: tuple[int, str, int, int]
    minibatch: int
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseProgressed(JournalEntry):
    """Steps of a lease below ``through`` are done.

    Attributes:
        loss: mean over the steps that the report is about.
        skipped: corrupt records that were left out.
    """

    kind: ClassVar[str] = "progress"
    lease: int
    through: int
    loss: float | None = None
    skipped: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseCompleted(JournalEntry):
    """The rest of a range is done; ``result`` is that of an evaluation, an export or a best model."""

    kind: ClassVar[str] = "done"
    lease: int
    result: Any = None
    loss: float | None = None
    skipped: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationStarted(JournalEntry):
    """Training leases of a worker are on their way back; the parameter servers are asked how far they got.

    Attributes:
        in_flight: a minibatch may have been in the worker's hands.
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
    """What is after ``through`` steps of a lease is to be leased again.

    Attributes:
        partial: steps that some parameter servers applied and others did not.
        repeated: records that are worked on again.
        extra: how many of the partial steps each parameter server let in, by uid.
        quarantine: records that are given up.
        records: those records by source, ``[[first, after last], ...]``, where positions are not records.
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
    """The number of a cut is used from now on, whatever becomes of the cut."""

    kind: ClassVar[str] = "cut_announced"
    cut: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CutTaken(JournalEntry):
    """Every parameter server has its copy.

    Attributes:
        version: updates that were applied before it.
        below: leases from this number on were granted later; journals of older versions do not say.
        lacking: updates that each parameter server lacks, by index; None: they do not count.
        differs: steps done less steps applied that nothing explains, by uid.
        applied: steps in the cut of each live lease, by its number.
        pause: seconds for which updates waited at most.
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
    """A cut came to nothing. This changes nothing but which numbers are used: it is for people."""

    kind: ClassVar[str] = "cut_off"
    cut: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten(JournalEntry):
    """The newest checkpoint is complete on disk; ``ledger`` is the position to go back to."""

    kind: ClassVar[str] = "saved"
    cut: int
    step: int
    version: int
    ledger: LedgerPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReplaced(JournalEntry):
    """No parameter server can read the newest checkpoint: this older one stands in. A rollback follows."""

    kind: ClassVar[str] = "checkpoint_back"
    cut: int
    step: int
    version: int
    ledger: LedgerPosition
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BestWeightsRestored(JournalEntry):
    """Checkpoint ``of`` has the best weights; its copy ``cut`` is the newest one, and ``metrics`` are its values."""

    kind: ClassVar[str] = "best_restored"
    cut: int
    of: int
    step: int
    version: int
    ledger: LedgerPosition
    metrics: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalCutPinned(JournalEntry):
    """The cut at the end of training is pinned; 0: it is not any more."""

    kind: ClassVar[str] = "final"
    cut: int


# ------------------------------------------------------------------------------------------------ evaluations


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationBegun(JournalEntry):
    """An evaluation of the pinned cut begins; its tasks are granted and completed as leases."""

    kind: ClassVar[str] = "evaluation"
    pin: int
    step: int
    final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationCompleted(JournalEntry):
    """An evaluation has its values; ``callbacks`` are from then on what ``Callbacks.state`` said."""

    kind: ClassVar[str] = "evaluated"
    metrics: Mapping[str, float | None]
    step: int
    pin: int
    final: bool
    callbacks: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationAbandoned(JournalEntry):
    """The evaluation is given up: its version is not kept any more."""

    kind: ClassVar[str] = "evaluation_off"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbacksDeclared(JournalEntry):
    """Workers declared these callbacks, with the user's arguments."""

    kind: ClassVar[str] = "callbacks"
    declared: Sequence[Mapping[str, Any]]


# ------------------------------------------------------------------------------------------------ parameter servers


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersHeld(JournalEntry):
    """The parameter server with uid ``ps`` holds the parameters of its index: losing it is losing them."""

    kind: ClassVar[str] = "holds"
    index: int
    ps: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersHandedOver(JournalEntry):
    """The checkpoint of this cut has all that a parameter server holds; no update enters until its index has a
    holder."""

    kind: ClassVar[str] = "handed_over"
    index: int
    ps: str
    cut: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersRestored(JournalEntry):
    """A parameter server loads the newest checkpoint; it knows less of leases below ``born``."""

    kind: ClassVar[str] = "restored"
    ps: str
    born: int
    index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersRolledBack(JournalEntry):
    """Parameters went back to a checkpoint, or to the start.

    With a ``ledger`` all of them did, and the ledger with them: no lease is held, nobody holds parameters. Without one
    only those of the parameter server with the index ``ps`` did.

    Attributes:
        cut: of the checkpoint; 0: the start of the job.
        records: that are leased again.
        updates: that were lost without leasing records again; only without a ledger.
    """

    kind: ClassVar[str] = "rolled_back"
    cut: int
    records: int
    ledger: LedgerPosition | None
    updates: int | None = None
    ps: int | None = None
    reason: str


# ------------------------------------------------------------------------------------------------ workers


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerChanged(JournalEntry):
    """A worker was asked for (no ``uid``), runs (``uid``), or ended (``lost`` is 1). Later ones have a higher index."""

    kind: ClassVar[str] = "worker"
    index: int
    uid: str | None = None
    lost: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDismissed(JournalEntry):
    """A worker was told to go because fewer are wanted: it does not count as lost."""

    kind: ClassVar[str] = "dismissed"
    uid: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersScaled(JournalEntry):
    """So many workers are wanted from now on; None: as the spec says."""

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
        ParametersHeld,
        ParametersHandedOver,
        ParametersRestored,
        ParametersRolledBack,
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
    hints = get_type_hints(entry)
    return tuple(
        _Field(field.name, field.default is MISSING, get_origin(hints[field.name]) is tuple) for field in fields(entry)
    )
