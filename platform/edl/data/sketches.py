"""Summaries of a column in bounded memory, which merge: of parts of the data, made by threads or workers.

Each takes whole arrays, and each knows its own error. While a column has fewer values than a summary holds, the result
is exact. The same parts in the same order give the same result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view

Floats = npt.NDArray[np.float64]
Hashes = npt.NDArray[np.uint64]

LEVEL_VALUES = 4096
"""Values that a level of a quantile sketch may hold before it is halved."""
HASHES = 8192
"""Smallest hashes that are kept to estimate the number of distinct values."""
COUNTERS = 4096
"""Values that are counted at the same time."""
TEXT_BYTES = 256
"""Frequent values are compared by so many bytes."""
_MOST_LENGTHS, _LONGEST_BY_LENGTH = 64, 4096
"""Texts of one length are hashed together where there are so few lengths, and no text has more bytes."""


@dataclass
class Moments:
    """Count, mean and the sum of squared distances from it (Chan, Golub and LeVeque)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, values: Floats) -> None:
        """Add finite values."""
        if len(values):
            mean = float(values.mean())
            self.merge(Moments(len(values), mean, float(np.square(values - mean).sum())))

    def merge(self, other: Moments) -> None:
        """Add what another summary has seen."""
        count = self.count + other.count
        if other.count:
            distance = other.mean - self.mean
            self.squares += other.squares + distance * distance * self.count * (other.count / count)
            self.mean += distance * (other.count / count)
            self.count = count

    @property
    def deviation(self) -> float:
        """Standard deviation of the population, as Keras' Normalization uses it."""
        return math.sqrt(self.squares / self.count) if self.count else math.nan


@dataclass
class QuantileSketch:
    """Quantiles after Munro and Paterson: a full level is sorted, and every other value goes up with double weight.

    The rank of any value changes by at most the weight of a level each time that it is halved, so ``rank_error`` is a
    bound and no probability. Levels take even and odd values in turn.
    """

    levels: list[Floats] = field(default_factory=list)
    takes_odd: list[bool] = field(default_factory=list)
    count: int = 0
    rank_error: int = 0

    def add(self, values: Floats) -> None:
        """Add finite values."""
        self.count += len(values)
        self._put(0, values)

    def merge(self, other: QuantileSketch) -> None:
        """Add what another summary has seen."""
        self.count += other.count
        self.rank_error += other.rank_error
        for level, values in enumerate(other.levels):
            self._put(level, values)

    def quantiles(self, shares: Floats) -> Floats:
        """The value at each share of the values: the smallest one with this estimated rank."""
        values, ranks = self._ranks()
        places = np.searchsorted(ranks, np.ceil(shares * self.count), side="left")
        return values[np.minimum(places, len(values) - 1)]

    def counts_below(self, bounds: Floats) -> npt.NDArray[np.int64]:
        """Estimated number of values that are smaller than each bound."""
        values, ranks = self._ranks()
        return np.concatenate(([0], ranks))[np.searchsorted(values, bounds, side="left")].astype(np.int64)

    def _put(self, level: int, values: Floats) -> None:
        while len(self.levels) <= level:
            self.levels.append(np.empty(0))
            self.takes_odd.append(False)
        values = np.concatenate((self.levels[level], values))
        if len(values) < 2 * LEVEL_VALUES:
            self.levels[level] = values
            return
        # Above the first level, what is held and what comes are sorted runs, which a stable sort only merges.
        values.sort(kind="stable" if level else None)
        even = len(values) // 2 * 2
        self.levels[level] = values[even:]
        raised = values[int(self.takes_odd[level]) : even : 2]
        self.takes_odd[level] = not self.takes_odd[level]
        self.rank_error += 1 << level
        self._put(level + 1, raised)

    def _ranks(self) -> tuple[Floats, npt.NDArray[np.int64]]:
        """All values that are held, in order, and the estimated rank of each."""
        values = np.concatenate(self.levels or [np.empty(0)])
        weights = np.repeat([1 << level for level in range(len(self.levels))], list(map(len, self.levels)))
        order = np.argsort(values, kind="stable")
        return values[order], np.cumsum(weights[order])


@dataclass
class DistinctSketch:
    """The number of distinct values, from the smallest of their hashes. Merged parts give what the whole gives."""

    hashes: Hashes = field(default_factory=lambda: np.empty(0, np.uint64))

    def add(self, hashes: Hashes) -> None:
        """Add hashes of values."""
        if len(self.hashes) == HASHES:
            hashes = hashes[hashes < self.hashes[-1]]
        if len(hashes):
            # Sorting takes a third of the time of np.unique, which hashes them again.
            ordered = np.sort(np.concatenate((self.hashes, hashes)))
            is_first = np.concatenate((np.ones(1, np.bool_), ordered[1:] != ordered[:-1]))
            self.hashes = ordered[is_first][:HASHES]

    def merge(self, other: DistinctSketch) -> None:
        """Add what another summary has seen."""
        self.add(other.hashes)

    @property
    def is_exact(self) -> bool:
        """Whether the column has fewer distinct values than the summary holds."""
        return len(self.hashes) < HASHES

    @property
    def estimate(self) -> int:
        """Number of distinct values."""
        return len(self.hashes) if self.is_exact else round((HASHES - 1) / ((float(self.hashes[-1]) + 1) / 2**64))

    @property
    def error(self) -> float:
        """Twice the relative standard error: 95 of 100 estimates are closer."""
        return 0.0 if self.is_exact else 2 / math.sqrt(HASHES - 2)


