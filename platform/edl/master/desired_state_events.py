"""Wishes of people as events of the core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edl.cluster.status_port import DesiredState
from edl.core.events import CoreEvent, DesiredStateInvalid, ScaleRequested, StopRequested
from edl.core.saved_checkpoint import STOPPED

STOP_CHECKPOINT_SECONDS = 30.0
"""How long the checkpoint before a stop may take: as long as pods that are told to go have by default."""


def desired_state_events(wishes: Iterable[DesiredState]) -> Iterator[CoreEvent]:
    """What each wish means for the job; the core ignores what is so already.

    Args:
        wishes: as they are pinned, one after the other.
    """
    for wish in wishes:
        if wish.stop:
            yield StopRequested(STOPPED, STOP_CHECKPOINT_SECONDS)
            return
        if wish.unreadable:
            yield DesiredStateInvalid(wish.unreadable)
        else:
            yield ScaleRequested(wish.min, wish.max)
