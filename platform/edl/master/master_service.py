"""The Master service: converts messages to events, and answers to messages. No decisions."""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError, RetryableError
from edl.api.round_id import RoundId
from edl.core.callback_decisions import DeclaredCallback, callbacks_from_json
from edl.core.cuts import WrittenShard
from edl.core.evaluation_copies import CopyReport
from edl.core.events import (
    Acknowledged,
    CopiedState,
    CoreEvent,
    LeaseProgress,
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
    WorkerWarning,
    WorldReported,
    WorldView,
)
from edl.core.partition import initial_placement
from edl.core.rank_state import RankPhase
from edl.core.state import JobState
from edl.core.strict_json import decode_json
from edl.core.world_rounds import NO_ROUND, MemberReport, RoundPhase
from edl.master.ps_client import PsConnection, PsControlClient
from edl.master.shell import MasterShell
from edl.transport import edl_pb2 as pb
from edl.transport import edl_pb2_grpc
from edl.transport.control_server import CallContext
from edl.transport.peer_errors import PeerRefusedError

# --------------------------------------------------------------------------------------------------
# Messages of workers as values of the core, and answers of the core as messages. Invalid messages
# are refused.


FAILURE_KINDS = ("input", "nan", "refused", "storage", "crash")


def parse_member_uid(member: pb.Member) -> str:
    """The sender of a message.

    Raises:
        PeerRefusedError: the message has no uid.
    """
    if not member.uid:
        raise PeerRefusedError("the message names no sender", kind="bad")
    return member.uid


def parse_lease_progress(leases: Sequence[pb.LeaseProgress]) -> tuple[LeaseProgress, ...]:
    """A worker's progress on its leases.

    Raises:
        PeerRefusedError: a count is negative.
    """
    for x in leases:
        if min(x.through, x.loss_steps, x.skipped_records, x.skipped_updates) < 0:
            raise PeerRefusedError(f"lease {x.lease}: a negative count", kind="bad")
    return tuple(_parse_progress(x) for x in leases)


def _parse_progress(x: pb.LeaseProgress) -> LeaseProgress:
    # The journal is JSON and cannot store a loss that is not finite.
    finite = math.isfinite(x.loss_sum)
    return LeaseProgress(
        x.lease,
        x.through,
        x.loss_sum if finite else 0.0,
        x.loss_steps if finite else 0,
        x.skipped_records,
        x.skipped_updates,
    )


_MAX_WARNING_CHARACTERS = 1000
"""Of a worker's warning and of its topic; both are journaled."""


def parse_warnings(warnings: Iterable[pb.WorkerWarning]) -> tuple[WorkerWarning, ...]:
    """A worker's warnings for the user; those without a text are left out."""
    size = _MAX_WARNING_CHARACTERS
    return tuple(WorkerWarning(x.topic[:size], x.text[:size]) for x in warnings if x.text)


_MAX_CALLBACK_BYTES = 64 << 10
"""Maximum size of a job's callback declarations, in bytes; they are journaled."""


def parse_callbacks(data: bytes) -> tuple[DeclaredCallback, ...]:
    """The callbacks that a worker declares.

    Raises:
        PeerRefusedError: the declaration is too large or invalid.
    """
    if not data:
        return ()
    if len(data) > _MAX_CALLBACK_BYTES:
        raise PeerRefusedError(f"callbacks take at most {_MAX_CALLBACK_BYTES} bytes, not {len(data)}", kind="bad")
    try:
        return callbacks_from_json(decode_json(data))
    except ValueError as error:
        raise PeerRefusedError(f"callbacks cannot be read: {error}", kind="bad") from error


def parse_result(data: bytes) -> Any:
    """A task's result; numbers that are not finite become None.

    Raises:
        PeerRefusedError: the result is not JSON.
    """
    if not data:
        return None
    try:
        return decode_json(data, nonfinite_as_none=True)
    except ValueError as error:
        raise PeerRefusedError(f"a task's result is not JSON: {error}", kind="bad") from error


_SHARD_NAME = re.compile(r"ps-[0-9]{1,6}\.safetensors")
_MAX_CRC32 = 2**32 - 1
_MAX_DIFFERENCE = 1000
"""Characters of a worker's text about different processors; it is journaled."""
_MAX_REPORTED_LEASES = 1 << 16
"""Maximum number of leases in one report: 10,000 workers have three each."""


