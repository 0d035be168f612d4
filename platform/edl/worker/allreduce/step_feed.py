"""What a member of a round sends to workers that follow it: its state once, and then the result of every step.

So a worker that joins has the state of the newest step when it enters the world, and the others wait for
nothing but the boundary. A thread for each follower sends; the loop of the rank only copies. See
docs/design/0010-allreduce.md, and ``step_follower`` for the other side.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from edl.api.errors import EdlError
from edl.api.round_id import RoundId
from edl.core.rank_state import NOT_BEGUN, CallbackEpoch
from edl.core.state_agreement import describe_model_difference
from edl.numerics.packed_state import cut_pieces, packed_pieces, part_bounds, pieces_checksum
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_connection import (
    MAX_META_BYTES,
    BulkConnection,
    FrameKind,
    FrameLimits,
    OutgoingFrame,
    ReceivedFrame,
)
from edl.transport.bulk_server import HandOver
from edl.transport.message_validation import parse_message
from edl.transport.peer_errors import PeerRefusedError
from edl.worker.allreduce.model_description import MODEL_HINT, parse_model

_LOG = logging.getLogger(__name__)

SEND_SECONDS = 10.0
"""Seconds without progress after which a follower counts as gone."""
QUEUED_BYTES = 256 << 20
QUEUED_STEPS = 2
"""A follower is dropped if more than these bytes and more than these steps wait for it: it is slower than the round.

