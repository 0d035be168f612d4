"""The shuffled order of an epoch's records, computed on demand and never stored.

A data set consists of *blocks*: runs of records that a reader loads together (a chunk of RecordIO, a
part of a CSV file between two entries of its index). An epoch visits all blocks in random order;
within a *window* of that sequence, single records are permuted. So a position of an epoch is a record,
as a pure function of the seed, the epoch, the window and the description of the data set. A lease
covers the positions ``[start, end)``. Every worker finds the same records for it, and a reader of the
journal can name them.

``permutation.permute_index`` makes both permutations: of the blocks in an epoch, and of the positions in a window.
docs/design/0002-record-accounting.md specifies the order.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from typing import Any, TypeAlias

from edl.api.errors import BadInputError
from edl.core.interleaving import Interleaving
from edl.core.partition import splitmix64
from edl.core.permutation import permute_index
from edl.core.record_ranges import RecordBlock, RecordSource

MAX_TRAINED_RECORDS = (1 << 63) - 1
"""Records of all epochs together: messages, checkpoints and Keras count them in 64 bits."""


def training_size_error(minibatch: int, records: int, epochs: int, global_batch: int | None = None) -> str | None:
    """Why a job with a minibatch of this size cannot train on so many records for so many epochs; None if it can.

    A minibatch larger than an epoch would never be full. With ``global_batch``, a step has so many records.
    """
    if records * epochs > MAX_TRAINED_RECORDS:
        return (
            f"train.epochs is {epochs:,}: with {records:,} records, more than {MAX_TRAINED_RECORDS:,} would be trained"
        )
    if records >= (global_batch or minibatch):
        return None
    if not records:
        return "the training data has no records"
    count_text = f"{records:,} record{'' if records == 1 else 's'}"
    if global_batch is not None:
        return (
            f"strategy.global_batch is {global_batch:,}, and data.training has {count_text}: an epoch would be "
            "a single step, and not full; lower strategy.global_batch, or name more data"
        )
    return (
        f"train.minibatch_size is {minibatch:,}, and data.training has {count_text}: no minibatch would "
        "be full, and an epoch a single step; lower train.minibatch_size, or name more data"
    )


SHUFFLED_SOURCE = ""
"""The source of a range of positions, in the journal and in a lease: its records are in several files."""
SHUFFLED_SOURCE_NAME = "the epoch's shuffled order"
"""The same, for users."""

MAX_WINDOW_RECORDS = 65_536
"""Default window, in records."""
MAX_WINDOW_BYTES = 64 << 20
"""Memory limit for the records of a default window, in bytes; large records get a smaller window."""
MAX_BLOCKS = 65_536
"""Maximum number of blocks of a data set, at least one per source.

The journal stores their sizes. Neighbouring blocks are merged beyond this.
"""

BlockRuns: TypeAlias = tuple[tuple[int, int], ...]
"""Block sizes of one source in order, as ``(records, count)`` runs.

