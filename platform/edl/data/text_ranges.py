"""Ranges of CSV and of JSON lines as Arrow tables, for statistics that workers share.

All workers must give a column the same type, and none sees all cells. So each of them looks at the same blocks, spread
over the files, which decide; a range with a cell of a wider type says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn, Protocol

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson

from edl.api.errors import BadInputError
from edl.data.block_file import BlockFileReader
from edl.data.csv_reader import ROWS_PER_BLOCK, CsvReader
from edl.data.data_files import PathOrPaths
from edl.data.reader import CorruptRange, OnCorrupt
from edl.data.reader_factory import open_reader
from edl.data.table_statistics import TableStatistics

CSV_TYPES = (pa.int64(), pa.float64(), pa.string())
"""Types of cells; each has all values of those before it."""
_SAMPLED_BLOCKS = 64
"""Of a data set: they decide about types."""
_BLOCKS_AT_ONCE = 64
_LINES_AT_ONCE = 1 << 14


class WiderTypeError(Exception):
    """A cell does not fit the type of its column."""

    def __init__(self, column: str) -> None:
        super().__init__(column)
        self.column = column


def find_wider_column(error: Exception, header: Sequence[str]) -> str | None:
    """The column of whose type a cell is none, by Arrow's error; None: the error is another one."""
    at = re.search(r"In CSV column #(\d+): .*conversion error to (int64|double)", str(error))
    return list(header)[int(at[1])] if at else None


def widest_type(kind: Any, other: Any = CSV_TYPES[0]) -> Any:
    """The type of a column of which some cells have one type, as Arrow infers it, and others another."""
    ranks = [
        # No cell at all may yet become anything; what is no number is text.
        0 if pa.types.is_null(each) else CSV_TYPES.index(each) if each in CSV_TYPES else len(CSV_TYPES) - 1
        for each in (kind, other)
    ]
    return CSV_TYPES[max(ranks)]


