"""One pass over a table for its statistics, in threads, or over ranges of it, in workers of a job.

Unlike the readers of training, this pass meets missing values and goes on. It has memory for one batch of each thread.
"""

from __future__ import annotations

import lzma
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from edl.api.errors import BadInputError, EdlError
from edl.data.arrow_reader import ArrowReader
from edl.data.cache_folder import CACHE_OPTIONS, CacheFolder
from edl.data.data_files import COMPRESSION_BY_SUFFIX, PathOrPaths, detect_format, find_data, format_of_name, read_error
from edl.data.json_blocks import JsonBlock, parse_sound_lines, split_json_blocks
from edl.data.numpy_reader import NumpyReader
from edl.data.parquet_reader import ParquetFooter, read_footer
from edl.data.reader_factory import ReaderOptions
from edl.data.remote_files import BlockStore, RemotePath
from edl.data.table_statistics import TableStatistics, plain_type
from edl.data.text_ranges import (
    CSV_TYPES,
    TextRanges,
    WiderTypeError,
    find_wider_column,
    open_text_ranges,
    widest_json_type,
    widest_type,
)
from edl.data.unpacked_cache import is_packed, name_inside, open_packed

_BATCH_RECORDS = 1 << 17
_BLOCK_BYTES = 1 << 23
TABLE_FORMATS = ("csv", "parquet", "arrow", "npz", "jsonl")
"""Formats that have columns."""

Part = Callable[[TableStatistics], Iterator[Any]]
"""A share of the work: yields record batches, and counts corrupt records."""


def scan_table(paths: PathOrPaths, options: Mapping[str, object], threads: int) -> TableStatistics:
    """Statistics of all records.

    Args:
        paths: a file, a directory, an address of an object store or of an HTTP server, or a list of these.
        options: as ``data.reader`` of a job.
        threads: that share the files, and row groups of Parquet.

    Raises:
        BadInputError: the data have no columns, or cannot be read.
    """
    name, files, format_options = _find_table(paths, options)
    if name == "csv":
        return _scan_csv(files, format_options, threads)
    columns = _chosen_columns(name, format_options)
    if name in ("parquet", "arrow"):
        return _scan_parts([group.batches for group in _list_row_groups(name, files, columns)], threads)
    if name == "npz":
        return _scan_parts([_npz_part(NumpyReader(files, columns))], 1)
    return _scan_json(files, columns, threads)


def _find_table(paths: PathOrPaths, options: Mapping[str, object]) -> tuple[str, Sequence[Path], Mapping[str, object]]:
    """The format, the files, and the options of the format."""
    format_options = dict(options)
    chosen = format_options.pop("format", None)
    cache = CacheFolder.from_options(format_options)
    format_options = {name: value for name, value in format_options.items() if name not in CACHE_OPTIONS}
    files = find_data(paths, None if chosen is None else str(chosen), BlockStore(cache))
    name = _detect_table(files) if chosen is None else str(chosen)
    if name not in TABLE_FORMATS:
        raise BadInputError(
            f"{name} has no columns that EDL knows", where=str(files[0]), hint=f"tables are {', '.join(TABLE_FORMATS)}"
        )
    return name, files, format_options


def _detect_table(files: Sequence[Path]) -> str:
    """The format of the files; of compressed ones, by the name of what is in them."""
    inside = {format_of_name(Path(name_inside(file.name))) for file in files}
    name = inside.pop() if len(inside) == 1 and any(map(is_packed, files)) else None
    return name or detect_format(files)


def _chosen_columns(name: str, format_options: Mapping[str, object]) -> tuple[str, ...]:
    allowed = ("columns", "label") if name != "jsonl" else ("columns", "index")
    return ReaderOptions(format_options, allowed_names=allowed).get_names("columns")


