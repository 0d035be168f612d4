"""The stages of a cut: prepared, updates paused, copied by every PS, saved; and what is known of checkpoints.

The protocol is described in docs/design/0002-record-accounting.md. This module keeps the answers of
parameter servers, and ``checkpointing`` acts on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from edl.api.round_id import RoundId
from edl.core.decision import Decision
from edl.core.world_rounds import NO_ROUND

HOLD_TIMEOUT_SECONDS = 5.0
"""Maximum seconds for which the PS pause updates while they wait for steps of the cut.

Each PS also enforces this limit itself, in case the master is gone.
"""
COPY_TIMEOUT_SECONDS = 60.0
"""Maximum seconds for the arrival of missing steps and the copies."""


class CutStage(StrEnum):
    """The stage that a cut has reached."""

    PREPARING = "preparing"
    """The PS allocate memory for their copies while updates continue."""
    HOLDING = "holding"
    """The PS admit no further steps and report which steps they have applied."""
    SNAPSHOT = "snapshot"
    """The PS admit the steps that at least one of them has applied, make their copies, and resume."""
    SAVING = "saving"
    """The copies are written to disk while updates continue."""


@dataclass(slots=True)
class PendingCut:
    """A cut in progress.

    Attributes:
        checkpoint: whether it is written to disk.
        pin: whether the PS keep it in memory for an evaluation or the export.
        keep_paused: whether updates stay paused after the copies, until ``ReleaseCut``.
        waiting_ps: uids of PS that have not answered in this stage yet.
        applied_steps: by PS, the applied steps of each lease when it paused updates.
        included_steps: by live lease, the number of its steps in the cut.
        next_lease: leases from this number on were granted later; the cut contains none of their steps.
        versions: by PS, its version when it made its copy.
        admitted_steps: by PS, the steps that it had admitted by then since it started or rolled back; a PS
            that does not count them is left out.
        deadline: when the pause of updates times out.
        pause: the longest pause of a PS, in seconds.
    """

    number: int
    checkpoint: bool
    pin: bool
    stage: CutStage = CutStage.PREPARING
    waiting_ps: set[str] = field(default_factory=set)
    applied_steps: dict[str, Mapping[int, int]] = field(default_factory=dict)
    included_steps: dict[int, int] = field(default_factory=dict)
    next_lease: int = 0
    versions: dict[str, int] = field(default_factory=dict)
    admitted_steps: dict[str, int] = field(default_factory=dict)
    deadline: float = float("inf")
    pause: float = 0.0
    keep_paused: bool = False

    def enter_stage(self, stage: CutStage, waiting_ps: Iterable[str], deadline: float = float("inf")) -> None:
        """Enter a stage and wait for every PS again."""
        self.stage, self.waiting_ps, self.deadline = stage, set(waiting_ps), deadline

    def record_answer(self, stage: CutStage, ps: str) -> bool:
        """Record that a PS answered for a stage; returns whether the cut was waiting for it."""
        if self.stage is not stage or ps not in self.waiting_ps:
            return False
        self.waiting_ps.discard(ps)
        return True

    @property
    def is_complete(self) -> bool:
        """Whether every PS has answered in this stage."""
        return not self.waiting_ps

    @property
    def awaits_copies(self) -> bool:
        """Whether some PS has not made its copy yet."""
        return self.stage is not CutStage.SAVING

    @property
    def may_pause_updates(self) -> bool:
        return self.stage in (CutStage.HOLDING, CutStage.SNAPSHOT)

    def is_overdue(self, now: float) -> bool:
        """Whether updates have been paused for longer than allowed."""
        return self.may_pause_updates and now >= self.deadline

    def find_unconfirmed_leases(
        self, done_steps: Mapping[int, int], restore_lease: Mapping[str, int]
    ) -> dict[int, str]:
        """The leases whose steps a PS may have lost, and that PS.

        A PS that rolled back to a checkpoint after a lease was granted cannot distinguish a step that is
        in flight from a step that it had and lost, until a push of that lease arrives.

        Args:
            done_steps: for each held lease, how many of its steps are known to be applied.
            restore_lease: by PS, the lowest lease granted since its last restore. It has seen every push
                of this lease and later ones.
        """
        unconfirmed = {}
        for lease, known in done_steps.items():
            applied_by_ps = {ps: applied[lease] for ps, applied in self.applied_steps.items() if lease in applied}
            # If no step of the lease was applied anywhere, the PS cannot have lost one.
            unaware = [ps for ps in self.applied_steps if ps not in applied_by_ps and restore_lease.get(ps, 0) > lease]
            if unaware and (known or max(applied_by_ps.values(), default=0)):
                unconfirmed[lease] = unaware[0]
        return unconfirmed

    def decide_included_steps(self, done_steps: Mapping[int, int]) -> Decision[dict[int, int] | None]:
        """How many steps of each live lease all PS must have in their copies; None if this cannot be known.

        A step that any PS has applied is in flight to the others, because a worker sends each step to all
        of them and sends the next one only after all have answered. So a PS waits for at most one step
        of each lease.

        Args:
            done_steps: as in ``find_unconfirmed_leases``; every lease is confirmed.
        """
        included_steps: dict[int, int] = {}
        for lease, known in done_steps.items():
            included_steps[lease] = max((applied.get(lease, 0) for applied in self.applied_steps.values()), default=0)
            # A worker has reported steps that it did not push. Such a cut would never be complete.
            if included_steps[lease] < known:
                return Decision(
                    None,
                    f"{known} steps of lease {lease} are done, but no PS applied more than {included_steps[lease]}",
                )
        return Decision(included_steps, "every PS gets the steps that any PS has applied")


def is_due(step: int, last: int, every: int | None) -> bool:
    """Whether training passed a multiple of ``every`` steps since the last cut for this purpose."""
    # A cut is taken some steps after it is due. Counting from the last one would add up these delays.
    return bool(every) and step // (every or 1) > last // (every or 1)


# --------------------------------------------------------------------------------------------------
# A checkpoint, as the core knows it.


STOPPED = "stopped by its user"
FINAL_SECONDS = 10.0
"""Time limit for a final checkpoint on one machine, in seconds; the supervisor sends SIGTERM a second later."""


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A complete checkpoint on disk."""

    cut: int
    step: int
    version: int
    ledger: Mapping[str, Any]


