"""The PsControl gRPC service: requests of the master to a parameter server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edl.api.errors import StorageError
from edl.core.ledger import LEASE_COUNTER_BITS
from edl.core.partition import SLOT_COUNT
from edl.ps.messages import MasterAttachment
from edl.ps.parameter_server import ParameterServer
from edl.transport import edl_pb2 as pb
from edl.transport import edl_pb2_grpc
from edl.transport.peer_errors import PeerRefusedError

_NUMBER_LIMIT = 1 << 31
"""Upper bound of incarnations, cuts and steps of a lease.

In a lease's number, 32 bits are for the incarnation.
"""
_CUT_FOLDER_NAME = re.compile(r"cut-[0-9]+")
_MAX_WAIT_SECONDS = 600.0
"""Seconds that Saved waits for a caller without a deadline."""
_DEADLINE_MARGIN = 0.1
"""Seconds before the caller's deadline at which Saved answers that the shard is still being written."""


class PsControlService(edl_pb2_grpc.PsControlServicer):
    """The servicer. It raises refusals; the gRPC server converts them to statuses.

    Args:
        server: the parameter server that it controls.
        uid: uid of this pod.
        checkpoint_root: the run's checkpoint directory; nothing outside it is read or written. None
            allows any directory.
    """

    def __init__(self, server: ParameterServer, uid: str, checkpoint_root: Path | None = None) -> None:
        self._server = server
        self._uid = uid
        self._checkpoint_root = checkpoint_root

    def Attach(self, request: pb.AttachRequest, context: Any) -> pb.AttachReply:  # noqa: N802
        """Attach a new or returning master."""
        # A number out of range is forged. If it were accepted, every real master and cut would
        # count as older.
        if not 0 < request.incarnation < _NUMBER_LIMIT or not 0 <= request.cut < _NUMBER_LIMIT:
            raise PeerRefusedError(
                f"incarnation {request.incarnation} or cut {request.cut} is out of range", kind="bad"
            )
        _check_lowest_open_lease(request.floor, request.incarnation)
        # A PS that restores reads only the rows and variables of its own slots.
        if request.restore and len(request.slots) != SLOT_COUNT:
            raise PeerRefusedError(f"the placement has {len(request.slots)} slots, not {SLOT_COUNT}", kind="bad")
        attachment = MasterAttachment(
            request.incarnation,
            request.floor,
            request.revoked,
            request.live,
            self._checkpoint_directory(request.restore),
            request.cut,
            request.slots,
            request.complete,
        )
        try:
            state = self._server.attach_master(attachment)
        # By this kind the master knows that an older checkpoint may help.
        except StorageError as error:
            raise PeerRefusedError(str(error), kind="storage") from error
        return pb.AttachReply(
            initialized=state.initialized,
            version=state.version,
            uid=self._uid,
            applied=_lease_steps(state.applied_steps),
            pins=state.pinned_cuts,
        )

    def Revoke(self, request: pb.RevokeRequest, context: Any) -> pb.RevokeReply:  # noqa: N802
        """Close leases permanently."""
        _check_lowest_open_lease(request.floor, request.incarnation)
        through, first = self._server.revoke_leases(request.incarnation, request.leases, request.floor)
        return pb.RevokeReply(applied=_lease_steps(through), first=_lease_steps(first))

    def Prepare(self, request: pb.PrepareRequest, context: Any) -> pb.PrepareReply:  # noqa: N802
        """Allocate memory for the copy of a cut."""
        self._server.prepare_cut(request.incarnation)
        return pb.PrepareReply()

    def Hold(self, request: pb.HoldRequest, context: Any) -> pb.HoldReply:  # noqa: N802
        """Pause updates for a cut."""
        return pb.HoldReply(applied=_lease_steps(self._server.pause_pushes(request.incarnation, request.cut)))

    def Snapshot(self, request: pb.SnapshotRequest, context: Any) -> pb.SnapshotReply:  # noqa: N802
        """Take a snapshot for a cut."""
        if not 0 < request.cut < _NUMBER_LIMIT or any(not 0 <= step.through < _NUMBER_LIMIT for step in request.within):
            raise PeerRefusedError(
                f"the snapshot of cut {request.cut} has a cut or step number that is out of range", kind="bad"
            )
        _check_lowest_open_lease(request.floor, request.incarnation)
        checkpoint = self._checkpoint_directory(request.checkpoint)
        limits = {step.lease: step.through for step in request.within}
        snapshot = self._server.take_snapshot(
            request.incarnation,
            request.cut,
            checkpoint,
            pin=request.pin,
            lowest_open_lease=request.floor,
            included_steps=limits,
            keep_paused=request.keep,
        )
        # No refusal, which would abort the cut. The master asks again behind its other requests,
        # one of which may revoke the lease whose step is missing.
        if snapshot is None:
            return pb.SnapshotReply(waits=True)
        return pb.SnapshotReply(
            version=snapshot.version, pause_seconds=snapshot.pause_seconds, entered=snapshot.admitted_steps
        )

    def Release(self, request: pb.ReleaseRequest, context: Any) -> pb.ReleaseReply:  # noqa: N802
        """Abort a cut, or resume updates after it."""
        self._server.release_cut(request.incarnation, request.cut)
        return pb.ReleaseReply()

    def Unpin(self, request: pb.UnpinRequest, context: Any) -> pb.UnpinReply:  # noqa: N802
        """Drop a pinned copy."""
        self._server.unpin_cut(request.incarnation, request.cut)
        return pb.UnpinReply()

    def Saved(self, request: pb.SavedRequest, context: Any) -> pb.SavedReply:  # noqa: N802
        """Wait for a shard, at most until the caller's deadline."""
        remaining = context.time_remaining()
        timeout = _MAX_WAIT_SECONDS if remaining is None else max(0.0, remaining - _DEADLINE_MARGIN)
        saved = self._server.wait_until_saved(request.incarnation, request.cut, timeout)
        return pb.SavedReply(file=saved.file, size=saved.size, checksum=saved.checksum, error=saved.error)

    def _checkpoint_directory(self, path: str) -> Path | None:
        """The directory of a checkpoint of this run; None if none is named.

        Raises:
            PeerRefusedError: the path is not one of this run's checkpoints.
        """
        if not path:
            return None
        # A peer that has the job's token must not make this process read or write other files.
        folder, checkpoint_root = Path(path), self._checkpoint_root
        if checkpoint_root is not None and (
            folder.resolve().parent != checkpoint_root.resolve() or not _CUT_FOLDER_NAME.fullmatch(folder.name)
        ):
            raise PeerRefusedError(
                f"{path} is not a checkpoint of this run; checkpoints are {checkpoint_root}/cut-N", kind="bad"
            )
        return folder


def _check_lowest_open_lease(lowest_open_lease: int, incarnation: int) -> None:
    """Refuse a lowest open lease above every lease of the master: it would also close leases of later masters.

    Raises:
        PeerRefusedError: the number is too high.
    """
    if lowest_open_lease >> LEASE_COUNTER_BITS > incarnation:
        raise PeerRefusedError(
            f"the floor {lowest_open_lease} is above every lease of incarnation {incarnation}", kind="bad"
        )


def _lease_steps(steps_by_lease: Mapping[int, int]) -> list[pb.LeaseStep]:
    return [pb.LeaseStep(lease=lease, through=steps) for lease, steps in steps_by_lease.items()]
