"""Seconds that pass when somebody sleeps, or when a test says so.

For code that takes a clock and a sleep as arguments. `edl.simulation.clock.VirtualClock` also calls back at its times.
"""

from __future__ import annotations


class SleepClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
