"""Reads CSV files. A record is a row, as a list of cells (text)."""

from __future__ import annotations

import codecs
import csv
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

from edl.api.errors import BadInputError
from edl.data.data_files import FileVersion, changed_error, find_source, hint_for_encoding, read_error, stream_version
from edl.data.file_digests import SourceDigests, digest_file
from edl.data.reader import NOT_UTF8, BlockSizes, CorruptRange, CorruptRecordError, Metadata, OnCorrupt, Source
from edl.data.reader_factory import ReaderOptions

# --------------------------------------------------------------------------------------------------
# One CSV file, read by row number through an index of byte offsets.
#
# Files are UTF-8 and quoted as in RFC 4180, so cells may contain line breaks. Empty lines are not
# records. The first pass over a file counts its rows and stores the byte offset of every 256th row;
# this index stays in memory.


ROWS_PER_BLOCK = 256
_SCANNED_BYTES = 1 << 20
"""What the first pass reads at once."""
_MEMORY_FACTOR = 10
"""Memory of rows as lists of text, in bytes per byte of the file. The shorter the cells, the more."""
EMPTY_FILE = "the file is empty"
BARE_CR = "a carriage return without a line feed, outside of quotes"
"""Why a row cannot be read."""


@dataclass(frozen=True)
class CsvDialect:
    """How the files are written: the separator, and whether the first row has the names of the columns."""

    separator: str = ","
    has_header: bool = True


@dataclass(frozen=True, slots=True)
class CsvRow:
    """A row of the file.

    Args:
        offset: byte offset of its first line.
        cells: the cells; unreliable if there is an error.
        error_reason: why the row cannot be read, in one clause; None: it can be.
    """

    offset: int
    cells: list[str]
    error_reason: str | None


@dataclass(frozen=True)
class CsvIndex:
    """The result of the first pass over a file.

    Args:
        header: the cells of the first row; for a file without a header, the numbers of the columns from 0.
        row_count: rows in the file, without the header.
        offsets: byte offset of every 256th row.
        file_version: size and modification time (ns) of the file at that time.
    """

    header: tuple[str, ...]
    row_count: int
    offsets: array[int]
    file_version: FileVersion


