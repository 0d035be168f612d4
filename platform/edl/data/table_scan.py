"""One pass over a table for its statistics, in threads.

Unlike the readers of training, this pass meets missing values and goes on. It has memory for one batch of each thread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.parquet as pq

from edl.api.errors import BadInputError
from edl.data.data_files import PathOrPaths, detect_format, find_data, read_error
from edl.data.numpy_reader import NumpyReader
from edl.data.reader_factory import ReaderOptions
from edl.data.table_statistics import TableStatistics, plain_type

_BATCH_RECORDS = 1 << 17
_BLOCK_BYTES = 1 << 23
TABLE_FORMATS = ("csv", "parquet", "npz", "jsonl")
"""Formats that have columns."""

_CSV_TYPES = (pa.int64(), pa.float64(), pa.string())
"""Types of cells; each has all values of those before it."""

Part = Callable[[TableStatistics], Iterator[Any]]
"""A share of the work: yields record batches, and counts corrupt records."""


@dataclass
class WiderTypeError(Exception):
    """A cell does not fit the type that the first cells of its column had."""

    column: str


def scan_table(paths: PathOrPaths, options: Mapping[str, object], threads: int) -> TableStatistics:
    """Statistics of all records.

    Args:
        paths: a file, a directory or a list of both.
        options: as ``data.reader`` of a job.
        threads: that share the files, and row groups of Parquet.

    Raises:
        BadInputError: the data have no columns, or cannot be read.
    """
    format_options = dict(options)
    chosen = format_options.pop("format", None)
    files = find_data(paths, None if chosen is None else str(chosen))
    name = detect_format(files) if chosen is None else str(chosen)
    if name not in TABLE_FORMATS:
        raise BadInputError(
            f"{name} has no columns that EDL knows", where=str(files[0]), hint=f"tables are {', '.join(TABLE_FORMATS)}"
        )
    if name == "csv":
        return _scan_csv(files, format_options, threads)
    allowed = ("columns", "label") if name != "jsonl" else ("columns", "index")
    columns = ReaderOptions(format_options, allowed_names=allowed).get_names("columns")
    if name == "parquet":
        return _scan_parts(_parquet_parts(files, columns), threads)
    if name == "npz":
        return _scan_parts([_npz_part(files, columns)], 1)
    return _scan_parts([_json_part(file, columns) for file in files], threads)


def _scan_parts(parts: Sequence[Part], threads: int) -> TableStatistics:
    """Threads take turns of the parts, so that the result depends on their number only."""
    threads = max(1, min(threads, len(parts)))

    def scan_share(thread: int) -> TableStatistics:
        statistics = TableStatistics()
        for part in parts[thread::threads]:
            for batch in part(statistics):
                statistics.add(batch)
        return statistics

    with ThreadPoolExecutor(threads) as pool:
        first, *others = pool.map(scan_share, range(threads))
    for other in others:
        first.merge(other)
    return first


def _check_columns(schema: Any, columns: Sequence[str], where: Path) -> list[str]:
    names = list(columns or schema.names)
    if missing := [name for name in names if name not in schema.names]:
        raise BadInputError(
            f"no column {', '.join(missing)}", where=str(where), hint=f"it has {', '.join(schema.names)}"
        )
    if len(set(schema.names)) != len(schema.names):
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


def _parquet_parts(files: Sequence[Path], columns: Sequence[str]) -> list[Part]:
    parts: list[Part] = []
    expected: Any = None
    for file in files:
        with _reading(file), pq.ParquetFile(file) as opened:
            names = _check_columns(opened.schema_arrow, columns, file)
            types = {name: opened.schema_arrow.field(name).type for name in names}
            groups = opened.num_row_groups
        if expected is not None and types != expected:
            raise BadInputError(
                f"the columns differ from those of {files[0]}",
                where=str(file),
                hint="all files of a data set must have the same columns with the same types",
            )
        expected = types
        parts += [_parquet_part(file, group, names) for group in range(groups)] or [_empty_part(types)]
    return parts


def _parquet_part(file: Path, group: int, names: list[str]) -> Part:
    def batches(statistics: TableStatistics) -> Iterator[Any]:
        with _reading(file), pq.ParquetFile(file, page_checksum_verification=True) as opened:
            records, done = opened.metadata.row_group(group).num_rows, 0
            try:
                for batch in opened.iter_batches(_BATCH_RECORDS, row_groups=[group], columns=names, use_threads=False):
                    done += batch.num_rows
                    yield batch
            except (pa.ArrowException, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:  # not of the content
                    raise
                statistics.add_damage(f"{file}, row group {group}: {str(error).splitlines()[0]}", records - done)

    return batches


def _empty_part(types: Mapping[str, Any]) -> Part:
    schema = pa.schema(list(types.items()))
    return lambda statistics: iter([schema.empty_table()])


def _npz_part(files: Sequence[Path], columns: Sequence[str]) -> Part:
    def batches(statistics: TableStatistics) -> Iterator[Any]:
        reader = NumpyReader(files, columns)
        for source in reader.sources():
            # At least one, so that an empty file has its columns.
            for start in range(0, max(1, source.records), _BATCH_RECORDS):
                records: Any = reader.read(source.name, start, min(source.records, start + _BATCH_RECORDS))
                arrays = {name: _to_arrow(array) for name, array in records.columns.items()}
                yield pa.table(arrays)

    return batches


def _to_arrow(array: Any) -> Any:
    flat = array.reshape(-1)
    values = pa.array(flat, pa.binary()) if array.dtype.kind == "O" else pa.array(flat)
    if array.ndim == 1:
        return values
    bounds = np.arange(len(array) + 1) * math.prod(array.shape[1:])
    return pa.LargeListArray.from_arrays(pa.array(bounds, pa.int64()), values)


def _json_part(file: Path, columns: Sequence[str]) -> Part:
    def batches(statistics: TableStatistics) -> Iterator[Any]:
        with _reading(file), pajson.open_json(file, pajson.ReadOptions(False, _BLOCK_BYTES)) as stream:
            names = _check_columns(stream.schema, columns, file)
            for batch in stream:
                yield batch.select(names)

    return batches


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
            types[error.column] = _CSV_TYPES[_CSV_TYPES.index(types[error.column]) + 1]


def _csv_part(file: Path, separator: str, columns: Sequence[str], types: dict[str, Any], *, has_header: bool) -> Part:
    """A CSV file; ``types`` gets the type of each column, by its first cells."""
    skipped = [0]

    def skip_row(row: Any) -> str:
        skipped[0] += 1
        return "skip"

    names = None if has_header or not columns else list(columns)
    read = pacsv.ReadOptions(
        use_threads=False,
        block_size=_BLOCK_BYTES,
        column_names=names,
        autogenerate_column_names=not has_header and not names,
    )
    parse = pacsv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=skip_row)

    def open_stream(column_types: Mapping[str, Any]) -> Any:
        convert = pacsv.ConvertOptions(column_types=column_types, null_values=[""], strings_can_be_null=True)
        return pacsv.open_csv(file, read, parse, convert)

    with _reading(file), open_stream({}) as stream:
        found = {entry.name: entry.type for entry in stream.schema}
        _check_columns(stream.schema, columns, file)
    if types and list(found) != list(types):
        raise BadInputError(
            f"columns {', '.join(found)} differ from {', '.join(types)} in other files",
            where=str(file),
            hint="all files of a data set must have the same columns in the same order",
        )
    for name, kind in found.items():
        # What is no number in the first cells is text; no cell at all may yet become anything.
        rank = 0 if pa.types.is_null(kind) else _CSV_TYPES.index(kind) if kind in _CSV_TYPES else 2
        types[name] = _CSV_TYPES[max(rank, _CSV_TYPES.index(types.get(name, pa.int64())))]

    def batches(statistics: TableStatistics) -> Iterator[Any]:
        skipped[0] = 0
        try:
            with _reading(file), open_stream(types) as stream:
                for batch in stream:
                    yield batch.select(list(columns)) if columns else batch
        except BadInputError as error:
            if at := re.search(r"In CSV column #(\d+): .*conversion error to (int64|double)", str(error.__cause__)):
                raise WiderTypeError(list(found)[int(at[1])]) from error
            raise
        statistics.corrupt_records += skipped[0]

    return batches


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Errors of Arrow as those of EDL."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise read_error(file, error) from error
        raise _content_error(file, error) from error
    except pa.ArrowException as error:
        raise _content_error(file, error) from error


def _content_error(file: Path, error: Exception) -> BadInputError:
    return BadInputError(
        f"the file cannot be read: {str(error).splitlines()[0]}",
        where=str(file),
        hint="it is damaged, has another format, or a column has values of several types",
    )
