"""Reads one RecordIO file."""

from __future__ import annotations

import os
from collections.abc import Iterator

from edl.api.errors import BadInputError, EdlError
from edl.data.recordio.reader import RecordFile


class UnreadableFileError(BadInputError, RuntimeError):
    """The file cannot be opened. It is also a RuntimeError, as in the original package."""


class Index:
    """The index of a file.

    Args:
        path: the file.

    Raises:
        UnreadableFileError: the file cannot be opened.
        NotRecordIOError: it is not RecordIO. It is a RuntimeError, too.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.file = RecordFile(os.fspath(path))
        try:
            self._records = self.file.records
        except RuntimeError:
            raise
        except EdlError as error:
            raise UnreadableFileError(error.message, where=error.where, hint=error.hint) from error

    def num_records(self) -> int:
        """Number of records in the file."""
        return self._records

    def close(self) -> None:
        """Do nothing: no file is open."""


class Scanner:
    """Reads records in order.

    Args:
        path: the file.
        start: the first record.
        len: the number of records; -1: all that follow. What is beyond the end of the file is left out.
        index: the file's index, if there is one already.

    Raises:
        UnreadableFileError: the file cannot be opened.
        NotRecordIOError: it is not RecordIO. It is a RuntimeError, too.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        start: int = 0,
        len: int = -1,  # noqa: A002 (the name of the original's argument)
        index: Index | None = None,
    ) -> None:
        index = index or Index(path)
        total = index.num_records()
        first = min(max(start, 0), total)
        end = total if len < 0 else min(first + len, total)
        self._records: Iterator[bytes] | None = _read_by_chunk(index.file, first, end)

    def record(self) -> bytes | None:
        """The next record; None at the end.

        Raises:
            CorruptRecordError: its chunk cannot be read.
            ValueError: the scanner is closed.
        """
        if self._records is None:
            raise ValueError("the scanner is closed")
        return next(self._records, None)

    def close(self) -> None:
        """Free the memory of the chunk that was read last."""
        self._records = None


def _read_by_chunk(file: RecordFile, start: int, end: int) -> Iterator[bytes]:
    bounds = file.index.first_records
    for number in file.index.chunks_of_range(start, end):
        yield from file.read(max(start, bounds[number]), min(end, bounds[number + 1]))