Of steps that are larger than all these bytes some must wait all the same: while the state of a model with Adam is sent,
which has three times the bytes of a sum, the ranks make one or two steps.
"""
_PART_BYTES = MAX_META_BYTES // 2
"""What is longer than that travels in several frames: the messages of all ranks, or the shares of a state."""
MOST_PARTS = 64
"""Into so many parts a state may be cut."""
CHOICE_SECONDS = 0.05
"""A worker that joins asks all its sources within this time. The step at which they cut the state comes later."""
FETCH_SECONDS = 60.0
"""Seconds that a follower may take to get the other parts of a state."""

_MAX_REQUEST_BYTES = 4096
"""Of what a follower may ask for."""

Array = np.ndarray[Any, Any]


class DescribedReplica(Protocol):
    """What is needed of ``ReplicaLike``."""

    def describe_variables(self) -> Mapping[str, str]: ...
    def fingerprint(self) -> str: ...


class StepFeed:
    """The followers of this member; thread-safe.

    Args:
        worker: this member, for users.
        replica: its model. A worker with another one is refused.
    """

    def __init__(self, worker: str, replica: DescribedReplica) -> None:
        self._worker = worker
        self._clock = _StepClock()
        self._fingerprint, self._variables = replica.fingerprint(), replica.describe_variables()
        self._lock = threading.Lock()
        self._waiting: list[_WaitingFollower] = []
        self._streams: list[_FollowerStream] = []
        self._is_closed = False

    def handle_frame(self, frame: ReceivedFrame) -> HandOver:
        """Answer a worker that asks to follow a round; called in a thread of the listener.

        Raises:
            PeerRefusedError: it asks for something else, or has another model.
        """
        if frame.kind is not FrameKind.FOLLOW_ROUND:
            raise PeerRefusedError(
                f"this port accepts requests to join or follow a round, not {frame.kind.name}", kind="bad"
            )
        request = parse_message(pb.FollowRound, frame.meta)
        if request.model != self._fingerprint:
            raise PeerRefusedError(self._describe_conflict(request.model), kind="model", hint=MODEL_HINT)
        has_part = 0 <= request.part < request.parts <= MOST_PARTS
        if not (has_part or request.part == request.parts == 0) or request.at_step < 0:
            raise PeerRefusedError(
                f"part {request.part} of {request.parts} at step {request.at_step} is impossible", kind="bad"
            )
        round_id = RoundId(request.round.incarnation, request.round.number)
        at_step = request.at_step or (self._clock.choose_step() if request.parts else 0)
        answer = pb.FollowedRound(at_step=at_step).SerializeToString()
        part, parts = request.part, request.parts
        return HandOver(
            OutgoingFrame(FrameKind.FOLLOWED_ROUND, answer),
            lambda sock: self._add(_WaitingFollower(round_id, sock, at_step, part, parts)),
        )

    def _describe_conflict(self, model: str) -> str:
        """Why a worker cannot follow: after a first refusal it sends its variables in the place of the fingerprint."""
        joiner, difference = "the worker that joins", "names, shapes or types of variables, or the updates, differ"
        with suppress(ValueError):
            joiner, variables = parse_model(model)
            difference = describe_model_difference(joiner, variables, self._worker, self._variables)
        return f"{joiner} and {self._worker} have different models: {difference}"

    def _add(self, follower: _WaitingFollower) -> None:
        with self._lock:
            if not self._is_closed:
                self._waiting.append(follower)
                return
        follower.sock.close()

    # ------------------------------------------------------------------ what the loop of the rank calls

    def serve_waiting(
        self,
        round_id: RoundId,
        step: int,
        hold: Callable[[], tuple[bytes, Sequence[Array]]],
        epoch: CallbackEpoch = NOT_BEGUN,
    ) -> None:
        """Begin with the followers that have connected. The rank is in this round and has applied ``step``.

        Args:
            hold: returns the shares of the steps that are not in the ledger, as JSON, and the arrays of the state,
                which do not change any more.
            epoch: how far the callbacks of the rank are.
        """
        is_idle = self._clock.note_step(step)
        if not self._waiting:
            return
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._waiting = [each for each in waiting if each.round_id == round_id and each.must_wait(step, is_idle)]
        for each in waiting:
            if each.round_id != round_id or each.is_late(step):
                each.sock.close()
        due = [
            each
            for each in waiting
            if each.round_id == round_id and not each.must_wait(step, is_idle) and not each.is_late(step)
        ]
        if not due:
            return
        shares, arrays = hold()
        incarnation, number = epoch.began_in
        message = pb.RoundState(
            step=step,
            begun_epochs=epoch.begun,
            epoch_loss_sum=epoch.loss_sum,
            epoch_steps=epoch.steps,
            began_in=pb.Round(incarnation=incarnation, number=number) if number else None,
            learning_rate=epoch.learning_rate,
            first_epoch=epoch.first_epoch,
        )
        state = _HeldState(message, shares, packed_pieces(arrays))
        for each in due:
            # The member that sends the steps has passed the step at which the state was to be cut: it sends all of it.
            is_cut = each.parts > 0 and each.at_step == step
            stream = _FollowerStream(each.sock, _PartsToSend(state, each.part, each.parts if is_cut else 0))
            if each.part == 0:
                self._streams.append(stream)

    def add_step(self, messages: Sequence[bytes], buffers: Sequence[Array]) -> None:
        """A reduction is finished.

        Args:
            messages: of all ranks.
            buffers: the sums; they are copied. Empty: the step changes no variable.
        """
        self._streams = [stream for stream in self._streams if stream.is_open]
        if not self._streams:
            return
        copies = tuple(buffer.view(np.uint8).copy().data for buffer in buffers)
        *first, last = _cut_messages(messages)
        frames = [_step_frame(pb.RoundStep(messages=part, continues=True)) for part in first]
        for stream in self._streams:
            message = pb.RoundStep(messages=last, behind=stream.queued_steps)
            stream.add([*frames, _step_frame(message, *copies)])

    def end_round(self) -> None:
        """No further step of this round comes. Followers still get those that wait for them."""
        for stream in self._streams:
            stream.add([OutgoingFrame(FrameKind.ROUND_END)])
        self._streams = []

    def close(self) -> None:
        """This worker ends."""
        self.end_round()
        with self._lock:
            waiting, self._waiting, self._is_closed = self._waiting, [], True
        for each in waiting:
            each.sock.close()


def _step_frame(message: pb.RoundStep, *buffers: memoryview) -> OutgoingFrame:
    return OutgoingFrame(FrameKind.ROUND_STEP, message.SerializeToString(), buffers)


def _cut_bytes(data: bytes) -> list[bytes]:
    return [data[start : start + _PART_BYTES] for start in range(0, max(1, len(data)), _PART_BYTES)]


def _cut_messages(messages: Sequence[bytes]) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    size = 0
    for message in messages:
        if part and size + len(message) > _PART_BYTES:
            yield part
            part, size = [], 0
        part.append(message)
        size += len(message)
    yield part


class _StepClock:
    """How far the rank is, and how fast."""

    def __init__(self) -> None:
        self._step, self._at, self._seconds = 0, time.monotonic(), 0.0

    def note_step(self, step: int) -> bool:
        """The rank has applied ``step``; returns whether it was there before, so that no step is being made."""
        is_idle, now = step == self._step, time.monotonic()
        if step == self._step + 1:
            self._seconds = now - self._at
        self._step, self._at = step, now
        return is_idle

    def choose_step(self) -> int:
        """A step that no rank has made, nor makes within ``CHOICE_SECONDS``. Ranks are one step apart at most.

        As long as no step was measured it may be made sooner: the worker would wait for dozens of long ones, and gets
        the whole state at worst.
        """
        steps = int(CHOICE_SECONDS / max(self._seconds, 0.001)) if self._seconds else 0
        return self._step + 2 + steps


class _WaitingFollower(NamedTuple):
    """A worker that was answered, and has no state yet.

    Attributes:
        at_step: after which the state is cut into parts; 0: it gets the whole one.
        part: which it gets.
        parts: into how many; 0: it gets the whole state.
    """

    round_id: RoundId
    sock: socket.socket
    at_step: int
    part: int
    parts: int

    def must_wait(self, step: int, is_idle: bool) -> bool:
        """Whether its step is still to come. While nobody makes steps, it may not: then it gets the whole state now."""
        return step < self.at_step and (self.part > 0 or not is_idle)

    def is_late(self, step: int) -> bool:
        """Whether the other members have cut the state before, so that no part of this one's fits."""
        return self.part > 0 and step > self.at_step


