"""A virtual clock: simulations of hours take milliseconds and are deterministic."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class VirtualClock:
    """A monotonic clock in seconds with scheduled calls. For one thread."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        """The current time in seconds; replaces ``time.monotonic``."""
        return self._now

    __call__ = now

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Schedule a call at ``when``; a time in the past means the next ``advance``.

        Calls at the same time run in the order of scheduling.
        """
        heapq.heappush(self._due, (max(when, self._now), next(self._order), call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call ``seconds`` from now."""
        self.at(self._now + seconds, call)

    @property
    def next_due(self) -> float | None:
        """When the next call is due; None if none is scheduled."""
        return self._due[0][0] if self._due else None

    def advance(self, seconds: float) -> None:
        """Advance by ``seconds`` and run every call that becomes due, including those scheduled
        meanwhile.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        if not seconds >= 0:
            raise ValueError(f"time cannot advance by {seconds} s")
        end = self._now + seconds
        while self._due and self._due[0][0] <= end:
            self._now, _, call = heapq.heappop(self._due)
            call()
        self._now = end

    def advance_to_next(self) -> bool:
        """Advance to the next call and run it; False if none is scheduled."""
        if self.next_due is None:
            return False
        self.advance(self.next_due - self._now)
        return True
