"""The Master service: messages to events, answers to messages. No decisions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError, RetryableError
from edl.core.events import (
    Acknowledged,
    CoreEvent,
    LeaseReply,
    LeaseRequested,
    MayEnd,
    ModelDeclared,
    ProgressReported,
    PsHeartbeat,
    PsLeaving,
    PsRegistered,
    RequestAnswer,
    StopWork,
    TaskReported,
    WaitForWork,
    WorkerFailed,
    WorkerLeft,
)
from edl.master.message_conversion import (
    FAILURE_KINDS,
    lease_to_task,
    parse_callbacks,
    parse_lease_progress,
    parse_member_uid,
    parse_result,
)
from edl.master.placement_table import PlacementTable
from edl.master.ps_client import PsControlClient
from edl.master.shell import MasterShell
from edl.transport import edl_pb2 as pb
from edl.transport import edl_pb2_grpc
from edl.transport.control_server import CallContext
from edl.transport.peer_errors import PeerRefusedError

MAX_WAIT_SECONDS = 5.0
"""Seconds that a question for work may wait here: longer ones would hold threads for workers that are gone."""


PsReportHandler = Callable[[str, int, pb.PsFigures], None]
"""Told what a parameter server says of itself, with its uid and index."""


def _ignore_report(uid: str, index: int, figures: pb.PsFigures) -> None:
    pass


class MasterService(edl_pb2_grpc.MasterServicer):
    """Answers workers and parameter servers.

    What comes by the thousand is answered on the server's event loop: a thread for each would cost more than the
    answer. A message that cannot be meant is refused (``PeerRefusedError``, kind ``bad``); a master that ends says so
    (``MasterEndsError``), and the message is for the next one.
    """

    def __init__(
        self, shell: MasterShell, servers: PsControlClient, incarnation: int, heard: PsReportHandler = _ignore_report
    ) -> None:
        self._shell, self._servers, self._incarnation, self._on_ps_report = shell, servers, incarnation, heard
        self._placement_table = PlacementTable(shell.state, servers, incarnation)

    # ------------------------------------------------------------------ methods of the service

    def Register(self, request: pb.RegisterRequest, context: CallContext) -> pb.RegisterReply:  # noqa: N802
        """Say who is there; tells where the parameter servers are."""
        uid, may_end = parse_member_uid(request.member), False
        if request.member.role == Role.PS:
            may_end = self._register_ps(request)
        elif request.ready:
            self._shell.handle(ModelDeclared(uid, parse_callbacks(request.callbacks)))
        with self._shell.lock:
            placement = self._placement_table.placement()
        return pb.RegisterReply(
            incarnation=self._incarnation,
            placement=placement,
            may_end=may_end,
            learning_rate=self._learning_rate(),
        )

    async def Lease(self, request: pb.LeaseRequest, context: CallContext) -> pb.LeaseReply:  # noqa: N802
        """Ask for work."""
        seconds = min(request.wait_seconds, MAX_WAIT_SECONDS) if request.wait_seconds > 0 else 0.0
        uid, held = parse_member_uid(request.member), frozenset(request.held)
        answer = await self._shell.ask(LeaseRequested(uid, held))
        if isinstance(answer, WaitForWork) and seconds:
            answer = await context.run_on_thread(partial(self._shell.lease, uid, seconds, held))
        reply = pb.LeaseReply(
            incarnation=self._incarnation,
            placement_version=self._placement_version(),
            learning_rate=self._learning_rate(),
        )
        match answer:
            case LeaseReply():
                reply.task.CopyFrom(lease_to_task(answer))
            case WaitForWork(reason):
                reply.wait.reason = reason
            case StopWork(reason):
                reply.stop.reason = reason
        return reply

    async def Progress(self, request: pb.ProgressRequest, context: CallContext) -> pb.ProgressReply:  # noqa: N802
        """Say how far leases are; also the heartbeat."""
        answer = _require_acknowledged(
            await self._shell.ask(
                ProgressReported(parse_member_uid(request.member), parse_lease_progress(request.leases))
            )
        )
        return pb.ProgressReply(
            incarnation=self._incarnation,
            placement_version=self._placement_version(),
            learning_rate=self._learning_rate(),
            lost=answer.lost,
        )

    async def Report(self, request: pb.ReportRequest, context: CallContext) -> pb.ReportReply:  # noqa: N802
        """Say that a task is done."""
        last = parse_lease_progress([request.last])[0] if request.HasField("last") else None
        uid, result = parse_member_uid(request.member), parse_result(request.result)
        answer = _require_acknowledged(await self._shell.ask(TaskReported(uid, request.lease, last, result)))
        lost = request.lease in answer.lost
        reason = "the lease is not yours (any more)" if lost else ""
        return pb.ReportReply(accepted=not lost, reason=reason, incarnation=self._incarnation)

    def Fail(self, request: pb.FailRequest, context: CallContext) -> pb.FailReply:  # noqa: N802
        """Say why a worker cannot go on."""
        if request.kind not in FAILURE_KINDS:
            raise PeerRefusedError(f"a failure is of kind {', '.join(FAILURE_KINDS)}, not {request.kind!r}", kind="bad")
        uid = parse_member_uid(request.member)
        answer = self._ask(WorkerFailed(uid, request.kind, request.message, request.detail, request.lease))
        return pb.FailReply(fatal=answer.fatal)

    def Leave(self, request: pb.LeaveRequest, context: CallContext) -> pb.LeaveReply:  # noqa: N802
        """Give everything back before going."""
        self._ask(WorkerLeft(parse_member_uid(request.member), request.reason, parse_lease_progress(request.leases)))
        return pb.LeaveReply()

    # ------------------------------------------------------------------ parts

    def _register_ps(self, request: pb.RegisterRequest) -> bool:
        """Note a PS; whether one that was told to go may end."""
        uid, index = request.member.uid, request.member.index
        with self._shell.lock:
            pod = self._shell.state.pods.pods.get(uid)
            attached = pod is not None and pod.attached
        if pod is None:
            # Nothing is kept of it: whoever has the token can say that it is a PS, and the watch may be a moment late.
            raise RetryableError("the cluster has not shown this pod yet")
        if (pod.role, pod.index) != (Role.PS, index):
            raise PeerRefusedError(
                f"the cluster says that this pod is {pod.role}-{pod.index}, not ps-{index}", kind="bad"
            )
        if not pod.live:
            raise PeerRefusedError("the cluster says that this pod has ended", kind="bad")
        if request.HasField("figures"):
            self._on_ps_report(uid, index, request.figures)
        if request.leaving and self._may_ps_end(uid):
            return True
        try:
            new = self._servers.registered(uid, index, request.control_address, request.bulk_address)
        except BadInputError as error:
            raise PeerRefusedError(str(error), kind="bad") from error
        self._shell.handle(PsRegistered(uid) if new or not attached else PsHeartbeat(uid))
        return False

    def _may_ps_end(self, uid: str) -> bool:
        answer = self._shell.handle(PsLeaving(uid))
        assert isinstance(answer, MayEnd)
        return answer.value

    def _ask(self, event: CoreEvent) -> Acknowledged:
        return _require_acknowledged(self._shell.handle(event))

    def _learning_rate(self) -> float | None:
        """That a callback has set, after all evaluations so far; None: the optimizer's own."""
        return self._shell.state.callbacks.rate  # a frozen value: whichever it is, it is one that was decided

    def _placement_version(self) -> int:
        with self._shell.lock:
            return self._placement_table.version()


def _require_acknowledged(answer: RequestAnswer | None) -> Acknowledged:
    assert isinstance(answer, Acknowledged)
    if answer.refusal:
        raise PeerRefusedError(answer.refusal, kind="bad")
    return answer
