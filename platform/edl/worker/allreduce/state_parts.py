"""The parts of a state that a worker which follows a round gets from further members, while its source sends the first.

All of them cut the state that they have after the same step, which the first member asked chooses. A part that does not
come, or that is another one, is fetched from the source.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from edl.api.errors import EdlError
from edl.numerics.checksum import crc32
from edl.numerics.packed_state import part_bounds
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_connection import MAX_META_BYTES, BulkConnection, FrameKind, FrameLimits, ReceivedFrame
from edl.transport.message_validation import parse_message
from edl.transport.peer_errors import PeerRefusedError

_LOG = logging.getLogger(__name__)

SPLIT_BYTES = 16 << 20
"""A smaller state comes from one member: with 1 Gbit/s in 130 ms."""
WAIT_SECONDS = 20.0
"""Seconds after the source's part in which the others must have come. The source holds the state for a longer time
(``step_feed.FETCH_SECONDS``), in which it sends what is missing."""
CHECK_SECONDS = 0.05


@dataclass(frozen=True)
class _Helper:
    connection: BulkConnection
    sock: socket.socket
    part: int


class PartsFromHelpers:
    """Parts of a state from further members; a context manager.

    Args:
        addresses: of these members.
        token: the job's token.
        state_bytes: the size of the packed state.
        seconds: without progress after which a member counts as gone.
    """

    def __init__(self, addresses: Sequence[str], token: str, state_bytes: int, seconds: float) -> None:
        self._addresses = addresses if state_bytes >= SPLIT_BYTES else ()
        self._token = token
        self._state_bytes = state_bytes
        self._seconds = seconds
        self._helpers: list[_Helper] = []
        self._threads: list[threading.Thread] = []
        self._arrived: dict[int, memoryview] = {}
        self._is_due = threading.Event()
        self._is_over = False
        self.at_step = 0
        """After which the members cut the state; 0: the source sends the whole one."""
        self.parts = 0
        """Their number, with that of the source."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(self, request: pb.FollowRound) -> None:
        """Ask the members for their parts; those that cannot be reached, or refuse, are left out.

        Args:
            request: the round and the model.
        """
        with ExitStack() as stack:
            clients = []
            for address in self._addresses:
                try:
                    clients.append(
                        stack.enter_context(BulkClient(address, self._token, timeout=self._seconds, max_body=0))
                    )
                except EdlError as error:
                    _LOG.info("no part of the state comes from %s: %s", address, error)
            parts = len(clients) + 1
            for part, client in enumerate(clients, 1):
                asked = pb.FollowRound(part=part, parts=parts, at_step=self.at_step)
                asked.MergeFrom(request)
                try:
                    reply = client.request(FrameKind.FOLLOW_ROUND, asked.SerializeToString())
                    client.check_reply_kind(FrameKind.FOLLOW_ROUND, reply)
                    at_step = parse_message(pb.FollowedRound, reply.meta).at_step
                except EdlError as error:
                    _LOG.info("no part of the state comes from %s: %s", client.address, error)
                    continue
                if at_step <= 0 or self.at_step not in (0, at_step):
                    _LOG.info("no part of the state comes from %s: it has chosen step %d", client.address, at_step)
                    continue
                self.at_step = at_step
                start, end = part_bounds(self._state_bytes, part, parts)
                sock, limits = client.release_socket(), FrameLimits(MAX_META_BYTES, end - start)
                self._helpers.append(_Helper(BulkConnection(sock, client.address, limits, self._seconds), sock, part))
        self.parts = parts if self._helpers else 0

    def receive(self) -> None:
        """Begin to receive the parts, each in a thread of its own."""
        for helper in self._helpers:
            thread = threading.Thread(target=self._receive_part, args=(helper,), name="state-part", daemon=True)
            thread.start()
            self._threads.append(thread)

    def wait(self, state: memoryview, must_end: Callable[[], bool]) -> list[int]:
        """Wait for the parts, after the first one has come; returns the numbers of those that are missing.

        A member that sends slowly makes progress without an end, while more and more steps wait at the source.

        Args:
            state: the others are written to their places in it.
            must_end: ends the wait.
        """
        self._is_due.set()
        until = time.monotonic() + WAIT_SECONDS
        for thread in self._threads:
            while thread.is_alive() and not must_end() and time.monotonic() < until:
                thread.join(CHECK_SECONDS)
        arrived = dict(self._arrived)
        for part, content in arrived.items():
            start, end = part_bounds(self._state_bytes, part, self.parts)
            state[start:end] = content
        return [part for part in range(1, self.parts) if part not in arrived]

    def check(self, frame: ReceivedFrame, part: int, step: int) -> None:
        """Check that a frame has this part of the state after ``step``.

        Raises:
            PeerRefusedError: it has something else.
        """
        if frame.kind is not FrameKind.ROUND_STATE:
            raise PeerRefusedError(f"part {part} of the state came as {frame.kind.name}", kind="bad")
        message = parse_message(pb.RoundState, frame.meta)
        start, end = part_bounds(self._state_bytes, part, self.parts)
        received = (message.step, message.part, message.parts, len(frame.body))
        if received != (step, part, self.parts, end - start):
            raise PeerRefusedError(
                f"{received} is no part {part} of {self.parts} of the state of step {step}", kind="bad"
            )
        check_state_bytes(message, frame.body)

    def close(self) -> None:
        """Close the connections, and forget the parts."""
        self._is_over = True
        for helper in self._helpers:
            helper.connection.shut_down()
        for thread in self._threads:
            thread.join()
        for helper in self._helpers:
            helper.connection.close()
        self._helpers, self._threads, self._arrived = [], [], {}

    def _receive_part(self, helper: _Helper) -> None:
        start, end = part_bounds(self._state_bytes, helper.part, self.parts)
        try:
            # The member waits for its step. When the source has sent its part, this one is on its way as well.
            while not wait_readable(helper.sock, CHECK_SECONDS) and not self._is_over:
                if self._is_due.is_set():
                    break
            if self._is_over:
                return
            # Not in its place: the source may have missed the step, and then it sends the whole state there.
            frame = helper.connection.receive(memoryview(bytearray(end - start)))
            self.check(frame, helper.part, self.at_step)
            self._arrived[helper.part] = frame.body
        except EdlError as error:
            _LOG.info("part %d of the state does not come from %s: %s", helper.part, helper.connection.peer, error)


def wait_readable(sock: socket.socket, seconds: float) -> bool:
    """Whether something arrives, or the connection ends, within some seconds.

    Not ``select.select``: it refuses descriptors above 1,023, and a reader may hold a thousand files open.
    """
    watched = select.poll()
    watched.register(sock, select.POLLIN)
    return bool(watched.poll(1000 * seconds))


def check_state_bytes(message: pb.RoundState, body: memoryview) -> None:
    """Check the bytes of a state, or of a part of it, against its checksum.

    Raises:
        PeerRefusedError: they are other ones.
    """
    if crc32(body) != message.crc32:
        raise PeerRefusedError("a state arrived with another checksum", kind="bad")
