"""Files whose records lie one after another: text and TFRecord. A record is ``bytes``.

One pass over a file notes where a block of records begins, about every 256 KiB. A read loads whole blocks and finds the
records in them, so any range can be read in any order; blocks of a range that lie side by side are loaded together
where the format allows it. The index stays in memory, or is also saved beside the file.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Protocol

from edl.api.errors import BadInputError
from edl.data.data_files import (
    FileVersion,
    changed_error,
    find_source,
    load_saved_index,
    log_unusable_index,
    read_error,
    save_index,
    stream_version,
)
from edl.data.file_digests import SourceDigests, digest_file
from edl.data.reader import (
    OBJECT_BYTES,
    BlockSizes,
    CorruptRange,
    CorruptRecordError,
    Metadata,
    OnCorrupt,
    PackedRecords,
    Source,
)
from edl.data.reader_factory import ReaderOptions
from edl.data.remote_files import is_remote

_INDEX_VERSION = 1
_BLOCK_BYTES = 1 << 18
_MOST_BLOCK_RECORDS = 1 << 16
_READ_BYTES = 1 << 22
_GZIP_MAGIC, _ZLIB_MAGICS = b"\x1f\x8b", (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


@dataclass(frozen=True)
class FoundRecords:
    """The complete records at the beginning of some bytes.

    Args:
        packed: the records.
        end: number of bytes that belong to them.
        damaged: why a record cannot be used, by its number among them.
    """

    packed: PackedRecords
    end: int
    damaged: Mapping[int, str]


class RecordFormat(Protocol):
    """How records lie in a file."""

    name: str
    blocks_at_once: int
    """How many blocks that lie side by side may be loaded as one."""

    def find_records(self, content: bytes, *, check: bool) -> FoundRecords:
        """The complete records at the beginning of ``content``.

        Args:
            content: begins with a record.
            check: also compare checksums.

        Raises:
            FramingError: there is no record at a place, so those after it cannot be found either.
        """

    def complete(self, rest: bytes) -> bytes:
        """The bytes at the end of a file as a complete record, or nothing if they are no record.

        Raises:
            FramingError: a file must not end like this.
        """


@dataclass(frozen=True)
class LoadedBlocks:
    """Blocks that lie side by side.

    Args:
        numbers: of the blocks.
        records: those of them.
    """

    numbers: range
    records: FoundRecords


class FramingError(Exception):
    """No record begins at ``offset`` of the bytes; the message says why, in one clause."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset


@dataclass(frozen=True)
class BlockIndex:
    """Where the blocks of a file are.

    Args:
        offsets: byte offset of each block, and at the end the file's size.
        first_records: number of each block's first record, and at the end the number of records.
        version: of the file.
    """

    offsets: array[int]
    first_records: array[int]
    version: FileVersion

    @property
    def records(self) -> int:
        """Number of records in the file."""
        return self.first_records[-1]

    def blocks_of_range(self, start: int, end: int) -> range:
        """Numbers of the blocks that contain records ``[start, end)``, which must lie within the file."""
        if start >= end:
            return range(0)
        return range(bisect_right(self.first_records, start) - 1, bisect_right(self.first_records, end - 1))


