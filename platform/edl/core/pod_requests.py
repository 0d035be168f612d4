"""Pods that were asked for: those that are not seen yet, and those that the cluster would not start."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, KeysView
from dataclasses import dataclass, field

from edl.api.cluster_port import PodOptions, Role

REQUEST_TIMEOUT = 60.0
"""Seconds after which a pod that was asked for and never shown is asked for again; asking twice gives one pod."""

PodKey = tuple[Role, int]


@dataclass(frozen=True, slots=True)
class PodRequest:
    """A pod that was asked for and is not yet seen: how, and when."""

    wish: PodOptions
    at: float


@dataclass(slots=True)
class PendingPodRequests:
    """What was asked for; counted as it changes, because every event wants to know how much there is.

    Attributes:
        elevated: how many of what is on its way have the higher class of a divided priority.
        refusals: what the cluster said when it would not start a pod, until that pod starts.
        rejected_indices: of the refused ones, those that are not on their way again: the next asked for get their
            indices.
    """

    elevated: int = 0
    refusals: dict[PodKey, str] = field(default_factory=dict)
    rejected_indices: dict[Role, set[int]] = field(default_factory=lambda: {role: set() for role in Role})
    _asked: dict[Role, dict[int, PodRequest]] = field(default_factory=lambda: {role: {} for role in Role})
    """In the order in which they were last asked for."""

    def __contains__(self, name: PodKey) -> bool:
        """Whether a pod is on its way."""
        return name[1] in self._asked[name[0]]

    def items(self) -> Iterator[tuple[PodKey, PodRequest]]:
        """Everything that is on its way."""
        return (((role, index), asked) for role, of in self._asked.items() for index, asked in of.items())

    def count(self, role: Role) -> int:
        """How many of a role are on their way."""
        return len(self._asked[role])

    def indices(self, role: Role) -> KeysView[int]:
        """Which of a role are on their way."""
        return self._asked[role].keys()

    def ask(self, name: PodKey, wish: PodOptions, now: float) -> None:
        """A pod is asked for."""
        self._take(name)
        self._asked[name[0]][name[1]] = PodRequest(wish, now)
        self.elevated += wish.elevated
        self.rejected_indices[name[0]].discard(name[1])

    def mark_appeared(self, name: PodKey) -> bool:
        """A pod is there; whether it was on its way."""
        if self.refusals.pop(name, None) is not None:
            self.rejected_indices[name[0]].discard(name[1])
        return self._take(name) is not None

    def refused(self, name: PodKey, reason: str) -> bool:
        """A pod was not started; whether it was on its way."""
        if self._take(name) is None:
            return False
        self.refusals[name] = reason
        self.rejected_indices[name[0]].add(name[1])
        return True

    def drop(self, name: PodKey) -> PodRequest:
        """A pod that is on its way is not counted on any more."""
        asked = self._take(name)
        assert asked is not None
        if name in self.refusals:
            self.rejected_indices[name[0]].add(name[1])
        return asked

    def clear(self) -> None:
        """Nothing is on its way."""
        for name, _ in list(self.items()):
            self.drop(name)

    def overdue_requests(self, now: float) -> Iterator[PodKey]:
        """What was asked for so long ago that it is to be asked for again."""
        for role, of in self._asked.items():
            for index, asked in of.items():
                if now - asked.at < REQUEST_TIMEOUT:
                    break
                yield role, index

    def lowest_rejected(self, role: Role, count: int) -> list[int]:
        """The lowest indices that were refused and are not on their way."""
        return heapq.nsmallest(count, self.rejected_indices[role]) if self.rejected_indices[role] else []

    def trim_rejected(self, role: Role, keep: int) -> None:
        """Only so many of the refused ones are still wanted."""
        refused = self.rejected_indices[role]
        if len(refused) > keep:
            for index in sorted(refused)[keep:]:
                refused.discard(index)
                del self.refusals[role, index]

    def _take(self, name: PodKey) -> PodRequest | None:
        asked = self._asked[name[0]].pop(name[1], None)
        if asked is not None:
            self.elevated -= asked.wish.elevated
        return asked
