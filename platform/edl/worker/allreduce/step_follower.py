"""A worker outside the world follows the running round: it gets the state of a member, and then every step.

It applies the same sums as the members, so its variables stay equal to theirs. When it has caught up it asks to
join, and at the boundary it has the state of the newest step like all others: no broadcast holds them up.
``step_feed`` is the other side.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from edl.api.errors import BadInputError, EdlError
from edl.core.rank_state import CallbackEpoch
from edl.core.world_rounds import RoundPhase
from edl.numerics.packed_state import part_bounds
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_connection import MAX_META_BYTES, BulkConnection, FrameKind, FrameLimits, ReceivedFrame
from edl.transport.message_validation import parse_message
from edl.transport.peer_errors import BulkRefusedError, PeerRefusedError
from edl.worker.allreduce.model_description import format_model
from edl.worker.allreduce.rank_answers import MAX_SHARES_BYTES, read_answer, read_pending_shares
from edl.worker.allreduce.state_parts import CHECK_SECONDS, PartsFromHelpers, check_state_bytes, wait_readable
from edl.worker.allreduce.step_message import StepOutcome
from edl.worker.allreduce.world_client import RoundView, WorldClient

_LOG = logging.getLogger(__name__)

PEER_SECONDS = 5.0
"""Seconds without progress after which the source of the steps counts as gone."""
CLOSING_SECONDS = 1.0
"""Seconds for which the last steps of a round may still arrive after the master has closed it."""
_MAX_DESCRIBED_BYTES = MAX_META_BYTES // 2
_SOURCE = "the member that this worker follows"
BEHIND = 1
"""A follower asks to join when at most so many steps wait for it at its source."""

Array = np.ndarray[Any, Any]


class FollowingReplica(Protocol):
    """What a follower needs of ``ReplicaLike``."""

    @property
    def buffers(self) -> Sequence[Array]: ...
    def unpack_state(self, buffer: Array) -> None: ...
    def describe_variables(self) -> Mapping[str, str]: ...
    def fingerprint(self) -> str: ...


class StepFollower:
    """Follows rounds.

    Args:
        worker: this worker, for users.
        replica: the model.
        world: the rounds.
        token: the job's token.
        state_bytes: size of a packed state of this model.
        apply: applies the sums in the replica's buffers, as a member does; gets what the ranks said.
        on_state: called before the replica gets the state of a member: how far the callbacks of this member are, and
            the step of the state.
        must_end: whether this worker was told to end, or the job has no more work.
    """

    def __init__(
        self,
        worker: str,
        replica: FollowingReplica,
        world: WorldClient,
        token: str,
        state_bytes: int,
        apply: Callable[[StepOutcome], None],
        on_state: Callable[[CallbackEpoch, int], None],
        must_end: Callable[[], bool],
    ) -> None:
        self._worker = worker
        self._replica = replica
        self._world = world
        self._token = token
        self._state_bytes = state_bytes
        self._sum_bytes = sum(buffer.nbytes for buffer in replica.buffers)
        self._apply = apply
        self._on_state = on_state
        self._must_end = must_end
        self._has_state = False
        self._parts: list[bytes] = []
        """What the frames of a message that is not complete said."""
        self._parts_kind = FrameKind.ROUND_STATE
        self._part_bytes = 0

    def follow(self, view: RoundView) -> None:
        """Follow the round of this view until no further step of it comes; this worker asks to join then.

        A source that is lost, or that is faster than this worker, does no harm: the worker gets the state when it
        enters the world.

        Raises:
            BadInputError: the source has another model.
            EdlError: the master is lost.
        """
        with PartsFromHelpers(view.helper_addresses, self._token, self._state_bytes, PEER_SECONDS) as parts:
            self._follow(view, parts)
        self._world.end_following()

    def _follow(self, view: RoundView, parts: PartsFromHelpers) -> None:
        try:
            model = self._replica.fingerprint()
            parts.request(_make_request(view, model))
            connection, sock = self._connect(view, model, parts)
        except BulkRefusedError as refused:
            if refused.kind == "model":
                refused = self._ask_for_difference(view) or refused
                raise BadInputError(refused.message, hint=refused.hint) from refused
            _LOG.info("%s cannot be followed: %s", view.round, refused)
        except EdlError as error:
            _LOG.info("%s cannot be followed: %s", view.round, error)
        else:
            try:
                self._receive_all(view, connection, sock, parts)
            finally:
                connection.close()

    def _ask_for_difference(self, view: RoundView) -> BulkRefusedError | None:
        """The refusal that names the first variable in which the models differ; None: the source is gone."""
        described = format_model(self._worker, self._replica.describe_variables())
        if len(described.encode()) > _MAX_DESCRIBED_BYTES:
            return None
        try:
            connection, _ = self._connect(view, described)
        except BulkRefusedError as refused:
            return refused if refused.kind == "model" else None
        except EdlError:
            return None
        connection.close()
        return None

    def _connect(
        self, view: RoundView, model: str, parts: PartsFromHelpers | None = None
    ) -> tuple[BulkConnection, socket.socket]:
        with BulkClient(view.source_address, self._token, timeout=PEER_SECONDS, max_body=0) as client:
            request = _make_request(view, model)
            if parts is not None:
                request.at_step, request.parts = parts.at_step, parts.parts
            reply = client.request(FrameKind.FOLLOW_ROUND, request.SerializeToString())
            client.check_reply_kind(FrameKind.FOLLOW_ROUND, reply)
            sock = client.release_socket()
        limits = FrameLimits(MAX_META_BYTES, max(self._state_bytes, self._sum_bytes))
        return BulkConnection(sock, _SOURCE, limits, PEER_SECONDS), sock

    def _receive_all(
        self, view: RoundView, connection: BulkConnection, sock: socket.socket, parts: PartsFromHelpers
    ) -> None:
        self._has_state, self._parts, self._part_bytes = False, [], 0
        body = memoryview(bytearray(max(self._state_bytes, self._sum_bytes)))
        parts.receive()
        try:
            while self._wait_for_frame(view, sock):
                frame = connection.receive(body)
                if frame.kind is FrameKind.ROUND_STATE:
                    self._take_state(frame, body, connection, parts)
                elif frame.kind is FrameKind.ROUND_STEP:
                    self._take_step(frame)
                else:
                    return
        except EdlError as error:
            if isinstance(error, BadInputError):
                raise
            _LOG.info("the connection to the member that this worker followed in %s was lost: %s", view.round, error)

    def _wait_for_frame(self, view: RoundView, sock: socket.socket) -> bool:
        """Wait for the next frame; False: no further one is waited for."""
        closed_at: float | None = None
        while not self._must_end():
            now, newest = time.monotonic(), self._world.view
            if newest.is_member or newest.round > view.round:
                return False
            if newest.phase is RoundPhase.CLOSING:
                closed_at = closed_at or now
                if now - closed_at > CLOSING_SECONDS:
                    return False
            if wait_readable(sock, CHECK_SECONDS):
                return True
            # Nothing is on its way: the others may wait for records or for an evaluation.
            if self._has_state:
                self._world.catch_up()
        return False

    def _join_parts(self, kind: FrameKind, parts: Sequence[bytes], *, continues: bool) -> list[bytes] | None:
        """What a frame says together with those of the same message before it; None: another one follows."""
        if self._parts and kind is not self._parts_kind:
            raise PeerRefusedError(f"a frame {kind.name} came in the middle of a {self._parts_kind.name}", kind="bad")
        self._parts_kind = kind
        self._parts += parts
        # An empty one takes memory as well.
        self._part_bytes += sum(len(part) + 1 for part in parts)
        if self._part_bytes > MAX_SHARES_BYTES:
            raise PeerRefusedError(f"a {kind.name} has more than {MAX_SHARES_BYTES} bytes of messages", kind="bad")
        if continues:
            return None
        joined, self._parts, self._part_bytes = self._parts, [], 0
        return joined

    def _take_state(
        self, frame: ReceivedFrame, body: memoryview, connection: BulkConnection, parts: PartsFromHelpers
    ) -> None:
        message = parse_message(pb.RoundState, frame.meta)
        joined = self._join_parts(frame.kind, [message.shares], continues=message.continues)
        if joined is None:
            return
        shares = read_answer(b"".join(joined), read_pending_shares, "shares of its state", _SOURCE)
        if parts.parts and message.parts:
            state = self._join_state(frame, message.step, body, connection, parts)
            if state is None:
                return
        else:
            # The source has not met the other members' step.
            parts.close()
            state = frame.body
            check_state_bytes(message, state)
        if len(state) != self._state_bytes:
            raise PeerRefusedError(f"a state has {self._state_bytes} bytes, not {len(state)}", kind="bad")
        rate = message.learning_rate if message.HasField("learning_rate") else None
        epoch = CallbackEpoch(
            message.begun_epochs,
            message.epoch_loss_sum,
            message.epoch_steps,
            (message.began_in.incarnation, message.began_in.number),
            rate,
            message.first_epoch,
        )
        if not epoch.is_possible:
            raise PeerRefusedError(f"a state comes with an impossible epoch, {epoch}", kind="bad")
        self._world.begin_following()
        self._on_state(epoch, message.step)
        self._replica.unpack_state(np.frombuffer(state, np.uint8))
        self._world.adopt_followed_state(message.step, shares)
        self._has_state = True

    def _join_state(
        self, frame: ReceivedFrame, step: int, body: memoryview, connection: BulkConnection, parts: PartsFromHelpers
    ) -> memoryview | None:
        """The state of ``step`` from all its parts, of which the frame is the first; None: this worker must end.

        Parts that no other member has sent come from the source, which keeps the state until then.

        Raises:
            PeerRefusedError: the source has cut the state of another step than the other members, or sends other bytes.
        """
        parts.check(frame, 0, parts.at_step)
        missing = parts.wait(body, self._must_end)
        parts.close()
        if self._must_end():
            return None
        connection.send(FrameKind.FETCH_PARTS, pb.FetchParts(parts=missing).SerializeToString())
        for part in missing:
            start, end = part_bounds(self._state_bytes, part, parts.parts)
            parts.check(connection.receive(body[start:end]), part, step)
        return body[: self._state_bytes]

    def _take_step(self, frame: ReceivedFrame) -> None:
        message = parse_message(pb.RoundStep, frame.meta)
        if not self._has_state:
            raise PeerRefusedError("a step came before the state", kind="bad")
        messages = self._join_parts(frame.kind, message.messages, continues=message.continues)
        if messages is None:
            return
        if not messages:
            raise PeerRefusedError("a step has no message of any rank", kind="bad")
        outcome = StepOutcome.from_messages(messages)
        start, data = 0, np.frombuffer(frame.body, np.uint8)
        if outcome.changes_variables:
            if data.size != self._sum_bytes:
                raise PeerRefusedError(f"the sums of a step have {self._sum_bytes} bytes, not {data.size}", kind="bad")
            for buffer in self._replica.buffers:
                np.copyto(buffer.reshape(-1).view(np.uint8), data[start : start + buffer.nbytes])
                start += buffer.nbytes
        self._apply(outcome)
        self._world.follow_step(outcome.shares, is_skipped=not outcome.is_finite)
        if message.behind <= BEHIND:
            self._world.catch_up()


def _make_request(view: RoundView, model: str) -> pb.FollowRound:
    round_id = pb.Round(incarnation=view.round.incarnation, number=view.round.number)
    return pb.FollowRound(round=round_id, model=model)
