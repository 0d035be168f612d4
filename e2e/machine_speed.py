"""How much slower this machine is than the one for which limits in seconds were set.

What is bounded here is mostly Python that runs in pods of this machine, and much of that is the start of programs. On a
machine of half the speed it takes twice as long, and nothing is wrong with it. So limits are stretched by a measured
ratio, and the table of results says by how much.

Two things are measured, and the slower one counts: a loop that stays in the processor's caches, and the start of a
command, which reads many files and much memory. There are machines on which the loop takes no longer, and the command
twice as long. On a shared host both change from minute to minute, so they are measured again and again.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

LOOP_TURNS = 10_000_000
REFERENCE_SECONDS = 0.41
"""Of processor time for the loop, on the machine for which the limits were set, with nothing else on it."""
COMMAND = (sys.executable, "-m", "edl.cli.app", "list", "--help")
REFERENCE_COMMAND_SECONDS = 0.44
"""Of processor time for the command, as docs/design/0009 has it of a development machine."""
MEASURE_AFTER_SECONDS, COUNT_FOR_SECONDS = 60.0, 300.0
"""A measurement is repeated after the first of these, and counts for the second: a scenario takes minutes."""


@dataclass
class MachineSpeed:
    """What was measured lately.

    Args:
        measure: how many times as much processor time this machine takes.
        clock: seconds.
    """

    measure: Callable[[], float]
    clock: Callable[[], float] = time.monotonic
    _measured: list[tuple[float, float]] = field(default_factory=list, init=False)

    def slowness(self) -> float:
        """The worst ratio of the last minutes; at least 1.

        Time in which other processes had the processor is not part of it.
        """
        now = self.clock()
        if not self._measured or now - self._measured[-1][0] >= MEASURE_AFTER_SECONDS:
            self._measured.append((now, max(1.0, self.measure())))
        self._measured = [(at, ratio) for at, ratio in self._measured if now - at < COUNT_FOR_SECONDS]
        return max(ratio for _, ratio in self._measured)


def measure_slowness() -> float:
    """How many times as much processor time this machine takes now as the one for which the limits were set."""
    return max(_loop_seconds() / REFERENCE_SECONDS, _command_seconds() / REFERENCE_COMMAND_SECONDS)


_machine = MachineSpeed(measure_slowness)


def slowness() -> float:
    """How many times as much processor time this machine takes, now or in the last minutes; at least 1."""
    return _machine.slowness()


def _loop_seconds() -> float:
    began = time.process_time()
    for _ in range(LOOP_TURNS):
        pass
    return time.process_time() - began


def _command_seconds() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(COMMAND, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def allowed_seconds(limit: float) -> float:
    """What a limit is on this machine, in seconds."""
    return limit * slowness()
