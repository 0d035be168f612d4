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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from edl.api.errors import EdlError
from edl.api.round_id import RoundId
from edl.core.rank_state import NOT_BEGUN, CallbackEpoch
from edl.core.state_agreement import describe_model_difference
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
        self._fingerprint, self._variables = replica.fingerprint(), replica.describe_variables()
        self._lock = threading.Lock()
        self._waiting: list[tuple[RoundId, socket.socket]] = []
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
        round_id = RoundId(request.round.incarnation, request.round.number)
        return HandOver(OutgoingFrame(FrameKind.FOLLOWED_ROUND), lambda sock: self._add(round_id, sock))

    def _describe_conflict(self, model: str) -> str:
        """Why a worker cannot follow: after a first refusal it sends its variables in the place of the fingerprint."""
        joiner, difference = "the worker that joins", "names, shapes or types of variables, or the updates, differ"
        with suppress(ValueError):
            joiner, variables = parse_model(model)
            difference = describe_model_difference(joiner, variables, self._worker, self._variables)
        return f"{joiner} and {self._worker} have different models: {difference}"

    def _add(self, round_id: RoundId, sock: socket.socket) -> None:
        with self._lock:
            if not self._is_closed:
                self._waiting.append((round_id, sock))
                return
        sock.close()

    # ------------------------------------------------------------------ what the loop of the rank calls

    def serve_waiting(
        self, round_id: RoundId, step: int, copy: Callable[[], tuple[bytes, Array]], epoch: CallbackEpoch = NOT_BEGUN
    ) -> None:
        """Begin with the followers that have connected. The rank is in this round and has applied ``step``.

        Args:
            copy: returns the shares of the steps that are not in the ledger, as JSON, and a copy of the state.
            epoch: how far the callbacks of the rank are.
        """
        if not self._waiting:
            return
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for _, sock in (each for each in waiting if each[0] != round_id):
            sock.close()
        current = [sock for each, sock in waiting if each == round_id]
        if not current:
            return
        shares, state = copy()
        incarnation, number = epoch.began_in
        *first, last = _cut_bytes(shares)
        frames = [
            *(_state_frame(pb.RoundState(step=step, shares=part, continues=True)) for part in first),
            _state_frame(
                pb.RoundState(
                    step=step,
                    shares=last,
                    begun_epochs=epoch.begun,
                    epoch_loss_sum=epoch.loss_sum,
                    epoch_steps=epoch.steps,
                    began_in=pb.Round(incarnation=incarnation, number=number) if number else None,
                    learning_rate=epoch.learning_rate,
                    first_epoch=epoch.first_epoch,
                ),
                state.data,
            ),
        ]
        for sock in current:
            stream = _FollowerStream(sock)
            stream.add(frames)
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
        for _, sock in waiting:
            sock.close()


def _state_frame(message: pb.RoundState, *buffers: memoryview) -> OutgoingFrame:
    return OutgoingFrame(FrameKind.ROUND_STATE, message.SerializeToString(), buffers)


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


class _FollowerStream:
    """Sends frames to one follower in a thread of its own."""

    def __init__(self, sock: socket.socket) -> None:
        self._connection = BulkConnection(sock, "the worker that joins", FrameLimits(0, 0), SEND_SECONDS)
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