class TableRanges:
    """A table of which ranges of records are summarized, as a job leases them.

    Args:
        paths: as for ``scan_table``.
        options: as ``data.reader`` of a job; for JSON lines also ``columns``.
        types: columns of CSV with a wider type than a sample of the cells has, each with the name of Arrow's type.

    Raises:
        BadInputError: the data cannot be read, or are compressed files of text and no cache is named.

    Attributes:
        sources: records of each file.
        format_name: the format of the files.
    """

    def __init__(
        self, paths: PathOrPaths, options: Mapping[str, object], types: Mapping[str, str] | None = None
    ) -> None:
        name, files, format_options = _find_table(paths, options)
        self.format_name = name
        self.sources: dict[str, int] = {}
        self._text: TextRanges | None = None
        if name in ("csv", "jsonl"):
            self._text = _open_text_ranges(name, files, paths, options, types or {})
            self.sources = self._text.sources
            return
        columns = _chosen_columns(name, format_options)
        self._parts: dict[str, list[_RowGroup | _RecordBatch]] = {}
        self._arrays = NumpyReader(files, columns) if name == "npz" else None
        if self._arrays is not None:
            self.sources = {source.name: source.records for source in self._arrays.sources()}
            return
        self.sources = {str(file): 0 for file in files}
        for group in _list_row_groups(name, files, columns):
            self._parts.setdefault(str(group.file), []).append(group)
            self.sources[str(group.file)] += group.records

    @property
    def group_records(self) -> int:
        """Number of records of the first row group, as most have in files of one writer; 1 in formats without any."""
        if self._text is not None:
            return self._text.group_records
        return max(1, next((group.records for groups in self._parts.values() for group in groups), 1))

    def scan(self, source: str, start: int, end: int) -> TableStatistics:
        """Statistics of records ``[start, end)`` of a file.

        A cell of CSV that is none of its column's type gives the column a wider one, in this range and those after it.
        The statistics of ranges before it then lack the column: see ``statistics_files.find_wider_types``.
        """
        if not 0 <= start <= end <= self.sources.get(source, 0):
            raise BadInputError(f"there are no records {start} to {end}", where=source)
        statistics = TableStatistics()
        if self._text is not None:
            return self._scan_text(self._text, source, start, end)
        if self._arrays is not None:
            _add_batches(statistics, _npz_batches(self._arrays, source, start, end))
            return statistics
        first = 0
        for group in self._parts[source]:
            begin, finish = max(start, first) - first, min(end, first + group.records) - first
            if begin < finish:
                _add_batches(statistics, group.batches(statistics, begin, finish))
            first += group.records
        return statistics

    def _scan_text(self, text: TextRanges, source: str, start: int, end: int) -> TableStatistics:
        # Ends: a column gets a wider type twice at most.
        while True:
            statistics = TableStatistics()
            try:
                with _reading(Path(source)):
                    _add_batches(statistics, text.tables(statistics, source, start, end))
            except WiderTypeError as error:
                text.widen(error.column)
            else:
                return statistics


def _open_text_ranges(
    name: str, files: Sequence[Path], paths: PathOrPaths, options: Mapping[str, object], types: Mapping[str, str]
) -> TextRanges:
    columns: Sequence[str] = ()
    if name == "jsonl":  # whose records are lines to a job
        columns = ReaderOptions({"columns": options.get("columns", ())}, allowed_names=("columns",)).get_names(
            "columns"
        )
        options = {key: value for key, value in options.items() if key != "columns"}
    ranges = open_text_ranges(name, paths, options, columns, types)
    with _reading(files[0]):
        _check_columns(ranges.schema, columns, files[0])
    return ranges


def _add_batches(statistics: TableStatistics, batches: Iterator[Any]) -> None:
    for batch in batches:
        statistics.add(batch)


def _scan_parts(parts: Sequence[Part], threads: int) -> TableStatistics:
    """Threads take turns of the parts, so that the result depends on their number only."""
    threads = max(1, min(threads, len(parts)))

    def scan_share(thread: int) -> TableStatistics:
        statistics = TableStatistics()
        for part in parts[thread::threads]:
            _add_batches(statistics, part(statistics))
        return statistics

    with ThreadPoolExecutor(threads) as pool:
        first, *others = pool.map(scan_share, range(threads))
    for other in others:
        first.merge(other)
    return first


def _check_columns(schema: Any, columns: Sequence[str], where: Path) -> list[str]:
    present = schema.names  # a new list each time that it is asked for
    known = set(present)
    names = list(columns or present)
    if missing := [name for name in names if name not in known]:
        raise BadInputError(f"no column {', '.join(missing)}", where=str(where), hint=f"it has {', '.join(present)}")
    if len(known) != len(present):
        raise BadInputError("a column name appears twice", where=str(where), hint="rename one of the columns")
    for name in names:
        try:
            plain_type(schema.field(name).type)
        except ValueError as error:
            raise BadInputError(
                f"column {name} has {error}", where=str(where), hint="name the other columns with --columns"
            ) from error
    return names


