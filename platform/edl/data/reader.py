"""The reader port: what a data set is to the rest of EDL. ``opening`` opens one.

A data set is a list of named sources with a record count; a record range is ``[start, end)`` of one source.
The master counts with it, workers read with it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, overload

from edl.api.errors import BadInputError
from edl.data.data_files import hint_for_encoding

NOT_UTF8 = "not UTF-8"
"""Why a row of a table cannot be read that is in another encoding."""
Record: TypeAlias = bytes | list[str]
"""One record: ``bytes`` from RecordIO (usually a serialized ``tf.train.Example``), a list of cells from CSV."""


@dataclass(frozen=True)
class Source:
    """A named part of a data set, usually a file. ``name`` is what ``read`` takes; it is stable between processes."""

    name: str
    records: int


@dataclass(frozen=True)
class BlockSizes:
    """How a source is divided into blocks.

    Args:
        records: of each block, in the source's order; they add up to the source's records.
        bytes: about what its records take in memory, all together.
    """

    records: Sequence[int]
    bytes: int


@dataclass(frozen=True, slots=True)
class PackedRecords(Sequence[bytes]):
    """Records that lie one behind the other in memory, each after ``gap`` bytes that are not its own.

    Taking a record copies it out. A million small records of their own would be a million objects to make and free, and
    their memory is far apart when they are taken in random order.

    Args:
        payload: all of them.
        bounds: where each ends; the first bound is 0.
        gap: bytes before each record, such as its length.
    """

    payload: bytes
    bounds: array[int]
    gap: int

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        return self.payload[self.bounds[at] + self.gap : self.bounds[at + 1]]


@dataclass(frozen=True)
class Metadata:
    """What a model's ``feed(dataset, mode, metadata)`` is told about the records.

    Args:
        format: ``recordio``, ``csv``, or the name that a custom reader gives itself.
        column_names: the columns of a table in the order of a row's cells; empty for RecordIO.
        column_dtypes: the type of each column, as the name of a TensorFlow dtype; CSV cells are ``string``.
    """

    format: str
    column_names: tuple[str, ...] = ()
    column_dtypes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CorruptRange:
    """Records ``[start, end)`` of a source that cannot be read.

    Args:
        source: the source's name (a path).
        start: index of the first unreadable record within the source.
        end: index after the last one.
        chunk: number of the chunk within the file, from 0; None in formats without chunks.
        offset: byte offset of the chunk, or of the record in formats without chunks, within the file.
        reason: what is wrong, in one clause.
        whole: ``[start, end)`` of all records that are damaged with these, whether or not they were asked for: those
            of the chunk. None means that there are no others.
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
        """How many records are lost with this range."""
        return self.end - self.start

    @property
    def damaged(self) -> range:
        """All records that cannot be read for this reason."""
        return range(*(self.whole or (self.start, self.end)))


class CorruptRecordError(BadInputError):
    """A record cannot be read and the caller did not ask to skip. ``corrupt`` says which.

    Args:
        corrupt: the range that cannot be read.
        others: corrupt records outside of its chunk that are known of.
    """

    def __init__(self, corrupt: CorruptRange, *, others: int = 0) -> None:
        damaged = corrupt.damaged
        which = f"record {damaged[0]}" if len(damaged) == 1 else f"records {damaged[0]} to {damaged[-1]}"
        place = "byte" if corrupt.chunk is None else f"chunk {corrupt.chunk} at byte"
        found = ", as far as was read" if others else ""
        super().__init__(
            f"{which} cannot be read: {corrupt.reason}",
            where=f"{corrupt.source}, {place} {corrupt.offset}",
            hint=(f"{hint_for_encoding(corrupt.source)}\nelse " if corrupt.reason == NOT_UTF8 else "")
            + "restore the file, or allow data.max_corrupt_records of at least "
            f"{others + len(damaged)}{found} to skip and count them",
        )
        self.corrupt = corrupt


OnCorrupt: TypeAlias = Callable[[CorruptRange], None]
"""Is told of every unreadable range, in order. It may raise to stop the read."""


class Reader(Protocol):
    """Reads the records of a data set. One instance serves several threads; nothing stays open between calls."""

    @property
    def metadata(self) -> Metadata:
        """What ``feed`` is told."""

    def sources(self) -> Sequence[Source]:
        """Name and record count of every source, in a stable order. Reads no record.

        Raises:
            BadInputError: a source is not in the format.
        """

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> Sequence[Record]:
        """The records ``[start, end)`` of one source, in order; meant for a minibatch or a few per call.

        Without ``on_corrupt`` an unreadable record is an error. With it, each unreadable range, cut to the range
        that was asked for, is reported and left out: the indices of what is returned are
        ``range(start, end)`` without the reported ranges.

        Raises:
            CorruptRecordError: a record cannot be read and ``on_corrupt`` is None.
            BadInputError: unknown source, or a range outside of it.
        """


class BlockReader(Reader, Protocol):
    """A reader with random access, which says so by this method: its records are shuffled by default."""

    def blocks(self, source: str) -> BlockSizes:
        """The blocks of one source; every process finds the same ones.

        A block is what ``read`` gets at about as fast alone as in its turn, and is in memory whole: some hundred
        kilobytes, or some ten records where these are large.
        """
