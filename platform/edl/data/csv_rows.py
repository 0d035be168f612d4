"""CSV files: a record is a row, as a list of cells (text).

UTF-8, quoting as in RFC 4180 (cells may hold line breaks), empty lines are no records. Counting parses a file once
and remembers where every 256th row begins; that index stays in memory.
"""

from __future__ import annotations

import csv
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from edl.core.errors import BadInputError
from edl.data.files import unreadable
from edl.data.options import Options
from edl.data.reader import CorruptRange, CorruptRecordError, Metadata, OnCorrupt, Source

_INDEX_EVERY = 256
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Dialect:
    """How the files are written: the separator, and whether the first row names the columns."""

    sep: str = ","
    header: bool = True


@dataclass(frozen=True, slots=True)
class _Row:
    offset: int  # byte offset of its first line
    cells: list[str]
    fault: str | None


@dataclass(frozen=True)
class _Index:
    header: tuple[str, ...]  # the first row's cells; without a header line, numbers from 0
    rows: int
    offsets: array[int]  # of every _INDEX_EVERY-th row
    version: tuple[int, int]  # size and modification time of the file it belongs to


class CsvFile:
    """One CSV file, read by row number.

    Nothing stays open between calls, and threads may share an instance.
    """

    def __init__(self, path: Path, dialect: Dialect) -> None:
        self.path = path
        self._dialect = dialect
        # Row number and offset where the last read ended: reads in order never parse a row twice.
        self._resume = (0, 0)

    @cached_property
    def index(self) -> _Index:
        """Found by one pass over the file."""
        try:
            with self.path.open("rb") as stream:
                return self._scan(stream)
        except OSError as error:
            raise unreadable(self.path, error) from error

    def rows(self, start: int, end: int) -> list[_Row]:
        """Rows ``[start, end)``, which must lie within the file."""
        if start >= end:
            return []
        try:
            with self.path.open("rb") as stream:
                return self._read(stream, start, end)
        except OSError as error:
            raise unreadable(self.path, error) from error

    def _read(self, stream: BinaryIO, start: int, end: int) -> list[_Row]:
        if _version(stream) != self.index.version:
            raise BadInputError(
                "the file changed while it was in use",
                where=str(self.path),
                hint="write new files beside the old ones instead of over them",
            )
        at, offset = self._nearest(start)
        parsed = _Rows(stream, offset, self._dialect.sep)
        for _ in range(start - at):
            next(parsed)
        found = [next(parsed) for _ in range(end - start)]
        self._resume = (end, parsed.offset)
        return found

    def _nearest(self, row: int) -> tuple[int, int]:
        """The last known row at or before ``row``, and its offset."""
        block = row // _INDEX_EVERY
        indexed = (block * _INDEX_EVERY, self.index.offsets[block])
        resume = self._resume
        return resume if indexed[0] < resume[0] <= row else indexed

    def _scan(self, stream: BinaryIO) -> _Index:
        parsed = _Rows(stream, 0, self._dialect.sep)
        header = self._header(parsed) if self._dialect.header else None
        offsets, rows = array("Q"), 0
        for row in parsed:
            if header is None and row.fault is None:
                header = [str(number) for number in range(len(row.cells))]
            if rows % _INDEX_EVERY == 0:
                offsets.append(row.offset)
            rows += 1
        return _Index(tuple(header or ()), rows, offsets, _version(stream))

    def _header(self, parsed: _Rows) -> list[str]:
        row = next(parsed, None)
        if row is None or row.fault or len(set(row.cells)) != len(row.cells):
            fault = "the file is empty" if row is None else row.fault or "a column name appears twice"
            raise BadInputError(
                f"the first row must name the columns: {fault}",
                where=str(self.path),
                hint="set data.reader.header to false if the file begins with data",
            )
        return row.cells


class _Rows(Iterator[_Row]):
    """The rows of a stream from a byte offset on, each with the offset of its first byte."""

    def __init__(self, stream: BinaryIO, offset: int, sep: str) -> None:
        stream.seek(offset)
        self.offset = offset
        self._stream = stream
        self._undecodable = False
        self._parser = csv.reader(self._lines(), delimiter=sep, strict=True)

    def __next__(self) -> _Row:
        while True:
            offset, cells, fault = self.offset, list[str](), None
            self._undecodable = False
            try:
                cells = next(self._parser)
            except csv.Error as error:
                fault = str(error)
            if self._undecodable:
                fault = "not UTF-8"
            if cells or fault:
                return _Row(offset, cells, fault)

    def _lines(self) -> Iterator[str]:
        for line in self._stream:
            text = line.removeprefix(_BOM) if self.offset == 0 else line
            self.offset += len(line)
            try:
                yield text.decode()
            except UnicodeDecodeError:
                self._undecodable = True
                yield text.decode(errors="replace")


