"""Counts failed attempts of one request, and waits before the next one.

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

Separate from the interpreter's generator, which models seed: all workers would retry at the same time, and a retry
would change the numbers that the model draws.
"""


def no_jitter() -> float:
    """The whole delay, for the only client of a server."""
    return 1.0


@dataclass(slots=True)
class Retry:
    """The attempts at one request.

    Attributes:
        backoff: the delays between attempts.
        sleep: waits for the given seconds; may return earlier, such as the ``wait`` of an event.
        tries: the most attempts; None: no limit.
        timeout_seconds: seconds after the first attempt, after which no other attempt begins.
        jitter: returns a random number, uniform in 0-1.
        clock: monotonic seconds.
        failures: consecutive failures.
    """

    backoff: ExponentialBackoff
    sleep: Callable[[float], object]
    tries: int | None = None
    timeout_seconds: float = float("inf")
    jitter: Callable[[], float] = draw_jitter
    clock: Callable[[], float] = time.monotonic
    failures: int = field(init=False, default=0)
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    @property
    def is_last(self) -> bool:
        """Whether the present attempt is the last of ``tries``."""
        return self.failures + 1 == self.tries

    def next_delay(self, server_delay: float | None = None) -> float:
        """Count a failure; returns the seconds to wait.

        Args:
            server_delay: the server's Retry-After in seconds.
        """
        self.failures += 1
        return self.backoff.jittered_delay(self.failures, self.jitter(), server_delay)

    def wait(self, server_delay: float | None = None) -> bool:
        """Count a failure and wait before the next attempt; at once False if there is none within the limits."""
        is_last, seconds = self.is_last, self.next_delay(server_delay)
        if is_last or self.clock() + seconds > self._began + self.timeout_seconds:
            return False
        self.sleep(seconds)
        return True

    def reset(self) -> None:
        """Record a success."""
        self.failures = 0
