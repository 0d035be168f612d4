"""Reading records by position, out of one file and out of a data set of files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from edl.api.errors import BadInputError
from edl.data.data_files import read_error
from edl.data.reader import BlockSizes, CorruptRange, CorruptRecordError, Metadata, OnCorrupt, PackedRecords, Source
from edl.data.reader_options import ReaderOptions
from edl.data.recordio.chunk import (
    COMPRESSORS,
    HEADER_BYTES,
    LENGTH_BYTES,
    ChunkHeader,
    CorruptChunkError,
    DecodedChunk,
    decode_chunk,
)
from edl.data.recordio.index import ChunkIndex, load_index

_OBJECT_BYTES = 40
"""What a record takes in memory besides its bytes."""
_EXPANDED = {COMPRESSORS["snappy"]: 3, COMPRESSORS["gzip"]: 4}
"""How much larger a payload is once it is decompressed: usual for records that are worth it."""


class RecordFile:
    """One RecordIO file. Keeps the last chunk that was read, so that small reads in order are cheap.

    Nothing stays open between calls, and threads may share an instance.

    Args:
        path: the file.
        save_index: keep the index beside the file too.
    """

    def __init__(self, path: str | Path, *, save_index: bool = False) -> None:
        self.path = Path(path)
        self._save_index = save_index
        # (number, its content or why it cannot be read): replaced as a whole, which is what makes threads safe.
        self._cached_chunk: tuple[int, DecodedChunk | str] = (-1, "")

    @cached_property
    def index(self) -> ChunkIndex:
        """Where the chunks are; walked once."""
        return load_index(self.path, save=self._save_index)

    @property
    def records(self) -> int:
        """Records in the file, as the headers say."""
        return self.index.records

    def blocks(self) -> BlockSizes:
        """The chunks."""
        headers = self.index.headers
        stored = sum(_EXPANDED.get(header.compressor, 1) * header.size for header in headers)
        return BlockSizes([header.records for header in headers], stored + self.records * _OBJECT_BYTES)

    def drop_cached_chunk(self) -> None:
        """Keep no chunk in memory."""
        self._cached_chunk = (-1, "")

    def read(self, start: int = 0, end: int | None = None, on_corrupt: OnCorrupt | None = None) -> list[bytes]:
        """Records ``[start, end)``, clipped to the file as the original's Scanner does; ``on_corrupt`` as in the port.

        Raises:
            CorruptRecordError: a chunk of the range cannot be read and ``on_corrupt`` is None.
        """
        start, end = max(start, 0), self.records if end is None else min(end, self.records)
        found: list[bytes] = []
        for number in self.index.chunks(start, end):
            first = self.index.first_records[number]
            begin, finish = max(start, first), min(end, self.index.first_records[number + 1])
            chunk = self._read_chunk(number)
            if isinstance(chunk, DecodedChunk):
                found += chunk.records(begin - first, finish - first)
            else:
                self._report(number, begin, finish, chunk, on_corrupt)
        return found

    def read_packed(self, start: int, end: int) -> PackedRecords | None:
        """Records ``[start, end)`` where they are; None: they are not one whole chunk, or it cannot be read."""
        numbers = self.index.chunks(start, end)
        if len(numbers) != 1 or (start, end) != (
            self.index.first_records[numbers[0]],
            self.index.first_records[numbers[0] + 1],
        ):
            return None
        chunk = self._read_chunk(numbers[0])
        return PackedRecords(chunk.payload, chunk.bounds, LENGTH_BYTES) if isinstance(chunk, DecodedChunk) else None

    def _report(self, number: int, begin: int, finish: int, reason: str, on_corrupt: OnCorrupt | None) -> None:
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
                # A damaged size must not be allocated.
                rest = os.fstat(stream.fileno()).st_size - offset - HEADER_BYTES
                stored = stream.read(max(0, min(header.size, rest)))
        except OSError as error:
            raise read_error(self.path, error) from error
        if current != header:
            raise BadInputError(
                f"the file changed while it was in use: another chunk at byte {offset}",
                where=str(self.path),
                hint="write new files beside the old ones instead of over them",
            )
        return stored


class RecordIOReader:
    """A data set of RecordIO files: the reader port."""

    metadata = Metadata(format="recordio")

    def __init__(self, files: Sequence[Path], *, save_index: bool = False) -> None:
        self._files = {str(file): RecordFile(file, save_index=save_index) for file in files}
        self._last_read_file: RecordFile | None = None

    @classmethod
    def from_options(cls, files: Sequence[Path], options: Mapping[str, object]) -> RecordIOReader:
        """With the options of ``data.reader``: ``index: memory`` (the default) or ``index: file``."""
        chosen = ReaderOptions(options, allowed=("index",))
        return cls(files, save_index=chosen.get_choice("index", ("memory", "file")) == "file")

    def sources(self) -> tuple[Source, ...]:
        """Name (the path) and record count of each file."""
        return tuple(Source(name, file.records) for name, file in self._files.items())

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> list[bytes]:
        """Records ``[start, end)`` of one file; see the port. A chunk of one file stays in memory, not one of each."""
        return self._select_file(source, start, end).read(start, end, on_corrupt)

    def packed_records(self, source: str, start: int, end: int) -> PackedRecords | None:
        """Records ``[start, end)`` of one file where they are in memory; None: ``read`` has them, or says why not."""
        return self._select_file(source, start, end).read_packed(start, end)

    def blocks(self, source: str) -> BlockSizes:
        """The chunks of one file."""
        return self._source_file(source).blocks()

    def _select_file(self, source: str, start: int, end: int) -> RecordFile:
        file = self._source_file(source)
        newest, self._last_read_file = self._last_read_file, file
        if newest is not None and newest is not file:
            newest.drop_cached_chunk()
        if not 0 <= start <= end <= file.records:
            raise BadInputError(f"records {start} to {end} of {file.records} were asked for", where=source)
        return file

    def _source_file(self, source: str) -> RecordFile:
        file = self._files.get(source)
        if file is None:
            raise BadInputError("no such source in this data set", where=source)
        return file