Most blocks have the size of the next one.
"""

GroupWeights: TypeAlias = tuple[tuple[int, int], ...]
"""Groups of neighbouring sources, as ``(weight, sources)``: see ``edl.core.interleaving``."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The positions at which a data set can be read.

    Attributes:
        runs: the block sizes of each source.
        record_bytes: approximate size of a record in a worker's memory.
        weights: how groups of sources are merged; none: all blocks come in random order.
    """

    runs: tuple[BlockRuns, ...]
    record_bytes: int
    weights: GroupWeights = ()

    @classmethod
    def from_sizes(cls, sizes: Sequence[Sequence[int]], record_bytes: int, weights: GroupWeights = ()) -> BlockLayout:
        """From the block sizes of each source; neighbours are merged if there are too many blocks."""
        group_size = max(1, -(-sum(map(len, sizes)) // MAX_BLOCKS))
        merged = tuple(_encode_runs(_merge_neighbours(blocks, group_size)) for blocks in sizes)
        return cls(merged, record_bytes, weights)

    def to_json(self) -> dict[str, Any]:
        """The layout as a worker reports it."""
        weights = {"weights": [list(group) for group in self.weights]} if self.weights else {}
        return {"runs": _runs_to_rows(self.runs), "record_bytes": self.record_bytes, **weights}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> BlockLayout:
        """Parse what ``to_json`` returned."""
        return cls(_runs_from_rows(value["runs"]), value["record_bytes"], _weights_from_rows(value))


def _merge_neighbours(sizes: Sequence[int], count: int) -> list[int]:
    return [sum(sizes[at : at + count]) for at in range(0, len(sizes), count)]


def _encode_runs(sizes: Sequence[int]) -> BlockRuns:
    runs: list[tuple[int, int]] = []
    for size in sizes:
        if runs and runs[-1][0] == size:
            runs[-1] = (size, runs[-1][1] + 1)
        # Without empty blocks, which the master refuses (``task_results``).
        elif size:
            runs.append((size, 1))
    return tuple(runs)


def _runs_to_rows(runs: Sequence[BlockRuns]) -> list[list[list[int]]]:
    return [[list(run) for run in source] for source in runs]


def _runs_from_rows(rows: Sequence[Sequence[Sequence[int]]]) -> tuple[BlockRuns, ...]:
    return tuple(tuple((records, times) for records, times in source) for source in rows)


def _weights_from_rows(value: Mapping[str, Any]) -> GroupWeights:
    return tuple((weight, sources) for weight, sources in value.get("weights", ()))


def choose_window(requested: int | None, records: int, lease_records: int, blocks: BlockLayout | None) -> int:
    """The shuffle window of a run, in records; 0: only ranges are shuffled, not records.

    All windows of an epoch have about the same size and consist of whole leases, so that a worker that
    trains one window reads its blocks once.

    Args:
        requested: ``train.shuffle.window``; None: as large as memory allows.
        records: records per epoch.
        lease_records: records per lease.
        blocks: the blocks of the data set; None: its reader has no random access.

    Raises:
        BadInputError: a window is requested and the reader has no random access.
    """
    if requested == 0 or not records:
        return 0
    if blocks is None:
        if requested is None:
            return 0
        raise BadInputError(
            f"records cannot be shuffled in windows of {requested:,}: the data reader has no random access",
            where="train.shuffle.window",
            hint="give the reader a method blocks(source), or set the window to 0",
        )
    max_records = (
        min(MAX_WINDOW_RECORDS, max(1, MAX_WINDOW_BYTES // max(1, blocks.record_bytes)))
        if requested is None
        else requested
    )
    # A window within a lease need not consist of whole leases.
    if max_records < lease_records:
        return min(max_records, records)
    # Divide the epoch into the fewest windows of at most ``max_records``, of equal size, rounded up to
    # whole leases.
    max_records -= max_records % lease_records
    even = -(-records // -(-records // max_records))
    return even + -even % lease_records


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """A record, by its index in its source."""

    source: str
    record: int


@dataclass(frozen=True, slots=True)
class ShuffleOrder:
    """The order in which each epoch visits the records of a data set.

    Attributes:
        sources: the sources of the data set.
        runs: the block sizes of each source; they add up to its records.
        window: number of records that are permuted with each other.
        seed: the job's seed.
        weights: how groups of sources are merged; none: all blocks come in random order. With them, each group has an
            order of its own (``group_orders``), and ``interleaving`` merges these.
        portion: workers sort the records of so many positions, from a multiple of it on, by their lengths; 0: they do
            not.
    """

    sources: tuple[RecordSource, ...]
    runs: tuple[BlockRuns, ...]
    window: int
    seed: int
    weights: GroupWeights = ()
    portion: int = 0
    fingerprint: str = field(init=False, compare=False)
    """Equal only for equal orders. A worker compares it, to detect that its files differ from the described ones."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"a window holds at least one record, got {self.window}")
        for source, runs in zip(self.sources, self.runs, strict=True):
            if sum(records * times for records, times in runs) != source.records:
                raise ValueError(f"the blocks of {source.name} do not add up to its {source.records} records")
        if self.weights and sum(sources for _, sources in self.weights) != len(self.sources):
            raise ValueError(f"the groups of {self.weights} do not add up to {len(self.sources)} sources")
        rows = [[source.name, source.records] for source in self.sources]
        text = json.dumps([rows, self.to_json()], separators=(",", ":"))
        object.__setattr__(self, "fingerprint", hashlib.sha256(text.encode()).hexdigest()[:16])

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Sequence[Any]],
        runs: Sequence[BlockRuns],
        window: int,
        seed: int,
        weights: GroupWeights = (),
        portion: int = 0,
    ) -> ShuffleOrder:
        """From rows of name and record count; empty sources are left out."""
        kept = [
            (RecordSource(name, records), blocks) for (name, records), blocks in zip(rows, runs, strict=True) if records
        ]
        groups: list[tuple[int, int]] = []
        start = 0
        for weight, sources in weights:
            filled = sum(1 for row in rows[start : start + sources] if row[1])
            groups += [(weight, filled)] if filled else []
            start += sources
        return cls(
            tuple(source for source, _ in kept),
            tuple(blocks for _, blocks in kept),
            window,
            seed,
            tuple(groups),
            portion,
        )

    @property
    def records(self) -> int:
        """Records per epoch."""
        return sum(source.records for source in self.sources)

    def to_json(self) -> dict[str, Any]:
        """The order's part of the journal's data set entry."""
        weights = {"weights": [list(group) for group in self.weights]} if self.weights else {}
        portion = {"portion": self.portion} if self.portion else {}
        return {"window": self.window, "seed": self.seed, "blocks": _runs_to_rows(self.runs), **weights, **portion}

    @classmethod
    def from_json(cls, rows: Sequence[Sequence[Any]], value: Mapping[str, Any]) -> ShuffleOrder:
        """Restore from ``to_json`` and the sources' rows of name and record count."""
        weights = _weights_from_rows(value)
        runs, portion = _runs_from_rows(value["blocks"]), value.get("portion", 0)
        return cls.from_rows(rows, runs, value["window"], value["seed"], weights, portion)

    def epoch_order(self, number: int) -> EpochOrder:
        """The order of one epoch; takes time and memory proportional to the number of blocks.

        Raises:
            ValueError: the order merges groups by weights: ask their orders.
        """
        if self.weights:
            raise ValueError("an order with weights has one epoch order for each group")
        return EpochOrder.from_order(self, number)

    @property
    def interleaving(self) -> Interleaving:
        """How the groups of sources are merged."""
        counts = [sum(source.records for source in self.sources[first:after]) for first, after in self._group_bounds()]
        return Interleaving(tuple(counts), tuple(weight for weight, _ in self.weights))

    def group_orders(self) -> tuple[ShuffleOrder, ...]:
        """The order of each group; together, their windows are about as large as this one's."""
        total = sum(weight for weight, _ in self.weights)
        return tuple(
            ShuffleOrder(
                self.sources[first:after],
                self.runs[first:after],
                max(1, self.window * weight // total),
                splitmix64((self.seed & _MASK) ^ splitmix64(number + 1)),
            )
            for number, ((weight, _), (first, after)) in enumerate(zip(self.weights, self._group_bounds(), strict=True))
        )

    def _group_bounds(self) -> list[tuple[int, int]]:
        ends = list(accumulate(sources for _, sources in self.weights))
        return list(zip([0, *ends], ends, strict=False))

    def record_ranges(self, epoch: int, start: int, end: int) -> dict[str, list[list[int]]]:
        """The records at the positions ``[start, end)`` of an epoch, as sorted ranges by source.

        With portions, those of all portions of which the positions are a part: lengths are known to workers only.
        """
        if self.portion:
            start -= start % self.portion
            end = min(self.records, end + -end % self.portion)
        if not self.weights:
            return self.epoch_order(epoch).record_ranges(start, end)
        merged = self.interleaving
        ranges_by_source: dict[str, list[list[int]]] = {}
        for order, first, after in zip(
            self.group_orders(), merged.count_before(start), merged.count_before(end), strict=True
        ):
            ranges_by_source |= order.record_ranges(epoch, first, after)
        return ranges_by_source

    def iter_blocks(self) -> Iterator[RecordBlock]:
        """All blocks, in the order of the sources."""
        for source, runs in zip(self.sources, self.runs, strict=True):
            start = 0
            for records, times in runs:
                for size in repeat(records, times):
                    yield RecordBlock(source.name, start, start + size)
                    start += size


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The blocks of one epoch in random order, and the records at its positions.

    Attributes:
        blocks: the blocks in the order of this epoch.
        ends: position after the last record of each block, before records are permuted.
        window: records per window; the last window may have fewer.
        key: the key of this epoch's permutations.
    """

    blocks: tuple[RecordBlock, ...]
    ends: tuple[int, ...]
    window: int
    key: int
    records: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", self.ends[-1] if self.ends else 0)

    @classmethod
    def from_order(cls, order: ShuffleOrder, epoch: int) -> EpochOrder:
        """The same blocks in an order that depends on the seed and the epoch only."""
        key = splitmix64(splitmix64(splitmix64(order.seed & _MASK) ^ _SALT) + epoch)
        all_blocks = list(order.iter_blocks())
        blocks = [all_blocks[permute_index(at, len(all_blocks), key)] for at in range(len(all_blocks))]
        return cls(tuple(blocks), tuple(accumulate(block.end - block.start for block in blocks)), order.window, key)

    def window_at(self, position: int) -> tuple[int, int, int]:
        """The window that contains a position: its start, its record count, and the key of its permutation."""
        number = position // self.window
        start = number * self.window
        return start, min(self.window, self.records - start), splitmix64(self.key ^ splitmix64(number))

    def block_range(self, start: int, end: int) -> range:
        """The indices of the blocks with the positions ``[start, end)`` before records are permuted."""
        return range(bisect_right(self.ends, start), bisect_right(self.ends, end - 1) + 1)

    def locate_record(self, position: int) -> RecordPosition:
        """The record at a position.

        Raises:
            ValueError: the epoch has no such position.
        """
        start, size, key = self.window_at(position)
        unmixed = start + permute_index(position - start, size, key)
        run_index = bisect_right(self.ends, unmixed)
        block = self.blocks[run_index]
        return RecordPosition(block.source, block.end - (self.ends[run_index] - unmixed))

    def record_ranges(self, start: int, end: int) -> dict[str, list[list[int]]]:
        """The records at the positions ``[start, end)``, as sorted ranges ``[first, after last]`` by source."""
        runs_by_source: dict[str, list[list[int]]] = {}
        places = (self.locate_record(position) for position in range(start, end))
        for place in sorted(places, key=lambda place: (place.source, place.record)):
            ranges = runs_by_source.setdefault(place.source, [])
            if ranges and ranges[-1][1] == place.record:
                ranges[-1][1] += 1
            else:
                ranges.append([place.record, place.record + 1])
        return runs_by_source


_MASK = (1 << 64) - 1
# A window of 1 must differ from the order of ranges without a window.
_SALT = 0x5348554646_4C45
