"""When to try again: decorrelated jitter within a time limit.

Own code rather than tenacity: that library has neither this kind of jitter nor an injectable clock or source of
randomness, and gRPC's own retries stop after five tries.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_JITTER_RANDOM = random.Random()  # noqa: S311 - jitter
"""Models seed the interpreter's own, all with the same number: their workers would come back at the same moment."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to keep trying; the defaults find a restarted master in well under a second.

    Attributes:
        timeout_seconds: seconds from the first try after which no other try begins.
        first_pause: seconds; no pause is shorter.
        max_pause: seconds; no pause is longer.
    """

    timeout_seconds: float = 10.0
    first_pause: float = 0.05
    max_pause: float = 0.5


@dataclass(frozen=True, slots=True)
class RetryTiming:
    """Time and chance; tests give their own."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    uniform: Callable[[float, float], float] = _JITTER_RANDOM.uniform


def iter_pauses(retry: RetryPolicy, uniform: Callable[[float, float], float]) -> Iterator[float]:
    """Yield the seconds to wait before each further try, without end.

    Each is drawn from ``[first, 3 * last pause]`` and capped ("decorrelated jitter", Brooker, AWS Architecture Blog,
    2015): peers that failed at the same moment do not come back at the same moment.
    """
    pause = retry.first_pause
    while True:
        pause = min(retry.max_pause, uniform(retry.first_pause, pause * 3))
        yield pause
