"""Pauses between retries: decorrelated jitter within a time limit.

Tenacity is not used: it has neither this kind of jitter nor an injectable clock or random source. gRPC's
own retries stop after five attempts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_JITTER_RANDOM = random.Random()  # noqa: S311 - jitter
"""Separate from the interpreter's generator, which models seed: all workers would retry at the same time."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to retry. With the defaults, a client finds a restarted master in well under a second.

    Attributes:
        timeout_seconds: seconds after the first attempt, after which no other attempt begins.
        first_pause: minimum pause in seconds.
        max_pause: maximum pause in seconds.
    """

    timeout_seconds: float = 10.0
    first_pause: float = 0.05
    max_pause: float = 0.5


@dataclass(frozen=True, slots=True)
class RetryTiming:
    """Clock, sleep and random numbers of retries, which tests replace."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[float, float], float] = _JITTER_RANDOM.uniform


def iter_pauses(retry: RetryPolicy, uniform: Callable[[float, float], float]) -> Iterator[float]:
    """Yield the pause before each further attempt in seconds, without end.

    Each is drawn from ``[first_pause, 3 * last pause]`` and capped at ``max_pause`` ("decorrelated jitter",
    Brooker, AWS Architecture Blog, 2015). Peers that failed together do not retry together.
    """
    pause = retry.first_pause
    while True:
        pause = min(retry.max_pause, uniform(retry.first_pause, pause * 3))
        yield pause
