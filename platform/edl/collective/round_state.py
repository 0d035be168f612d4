"""The state of a round and its heartbeats, for reductions in NumPy.

A peer that died during an all-reduce is noticed here: its neighbours see its socket close, or the
previous rank misses its heartbeats. They break the round and pass on which rank was lost.

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
from edl.collective.round_frames import HEADER_SIZE, RoundHeader, read_rank
from edl.transport.bulk_connection import FrameKind

# Ticks without a heartbeat after which a neighbour counts as lost.
_TICKS = 8
# Shortest tick in seconds.
_LEAST_TICK = 0.005
# Seconds between checks while a reduction still reads data that a closed neighbour had sent.
_LOOK_AGAIN_SECONDS = 0.005
# Reads in a row before the thread checks the clock again.
_MOST_FRAMES = 64
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


class HeartbeatThread:
    """Sends heartbeats to the previous rank, and watches those of the next rank.

    It counts silence in ticks of its own, each an eighth of the timeout, and not in seconds. On a
    busy machine that does not run this thread either, the count does not grow. Unlike native code,
    this thread needs the GIL: a process that holds the GIL for longer than the timeout counts as
    lost.

    Args:
        state: the state of the round.
        timeout: seconds of silence after which the next rank counts as lost.
        first_within: further seconds for its first heartbeat. A rank sends nothing before it is connected to both of
            its neighbours.
    """

    def __init__(self, state: RoundState, timeout: float, first_within: float) -> None:
        self._state = state
        self._timeout = timeout
        self._first_within = first_within
        self._tick = max(_LEAST_TICK, timeout / _TICKS)
        self._received = b""
        self._heard = self._next_gone = self._previous_gone = self._next_left = False
        self._thread = threading.Thread(target=self._run, name="round-heartbeat", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread. It ends when its round ends."""
        self._thread.join()

    def _run(self) -> None:
        state, silent, limit = self._state, 0, self._timeout + self._first_within
        most = _TICKS + int(self._first_within / self._tick)
        while not state.broken:
            state.send_heartbeat()
            self._heard = False
            self._watch_until(time.monotonic() + self._tick)
            if self._heard:
                most, limit = _TICKS, self._timeout
            silent = 0 if self._heard else silent + 1
            if silent >= most:
                state.break_round(state.next_rank, f"rank {state.next_rank} was silent for {limit:g} s")

    def _watch_until(self, end: float) -> None:
        state = self._state
        while not state.broken and (left := end - time.monotonic()) > 0:
            gone = self._next_gone or self._previous_gone
            # A pending reduction first reads the data that the neighbour sent before it closed.
            if gone and not state.reducing:
                lost = state.next_rank if self._next_gone else state.previous_rank
                if self._next_left:
                    state.leave(lost, f"rank {lost} left the round")
                else:
                    state.break_round(lost, f"rank {lost} closed its connection")
                return
            watched = select.poll()
            watched.register(state.alarm, select.POLLIN)
            if not self._next_gone:
                watched.register(state.next, select.POLLIN | PEER_CLOSED)
            if not self._previous_gone:
                watched.register(state.previous, PEER_CLOSED)
            ready = {number for number, _ in watched.poll(1000 * min(left, _LOOK_AGAIN_SECONDS if gone else left) + 1)}
            if state.next.fileno() in ready:
                self._read_next()
            if state.previous.fileno() in ready:
                self._previous_gone = True

    def _read_next(self) -> None:
        # All that has arrived counts before the tick does: a late thread must not overlook it.
        for _ in range(_MOST_FRAMES):
            try:
                data = self._state.next.recv(HEADER_SIZE - len(self._received), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._next_gone = True
                return
            self._heard = True
            self._received += data
            if len(self._received) == HEADER_SIZE:
                self._take_frame(self._received)
                self._received = b""

    def _take_frame(self, header: bytes) -> None:
        state = self._state
        rank = min(read_rank(header), state.size)

        def is_kind(kind: FrameKind) -> bool:
            return rank < state.size and header == RoundHeader(kind, state.round_id, rank).encode()

        if is_kind(FrameKind.HEARTBEAT) and rank == state.next_rank:
            return
        if is_kind(FrameKind.ROUND_LEFT):
            self._next_gone = self._next_left = True
        elif is_kind(FrameKind.ROUND_BROKEN):
            state.break_round(rank, f"rank {state.next_rank} reports the loss of rank {rank}")
        else:
            state.break_round(state.next_rank, f"rank {state.next_rank} sent no heartbeat of this round")