@dataclass(slots=True)
class CheckpointFailure:
    """The latest attempt to write a checkpoint failed.

    Attributes:
        reason: the error, for users.
        paused_at: when training was paused for it; None while training continues.
        is_stuck: whether a worker hung in its file: another one may be able to write.
    """

    reason: str
    paused_at: float | None = None
    is_stuck: bool = False


# --------------------------------------------------------------------------------------------------
# A checkpoint under strategy AllReduce, which one worker writes.


WORLD_STEP_KEY = "world_step"
"""Key in a checkpoint's ledger: the step of the world. The ledger itself counts the minibatches of all ranks."""


def checkpoint_step(ledger: Mapping[str, Any]) -> int:
    """The step of a job at the ledger position of a checkpoint."""
    return int(ledger.get(WORLD_STEP_KEY, ledger["done_steps"]))


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A file of a checkpoint that a worker has written, or why it could not.

    Attributes:
        size: in bytes.
        error: the error, for users; empty if the file is on disk.
    """

    file: str
    size: int
    crc32: int
    error: str = ""


@dataclass(slots=True)
class WorldCheckpoint:
    """A checkpoint in progress.

    Attributes:
        number: number of its cut.
        writer: uid of the worker that copies and writes its state.
        at_step: the writer copies its state after this step, or after the next one that it finishes.
        step: the step of the copy; None: nothing is copied yet.
        done: by lease, the done records of the steps in the copy that were not in the ledger.
        ledger: the ledger position of this step; None until the step is in the ledger.
        round: the newest round when it was announced.
        writers: the workers that write a shard each, in the order of the shards; the first is ``writer``. Empty until
            it is copied.
        copied_by: the writers that have said that they copied their share.
        shards: by writer, the file that it has written, or its error.
        pause: seconds for which the copies stopped a writer, and so all ranks.
        is_last: whether the writer is the last worker that has the newest state, and leaves.
        when_paused: whether the writer is not rank 0, so it copies only while nobody trains.
        is_committing: whether the manifest is being written.
        waited: seconds since a writer has copied or written something last, as far as they say how long it took.
        watched_at: until when these are counted; None: not yet.
        is_reported: whether users were told that it takes long.
    """

    number: int
    writer: str
    at_step: int
    step: int | None = None
    done: Mapping[int, int] = field(default_factory=dict)
    ledger: dict[str, Any] | None = None
    round: RoundId = NO_ROUND
    writers: tuple[str, ...] = ()
    copied_by: set[str] = field(default_factory=set)
    shards: dict[str, WrittenShard] = field(default_factory=dict)
    pause: float = 0.0
    is_last: bool = False
    when_paused: bool = False
    is_committing: bool = False
    waited: float = 0.0
    watched_at: float | None = None
    is_reported: bool = False

    @property
    def missing_writers(self) -> list[str]:
        """The workers that have not copied or written what they have to."""
        return [worker for worker in self.writers or (self.writer,) if worker not in self.shards]


FIRST_WRITE_SECONDS = 3600.0
"""Seconds until a checkpoint whose writers say nothing has failed, before one was written: nobody knows its size."""
WRITE_SECONDS, WRITE_FACTOR = 600.0, 10.0
"""Least seconds after one was written, and the multiple of the longest time that a file took."""
LONG_WRITE_FACTOR = 3.0
"""Multiple of this time after which users hear of it."""


@dataclass(slots=True)
class CheckpointWrites:
    """How long files of checkpoints take, and which workers hang in one. Nothing of it is in the journal.

    Attributes:
        longest: seconds that a file has taken at most; None: none was written.
        failures: checkpoints in succession that failed because a writer said nothing. Each doubles the limit: what
            takes longer than the first limit is written at the second or third time.
        stuck: workers that were named for it. The thread that writes can begin no other file.
        are_shared: whether several workers wrote the newest one, each a part of the state.
    """

    longest: float | None = None
    failures: int = 0
    stuck: set[str] = field(default_factory=set)
    are_shared: bool = False

    @property
    def limit_seconds(self) -> float:
        """Seconds after which a checkpoint whose writers say nothing has failed."""
        limit = FIRST_WRITE_SECONDS if self.longest is None else max(WRITE_SECONDS, self.longest * WRITE_FACTOR)
        return limit * float(2**self.failures)

    @property
    def report_seconds(self) -> float:
        """Seconds after which users hear of it."""
        return min(self.limit_seconds, max(WRITE_SECONDS, (self.longest or 0.0) * LONG_WRITE_FACTOR))

    def record_written(self, worker: str, seconds: float) -> None:
        """A worker has written its file."""
        self.longest = max(self.longest or 0.0, seconds)
        self.stuck.discard(worker)