class CsvFile:
    """One CSV file, read by row number.

    No file stays open between calls, and threads may share an instance.
    """

    def __init__(self, path: Path, dialect: CsvDialect) -> None:
        self.path = path
        self._dialect = dialect
        # Row number and offset at which the last read ended, so that reads in order parse no row
        # twice. One tuple, replaced as a whole, because threads share it.
        self._resume_position = (0, 0)

    @cached_property
    def index(self) -> CsvIndex:
        """The index, made by one pass over the file when it is first needed."""
        try:
            with self.path.open("rb") as stream:
                return self._scan_file(stream)
        except OSError as error:
            raise read_error(self.path, error) from error

    def blocks(self) -> BlockSizes:
        """The rows between two entries of the index form a block."""
        rows = self.index.row_count
        sizes = [min(ROWS_PER_BLOCK, rows - start) for start in range(0, rows, ROWS_PER_BLOCK)]
        return BlockSizes(sizes, _MEMORY_FACTOR * self.index.file_version[0])

    def read_rows(self, start: int, end: int) -> list[CsvRow]:
        """Rows ``[start, end)``, which must lie within the file."""
        if start >= end:
            return []
        try:
            with self.path.open("rb") as stream:
                return self._read_rows(stream, start, end)
        except OSError as error:
            raise read_error(self.path, error) from error

    def read_blocks(self, first: int, after: int) -> bytes:
        """The bytes of the blocks with these numbers, from the beginning of a row to the beginning of another."""
        offsets = self.index.offsets
        begin, end = offsets[first], offsets[after] if after < len(offsets) else self.index.file_version[0]
        try:
            with self.path.open("rb") as stream:
                self._check_version(stream)
                stream.seek(begin)
                return stream.read(end - begin)
        except OSError as error:
            raise read_error(self.path, error) from error

    def read_bytes(self, start: int, end: int) -> bytes:
        """The bytes of rows ``[start, end)``, which must lie within the file; fastest from block to block."""
        if start >= end:
            return b""
        try:
            with self.path.open("rb") as stream:
                self._check_version(stream)
                begin, finish = (self._find_offset(stream, row) for row in (start, end))
                stream.seek(begin)
                return stream.read(finish - begin)
        except OSError as error:
            raise read_error(self.path, error) from error

    def _find_offset(self, stream: BinaryIO, row: int) -> int:
        """Byte offset at which a row begins, or the empty lines before it; after the last row the file's size."""
        if row == self.index.row_count:
            return self.index.file_version[0]
        block, rest = divmod(row, ROWS_PER_BLOCK)
        if not rest:
            return self.index.offsets[block]
        parsed = CsvRowStream(stream, self.index.offsets[block], self._dialect.separator)
        for _ in range(rest):
            next(parsed)
        return parsed.offset

    def _check_version(self, stream: BinaryIO) -> None:
        # offsets of an earlier version of the file would point into the middle of rows
        if stream_version(stream) != self.index.file_version:
            raise changed_error(self.path)

    def _read_rows(self, stream: BinaryIO, start: int, end: int) -> list[CsvRow]:
        self._check_version(stream)
        row, offset = self._nearest_known_row(start)
        parsed = CsvRowStream(stream, offset, self._dialect.separator)
        for _ in range(start - row):
            next(parsed)
        rows = [next(parsed) for _ in range(end - start)]
        self._resume_position = (end, parsed.offset)
        return rows

    def _nearest_known_row(self, row: int) -> tuple[int, int]:
        """The nearest row at or before ``row`` with a known offset, and that offset."""
        block = row // ROWS_PER_BLOCK
        indexed = (block * ROWS_PER_BLOCK, self.index.offsets[block])
        resume = self._resume_position
        return resume if indexed[0] < resume[0] <= row else indexed

    def _scan_file(self, stream: BinaryIO) -> CsvIndex:
        parsed = CsvRowStream(stream, 0, self._dialect.separator)
        if self._dialect.has_header:
            header, position = self._read_header(parsed), parsed.offset
        else:
            first = next((row for row in parsed if row.error_reason is None), None)
            header, position = [str(number) for number in range(len(first.cells) if first else 0)], 0
        offsets, rows = array("Q"), 0
        stream.seek(position)
        while data := stream.read(_SCANNED_BYTES):
            data += stream.readline()
            starts = _find_lines(data)
            if starts is None:
                starts, end = self._find_rows(stream, position, position + len(data))
                stream.seek(end)
            else:
                end = position + len(data)
            offsets.extend(position + start for start in starts[-rows % ROWS_PER_BLOCK :: ROWS_PER_BLOCK])
            rows, position = rows + len(starts), end
        return CsvIndex(tuple(header), rows, offsets, stream_version(stream))

    def _find_rows(self, stream: BinaryIO, position: int, end: int) -> tuple[list[int], int]:
        """The beginnings of the rows that begin before ``end``, counted from ``position``, and where the last ends."""
        parsed, starts = CsvRowStream(stream, position, self._dialect.separator), list[int]()
        while parsed.offset < end and (row := next(parsed, None)) is not None:
            starts.append(row.offset - position)
        return starts, parsed.offset

    def _read_header(self, parsed: CsvRowStream) -> list[str]:
        row = next(parsed, None)
        if row is None or row.error_reason or len(set(row.cells)) != len(row.cells):
            fault = EMPTY_FILE if row is None else row.error_reason or "a column name appears twice"
            raise BadInputError(
                f"the first row must name the columns: {fault}",
                where=str(self.path),
                hint=_header_hint(fault, self.path),
            )
        return row.cells


def _find_lines(data: bytes) -> list[int] | None:
    """Where each line begins, if each of the whole lines is a row for certain; a tenth of the time of parsing them."""
    # A search for two bytes takes ten times as long as one for a byte.
    if b'"' in data or data.startswith(codecs.BOM_UTF8) or (b"\r" in data and data.count(b"\r") != data.count(b"\r\n")):
        return None
    lines = data.splitlines(keepends=True)
    lengths = list(map(len, lines))
    if min(lengths) <= len(b"\r\n") and (b"\n" in lines or b"\r\n" in lines):  # an empty line is no row
        return None
    return list(accumulate(lengths, initial=0))[:-1]


def _header_hint(fault: str, path: Path) -> str:
    if fault == NOT_UTF8:
        return hint_for_encoding(str(path))
    if fault == BARE_CR:
        return "end lines with LF or CRLF, and quote cells that contain line breaks"
    if fault == EMPTY_FILE:
        return "remove the file, or write the names of the columns into it"
    return "set data.reader.header to false if the file begins with data"


class CsvRowStream(Iterator[CsvRow]):
    """The rows of a stream from a byte offset on, each with the offset of its first byte."""

    def __init__(self, stream: BinaryIO, offset: int, sep: str) -> None:
        stream.seek(offset)
        self.offset = offset
        self._stream = stream
        self._has_invalid_utf8 = False
        # strict: wrong quoting is an error instead of a guess
        self._parser = csv.reader(self._decoded_lines(), delimiter=sep, strict=True)

    def __next__(self) -> CsvRow:
        while True:
            offset, cells, fault = self.offset, list[str](), None
            self._has_invalid_utf8 = False
            try:
                cells = next(self._parser)
            except csv.Error as error:
                # Python's text advises how to call Python.
                fault = BARE_CR if "new-line character" in str(error) else str(error)
            # decoding happens inside next(), line by line, so the flag is about the lines of this
            # row
            if self._has_invalid_utf8:
                fault = NOT_UTF8
            if cells or fault:
                return CsvRow(offset, cells, fault)

    def _decoded_lines(self) -> Iterator[str]:
        # self.offset counts bytes, which decoded text cannot give back, so lines are decoded here
        for line in self._stream:
            text = line.removeprefix(codecs.BOM_UTF8) if self.offset == 0 else line
            self.offset += len(line)
            try:
                yield text.decode()
            except UnicodeDecodeError:
                self._has_invalid_utf8 = True
                yield text.decode(errors="replace")


