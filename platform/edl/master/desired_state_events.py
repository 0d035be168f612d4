"""Wishes of people as events of the core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edl.cluster.status_port import Desired
from edl.core.events import Event, ScaleWanted, StopWanted, WishUnreadable
from edl.core.saved_checkpoint import STOPPED

CHECKPOINT_SECONDS = 30.0
"""How long the checkpoint before a stop may take: as long as pods that are told to go have by default."""


def events_of(wishes: Iterable[Desired]) -> Iterator[Event]:
    """What each wish means for the job; the core ignores what is so already.

    Args:
        wishes: as they are pinned, one after the other.
    """
    for wish in wishes:
        if wish.stop:
            yield StopWanted(STOPPED, CHECKPOINT_SECONDS)
            return
        if wish.unreadable:
            yield WishUnreadable(wish.unreadable)
        else:
            yield ScaleWanted(wish.min, wish.max)
