"""Accepts neighbours' connections for all rounds of a process."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from edl.api.errors import RefusedError, RetryableError
from edl.api.round_id import RoundId
from edl.collective.round_errors import RoundBrokenError
from edl.collective.round_frames import JoinRequest
from edl.transport.bulk_connection import FrameKind, OutgoingFrame, ReceivedFrame
from edl.transport.bulk_server import BulkServer, HandOver
from edl.transport.peer_errors import PeerRefusedError

log = logging.getLogger(__name__)

# How long a neighbour waits here that knows of a round before this process does.
_EARLY_SECONDS = 10.0
# Connections at a time. One is needed. Others wait for a later round, or are being closed.
_MAX_NEIGHBOURS = 64


class RoundAdmission:
    """Collects the previous rank's connections for one round.

    ``CollectiveListener.open_round`` creates it.
    """

    def __init__(self, round_id: RoundId, rank: int, size: int, lock: threading.Condition) -> None:
        self.round_id = round_id
        self.rank = rank
        self.size = size
        # The listener's condition, so that a new round and a stop wake the waits here as well.
        self._changed = lock
        self._arrived: deque[tuple[socket.socket, bool]] = deque()
        self._reason: str | None = None
        self._end_wait: Callable[[], None] | None = None

    @property
    def cancelled(self) -> bool:
        """Whether the round takes no more connections: it was cancelled, or is established."""
        return self._reason is not None

    def take_previous(self, deadline: float) -> tuple[socket.socket, bool]:
        """Wait for a connection of the previous rank. If there are several, take the newest one.

        Returns:
            the socket, and whether data comes through shared memory.

        Raises:
            RoundBrokenError: no connection arrived before ``deadline`` (``time.monotonic()``), or
                the round was cancelled.
        """
        previous = (self.rank - 1) % self.size
        with self._changed:
            while not self._arrived:
                self.check()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise RoundBrokenError(previous, f"rank {previous} did not connect for {self.round_id}")
                self._changed.wait(left)
            self.check()
            # A neighbour that timed out and connected again has given up its older connection.
            return self._arrived.pop()

    def check(self) -> None:
        """Raise RoundBrokenError if the round was cancelled."""
        if self._reason is not None:
            raise RoundBrokenError(None, self._reason)

    def cancel(self, reason: str) -> None:
        """End the wait and close the connections that have arrived. The first reason counts."""
        with self._changed:
            if self._reason is None:
                self._reason = reason
            self._close_arrived()
            if self._end_wait is not None:
                self._end_wait()
            self._changed.notify_all()

    def on_cancel(self, end_wait: Callable[[], None] | None) -> None:
        """Call ``end_wait`` when the round is cancelled, at once if it already is. None removes it."""
        with self._changed:
            self._end_wait = end_wait
            if end_wait is not None and self._reason is not None:
                end_wait()

    def wait(self, seconds: float) -> None:
        """Wait ``seconds``, or until the round changes."""
        with self._changed:
            if self._reason is None:
                self._changed.wait(seconds)

    def finish(self) -> None:
        """Refuse further connections, because the round is established."""
        self.cancel(f"{self.round_id} is established")

    def deliver(self, sock: socket.socket, shared_memory: bool) -> None:
        """Take over a connection whose request to join was accepted."""
        with self._changed:
            # The round may have ended after the answer was sent.
            if self._reason is not None:
                sock.close()
                return
            self._arrived.append((sock, shared_memory))
            self._changed.notify_all()

    def _close_arrived(self) -> None:
        while self._arrived:
            self._arrived.pop()[0].close()


class CollectiveListener:
    """Listens for neighbours while a process lives. One round at a time admits them.

    A connection first proves the job's token, as on the bulk plane, and then names its round. A
    connection for an earlier round is refused. A connection for a later round waits until this
    process opens that round, at most ten seconds.

    Args:
        address: ``unix:<path>`` or ``host:port``. With port 0 the kernel chooses the port.
        token: the job's token.
        shared_memory: neighbours on a Unix socket may send through shared memory, if this process
            has the native extension.
        handle_frame: answers first frames of other kinds than JOIN_ROUND; None: they are refused.
    """

    def __init__(
        self,
        address: str,
        token: str,
        *,
        shared_memory: bool = True,
        handle_frame: Callable[[ReceivedFrame], HandOver] | None = None,
    ) -> None:
        self.token = token
        # Reductions in NumPy read only the socket.
        self.shared_memory = shared_memory and address.startswith("unix:") and _has_extension()
        self._handle_frame = handle_frame
        self._changed = threading.Condition()
        self._admission: RoundAdmission | None = None
        self._stopped = False
        self._server = BulkServer(address, token, self._answer, max_body_bytes=0, max_connections=_MAX_NEIGHBOURS)

    @property
    def address(self) -> str:
        """The address that neighbours connect to; valid after ``start``."""
        return self._server.address

    def start(self) -> None:
        """Listen.

        Raises:
            RefusedError: the address cannot be used.
        """
        self._server.start()

    def stop(self) -> None:
        """Stop listening. Established rounds continue. Calling it twice is harmless."""
        with self._changed:
            self._stopped = True
            if self._admission is not None:
                self._admission.cancel("this process stops")
            self._changed.notify_all()
        self._server.stop()

    def open_round(self, round_id: RoundId, rank: int, size: int) -> RoundAdmission:
        """Admit the previous rank to this round. Cancels an earlier round that is not established.

        Raises:
            RefusedError: this process knows a later round, or has opened this one before.
        """
        with self._changed:
            if self._admission is not None:
                if self._admission.round_id >= round_id:
                    raise RefusedError(f"{round_id} is not later than {self._admission.round_id}")
                self._admission.cancel(f"{round_id} takes its place")
            self._admission = RoundAdmission(round_id, rank, size, self._changed)
            self._changed.notify_all()
            return self._admission

    def cancel_round(self, reason: str, until: RoundId | None = None) -> None:
        """End the wait for neighbours, from any thread. An established round continues.

        Args:
            until: a later round is not cancelled; None: whichever waits.
        """
        with self._changed:
            if self._admission is not None and (until is None or self._admission.round_id <= until):
                self._admission.cancel(reason)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answer(self, frame: ReceivedFrame) -> HandOver:
        """Answer the first request of a connection that proved the token. Runs in its thread."""
        if frame.kind is not FrameKind.JOIN_ROUND:
            if self._handle_frame is not None:
                return self._handle_frame(frame)
            raise PeerRefusedError(f"Here rounds are joined, not {frame.kind.name}", kind="bad")
        request = JoinRequest.decode(frame.meta)
        admission = self._await_round(request.round_id)
        # Both sides must have the same list of members. Otherwise they would sum different shares.
        if (request.sender, request.receiver, request.size) != (
            (admission.rank - 1) % admission.size,
            admission.rank,
            admission.size,
        ):
            raise PeerRefusedError(
                f"Rank {request.sender} of {request.size} takes this process for rank {request.receiver}; "
                f"it is rank {admission.rank} of {admission.size} in {admission.round_id}",
                kind="bad",
            )
        # Shared memory needs both sides: the sender offers it, this side agrees.
        shared_memory = request.shared_memory and self.shared_memory
        agreed = JoinRequest(request.round_id, request.sender, request.receiver, request.size, shared_memory)
        answer = OutgoingFrame(FrameKind.JOINED_ROUND, agreed.encode())
        return HandOver(answer, lambda sock: admission.deliver(sock, shared_memory))

    def _await_round(self, round_id: RoundId) -> RoundAdmission:
        deadline = time.monotonic() + _EARLY_SECONDS
        with self._changed:
            while self._admission is None or self._admission.round_id < round_id:
                left = deadline - time.monotonic()
                # Retryable: the master may announce the round to this process a little later.
                if left <= 0 or self._stopped:
                    raise RetryableError(f"{round_id} was not opened here")
                self._changed.wait(left)
            if self._admission.round_id > round_id:
                raise PeerRefusedError(f"{round_id} is over, here is {self._admission.round_id}", kind="round")
            if self._admission.cancelled:
                raise PeerRefusedError(f"{round_id} takes no connections any more", kind="round")
            return self._admission


def _has_extension() -> bool:
    try:
        import edl.collective._ring  # noqa: F401
    except ImportError:
        return False
    return True