class BlockFile:
    """One file. No file stays open between calls, and threads may share an instance.

    Args:
        path: the file.
        record_format: how its records lie in it.
        save_index: also save the index beside the file.
    """

    def __init__(self, path: Path, record_format: RecordFormat, *, save_index: bool = False) -> None:
        self.path = path
        self._format = record_format
        self._save_index = save_index
        # Replaced as a whole, because threads share it.
        self._last_blocks: LoadedBlocks | None = None
        self._last_bounds: tuple[int, array[int]] = (-1, array("Q"))
        """Of the last block of which an offset was asked: its number, and where its records begin."""

    @cached_property
    def index(self) -> BlockIndex:
        """The index: the saved one if it is valid, otherwise made by one pass over the file.

        Raises:
            BadInputError: the file does not consist of such records.
        """
        try:
            with self.path.open("rb", buffering=0) as stream:
                version = stream_version(stream)
                saved = _load_index(self.path, self._format.name, version)
                index = saved or self._scan(stream, version)
        except OSError as error:
            raise read_error(self.path, error) from error
        if self._save_index or (saved is None and is_remote(self.path)):
            columns = {"offsets": index.offsets.tolist(), "first_records": index.first_records.tolist()}
            save_index(self.path, _index_kind(self._format.name), index.version, columns)
        return index

    def blocks(self) -> BlockSizes:
        """The blocks, as a reader returns them."""
        index = self.index
        sizes = [end - start for start, end in pairwise(index.first_records)]
        return BlockSizes(sizes, index.version[0] + index.records * OBJECT_BYTES)

    def drop_cached_blocks(self) -> None:
        """Free the memory of the cached blocks."""
        self._last_blocks = None

    def read(self, start: int, end: int, on_corrupt: OnCorrupt | None) -> list[bytes]:
        """Records ``[start, end)``; see ``Reader.read``."""
        records: list[bytes] = []
        numbers = self.index.blocks_of_range(start, end)
        while numbers:
            loaded = self._read_blocks(numbers)
            block_records, first = loaded.records, self.index.first_records[loaded.numbers.start]
            begin, finish = max(start - first, 0), min(end - first, len(block_records.packed))
            for at in sorted(number for number in block_records.damaged if begin <= number < finish):
                records += block_records.packed[begin:at]
                self._report(first + at, block_records.damaged[at], on_corrupt)
                begin = at + 1
            records += block_records.packed[begin:finish]
            numbers = range(loaded.numbers.stop, numbers.stop)
        return records

    def read_packed(self, start: int, end: int) -> PackedRecords | None:
        """Records ``[start, end)`` without copying them; None: they are not one whole block, or one is damaged."""
        numbers = self.index.blocks_of_range(start, end)
        if len(numbers) != 1:
            return None
        number = numbers[0]
        if (start, end) != (self.index.first_records[number], self.index.first_records[number + 1]):
            return None
        loaded = self._last_blocks
        if loaded is None or loaded.numbers != numbers:
            loaded = self._last_blocks = self._load_blocks(numbers)
        return None if loaded.records.damaged else loaded.records.packed

    def record_offset(self, record: int) -> int:
        """Byte offset of a record, which must lie within the file; reads its block unless it was the last one asked."""
        (number,) = self.index.blocks_of_range(record, record + 1)
        known, bounds = self._last_bounds
        if known != number:
            # Not those of records that were read: TextFormat changes the ends of lines.
            bounds = self._find_in_blocks(range(number, number + 1), check=False).packed.bounds
            self._last_bounds = number, bounds
        return self.index.offsets[number] + bounds[record - self.index.first_records[number]]

    def _report(self, record: int, reason: str, on_corrupt: OnCorrupt | None) -> None:
        corrupt = CorruptRange(str(self.path), record, record + 1, None, self.record_offset(record), reason)
        if on_corrupt is None:
            raise CorruptRecordError(corrupt)
        on_corrupt(corrupt)

    def _read_blocks(self, numbers: range) -> LoadedBlocks:
        """Blocks among which is the first of ``numbers``; the next to read are those after them."""
        loaded = self._last_blocks
        if loaded is None or numbers.start not in loaded.numbers:
            loaded = self._load_blocks(numbers[: self._format.blocks_at_once])
            self._last_blocks = loaded
        return loaded

    def _load_blocks(self, numbers: range) -> LoadedBlocks:
        return LoadedBlocks(numbers, self._find_in_blocks(numbers, check=True))

    def _find_in_blocks(self, numbers: range, *, check: bool) -> FoundRecords:
        index = self.index
        start, end = index.offsets[numbers.start], index.offsets[numbers.stop]
        try:
            with self.path.open("rb", buffering=0) as stream:
                if stream_version(stream) != index.version:
                    raise changed_error(self.path)
                stream.seek(start)
                content = _read_exactly(stream, end - start)
            block_records = self._find_all(content, is_last=end == index.version[0], check=check)
        except OSError as error:
            raise read_error(self.path, error) from error
        except FramingError as error:
            raise self._framing_error(start + error.offset, str(error)) from error
        if len(block_records.packed) != index.first_records[numbers.stop] - index.first_records[numbers.start]:
            raise changed_error(self.path)
        return block_records

    def _find_all(self, content: bytes, *, is_last: bool, check: bool) -> FoundRecords:
        """The records of bytes that end with one; the last one of a file may lack its end."""
        records = self._format.find_records(content, check=check)
        rest = content[records.end :]
        if not rest or not is_last:
            return records
        try:
            completed = self._format.complete(rest)
        except FramingError as error:
            raise FramingError(records.end + error.offset, str(error)) from None
        whole = self._format.find_records(content[: records.end] + completed, check=check)
        return FoundRecords(whole.packed, len(content), whole.damaged)

    def _scan(self, stream: BinaryIO, version: FileVersion) -> BlockIndex:
        offsets, firsts = array("Q"), array("Q")
        records = 0
        for piece_start, piece in self._scan_pieces(stream, version[0]):
            bounds, count = piece.packed.bounds, len(piece.packed)
            at = 0  # the record of the piece that begins the next block
            while True:
                if offsets:
                    far = bisect_left(bounds, offsets[-1] + _BLOCK_BYTES - piece_start)
                    at = min(far, firsts[-1] + _MOST_BLOCK_RECORDS - records)
                if at >= count:
                    break
                offsets.append(piece_start + bounds[at])
                firsts.append(records + at)
            records += count
        offsets.append(version[0])
        firsts.append(records)
        return BlockIndex(offsets, firsts, version)

    def _scan_pieces(self, stream: BinaryIO, size: int) -> Iterator[tuple[int, FoundRecords]]:
        """The records of the file in pieces, each with its byte offset."""
        offset, content = 0, b""
        wanted = _READ_BYTES
        while offset + len(content) < size:
            content += _read_exactly(stream, min(wanted, size - offset - len(content)))
            is_last = offset + len(content) == size
            try:
                piece = self._find_all(content, is_last=is_last, check=False)
            except FramingError as error:
                raise self._framing_error(offset + error.offset, str(error)) from error
            # A record that is larger than what was read: twice as much, so that few bytes are looked at again.
            wanted = _READ_BYTES if piece.end else 2 * len(content)
            yield offset, piece
            offset, content = offset + piece.end, content[piece.end :]

    def _framing_error(self, offset: int, reason: str) -> BadInputError:
        hint = f"the file is not {self._format.name}, or was truncated or overwritten there; write it again"
        return BadInputError(
            f"no record at byte {offset}: {reason}",
            where=str(self.path),
            hint=(self._compression_hint() if offset == 0 else None) or hint,
        )

    def _compression_hint(self) -> str | None:
        """What to do with a compressed file whose name does not tell; None: it does not begin like one."""
        with suppress(OSError), self.path.open("rb", buffering=0) as stream:
            begin = stream.read(2)
            if begin == _GZIP_MAGIC:
                return (
                    f"the file is compressed with gzip: let its name end with {self._format.name}.gz, and name a "
                    "folder with data.reader.cache, into which EDL unpacks it"
                )
            if begin in _ZLIB_MAGICS:
                return "the file may be compressed with ZLIB, which is not read: write it with GZIP, or as it is"
        return None


