"""Merges groups of records by whole weights: which group has the record at a position, without a list of positions.

While all groups have records left, ``sum(weights)`` positions have ``weights[g]`` records of group ``g``, in one
pattern over and over. When a group has no more records, the others go on without it. So weights decide about the order
only, and each record has exactly one position.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_WEIGHT = 1000
"""Of a group: a pattern has as many places as all weights together."""


@dataclass(frozen=True, slots=True)
class _Phase:
    """Positions from ``start`` on, at which the same groups have records left.

    Attributes:
        start: first position.
        taken: records of each group before the phase.
        pattern: groups in their order, repeated until the phase ends.
        before: for each place in the pattern and its end, records of each group before it in the pattern.
    """

    start: int
    taken: tuple[int, ...]
    pattern: tuple[int, ...]
    before: tuple[tuple[int, ...], ...]

    def count_before(self, position: int) -> tuple[int, ...]:
        rounds, place = divmod(position - self.start, len(self.pattern)) if self.pattern else (0, 0)
        return tuple(
            taken + rounds * whole + part
            for taken, whole, part in zip(self.taken, self.before[-1], self.before[place], strict=True)
        )


@dataclass(frozen=True, slots=True)
class Interleaving:
    """Groups of ``counts`` records, merged by ``weights``.

    Attributes:
        counts: records of each group.
        weights: at least 1 for each group.
    """

    counts: tuple[int, ...]
    weights: tuple[int, ...]
    _phases: tuple[_Phase, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.weights) or any(weight < 1 for weight in self.weights):
            raise ValueError(f"each of {len(self.counts)} groups needs a weight of at least 1: {self.weights}")
        phases: list[_Phase] = []
        counts_before = (0,) * len(self.counts)
        while True:
            left = [count - done for count, done in zip(self.counts, counts_before, strict=True)]
            pattern = _make_pattern([weight if rest else 0 for weight, rest in zip(self.weights, left, strict=True)])
            phase = _Phase(sum(counts_before), counts_before, pattern, _count_before(pattern, len(left)))
            phases.append(phase)
            if not pattern:
                break
            counts_before = phase.count_before(phase.start + _phase_length(pattern, left))
        object.__setattr__(self, "_phases", tuple(phases))

    @property
    def records(self) -> int:
        """Records of all groups."""
        return sum(self.counts)

    def count_before(self, position: int) -> tuple[int, ...]:
        """Records of each group before a position: the group's next record is the one with this number."""
        return self._phase_at(position).count_before(position)

    def groups(self, start: int, end: int) -> list[int]:
        """The group of each position in ``[start, end)``."""
        group_numbers: list[int] = []
        while start < end:
            number = bisect_right(self._phases, start, key=lambda phase: phase.start) - 1
            phase = self._phases[number]
            until = min(end, self._phases[number + 1].start)
            size = len(phase.pattern)
            first = (start - phase.start) % size
            repeated = phase.pattern * (-(-(first + until - start) // size))
            group_numbers += repeated[first : first + until - start]
            start = until
        return group_numbers

    def _phase_at(self, position: int) -> _Phase:
        return self._phases[bisect_right(self._phases, position, key=lambda phase: phase.start) - 1]


def _make_pattern(weights: Sequence[int]) -> tuple[int, ...]:
    """Each group as often as its weight says, evenly spread (smooth weighted round robin, as nginx does it)."""
    total, credit, pattern = sum(weights), [0] * len(weights), []
    for _ in range(total):
        credit = [have + weight for have, weight in zip(credit, weights, strict=True)]
        chosen = max(range(len(weights)), key=lambda group: (credit[group], -group))
        credit[chosen] -= total
        pattern.append(chosen)
    return tuple(pattern)


def _count_before(pattern: Sequence[int], groups: int) -> tuple[tuple[int, ...], ...]:
    counts = [0] * groups
    rows = [tuple(counts)]
    for group in pattern:
        counts[group] += 1
        rows.append(tuple(counts))
    return tuple(rows)


def _phase_length(pattern: Sequence[int], left: Sequence[int]) -> int:
    """Positions up to the last record of the group that is the first to have none left."""
    lengths = []
    for group in set(pattern):
        places = [place for place, each in enumerate(pattern) if each == group]
        rounds, place = divmod(left[group] - 1, len(places))
        lengths.append(rounds * len(pattern) + places[place] + 1)
    return min(lengths)