def parse_world_report(request: pb.WorldRequest) -> WorldReported:
    """What a worker reports about the rounds.

    Raises:
        PeerRefusedError: the phase is unknown, or the records of a lease are.
    """
    try:
        phase = RankPhase(request.phase)
    except ValueError:
        raise PeerRefusedError(f"unknown phase {request.phase!r} of a worker", kind="bad") from None
    if len(request.done) > _MAX_REPORTED_LEASES:
        raise PeerRefusedError(f"more than {_MAX_REPORTED_LEASES} leases in a report", kind="bad")
    if any(each.end <= 0 for each in request.done):
        raise PeerRefusedError("a lease without done records in a report", kind="bad")
    if any(not 0 <= each.skipped <= each.end for each in request.done):
        raise PeerRefusedError("more skipped records than done ones in a report", kind="bad")
    report = MemberReport(
        _parse_round(request.state_round),
        request.step if request.HasField("step") else None,
        request.digest,
        request.after,
        {each.lease: each.end for each in request.done},
        {each.lease: each.skipped for each in request.done if each.skipped},
        tuple(request.skipped_steps),
    )
    loss = request.loss if request.HasField("loss") else None
    copied = _parse_copied_state(request.copied) if request.HasField("copied") else None
    return WorldReported(
        parse_member_uid(request.member),
        phase,
        _parse_round(request.round),
        report,
        request.stable,
        loss,
        request.leaving,
        request.paused,
        copied,
        request.stopped,
        request.difference[:_MAX_DIFFERENCE],
        _parse_evaluation_copy(request.evaluation_copy),
        request.entered if request.HasField("entered") else None,
    )


def _parse_evaluation_copy(message: pb.EvaluationCopy) -> CopyReport:
    if message.step < 0 or message.changes < 0:
        raise PeerRefusedError("a copy for an evaluation of a negative step", kind="bad")
    return CopyReport(message.step, message.changes)


def _parse_copied_state(message: pb.CopiedState) -> CopiedState:
    shard = None
    if message.HasField("shard"):
        file = message.shard.file
        # The manifest must not name a file outside of the checkpoint's folder.
        if not message.shard.error and not _SHARD_NAME.fullmatch(file):
            raise PeerRefusedError(f"{file!r} is not the name of a checkpoint's file", kind="bad")
        if message.shard.crc32 > _MAX_CRC32:
            raise PeerRefusedError(f"{message.shard.crc32} is not a CRC-32", kind="bad")
        shard = WrittenShard(file, message.shard.size, message.shard.crc32, message.shard.error)
    done = {each.lease: each.end for each in message.done}
    return CopiedState(message.cut, message.step, message.pause_seconds, shard, done, tuple(message.writers))


def _parse_round(message: pb.Round) -> RoundId:
    return RoundId(message.incarnation, message.number)


def view_to_reply(
    view: WorldView,
    incarnation: int,
    members: pb.WorldReply,
    members_known: RoundId = NO_ROUND,
) -> pb.WorldReply:
    """A view of the world as the message to its worker.

    Args:
        members: a message with the members and holders of the round; see ``MemberDirectory``.
        members_known: the round whose members the worker has.
    """
    reply = pb.WorldReply(
        incarnation=incarnation,
        version=(incarnation << _VERSION_COUNTER_BITS) + view.version,
        round=pb.Round(incarnation=view.round.incarnation, number=view.round.number),
        phase=view.phase.value,
        member=view.is_member,
        step=view.step,
        committed=view.committed_step,
        change=view.must_change,
        reason=view.reason,
        leases=[pb.LeaseRecords(lease=lease, end=done) for lease, done in view.leases.items()],
        last_lease=view.last_lease,
        pause=view.must_pause,
        evaluate_at=view.evaluate_at,
        learning_rate=view.learning_rate,
        restore_cut=view.restore_cut,
        epoch_left=view.epoch_left,
        epoch=view.epoch,
        may_be_short=view.may_be_short,
        copy_at=view.copy_at,
        evaluated_step=view.evaluated_step,
        checkpoint=pb.CheckpointOrder(
            cut=view.checkpoint.cut, at_step=view.checkpoint.at_step, when_paused=view.checkpoint.when_paused
        )
        if view.checkpoint is not None
        else None,
    )
    if view.source:
        by_uid = {member.uid: member for member in members.members}
        reply.source.CopyFrom(by_uid[view.source])
        reply.helpers.extend(by_uid[helper] for helper in view.helpers)
    # They are as many as there are workers, and everyone of them asks several times a second.
    if view.is_member and view.phase is not RoundPhase.CLOSING and members_known != view.round:
        reply.MergeFrom(members)
    return reply


