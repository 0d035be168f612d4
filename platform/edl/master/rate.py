"""How fast records are done."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 5.0


class Rate:
    """Records a second: lately, and over all the time in which records were done."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] = (0.0, 0)

    def observe(self, now: float, done: int) -> None:
        """So many records are done now; fewer than before after a rollback."""
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()
            self._first = None
        if not self._seen or done != self._seen[-1][1]:
            self._last = (now, done)
        if self._seen and self._first is None and done > self._seen[0][1]:
            self._first = self._seen[-1]
        self._seen.append((now, done))
        while now - self._seen[0][0] > WINDOW_SECONDS:
            self._seen.popleft()

    @property
    def lately(self) -> float:
        """Over the last seconds."""
        return _slope(self._seen[0], self._seen[-1]) if self._seen else 0.0

    @property
    def overall(self) -> float:
        """From the first to the last record."""
        return _slope(self._first, self._last) if self._first else 0.0


def _slope(a: tuple[float, int], b: tuple[float, int]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0]) if b[0] > a[0] else 0.0
