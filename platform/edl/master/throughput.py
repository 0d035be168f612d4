"""How fast records are done."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 5.0


class ThroughputMeter:
    """Records a second: lately, and over all the time in which records were done.

    Args:
        records: done in that time before, when another master counted.
        seconds: that time.

    Attributes:
        records: that were done while this looked, those that went back later included.
        seconds: from the first of them to the last.
    """

    def __init__(self, records: int = 0, seconds: float = 0.0) -> None:
        self.records, self.seconds = records, seconds
        self._seen: deque[tuple[float, int]] = deque()
        self._counted_until: float | None = None

    def observe(self, now: float, done: int) -> None:
        """So many records are done now; fewer than before after a rollback."""
        if self._seen:
            self._count(now, done, *self._seen[-1])
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, done))
        while now - self._seen[0][0] > WINDOW_SECONDS:
            self._seen.popleft()

    def _count(self, now: float, done: int, before: float, done_before: int) -> None:
        if done > done_before:
            self.records += done - done_before
            self.seconds += now - (before if self._counted_until is None else self._counted_until)
            self._counted_until = now

    @property
    def recent_rate(self) -> float:
        """Over the last seconds."""
        return _rate_between(self._seen[0], self._seen[-1]) if self._seen else 0.0

    @property
    def overall_rate(self) -> float:
        """From the first to the last record."""
        return self.records / self.seconds if self.seconds > 0 else 0.0


def _rate_between(a: tuple[float, int], b: tuple[float, int]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0]) if b[0] > a[0] else 0.0