class MemberDirectory:
    """Where the ring of each worker listens, and the members of the newest round with their addresses."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self._message = pb.WorldReply()
        self._round = NO_ROUND

    def keep_address(self, uid: str, address: str, is_live: Callable[[str], bool]) -> None:
        """Keep the address of a worker; those of workers that have ended are dropped."""
        if self._addresses.get(uid) == address:
            return
        if uid not in self._addresses:
            self._addresses = {each: x for each, x in self._addresses.items() if is_live(each)}
        self._addresses[uid] = address
        self._round = NO_ROUND

    def members_message(self, view: WorldView) -> pb.WorldReply:
        """The members and holders of a view's round as a part of a reply; made once for all of them."""
        if self._round != view.round:
            members = [pb.WorldMember(uid=uid, address=self._addresses.get(uid, "")) for uid in view.members]
            self._round, self._message = view.round, pb.WorldReply(members=members, holders=view.holders)
        return self._message


def lease_to_task(granted: LeaseReply) -> pb.Task:
    """A lease as the message to its worker."""
    work = granted.record_range
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
        expires_seconds=granted.timeout_seconds,
        window=granted.window,
        order=granted.order,
        one_by_one=granted.one_by_one,
        of_copy=granted.of_copy,
        digests=granted.digests,
        payload=b"" if granted.payload is None else json.dumps(granted.payload).encode(),
    )


# --------------------------------------------------------------------------------------------------
# The placement: where workers find the parameter servers. Its version changes with the set of
# usable PS.


_VERSION_COUNTER_BITS = 32
"""A version is ``(incarnation << 32) + counter``, as a lease number is: a new master's versions are higher."""


class PsConnectionSource(Protocol):
    """Knows the addresses of the PS."""

    def connections(self) -> Mapping[str, PsConnection]:
        """The connections by uid."""


class PlacementTable:
    """The parameter servers as workers see them. Call with the shell's lock held.

    Args:
        state: the job's state.
        servers: the addresses of the PS.
        incarnation: incarnation of this master. It is the upper half of the version, so placements of
            this master are newer than those of earlier ones.
    """

    def __init__(self, state: JobState, servers: PsConnectionSource, incarnation: int) -> None:
        self._state, self._servers, self._incarnation = state, servers, incarnation
        self._placed_ps: tuple[str, ...] = ()
        self._version_counter = 1

    def current_version(self) -> int:
        """The version of the current placement, which contains every usable PS."""
        # With a checkpoint, a PS is usable when it has loaded it. Without one, it becomes initialized only
        # by the declaration of a worker, which needs its address.
        restored = self._state.checkpoint is not None
        live = self._state.pods.live_pods(Role.PS)
        placed = tuple(ps.uid for ps in live if ps.attached and (ps.initialized or not restored))
        if placed != self._placed_ps:
            self._placed_ps = placed
            self._version_counter += 1
        return (self._incarnation << _VERSION_COUNTER_BITS) + self._version_counter

    def current_placement(self) -> pb.Placement:
        version, links, count = self.current_version(), self._servers.connections(), self._state.settings.ps
        placed = [links[uid] for uid in self._placed_ps if uid in links]
        addresses = [pb.PsAddress(index=x.index, uid=x.uid, bulk_address=x.bulk_address) for x in placed]
        return pb.Placement(version=version, ps=addresses, slots=initial_placement(count) if count else ())


MAX_WAIT_SECONDS = 5.0
"""Maximum seconds for which a lease request waits: longer waits would occupy threads for lost workers."""


PsReportHandler = Callable[[str, int, pb.PsFigures], None]
"""Receives the statistics of a parameter server, with its uid and index."""


def _ignore_report(uid: str, index: int, metrics: pb.PsFigures) -> None:
    pass


MAX_WORLD_WAIT_SECONDS = 1.0
"""Maximum seconds for which a request for a newer view of the world waits: each is a heartbeat, too."""


