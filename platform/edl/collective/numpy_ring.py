"""Reductions over the ring of a round's ranks, in Python and NumPy: the reference, and what runs without the extension.

Frames and bits are those of ``edl/numerics/native/ring.cpp``: ranks with and without the extension share a round.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from edl.api.round_id import RoundId
from edl.collective.element_types import ElementType
from edl.collective.neighbours import Neighbours
from edl.collective.reduction_plan import Algorithm, Bytes, Step, gather_steps, ring_steps
from edl.collective.round_errors import InjectedFaultError
from edl.collective.round_frames import (
    CHUNK_BYTES,
    HEADER_SIZE,
    MAX_CONTROL_BYTES,
    RoundHeader,
    padded_size,
    read_control_size,
)
from edl.collective.round_state import PEER_CLOSED, HeartbeatThread, RoundState
from edl.transport.bulk_connection import FrameKind, remaining_views

_POLL_MS = 1000  # milliseconds; everything that matters ends a wait earlier


class NumpyRing:
    """The ranks of one round, connected; one reduction at a time.

    Args:
        round_id: goes into every frame.
        rank: of this process.
        size: number of ranks, at least two.
        neighbours: without shared memory; they belong to the ring.
        timeout: seconds of a neighbour's silence that are its loss.
    """

    def __init__(self, round_id: RoundId, rank: int, size: int, neighbours: Neighbours, timeout: float) -> None:
        self._neighbours = neighbours
        self._state = RoundState(round_id, rank, size, neighbours.previous, neighbours.next)
        self._lock = threading.Lock()
        self._sequence = 0
        self._fail_after: int | None = None
        self._closed = False
        self._heartbeat = HeartbeatThread(self._state, timeout)

    @property
    def broken(self) -> bool:
        """Whether the round has ended for this process."""
        return self._state.broken

    def all_reduce(self, buffer: Bytes, element: ElementType, algorithm: Algorithm, control: bytes) -> list[bytes]:
        """Sum a buffer over all ranks, in place.

        Args:
            buffer: bytes of whole elements, aligned.
            element: their type.
            algorithm: the same on all ranks.
            control: this rank's message.

        Returns:
            all ranks' messages, by rank.

        Raises:
            RoundBrokenError: the round ended first.
        """
        with self._lock:
            self._state.check()
            self._state.reducing = True
            try:
                return self._reduce(buffer, element, algorithm, control)
            finally:
                self._state.reducing = False

    def abort(self, reason: str) -> None:
        """End the round, from any thread; a pending reduction raises RoundBrokenError."""
        self._state.break_round(None, reason)

    def close(self) -> None:
        """Leave the round and close its connections; again is harmless."""
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
        """Lose this process when so many bytes of the next reduction's data have come; for tests."""
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
            # On every rank in the order of the ranks: the same bits everywhere.
            buffer[:] = contributions[0]
            for contribution in contributions[1:]:
                element.add_into(buffer, contribution)
        self._sequence += 1
        return controls

    def _exchange(
        self, steps: Sequence[Step], element: ElementType, algorithm: Algorithm, controls: list[bytes]
    ) -> None:
        """Send and receive all steps at once, with both neighbours at their own pace."""
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
        # What comes before a neighbour's end is read all the same; what should go to it cannot.
        if sending and ready.get(state.next.fileno(), 0) & (PEER_CLOSED | select.POLLHUP | select.POLLERR):
            self._lose(state.next_rank)

    def _receive(
        self,
        steps: Sequence[Step],
        element: ElementType,
        algorithm: Algorithm,
        controls: list[bytes],
        progress: _Progress,
    ) -> Iterator[bool]:
        """Receive all steps; yields where nothing has come."""
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
                    control_size = 0  # no header that is expected
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
        steps: Sequence[Step],
        element: ElementType,
        algorithm: Algorithm,
        controls: list[bytes],
        progress: _Progress,
    ) -> Iterator[bool]:
        """Send all steps; yields whether the socket is full, else what is to be sent has not come yet."""
        for number, step in enumerate(steps):
            for index, begin in enumerate(_chunk_begins(step.send)):
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
    """How far a reduction is.

    Attributes:
        steps: that were received.
        chunks: of the step under way that were received and added.
        moved: counts calls that moved bytes.
    """

    def __init__(self) -> None:
        self.steps = self.chunks = self.moved = 0


def _chunk_begins(data: Bytes) -> range:
    """Offsets of the chunks of a step; one without data carries a control message, too."""
    return range(0, max(len(data), 1), CHUNK_BYTES)
