"""Where the chunks of a file are: what random access needs.

The index is found by walking the headers and seeking over the payloads, without checksums. It lives in memory; on
request it is also saved beside the file (``<file>.idx``), which pays where many processes open large files on a network
volume. A saved index belongs to one size and modification time of its file. One that does not fit, cannot be
understood or cannot be written costs a walk and is never an error.
"""

from __future__ import annotations

import json
import logging
import os
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from edl.api.errors import BadInputError
from edl.data.data_files import INDEX_SUFFIX, read_error, temporary_path
from edl.data.recordio.chunk import COMPRESSORS, HEADER_BYTES, LENGTH_BYTES, ChunkHeader

_INDEX_VERSION = 1
# The most bytes that one stored byte can stand for: snappy's copies give 64 bytes for 3, deflate 1032 for 1.
_EXPANSION = {COMPRESSORS["none"]: 1, COMPRESSORS["snappy"]: 64}
_MOST_EXPANSION = 1100
_log = logging.getLogger(__name__)


class NotRecordIOError(BadInputError, RuntimeError):
    """The index cannot be read: no RecordIO file, or junk between or after its chunks.

    A RuntimeError too, as in the original.
    """


@dataclass(frozen=True)
class ChunkIndex:
    """The chunks of one file.

    Args:
        headers: one for each chunk, in the order of the file.
        offsets: byte offset of each chunk's header.
        first_records: index of each chunk's first record, and the file's record count at the end.
    """

    headers: tuple[ChunkHeader, ...]
    offsets: tuple[int, ...]
    first_records: tuple[int, ...]

    @classmethod
    def of(cls, headers: Sequence[ChunkHeader]) -> ChunkIndex:
        """The index of a file with these chunks."""
        offsets = accumulate((HEADER_BYTES + header.size for header in headers), initial=0)
        firsts = accumulate((header.records for header in headers), initial=0)
        return cls(tuple(headers), tuple(offsets)[:-1], tuple(firsts))

    @property
    def records(self) -> int:
        """Records in the file."""
        return self.first_records[-1]

    def chunks(self, start: int, end: int) -> range:
        """Numbers of the chunks that hold records ``[start, end)``, which must lie within the file."""
        if start >= end:
            return range(0)
        return range(bisect_right(self.first_records, start) - 1, bisect_right(self.first_records, end - 1))


def load_index(file: Path, *, save: bool = False) -> ChunkIndex:
    """The index of ``file``: a saved one that fits, else a walk; with ``save`` the walk's result is kept beside it.

    Raises:
        NotRecordIOError: the file is not a sequence of chunks.
        EdlError: it cannot be read.
    """
    try:
        with file.open("rb", buffering=0) as stream:
            stat = os.fstat(stream.fileno())
            saved = _load_saved_index(file, stat)
            if saved is not None:
                return saved
            index = ChunkIndex.of(_walk_headers(stream.fileno(), stat.st_size, file))
    except OSError as error:
        raise read_error(file, error) from error
    if save:
        _save_index(file, stat, index)
    return index


def _walk_headers(descriptor: int, size: int, file: Path) -> list[ChunkHeader]:
    headers: list[ChunkHeader] = []
    offset = 0
    while offset < size:
        header = ChunkHeader.parse(os.pread(descriptor, HEADER_BYTES, offset))
        if header is None or not _is_plausible(header):
            raise NotRecordIOError(
                f"failed to read the index: no chunk header at byte {offset} of {size}",
                where=str(file),
                hint="the file is not RecordIO, or was cut or overwritten there; write it again",
            )
        headers.append(header)
        offset += HEADER_BYTES + header.size
    return headers


def _is_plausible(header: ChunkHeader) -> bool:
    """Whether so many records can be in the payload, where each takes at least its length."""
    return header.records * LENGTH_BYTES <= header.size * _EXPANSION.get(header.compressor, _MOST_EXPANSION)


def _load_saved_index(file: Path, stat: os.stat_result) -> ChunkIndex | None:
    try:
        saved = json.loads(_index_path(file).read_bytes())
        if [saved["version"], saved["size"], saved["mtime_ns"]] != [_INDEX_VERSION, stat.st_size, stat.st_mtime_ns]:
            return None
        return ChunkIndex.of([ChunkHeader(*map(_parse_count, fields)) for fields in saved["chunks"]])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.info("the index beside %s cannot be used and is rebuilt: %s", file, error)
        return None


def _parse_count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} is no count")
    return value


def _save_index(file: Path, stat: os.stat_result, index: ChunkIndex) -> None:
    chunks = [[header.checksum, header.compressor, header.size, header.records] for header in index.headers]
    document = {"version": _INDEX_VERSION, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns, "chunks": chunks}
    path = _index_path(file)
    temporary = temporary_path(path)
    try:
        temporary.write_text(json.dumps(document, separators=(",", ":")), encoding="ascii")
        temporary.replace(path)
    except OSError as error:
        _log.info("the index of %s is kept in memory only: %s", file, error)
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _index_path(file: Path) -> Path:
    return file.with_name(file.name + INDEX_SUFFIX)
