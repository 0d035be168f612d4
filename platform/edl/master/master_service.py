"""The Master service: messages to events, answers to messages. No decisions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError, RetryableError
from edl.core.events import (
    Acknowledged,
    Answer,
    Event,
    Granted,
    LeaseWanted,
    MayEnd,
    ModelDeclared,
    Progressed,
    PsHeard,
    PsLeaving,
    PsRegistered,
    StopWork,
    TaskReported,
    WaitForWork,
    WorkerFailed,
    WorkerLeft,
)
from edl.master.message_conversion import FAILURES, callbacks_of, result_of, steps_of, task_of, uid_of
from edl.master.placement_table import Roster
from edl.master.ps_client import ParameterServers
from edl.master.shell import Shell
from edl.transport import edl_pb2 as pb
from edl.transport import edl_pb2_grpc
from edl.transport.control_server import Call
from edl.transport.peer_errors import Refused

LONGEST_WAIT = 5.0
"""Seconds that a question for work may wait here: longer ones would hold threads for workers that are gone."""


Heard = Callable[[str, int, pb.PsFigures], None]
"""Told what a parameter server says of itself, with its uid and index."""


def _unheard(uid: str, index: int, figures: pb.PsFigures) -> None:
    pass


class Servicer(edl_pb2_grpc.MasterServicer):
    """Answers workers and parameter servers.

    What comes by the thousand is answered on the server's event loop: a thread for each would cost more than the
    answer. A message that cannot be meant is refused (``Refused``, kind ``bad``); a master that ends says so
    (``MasterEndsError``), and the message is for the next one.
    """

    def __init__(self, shell: Shell, servers: ParameterServers, incarnation: int, heard: Heard = _unheard) -> None:
        self._shell, self._servers, self._incarnation, self._heard = shell, servers, incarnation, heard
        self._roster = Roster(shell.state, servers, incarnation)

    # ------------------------------------------------------------------ methods of the service

    def Register(self, request: pb.RegisterRequest, context: Call) -> pb.RegisterReply:  # noqa: N802
        """Say who is there; tells where the parameter servers are."""
        uid, may_end = uid_of(request.member), False
        if request.member.role == Role.PS:
            may_end = self._register_ps(request)
        elif request.ready:
            self._shell.handle(ModelDeclared(uid, callbacks_of(request.callbacks)))
        with self._shell.lock:
            placement = self._roster.placement()
        return pb.RegisterReply(
            incarnation=self._incarnation,
            placement=placement,
            may_end=may_end,
            learning_rate=self._learning_rate(),
        )

    async def Lease(self, request: pb.LeaseRequest, context: Call) -> pb.LeaseReply:  # noqa: N802
        """Ask for work."""
        seconds = min(request.wait_seconds, LONGEST_WAIT) if request.wait_seconds > 0 else 0.0
        uid, held = uid_of(request.member), frozenset(request.held)
        answer = await self._shell.ask(LeaseWanted(uid, held))
        if isinstance(answer, WaitForWork) and seconds:
            answer = await context.on_thread(partial(self._shell.lease, uid, seconds, held))
        reply = pb.LeaseReply(
            incarnation=self._incarnation,
            placement_version=self._placement_version(),
            learning_rate=self._learning_rate(),
        )
        match answer:
            case Granted():
                reply.task.CopyFrom(task_of(answer))
            case WaitForWork(reason):
                reply.wait.reason = reason
            case StopWork(reason):
                reply.stop.reason = reason
        return reply

    async def Progress(self, request: pb.ProgressRequest, context: Call) -> pb.ProgressReply:  # noqa: N802
        """Say how far leases are; also the heartbeat."""
        answer = _acknowledged(await self._shell.ask(Progressed(uid_of(request.member), steps_of(request.leases))))
        return pb.ProgressReply(
            incarnation=self._incarnation,
            placement_version=self._placement_version(),
            learning_rate=self._learning_rate(),
            lost=answer.lost,
        )

    async def Report(self, request: pb.ReportRequest, context: Call) -> pb.ReportReply:  # noqa: N802
        """Say that a task is done."""
        last = steps_of([request.last])[0] if request.HasField("last") else None
        uid, result = uid_of(request.member), result_of(request.result)
        answer = _acknowledged(await self._shell.ask(TaskReported(uid, request.lease, last, result)))
        lost = request.lease in answer.lost
        reason = "the lease is not yours (any more)" if lost else ""
        return pb.ReportReply(accepted=not lost, reason=reason, incarnation=self._incarnation)

    def Fail(self, request: pb.FailRequest, context: Call) -> pb.FailReply:  # noqa: N802
        """Say why a worker cannot go on."""
        if request.kind not in FAILURES:
            raise Refused(f"a failure is of kind {', '.join(FAILURES)}, not {request.kind!r}", kind="bad")
        uid = uid_of(request.member)
        answer = self._ask(WorkerFailed(uid, request.kind, request.message, request.detail, request.lease))
        return pb.FailReply(fatal=answer.fatal)

    def Leave(self, request: pb.LeaveRequest, context: Call) -> pb.LeaveReply:  # noqa: N802
        """Give everything back before going."""
        self._ask(WorkerLeft(uid_of(request.member), request.reason, steps_of(request.leases)))
        return pb.LeaveReply()

    # ------------------------------------------------------------------ parts

    def _register_ps(self, request: pb.RegisterRequest) -> bool:
        """Note a PS; whether one that was told to go may end."""
        uid, index = request.member.uid, request.member.index
        with self._shell.lock:
            pod = self._shell.state.fleet.pods.get(uid)
            attached = pod is not None and pod.attached
        if pod is None:
            # Nothing is kept of it: whoever has the token can say that it is a PS, and the watch may be a moment late.
            raise RetryableError("the cluster has not shown this pod yet")
        if (pod.role, pod.index) != (Role.PS, index):
            raise Refused(f"the cluster says that this pod is {pod.role}-{pod.index}, not ps-{index}", kind="bad")
        if not pod.live:
            raise Refused("the cluster says that this pod has ended", kind="bad")
        if request.HasField("figures"):
            self._heard(uid, index, request.figures)
        if request.leaving and self._may_end(uid):
            return True
        try:
            new = self._servers.registered(uid, index, request.control_address, request.bulk_address)
        except BadInputError as error:
            raise Refused(str(error), kind="bad") from error
        self._shell.handle(PsRegistered(uid) if new or not attached else PsHeard(uid))
        return False

    def _may_end(self, uid: str) -> bool:
        answer = self._shell.handle(PsLeaving(uid))
        assert isinstance(answer, MayEnd)
        return answer.value

    def _ask(self, event: Event) -> Acknowledged:
        return _acknowledged(self._shell.handle(event))

    def _learning_rate(self) -> float | None:
        """That a callback has set, after all evaluations so far; None: the optimizer's own."""
        return self._shell.state.callbacks.rate  # a frozen value: whichever it is, it is one that was decided

    def _placement_version(self) -> int:
        with self._shell.lock:
            return self._roster.version()


def _acknowledged(answer: Answer | None) -> Acknowledged:
    assert isinstance(answer, Acknowledged)
    if answer.refusal:
        raise Refused(answer.refusal, kind="bad")
    return answer
