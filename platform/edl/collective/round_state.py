"""The state of a round, for reductions in NumPy: its connections, and why it ended.

``heartbeat`` notices a lost peer.

``edl/numerics/native/round_state.cpp`` is the same in C++.
"""

from __future__ import annotations

import array
import fcntl
import os
import select
import socket
import termios
import threading
import time
from contextlib import suppress

from edl.api.round_id import RoundId
from edl.collective.round_errors import RoundBrokenError
from edl.collective.round_frames import RoundHeader
from edl.transport.bulk_connection import FrameKind

# Longest wait of a round that ends in order, until the kernel has delivered its data.
_FLUSH_SECONDS = 5.0
PEER_CLOSED: int = getattr(select, "POLLRDHUP", 0)
"""The event of poll() for a peer that has closed. Only Linux has it.

Elsewhere poll() reports POLLHUP, which need not be requested.
"""


class RoundState:
    """The connections to both neighbours, and the reason why the round ended.

    Different threads reduce, watch the neighbours and abort. Only the first reason counts.

    Args:
        round_id: the id that every frame carries.
        rank: the rank of this process.
        size: the number of ranks.
        previous: socket that receives data and sends heartbeats.
        next_: socket that sends data and receives heartbeats.
    """

    def __init__(self, round_id: RoundId, rank: int, size: int, previous: socket.socket, next_: socket.socket) -> None:
        self.round_id = round_id
        self.rank = rank
        self.size = size
        self.previous = previous
        self.next = next_
        self.previous_rank, self.next_rank = (rank - 1) % size, (rank + 1) % size
        self.reducing = False
        # A pipe that wakes the threads in poll() when the round ends. Nobody reads the byte, so it
        # wakes every later poll() as well.
        self.alarm, self._alarm_writer = os.pipe()
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._unsent = b""
        self._loss: tuple[int | None, str] | None = None
        self._in_order = False
        for sock in (previous, next_):
            sock.setblocking(False)

    @property
    def broken(self) -> bool:
        """Whether the round has ended for this process."""
        return self._loss is not None

    def error(self) -> RoundBrokenError:
        """The error that says why the round has ended."""
        rank, reason = self._loss or (None, "it goes on")
        return RoundBrokenError(rank, reason)

    def check(self) -> None:
        """Raise RoundBrokenError if the round has ended."""
        if self._loss is not None:
            raise self.error()

    def break_round(self, lost: int | None, reason: str) -> None:
        """End the round for all ranks. Closing both connections passes the end on."""
        self._end(FrameKind.ROUND_BROKEN, lost, reason)

    def leave(self, left: int | None, reason: str) -> None:
        """End the round in order. Ranks still in the last reduction finish it with the sent data."""
        self._end(FrameKind.ROUND_LEFT, left, reason)

    def drop(self) -> None:
        """End the round without sending a frame, as a killed process does."""
        self._end(None, None, "a fault was injected")

    def send_heartbeat(self) -> None:
        """Send a heartbeat to the previous rank. Never waits."""
        self._send_backward(RoundHeader(FrameKind.HEARTBEAT, self.round_id, self.rank).encode())

    def flush(self) -> None:
        """After an end in order, wait until the data has reached the next rank's kernel.

        The wait lasts at most five seconds. Closing a TCP socket with unread heartbeats resets the
        connection, which discards data that was not delivered yet. Data on a Unix socket is in the
        neighbour's queue at once.
        """
        if not self._in_order or self.next.family == socket.AF_UNIX:
            return
        deadline = time.monotonic() + _FLUSH_SECONDS
        gone = select.poll()
        gone.register(self.next, 0)
        while unsent_bytes(self.next) and time.monotonic() < deadline and not gone.poll(1):
            pass  # poll() ends the wait early: a next rank that closed its side needs no more data

    def close(self) -> None:
        """Close the alarm. No other thread may use this object any more."""
        for descriptor in (self.alarm, self._alarm_writer):
            os.close(descriptor)

    def _end(self, kind: FrameKind | None, lost: int | None, reason: str) -> None:
        with self._lock:
            if self._loss is not None:
                return
            self._loss = lost, reason
        self._in_order = kind is FrameKind.ROUND_LEFT
        if kind is not None:
            # Backward, because no reduction sends frames in that direction. Forward, a chunk may be
            # half sent, and a frame within it would be read as data.
            rank = self.rank if lost is None else lost
            self._send_backward(RoundHeader(kind, self.round_id, rank).encode())
        # After an end in order, the socket to the next rank stays open for reading. A heartbeat
        # that arrives at a socket shut for reading resets the connection, and the next rank loses
        # the data that it has not received yet.
        for sock, how in (
            (self.previous, socket.SHUT_RDWR),
            (self.next, socket.SHUT_WR if self._in_order else socket.SHUT_RDWR),
        ):
            with suppress(OSError):  # the neighbour was faster
                sock.shutdown(how)
        os.write(self._alarm_writer, b"!")

    def _send_backward(self, frame: bytes) -> None:
        with self._sending:
            # The rest of a half sent frame goes first. The new frame is then dropped: a full buffer
            # is full of heartbeats, and one more adds no information.
            data = self._unsent or frame
            try:
                count = self.previous.send(data, socket.MSG_DONTWAIT)
            except OSError:  # the buffer is full, or the watching thread notices the closed socket
                return
            self._unsent = data[count:]


def unsent_bytes(sock: socket.socket) -> int:
    """Bytes in this kernel's send queue that the peer's kernel has not acknowledged."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(sock, termios.TIOCOUTQ, count)
    except OSError:
        return 0
    return count[0]
