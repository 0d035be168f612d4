"""How long a worker that was told to end waits for the boundary at which it leaves the others."""

from __future__ import annotations

import logging
from typing import Protocol

from edl.api.cluster_port import POD_GRACE_SECONDS

_LOG = logging.getLogger(__name__)

MIN_LEAVE_SECONDS = 3.0
"""The least time that a worker which was told to end waits for the boundary at which it leaves the others."""
STEPS_TO_LEAVE = 3
"""The others may have begun a step before they learn that it leaves, and it waits until all have reported."""
RETURN_SECONDS = 3.0
"""What remains of the grace period for the leases, and for the end of the process."""


class LeftRound(Protocol):
    """Whether a worker is in no round any more; an event is."""

    def wait(self, timeout: float) -> bool: ...


class SavesCheckpoint(Protocol):
    """Says whether the state of a checkpoint is being copied or written."""

    @property
    def is_busy(self) -> bool: ...


def wait_until_left(left: LeftRound, checkpoints: SavesCheckpoint, step_seconds: float) -> None:
    """Wait until this worker, which was told to end, is in no round any more.

    Args:
        left: is set then.
        checkpoints: while it is busy, this worker may be the last one that has the newest state, and so it uses the
            whole grace period.
        step_seconds: the duration of a recent step.
    """
    most = POD_GRACE_SECONDS - RETURN_SECONDS
    seconds = min(max(MIN_LEAVE_SECONDS, STEPS_TO_LEAVE * step_seconds), most)
    if left.wait(seconds) or (checkpoints.is_busy and left.wait(most - seconds)):
        return
    _LOG.info("ending in the middle of a step: the other workers see a broken connection")
