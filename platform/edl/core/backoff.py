"""Exponential backoff: the delay doubles after each consecutive failure, up to a limit.

Every retry takes its delays from here; ``edl.retry.attempts`` counts its attempts and waits. Where several
processes may fail together, such as all workers of a job whose master restarts, the delays have jitter, and
the random number is an argument. Decisions of the core, which a journal replays, and the only client of a
server use delays without jitter.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_SERVER_DELAY_SECONDS = 60.0
"""Upper bound for a server's Retry-After, in seconds; a longer one is cut to this."""
_MAX_DOUBLINGS = 32
"""Beyond every limit in use. Without it, a float would overflow after about a thousand failures."""


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Delays after failures.

    Attributes:
        first_seconds: the delay after the first failure.
        max_seconds: the upper limit of the delay.
    """

    first_seconds: float = 0.2
    max_seconds: float = 5.0

    def delay(self, failures: int) -> float:
        """Seconds to wait after ``failures`` consecutive failures; 0 after none."""
        if failures <= 0:
            return 0.0
        return min(self.first_seconds * 2.0 ** min(failures - 1, _MAX_DOUBLINGS), self.max_seconds)

    def jittered_delay(self, failures: int, jitter: float, server_delay: float | None = None) -> float:
        """The delay with jitter, so that clients that failed together do not retry together.

        Args:
            failures: number of consecutive failures, at least 1.
            jitter: a random number from 0 to 1; the result is 50 % to 100 % of the delay.
            server_delay: the server's Retry-After in seconds. It is added to the delay, up to
                ``MAX_SERVER_DELAY_SECONDS``.
        """
        asked = min(max(server_delay or 0.0, 0.0), MAX_SERVER_DELAY_SECONDS)
        return asked + self.delay(failures) * (0.5 + jitter / 2)