def _read_exactly(stream: BinaryIO, count: int) -> bytes:
    parts = []
    while count:
        part = stream.read(count)
        if not part:
            raise FramingError(0, "the file became shorter while it was read")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _load_index(file: Path, format_name: str, version: FileVersion) -> BlockIndex | None:
    saved = load_saved_index(file, _index_kind(format_name), version)
    if saved is None:
        return None
    try:
        index = BlockIndex(array("Q", saved["offsets"]), array("Q", saved["first_records"]), version)
    except (KeyError, TypeError, OverflowError) as error:
        log_unusable_index(file, error)
        return None
    rising = all(a <= b for column in (index.offsets, index.first_records) for a, b in pairwise(column))
    fits = len(index.offsets) == len(index.first_records) >= 1 and index.offsets[-1] == version[0]
    return index if rising and fits else None


def _index_kind(format_name: str) -> Mapping[str, object]:
    return {"version": _INDEX_VERSION, "format": format_name}


class BlockFileReader:
    """A data set of files of one format. What was loaded last is cached, of one file and not of each.

    Args:
        files: the files.
        record_format: how records lie in them.
        save_index: also save the index of each file beside it.
    """

    def __init__(self, files: Sequence[Path], record_format: RecordFormat, *, save_index: bool = False) -> None:
        self.metadata = Metadata(record_format.name)
        self._files = {str(file): BlockFile(file, record_format, save_index=save_index) for file in files}
        self._last_read_file: BlockFile | None = None

    @classmethod
    def from_options(
        cls, files: Sequence[Path], options: Mapping[str, object], record_format: RecordFormat
    ) -> BlockFileReader:
        """A reader with the options of ``data.reader``: ``index: memory`` (the default) or ``index: file``."""
        chosen = ReaderOptions(options, allowed_names=("index",))
        save_index = chosen.get_choice("index", ("memory", "file")) == "file"
        return cls(files, record_format, save_index=save_index)

    def sources(self) -> tuple[Source, ...]:
        """Name (the path) and record count of each file."""
        return tuple(Source(name, file.index.records) for name, file in self._files.items())

    def source_digests(self) -> SourceDigests:
        """What finds out whether each file was written again; see ``file_digests``."""
        return {name: partial(digest_file, file.path) for name, file in self._files.items()}

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> list[bytes]:
        """Records ``[start, end)`` of one file; see ``Reader.read``."""
        return self._select_file(source, start, end).read(start, end, on_corrupt)

    def packed_records(self, source: str, start: int, end: int) -> PackedRecords | None:
        """Records ``[start, end)`` of one file without copying them; None: use ``read``, which also reports errors."""
        return self._select_file(source, start, end).read_packed(start, end)

    def blocks(self, source: str) -> BlockSizes:
        """Blocks of about 256 KiB of one file."""
        return find_source(self._files, source).blocks()

    def record_offset(self, source: str, record: int) -> int:
        """Byte offset of a record."""
        return find_source(self._files, source).record_offset(record)

    def _select_file(self, source: str, start: int, end: int) -> BlockFile:
        file = find_source(self._files, source)
        newest, self._last_read_file = self._last_read_file, file
        if newest is not None and newest is not file:
            newest.drop_cached_blocks()
        if not 0 <= start <= end <= file.index.records:
            raise BadInputError(
                f"records {start} to {end} were requested, the file has {file.index.records}", where=source
            )
        return file
