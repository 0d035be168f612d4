"""Puts records of similar length into a minibatch: a permutation of the positions of each lease.

The records of a *portion*, the positions of one lease, are sorted by length and cut into minibatches, whose order is
random. So a position still is one record, for every worker and whatever part of a lease it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edl.api.errors import BadInputError
from edl.core.partition import splitmix64
from edl.core.permutation import permute_index
from edl.core.record_ranges import describe_ranges
from edl.core.shuffle import ShuffleOrder
from edl.data.reader import CorruptRange, Metadata, OnCorrupt, Record
from edl.data.record_columns import ColumnRecords, RaggedColumn, join_records, take_records

_WHERE = "train.batches.bucket_by"
WHOLE_RECORD = "record"
"""Value of ``bucket_by`` for records of bytes."""


@dataclass(frozen=True)
class _Portion:
    """The records of a portion in their new order; corrupt ones come last."""

    epoch: int
    start: int
    records: Sequence[Any]
    corrupt: Sequence[CorruptRange]
    order: npt.NDArray[np.int64]


class BucketedReader:
    """Reads records by position, sorted by length within portions; as ``ShuffledReader``.

    Args:
        read: reads records by position in the shuffled order.
        order: that order, with portions.
        metadata: of the records.
        bucket_by: column whose lengths decide, or ``record``.
        minibatch: records of a minibatch.
    """

    def __init__(
        self,
        read: Callable[[int, int, int, OnCorrupt | None], Sequence[Record]],
        order: ShuffleOrder,
        metadata: Metadata,
        bucket_by: str,
        minibatch: int,
    ) -> None:
        self.order = order
        self._read = read
        self._metadata = metadata
        self._bucket_by = bucket_by
        self._minibatch = minibatch
        self._portion = _Portion(-1, 0, (), (), np.empty(0, np.int64))

    def read(self, epoch: int, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> Sequence[Record]:
        """The records at positions ``[start, end)`` of an epoch; see ``ShuffledReader.read``."""
        parts: list[Sequence[Record]] = []
        while start < end:
            portion = self._load(epoch, start - start % self.order.portion, on_corrupt)
            until = min(end, portion.start + self.order.portion)
            first, after, good = start - portion.start, until - portion.start, len(portion.records)
            parts.append(portion.records[min(first, good) : min(after, good)])
            for corrupt in portion.corrupt[max(0, first - good) : max(0, after - good)]:
                assert on_corrupt is not None
                on_corrupt(corrupt)
            start = until
        return join_records(parts)

    def describe_positions(self, epoch: int, start: int, end: int) -> str:
        """The records at positions ``[start, end)``, as text: exact for the portion that was read last."""
        portion = self._portion
        first, after = start - portion.start, end - portion.start
        if portion.epoch != epoch or portion.corrupt or not 0 <= first < after <= len(portion.order):
            return describe_ranges(self.order.record_ranges(epoch, start, end))
        ranges_by_source: dict[str, list[list[int]]] = {}
        exact = ShuffleOrder(
            self.order.sources, self.order.runs, self.order.window, self.order.seed, self.order.weights
        )
        for place in portion.order[first:after].tolist():
            position = portion.start + place
            for source, ranges in exact.record_ranges(epoch, position, position + 1).items():
                ranges_by_source.setdefault(source, []).extend(ranges)
        return describe_ranges({source: sorted(ranges) for source, ranges in ranges_by_source.items()})

    def _load(self, epoch: int, start: int, on_corrupt: OnCorrupt | None) -> _Portion:
        known = self._portion
        if (known.epoch, known.start) == (epoch, start):
            return known
        end = min(start + self.order.portion, self.order.records)
        corrupt: list[CorruptRange] = []
        records = self._read(epoch, start, end, None if on_corrupt is None else corrupt.append)
        lengths = record_lengths(records, self._bucket_by, self._metadata)
        key = splitmix64(splitmix64(self.order.seed & _MASK) ^ splitmix64((epoch << 40) + start))
        order = bucket_order(lengths, self._minibatch, key)
        self._portion = _Portion(epoch, start, take_records(records, order), corrupt, order)
        return self._portion


_MASK = (1 << 64) - 1


def bucket_order(lengths: npt.NDArray[np.int64], minibatch: int, key: int) -> npt.NDArray[np.int64]:
    """Numbers of records, sorted by length and cut into minibatches, which come in random order but for a last part."""
    by_length = np.argsort(lengths, kind="stable").astype(np.int64)
    full = len(by_length) // minibatch
    turns = [permute_index(at, full, key) for at in range(full)]
    whole = by_length[: full * minibatch].reshape(full, minibatch)[turns].reshape(-1)
    return np.concatenate([whole, by_length[full * minibatch :]])


def record_lengths(records: Sequence[Any], bucket_by: str, metadata: Metadata) -> npt.NDArray[np.int64]:
    """Length of each record: items of a list, or bytes of a text.

    Raises:
        BadInputError: there is no such column, or its values have no length.
    """
    if not len(records):
        return np.empty(0, np.int64)
    columns = metadata.column_names
    if isinstance(records, ColumnRecords) and bucket_by in records.columns:
        column = records.columns[bucket_by]
        if isinstance(column, RaggedColumn):
            return np.diff(column.bounds)
        if column.dtype == object:
            return np.array([len(value) for value in column], np.int64)
        raise BadInputError(
            f"column '{bucket_by}' has {column.dtype.name} of one length", where=_WHERE, hint="name a list or a text"
        )
    if isinstance(records[0], bytes) and bucket_by == WHOLE_RECORD:
        return np.array([len(record) for record in records], np.int64)
    if bucket_by not in columns or isinstance(records, np.ndarray):
        known = f"the columns are {', '.join(columns)}" if columns else f"records of bytes have only: {WHOLE_RECORD}"
        raise BadInputError(f"found '{bucket_by}', which is no column", where=_WHERE, hint=known)
    place = columns.index(bucket_by)
    return np.array([len(row[place].encode()) for row in records], np.int64)
