"""Exponential backoff: the delay doubles after each consecutive failure, up to a limit.

For what is tried by one process: a pod that is asked for, a watch, a supervisor that is started again. Calls between
roles, which hundreds of workers repeat at once, spread their tries more (``edl.transport.retry``).
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_SERVER_DELAY_SECONDS = 60.0
"""Upper bound for a server's Retry-After, in seconds; a longer one is shortened to this."""
_MAX_DOUBLINGS = 32
"""Beyond every limit in use. Without a cap, a float would overflow after about a thousand failures."""


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Delays after failures.

    Attributes:
        first_seconds: after the first failure.
        max_seconds: after many.
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
            failures: in a row, 1 or more.
            jitter: evenly distributed over 0-1; between half of the delay and all of it is waited.
            server_delay: seconds that the server asks for; never less than that, up to ``MAX_SERVER_DELAY_SECONDS``.
        """
        asked = min(max(server_delay or 0.0, 0.0), MAX_SERVER_DELAY_SECONDS)
        return asked + self.delay(failures) * (0.5 + jitter / 2)