@dataclass
class FrequentValues:
    """Counts of the most frequent values (Misra and Gries; merged after Agarwal et al.).

    Args:
        values: Arrow array; None before the first value.
        counts: of each value. The true count is at least this, and at most ``error`` more.
        error: also the largest count of a value that is not here.
        is_dropped: nothing is counted any more.
        needs_all: drop all counts when there are more values than counters: of fractions, hardly one appears twice.
    """

    needs_all: bool = False
    values: Any = None
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    error: int = 0
    is_dropped: bool = False

    def add(self, array: Any) -> None:
        """Add the values of an Arrow array without missing values."""
        if self.is_dropped or not len(array):
            return
        # A part of the values often shows that there are more than counters.
        if self.needs_all and len(array) > 2 * COUNTERS and pc.count_distinct(array[: 2 * COUNTERS]).as_py() > COUNTERS:
            self.values, self.counts, self.is_dropped = None, self.counts[:0], True
            return
        counted = pc.value_counts(array)
        part = FrequentValues(self.needs_all, counted.field(0), np.array(counted.field(1), np.int64))
        part._limit()
        self.merge(part)

    def merge(self, other: FrequentValues) -> None:
        """Add what another summary has seen."""
        self.is_dropped = self.is_dropped or other.is_dropped
        self.error += other.error
        if self.is_dropped:
            self.values, self.counts = None, self.counts[:0]
        elif self.values is None:
            self.values, self.counts = other.values, other.counts
        elif other.values is not None:
            values = pa.concat_arrays([self.values, other.values])
            table = pa.table({"value": values, "count": np.concatenate((self.counts, other.counts))})
            grouped = table.group_by("value", use_threads=False).aggregate([("count", "sum")])
            self.values = grouped["value"].combine_chunks()
            self.counts = np.array(grouped["count_sum"], np.int64)
            self._limit()

    def most_frequent(self, limit: int) -> list[tuple[Any, int]]:
        """Values with their counts, the most frequent ones first; equal counts in descending order of the value."""
        if self.values is None:
            return []
        table = pa.table({"value": self.values, "count": self.counts})
        order = pc.sort_indices(table, sort_keys=[("count", "descending"), ("value", "descending")])[:limit]
        rows = table.take(order)
        return list(zip(rows["value"].to_pylist(), rows["count"].to_pylist(), strict=True))

    def _limit(self) -> None:
        if len(self.counts) <= COUNTERS:
            return
        if self.needs_all:
            self.values, self.counts, self.is_dropped = None, self.counts[:0], True
            return
        next_count = int(np.partition(self.counts, -COUNTERS - 1)[-COUNTERS - 1])
        kept = self.counts > next_count
        self.values = self.values.filter(pa.array(kept))
        self.counts = self.counts[kept] - next_count
        self.error += next_count


# --------------------------------------------------------------------------------------------------
# Hashes of whole arrays.


def hash_numbers(values: npt.NDArray[Any]) -> Hashes:
    """Hashes of numbers of 8 bytes each."""
    return _mix(values.view(np.uint64))


def hash_bytes(array: Any) -> Hashes:
    """Hashes of an Arrow array of ``large_binary`` without missing values.

    The sum of all bytes, each multiplied by a random number of its place (multilinear hashing), mixed.
    """
    if not len(array):
        return np.empty(0, np.uint64)
    _, ends, content = array.buffers()
    bounds = np.frombuffer(ends, np.int64)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(content or b"", np.uint8)[bounds[0] : bounds[-1]]
    begins, lengths = bounds[:-1] - bounds[0], np.diff(bounds)
    longest = int(lengths.max())
    factors = _mix(np.arange(longest, dtype=np.uint64))
    sizes = np.flatnonzero(np.bincount(lengths)) if longest <= _LONGEST_BY_LENGTH else ()
    if 0 < len(sizes) <= _MOST_LENGTHS:
        return _mix(_sum_by_length(data, begins, lengths, sizes, factors) + _mix(lengths.astype(np.uint64)))
    places = np.arange(len(data), dtype=np.int64) - np.repeat(begins, lengths)
    # An unsigned sum wraps around, so a difference of two sums is right.
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum((data + np.uint64(1)) * factors[places], dtype=np.uint64)))
    return _mix(sums[begins + lengths] - sums[begins] + _mix(lengths.astype(np.uint64)))


def _sum_by_length(data: Any, begins: Any, lengths: Any, sizes: Any, factors: Hashes) -> Hashes:
    """The sums of ``hash_bytes``: texts of one length are the rows of a matrix, which takes a fourth of the time."""
    sums = np.zeros(len(begins), np.uint64)
    for size in sizes[sizes > 0].tolist():
        chosen = np.flatnonzero(lengths == size)
        rows = sliding_window_view(data, size)[begins[chosen]]
        sums[chosen] = rows.astype(np.uint64) @ factors[:size] + factors[:size].sum(dtype=np.uint64)
    return sums


def _mix(values: Hashes) -> Hashes:
    """The finalizer of SplitMix64: every bit of the result depends on every bit of the number."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), np.uint64)
