"""Waiting, always for a condition and always with a bound; a wait that ends in vain says what it saw."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from e2e.machine_speed import allowed_seconds

Found = TypeVar("Found")

POLL_SECONDS = 0.1


class NotSeenError(AssertionError):
    """What was waited for did not come in time."""


def wait_until(
    what: str, condition: Callable[[], Found | None], seconds: float, seen: Callable[[], object] = lambda: ""
) -> Found:
    """The first result of ``condition`` that is neither None nor False.

    Args:
        what: is waited for; stands in the error.
        condition: asked again and again; cheap.
        seconds: the bound, on the machine for which limits were set.
        seen: asked at the end, for the error.

    Raises:
        NotSeenError: it did not come.
    """
    bound = allowed_seconds(seconds)
    end = time.monotonic() + bound
    while True:
        result = condition()
        if result is not None and result is not False:
            return result
        if time.monotonic() > end:
            raise NotSeenError(f"{what}: not within {bound:.0f} s\n{seen()}")
        time.sleep(POLL_SECONDS)
