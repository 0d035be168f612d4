"""What the core's commands mean for a parameter server: a request, and what its answer says to the core."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edl.core.events import (
    AttachPs,
    Command,
    CutPrepared,
    Event,
    HoldUpdates,
    PrepareCut,
    PsAttached,
    ReleaseCut,
    Revoked,
    RevokeLeases,
    SnapshotTaken,
    TakeSnapshot,
    Unpin,
    UpdatesHeld,
)
from edl.core.partition import placement
from edl.storage.checkpoint_manifest import cut_directory
from edl.transport import edl_pb2 as pb
from edl.transport.control_methods import Method, PsControl

DEADLINE = 30.0
"""Seconds for one try: a snapshot copies all parameters."""
RESTORE_DEADLINE = 600.0
"""Seconds for one try to read a checkpoint: a PS that is stopped or gone is noticed long before by the connection."""


def _nothing(reply: Any) -> Event | None:
    return None


def _never(reply: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Question:
    """One call to one PS.

    Attributes:
        event: what an answer tells the core.
        deadline: seconds for one try.
        needed: the job cannot go on when the PS refuses.
        waits: whether an answer says to ask again, behind what is to be asked by then.
        cut: the cut that is off when the PS refuses; 0 when none is.
        restore: the cut that the PS is to load; 0 when none is.
    """

    method: Method[Any, Any]
    request: Any
    event: Callable[[Any], Event | None] = _nothing
    waits: Callable[[Any], bool] = _never
    deadline: float = DEADLINE
    needed: bool = False
    cut: int = 0
    restore: int = 0


@dataclass(frozen=True, slots=True)
class Asker:
    """What every question of this master has in common.

    Attributes:
        incarnation: of this master; PS refuse lower ones.
        count: how many PS the job has.
        checkpoints: folder of the run's cuts.
    """

    incarnation: int
    count: int
    checkpoints: Path

    def question(self, command: Command, uid: str) -> Question:
        """What is asked of the PS ``uid`` to carry out a command."""
        match command:
            case AttachPs():
                return self._attach(command)
            case RevokeLeases():
                return self._revoke(command)
            case TakeSnapshot():
                return self._snapshot(command, uid)
            case PrepareCut(cut):
                return self._prepare(cut, uid)
            case HoldUpdates(cut):
                return self._hold(cut, uid)
            case ReleaseCut(cut):
                return Question(PsControl.Release, pb.ReleaseRequest(incarnation=self.incarnation, cut=cut))
            case Unpin(cut):
                return Question(PsControl.Unpin, pb.UnpinRequest(incarnation=self.incarnation, cut=cut))
        raise TypeError(f"not a command for parameter servers: {command}")

    def _attach(self, command: AttachPs) -> Question:
        restore = command.restore
        request = pb.AttachRequest(
            incarnation=self.incarnation,
            floor=command.floor,
            revoked=command.revoked,
            live=command.live,
            cut=command.cut,
            slots=placement(self.count),
            restore="" if restore is None else str(cut_directory(self.checkpoints, restore)),
            complete=command.complete,
        )

        def event(reply: pb.AttachReply) -> Event:
            return PsAttached(command.uid, reply.initialized, reply.version, tuple(reply.pins))

        deadline = DEADLINE if restore is None else RESTORE_DEADLINE
        return Question(PsControl.Attach, request, event, deadline=deadline, needed=True, restore=restore or 0)

    def _revoke(self, command: RevokeLeases) -> Question:
        request = pb.RevokeRequest(incarnation=self.incarnation, leases=command.leases, floor=command.floor)

        def event(reply: pb.RevokeReply) -> Event:
            return Revoked(command.ps, _steps(reply.applied), _steps(reply.first))

        return Question(PsControl.Revoke, request, event, needed=True)

    def _prepare(self, cut: int, uid: str) -> Question:
        request = pb.PrepareRequest(incarnation=self.incarnation, cut=cut)
        return Question(PsControl.Prepare, request, lambda reply: CutPrepared(uid, cut), cut=cut)

    def _hold(self, cut: int, uid: str) -> Question:
        def event(reply: pb.HoldReply) -> Event:
            return UpdatesHeld(uid, cut, _steps(reply.applied))

        return Question(PsControl.Hold, pb.HoldRequest(incarnation=self.incarnation, cut=cut), event, cut=cut)

    def _snapshot(self, command: TakeSnapshot, uid: str) -> Question:
        request = pb.SnapshotRequest(
            incarnation=self.incarnation,
            cut=command.cut,
            checkpoint=str(cut_directory(self.checkpoints, command.cut)) if command.checkpoint else "",
            pin=command.pin,
            floor=command.floor,
            within=[pb.LeaseStep(lease=lease, through=through) for lease, through in command.within.items()],
            keep=command.keep,
        )

        def event(reply: pb.SnapshotReply) -> Event:
            entered = reply.entered if reply.HasField("entered") else None
            return SnapshotTaken(uid, command.cut, reply.version, reply.pause_seconds, entered)

        return Question(PsControl.Snapshot, request, event, lambda reply: reply.waits, cut=command.cut)


def _steps(steps: Iterable[pb.LeaseStep]) -> dict[int, int]:
    return {step.lease: step.through for step in steps}
