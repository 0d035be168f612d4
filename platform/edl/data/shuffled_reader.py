"""Reads records by their positions in a shuffled epoch.

A position stands for one record (``edl.core.shuffle``). The blocks of the current window stay in memory, so that a
block is read once and not once for each minibatch with one of its records. The memory of a window is therefore its
records and the rest of the two blocks at its ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from edl.api.errors import BadInputError
from edl.core.permutation import feistel_permute
from edl.core.record_ranges import RecordBlock, describe_ranges
from edl.core.shuffle import EpochOrder, ShuffleOrder
from edl.data.bucketed_reader import BucketedReader
from edl.data.reader import CorruptRange, OnCorrupt, PackedRecords, Reader, Record
from edl.data.record_columns import ColumnRecords, join_records, take_records

# --------------------------------------------------------------------------------------------------
# Copies records in any order out of the buffers that contain them.
#
# A shuffled minibatch reads memory in random order, so nearly every record is a cache miss. The
# native code prefetches the next records while it copies one. ``make native`` builds it; without
# it, slower Python code does the same.


Numbers: TypeAlias = npt.NDArray[np.int64]


def gather_in_python(payloads: list[bytes], owners: Numbers, begins: Numbers, ends: Numbers) -> list[bytes]:
    """Record ``i`` is ``payloads[owners[i]][begins[i]:ends[i]]``; all three arrays are ``[records]``."""
    places = zip(owners.tolist(), begins.tolist(), ends.tolist(), strict=True)
    return [payloads[owner][begin:end] for owner, begin, end in places]


def fastest_gather() -> Callable[[list[bytes], Numbers, Numbers, Numbers], list[bytes]]:
    """The native implementation if it is built, otherwise the Python one."""
    try:
        from edl.data._records import gather
    except ImportError:
        return gather_in_python
    return gather


# --------------------------------------------------------------------------------------------------
# The keyed permutation of ``edl.core.permutation``, for many positions at once.
#
# The native code (``make native``) takes a tenth of NumPy's time, because NumPy passes over all
# numbers once for each operation.


Positions: TypeAlias = npt.NDArray[np.int64]
PermutedRange: TypeAlias = Callable[[int, int, int, int], Positions]


def permuted_in_python(first: int, last: int, count: int, key: int) -> Positions:
    """Images of the positions ``[first, last)`` under the keyed permutation of ``range(count)``: ``[last - first]``."""
    # the Feistel network permutes a range up to four times as large: repeat it for results outside
    # of ``count``
    permuted = feistel_permute(np.arange(first, last, dtype=np.uint64), count, key)
    while (beyond := np.flatnonzero(permuted >= count)).size:
        permuted[beyond] = feistel_permute(permuted[beyond], count, key)
    return permuted.astype(np.int64)  # type: ignore[no-any-return]


def fastest_permuted_range() -> PermutedRange:
    """The native implementation if it is built, otherwise the Python one."""
    try:
        from edl.data._records import permuted_range
    except ImportError:
        return permuted_in_python
    return lambda first, last, count, key: np.frombuffer(permuted_range(first, last, count, key), np.int64)


_LOOKUP_POSITIONS = 4096
"""Positions per lookup: NumPy's overhead for each call is large for the few records of one minibatch."""
_GATHER = fastest_gather()
_PERMUTED_RANGE = fastest_permuted_range()


class _PositionPiece(NamedTuple):
    """Positions ``[start, end)`` of an epoch, and the record number of each in the unshuffled window."""

    epoch: int
    start: int
    end: int
    unmixed: npt.NDArray[np.int64]


