"""Accepts the connections of neighbours, over all rounds of a process."""

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

_EARLY_SECONDS = 10.0  # seconds that a neighbour may be ahead of this process with a round
_MAX_NEIGHBOURS = 64  # connections at a time; one is needed, others wait for a round or are on their way out


class RoundAdmission:
    """Collects the previous rank's connection for one round; made by ``CollectiveListener.open_round``."""

    def __init__(self, round_id: RoundId, rank: int, size: int, lock: threading.Condition) -> None:
        self.round_id = round_id
        self.rank = rank
        self.size = size
        self._changed = lock
        self._arrived: deque[tuple[socket.socket, bool]] = deque()
        self._reason: str | None = None
        self._end_wait: Callable[[], None] | None = None

    @property
    def cancelled(self) -> bool:
        """Whether nobody is admitted any more before the round was established."""
        return self._reason is not None

    def take_previous(self, deadline: float) -> tuple[socket.socket, bool]:
        """Wait for a connection of the previous rank; the newest one if there are several.

        Returns:
            the socket, and whether data comes through shared memory.

        Raises:
            RoundBrokenError: none came until ``deadline`` (``time.monotonic()``), or the round was cancelled.
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
            return self._arrived.pop()

    def check(self) -> None:
        """Raise RoundBrokenError if the round was cancelled."""
        if self._reason is not None:
            raise RoundBrokenError(None, self._reason)

    def cancel(self, reason: str) -> None:
        """End the wait; what has arrived is closed."""
        with self._changed:
            if self._reason is None:
                self._reason = reason
            self._close_arrived()
            if self._end_wait is not None:
                self._end_wait()
            self._changed.notify_all()

    def on_cancel(self, end_wait: Callable[[], None] | None) -> None:
        """Call this when the round is cancelled, or was before; None calls nothing any more."""
        with self._changed:
            self._end_wait = end_wait
            if end_wait is not None and self._reason is not None:
                end_wait()

    def wait(self, seconds: float) -> None:
        """Wait so long, or until something happens to the round."""
        with self._changed:
            if self._reason is None:
                self._changed.wait(seconds)

    def finish(self) -> None:
        """The round is established: further connections are refused."""
        self.cancel(f"{self.round_id} is established")

    def deliver(self, sock: socket.socket, shared_memory: bool) -> None:
        """Take a connection that asked for this round and was told that it may come."""
        with self._changed:
            if self._reason is not None:
                sock.close()
                return
            self._arrived.append((sock, shared_memory))
            self._changed.notify_all()

    def _close_arrived(self) -> None:
        while self._arrived:
            self._arrived.pop()[0].close()


class CollectiveListener:
    """Listens for neighbours while a process lives; one round at a time admits them.

    A connection proves the job's token first, as on the bulk plane, and then names its round. One of an earlier round
    is refused; one of a later round waits until this process opens that round, at most ten seconds.

    Args:
        address: ``unix:<path>`` or ``host:port``; port 0 lets the kernel choose.
        token: the job's.
        shared_memory: neighbours on a Unix socket may send through shared memory; needs the native extension.
    """

    def __init__(self, address: str, token: str, *, shared_memory: bool = True) -> None:
        self.token = token
        self.shared_memory = shared_memory and address.startswith("unix:")
        self._changed = threading.Condition()
        self._admission: RoundAdmission | None = None
        self._stopped = False
        self._server = BulkServer(address, token, self._answer, max_body_bytes=0, max_connections=_MAX_NEIGHBOURS)

    @property
    def address(self) -> str:
        """Where neighbours connect to; valid after ``start``."""
        return self._server.address

    def start(self) -> None:
        """Listen.

        Raises:
            RefusedError: the address cannot be used.
        """
        self._server.start()

    def stop(self) -> None:
        """Stop listening; established rounds go on. Again is harmless."""
        with self._changed:
            self._stopped = True
            if self._admission is not None:
                self._admission.cancel("this process stops")
            self._changed.notify_all()
        self._server.stop()

    def open_round(self, round_id: RoundId, rank: int, size: int) -> RoundAdmission:
        """Admit the previous rank to this round; an earlier round that is not established yet is cancelled.

        Raises:
            RefusedError: this process knows a later round, or had this one already.
        """
        with self._changed:
            if self._admission is not None:
                if self._admission.round_id >= round_id:
                    raise RefusedError(f"{round_id} is not later than {self._admission.round_id}")
                self._admission.cancel(f"{round_id} takes its place")
            self._admission = RoundAdmission(round_id, rank, size, self._changed)
            self._changed.notify_all()
            return self._admission

    def cancel_round(self, reason: str) -> None:
        """End the wait for neighbours, from any thread; an established round is not concerned."""
        with self._changed:
            if self._admission is not None:
                self._admission.cancel(reason)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _answer(self, frame: ReceivedFrame) -> HandOver:
        """Answer a proven connection's first request; called in its thread."""
        if frame.kind is not FrameKind.JOIN_ROUND:
            raise PeerRefusedError(f"Here rounds are joined, not {frame.kind.name}", kind="bad")
        request = JoinRequest.decode(frame.meta)
        admission = self._await_round(request.round_id)
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
        shared_memory = request.shared_memory and self.shared_memory
        agreed = JoinRequest(request.round_id, request.sender, request.receiver, request.size, shared_memory)
        answer = OutgoingFrame(FrameKind.JOINED_ROUND, agreed.encode())
        return HandOver(answer, lambda sock: admission.deliver(sock, shared_memory))

    def _await_round(self, round_id: RoundId) -> RoundAdmission:
        deadline = time.monotonic() + _EARLY_SECONDS
        with self._changed:
            while self._admission is None or self._admission.round_id < round_id:
                left = deadline - time.monotonic()
                if left <= 0 or self._stopped:
                    raise RetryableError(f"{round_id} was not opened here")
                self._changed.wait(left)
            if self._admission.round_id > round_id:
                raise PeerRefusedError(f"{round_id} is over, here is {self._admission.round_id}", kind="round")
            if self._admission.cancelled:
                raise PeerRefusedError(f"{round_id} takes no connections any more", kind="round")
            return self._admission