# --------------------------------------------------------------------------------------------------
# Formats.


@dataclass(frozen=True)
class _RowGroup:
    """A row group of a Parquet file; ``number`` is None, without records, in a file that has none.

    Args:
        types: the chosen columns, each with its type.
        ranges: start and end of the bytes of each of its columns; only of a remote file.
    """

    file: Path
    number: int | None
    records: int
    types: Mapping[str, Any]
    ranges: Sequence[tuple[int, int]] = ()

    def batches(self, statistics: TableStatistics, start: int = 0, end: int | None = None) -> Iterator[Any]:
        """Rows ``[start, end)`` of the group. What is damaged is counted."""
        if self.number is None:
            yield pa.schema(list(self.types.items())).empty_table()
            return
        end, done = self.records if end is None else end, 0
        with _reading(self.file), _open_stream(self.file) as stream:
            try:
                opened = pq.ParquetFile(stream, page_checksum_verification=True)
                if self.ranges:
                    stream.prefetch(self.ranges)
                for batch in opened.iter_batches(
                    _BATCH_RECORDS, row_groups=[self.number], columns=list(self.types), use_threads=False
                ):
                    first, done = done, done + batch.num_rows
                    begin, finish = max(start, first), min(end, done)
                    if begin < finish:
                        yield batch.slice(begin - first, finish - begin)
                    if done >= end:
                        return
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, EdlError) or (isinstance(error, OSError) and error.errno is not None):
                    raise  # not of the content
                place = f"{self.file}, row group {self.number}: {str(error).splitlines()[0]}"
                statistics.add_damage(place, end - max(start, done))


@dataclass(frozen=True)
class _RecordBatch:
    """A record batch of an Arrow file; otherwise as ``_RowGroup``.

    Args:
        reader: reads it.
        footer: of the file.
    """

    file: Path
    number: int | None
    records: int
    types: Mapping[str, Any]
    reader: ArrowReader
    footer: ParquetFooter

    def batches(self, statistics: TableStatistics, start: int = 0, end: int | None = None) -> Iterator[Any]:
        """Rows ``[start, end)`` of the batch. One that is damaged is counted."""
        if self.number is None:
            yield pa.schema(list(self.types.items())).empty_table()
            return
        end = self.records if end is None else end
        with _reading(self.file), self.file.open("rb") as stream:
            try:
                table = self.reader.read_table(stream, self.footer, self.number, list(self.types))
            except pa.ArrowException as error:
                place = f"{self.file}, record batch {self.number}: {str(error).splitlines()[0]}"
                statistics.add_damage(place, end - start)
                return
            yield table.slice(start, end - start)


def _list_row_groups(name: str, files: Sequence[Path], columns: Sequence[str]) -> list[_RowGroup | _RecordBatch]:
    """All row groups of files, or record batches, which must have the same columns; at least one for each file."""
    groups: list[_RowGroup | _RecordBatch] = []
    reader = ArrowReader(files) if name == "arrow" else None
    expected: Any = None
    for file in files:
        footer = read_footer(file) if reader is None else reader.read_footer(file)
        names = _check_columns(footer.schema, columns, file)
        types = {name: footer.schema.field(name).type for name in names}
        if expected is not None and types != expected:
            raise BadInputError(
                f"the columns differ from those of {files[0]}",
                where=str(file),
                hint="all files of a data set must have the same columns with the same types",
            )
        expected = types
        for number, records in enumerate(footer.group_records):
            places = footer.ranges[number] if footer.ranges else {}
            ranges = [place for name, place in places.items() if name.partition(".")[0] in types]
            if reader is None:
                groups.append(_RowGroup(file, number, records, types, ranges))
            else:
                groups.append(_RecordBatch(file, number, records, types, reader, footer))
        if not footer.group_records:
            groups.append(_RowGroup(file, None, 0, types))
    return groups