class _PackedWindow:
    """The buffers of one window's blocks, and for each record its buffer, start and end.

    Record numbers are those before shuffling.

    Args:
        start: first record of the window's blocks.
        end: number after the last record.
        blocks: numbers of the blocks, which are consecutive.
    """

    def __init__(self, start: int, end: int, blocks: range) -> None:
        self._start, self._first = start, blocks.start
        self._payloads = [b""] * len(blocks)
        self.blocks = len(blocks)
        # Side by side, because records are looked up in random order: one cache miss a record instead of three.
        self._places = np.zeros((end - start, 3), np.int64)
        self.held: set[int] = set()

    def put(self, block: int, first: int, packed: PackedRecords) -> None:
        """Add a block; ``first`` is the number of its first record."""
        bounds = np.frombuffer(packed.bounds, np.uint64).astype(np.int64)
        part = slice(first - self._start, first - self._start + len(packed))
        self._places[part, 0] = block - self._first
        np.add(bounds[:-1], packed.gap, out=self._places[part, 1])
        np.subtract(bounds[1:], packed.tail, out=self._places[part, 2])
        self._payloads[block - self._first] = packed.payload
        self.held.add(block)

    def take(self, unmixed: npt.NDArray[np.int64]) -> Sequence[Record]:
        """The records with these numbers; their blocks must have been added."""
        owners, begins, ends = self._places.take(unmixed - self._start, axis=0).T.copy()
        return _GATHER(self._payloads, owners, begins, ends)


