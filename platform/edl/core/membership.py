"""Membership of a synchronous strategy: which workers take part, and with which rank.

Ranks are dense, survivors keep their order, and rounds only increase: a message of an older round is recognised by its
number alone. (The synchronous strategies come with their own issue; the rule and its properties stand here.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edl.core.decision import Decision


@dataclass(frozen=True, slots=True)
class WorldMember:
    """A worker that could take part.

    Attributes:
        last_seen: when it last said that it is there, in the caller's clock.
        ready: whether it can take a step now (model built, connected).
    """

    uid: str
    index: int
    last_seen: float
    ready: bool = True


@dataclass(frozen=True, slots=True)
class TrainingWorld:
    """The members of one round; a member's rank is its position."""

    round: int
    members: tuple[str, ...]

    def rank(self, uid: str) -> int | None:
        """Rank of a member, None if it is not in the world."""
        return self.members.index(uid) if uid in self.members else None


def compute_world(
    current: TrainingWorld, members: Sequence[WorldMember], now: float, *, silence_seconds: float, min_members: int
) -> Decision[TrainingWorld]:
    """The world to use, given the workers that sent a heartbeat within ``silence_seconds``.

    Returns ``current`` itself when nothing changes. A world of fewer than ``min_members`` is empty: nobody steps.
    """
    live = {m.uid: m for m in members if m.ready and now - m.last_seen <= silence_seconds}
    kept = [uid for uid in current.members if uid in live]
    new = sorted((m.index, uid) for uid, m in live.items() if uid not in current.members)
    order = (*kept, *(uid for _, uid in new))
    reason = f"{len(new)} joined, {len(current.members) - len(kept)} left"
    if len(order) < min_members:
        order, reason = (), f"{len(order)} of at least {min_members} workers are there"
    if order == current.members:
        return Decision(current, "nobody joined or left")
    return Decision(TrainingWorld(current.round + 1, order), reason)