def _version(stream: BinaryIO) -> tuple[int, int]:
    stat = os.fstat(stream.fileno())
    return stat.st_size, stat.st_mtime_ns


class CsvReader:
    """A data set of CSV files with the same columns: the reader port.

    Args:
        files: the files.
        dialect: how they are written.
        columns: with a header, the columns to give and their order; without one, the name of each column.
    """

    def __init__(self, files: Sequence[Path], dialect: Dialect | None = None, columns: Sequence[str] = ()) -> None:
        self._dialect = dialect or Dialect()
        self._files = {str(file): CsvFile(file, self._dialect) for file in files}
        self._columns = tuple(columns)

    @classmethod
    def from_options(cls, files: Sequence[Path], options: Mapping[str, object]) -> CsvReader:
        """With the options of ``data.reader``: ``sep`` (``,``), ``header`` (true) and ``columns`` (all)."""
        chosen = Options(options, allowed=("sep", "header", "columns"))
        default = "\t" if all(file.suffix.lower() == ".tsv" for file in files) else ","
        dialect = Dialect(chosen.character("sep", default), chosen.flag("header", default=True))
        return cls(files, dialect, chosen.names("columns"))

    @cached_property
    def metadata(self) -> Metadata:
        """The columns; a cell is always text."""
        names = self._columns or self._header
        return Metadata("csv", names, dict.fromkeys(names, "string"))

    def sources(self) -> tuple[Source, ...]:
        """Name (the path) and row count of each file."""
        _ = self._picked  # files that do not fit together are refused before any is counted in
        return tuple(Source(name, file.index.rows) for name, file in self._files.items())

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> list[list[str]]:
        """Rows ``[start, end)`` of one file; see the port. A row is corrupt if its cells are not one for a column."""
        file = self._files.get(source)
        if file is None:
            raise BadInputError("no such source in this data set", where=source)
        if not 0 <= start <= end <= file.index.rows:
            raise BadInputError(f"rows {start} to {end} of {file.index.rows} were asked for", where=source)
        found = []
        for number, row in enumerate(file.rows(start, end), start):
            fault = row.fault or self._misfit(row.cells)
            if fault is None:
                found.append(self._pick(row.cells))
            elif on_corrupt is None:
                raise CorruptRecordError(CorruptRange(source, number, number + 1, None, row.offset, fault))
            else:
                on_corrupt(CorruptRange(source, number, number + 1, None, row.offset, fault))
        return found

    def _misfit(self, cells: Sequence[str]) -> str | None:
        expected = len(self._header)
        return None if len(cells) == expected else f"{len(cells)} cells for {expected} columns"

    def _pick(self, cells: list[str]) -> list[str]:
        picked = self._picked
        return cells if picked is None else [cells[position] for position in picked]

    @cached_property
    def _header(self) -> tuple[str, ...]:
        """What the files' first rows say, which must be the same in all (empty files without a header fit any)."""
        headers = {name: file.index.header for name, file in self._files.items() if file.index.header}
        first, header = next(iter(headers.items()), ("", ()))
        for name, other in headers.items():
            if other != header:
                raise BadInputError(
                    f"columns {', '.join(other)} differ from {', '.join(header)} in {first}",
                    where=name,
                    hint="all files of a data set must have the same columns in the same order",
                )
        return header

    @cached_property
    def _picked(self) -> list[int] | None:
        """Positions of the chosen columns; None means all, as they are."""
        if not self._dialect.header:
            if self._columns and self._header and len(self._columns) != len(self._header):
                raise self._wrong_columns(f"{len(self._columns)} names for {len(self._header)} columns")
            return None
        missing = [name for name in self._columns if name not in self._header]
        if missing:
            raise self._wrong_columns(f"no column {', '.join(missing)}")
        return [self._header.index(name) for name in self._columns] or None

    def _wrong_columns(self, what: str) -> BadInputError:
        return BadInputError(
            what, where="data.reader.columns", hint=f"the files have the columns {', '.join(self._header)}"
        )
