"""How much slower this machine is than the one for which limits in seconds were set.

What is bounded here is mostly Python that runs in pods of this machine. On a machine of half the speed it takes twice
as long, and nothing is wrong with it. So limits are stretched by a measured ratio, and the table of results says by how
much.
"""

from __future__ import annotations

import time
from functools import cache

LOOP_TURNS = 10_000_000
REFERENCE_SECONDS = 0.41
"""Of processor time for the loop, on the machine for which the limits were set, with nothing else on it."""


@cache
def slowness() -> float:
    """Processor time of a loop, divided by what it took there; at least 1.

    Time in which other processes had the processor is not part of it.
    """
    began = time.process_time()
    for _ in range(LOOP_TURNS):
        pass
    return max(1.0, (time.process_time() - began) / REFERENCE_SECONDS)


def allowed_seconds(limit: float) -> float:
    """What a limit is on this machine, in seconds."""
    return limit * slowness()
