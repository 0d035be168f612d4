"""The heartbeats of a round, for reductions in NumPy.

A peer that died during an all-reduce is noticed here: its neighbours see its socket close, or the
previous rank misses its heartbeats. They break the round and pass on which rank was lost.

``edl/numerics/native/heartbeat.cpp`` is the same in C++.
"""

from __future__ import annotations

import select
import socket
import threading
import time

from edl.collective.round_frames import HEADER_SIZE, RoundHeader, read_rank
from edl.collective.round_state import PEER_CLOSED, RoundState
from edl.transport.bulk_connection import FrameKind

# Ticks without a heartbeat after which a neighbour counts as lost.
_TICKS = 8
# Shortest tick in seconds.
_LEAST_TICK = 0.005
# Seconds between checks while a reduction still reads data that a closed neighbour had sent.
_LOOK_AGAIN_SECONDS = 0.005
# Reads in a row before the thread checks the clock again.
_MOST_FRAMES = 64


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