def widest_json_type(kind: Any, other: Any) -> Any:
    """The type of values of JSON of which some have one type, as Arrow infers it, and others another.

    Raises:
        ValueError: no type has both.
    """
    if pa.types.is_timestamp(kind):
        # JSON has no times: to a job, and to a layer that looks values up, they are text.
        return widest_json_type(pa.string(), other)
    if pa.types.is_list(kind) and (pa.types.is_list(other) or pa.types.is_null(other)):
        return pa.list_(widest_json_type(kind.value_type, other.value_type if pa.types.is_list(other) else pa.null()))
    if pa.types.is_timestamp(other) or (pa.types.is_list(other) and pa.types.is_null(kind)):
        return widest_json_type(other, kind)
    if kind == other or pa.types.is_null(other):
        return kind
    if pa.types.is_null(kind):
        return other
    if {kind, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    raise ValueError(f"{kind} in one part of the data and {other} in another")


class TextRanges(Protocol):
    """A table in files of text, of which ranges of records are read."""

    group_records: int
    """Ranges of whole multiples of it are read fastest."""

    @property
    def sources(self) -> dict[str, int]:
        """Records of each file."""

    @property
    def schema(self) -> Any:
        """The columns of the files with their types."""

    def widen(self, column: str) -> None:
        """Give a column the next wider type."""

    def tables(self, statistics: TableStatistics, source: str, start: int, end: int) -> Iterator[Any]:
        """The columns of records ``[start, end)``. What is damaged is counted."""


def open_text_ranges(
    name: str,
    paths: PathOrPaths,
    options: Mapping[str, object],
    columns: Sequence[str],
    types: Mapping[str, str],
) -> TextRanges:
    """The ranges of CSV or JSON lines.

    Args:
        name: the format.
        paths: of the files.
        options: as ``data.reader`` of a job; of CSV also the columns.
        columns: of JSON lines: the names to read; all by default.
        types: of CSV: columns with a wider type than the sampled blocks say.
    """
    reader: Any = open_reader(paths, options)
    return CsvRanges(reader, types) if name == "csv" else JsonRanges(reader, columns)


class CsvRanges:
    """Ranges of rows of CSV files.

    Args:
        reader: of the rows.
        types: columns with a wider type than the sampled blocks say, each with the name of Arrow's type.
    """

    group_records = ROWS_PER_BLOCK

    def __init__(self, reader: CsvReader, types: Mapping[str, str]) -> None:
        self._reader = reader
        self._given = {name: pa.type_for_alias(kind) for name, kind in types.items()}
        if unknown := [name for name in types if name not in reader.header]:
            raise BadInputError(f"no column {', '.join(unknown)}", where="--types")

    @cached_property
    def sources(self) -> dict[str, int]:
        """Rows of each file."""
        return {source.name: source.records for source in self._reader.sources()}

    @property
    def schema(self) -> Any:
        """The columns of the files with their types."""
        return pa.schema(list(self._types.items()))

    @cached_property
    def _types(self) -> dict[str, Any]:
        sampled = b"".join(_ended(self._read(*place)) for place in _spread_blocks(self._reader, self.sources))
        if not sampled:
            return {name: self._given.get(name, CSV_TYPES[0]) for name in self._reader.header}
        table = self._parse(sampled, None, [])
        return {name: widest_type(table[name].type, self._given.get(name, CSV_TYPES[0])) for name in table.column_names}

    def widen(self, column: str) -> None:
        """See ``TextRanges``."""
        self._types[column] = CSV_TYPES[CSV_TYPES.index(self._types[column]) + 1]

    def tables(self, statistics: TableStatistics, source: str, start: int, end: int) -> Iterator[Any]:
        """See ``TextRanges``.

        Raises:
            WiderTypeError: a cell is none of its column's type.
            BadInputError: Arrow does not find the rows that the reader counted.
        """
        step = _BLOCKS_AT_ONCE * ROWS_PER_BLOCK
        bounds = [start, *range((start // step + 1) * step, end, step), end]
        for begin, finish in pairwise(bounds) if start < end else [(start, end)]:
            skipped: list[Any] = []
            try:
                table = self._parse(self._read(source, begin, finish), self._types, skipped)
            except pa.ArrowInvalid as error:
                if (column := find_wider_column(error, self._reader.header)) is not None:
                    raise WiderTypeError(column) from error
                raise
            if len(table) + len(skipped) != finish - begin:
                raise BadInputError(
                    f"rows {begin} to {finish} are {len(table) + len(skipped)} rows to Arrow",
                    where=source,
                    hint="end lines with LF or CRLF, and quote cells as RFC 4180 says; or leave out --workers",
                )
            statistics.corrupt_records += len(skipped)
            yield table.select(list(self._reader.metadata.column_names))

    def _read(self, source: str, start: int, end: int) -> bytes:
        return self._reader.open_file(source, start, end).read_bytes(start, end)

    def _parse(self, data: bytes, types: Mapping[str, Any] | None, skipped: list[Any]) -> Any:
        """A table of all columns of the files; ``skipped`` gets the rows with another number of cells."""
        header = list(self._reader.header)
        if not data:
            return pa.table({name: pa.array([], (types or {}).get(name, CSV_TYPES[0])) for name in header})

        def skip(row: Any) -> str:
            skipped.append(row)
            return "skip"

        return pacsv.read_csv(
            pa.BufferReader(data),
            pacsv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=header),
            pacsv.ParseOptions(
                delimiter=self._reader.dialect.separator, newlines_in_values=True, invalid_row_handler=skip
            ),
            pacsv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True),
        )


class JsonRanges:
    """Ranges of JSON lines.

    Args:
        reader: of the lines.
        columns: the names to read; all that the sampled blocks have by default.
    """

    group_records = 1

    def __init__(self, reader: BlockFileReader, columns: Sequence[str]) -> None:
        self._reader = reader
        self._columns = list(columns)

    @cached_property
    def sources(self) -> dict[str, int]:
        """Lines of each file."""
        return {source.name: source.records for source in self._reader.sources()}

    @cached_property
    def schema(self) -> Any:
        """The names of the sampled blocks with their types.

        Raises:
            BadInputError: no type has all their values of a column; names a line and the column.
        """
        blocks = [self._read_lines(*place, lambda _: None) for place in _spread_blocks(self._reader, self.sources)]
        lines = [line for block in blocks for line in block.lines]
        try:
            types = _types_of(self._parse(lines, None)) if lines else {}
        except pa.ArrowInvalid:
            types = self._join_types(blocks)
        return pa.schema([(name, widest_json_type(kind, pa.null())) for name, kind in types.items()])

    def _join_types(self, blocks: Iterable[_NumberedLines]) -> dict[str, Any]:
        """The types of all lines, of which Arrow finds none at once. A column that is not chosen may have several."""
        types: dict[str, Any] = {}
        for block in blocks:
            for number, line in zip(block.numbers, block.lines, strict=True):
                for name, kind in self._parse_alone(block.source, number, line).items():
                    try:
                        types[name] = widest_json_type(types.get(name, pa.null()), kind)
                    except ValueError as error:
                        if self._columns and name not in self._columns:
                            continue
                        raise self._misfit_error(block.source, number, line, name, types[name], kind) from error
        return types

    def widen(self, column: str) -> None:
        """See ``TextRanges``."""
        raise AssertionError(f"{column} has the type of the sampled lines")

    def tables(self, statistics: TableStatistics, source: str, start: int, end: int) -> Iterator[Any]:
        """See ``TextRanges``.

        Raises:
            BadInputError: a line does not have the names and types of the sampled lines; names the line.
        """
        schema = pa.schema([self.schema.field(name) for name in self._columns]) if self._columns else self.schema

        def count(corrupt: CorruptRange) -> None:
            place = f"{corrupt.source}, byte {corrupt.offset}: {corrupt.reason}"
            statistics.add_damage(place, corrupt.records)

        for begin in range(start, max(start + 1, end), _LINES_AT_ONCE):
            numbered = self._read_lines(source, begin, min(end, begin + _LINES_AT_ONCE), count)
            try:
                table = self._parse(numbered.lines, schema) if numbered.lines else schema.empty_table()
            except pa.ArrowInvalid as error:
                self._raise_misfit(numbered, schema, error)
            yield table.select(schema.names)

    def _read_lines(self, source: str, start: int, end: int, on_corrupt: OnCorrupt) -> _NumberedLines:
        corrupt: set[int] = set()

        def note(corrupt_range: CorruptRange) -> None:
            corrupt.update(range(corrupt_range.start, corrupt_range.end))
            on_corrupt(corrupt_range)

        lines = self._reader.read(source, start, end, note)
        return _NumberedLines(source, lines, [number for number in range(start, end) if number not in corrupt])

    def _parse(self, lines: Sequence[bytes], schema: Any) -> Any:
        data = b"\n".join(lines)
        behavior = "infer" if schema is None else "ignore" if self._columns else "error"
        return pajson.read_json(
            pa.BufferReader(data),
            pajson.ReadOptions(use_threads=False, block_size=len(data) + 1),
            pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior=behavior),
        )

    def _raise_misfit(self, numbered: _NumberedLines, schema: Any, error: Exception) -> NoReturn:
        """Say which line Arrow refuses."""
        first, end = 0, len(numbered.lines)
        while end - first > 1:
            middle = (first + end) // 2
            if self._is_refused(numbered.lines[first:middle], schema):
                end = middle
            else:
                first = middle
        number, line = numbered.numbers[first], numbered.lines[first]
        for name, kind in self._parse_alone(numbered.source, number, line).items():
            if name not in schema.names:
                if not self._columns:
                    raise self._misfit_error(numbered.source, number, line, name, None, kind) from error
            elif self._is_refused([_only(line, name)], pa.schema([schema.field(name)])):
                raise self._misfit_error(numbered.source, number, line, name, schema.field(name).type, kind) from error
        raise error

    def _is_refused(self, lines: Sequence[bytes], schema: Any) -> bool:
        try:
            self._parse(lines, schema)
        except pa.ArrowInvalid:
            return True
        return False

    def _parse_alone(self, source: str, number: int, line: bytes) -> dict[str, Any]:
        """The type of each value of a line."""
        try:
            return _types_of(self._parse([line], None))
        except pa.ArrowInvalid as error:
            reason = str(error).partition(" in row ")[0]
            raise BadInputError(
                f"{self._place(source, number)} is no line of JSON: {reason}", where=source, hint="mend the line"
            ) from error

    def _misfit_error(self, source: str, number: int, line: bytes, name: str, wanted: Any, kind: Any) -> BadInputError:
        """A line has a value of another type, or a name that no sampled line has (``wanted`` is None)."""
        try:
            is_wider = wanted is None or widest_json_type(wanted, kind) is not None
        except ValueError:
            is_wider = False
        value = json.dumps(json.loads(line)[name])
        others = f"it is {wanted} in the sampled lines" if wanted is not None else "no sampled line has it"
        return BadInputError(
            f"{self._place(source, number)} has {value:.40} in column '{name}', which is {kind}, and {others}",
            where=source,
            hint="leave out --workers: one process reads all lines for their types first; or name other columns with "
            "--columns"
            if is_wider
            else "write it with one type, or name the other columns with --columns",
        )

    def _place(self, source: str, number: int) -> str:
        return f"record {number} (byte {self._reader.record_offset(source, number)})"


class _NumberedLines(NamedTuple):
    """Lines of a file, without the corrupt ones, each with its number."""

    source: str
    lines: Sequence[bytes]
    numbers: Sequence[int]


def _types_of(table: Any) -> dict[str, Any]:
    return {entry.name: entry.type for entry in table.schema}


def _only(line: bytes, name: str) -> bytes:
    """A line of JSON with one of its names."""
    return json.dumps({name: json.loads(line)[name]}).encode()


def _ended(data: bytes) -> bytes:
    """Rows of which the last one, at the end of a file, may lack its end."""
    return data if data.endswith(b"\n") or not data else data + b"\n"


def _spread_blocks(reader: Any, sources: Mapping[str, int]) -> list[tuple[str, int, int]]:
    """Source, first record and end of blocks at equal distances, of each file at least the first and the last."""
    blocks = []
    for source in sources:
        bounds = [0]
        for records in reader.blocks(source).records:
            bounds.append(bounds[-1] + records)
        places = [(source, start, end) for start, end in pairwise(bounds) if start < end]
        step = -(-len(places) * len(sources) // _SAMPLED_BLOCKS) or 1
        blocks += [*places[: max(0, len(places) - 1) : step], *places[-1:]]
    return blocks
