"""Reads records by position, from one file and from a data set of files."""

from __future__ import annotations

import io
import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

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
from edl.data.recordio.chunk import (
    COMPRESSORS,
    HEADER_BYTES,
    LENGTH_BYTES,
    ChunkHeader,
    ChunkParts,
    CorruptChunkError,
    DecodedChunk,
    decode_chunk,
    decode_large_chunk,
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


_EXPANDED = {COMPRESSORS["snappy"]: 3, COMPRESSORS["gzip"]: 4}
"""Typical ratio of a payload's size after and before decompression."""
_LARGE_CHUNK = 4 << 20
"""Size from which on a range reads only what it needs of a chunk: other writers make chunks of 32 MiB."""
_PART_RECORDS = 256
"""Records that are read and verified together in a large chunk."""


class ChunkMemory:
    """Memory for one large chunk at a time, which the next one uses again.

    The allocator returns so much memory to the system when it is freed, and new pages cost more than all the rest of
    reading a chunk. ``BytesIO`` lends its memory as ``bytes`` without a copy; while somebody holds them, it takes other
    memory by itself. Threads may share an instance.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory = io.BytesIO()

    def read(self, stream: BinaryIO, size: int) -> bytes:
        """The next ``size`` bytes of a stream; fewer if it ends before."""
        if not self._lock.acquire(blocking=False):
            return stream.read(size)
        try:
            memory = self._memory
            memory.truncate(size)
            if size and memory.seek(0, io.SEEK_END) < size:
                memory.seek(size - 1)
                memory.write(b"\0")
            with memory.getbuffer() as view:
                filled = 0
                while filled < size and (count := stream.readinto(view[filled:])):  # type: ignore[attr-defined]
                    filled += count
            memory.truncate(filled)
            return memory.getvalue()
        except BaseException:
            self._memory = io.BytesIO()  # the error may hold the other one, which then cannot be used
            raise
        finally:
            self._lock.release()


class RecordFile:
    """One RecordIO file. It caches the last chunk, so that small reads in order are cheap.

    A large chunk is read whole and verified when one of its records is first needed. Where its records are is kept, and
    what is needed of it later is read and verified alone, unless it is compressed.

    No file stays open between calls, and threads may share an instance.

    Args:
        path: the file.
        save_index: also save the index beside the file.
        memory: for large chunks; by default the file has its own.
    """

    def __init__(self, path: str | Path, *, save_index: bool = False, memory: ChunkMemory | None = None) -> None:
        self.path = Path(path) if isinstance(path, str) else path
        self._save_index = save_index
        self._memory = memory or ChunkMemory()
        # Number of a chunk, and its content or why it cannot be read. One tuple, replaced as a whole, because threads
        # share it.
        self._cached_chunk: tuple[int, DecodedChunk | str] = (-1, "")
        self._parts: dict[int, ChunkParts] = {}  # of large chunks that were verified, by number

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
        return BlockSizes([header.records for header in headers], stored + self.records * OBJECT_BYTES)

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
            if (parts := self._parts.get(number)) is not None and self._cached_chunk[0] != number:
                part = self._read_part(number, parts, begin - first, finish - first)
                if part is not None:
                    records += part
                    continue
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
        chunk = self._read_chunk(numbers[0], keeps_memory=True)
        return PackedRecords(chunk.payload, chunk.bounds, LENGTH_BYTES) if isinstance(chunk, DecodedChunk) else None

    def _report_corrupt(self, number: int, begin: int, finish: int, reason: str, on_corrupt: OnCorrupt | None) -> None:
        whole = (self.index.first_records[number], self.index.first_records[number + 1])
        corrupt = CorruptRange(str(self.path), begin, finish, number, self.index.offsets[number], reason, whole)
        if on_corrupt is None:
            raise CorruptRecordError(corrupt)
        on_corrupt(corrupt)

    def _read_chunk(self, number: int, *, keeps_memory: bool = False) -> DecodedChunk | str:
        """The chunk, or the reason why it cannot be read. ``keeps_memory``: the caller holds its bytes for longer."""
        last, content = self._cached_chunk
        if last != number:
            self.drop_cached_chunk()  # frees its memory for this one
            content = ""
            content = self._load_chunk(number, keeps_memory=keeps_memory)
            self._cached_chunk = (number, content)
        return content

    def _load_chunk(self, number: int, *, keeps_memory: bool) -> DecodedChunk | str:
        header = self.index.headers[number]
        memory = self._memory if header.size >= _LARGE_CHUNK and not keeps_memory else None
        stored = self._read_stored_bytes(number, 0, header.size, memory)
        self._parts.pop(number, None)
        try:
            if header.compressor != COMPRESSORS["none"] or header.size < _LARGE_CHUNK:
                return decode_chunk(header, stored)
            chunk, self._parts[number] = decode_large_chunk(header, stored, _PART_RECORDS)
        except CorruptChunkError as error:
            return str(error)
        return chunk

    def _read_part(self, number: int, parts: ChunkParts, first: int, last: int) -> list[bytes] | None:
        """Records ``[first, last)`` of a large chunk; None: its bytes changed, so it must be verified as a whole."""
        wanted = parts.parts_of_range(first, last)
        stored = self._read_stored_bytes(number, parts.offsets[wanted.start], parts.offsets[wanted.stop])
        try:
            chunk = parts.decode(wanted, stored)
        except CorruptChunkError:
            return None
        before = wanted.start * parts.step
        return chunk.slice_records(first - before, last - before)

    def _read_stored_bytes(self, number: int, begin: int, end: int, memory: ChunkMemory | None = None) -> bytes:
        """Bytes ``[begin, end)`` of a payload, in ``memory`` if it is given; fewer if the file ends before."""
        header, offset = self.index.headers[number], self.index.offsets[number]
        try:
            with self.path.open("rb") as stream:
                stream.seek(offset)
                current = ChunkHeader.parse(stream.read(HEADER_BYTES))
                # limited by the file's size: a damaged size must not be allocated
                rest = stream_version(stream)[0] - offset - HEADER_BYTES - begin
                if begin:
                    stream.seek(offset + HEADER_BYTES + begin)
                size = max(0, min(end - begin, rest))
                stored = stream.read(size) if memory is None else memory.read(stream, size)
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
        memory = ChunkMemory()
        self._files = {str(file): RecordFile(file, save_index=save_index, memory=memory) for file in files}
        self._last_read_file: RecordFile | None = None

    @classmethod
    def from_options(cls, files: Sequence[Path], options: Mapping[str, object]) -> RecordIOReader:
        """A reader with the options of ``data.reader``: ``index: memory`` (the default) or ``index: file``."""
        chosen = ReaderOptions(options, allowed_names=("index",))
        return cls(files, save_index=chosen.get_choice("index", ("memory", "file")) == "file")

    def sources(self) -> tuple[Source, ...]:
        """Name (the path) and record count of each file."""
        return tuple(Source(name, file.records) for name, file in self._files.items())

    def source_digests(self) -> SourceDigests:
        """What finds out whether each file was written again; see ``file_digests``."""
        return {name: partial(digest_file, file.path) for name, file in self._files.items()}

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
