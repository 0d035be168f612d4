"""Writes RecordIO files. Records are grouped into chunks by pyrecordio's rule; a file appears when it is complete."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from edl.api.errors import BadInputError, StorageError
from edl.data.recordio.chunk import COMPRESSORS, Compression, encode_chunk
from edl.data.temporary_names import temporary_path

DEFAULT_CHUNK_LIMIT = 1024 * 1024
"""Bytes of records in a chunk. Small, because one record costs reading its chunk, and one bad byte loses a chunk."""
LARGEST_RECORD = 32 * 1024 * 1024
"""Limit of a record's size, unless the caller sets a chunk limit. It is the chunk limit of pyrecordio."""


class RecordTooLargeError(BadInputError):
    """A record does not fit into a chunk. (pyrecordio drops such a record and logs a line.)"""


class NotBytesError(BadInputError, ValueError):
    """A record is not bytes. It is also a ValueError, as in pyrecordio."""


class Writer:
    """Writes one RecordIO file, as a context manager.

    It writes a hidden file beside ``path`` and renames it at the end. After an exception the hidden file is removed,
    and an earlier file at ``path`` is kept.

    Args:
        path: the file to write; an existing file is replaced.
        compression: with ``none`` the file equals pyrecordio's byte for byte. pyrecordio reads ``none`` and ``snappy``.
        chunk_limit: maximum bytes of records in a chunk, without their lengths and before compression; a record must be
            smaller. Readers hold a chunk in memory and read all of it for one record. None: 1 MiB, and a larger
            record, below 32 MiB, gets a chunk of its own.

    Raises:
        StorageError: the file cannot be written.
    """

    def __init__(self, path: str | Path, *, compression: Compression = "none", chunk_limit: int | None = None) -> None:
        if compression not in COMPRESSORS:
            raise BadInputError(f"unknown compression {compression!r}", hint=f"one of {', '.join(COMPRESSORS)}")
        if chunk_limit is not None and chunk_limit < 1:
            raise BadInputError(f"a chunk limit of {chunk_limit} bytes", hint="at least 1")
        self.path = Path(path)
        self.records = 0
        self._compression = compression
        self._chunk_limit = DEFAULT_CHUNK_LIMIT if chunk_limit is None else chunk_limit
        self._record_limit = LARGEST_RECORD if chunk_limit is None else chunk_limit
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._temporary = temporary_path(self.path)
        self._stream = self._open_temporary()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def write(self, record: bytes) -> None:
        """Add a record. Empty records are valid.

        Raises:
            RecordTooLargeError: the record is not smaller than the chunk limit that was set, or 32 MiB. The writer can
                continue without it.
            NotBytesError: the record is not bytes.
        """
        if not isinstance(record, bytes | bytearray | memoryview):
            raise NotBytesError(f"a record of type {type(record).__name__}", where=str(self.path), hint="pass bytes")
        record = bytes(record)
        if len(record) >= self._record_limit:
            raise RecordTooLargeError(
                f"record {self.records} has {len(record)} bytes; a record must be smaller than {self._record_limit}",
                where=str(self.path),
                hint="raise the chunk limit, or store large values in files of their own",
            )
        if self._pending_bytes + len(record) > self._chunk_limit:
            self._write_chunk()
        self._pending.append(record)
        self._pending_bytes += len(record)
        self.records += 1

    def close(self) -> None:
        """Write pending records, flush to disk, and rename the file. Further calls do nothing."""
        if self._stream.closed:
            return
        self._write_chunk()
        try:
            self._stream.flush()
            # before the rename: after a crash, the name could otherwise belong to an empty file
            os.fsync(self._stream.fileno())
            self._stream.close()
            self._temporary.replace(self.path)
        except OSError as error:
            raise self._storage_error(error) from error

    def discard(self) -> None:
        """Remove the file that is being written; an earlier file of the name is kept."""
        # Closing flushes, which fails again on a full disk. The first failure was raised already.
        with suppress(OSError):
            self._stream.close()
        self._temporary.unlink(missing_ok=True)

    def _open_temporary(self) -> BinaryIO:
        try:
            return self._temporary.open("wb")
        except OSError as error:
            raise StorageError(f"cannot be written: {error.strerror}", where=str(self.path)) from error

    def _write_chunk(self) -> None:
        if not self._pending:
            return
        chunk = encode_chunk(self._pending, self._compression)
        try:
            self._stream.write(chunk)
        except OSError as error:
            raise self._storage_error(error) from error
        self._pending, self._pending_bytes = [], 0

    def _storage_error(self, error: OSError) -> StorageError:
        self.discard()
        return StorageError(f"cannot be written: {error.strerror}", where=str(self.path), hint="is the disk full?")
