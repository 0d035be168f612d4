"""What the core's commands mean for a parameter server: a request, and what its answer says to the core."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edl.core.events import (
    AttachPs,
    CoreCommand,
    CoreEvent,
    CutPrepared,
    HoldUpdates,
    LeasesRevoked,
    PrepareCut,
    PsAttached,
    ReleaseCut,
    RevokeLeases,
    SnapshotTaken,
    TakeSnapshot,
    Unpin,
    UpdatesHeld,
)
from edl.core.partition import initial_placement
from edl.storage.checkpoint_manifest import cut_directory
from edl.transport import edl_pb2 as pb
from edl.transport.control_methods import ControlMethod, PsControlMethods

REQUEST_DEADLINE = 30.0
"""Seconds for one try: a snapshot copies all parameters."""
RESTORE_DEADLINE = 600.0
"""Seconds for one try to read a checkpoint: a PS that is stopped or gone is noticed long before by the connection."""


def _no_event(reply: Any) -> CoreEvent | None:
    return None


def _no_repeat(reply: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """One call to one PS.

    Attributes:
        event: what an answer tells the core.
        deadline: seconds for one try.
        is_required: the job cannot go on when the PS refuses.
        waits: whether an answer says to ask again, behind what is to be asked by then.
        cut: the cut that is off when the PS refuses; 0 when none is.
        restore: the cut that the PS is to load; 0 when none is.
    """

    method: ControlMethod[Any, Any]
    request: Any
    event: Callable[[Any], CoreEvent | None] = _no_event
    waits: Callable[[Any], bool] = _no_repeat
    deadline: float = REQUEST_DEADLINE
    is_required: bool = False
    cut: int = 0
    restore: int = 0


@dataclass(frozen=True, slots=True)
class ControlRequestBuilder:
    """What every question of this master has in common.

    Attributes:
        incarnation: of this master; PS refuse lower ones.
        count: how many PS the job has.
        checkpoints: folder of the run's cuts.
    """

    incarnation: int
    count: int
    checkpoints: Path

    def build_request(self, command: CoreCommand, uid: str) -> ControlRequest:
        """What is asked of the PS ``uid`` to carry out a command."""
        match command:
            case AttachPs():
                return self._attach_request(command)
            case RevokeLeases():
                return self._revoke(command)
            case TakeSnapshot():
                return self._snapshot_request(command, uid)
            case PrepareCut(cut):
                return self._prepare_request(cut, uid)
            case HoldUpdates(cut):
                return self._hold(cut, uid)
            case ReleaseCut(cut):
                return ControlRequest(
                    PsControlMethods.Release, pb.ReleaseRequest(incarnation=self.incarnation, cut=cut)
                )
            case Unpin(cut):
                return ControlRequest(PsControlMethods.Unpin, pb.UnpinRequest(incarnation=self.incarnation, cut=cut))
        raise TypeError(f"not a command for parameter servers: {command}")

    def _attach_request(self, command: AttachPs) -> ControlRequest:
        restore = command.restore
        request = pb.AttachRequest(
            incarnation=self.incarnation,
            floor=command.floor,
            revoked=command.revoked,
            live=command.live,
            cut=command.cut,
            slots=initial_placement(self.count),
            restore="" if restore is None else str(cut_directory(self.checkpoints, restore)),
            complete=command.complete,
        )

        def event(reply: pb.AttachReply) -> CoreEvent:
            return PsAttached(command.uid, reply.initialized, reply.version, tuple(reply.pins))

        deadline = REQUEST_DEADLINE if restore is None else RESTORE_DEADLINE
        return ControlRequest(
            PsControlMethods.Attach, request, event, deadline=deadline, is_required=True, restore=restore or 0
        )

    def _revoke(self, command: RevokeLeases) -> ControlRequest:
        request = pb.RevokeRequest(incarnation=self.incarnation, leases=command.leases, floor=command.floor)

        def event(reply: pb.RevokeReply) -> CoreEvent:
            return LeasesRevoked(command.ps, _steps_by_lease(reply.applied), _steps_by_lease(reply.first))

        return ControlRequest(PsControlMethods.Revoke, request, event, is_required=True)

    def _prepare_request(self, cut: int, uid: str) -> ControlRequest:
        request = pb.PrepareRequest(incarnation=self.incarnation, cut=cut)
        return ControlRequest(PsControlMethods.Prepare, request, lambda reply: CutPrepared(uid, cut), cut=cut)

    def _hold(self, cut: int, uid: str) -> ControlRequest:
        def event(reply: pb.HoldReply) -> CoreEvent:
            return UpdatesHeld(uid, cut, _steps_by_lease(reply.applied))

        return ControlRequest(
            PsControlMethods.Hold, pb.HoldRequest(incarnation=self.incarnation, cut=cut), event, cut=cut
        )

    def _snapshot_request(self, command: TakeSnapshot, uid: str) -> ControlRequest:
        request = pb.SnapshotRequest(
            incarnation=self.incarnation,
            cut=command.cut,
            checkpoint=str(cut_directory(self.checkpoints, command.cut)) if command.checkpoint else "",
            pin=command.pin,
            floor=command.floor,
            within=[pb.LeaseStep(lease=lease, through=through) for lease, through in command.within.items()],
            keep=command.keep,
        )

        def event(reply: pb.SnapshotReply) -> CoreEvent:
            entered = reply.entered if reply.HasField("entered") else None
            return SnapshotTaken(uid, command.cut, reply.version, reply.pause_seconds, entered)

        return ControlRequest(PsControlMethods.Snapshot, request, event, lambda reply: reply.waits, cut=command.cut)


def _steps_by_lease(steps: Iterable[pb.LeaseStep]) -> dict[int, int]:
    return {step.lease: step.through for step in steps}
