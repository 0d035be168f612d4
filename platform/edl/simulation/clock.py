"""A virtual clock: simulations of hours take milliseconds and are deterministic."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class VirtualClock:
    """A monotonic clock in seconds with scheduled calls. For one thread."""

    def __init__(self, now: float = 0.0) -> None:
        self._seconds_now = now
        self._scheduled_calls: list[tuple[float, int, Callable[[], None]]] = []
        self._call_numbers = itertools.count()

    def now(self) -> float:
        """The current time in seconds; replaces ``time.monotonic``."""
        return self._seconds_now

    __call__ = now

    def call_at(self, when: float, call: Callable[[], None]) -> None:
        """Schedule a call at ``when``; a time in the past means the next ``advance``.

        Calls at the same time run in the order of scheduling.
        """
        heapq.heappush(self._scheduled_calls, (max(when, self._seconds_now), next(self._call_numbers), call))

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call ``seconds`` from now."""
        self.call_at(self._seconds_now + seconds, call)

    @property
    def next_due(self) -> float | None:
        """When the next call is due; None if none is scheduled."""
        return self._scheduled_calls[0][0] if self._scheduled_calls else None

    def advance(self, seconds: float) -> None:
        """Advance by ``seconds`` and run every call that becomes due, including those scheduled
        meanwhile.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        if not seconds >= 0:
            raise ValueError(f"time cannot advance by {seconds} s")
        end = self._seconds_now + seconds
        while self._scheduled_calls and self._scheduled_calls[0][0] <= end:
            self._seconds_now, _, call = heapq.heappop(self._scheduled_calls)
            call()
        self._seconds_now = end

    def advance_to_next(self) -> bool:
        """Advance to the next call and run it; False if none is scheduled."""
        if self.next_due is None:
            return False
        self.advance(self.next_due - self._seconds_now)
        return True