class MasterService(edl_pb2_grpc.MasterServicer):
    """Answers workers and parameter servers.

    Frequent requests are answered on the server's event loop, because a thread for each would cost
    more than the answer. Invalid messages are refused (``PeerRefusedError``, kind ``bad``). A
    master that is shutting down raises ``MasterEndsError``; the sender retries with the next one.
    """

    def __init__(
        self,
        shell: MasterShell,
        ps_client: PsControlClient,
        incarnation: int,
        on_ps_report: PsReportHandler = _ignore_report,
    ) -> None:
        self._shell, self._ps_client, self._incarnation, self._on_ps_report = (
            shell,
            ps_client,
            incarnation,
            on_ps_report,
        )
        self._placement_table = PlacementTable(shell.state, ps_client, incarnation)
        self._directory = MemberDirectory()
        self._checkpoint_lock = threading.Lock()

    # ------------------------------------------------------------------ methods of the service

    def Register(self, request: pb.RegisterRequest, context: CallContext) -> pb.RegisterReply:  # noqa: N802
        """Register a worker or PS; the reply has the placement."""
        uid, may_end = parse_member_uid(request.member), False
        # A worker that has not built its model yet registers only to receive the placement.
        if request.member.role == Role.PS:
            may_end = self._register_ps(request)
        elif request.ready:
            self._shell.handle(ModelDeclared(uid, parse_callbacks(request.callbacks)))
        with self._shell.lock:
            placement = self._placement_table.current_placement()
        return pb.RegisterReply(
            incarnation=self._incarnation,
            placement=placement,
            may_end=may_end,
            learning_rate=self._learning_rate(),
        )

    async def Lease(self, request: pb.LeaseRequest, context: CallContext) -> pb.LeaseReply:  # noqa: N802
        """Request work."""
        seconds = min(request.wait_seconds, MAX_WAIT_SECONDS) if request.wait_seconds > 0 else 0.0
        uid, held_leases = parse_member_uid(request.member), frozenset(request.held)
        answer = await self._shell.handle_async(LeaseRequested(uid, held_leases))
        # Only a request that has to wait takes a thread.
        if isinstance(answer, WaitForWork) and seconds:
            answer = await context.run_on_thread(partial(self._shell.wait_for_lease, uid, seconds, held_leases))
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
        """Report progress; also the heartbeat."""
        answer = _require_acknowledged(
            await self._shell.handle_async(
                ProgressReported(
                    parse_member_uid(request.member),
                    parse_lease_progress(request.leases),
                    parse_warnings(request.warnings),
                    request.stopped_training,
                )
            )
        )
        return pb.ProgressReply(
            incarnation=self._incarnation,
            placement_version=self._placement_version(),
            learning_rate=self._learning_rate(),
            lost=answer.lost_leases,
        )

    async def Report(self, request: pb.ReportRequest, context: CallContext) -> pb.ReportReply:  # noqa: N802
        """Report a finished task."""
        last = parse_lease_progress([request.last])[0] if request.HasField("last") else None
        uid, result = parse_member_uid(request.member), parse_result(request.result)
        answer = _require_acknowledged(await self._shell.handle_async(TaskReported(uid, request.lease, last, result)))
        lost = request.lease in answer.lost_leases
        reason = "this worker does not hold the lease (any more)" if lost else ""
        return pb.ReportReply(accepted=not lost, reason=reason, incarnation=self._incarnation)

    def Fail(self, request: pb.FailRequest, context: CallContext) -> pb.FailReply:  # noqa: N802
        """Report that a worker cannot continue."""
        if request.kind not in FAILURE_KINDS:
            raise PeerRefusedError(
                f"the kind of a failure must be one of {', '.join(FAILURE_KINDS)}, not {request.kind!r}", kind="bad"
            )
        uid = parse_member_uid(request.member)
        answer = self._handle_request(WorkerFailed(uid, request.kind, request.message, request.detail, request.lease))
        return pb.FailReply(fatal=answer.fatal)

    def Leave(self, request: pb.LeaveRequest, context: CallContext) -> pb.LeaveReply:  # noqa: N802
        """Return all leases before exiting."""
        self._handle_request(
            WorkerLeft(parse_member_uid(request.member), request.reason, parse_lease_progress(request.leases))
        )
        return pb.LeaveReply()

    async def World(self, request: pb.WorldRequest, context: CallContext) -> pb.WorldReply:  # noqa: N802
        """Report what a worker knows of the rounds; waits for a newer view of them.

        A worker whose pod has ended, but not its process, belongs to no round; it ends with its next request for work.
        """
        if self._shell.state.world is None:
            raise PeerRefusedError("this job's strategy is not AllReduce: it has no rounds", kind="bad")
        report = parse_world_report(request)
        is_live = self._keep_address(report.worker, request.address)
        if is_live and request.HasField("unreadable"):
            # The worker's report waits, so that no round is announced with this checkpoint again.
            with self._shell.mark_speaking(report.worker):
                refused = request.unreadable
                await context.run_on_thread(
                    partial(self._replace_checkpoint, report.worker, refused.cut, refused.error)
                )
        version = self._incarnation << _VERSION_COUNTER_BITS
        seconds = min(request.wait_seconds, MAX_WORLD_WAIT_SECONDS)
        view = await self._shell.view_world(report, request.seen - version, seconds)
        if not is_live:
            # It would follow the round until the next change of it.
            view = replace(view, source="", helpers=())
        with self._shell.lock:
            members = self._directory.members_message(view)
        known = _parse_round(request.members_known)
        return view_to_reply(view, self._incarnation, members, known)

    def _replace_checkpoint(self, worker: str, cut: int, message: str) -> None:
        """Find an older checkpoint that is intact, if the newest one cannot be read."""
        # One message after the other: looking for it reads whole checkpoints.
        with self._checkpoint_lock:
            with self._shell.lock:
                newest = self._shell.state.checkpoint
            if newest is not None and newest.cut == cut:
                self._shell.handle(self._ps_client.checkpoints.find_fallback(worker, cut, message))

    def _keep_address(self, uid: str, address: str) -> bool:
        """Keep the address of a worker's ring for its neighbours; False: its pod has ended.

        Raises:
            RetryableError: the cluster does not show this worker yet.
        """
        with self._shell.lock:
            pods = self._shell.state.pods
            if pods.has_ended(uid):
                return False
            if not pods.is_live(uid):
                # Nothing is kept of an unknown pod: anybody with the token can name one.
                raise RetryableError("the cluster has not reported this pod yet")
            self._directory.keep_address(uid, address, pods.is_live)
            return True

    # ------------------------------------------------------------------ parts

    def _register_ps(self, request: pb.RegisterRequest) -> bool:
        """Record a PS; returns whether a leaving PS may exit."""
        uid, index = request.member.uid, request.member.index
        with self._shell.lock:
            pod = self._shell.state.pods.by_uid.get(uid)
            attached = pod is not None and pod.attached
        if pod is None:
            # Keep nothing of an unknown pod: anybody with the token can claim to be a PS. The pod
            # watch may also be a moment late; the PS retries.
            raise RetryableError("the cluster has not reported this pod yet")
        # Placement and statistics use the index, so a wrong one would displace another PS.
        if (pod.role, pod.index) != (Role.PS, index):
            raise PeerRefusedError(
                f"the cluster reports that this pod is {pod.role}-{pod.index}, not ps-{index}", kind="bad"
            )
        if not pod.live:
            raise PeerRefusedError("the cluster reports that this pod has ended", kind="bad")
        if request.HasField("figures"):
            self._on_ps_report(uid, index, request.figures)
        if request.leaving and self._may_ps_end(uid):
            return True
        try:
            new = self._ps_client.add_ps(uid, index, request.control_address, request.bulk_address)
        except BadInputError as error:
            raise PeerRefusedError(str(error), kind="bad") from error
        self._shell.handle(PsRegistered(uid) if new or not attached else PsHeartbeat(uid))
        return False

    def _may_ps_end(self, uid: str) -> bool:
        answer = self._shell.handle(PsLeaving(uid))
        assert isinstance(answer, MayEnd)
        return answer.value

    def _handle_request(self, event: CoreEvent) -> Acknowledged:
        return _require_acknowledged(self._shell.handle(event))

    def _learning_rate(self) -> float | None:
        """The learning rate that a callback has set; None: the optimizer's own."""
        # Read without the lock: the value is frozen, and every version of it is a valid decision.
        return self._shell.state.callbacks.learning_rate

    def _placement_version(self) -> int:
        with self._shell.lock:
            return self._placement_table.current_version()


def _require_acknowledged(answer: RequestAnswer | None) -> Acknowledged:
    assert isinstance(answer, Acknowledged)
    if answer.refusal:
        raise PeerRefusedError(answer.refusal, kind="bad")
    return answer
