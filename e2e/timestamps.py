"""When things happened in pods: from the roles' logs on the volume, where the models of these tests say each step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

_STEP = re.compile(r"^E2E step at=([0-9.]+)$", re.MULTILINE)
_IMPORTED = re.compile(r"^E2E imported seconds=([0-9.]+)$", re.MULTILINE)
_STARTED = re.compile(r"^--- (\S+) started (\S+) ---$", re.MULTILINE)

AHEAD_SECONDS = 4.0
"""Of work that a worker here holds ahead, at most."""


@dataclass(frozen=True)
class TrainingPause:
    """A time without a step.

    Attributes:
        began_at: unix seconds: the last step before it.
        ended_at: the first step after it.
    """

    began_at: float
    ended_at: float

    @property
    def seconds(self) -> float:
        return self.ended_at - self.began_at


def steps(run: Path) -> Mapping[int, Sequence[float]]:
    """When each worker completed its steps, by index."""
    step_times = {}
    for log in (run / "logs").glob("worker-*.log"):
        step_times[int(log.stem.rpartition("-")[2])] = [
            float(at) for at in _STEP.findall(log.read_text(errors="replace"))
        ]
    return step_times


def longest_pause(run: Path, after: float) -> TrainingPause:
    """The longest time in which no worker completed a step, as far as it has to do with a moment.

    That is: it ended after the moment and began before workers can have used up the leases that they hold ahead.
    """
    every = sorted(at for moments in steps(run).values() for at in moments)
    pauses = [TrainingPause(one, two) for one, two in pairwise(every) if two > after and one < after + AHEAD_SECONDS]
    assert pauses, f"no step after {after}"
    return max(pauses, key=lambda pause: pause.seconds)


def import_seconds(run: Path, worker: int) -> float:
    """How long a worker's TensorFlow took to import."""
    durations = _IMPORTED.findall((run / "logs" / f"worker-{worker}.log").read_text(errors="replace"))
    assert durations, f"worker-{worker} does not say how long its import took"
    return float(durations[-1])


def containers(run: Path, log: str) -> list[tuple[str, float]]:
    """Pods that wrote a log such as ``master-0``, and when their containers started, in order."""
    text = (run / "logs" / f"{log}.log").read_text(errors="replace")
    return [(pod, datetime.fromisoformat(at).timestamp()) for pod, at in _STARTED.findall(text)]
