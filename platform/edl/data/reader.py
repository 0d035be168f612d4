"""The interface of readers: how EDL sees a data set.

A data set is a list of named sources with a record count. A record range is ``[start, end)`` of one source. The master
counts records through this interface, and workers read them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, Protocol, TypeAlias, overload

from edl.api.errors import BadInputError
from edl.core.short_list import format_short_list
from edl.data.data_files import hint_for_encoding

_MANY_RECORDS = 64
"""Number of records from which on native code copies them faster, although it wants arrays of their places."""

NOT_UTF8 = "not UTF-8"
"""Reason of a row that cannot be read because the file has another encoding."""
Record: TypeAlias = bytes | list[str] | Mapping[str, Any]
"""One record: ``bytes`` from RecordIO and TFRecord (usually a serialized ``tf.train.Example``) and of lines of text, a
list of cells from CSV, a mapping from columns to values from Parquet and other typed tables."""


@dataclass(frozen=True)
class Source:
    """A named part of a data set, usually a file. ``read`` takes the name, which must be the same in all processes."""

    name: str
    records: int


OBJECT_BYTES = 40
"""Memory of a record in addition to its bytes."""


@dataclass(frozen=True)
class BlockSizes:
    """How a source is divided into blocks.

    Args:
        records: number of records of each block, in the source's order; the sum is the source's record count.
        bytes: approximate memory of all records of the source.
    """

    records: Sequence[int]
    bytes: int

    def starts_in(self, start: int, end: int) -> list[int]:
        """The first record of each block with one of the records ``[start, end)``, but not before ``start``."""
        ends = accumulate(self.records)
        return [
            max(start, after - size)
            for after, size in zip(ends, self.records, strict=True)
            if size and after > start and after - size < end
        ]


@cache
def _native_cut() -> Callable[[bytes, array[int], int, int], list[bytes]] | None:
    """Copies all records between some bounds; None where native code is not built. The light client has no NumPy."""
    try:
        import numpy as np

        from edl.data._records import gather
    except ImportError:
        return None

    def cut(payload: bytes, bounds: array[int], gap: int, tail: int) -> list[bytes]:
        places = np.frombuffer(bounds, np.uint64).astype(np.int64)
        return gather([payload], np.zeros(len(places) - 1, np.int64), places[:-1] + gap, places[1:] - tail)

    return cut


@dataclass(frozen=True, slots=True)
class PackedRecords(Sequence[bytes]):
    """Records that lie one after another in one buffer, each between ``gap`` and ``tail`` bytes such as its length.

    Indexing copies a record. Separate objects for a million small records would take long to create and free, and
    would be scattered in memory, which is slow to read in random order.

    Args:
        payload: the buffer.
        bounds: where each record's ``gap`` begins, and at the end where the last record's ``tail`` ends.
        gap: bytes before each record that do not belong to it.
        tail: bytes after each record that do not belong to it.
    """

    payload: bytes
    bounds: array[int]
    gap: int
    tail: int = 0

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            start, end, step = index.indices(len(self))
            if step != 1:
                return [self[at] for at in range(start, end, step)]
            payload, gap, tail = self.payload, self.gap, self.tail
            if end - start >= _MANY_RECORDS and (cut := _native_cut()) is not None:
                return cut(payload, self.bounds[start : end + 1], gap, tail)
            return [payload[begin + gap : after - tail] for begin, after in pairwise(self.bounds[start : end + 1])]
        at = range(len(self))[index]
        return self.payload[self.bounds[at] + self.gap : self.bounds[at + 1] - self.tail]


@dataclass(frozen=True)
class Metadata:
    """Describes the records for a model's ``feed(dataset, mode, metadata)``.

    Args:
        format: such as ``recordio``, ``csv`` or ``parquet``, or a name that a custom reader chooses.
        column_names: the columns of a table, in the order of a row's cells; empty for records of ``bytes``.
        column_dtypes: the type of each column, as the name of a TensorFlow dtype; CSV cells are ``string``.
        class_names: of a folder of images: the class that each label stands for.
    """

    format: str
    column_names: tuple[str, ...] = ()
    column_dtypes: Mapping[str, str] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()


def describe_doubtful_header(column_names: Sequence[str]) -> str | None:
    """Tell users that the header of CSV files may be a record, because all its cells are numbers; None otherwise.

    The places of the columns (0, 1, 2 …) are a header, as pandas writes it.
    """
    if not column_names or not all(map(_is_number, column_names)) or all(name.isdecimal() for name in column_names):
        return None
    return f"the first row of the CSV files has only numbers ({format_short_list(column_names)}), and names the columns"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class CorruptRange:
    """Records ``[start, end)`` of a source that cannot be read.

    Args:
        source: the source's name (a path).
        start: index of the first unreadable record within the source.
        end: index after the last one.
        chunk: number of the chunk within the file, from 0; None in formats without chunks.
        offset: byte offset of the chunk within the file; in formats without chunks, of the record.
        reason: what is wrong, in one clause.
        whole: ``[start, end)`` of all records that are damaged together, requested or not: those of the chunk. None:
            the same as ``start`` and ``end``.
    """

    source: str
    start: int
    end: int
    chunk: int | None
    offset: int
    reason: str
    whole: tuple[int, int] | None = None

    @property
    def records(self) -> int:
        """Number of records that are lost with this range."""
        return self.end - self.start

    @property
    def damaged(self) -> range:
        """All records that are damaged together."""
        return range(*(self.whole or (self.start, self.end)))


class CorruptRecordError(BadInputError):
    """A record cannot be read, and the caller did not ask to skip it. ``corrupt`` has the details.

    Args:
        corrupt: the range that cannot be read.
        others: number of known corrupt records outside of its chunk.
    """

    def __init__(self, corrupt: CorruptRange, *, others: int = 0) -> None:
        damaged = corrupt.damaged
        which = f"record {damaged[0]}" if len(damaged) == 1 else f"records {damaged[0]} to {damaged[-1]}"
        place = "byte" if corrupt.chunk is None else f"chunk {corrupt.chunk} at byte"
        scope = ", as far as was read" if others else ""
        super().__init__(
            f"{which} cannot be read: {corrupt.reason}",
            where=f"{corrupt.source}, {place} {corrupt.offset}",
            hint=(f"{hint_for_encoding(corrupt.source)}\nelse " if corrupt.reason == NOT_UTF8 else "")
            + "restore the file, or allow data.max_corrupt_records of at least "
            f"{others + len(damaged)}{scope} to skip and count them",
        )
        self.corrupt = corrupt


OnCorrupt: TypeAlias = Callable[[CorruptRange], None]
"""Called with every unreadable range, in order. It may raise to end the read."""


class Reader(Protocol):
    """Reads the records of a data set. Threads share an instance; no file stays open between calls."""

    @property
    def metadata(self) -> Metadata:
        """The ``metadata`` argument of ``feed``."""

    def sources(self) -> Sequence[Source]:
        """Name and record count of every source, in a stable order. Does not read records.

        Raises:
            BadInputError: a source does not have the reader's format.
        """

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> Sequence[Record]:
        """The records ``[start, end)`` of one source, in order. Meant for one or a few minibatches per call.

        Without ``on_corrupt`` an unreadable record is an error. With it, each unreadable range is reported, limited to
        the requested range, and skipped: the result has the records ``range(start, end)`` without the reported ranges.

        Raises:
            CorruptRecordError: a record cannot be read and ``on_corrupt`` is None.
            BadInputError: the source is unknown, or does not contain the range.
        """


class BlockReader(Reader, Protocol):
    """A reader with random access. Having this method is the sign: records of such a reader are shuffled by default."""

    def blocks(self, source: str) -> BlockSizes:
        """The blocks of one source, the same in every process.

        A block is a run of records that ``read`` can load alone about as fast as in sequence. Workers hold whole blocks
        in memory, so a block should have some hundred kilobytes, or about ten records if they are large.
        """
