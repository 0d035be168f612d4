"""A clock that moves only when told to: simulations of hours take milliseconds and end the same way each time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class VirtualClock:
    """Seconds since an arbitrary start, and calls that are due at some of them. For one thread."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        """Return the present, in seconds; usable wherever ``time.monotonic`` is."""
        return self._now

    __call__ = now

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call at ``when``; for a moment that has passed, at the next ``advance``. Ties run in order of asking."""
        heapq.heappush(self._due, (max(when, self._now), next(self._order), call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call ``seconds`` from now."""
        self.at(self._now + seconds, call)

    @property
    def next_due(self) -> float | None:
        """When the next call is due; None when nothing will ever happen by itself."""
        return self._due[0][0] if self._due else None

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass: everything due in them is called at its own time, also what those calls ask for.

        Raises:
            ValueError: time does not run backwards.
        """
        if not seconds >= 0:
            raise ValueError(f"time cannot advance by {seconds} s")
        end = self._now + seconds
        while self._due and self._due[0][0] <= end:
            self._now, _, call = heapq.heappop(self._due)
            call()
        self._now = end

    def advance_to_next(self) -> bool:
        """Let time pass until the next call is due and make it; False when nothing is due ever."""
        if self.next_due is None:
            return False
        self.advance(self.next_due - self._now)
        return True