class ShuffledReader:
    """Reads records by position. Only one thread may read; any thread may call ``describe_positions``.

    Args:
        reader: reader of the records.
        order: shuffled order of its records.
    """

    def __init__(self, reader: Reader, order: ShuffleOrder) -> None:
        self._reader = reader
        self.order = order
        self._epoch: tuple[int, EpochOrder] = (-1, EpochOrder((), (), 1, 0))
        self._end_records: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._first_records: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._fetch_ahead = getattr(reader, "fetch_ahead", None)  # only readers that know bytes of a block have it
        self._read_packed = getattr(reader, "packed_records", None)  # only readers of bytes have it
        self._piece = _PositionPiece(-1, 0, 0, np.empty(0, np.int64))
        self._packed_window = _PackedWindow(0, 0, range(0))
        self._window: tuple[int, int] = (-1, -1)
        self._blocks: tuple[RecordBlock, ...] = ()
        self._cached_blocks: dict[int, Sequence[Any]] = {}
        self._damaged_blocks: set[int] = set()
        self._joined: tuple[Sequence[Any], int] | None = None
        """All records of the window as arrays, and the number of the first one."""

    def read(self, epoch: int, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> Sequence[Record]:
        """The records at positions ``[start, end)`` of an epoch, in order; ``on_corrupt`` as in ``Reader.read``.

        Each unreadable record is reported alone, with all records that are damaged together in ``whole``.

        Raises:
            CorruptRecordError: a record of a needed block cannot be read and ``on_corrupt`` is None.
            BadInputError: the reader returned other records than requested.
        """
        parts: list[Sequence[Record]] = []
        while start < end:
            piece = self._lookup_piece(epoch, start)
            until = min(end, piece.end)
            part = slice(start - piece.start, until - piece.start)
            self._enter_window(epoch, start)
            parts.append(self._take_records(piece.unmixed[part], on_corrupt))
            start = until
        return join_records(parts)

    def describe_positions(self, epoch: int, start: int, end: int) -> str:
        """The records at positions ``[start, end)``, as text for people."""
        return describe_ranges(self.order.record_ranges(epoch, start, end))

    def _take_records(self, unmixed: npt.NDArray[np.int64], on_corrupt: OnCorrupt | None) -> Sequence[Record]:
        cached_blocks, window = self._cached_blocks, self._packed_window
        # the usual case: all blocks of the window are in memory, in packed form
        if len(cached_blocks) == window.blocks == len(window.held):
            return window.take(unmixed)
        if self._joined is not None:
            records, first = self._joined
            return take_records(records, unmixed - first)
        numbers = np.searchsorted(self._end_records, unmixed, side="right")
        blocks = numbers.tolist()
        for number in set(blocks).difference(cached_blocks):
            self._cache_block(number, self._load_block(number, on_corrupt))
        # blocks in packed form and as lists may be mixed: only if all are packed, the fast path
        # applies
        if len(window.held) == len(cached_blocks):
            return window.take(unmixed)
        at = unmixed - self._first_records[numbers]
        if not self._damaged_blocks.isdisjoint(blocks):
            return self._take_undamaged(blocks, at, on_corrupt)
        if isinstance(cached_blocks[blocks[0]], ColumnRecords | np.ndarray):
            if len(cached_blocks) == window.blocks and not self._damaged_blocks:
                self._join_window()
            return self._take_arrays(numbers, at)
        return [cached_blocks[block][record] for block, record in zip(blocks, at.tolist(), strict=True)]

    def _join_window(self) -> None:
        """Copy the arrays of all blocks into one, unless they are large: then one take serves a minibatch.

        A minibatch has few records of each block, so that a take for each block costs more than the copies do. Large
        records cost so much to copy that it does not matter, and a window of them would need its memory twice.
        """
        blocks = [self._cached_blocks[number] for number in sorted(self._cached_blocks)]
        if sum(map(_array_bytes, blocks)) <= _JOINED_BYTES:
            self._joined = join_records(blocks), int(self._first_records[min(self._cached_blocks)])

    def _take_arrays(self, numbers: npt.NDArray[np.int64], records: npt.NDArray[np.int64]) -> Sequence[Record]:
        """Records of blocks that are arrays: those of each block at once, and then in the wanted order."""
        order = np.argsort(numbers, kind="stable")
        ends = np.flatnonzero(np.diff(numbers[order], append=-1)) + 1
        parts, start = [], 0
        for end in ends.tolist():
            chosen = order[start:end]
            parts.append(take_records(self._cached_blocks[int(numbers[chosen[0]])], records[chosen]))
            start = end
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return take_records(join_records(parts), back)

    def _take_undamaged(
        self, blocks: list[int], records: npt.NDArray[np.int64], on_corrupt: OnCorrupt | None
    ) -> Sequence[Record]:
        """Records of blocks of which some have damaged ones, which are reported in their places."""
        parts: list[Sequence[Record]] = []
        for block, record in zip(blocks, records.tolist(), strict=True):
            block_records = self._cached_blocks[block]
            one = block_records[record] if block in self._damaged_blocks else block_records[record : record + 1]
            if not isinstance(one, CorruptRange):
                parts.append(one)
            elif on_corrupt is not None:
                on_corrupt(one)
        return join_records(parts)

    def _cache_block(self, number: int, records: Sequence[Any]) -> None:
        self._cached_blocks[number] = records
        if isinstance(records, PackedRecords):
            self._packed_window.put(number, int(self._first_records[number]), records)

    def _load_block(self, number: int, on_corrupt: OnCorrupt | None) -> Sequence[Any]:
        """A block's records; of a damaged block a list of a ``CorruptRange``, or a sequence of one record, for each."""
        block = self._epoch[1].blocks[number]
        packed: PackedRecords | None = (
            self._read_packed(block.source, block.start, block.end) if self._read_packed else None
        )
        if packed is not None:
            return packed
        if on_corrupt is None:
            records = self._reader.read(block.source, block.start, block.end)
            _check_record_count(block, len(records))
            return records
        corrupt: list[CorruptRange] = []
        records = self._reader.read(block.source, block.start, block.end, corrupt.append)
        _check_record_count(block, len(records) + sum(each.records for each in corrupt))
        if not corrupt:
            return records
        self._damaged_blocks.add(number)
        bad = {at: each for each in corrupt for at in range(each.start, each.end)}
        good = iter(range(len(records)))
        return [
            _single_corrupt_record(bad[at], at) if at in bad else records[(kept := next(good)) : kept + 1]
            for at in range(block.start, block.end)
        ]

    def _enter_window(self, epoch: int, position: int) -> None:
        """Make the window of a position current, and drop blocks that it does not need."""
        order = self._epoch_order(epoch)
        start, size, _ = order.window_at(position)
        if self._window == (epoch, start):
            return
        # Two windows may share blocks: the last block of one is often the first of the next, and a
        # small data set is one window in every epoch.
        cached_records = {self._blocks[number]: records for number, records in self._cached_blocks.items()}
        damaged = {self._blocks[number] for number in self._damaged_blocks}
        self._blocks = order.blocks
        numbers = order.block_range(start, start + size)
        self._window = (epoch, start)
        self._cached_blocks, self._damaged_blocks = {}, set()
        self._joined = None
        self._packed_window = _PackedWindow(int(self._first_records[numbers[0]]), order.ends[numbers[-1]], numbers)
        for number in numbers:
            block = order.blocks[number]
            if block in cached_records:
                self._cache_block(number, cached_records[block])
            if block in damaged:
                self._damaged_blocks.add(number)
        if self._fetch_ahead is not None:
            # Leases are given out in order, so the next window comes next, whichever worker trains it.
            _, next_size, _ = order.window_at(min(start + size, order.records - 1))
            later = order.block_range(start, min(start + size + next_size, order.records))
            soon = [order.blocks[number] for number in later if number not in self._cached_blocks]
            self._fetch_ahead([(block.source, block.start) for block in soon])

    def _lookup_piece(self, epoch: int, position: int) -> _PositionPiece:
        """A piece that contains the position: up to some thousand positions of its window, from it on."""
        piece = self._piece
        if piece.epoch == epoch and piece.start <= position < piece.end:
            return piece
        order = self._epoch_order(epoch)
        start, size, key = order.window_at(position)
        end = min(position + _LOOKUP_POSITIONS, start + size)
        unmixed = _PERMUTED_RANGE(position - start, end - start, size, key) + start
        self._piece = _PositionPiece(epoch, position, end, unmixed)
        return self._piece

    def _epoch_order(self, epoch: int) -> EpochOrder:
        if self._epoch[0] != epoch:
            order = self.order.epoch_order(epoch)
            self._end_records = np.array(order.ends, np.int64)
            self._first_records = np.concatenate(([0], self._end_records[:-1]))
            self._epoch = (epoch, order)
        return self._epoch[1]


_JOINED_BYTES = 64 << 20
"""The most bytes of a window whose arrays are copied into one."""


def _array_bytes(records: Sequence[Any]) -> int:
    arrays: Iterable[Any] = records.columns.values() if isinstance(records, ColumnRecords) else (records,)
    return sum(each.nbytes for each in arrays)


def _single_corrupt_record(corrupt: CorruptRange, record: int) -> CorruptRange:
    damaged = corrupt.damaged
    whole = (damaged.start, damaged.stop)
    return CorruptRange(corrupt.source, record, record + 1, corrupt.chunk, corrupt.offset, corrupt.reason, whole)


def _check_record_count(block: RecordBlock, count: int) -> None:
    if count != block.end - block.start:
        raise BadInputError(
            f"the data reader returned {count} of the {block.end - block.start} records from {block.start} on",
            where=block.source,
            hint="read(source, start, end) must return the records [start, end), or report those that it skips",
        )


class WeightedReader:
    """Reads records by position in an order that merges groups of sources by weights; as ``ShuffledReader``.

    Args:
        reader: reader of the records.
        order: shuffled order of its records, with weights.
    """

    def __init__(self, reader: Reader, order: ShuffleOrder) -> None:
        self.order = order
        self._interleaving = order.interleaving
        self._groups = [ShuffledReader(reader, group) for group in order.group_orders()]

    def read(self, epoch: int, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> Sequence[Record]:
        """The records at positions ``[start, end)`` of an epoch; see ``ShuffledReader.read``."""
        firsts, afters = self._interleaving.count_before(start), self._interleaving.count_before(end)
        parts = [
            group.read(epoch, first, after, on_corrupt) if first < after else ()
            for group, first, after in zip(self._groups, firsts, afters, strict=True)
        ]
        joined = join_records(parts)
        if len(joined) != end - start:  # corrupt ones are left out: the rest stays in the order of the groups
            return joined
        # The positions in the order of their groups are where each joined record goes.
        places = np.argsort(np.array(self._interleaving.groups(start, end), np.int64), kind="stable")
        numbers = np.empty_like(places)
        numbers[places] = np.arange(len(places))
        return take_records(joined, numbers)

    def describe_positions(self, epoch: int, start: int, end: int) -> str:
        """The records at positions ``[start, end)``, as text for people."""
        return describe_ranges(self.order.record_ranges(epoch, start, end))


PositionReader: TypeAlias = ShuffledReader | WeightedReader | BucketedReader


def read_by_position(
    reader: Reader, order: ShuffleOrder, *, bucket_by: str | None = None, minibatch: int = 1
) -> PositionReader:
    """The reader of a shuffled order, with or without weights, and with buckets if the order has portions."""
    read = WeightedReader(reader, order) if order.weights else ShuffledReader(reader, order)
    if not order.portion or bucket_by is None:
        return read
    return BucketedReader(read.read, order, reader.metadata, bucket_by, minibatch)