def _npz_part(reader: NumpyReader) -> Part:
    def batches(statistics: TableStatistics) -> Iterator[Any]:
        for source in reader.sources():
            yield from _npz_batches(reader, source.name, 0, source.records)

    return batches


def _npz_batches(reader: NumpyReader, source: str, start: int, end: int) -> Iterator[Any]:
    # At least one, so that an empty file has its columns.
    for begin in range(start, max(start + 1, end), _BATCH_RECORDS):
        records: Any = reader.read(source, begin, min(end, begin + _BATCH_RECORDS))
        yield pa.table({name: _to_arrow(array) for name, array in records.columns.items()})


def _to_arrow(array: Any) -> Any:
    flat = array.reshape(-1)
    values = pa.array(flat, pa.binary()) if array.dtype.kind == "O" else pa.array(flat)
    if array.ndim == 1:
        return values
    bounds = np.arange(len(array) + 1) * math.prod(array.shape[1:])
    return pa.LargeListArray.from_arrays(pa.array(bounds, pa.int64()), values)


def _scan_json(files: Sequence[Path], columns: Sequence[str], threads: int) -> TableStatistics:
    types: dict[str, Any] = {}
    for file in files:
        with _reading(file), _open_text(file) as text:
            _widen_json_types(types, columns, islice(split_json_blocks(text, _BLOCK_BYTES), 1), file)
    try:
        return _scan_parts([_json_part(file, types, columns) for file in files], threads)
    except BadInputError as error:
        if not isinstance(error.__cause__, pa.ArrowException):
            raise
        sampled = dict(types)
        damaged: set[Path] = set()
        # Arrow does not say which value of a later block has another type, or which name is new: all are looked at.
        for file in files:
            with _reading(file), _open_text(file) as text:
                if _widen_json_types(types, columns, split_json_blocks(text, _BLOCK_BYTES), file):
                    damaged.add(file)
        if types == sampled and not damaged:
            damaged.update(files)  # which names the line
    return _scan_parts([_json_part(file, types, columns, is_damaged=file in damaged) for file in files], threads)


def _widen_json_types(types: dict[str, Any], chosen: Sequence[str], blocks: Iterable[JsonBlock], file: Path) -> bool:
    """Give each column the type that has all values of these blocks, too; only those of chosen columns must have one.

    Returns:
        Whether lines of the blocks are no objects.

    Raises:
        BadInputError: no type has all values of a column.
    """
    is_damaged = False
    for block in blocks:
        table, damaged = parse_sound_lines(file, block, chosen)
        is_damaged |= bool(damaged)
        for entry in () if table is None else table.schema:
            try:
                types[entry.name] = widest_json_type(types.get(entry.name, pa.null()), entry.type)
            except ValueError as error:
                if chosen and entry.name not in chosen:
                    continue
                raise BadInputError(
                    f"column {entry.name} is {error}",
                    where=str(file),
                    hint="write the column with one type, or name the other columns",
                ) from error
    return is_damaged


def _json_part(file: Path, types: Mapping[str, Any], columns: Sequence[str], *, is_damaged: bool = False) -> Part:
    """A file of JSON lines as all names with their types; one that a line does not have is missing there.

    Lines that are no objects are errors; if it is known that the file is damaged, they are counted.
    """
    names = _check_columns(pa.schema(list(types.items())), columns, file)
    schema = pa.schema([(name, types[name]) for name in names])
    others = "ignore" if columns else "error"
    parse = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others)

    def batches(statistics: TableStatistics) -> Iterator[Any]:
        options = pajson.ReadOptions(False, _BLOCK_BYTES)
        with _reading(file), _open_text(file) as text, pajson.open_json(text, options, parse) as stream:
            for batch in stream:
                yield batch.select(names)

    def sound_batches(statistics: TableStatistics) -> Iterator[Any]:
        with _reading(file), _open_text(file) as text:
            for block in split_json_blocks(text, _BLOCK_BYTES):
                table, damaged = parse_sound_lines(file, block, columns, parse)
                for place in damaged:
                    statistics.add_damage(place, 1)
                if table is not None:
                    yield table.select(names)

    return sound_batches if is_damaged else batches


