"""What work exists: a dataset cut into shards, in an order that is a function of (seed, epoch).

The order is never stored. A plan of millions of shards costs nothing to make and nothing to keep: the i-th shard of an
epoch is computed when it is wanted, by a keyed permutation (a Feistel network with cycle walking: Black and Rogaway,
Ciphers with Arbitrary Finite Domains, CT-RSA 2002).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from edl.core.partition import splitmix64


@dataclass(frozen=True, slots=True)
class RecordSource:
    """A named sequence of records: a file, a table."""

    name: str
    records: int


@dataclass(frozen=True, slots=True)
class RecordShard:
    """Records ``[start, end)`` of a source."""

    source: str
    start: int
    end: int


def permute_index(index: int, count: int, key: int) -> int:
    """Where a keyed permutation of ``range(count)`` sends ``index``.

    Raises:
        ValueError: unless ``0 <= index < count``.
    """
    if not 0 <= index < count:
        raise ValueError(f"index {index} is not in a plan of {count}")
    while True:
        index = feistel_permute(index, count, key)
        if index < count:
            return int(index)


def feistel_permute(index: Any, count: int, key: int) -> Any:
    """One walk of the Feistel network over the smallest square power of two that holds ``range(count)``.

    ``permute_index`` walks on until it is in the range again. Integer operators only, so that an index may be a NumPy
    uint64 array too.
    """
    half = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    left, right = index >> half, index & mask
    for turn in range(4):
        left, right = right, left ^ (splitmix64(right ^ splitmix64((key << 3) + turn)) & mask)
    return (left << half) | right


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """A dataset cut into shards of ``size`` records; a source's last shard may be shorter.

    Attributes:
        size: records a shard.
        seed: order of the shards in every epoch; None keeps the order of the sources.
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
    def count(self) -> int:
        """Shards an epoch."""
        return self._ends[-1] if self._ends else 0

    @property
    def records(self) -> int:
        """Records an epoch."""
        return sum(source.records for source in self.sources)

    def shard(self, epoch: int, index: int) -> RecordShard:
        """The ``index``-th shard to be worked on in an epoch."""
        if self.seed is not None:
            index = permute_index(index, self.count, splitmix64(splitmix64(self.seed & 0xFFFFFFFF) + epoch))
        at = bisect_right(self._ends, index)
        source = self.sources[at]
        start = (index - (self._ends[at - 1] if at else 0)) * self.size
        return RecordShard(source.name, start, min(start + self.size, source.records))


def plan_epoch(sources: Sequence[RecordSource], size: int, seed: int | None, epoch: int) -> Iterator[RecordShard]:
    """All shards of one epoch, lazily, in the epoch's order; every record is covered exactly once."""
    whole = ShardPlan(tuple(sources), size, seed)
    return (whole.shard(epoch, index) for index in range(whole.count))


def minibatch_size_error(minibatch: int, records: int) -> str | None:
    """Why a job must not begin whose minibatch has more records than an epoch; None if it has not."""
    if records >= minibatch:
        return None
    if not records:
        return "the training data has no records"
    return (
        f"train.minibatch_size is {minibatch:,}, and data.training has {records:,} records: no minibatch would "
        "be full, and an epoch a single step; lower train.minibatch_size, or name more data"
    )
