"""Reductions over the ring of a round's ranks, in Python and NumPy.

It is the reference for the native code, and the fallback without the extension. Frames and bits are
those of ``edl/numerics/native/ring.cpp``, so ranks with and without the extension share a round.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from edl.api.round_id import RoundId
from edl.collective.element_types import ElementType
from edl.collective.heartbeat import HeartbeatThread
from edl.collective.neighbours import Neighbours
from edl.collective.reduction_plan import Algorithm, Bytes, TransferStep, gather_steps, ring_steps
from edl.collective.round_errors import InjectedFaultError
from edl.collective.round_frames import (
    CHUNK_BYTES,
    HEADER_SIZE,
    MAX_CONTROL_BYTES,
    RoundHeader,
    padded_size,
    read_control_size,
)
from edl.collective.round_state import PEER_CLOSED, RoundState
from edl.transport.bulk_connection import FrameKind, remaining_views

# Longest wait in milliseconds. Data, a closed socket and the alarm of an abort end it earlier.
_POLL_MS = 1000


class NumpyRing:
    """The connected ranks of one round. It runs one reduction at a time.

    Args:
        round_id: the id that every frame carries.
        rank: the rank of this process.
        size: the number of ranks, at least two.
        neighbours: the connections, without shared memory. The ring owns and closes them.
        timeout: seconds of silence after which a neighbour counts as lost.
        first_within: further seconds for its first heartbeat, which it sends when it is connected to both neighbours.
    """

    def __init__(
        self, round_id: RoundId, rank: int, size: int, neighbours: Neighbours, timeout: float, first_within: float
    ) -> None:
        self._neighbours = neighbours
        self._state = RoundState(round_id, rank, size, neighbours.previous, neighbours.next)
        self._lock = threading.Lock()
        self._sequence = 0
        self._fail_after: int | None = None
        self._closed = False
        self._heartbeat = HeartbeatThread(self._state, timeout, first_within)

    @property
    def broken(self) -> bool:
        """Whether the round has ended for this process."""
        return self._state.broken

    def all_reduce(self, buffer: Bytes, element: ElementType, algorithm: Algorithm, control: bytes) -> list[bytes]:
        """Sum a buffer over all ranks, in place.

        Args:
            buffer: bytes of whole elements, aligned.
            element: the type of the elements.
            algorithm: the algorithm, the same on all ranks.
            control: this rank's control message.

        Returns:
            all ranks' messages, by rank.

        Raises:
            RoundBrokenError: the round ended before the reduction was complete.
        """
        with self._lock:
            self._state.check()
            self._state.reducing = True
            try:
                return self._reduce(buffer, element, algorithm, control)
            finally:
                self._state.reducing = False

    def abort(self, reason: str) -> None:
        """End the round, from any thread. A pending reduction raises RoundBrokenError."""
        self._state.break_round(None, reason)

    def close(self) -> None:
        """Leave the round and close its connections. Calling it twice is harmless."""
        # Before the lock, which a pending reduction of another thread holds: leaving ends it.
        self._state.leave(None, "this process left the round")
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._state.flush()
            self._heartbeat.join()
            self._neighbours.close()
            self._state.close()

    def fail_after(self, count: int) -> None:
        """Simulate a loss after ``count`` bytes of the next reduction's data; for tests."""
        self._fail_after = count

    def _reduce(self, buffer: Bytes, element: ElementType, algorithm: Algorithm, control: bytes) -> list[bytes]:
        rank, size = self._state.rank, self._state.size
        controls = [b""] * size
        controls[rank] = control
        if self._fail_after == 0:
            self._fail()
        if algorithm is Algorithm.RING:
            self._exchange(ring_steps(buffer, element.size, rank, size), element, algorithm, controls)
        else:
            contributions = np.empty((size, len(buffer)), np.uint8)
            contributions[rank] = buffer
            self._exchange(gather_steps(contributions, rank, size), element, algorithm, controls)
            # Every rank sums in the order of the ranks, so the result has the same bits everywhere.
            buffer[:] = contributions[0]
            for contribution in contributions[1:]:
                element.add_into(buffer, contribution)
        self._sequence += 1
        return controls

    def _exchange(
        self, steps: Sequence[TransferStep], element: ElementType, algorithm: Algorithm, controls: list[bytes]
    ) -> None:
        """Send and receive all steps at the same time, each neighbour at its own pace."""
        # Two generators in one thread. Each yields where its socket would block, so neither
        # direction has to wait for the other. A rank that only sent could deadlock the ring.
        progress = _Progress()
        receiving: Iterator[Any] | None = self._receive(steps, element, algorithm, controls, progress)
        sending: Iterator[bool] | None = self._send(steps, element, algorithm, controls, progress)
        while receiving is not None or sending is not None:
            moved, blocked = progress.moved, False
            if receiving is not None:
                receiving = receiving if next(receiving, None) is not None else None
            if sending is not None:
                state = next(sending, None)
                sending, blocked = (sending, state) if state is not None else (None, False)
            if progress.moved == moved and (receiving is not None or sending is not None):
                self._wait(receiving is not None, sending is not None, blocked)

    def _wait(self, receiving: bool, sending: bool, blocked: bool) -> None:
        state = self._state
        state.check()
        watched = select.poll()
        watched.register(state.alarm, select.POLLIN)
        if receiving:
            watched.register(state.previous, select.POLLIN)
        if sending:
            watched.register(state.next, PEER_CLOSED | (select.POLLOUT if blocked else 0))
        ready = dict(watched.poll(_POLL_MS))
        # Only sending to a closed neighbour is a loss. Data that the previous rank sent before it
        # closed is still read, because it may complete the reduction.
        if sending and ready.get(state.next.fileno(), 0) & (PEER_CLOSED | select.POLLHUP | select.POLLERR):
            self._lose(state.next_rank)

    def _receive(
        self,
        steps: Sequence[TransferStep],
        element: ElementType,
        algorithm: Algorithm,
        controls: list[bytes],
        progress: _Progress,
    ) -> Iterator[bool]:
        """Receive all steps. Yields when no data has arrived, and after each chunk."""
        scratch = np.empty(CHUNK_BYTES, np.uint8)
        received = 0
        for number, step in enumerate(steps):
            for begin in _chunk_begins(step.receive):
                data = step.receive[begin : begin + CHUNK_BYTES]
                header = bytearray(HEADER_SIZE)
                yield from self._fill(memoryview(header), progress)
                control_owner = step.receive_control if begin == 0 else None
                control_size = read_control_size(header) if control_owner is not None else 0
                if control_size > MAX_CONTROL_BYTES:
                    control_size = 0  # then the header differs from the expected one
                expected = RoundHeader(
                    FrameKind.CHUNK,
                    self._state.round_id,
                    self._state.previous_rank,
                    body_size=len(data),
                    sequence=self._sequence,
                    offset=step.receive_offset + begin,
                    control_size=control_size,
                    step=number,
                    algorithm=algorithm,
                    element=element.number,
                )
                # Compared before memory is taken for the message or data is added to the buffer.
                self._check_header(header, expected)
                if control_owner is not None:
                    control = bytearray(padded_size(control_size))
                    yield from self._fill(memoryview(control), progress)
                    controls[control_owner] = bytes(control[:control_size])
                target = scratch[: len(data)] if step.add else data
                yield from self._fill(target.data, progress)
                if step.add:
                    element.add_into(data, target)
                progress.chunks += 1
                received += len(data)
                if self._fail_after is not None and received >= self._fail_after:
                    self._fail()
                yield True
            progress.steps, progress.chunks = number + 1, 0

    def _check_header(self, header: bytearray, expected: RoundHeader) -> None:
        right = expected.encode()
        if header == right:
            return
        previous = self._state.previous_rank
        # Equal magic and version (bytes 0 to 6) and equal round (20 to 36): the neighbour is in
        # this round, but called another reduction.
        of_round = header[:6] == right[:6] and header[20:36] == right[20:36]
        what = (
            "reduces something else: the ranks' buffers or calls differ" if of_round else "sent no frame of this round"
        )
        self._state.break_round(previous, f"rank {previous} {what}")
        raise self._state.error()

    def _fill(self, view: memoryview, progress: _Progress) -> Iterator[bool]:
        while view.nbytes:
            try:
                count = self._state.previous.recv_into(view)
            except BlockingIOError:
                yield True
                continue
            except OSError:
                count = 0
            if not count:
                self._lose(self._state.previous_rank)
            progress.moved += 1
            view = view[count:]

    def _send(
        self,
        steps: Sequence[TransferStep],
        element: ElementType,
        algorithm: Algorithm,
        controls: list[bytes],
        progress: _Progress,
    ) -> Iterator[bool]:
        """Send all steps. Yields True if the socket is full, False if the data is not ready yet."""
        for number, step in enumerate(steps):
            for index, begin in enumerate(_chunk_begins(step.send)):
                # Chunk by chunk: a chunk is passed on as soon as it was received and added.
                while step.after is not None and (progress.steps, progress.chunks) < (step.after, index + 1):
                    yield False
                data = step.send[begin : begin + CHUNK_BYTES]
                control = controls[step.send_control] if step.send_control is not None and begin == 0 else b""
                header = RoundHeader(
                    FrameKind.CHUNK,
                    self._state.round_id,
                    self._state.rank,
                    body_size=len(data),
                    sequence=self._sequence,
                    offset=step.send_offset + begin,
                    control_size=len(control),
                    step=number,
                    algorithm=algorithm,
                    element=element.number,
                )
                head = header.encode() + control.ljust(padded_size(len(control)), b"\0")
                views = [view for view in (memoryview(head), data.data) if view.nbytes]
                while views:
                    try:
                        count = self._state.next.sendmsg(views)
                    except BlockingIOError:
                        yield True
                        continue
                    except OSError:
                        self._lose(self._state.next_rank)
                    progress.moved += 1
                    views = remaining_views(views, count)
                yield False

    def _lose(self, rank: int) -> NoReturn:
        self._state.break_round(rank, f"rank {rank} closed its connection")
        raise self._state.error()

    def _fail(self) -> NoReturn:
        self._fail_after = None
        self._state.drop()
        raise InjectedFaultError("a fault was injected")


class _Progress:
    """The progress of a reduction.

    Attributes:
        steps: number of steps received.
        chunks: number of chunks of the current step received and added.
        moved: number of calls that moved bytes.
    """

    def __init__(self) -> None:
        self.steps = self.chunks = self.moved = 0


def _chunk_begins(data: Bytes) -> range:
    """Offsets of the chunks of a step. A step without data has one, for its control message."""
    return range(0, max(len(data), 1), CHUNK_BYTES)
