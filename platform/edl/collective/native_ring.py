"""Reductions in native code. They release the GIL, and the heartbeat thread never needs it.

``make native`` builds the extension. Without it, importing this module raises ImportError;
with one that was compiled from other sources, BadInputError.
"""

from __future__ import annotations

import threading

from edl.api.round_id import RoundId
from edl.collective import _ring
from edl.collective.element_types import ElementType
from edl.collective.neighbours import Neighbours
from edl.collective.reduction_plan import Algorithm, Bytes
from edl.collective.round_errors import InjectedFaultError, RoundBrokenError
from edl.numerics.extension_interface import check_extension_interface

check_extension_interface(_ring)


class NativeRing:
    """The connected ranks of one round; has the interface of ``NumpyRing``.

    Args:
        round_id: the id that every frame carries.
        rank: the rank of this process.
        size: the number of ranks, at least two.
        neighbours: the connections. The ring owns and closes them.
        timeout: seconds of silence after which a neighbour counts as lost.
        first_within: further seconds for its first heartbeat, which it sends when it is connected to both neighbours.
    """

    def __init__(
        self, round_id: RoundId, rank: int, size: int, neighbours: Neighbours, timeout: float, first_within: float
    ) -> None:
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
            first_within,
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
            # The native code reports an unknown rank as a negative number.
            rank = self._ring.lost_rank
            raise RoundBrokenError(None if rank < 0 else rank, self._ring.reason) from None
        except _ring.FaultInjected as fault:
            raise InjectedFaultError(str(fault)) from None

    def abort(self, reason: str) -> None:
        """End the round, from any thread. A pending reduction raises RoundBrokenError."""
        self._ring.abort(reason)

    def close(self) -> None:
        """Leave the round and close its connections. Calling it twice is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            # In this order: the ring's threads use the neighbours' descriptors until it is closed.
            self._ring.close()
            self._neighbours.close()

    def fail_after(self, count: int) -> None:
        """Simulate a loss after ``count`` bytes of the next reduction's data; for tests."""
        self._ring.fail_after(count)