def _scan_csv(files: Sequence[Path], options: Mapping[str, object], threads: int) -> TableStatistics:
    chosen = ReaderOptions(options, allowed_names=("sep", "header", "columns", "label"))
    separator = chosen.get_character("sep", "\t" if all(file.suffix.lower() == ".tsv" for file in files) else ",")
    has_header = chosen.get_boolean("header", default=True)
    columns = chosen.get_names("columns")
    types: dict[str, Any] = {}
    # Ends: each time a column gets a wider type, of two.
    while True:
        try:
            parts = [_csv_part(file, separator, columns, types, has_header=has_header) for file in files]
            return _scan_parts(parts, threads)
        except WiderTypeError as error:
            types[error.column] = CSV_TYPES[CSV_TYPES.index(types[error.column]) + 1]


def _csv_part(file: Path, separator: str, columns: Sequence[str], types: dict[str, Any], *, has_header: bool) -> Part:
    """A CSV file; ``types`` gets the type of each column, by its first cells."""
    skipped = [0]

    def skip_row(row: Any) -> str:
        skipped[0] += 1
        return "skip"

    read = pacsv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES)
    if not has_header:
        read.column_names = list(columns) or _column_places(file, separator)
    parse = pacsv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=skip_row)

    @contextmanager
    def open_stream(column_types: Mapping[str, Any]) -> Iterator[Any]:
        convert = pacsv.ConvertOptions(column_types=column_types, null_values=[""], strings_can_be_null=True)
        with _open_text(file) as text, pacsv.open_csv(text, read, parse, convert) as stream:
            yield stream

    with _reading(file), open_stream({}) as stream:
        kinds = {entry.name: entry.type for entry in stream.schema}
        _check_columns(stream.schema, columns, file)
    if types and list(kinds) != list(types):
        raise BadInputError(
            f"columns {', '.join(kinds)} differ from {', '.join(types)} in other files",
            where=str(file),
            hint="all files of a data set must have the same columns in the same order",
        )
    for name, kind in kinds.items():
        types[name] = widest_type(kind, types.get(name, CSV_TYPES[0]))

    def batches(statistics: TableStatistics) -> Iterator[Any]:
        skipped[0] = 0
        try:
            with _reading(file), open_stream(types) as stream:
                for batch in stream:
                    yield batch.select(list(columns)) if columns else batch
        except BadInputError as error:
            column = find_wider_column(error.__cause__, list(kinds)) if isinstance(error.__cause__, Exception) else None
            if column is not None:
                raise WiderTypeError(column) from error
            raise
        statistics.corrupt_records += skipped[0]

    return batches


def _column_places(file: Path, separator: str) -> list[str]:
    """The names that the reader gives to the columns of a file without a header: their places from 0."""
    with _reading(file), _open_text(file) as text:
        read = pacsv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, autogenerate_column_names=True)
        parse = pacsv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=lambda _: "skip")
        with pacsv.open_csv(text, read, parse) as stream:
            return [str(place) for place in range(len(stream.schema))]


@contextmanager
def _open_stream(file: Path) -> Iterator[Any]:
    """The bytes of a file. Of a remote one, a stream that fetches blocks."""
    if isinstance(file, RemotePath):
        with file.open("rb", buffering=0) as stream:
            yield stream
    else:
        with pa.OSFile(str(file)) as opened:
            yield opened


@contextmanager
def _open_text(file: Path) -> Iterator[Any]:
    """The content of a file of text, unpacked if its name says that it is compressed."""
    with _open_stream(file) as stream:
        compression = COMPRESSION_BY_SUFFIX.get(file.suffix.lower())
        if compression is None:
            yield stream
        elif compression == "xz":  # which Arrow has not
            with open_packed(file, stream) as unpacked:
                yield pa.PythonFile(unpacked, "r")
        else:
            with pa.CompressedInputStream(stream, compression) as unpacked:
                yield unpacked


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Errors of Arrow as those of EDL."""
    try:
        yield
    except EdlError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise read_error(file, error) from error
        raise _content_error(file, error) from error
    except (pa.ArrowException, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:  # the last one: of a name
        raise _content_error(file, error) from error


def _content_error(file: Path, error: Exception) -> BadInputError:
    return BadInputError(
        f"the file cannot be read: {str(error).splitlines()[0]}",
        where=str(file),
        hint="it is damaged, has another format, or a column has values of several types",
    )
