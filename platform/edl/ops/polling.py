"""Looks at something again and again, through the short absences of an API server."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from edl.api.errors import RetryableError

POLL_SECONDS = 1.0
LONGEST_ABSENCE_SECONDS = 120.0
"""An absence of the API server that is waited out."""

PolledValue = TypeVar("PolledValue")


def poll_repeatedly(
    look: Callable[[], PolledValue],
    seconds: float = POLL_SECONDS,
    *,
    answered: bool = False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[PolledValue]:
    """Yield what ``look`` returns, every ``seconds``, for as long as the caller wants it.

    Args:
        look: asks the API server.
        seconds: between two looks.
        answered: whether the server has answered before; one that never did is not absent for a moment but wrong.
        clock: monotonic seconds.
        sleep: for so many seconds.

    Raises:
        RetryableError: ``look`` has raised nothing else for PATIENCE_SECONDS, or before it returned anything.
    """
    failing_since: float | None = None
    while True:
        try:
            value = look()
        except RetryableError as error:
            if not answered:
                raise
            now = clock()
            if failing_since is None:
                failing_since = now
                print(f"{error.message}; looking again", file=sys.stderr, flush=True)
            if now - failing_since > LONGEST_ABSENCE_SECONDS:
                raise
        else:
            failing_since, answered = None, True
            yield value
        sleep(seconds)
