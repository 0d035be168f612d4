"""How long training waits for minibatches; if that is a large part of a worker's time, users are told.

Minibatches are made ahead of training. So a wait that lasts says that reading, decoding or ``feed`` limits the rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

MinibatchT = TypeVar("MinibatchT")

WARNING_TOPIC = "data wait"
MEASURED_SECONDS, MEASURED_STEPS = 30.0, 10
"""At least over so much, waits are summed up: in any job some minibatches are waited for."""
MOST_WAIT = 0.25
"""Share of the time above which users are told."""


def measure_wait(
    minibatches: Iterator[MinibatchT],
    warn: Callable[[str, str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[MinibatchT]:
    """Pass minibatches on, and warn once if they come more slowly than they are trained.

    The first one does not count: until it comes, ``feed`` is traced. Time without a lease counts as none of waiting.

    Args:
        minibatches: of one worker; between two of them it trains.
        warn: gets the topic and the text of the warning.
        clock: seconds, monotonic.
    """
    began, waited, steps, is_told = None, 0.0, 0, False
    try:
        asked = clock()
        for minibatch in minibatches:
            now = clock()
            if began is None:
                began = now
            elif not is_told:
                waited, steps = waited + now - asked, steps + 1
                if (passed := now - began) >= MEASURED_SECONDS and steps >= MEASURED_STEPS:
                    if is_told := waited > MOST_WAIT * passed:
                        warn(WARNING_TOPIC, describe_wait(waited / passed, passed))
                    began, waited, steps = now, 0.0, 0
            yield minibatch
            asked = clock()
    finally:
        # A generator, whose thread ends with it.
        getattr(minibatches, "close", lambda: None)()


def describe_wait(share: float, seconds: float) -> str:
    """The warning of a worker that waited for this share of some seconds."""
    return (
        f"data come more slowly than a worker trains: it waited {share:.0%} of {seconds:.0f} s for minibatches, "
        "so reading, decoding or feed limits the rate"
    )
