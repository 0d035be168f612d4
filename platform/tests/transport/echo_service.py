"""A master that answers every report of progress with the index of who sent it."""

from __future__ import annotations

from typing import Any

from edl.transport import edl_pb2 as pb
from edl.transport.edl_pb2_grpc import MasterServicer


class EchoService(MasterServicer):
    def Progress(self, request: pb.ProgressRequest, context: Any) -> pb.ProgressReply:
        return pb.ProgressReply(incarnation=request.member.index)
