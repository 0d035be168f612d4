"""The Master service: messages to events, answers to messages. No decisions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import grpc

from edl.core.cluster import Role
from edl.core.events import (
    Acknowledged,
    Answer,
    Event,
    Granted,
    ModelDeclared,
    Progressed,
    PsRegistered,
    Steps,
    StopWork,
    TaskReported,
    WaitForWork,
    WorkerFailed,
    WorkerLeft,
)
from edl.core.partition import placement
from edl.master.parameter_servers import ParameterServers
from edl.master.shell import Shell
from edl.rpc import edl_pb2 as pb
from edl.rpc import edl_pb2_grpc
from edl.rpc.refusal import Refused

LONGEST_WAIT = 5.0
"""Seconds that a question for work may wait here: longer ones would hold threads for workers that are gone."""
_INCARNATION_SHIFT = 32


class Servicer(edl_pb2_grpc.MasterServicer):
    """Answers workers and parameter servers."""

    def __init__(self, shell: Shell, servers: ParameterServers, incarnation: int) -> None:
        self._shell, self._servers, self._incarnation = shell, servers, incarnation
        self._placed: tuple[str, ...] = ()
        self._placement_number = 1

    # ------------------------------------------------------------------ methods of the service

    def Register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.RegisterReply:  # noqa: N802
        """Say who is there; tells where the parameter servers are."""
        member = request.member
        if member.role == Role.PS:
            new = self._servers.registered(member.uid, member.index, request.control_address, request.bulk_address)
            attached = member.uid in self._shell.state.fleet.pods and self._shell.state.fleet.pods[member.uid].attached
            if new or not attached:
                self._shell.handle(PsRegistered(member.uid))
        elif request.ready:
            self._shell.handle(ModelDeclared(member.uid))
        return pb.RegisterReply(incarnation=self._incarnation, placement=self._placement())

    def Lease(self, request: pb.LeaseRequest, context: grpc.ServicerContext) -> pb.LeaseReply:  # noqa: N802
        """Ask for work."""
        answer = self._shell.lease(request.member.uid, min(max(request.wait_seconds, 0.0), LONGEST_WAIT))
        reply = pb.LeaseReply(
            incarnation=self._incarnation, cut=self._announced(), placement_version=self._placement_version()
        )
        match answer:
            case Granted():
                reply.task.CopyFrom(_task(answer))
            case WaitForWork(reason):
                reply.wait.reason = reason
            case StopWork(reason):
                reply.stop.reason = reason
        return reply

    def Progress(self, request: pb.ProgressRequest, context: grpc.ServicerContext) -> pb.ProgressReply:  # noqa: N802
        """Say how far leases are; also the heartbeat."""
        answer = self._ask(Progressed(request.member.uid, request.known_cut, _steps(request.leases)))
        return pb.ProgressReply(
            incarnation=self._incarnation,
            cut=self._announced(),
            placement_version=self._placement_version(),
            lost=answer.lost,
        )

    def Report(self, request: pb.ReportRequest, context: grpc.ServicerContext) -> pb.ReportReply:  # noqa: N802
        """Say that a task is done."""
        last = _steps([request.last])[0] if request.HasField("last") else None
        answer = self._ask(
            TaskReported(request.member.uid, request.lease, last, _json(request.result), request.known_cut)
        )
        lost = request.lease in answer.lost
        reason = "the lease is not yours (any more)" if lost else ""
        return pb.ReportReply(accepted=not lost, reason=reason, incarnation=self._incarnation, cut=self._announced())

    def Fail(self, request: pb.FailRequest, context: grpc.ServicerContext) -> pb.FailReply:  # noqa: N802
        """Say why a worker cannot go on."""
        answer = self._ask(
            WorkerFailed(request.member.uid, request.kind, request.message, request.detail, request.lease)
        )
        return pb.FailReply(fatal=answer.fatal)

    def Leave(self, request: pb.LeaveRequest, context: grpc.ServicerContext) -> pb.LeaveReply:  # noqa: N802
        """Give everything back before going."""
        self._ask(WorkerLeft(request.member.uid, request.reason, _steps(request.leases)))
        return pb.LeaveReply()

    # ------------------------------------------------------------------ parts

    def _ask(self, event: Event) -> Acknowledged:
        answer: Answer | None = self._shell.handle(event)
        assert isinstance(answer, Acknowledged)
        return answer

    def _announced(self) -> int:
        return self._shell.state.cut_number

    def _placement(self) -> pb.Placement:
        with self._shell.lock:
            version = self._placement_version()
            links = self._servers.addresses()
            addresses = [
                pb.PsAddress(index=link.index, uid=link.uid, bulk_address=link.bulk_address)
                for link in links.values()
                if link.uid in self._placed
            ]
        count = self._shell.state.settings.ps
        return pb.Placement(version=version, ps=addresses, slots=placement(count) if count else ())

    def _placement_version(self) -> int:
        """Changes with the set of PS that workers may talk to: those that hold all they can be given."""
        state = self._shell.state
        with self._shell.lock:
            restored = state.checkpoint is not None
            live = state.fleet.live(Role.PS)
            placed = tuple(ps.uid for ps in live if ps.attached and (ps.initialized or not restored))
            if placed != self._placed:
                self._placed = placed
                self._placement_number += 1
            return (self._incarnation << _INCARNATION_SHIFT) + self._placement_number


def _task(granted: Granted) -> pb.Task:
    work = granted.work
    return pb.Task(
        lease=granted.lease,
        kind=granted.kind,
        epoch=work.epoch,
        source=work.source,
        start=work.start,
        end=work.end,
        minibatch=granted.minibatch,
        pin=granted.pin,
        step=granted.step,
        expires_seconds=granted.seconds,
        payload=b"" if granted.payload is None else json.dumps(granted.payload).encode(),
    )


def _steps(leases: Sequence[pb.LeaseProgress]) -> tuple[Steps, ...]:
    return tuple(Steps(x.lease, x.through, x.loss_sum, x.loss_steps, x.skipped_records) for x in leases)


def _json(result: bytes) -> Any:
    if not result:
        return None
    try:
        return json.loads(result)
    except ValueError as error:
        raise Refused(f"a task's result is not JSON: {error}", kind="bad") from error
