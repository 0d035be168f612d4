"""Limits the rate of requests to the API server.

A job that loses a thousand pods at once requests a thousand others, and the server has other users. ``TokenBucket``
decides as a value; ``TokenBucketLimiter`` adds the clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from edl.core.backoff import MAX_SERVER_DELAY_SECONDS

REQUESTS_PER_SECOND, REQUEST_BURST = 50.0, 100.0
"""Requests per second in the long run, and in a burst."""


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """A token bucket, refilled with ``rate`` tokens per second up to ``burst``. Waiting requests make it negative.

    Attributes:
        rate: tokens per second.
        burst: maximum number of tokens.
        tokens: tokens at the time ``updated_at``.
        updated_at: seconds of the caller's clock.
    """

    rate: float
    burst: float
    tokens: float
    updated_at: float

    @classmethod
    def create_full(cls, rate: float, burst: float, now: float) -> TokenBucket:
        return cls(rate, burst, burst, now)

    def take_token(self, now: float) -> tuple[TokenBucket, float]:
        """Take a token, first come, first served; return the new bucket and the seconds to wait."""
        earned = max(now - self.updated_at, 0.0) * self.rate
        left = min(self.burst, self.tokens + earned) - 1
        return replace(self, tokens=left, updated_at=max(now, self.updated_at)), max(-left / self.rate, 0.0)

    def after_pause(self, now: float, seconds: float) -> TokenBucket:
        """Delay all later requests until ``seconds`` from now, because the server asked for it."""
        earned = max(now - self.updated_at, 0.0) * self.rate
        tokens = min(self.burst, self.tokens + earned)
        return replace(
            self,
            tokens=min(tokens, -min(seconds, MAX_SERVER_DELAY_SECONDS) * self.rate),
            updated_at=max(now, self.updated_at),
        )


class TokenBucketLimiter:
    """Delays requests to keep a rate; a ``RateLimiter`` of ``KubeClient``. May be used from several threads.

    Requests that must not wait, such as renewals of a Lease, use a ``KubeClient`` of their own.
    """

    def __init__(
        self,
        rate: float = REQUESTS_PER_SECOND,
        burst: float = REQUEST_BURST,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._clock, self._sleep = now, sleep
        self._bucket = TokenBucket.create_full(rate, burst, now())
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Return when the next request may be sent."""
        with self._lock:
            self._bucket, seconds = self._bucket.take_token(self._clock())
        # outside of the lock: others may take their tokens meanwhile
        if seconds > 0:
            self._sleep(seconds)

    def pause_requests(self, seconds: float) -> None:
        """Send nothing for that time: the server answered 429."""
        with self._lock:
            self._bucket = self._bucket.after_pause(self._clock(), seconds)
