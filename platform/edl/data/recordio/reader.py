"""Reads records by position, from one file and from a data set of files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

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
from edl.data.reader import BlockSizes, CorruptRange, CorruptRecordError, Metadata, OnCorrupt, PackedRecords, Source
from edl.data.reader_factory import ReaderOptions
from edl.data.recordio.chunk import (
    COMPRESSORS,
    HEADER_BYTES,
    LENGTH_BYTES,
    ChunkHeader,
    CorruptChunkError,
    DecodedChunk,
    decode_chunk,
)
from edl.data.remote_files import is_remote

# --------------------------------------------------------------------------------------------------
# The index of a file: where its chunks are. Random access needs it.
#
# It is made by reading the headers and seeking over the payloads, without checking checksums, and is kept in memory.
# With ``index: file`` it is also saved beside the file (``<file>.idx``), which saves time if many processes open large
# files on a network volume. A saved index is valid for one size and modification time of its file. If it does not
# match, cannot be parsed or cannot be written, the headers are read instead; that is never an error.


_INDEX_KIND = {"version": 1}
# The most bytes that one stored byte can become: a copy of snappy's takes 3 bytes for 64, deflate reaches 1032 to 1.
_EXPANSION = {COMPRESSORS["none"]: 1, COMPRESSORS["snappy"]: 64}
_MOST_EXPANSION = 1100


class NotRecordIOError(BadInputError, RuntimeError):
    """The index cannot be read: the file is not RecordIO, or has other bytes between or after its chunks.

    It is also a RuntimeError, as in pyrecordio.
    """


@dataclass(frozen=True)
class ChunkIndex:
    """The chunks of one file.

    Args:
        headers: header of each chunk, in the order of the file.
        offsets: byte offset of each chunk's header.
        first_records: index of each chunk's first record, and at the end the file's record count.
    """

    headers: tuple[ChunkHeader, ...]
    offsets: tuple[int, ...]
    first_records: tuple[int, ...]

    @classmethod
    def from_headers(cls, headers: Sequence[ChunkHeader]) -> ChunkIndex:
        """The index of a file that consists of chunks with these headers."""
        offsets = accumulate((HEADER_BYTES + header.size for header in headers), initial=0)
        firsts = accumulate((header.records for header in headers), initial=0)
        return cls(tuple(headers), tuple(offsets)[:-1], tuple(firsts))

    @property
    def record_count(self) -> int:
        """Number of records in the file."""
        return self.first_records[-1]

    def chunks_of_range(self, start: int, end: int) -> range:
        """Numbers of the chunks that contain records ``[start, end)``, which must lie within the file."""
        if start >= end:
            return range(0)
        return range(bisect_right(self.first_records, start) - 1, bisect_right(self.first_records, end - 1))


def load_index(file: Path, *, save: bool = False) -> ChunkIndex:
    """The index of ``file``: the saved one if it is valid, otherwise a new one, which ``save`` saves beside the file.

    Raises:
        NotRecordIOError: the file is not a sequence of chunks.
        EdlError: the file cannot be read.
    """
    try:
        with file.open("rb", buffering=0) as stream:
            version = stream_version(stream)
            saved = _load_index(file, version)
            if saved is not None:
                return saved
            index = ChunkIndex.from_headers(_walk_headers(stream, version[0], file))
    except OSError as error:
        raise read_error(file, error) from error
    if save or is_remote(file):
        chunks = [[header.checksum, header.compressor, header.size, header.records] for header in index.headers]
        save_index(file, _INDEX_KIND, version, {"chunks": chunks})
    return index


def _walk_headers(stream: Any, size: int, file: Path) -> list[ChunkHeader]:
    headers: list[ChunkHeader] = []
    offset = 0
    while offset < size:
        stream.seek(offset)
        header = ChunkHeader.parse(stream.read(HEADER_BYTES))
        if header is None or not _is_plausible(header):
            raise NotRecordIOError(
                f"failed to read the index: no chunk header at byte {offset} of {size}",
                where=str(file),
                hint="the file is not RecordIO, or was truncated or overwritten there; write it again",
            )
        headers.append(header)
        offset += HEADER_BYTES + header.size
    return headers


def _is_plausible(header: ChunkHeader) -> bool:
    """Whether the payload can contain so many records, each of which has at least a length."""
    # a damaged count must not make the master plan for records that cannot exist
    return header.records * LENGTH_BYTES <= header.size * _EXPANSION.get(header.compressor, _MOST_EXPANSION)


def _load_index(file: Path, version: FileVersion) -> ChunkIndex | None:
    saved = load_saved_index(file, _INDEX_KIND, version)
    if saved is None:
        return None
    try:
        return ChunkIndex.from_headers([ChunkHeader(*map(_parse_count, fields)) for fields in saved["chunks"]])
    except (KeyError, TypeError) as error:
        log_unusable_index(file, error)
        return None


def _parse_count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return value


_OBJECT_BYTES = 40
"""Memory of a record in addition to its bytes."""
_EXPANDED = {COMPRESSORS["snappy"]: 3, COMPRESSORS["gzip"]: 4}
"""Typical ratio of a payload's size after and before decompression."""


