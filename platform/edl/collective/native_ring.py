"""Reductions in native code: the GIL is released, and heartbeats need none.

The extension is built by ``make native``; importing this module without it is an ImportError.
"""

from __future__ import annotations

import threading

from edl.api.round_id import RoundId
from edl.collective import _ring
from edl.collective.element_types import ElementType
from edl.collective.neighbours import Neighbours
from edl.collective.reduction_plan import Algorithm, Bytes
from edl.collective.round_errors import InjectedFaultError, RoundBrokenError


class NativeRing:
    """The ranks of one round, connected, as ``NumpyRing`` is.

    Args:
        round_id: goes into every frame.
        rank: of this process.
        size: number of ranks, at least two.
        neighbours: belong to the ring.
        timeout: seconds of a neighbour's silence that are its loss.
    """

    def __init__(self, round_id: RoundId, rank: int, size: int, neighbours: Neighbours, timeout: float) -> None:
        previous, next_ = neighbours.previous_memory, neighbours.next_memory
        self._neighbours = neighbours
        self._lock = threading.Lock()
        self._closed = False
        self._ring = _ring.Ring(
            round_id.incarnation,
            round_id.number,
            rank,
            size,
            neighbours.previous.fileno(),
            neighbours.next.fileno(),
            previous.descriptors if previous is not None else None,
            next_.descriptors if next_ is not None else None,
            timeout,
        )

    @property
    def broken(self) -> bool:
        """Whether the round has ended for this process."""
        return self._ring.broken

    def all_reduce(self, buffer: Bytes, element: ElementType, algorithm: Algorithm, control: bytes) -> list[bytes]:
        """Sum a buffer over all ranks, in place; see ``NumpyRing.all_reduce``."""
        try:
            return self._ring.all_reduce(buffer, element.number, algorithm, control)
        except _ring.RoundBroken:
            rank = self._ring.lost_rank
            raise RoundBrokenError(None if rank < 0 else rank, self._ring.reason) from None
        except _ring.FaultInjected as fault:
            raise InjectedFaultError(str(fault)) from None

    def abort(self, reason: str) -> None:
        """End the round, from any thread; a pending reduction raises RoundBrokenError."""
        self._ring.abort(reason)

    def close(self) -> None:
        """Leave the round and close its connections; again is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._ring.close()
            self._neighbours.close()

    def fail_after(self, count: int) -> None:
        """Lose this process when so many bytes of the next reduction's data have come; for tests."""
        self._ring.fail_after(count)
