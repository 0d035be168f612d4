"""Reductions among the ranks of one round: the interface for callers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from edl.api.errors import BadInputError
from edl.api.round_id import RoundId
from edl.collective.collective_listener import CollectiveListener
from edl.collective.element_types import ElementType, find_element_type, named_element_type
from edl.collective.neighbours import connect_neighbours
from edl.collective.numpy_ring import NumpyRing
from edl.collective.reduction_plan import Algorithm, Bytes, choose_algorithm
from edl.collective.round_errors import RoundBrokenError
from edl.collective.round_frames import MAX_CONTROL_BYTES

CONNECT_SECONDS = 10.0
"""Seconds within which all ranks of a round must connect."""
HEARTBEAT_TIMEOUT_SECONDS = 2.0
"""Seconds of silence after which a neighbour counts as lost; heartbeats are sent eight times as often."""

_NOTHING: npt.NDArray[np.float32] = np.empty(0, np.float32)


class Ring(Protocol):
    """The interface of ``NativeRing`` and ``NumpyRing``."""

    @property
    def broken(self) -> bool:
        """Whether the round has ended for this process."""

    def all_reduce(self, buffer: Bytes, element: ElementType, algorithm: Algorithm, control: bytes) -> list[bytes]:
        """Sum a buffer over all ranks, in place, and return all ranks' control messages."""

    def abort(self, reason: str) -> None:
        """End the round, from any thread."""

    def close(self) -> None:
        """Leave the round."""

    def fail_after(self, count: int) -> None:
        """Simulate the loss of this process within the next reduction; for tests."""