@dataclass(frozen=True)
class _HeldState:
    """A state that does not change any more.

    Attributes:
        message: what goes with it.
        shares: as JSON, of the steps that are not in the ledger.
        pieces: the bytes of the packed state.
    """

    message: pb.RoundState
    shares: bytes
    pieces: Sequence[Array]


class _PartsToSend:
    """What one follower gets of a state: a part, and later those that others did not send; or all of it.

    Only the member that may have to send other parts holds them. Each state that is held takes the memory of all its
    variables as soon as the next step has changed them, and several workers may join at several steps.

    Args:
        state: the state.
        part: the number of the part.
        parts: their number; 0: the state is whole.
    """

    def __init__(self, state: _HeldState, part: int, parts: int) -> None:
        self._message, self._part, self._parts = state.message, part, parts
        self._shares, self._pieces = (b"", self._cut(state.pieces, part)) if part else (state.shares, state.pieces)

    def send(self, connection: BulkConnection) -> bool:
        """Send it; returns whether the steps follow.

        Raises:
            EdlError: the follower is gone, or asks for something else.
        """
        is_first = self._part == 0
        *first, last = _cut_bytes(self._shares)
        for shares in first:
            message = pb.RoundState(step=self._message.step, shares=shares, continues=True)
            connection.send(FrameKind.ROUND_STATE, message.SerializeToString())
        pieces = self._cut(self._pieces, 0) if is_first else self._pieces
        self._send_part(connection, self._part, pieces, last)
        if is_first and self._parts:
            connection.set_timeout(FETCH_SECONDS)
            frame = connection.receive()
            connection.set_timeout(SEND_SECONDS)
            if frame.kind is not FrameKind.FETCH_PARTS:
                raise PeerRefusedError(f"a follower sent {frame.kind.name} instead of FETCH_PARTS", kind="bad")
            for part in parse_message(pb.FetchParts, frame.meta).parts:
                if not 0 < part < self._parts:
                    raise PeerRefusedError(f"there is no part {part} of {self._parts}", kind="bad")
                self._send_part(connection, part, self._cut(self._pieces, part), b"")
        return is_first

    def _cut(self, pieces: Sequence[Array], part: int) -> Sequence[Array]:
        """A part of the whole state; all of it if it is not cut."""
        if not self._parts:
            return pieces
        return cut_pieces(pieces, *part_bounds(sum(piece.size for piece in pieces), part, self._parts))

    def _send_part(self, connection: BulkConnection, part: int, pieces: Sequence[Array], shares: bytes) -> None:
        message = pb.RoundState(shares=shares, part=part, parts=self._parts, crc32=pieces_checksum(pieces))
        message.MergeFrom(self._message)
        connection.send(FrameKind.ROUND_STATE, message.SerializeToString(), [piece.data for piece in pieces])


class _FollowerStream:
    """Sends a state and then frames to one follower in a thread of its own."""

    def __init__(self, sock: socket.socket, state: _PartsToSend | None = None) -> None:
        self._connection = BulkConnection(
            sock, "the worker that joins", FrameLimits(_MAX_REQUEST_BYTES, 0), SEND_SECONDS
        )
        self._state = state
        self._steps: queue.SimpleQueue[Sequence[OutgoingFrame] | None] = queue.SimpleQueue()
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self.is_open = True
        threading.Thread(target=self._send_all, name="step-feed", daemon=True).start()

    @property
    def queued_steps(self) -> int:
        """Steps that wait to be sent, without the one that is being sent."""
        return self._steps.qsize()

    def add(self, frames: Sequence[OutgoingFrame]) -> None:
        """Queue the frames of a step; a follower for which too much waits is dropped."""
        size = _count_bytes(frames)
        with self._lock:
            is_too_slow = self.queued_steps >= QUEUED_STEPS and self._queued_bytes + size > QUEUED_BYTES
            self._queued_bytes += size
        # The end of a round takes no memory.
        if size and is_too_slow:
            _LOG.warning(
                "a follower is too slow for the steps of this round: it copies the state when it joins the world"
            )
            self.is_open = False
            self._connection.shut_down()
            self._steps.put(None)
            return
        self._steps.put(frames)

    def _send_all(self) -> None:
        try:
            state, self._state = self._state, None
            if state is not None and not state.send(self._connection):
                return
            # Its memory is not needed any more.
            del state
            while (frames := self._steps.get()) is not None:
                with self._lock:
                    self._queued_bytes -= _count_bytes(frames)
                for frame in frames:
                    self._connection.send(*frame)
                if frames[-1].kind is FrameKind.ROUND_END:
                    break
        except EdlError as error:
            _LOG.info("the connection to a follower of this round was lost: %s", error)
        finally:
            self.is_open = False
            self._connection.close()


def _count_bytes(frames: Sequence[OutgoingFrame]) -> int:
    return sum(len(frame.meta) + sum(memoryview(each).nbytes for each in frame.buffers) for frame in frames)
