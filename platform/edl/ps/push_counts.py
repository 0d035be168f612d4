"""What became of pushes, in numbers; counted under the server's lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PushCounts:
    """Pushes that brought a gradient, since this process began; what was rolled back since counts, too.

    Attributes:
        entered: those that are in an update.
        updates: that they became.
        refused: those that were refused as too old; their minibatches were computed again.
        staleness: of those that entered, summed: updates between the values of the gradient and the one it is in.
        stalest: the largest of these.
    """

    entered: int = 0
    updates: int = 0
    refused: int = 0
    staleness: int = 0
    stalest: int = 0


class PushCounter:
    """Counts."""

    def __init__(self) -> None:
        self._applied_pushes = self._update_count = self._stale_pushes = self._total_staleness = self._max_staleness = 0

    def update(self, staleness: Sequence[int]) -> None:
        """An update was made of gradients that miss so many others each; of none, it is not worth counting."""
        self._applied_pushes += len(staleness)
        self._update_count += bool(staleness)
        self._total_staleness += sum(staleness)
        self._max_staleness = max(self._max_staleness, *staleness, 0)

    def refuse(self) -> None:
        """A push was too old."""
        self._stale_pushes += 1

    @property
    def counts(self) -> PushCounts:
        """So far."""
        return PushCounts(
            self._applied_pushes, self._update_count, self._stale_pushes, self._total_staleness, self._max_staleness
        )