class Communicator:
    """The ranks of one round. As a context manager it leaves the round at the end.

    All ranks call the same reductions in the same order, with buffers of the same type and size,
    from one thread at a time. Any thread may call ``abort``. A call waits as long as all ranks
    live: neighbours' heartbeats bound the wait, not the time that a rank computes. After a
    RoundBrokenError the caller needs a new round.

    Args:
        round_id: the id of the round.
        rank: the rank of this process.
        size: the number of ranks.
        ring: the connections and the reductions; None in a round of one rank, which has no
            neighbours.
    """

    def __init__(self, round_id: RoundId, rank: int, size: int, ring: Ring | None) -> None:
        self.round_id = round_id
        self.rank = rank
        self.size = size
        self._ring = ring
        self._ended: str | None = None
        self._step_thread: ThreadPoolExecutor | None = None
        self._closing = threading.Lock()

    @classmethod
    def connect(
        cls,
        listener: CollectiveListener,
        round_id: RoundId,
        rank: int,
        members: Sequence[str],
        *,
        timeout: float = CONNECT_SECONDS,
        heartbeat_timeout: float = HEARTBEAT_TIMEOUT_SECONDS,
        native: bool | None = None,
    ) -> Self:
        """Connect to the neighbours of a round. ``listener.cancel_round`` ends the wait.

        Args:
            listener: the listener of this process. It holds the token.
            round_id: an id later than every round that this process was in.
            rank: the rank of this process.
            members: the listeners' addresses by rank.
            timeout: seconds within which all ranks must connect.
            heartbeat_timeout: seconds of silence after which a neighbour counts as lost.
            native: reduce in native code; None: if the extension was built.

        Raises:
            RoundBrokenError: a neighbour did not connect in time or is in another round, or the
                round was cancelled.
            RefusedError: this process knows a later round.
            BadInputError: ``rank`` is not an index of ``members``.
        """
        size = len(members)
        if not 0 <= rank < size:
            raise BadInputError(f"Rank {rank} is none of {size} members")
        # Opened at the listener all the same, so that a late neighbour of an earlier round is
        # refused instead of waiting.
        if size == 1:
            listener.open_round(round_id, rank, size).finish()
            return cls(round_id, rank, size, None)
        make_ring, deadline = _find_ring(native), time.monotonic() + timeout
        neighbours = connect_neighbours(
            listener, round_id, rank, members, timeout=timeout, shared_memory=make_ring is not NumpyRing
        )
        try:
            # The next rank may still wait for its own neighbours.
            left = max(0.0, deadline - time.monotonic())
            return cls(round_id, rank, size, make_ring(round_id, rank, size, neighbours, heartbeat_timeout, left))
        except BaseException:
            neighbours.close()
            raise

    @property
    def broken(self) -> bool:
        """Whether the round has ended for this process. The next reduction then raises."""
        return self._ended is not None or (self._ring is not None and self._ring.broken)

    def all_reduce(
        self,
        buffer: npt.NDArray[Any],
        control: bytes = b"",
        *,
        algorithm: Algorithm | None = None,
        element_type: str | None = None,
    ) -> list[bytes]:
        """Sum a buffer over all ranks, in place. The result has the same bits on all ranks.

        Args:
            buffer: a contiguous array of float64, float32, float16, bfloat16 or integers. After an
                error it holds a partial sum.
            control: this rank's message, at most 64 KiB. It travels with the data.
            algorithm: the same on all ranks; None: the faster one for this size.
            element_type: name of what the elements are if the buffer's type is only as wide: bfloat16 held as uint16.

        Returns:
            all ranks' messages, by rank.

        Raises:
            RoundBrokenError: a rank was lost, or the round was aborted.
            BadInputError: the buffer cannot be summed, or the message is too long.
        """
        element, data = _check_buffer(buffer, element_type)
        if len(control) > MAX_CONTROL_BYTES:
            raise BadInputError(f"A control message of {len(control)} bytes is longer than {MAX_CONTROL_BYTES}")
        if self._ended is not None:
            raise RoundBrokenError(None, self._ended)
        if self._ring is None:
            return [control]
        chosen = algorithm or choose_algorithm(len(data), self.size)
        return self._ring.all_reduce(data, element, chosen, control)

    def exchange(self, message: bytes) -> list[bytes]:
        """Return all ranks' messages, by rank; at most 64 KiB each. Raises as ``all_reduce`` does."""
        return self.all_reduce(_NOTHING, message)

    def begin_step(self) -> ReductionStep:
        """Reduce a step's buckets in the background while the backward pass computes the next ones."""
        return ReductionStep(self, self._start_thread)

    def _start_thread(self) -> ThreadPoolExecutor:
        # One thread: all ranks must reduce the buckets in the same order.
        if self._step_thread is None:
            self._step_thread = ThreadPoolExecutor(1, thread_name_prefix="all-reduce")
        return self._step_thread

    def abort(self, reason: str) -> None:
        """End the round on all ranks, from any thread. A pending call raises RoundBrokenError."""
        self._ended = self._ended or reason
        # A round that is being closed has ended, and its descriptors may already be those of other files.
        if self._ring is not None and self._closing.acquire(blocking=False):
            try:
                self._ring.abort(reason)
            finally:
                self._closing.release()

    def close(self) -> None:
        """Leave the round. Ranks still in the last reduction finish it. Calling it twice is harmless."""
        with self._closing:
            self._ended = self._ended or "this process left the round"
            if self._ring is not None:
                self._ring.close()
            if self._step_thread is not None:
                self._step_thread.shutdown()

    def fail_after(self, count: int) -> None:
        """Simulate a loss after ``count`` bytes of the next reduction's data; for tests."""
        if self._ring is not None:
            self._ring.fail_after(count)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ReductionStep:
    """The buckets of one step, reduced one after the other. ``Communicator.begin_step`` creates it.

    All ranks pass the same buckets in the same order. The control message goes with the last
    bucket: only then does a rank know whether its gradients are finite.
    """

    def __init__(self, communicator: Communicator, start_thread: Callable[[], ThreadPoolExecutor]) -> None:
        self._communicator = communicator
        self._start_thread = start_thread
        self._pending: list[Future[list[bytes]]] = []

    def reduce_bucket(self, bucket: npt.NDArray[Any], element_type: str | None = None) -> None:
        """Reduce a buffer in place, as ``all_reduce`` does. The caller must not use it until ``finish`` returns."""
        reduce = self._communicator.all_reduce
        self._pending.append(self._start_thread().submit(reduce, bucket, element_type=element_type))

    def finish(self, control: bytes, last_bucket: npt.NDArray[Any] | None = None) -> list[bytes]:
        """Wait for all buckets. The last bucket carries the control message; it may be omitted.

        Returns:
            all ranks' messages, by rank.

        Raises:
            RoundBrokenError: a rank was lost, or the round was aborted. The content of every bucket
                is then undefined.
        """
        # Without a last bucket an empty one is reduced, because the message needs a frame.
        bucket = _NOTHING[:0] if last_bucket is None else last_bucket
        if not self._pending:
            # Nothing to overlap with: the hand-over to the other thread and back would only cost time.
            return self._communicator.all_reduce(bucket, control)
        self._pending.append(self._start_thread().submit(self._communicator.all_reduce, bucket, control))
        # Wait for all of them before raising: until then the thread may write to a bucket.
        results = [future.exception() for future in self._pending]
        for error in results:
            if error is not None:
                raise error
        return self._pending[-1].result()


def _find_ring(native: bool | None) -> Any:
    if native is False:
        return NumpyRing
    try:
        from edl.collective.native_ring import NativeRing
    except ImportError:
        if native:
            raise
        return NumpyRing
    return NativeRing


def _check_buffer(buffer: npt.NDArray[Any], element_type: str | None) -> tuple[ElementType, Bytes]:
    """The type of a buffer's elements, and its bytes."""
    element = find_element_type(buffer.dtype) if element_type is None else named_element_type(element_type)
    if not (buffer.flags.c_contiguous and buffer.flags.aligned and buffer.flags.writeable):
        raise BadInputError("A buffer to reduce must be contiguous, aligned and writable")
    if element.size != buffer.itemsize:
        raise BadInputError(f"Elements of {buffer.dtype} are not as wide as {element.name}")
    return element, buffer.reshape(-1).view(np.uint8)
