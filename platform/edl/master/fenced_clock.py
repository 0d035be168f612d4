"""The time that the core is told: it stands still while this master may not decide.

Else the first thing that a master did after minutes without its fence would be to take every lease back from workers
that it had refused to hear.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from edl.core.leader_election import MasterFence


class FencedClock:
    """Monotonic seconds, less those without the right to decide.

    Args:
        clock: monotonic seconds.
        fence: the right; None where nobody else can have it.
    """

    def __init__(self, clock: Callable[[], float], fence: MasterFence | None) -> None:
        self._clock, self._fence = clock, fence
        self._frozen_seconds = 0.0
        self._since: float | None = None
        self._lock = threading.Lock()

    def now(self) -> float:
        """The core's time."""
        with self._lock:
            return (self._clock() if self._since is None else self._since) - self._frozen_seconds

    def runs(self) -> bool:
        """Whether this master may decide now."""
        holds = self._fence is None or self._fence.holds()
        with self._lock:
            if not holds and self._since is None:
                self._since = self._clock()
            elif holds and self._since is not None:
                self._frozen_seconds += self._clock() - self._since
                self._since = None
        return holds

    def over(self) -> bool:
        """Whether it never will again: another master decides."""
        return self._fence is not None and self._fence.lost()
