"""Whether a round still stands, for the reductions in NumPy: ``edl/numerics/native/round_state.cpp`` in Python."""

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

_TICKS = 8  # of silence that are a loss
_LEAST_TICK = 0.005  # seconds
_LOOK_AGAIN_SECONDS = 0.005  # while a reduction still reads what a closed neighbour had sent
_MOST_FRAMES = 64  # that are read before the clock is looked at again
_FLUSH_SECONDS = 5.0
PEER_CLOSED: int = getattr(select, "POLLRDHUP", 0)
"""What poll() reports of a peer that has closed; elsewhere than on Linux it is POLLHUP, which needs no asking."""


class RoundState:
    """The connections to both neighbours, and why they were closed.

    Who reduces, who watches the neighbours and who aborts are different threads. Only the first reason counts.

    Args:
        round_id: goes into every frame.
        rank: of this process.
        size: number of ranks.
        previous: connected to the rank that data comes from; heartbeats go there.
        next_: connected to the rank that data goes to; heartbeats come from there.
    """

    def __init__(self, round_id: RoundId, rank: int, size: int, previous: socket.socket, next_: socket.socket) -> None:
        self.round_id = round_id
        self.rank = rank
        self.size = size
        self.previous = previous
        self.next = next_
        self.previous_rank, self.next_rank = (rank - 1) % size, (rank + 1) % size
        self.reducing = False
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
        """Why it has ended."""
        rank, reason = self._loss or (None, "it goes on")
        return RoundBrokenError(rank, reason)

    def check(self) -> None:
        """Raise RoundBrokenError if the round has ended."""
        if self._loss is not None:
            raise self.error()

    def break_round(self, lost: int | None, reason: str) -> None:
        """End the round for this process and, by closing both connections, for all others."""
        self._end(FrameKind.ROUND_BROKEN, lost, reason)

    def leave(self, left: int | None, reason: str) -> None:
        """End it in order: who is still in the last reduction finishes it with what was sent."""
        self._end(FrameKind.ROUND_LEFT, left, reason)

    def drop(self) -> None:
        """End it without a word, as a killed process does."""
        self._end(None, None, "a fault was injected")

    def send_heartbeat(self) -> None:
        """Tell the previous rank that this process lives; never waits."""
        self._send_backward(RoundHeader(FrameKind.HEARTBEAT, self.round_id, self.rank).encode())

    def flush(self) -> None:
        """If the round ended in order: wait, at most five seconds, until the data has reached the next rank's kernel.

        To close the socket earlier, while heartbeats on it are unread, would discard it. What goes through a Unix
        socket is in the neighbour's queue at once.
        """
        if not self._in_order or self.next.family == socket.AF_UNIX:
            return
        deadline = time.monotonic() + _FLUSH_SECONDS
        gone = select.poll()
        gone.register(self.next, 0)
        while unsent_bytes(self.next) and time.monotonic() < deadline and not gone.poll(1):
            pass  # a next rank that has closed its side too needs nothing more

    def close(self) -> None:
        """Close what is left; no other thread uses it any more."""
        for descriptor in (self.alarm, self._alarm_writer):
            os.close(descriptor)

    def _end(self, kind: FrameKind | None, lost: int | None, reason: str) -> None:
        with self._lock:
            if self._loss is not None:
                return
            self._loss = lost, reason
        self._in_order = kind is FrameKind.ROUND_LEFT
        if kind is not None:
            # Against the direction of the data, where frames are never half sent by a reduction.
            rank = self.rank if lost is None else lost
            self._send_backward(RoundHeader(kind, self.round_id, rank).encode())
        # A heartbeat that meets a socket shut for reading resets it: what the next rank has not received yet is lost.
        for sock, how in (
            (self.previous, socket.SHUT_RDWR),
            (self.next, socket.SHUT_WR if self._in_order else socket.SHUT_RDWR),
        ):
            with suppress(OSError):  # the neighbour was faster
                sock.shutdown(how)
        os.write(self._alarm_writer, b"!")

    def _send_backward(self, frame: bytes) -> None:
        with self._sending:
            # A full buffer is full of heartbeats: one more would tell nothing new.
            data = self._unsent or frame
            try:
                count = self.previous.send(data, socket.MSG_DONTWAIT)
            except OSError:  # full, or seen by who watches that neighbour
                return
            self._unsent = data[count:]


def unsent_bytes(sock: socket.socket) -> int:
    """Bytes that were given to the kernel and are not with the peer's yet."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(sock, termios.TIOCOUTQ, count)
    except OSError:
        return 0
    return count[0]


class HeartbeatThread:
    """Tells the previous rank that this process lives, and watches whether the next one does.

    Silence is counted in ticks of this thread, an eighth of the timeout each: on a machine where this thread is not run
    either, its count does not grow. Here it needs the GIL, which native code does not: a process that holds it for
    longer than the timeout is taken for lost.

    Args:
        state: of the round.
        timeout: seconds of silence that are a loss.
    """

    def __init__(self, state: RoundState, timeout: float) -> None:
        self._state = state
        self._timeout = timeout
        self._tick = max(_LEAST_TICK, timeout / _TICKS)
        self._received = b""
        self._heard = self._next_gone = self._previous_gone = self._next_left = False
        self._thread = threading.Thread(target=self._run, name="round-heartbeat", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread, which ends with its round."""
        self._thread.join()

    def _run(self) -> None:
        state, silent = self._state, 0
        while not state.broken:
            state.send_heartbeat()
            self._heard = False
            self._watch_until(time.monotonic() + self._tick)
            silent = 0 if self._heard else silent + 1
            if silent >= _TICKS:
                state.break_round(state.next_rank, f"rank {state.next_rank} was silent for {self._timeout:g} s")

    def _watch_until(self, end: float) -> None:
        state = self._state
        while not state.broken and (left := end - time.monotonic()) > 0:
            gone = self._next_gone or self._previous_gone
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