class RecordFile:
    """One RecordIO file. It caches the last chunk, so that small reads in order are cheap.

    No file stays open between calls, and threads may share an instance.

    Args:
        path: the file.
        save_index: also save the index beside the file.
    """

    def __init__(self, path: str | Path, *, save_index: bool = False) -> None:
        self.path = Path(path) if isinstance(path, str) else path
        self._save_index = save_index
        # Number of a chunk, and its content or why it cannot be read. One tuple, replaced as a whole, because threads
        # share it.
        self._cached_chunk: tuple[int, DecodedChunk | str] = (-1, "")

    @cached_property
    def index(self) -> ChunkIndex:
        """The index, made when it is first needed."""
        return load_index(self.path, save=self._save_index)

    @property
    def records(self) -> int:
        """Number of records in the file, according to its headers."""
        return self.index.record_count

    def blocks(self) -> BlockSizes:
        """The chunks are the blocks."""
        headers = self.index.headers
        stored = sum(_EXPANDED.get(header.compressor, 1) * header.size for header in headers)
        return BlockSizes([header.records for header in headers], stored + self.records * _OBJECT_BYTES)

    def drop_cached_chunk(self) -> None:
        """Free the memory of the cached chunk."""
        self._cached_chunk = (-1, "")

    def read(self, start: int = 0, end: int | None = None, on_corrupt: OnCorrupt | None = None) -> list[bytes]:
        """Records ``[start, end)``, limited to the file as pyrecordio does it; ``on_corrupt`` as in ``Reader.read``.

        Raises:
            CorruptRecordError: a needed chunk cannot be read and ``on_corrupt`` is None.
        """
        start, end = max(start, 0), self.records if end is None else min(end, self.records)
        records: list[bytes] = []
        for number in self.index.chunks_of_range(start, end):
            first = self.index.first_records[number]
            begin, finish = max(start, first), min(end, self.index.first_records[number + 1])
            chunk = self._read_chunk(number)
            if isinstance(chunk, DecodedChunk):
                records += chunk.slice_records(begin - first, finish - first)
            else:
                self._report_corrupt(number, begin, finish, chunk, on_corrupt)
        return records

    def read_packed(self, start: int, end: int) -> PackedRecords | None:
        """Records ``[start, end)`` without copying them; None: they are not one whole chunk, or it cannot be read."""
        numbers = self.index.chunks_of_range(start, end)
        if len(numbers) != 1 or (start, end) != (
            self.index.first_records[numbers[0]],
            self.index.first_records[numbers[0] + 1],
        ):
            return None
        chunk = self._read_chunk(numbers[0])
        return PackedRecords(chunk.payload, chunk.bounds, LENGTH_BYTES) if isinstance(chunk, DecodedChunk) else None

    def _report_corrupt(self, number: int, begin: int, finish: int, reason: str, on_corrupt: OnCorrupt | None) -> None:
        whole = (self.index.first_records[number], self.index.first_records[number + 1])
        corrupt = CorruptRange(str(self.path), begin, finish, number, self.index.offsets[number], reason, whole)
        if on_corrupt is None:
            raise CorruptRecordError(corrupt)
        on_corrupt(corrupt)

    def _read_chunk(self, number: int) -> DecodedChunk | str:
        last, content = self._cached_chunk
        if last != number:
            content = self._load_chunk(number)
            self._cached_chunk = (number, content)
        return content

    def _load_chunk(self, number: int) -> DecodedChunk | str:
        """The chunk, or the reason why it cannot be read."""
        header = self.index.headers[number]
        stored = self._read_stored_bytes(header, self.index.offsets[number])
        try:
            return decode_chunk(header, stored)
        except CorruptChunkError as error:
            return str(error)

    def _read_stored_bytes(self, header: ChunkHeader, offset: int) -> bytes:
        try:
            with self.path.open("rb") as stream:
                stream.seek(offset)
                current = ChunkHeader.parse(stream.read(HEADER_BYTES))
                # limited by the file's size: a damaged size must not be allocated
                rest = stream_version(stream)[0] - offset - HEADER_BYTES
                stored = stream.read(max(0, min(header.size, rest)))
        except OSError as error:
            raise read_error(self.path, error) from error
        # the index belongs to an earlier file of this name
        if current != header:
            raise changed_error(self.path, f"another chunk at byte {offset}")
        return stored


class RecordIOReader:
    """A data set of RecordIO files."""

    metadata = Metadata(format="recordio")

    def __init__(self, files: Sequence[Path], *, save_index: bool = False) -> None:
        self._files = {str(file): RecordFile(file, save_index=save_index) for file in files}
        self._last_read_file: RecordFile | None = None

    @classmethod
    def from_options(cls, files: Sequence[Path], options: Mapping[str, object]) -> RecordIOReader:
        """A reader with the options of ``data.reader``: ``index: memory`` (the default) or ``index: file``."""
        chosen = ReaderOptions(options, allowed_names=("index",))
        return cls(files, save_index=chosen.get_choice("index", ("memory", "file")) == "file")

    def sources(self) -> tuple[Source, ...]:
        """Name (the path) and record count of each file."""
        return tuple(Source(name, file.records) for name, file in self._files.items())

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> list[bytes]:
        """Records ``[start, end)`` of one file; see ``Reader.read``. One chunk in total is cached, not one per file."""
        return self._select_file(source, start, end).read(start, end, on_corrupt)

    def packed_records(self, source: str, start: int, end: int) -> PackedRecords | None:
        """Records ``[start, end)`` of one file without copying them; None: use ``read``, which also reports errors."""
        return self._select_file(source, start, end).read_packed(start, end)

    def blocks(self, source: str) -> BlockSizes:
        """The chunks of one file are its blocks."""
        return find_source(self._files, source).blocks()

    def _select_file(self, source: str, start: int, end: int) -> RecordFile:
        file = find_source(self._files, source)
        newest, self._last_read_file = self._last_read_file, file
        if newest is not None and newest is not file:
            newest.drop_cached_chunk()
        if not 0 <= start <= end <= file.records:
            raise BadInputError(f"records {start} to {end} were requested, the file has {file.records}", where=source)
        return file
