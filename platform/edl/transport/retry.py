"""How long calls between roles are retried, and the random numbers of their delays.

Tenacity is not used: its clock and random source cannot be replaced. gRPC's own retries stop after five
attempts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from edl.core.backoff import ExponentialBackoff

draw_jitter: Callable[[], float] = random.Random().random  # noqa: S311 - jitter
"""Returns a random number, uniform in 0-1.

Separate from the interpreter's generator, which models seed: all workers would retry at the same time.
"""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to retry. With the defaults, a client finds a restarted master in well under a second.

    Attributes:
        timeout_seconds: seconds after the first attempt, after which no other attempt begins.
        backoff: the delays between attempts.
    """

    timeout_seconds: float = 10.0
    backoff: ExponentialBackoff = field(default_factory=lambda: ExponentialBackoff(0.05, 0.5))


@dataclass(frozen=True, slots=True)
class RetryTiming:
    """Clock, sleep and random numbers of retries, which tests replace."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = draw_jitter
