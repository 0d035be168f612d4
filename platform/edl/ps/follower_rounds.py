"""Which pushes become one update in synchronous mode, on the parameter servers that follow the first one.

The first parameter server puts pushes together to rounds (``edl.ps.sync_rounds``) and tells each worker with its answer
which pushes its round has; the worker passes that on. So the same pushes make one update on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edl.ps.sync_rounds import PushId


@dataclass(frozen=True, slots=True)
class FollowerPush:
    """A push that waits for the others of its round.

    Attributes:
        share: which one it is.
        round: all pushes of its round.
        again: it was sent before, so that the others may have been answered by a process that is gone: they are not
            waited for.
    """

    share: PushId
    round: frozenset[PushId]
    again: bool


class FollowerRounds:
    """Pushes that wait for the others of their rounds; pure."""

    def __init__(self) -> None:
        self._waiting: dict[PushId, FollowerPush] = {}

    def join(self, follower: FollowerPush) -> None:
        """A push waits; one that was sent again takes the place of the first try."""
        self._waiting[follower.share] = follower

    def remove_push(self, share: PushId) -> None:
        """A push does not wait any more."""
        self._waiting.pop(share, None)

    def close(self, comes: Callable[[PushId], bool]) -> tuple[PushId, ...]:
        """The pushes of a round, in order of leases, if none is missing that may come; the largest such round.

        Args:
            comes: whether a push that is not here can still enter: it has not, and its lease is good.
        """
        for follower in sorted(self._waiting.values(), key=lambda one: (-len(one.round), one.share)):
            here = {follower.share} | (follower.round & self._waiting.keys())
            if follower.again or not any(comes(share) for share in follower.round - here):
                for share in here:
                    del self._waiting[share]
                return tuple(sorted(here))
        return ()