class CsvReader:
    """A data set of CSV files with the same columns.

    Args:
        files: the files.
        dialect: how they are written.
        columns: for files with a header, the columns to return, in this order; otherwise the name of each column.

    Attributes:
        dialect: as given.
    """

    def __init__(self, files: Sequence[Path], dialect: CsvDialect | None = None, columns: Sequence[str] = ()) -> None:
        self.dialect = dialect or CsvDialect()
        self._files = {str(file): CsvFile(file, self.dialect) for file in files}
        self._columns = tuple(columns)

    @classmethod
    def from_options(cls, files: Sequence[Path], options: Mapping[str, object]) -> CsvReader:
        """A reader with the options of ``data.reader``: ``sep`` (``,``), ``header`` (true) and ``columns`` (all).

        ``label`` names the label's column for a model module without ``feed``; rows are the same with it.
        """
        chosen = ReaderOptions(options, allowed_names=("sep", "header", "columns", "label"))
        chosen.get_name("label")  # feed reports a name that is no column
        default = "\t" if all(file.suffix.lower() == ".tsv" for file in files) else ","
        dialect = CsvDialect(chosen.get_character("sep", default), chosen.get_boolean("header", default=True))
        return cls(files, dialect, chosen.get_names("columns"))

    @cached_property
    def metadata(self) -> Metadata:
        """The columns. A cell is always text."""
        names = self._columns or self._common_header
        return Metadata("csv", names, dict.fromkeys(names, "string"))

    def sources(self) -> tuple[Source, ...]:
        """Name (the path) and row count of each file."""
        _ = self._column_positions  # refuses files with different columns before any record is counted
        return tuple(Source(name, file.index.row_count) for name, file in self._files.items())

    def source_digests(self) -> SourceDigests:
        """What finds out whether each file was written again; see ``file_digests``."""
        return {name: partial(digest_file, file.path) for name, file in self._files.items()}

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> list[list[str]]:
        """Rows ``[start, end)`` of one file; see ``Reader.read``. A row with too few or too many cells is corrupt."""
        file = self.open_file(source, start, end)
        rows = []
        for number, row in enumerate(file.read_rows(start, end), start):
            fault = self.find_fault(row)
            if fault is None:
                rows.append(self._select_columns(row.cells))
            elif on_corrupt is None:
                raise CorruptRecordError(CorruptRange(source, number, number + 1, None, row.offset, fault))
            else:
                on_corrupt(CorruptRange(source, number, number + 1, None, row.offset, fault))
        return rows

    def blocks(self, source: str) -> BlockSizes:
        """Blocks of 256 rows of one file."""
        return find_source(self._files, source).blocks()

    def find_fault(self, row: CsvRow) -> str | None:
        """Why a row is corrupt, in a clause; None: it is not."""
        return row.error_reason or self._cell_count_error(row.cells)

    def open_file(self, source: str, start: int, end: int) -> CsvFile:
        """The file of rows ``[start, end)``, which it must have."""
        file = find_source(self._files, source)
        if not 0 <= start <= end <= file.index.row_count:
            raise BadInputError(
                f"rows {start} to {end} were requested, the file has {file.index.row_count}", where=source
            )
        return file

    def _cell_count_error(self, cells: Sequence[str]) -> str | None:
        expected = len(self._common_header)
        return None if len(cells) == expected else f"{len(cells)} of {expected} cells"

    def _select_columns(self, cells: list[str]) -> list[str]:
        picked = self._column_positions
        return cells if picked is None else [cells[position] for position in picked]

    @cached_property
    def header(self) -> tuple[str, ...]:
        """The name of each cell of a row, chosen or not."""
        if self.dialect.has_header or not self._columns:
            return self._common_header
        _ = self._column_positions  # refuses another number of names
        return self._columns

    @cached_property
    def _common_header(self) -> tuple[str, ...]:
        """The header of the files, which must be the same in all. An empty file without a header fits any."""
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
    def _column_positions(self) -> list[int] | None:
        """Positions of the chosen columns; None: all columns in their order."""
        header = self._common_header
        if not self.dialect.has_header:
            if self._columns and header and len(self._columns) != len(header):
                raise self._column_error(f"{len(self._columns)} names for {len(header)} columns")
            return None
        missing = [name for name in self._columns if name not in header]
        if missing:
            raise self._column_error(f"no column {', '.join(missing)}")
        return [header.index(name) for name in self._columns] or None

    def _column_error(self, what: str) -> BadInputError:
        return BadInputError(
            what, where="data.reader.columns", hint=f"the files have the columns {', '.join(self._common_header)}"
        )
