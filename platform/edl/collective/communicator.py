"""Reductions among the ranks of one round, as their callers see them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
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
"""Seconds that all ranks have to come together."""
HEARTBEAT_SECONDS = 2.0
"""Seconds of silence after which a neighbour counts as lost."""

_NOTHING: npt.NDArray[np.float32] = np.empty(0, np.float32)


class Ring(Protocol):
    """What ``NativeRing`` and ``NumpyRing`` have in common."""

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
        """Lose this process within the next reduction; for tests."""


class Communicator:
    """The ranks of one round; a context manager that leaves the round.

    Reductions are called in the same order with buffers of the same type and size on all ranks, from one thread at a
    time; ``abort`` may be called from any thread. A call waits as long as all ranks live: heartbeats of neighbours
    bound the wait, not the time that a rank computes. After a RoundBrokenError only a new round helps.

    Args:
        round_id: of the round.
        rank: of this process.
        size: number of ranks.
        ring: connections and reductions; None in a round of one rank, which needs no listener.
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
        heartbeat_timeout: float = HEARTBEAT_SECONDS,
        native: bool | None = None,
    ) -> Self:
        """Connect with the neighbours of a round; ``listener.cancel_round`` ends it from another thread.

        Args:
            listener: of this process; it holds the token.
            round_id: later than every round that this process was in.
            rank: of this process.
            members: listeners' addresses, by rank.
            timeout: seconds until all have to be there.
            heartbeat_timeout: seconds of silence after which a neighbour counts as lost.
            native: reduce in native code; None: if it was built.

        Raises:
            RoundBrokenError: a neighbour did not come in time or is in another round, or the round was cancelled.
            RefusedError: this process had a later round; a neighbour does not take the token.
            BadInputError: ``rank`` is none of ``members``.
        """
        size = len(members)
        if not 0 <= rank < size:
            raise BadInputError(f"Rank {rank} is none of {size} members")
        if size == 1:
            listener.open_round(round_id, rank, size).finish()
            return cls(round_id, rank, size, None)
        make_ring = _find_ring(native)
        neighbours = connect_neighbours(
            listener, round_id, rank, members, timeout=timeout, shared_memory=make_ring is not NumpyRing
        )
        try:
            return cls(round_id, rank, size, make_ring(round_id, rank, size, neighbours, heartbeat_timeout))
        except BaseException:
            neighbours.close()
            raise

    @property
    def broken(self) -> bool:
        """Whether the round has ended for this process: the next call raises RoundBrokenError."""
        return self._ended is not None or (self._ring is not None and self._ring.broken)

    def all_reduce(
        self,
        buffer: npt.NDArray[Any],
        control: bytes = b"",
        *,
        algorithm: Algorithm | None = None,
        element_type: str | None = None,
    ) -> list[bytes]:
        """Sum a buffer over all ranks, in place; the result has the same bits on all of them.

        Args:
            buffer: contiguous; float64, float32, float16, bfloat16 or integers. Its content means nothing after an
                error.
            control: this rank's message, at most 64 KiB; travels with the data.
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

    def begin_step(self) -> ReductionStep:
        """Begin to reduce a step's buckets in the background, while the backward pass makes the next ones."""
        if self._step_thread is None:
            self._step_thread = ThreadPoolExecutor(1, thread_name_prefix="all-reduce")
        return ReductionStep(self, self._step_thread)

    def abort(self, reason: str) -> None:
        """End the round on all ranks, from any thread; a pending call raises RoundBrokenError at once."""
        self._ended = self._ended or reason
        if self._ring is not None:
            self._ring.abort(reason)

    def close(self) -> None:
        """Leave the round; ranks that are still in the last reduction finish it. Again is harmless."""
        with self._closing:
            self._ended = self._ended or "this process left the round"
            if self._ring is not None:
                self._ring.close()
            if self._step_thread is not None:
                self._step_thread.shutdown()

    def fail_after(self, count: int) -> None:
        """Lose this process when so many bytes of the next reduction's data have come; for tests."""
        if self._ring is not None:
            self._ring.fail_after(count)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ReductionStep:
    """The buckets of one step, reduced one after the other; made by ``Communicator.begin_step``.

    All ranks hand in the same buckets in the same order. The control message goes with the last one, since only then a
    rank knows whether its gradients are finite.
    """

    def __init__(self, communicator: Communicator, thread: ThreadPoolExecutor) -> None:
        self._communicator = communicator
        self._thread = thread
        self._pending: list[Future[list[bytes]]] = []

    def reduce_bucket(self, bucket: npt.NDArray[Any]) -> None:
        """Reduce a buffer in place; it belongs to the step until ``finish`` returns."""
        self._pending.append(self._thread.submit(self._communicator.all_reduce, bucket))

    def finish(self, control: bytes, last_bucket: npt.NDArray[Any] | None = None) -> list[bytes]:
        """Wait for all buckets; the last one, which may be left out, carries the control message.

        Returns:
            all ranks' messages, by rank.

        Raises:
            RoundBrokenError: a rank was lost, or the round was aborted; no bucket means anything.
        """
        bucket = _NOTHING[:0] if last_bucket is None else last_bucket
        self._pending.append(self._thread.submit(self._communicator.all_reduce, bucket, control))
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
