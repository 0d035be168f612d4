"""The methods of the control plane as typed values, with the types of request and reply.

The generated stubs are untyped and bound to one channel. These values survive a reconnect, and mypy checks both
messages of every call. A test compares them with edl.proto.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from edl.transport import edl_pb2 as pb

RequestT = TypeVar("RequestT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)


@dataclass(frozen=True, slots=True)
class ControlMethod(Generic[RequestT, ReplyT]):
    """One method: its path (``/package.Service/Name``) and its message types."""

    path: str
    request: type[RequestT]
    reply: type[ReplyT]

    @property
    def name(self) -> str:
        """Name of the method in edl.proto."""
        return self.path.rpartition("/")[2]


class MasterMethods:
    """Methods of the master, for workers and parameter servers."""

    Register: Final = ControlMethod("/edl.v1.Master/Register", pb.RegisterRequest, pb.RegisterReply)
    Lease: Final = ControlMethod("/edl.v1.Master/Lease", pb.LeaseRequest, pb.LeaseReply)
    Progress: Final = ControlMethod("/edl.v1.Master/Progress", pb.ProgressRequest, pb.ProgressReply)
    Report: Final = ControlMethod("/edl.v1.Master/Report", pb.ReportRequest, pb.ReportReply)
    Fail: Final = ControlMethod("/edl.v1.Master/Fail", pb.FailRequest, pb.FailReply)
    Leave: Final = ControlMethod("/edl.v1.Master/Leave", pb.LeaveRequest, pb.LeaveReply)
    World: Final = ControlMethod("/edl.v1.Master/World", pb.WorldRequest, pb.WorldReply)


class PsControlMethods:
    """Methods of a parameter server, for the master."""

    Attach: Final = ControlMethod("/edl.v1.PsControl/Attach", pb.AttachRequest, pb.AttachReply)
    Revoke: Final = ControlMethod("/edl.v1.PsControl/Revoke", pb.RevokeRequest, pb.RevokeReply)
    Prepare: Final = ControlMethod("/edl.v1.PsControl/Prepare", pb.PrepareRequest, pb.PrepareReply)
    Hold: Final = ControlMethod("/edl.v1.PsControl/Hold", pb.HoldRequest, pb.HoldReply)
    Snapshot: Final = ControlMethod("/edl.v1.PsControl/Snapshot", pb.SnapshotRequest, pb.SnapshotReply)
    Release: Final = ControlMethod("/edl.v1.PsControl/Release", pb.ReleaseRequest, pb.ReleaseReply)
    Unpin: Final = ControlMethod("/edl.v1.PsControl/Unpin", pb.UnpinRequest, pb.UnpinReply)
    Saved: Final = ControlMethod("/edl.v1.PsControl/Saved", pb.SavedRequest, pb.SavedReply)
