"""Sources of records, ranges of them, and the plan that divides an epoch into shards.

The plan is a data set divided into shards, in an order that is a function of seed and epoch. The order is never stored,
so a plan of millions of shards takes no time and no memory: the i-th shard of an epoch is computed on demand
(``permutation``). The order of single records is in ``shuffle``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from edl.core.partition import splitmix64
from edl.core.permutation import permute_index
from edl.core.short_list import format_short_list


@dataclass(frozen=True, slots=True)
class RecordSource:
    """A named sequence of records: a file, a table."""

    name: str
    records: int


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Records ``[start, end)`` of a source in one epoch, or positions of the epoch's order (``SHUFFLED_SOURCE``)."""

    epoch: int
    source: str
    start: int
    end: int

    @property
    def records(self) -> int:
        """How many records it covers."""
        return self.end - self.start

    def split(self, at: int) -> tuple[RecordRange, RecordRange]:
        """Split at record ``at``; either part may be empty."""
        return RecordRange(self.epoch, self.source, self.start, at), RecordRange(self.epoch, self.source, at, self.end)


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Records ``[start, end)`` of a source."""

    source: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """A data set divided into shards of ``size`` records; a source's last shard may be shorter.

    Attributes:
        size: records per shard.
        seed: determines the order of the shards in every epoch; None keeps the order of the sources.
    """

    sources: tuple[RecordSource, ...]
    size: int
    seed: int | None = None
    _ends: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a shard holds at least one record, got size {self.size}")
        ends = accumulate(-(-source.records // self.size) for source in self.sources)
        object.__setattr__(self, "_ends", tuple(ends))

    @property
    def shard_count(self) -> int:
        """Shards per epoch."""
        return self._ends[-1] if self._ends else 0

    @property
    def records(self) -> int:
        """Records per epoch."""
        return sum(source.records for source in self.sources)

    def count_steps(self, minibatch: int) -> int:
        """Steps per epoch: the minibatches of all shards."""
        steps = 0
        for source in self.sources:
            full, rest = divmod(source.records, self.size)
            steps += full * -(-self.size // minibatch) + -(-rest // minibatch)
        return steps

    def shard(self, epoch: int, index: int) -> RecordRange:
        """The ``index``-th shard of an epoch."""
        if self.seed is not None:
            index = permute_index(index, self.shard_count, splitmix64(splitmix64(self.seed & 0xFFFFFFFF) + epoch))
        source_index = bisect_right(self._ends, index)
        source = self.sources[source_index]
        start = (index - (self._ends[source_index - 1] if source_index else 0)) * self.size
        return RecordRange(epoch, source.name, start, min(start + self.size, source.records))


def describe_ranges(ranges: Mapping[str, Sequence[Sequence[int]]], max_ranges: int = 64) -> str:
    """Records for users, such as ``records 3, 17 to 19 of a.csv, record 4 of b.csv``; at most ``max_ranges`` ranges."""
    parts: list[str] = []
    left = max_ranges
    for source, source_ranges in ranges.items():
        shown = source_ranges[: max(0, left)]
        left -= len(shown)
        if shown:
            texts = [str(first) if after == first + 1 else f"{first} to {after - 1}" for first, after in shown]
            alone = len(shown) == 1 and shown[0][1] == shown[0][0] + 1
            parts.append(f"record{'' if alone else 's'} {', '.join(texts)} of {source}")
    more = sum(map(len, ranges.values())) - max_ranges
    return format_short_list(parts, len(parts), hidden=more)
