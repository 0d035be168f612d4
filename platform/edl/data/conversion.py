"""Converts a data set from one format into another, in parallel processes.

The plan comes first and decides everything: the files to write, the records of each, the types of columns. Each file is
written by one process, read again, and counted. The directory appears when all of them are complete.
"""

from __future__ import annotations

import csv
import json
import math
import multiprocessing
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from edl.api.errors import BadInputError, StorageError
from edl.data.dataset_writer import check_output_empty
from edl.data.reader import CorruptRange, CorruptRecordError, Metadata, Reader
from edl.data.reader_factory import open_reader
from edl.data.record_columns import Column, ColumnRecords, RaggedColumn
from edl.data.recordio.writer import Writer
from edl.data.table_scan import scan_table
from edl.data.temporary_names import temporary_path
from edl.data.tf_example import parse_example, serialize_example
from edl.data.tfrecord_format import frame_record

BYTES_FORMATS = ("recordio", "tfrecord", "text", "jsonl")
_FRAMED_FORMATS = ("recordio", "tfrecord")
"""Formats that hold any bytes, also those of the other one."""
_BATCH_RECORDS = 4096
_ROW_GROUP_RECORDS = 16_384


@dataclass(frozen=True)
class FilePlan:
    """One file to write: records ``[start, end)`` of a source."""

    name: str
    source: str
    start: int
    end: int


@dataclass(frozen=True)
class ConversionPlan:
    """What a conversion does.

    Args:
        paths: of the data set to read.
        options: as ``data.reader`` of a job.
        origin: format of these.
        target: format to write.
        directory: to write into.
        files: to write.
        schema: columns and their types; None: records are copied as bytes.
        max_corrupt: number of corrupt records that are left out and counted; one more ends the conversion.
    """

    paths: tuple[str, ...]
    options: Mapping[str, object]
    origin: str
    target: str
    directory: Path
    files: tuple[FilePlan, ...]
    schema: Any = None
    max_corrupt: int = 0

    @property
    def records(self) -> int:
        """Records to read."""
        return sum(file.end - file.start for file in self.files)


@dataclass(frozen=True)
class ConvertedFile:
    """A file that was written, read again and counted."""

    name: str
    records_in: int
    records_out: int
    corrupt: int
    bytes: int


def plan_conversion(
    paths: Sequence[str],
    directory: Path,
    target: str,
    options: Mapping[str, object],
    *,
    records_per_file: int,
    max_corrupt: int = 0,
) -> ConversionPlan:
    """Decide what a conversion does; reads a sample, and CSV once for the types of its columns.

    Raises:
        BadInputError: the data cannot be read or converted, or the directory is not empty.
    """
    check_output_empty_for(directory)
    reader = open_reader(list(paths), options)
    origin = reader.metadata.format
    files: list[FilePlan] = []
    for source in reader.sources():
        for start in range(0, source.records, records_per_file):
            name = f"data-{len(files):05d}.{target}"
            files.append(FilePlan(name, source.name, start, min(source.records, start + records_per_file)))
    if not files:
        raise BadInputError("there are no records", where=", ".join(paths))
    schema = None if _copies_bytes(origin, target) else _choose_schema(reader, paths, options)
    if schema is not None:
        _check_schema(schema, target)
    return ConversionPlan(tuple(paths), dict(options), origin, target, directory, tuple(files), schema, max_corrupt)


def check_output_empty_for(directory: Path) -> None:
    """Refuse to overwrite anything.

    Raises:
        BadInputError: the path is a file, or a directory that is not empty.
    """
    try:
        check_output_empty(directory)
    except BadInputError as error:
        raise BadInputError("is not an empty directory", where=str(directory), hint="name another one") from error


def convert(plan: ConversionPlan, processes: int, on_file: Callable[[ConvertedFile], None]) -> list[ConvertedFile]:
    """Write all files; ``on_file`` is called for each one.

    Raises:
        BadInputError: a record cannot be read or converted, or too many are corrupt.
        StorageError: a file cannot be written, or does not have what was written.
    """
    temporary = temporary_path(plan.directory)
    try:
        temporary.mkdir(parents=True)
        done: list[ConvertedFile] = []
        for converted in _run(plan, temporary, min(processes, len(plan.files))):
            done.append(converted)
            if (corrupt := sum(file.corrupt for file in done)) > plan.max_corrupt:
                raise BadInputError(
                    f"{corrupt} records cannot be read, {plan.max_corrupt} are allowed",
                    where=plan.files[0].source,
                    hint="mend the files, or allow and count them with --max-corrupt",
                )
            on_file(converted)
        check_output_empty_for(plan.directory)
        if plan.directory.exists():
            plan.directory.rmdir()
        temporary.replace(plan.directory)
    except OSError as error:
        raise StorageError(
            f"cannot be written: {error.strerror}", where=str(error.filename or plan.directory)
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return sorted(done, key=lambda file: file.name)


def _run(plan: ConversionPlan, directory: Path, processes: int) -> Iterator[ConvertedFile]:
    if processes == 1:
        reader = open_reader(list(plan.paths), plan.options)
        yield from (convert_file(plan, file, directory, reader) for file in plan.files)
        return
    # spawn: a fork would copy the locks of Arrow's threads
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        tasks = [pool.submit(convert_file, plan, file, directory) for file in plan.files]
        try:
            for task in as_completed(tasks):
                yield task.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def convert_file(plan: ConversionPlan, file: FilePlan, directory: Path, reader: Reader | None = None) -> ConvertedFile:
    """Write one file, and read it again.

    Raises:
        BadInputError: a record cannot be read or converted.
        StorageError: the file does not have what was written.
    """
    reader = reader or open_reader(list(plan.paths), plan.options)
    corrupt: list[CorruptRange] = []

    def batches() -> Iterator[Any]:
        for start in range(file.start, file.end, _BATCH_RECORDS):
            end = min(file.end, start + _BATCH_RECORDS)
            # Without an allowance, the error of the reader names the record.
            try:
                records = (
                    reader.read(file.source, start, end, corrupt.append)
                    if plan.max_corrupt
                    else reader.read(file.source, start, end)
                )
            except CorruptRecordError as error:
                raise BadInputError(
                    error.message,
                    where=error.where,
                    hint="restore the file, or leave such records out: --max-corrupt N",
                ) from error
            if len(records):
                where = f"{file.source}, records {start} to {end - 1}"
                yield records if plan.schema is None else to_table(records, reader.metadata, plan.schema, where)

    path = directory / file.name
    _WRITERS[plan.target](path, batches(), plan.schema)
    left_out = sum(each.records for each in corrupt)
    read = file.end - file.start
    readable = _count_readable(path, plan.target)
    if readable != read - left_out:
        raise StorageError(
            f"has {readable} readable records, and {read - left_out} were written",
            where=str(plan.directory / file.name),
            hint="the disk or the file system is damaged: write to another one",
        )
    return ConvertedFile(file.name, read, readable, left_out, path.stat().st_size)


def _count_readable(path: Path, target: str) -> int:
    if target == "parquet":  # for which a job's reader takes a row without a value as corrupt
        with pq.ParquetFile(path) as file:
            return sum(batch.num_rows for batch in file.iter_batches())
    reader = open_reader(str(path), {"format": target})
    corrupt: list[CorruptRange] = []
    return sum(
        len(reader.read(source.name, start, min(source.records, start + _BATCH_RECORDS), corrupt.append))
        for source in reader.sources()
        for start in range(0, source.records, _BATCH_RECORDS)
    )


def _copies_bytes(origin: str, target: str) -> bool:
    """Whether records stay the same bytes: nothing is known of what they are."""
    if origin == target:
        return origin in BYTES_FORMATS
    return origin in ("recordio", "tfrecord", "text") and target in _FRAMED_FORMATS


# --------------------------------------------------------------------------------------------------
# Columns and their types.


def _choose_schema(reader: Reader, paths: Sequence[str], options: Mapping[str, object]) -> Any:
    """The columns of all files: of CSV by one pass over the cells, else those of the first records."""
    metadata = reader.metadata
    if metadata.format == "csv":
        return _scan_csv_types(metadata, paths, options)
    for source in reader.sources():
        records = reader.read(source.name, 0, min(source.records, _BATCH_RECORDS), lambda _: None)
        if len(records):
            return to_table(records, metadata, None, source.name).schema
    raise BadInputError("no record can be read", where=", ".join(paths))


def _scan_csv_types(metadata: Metadata, paths: Sequence[str], options: Mapping[str, object]) -> Any:
    chosen = {name: value for name, value in options.items() if name != "label"}
    facts = {column["name"]: column for column in scan_table(list(paths), chosen, 1).to_json(0)["columns"]}
    kinds = {"text": pa.string()}
    types = [
        kinds.get(facts[name]["kind"], pa.int64() if facts[name]["type"].startswith(("int", "uint")) else pa.float64())
        for name in metadata.column_names
    ]
    return pa.schema(list(zip(metadata.column_names, types, strict=True)))


def _check_schema(schema: Any, target: str) -> None:
    for field in schema:
        is_list = pa.types.is_list(field.type) or pa.types.is_fixed_size_list(field.type)
        is_nested = is_list and not _is_plain(field.type.value_type)
        if is_list and target == "csv":
            reason = "a cell of CSV is one value"
        elif pa.types.is_list(field.type) and target == "npz":
            reason = "an array has lists of one length"
        elif is_nested and target in _FRAMED_FORMATS:
            reason = "a feature of tf.train.Example is a flat list"
        elif not is_list and not _is_plain(field.type):
            reason = "it is neither a number, a text, nor a list of these"
        else:
            continue
        raise BadInputError(
            f"column '{field.name}' is {field.type}: {reason}",
            where=f"--to {target}",
            hint="name the other columns with --columns, or write another format",
        )


def _is_plain(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_boolean(kind)
        or types.is_string(kind)
        or types.is_binary(kind)
    )


def to_table(records: Any, metadata: Metadata, schema: Any, where: str) -> Any:
    """Records as an Arrow table with the columns and types of a schema; None: those that the records have.

    Raises:
        BadInputError: a record does not fit.
    """
    try:
        if isinstance(records, ColumnRecords):
            return _columns_to_table(records, schema)
        if metadata.column_names and not isinstance(records, np.ndarray):
            return _rows_to_table(records, schema)
        if metadata.format == "jsonl":
            return _mappings_to_table([json.loads(line) for line in records], schema)
        if metadata.format in _FRAMED_FORMATS:
            return _mappings_to_table(_parse_examples(records, schema), schema)
        if metadata.format == "text":
            texts = pa.array([bytes(record).decode() for record in records], pa.string())
            return pa.table({"text": texts})
    except (pa.ArrowException, ValueError, TypeError, AttributeError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BadInputError(
            f"a record does not fit the columns of the first ones: {text}",
            where=where,
            hint="all records need the same columns with the same types",
        ) from error
    raise BadInputError(
        f"records of {metadata.format} have no columns", where=where, hint="write recordio or tfrecord, or a program"
    )


def _parse_examples(records: Sequence[bytes], schema: Any) -> list[dict[str, Any]]:
    """Examples by name. One item is a single value, unless the feature has other numbers of items elsewhere."""
    rows = [dict(parse_example(record)) for record in records]
    lists = (
        {name for row in rows for name, value in row.items() if isinstance(value, list)}
        if schema is None
        else {field.name for field in schema if pa.types.is_list(field.type)}
    )
    return [
        {name: [value] if name in lists and not isinstance(value, list) else value for name, value in row.items()}
        for row in rows
    ]


def _mappings_to_table(rows: Sequence[Mapping[str, Any]], schema: Any) -> Any:
    """Rows by name; Arrow would drop names that the schema lacks."""
    names = dict.fromkeys(name for row in rows for name in row)
    if schema is None:
        return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
    if more := [name for name in names if name not in schema.names]:
        raise ValueError(f"it has {', '.join(more)}, too")
    return pa.Table.from_pylist(list(rows), schema)


def _columns_to_table(records: ColumnRecords, schema: Any) -> Any:
    arrays = {
        name: _to_array(column, None if schema is None else schema.field(name).type)
        for name, column in records.columns.items()
    }
    return pa.table(arrays, schema=schema)


def _to_array(column: Column, kind: Any) -> Any:
    if isinstance(column, RaggedColumn):
        items = _to_array(column.values, None if kind is None else kind.value_type)
        return pa.ListArray.from_arrays(pa.array(column.bounds, pa.int32()), items)
    if column.ndim > 1:
        size = int(np.prod(column.shape[1:]))
        return pa.FixedSizeListArray.from_arrays(_to_array(column.reshape(-1), None), size)
    if column.dtype != object:
        return pa.array(column, kind)
    if kind is None:
        kind = pa.string() if _is_text(column) else pa.binary()
    return pa.array(column.tolist(), pa.binary()).cast(kind)


def _is_text(values: Any) -> bool:
    try:
        return all(bytes(value).decode() is not None for value in values)
    except UnicodeDecodeError:
        return False


def _rows_to_table(rows: Sequence[Sequence[str]], schema: Any) -> Any:
    """Cells as values; an empty cell of a number is null."""
    columns = list(zip(*rows, strict=True))
    arrays = []
    for cells, field in zip(columns, schema, strict=True):
        if not pa.types.is_string(field.type):
            cells = tuple(cell.strip() or None for cell in cells)
        arrays.append(pa.array(cells, pa.string()).cast(field.type))
    return pa.table(arrays, schema=schema)


# --------------------------------------------------------------------------------------------------
# Files.


def _write_parquet(path: Path, tables: Iterator[Any], schema: Any) -> None:
    with pq.ParquetWriter(path, schema) as writer:
        rows: list[Any] = []
        for table in tables:
            rows.append(table)
            if sum(each.num_rows for each in rows) >= _ROW_GROUP_RECORDS:
                writer.write_table(pa.concat_tables(rows), row_group_size=_ROW_GROUP_RECORDS)
                rows = []
        if rows:
            writer.write_table(pa.concat_tables(rows), row_group_size=_ROW_GROUP_RECORDS)


def _write_csv(path: Path, tables: Iterator[Any], schema: Any) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(schema.names)
        for table in tables:
            for row in _rows(table):
                writer.writerow(["" if value is None else _to_text(value, name) for name, value in row.items()])


def _write_jsonl(path: Path, tables: Iterator[Any], schema: Any) -> None:
    with path.open("wb") as stream:
        for table in tables:
            for line in table if schema is None else map(_to_json_line, _rows(table)):
                stream.write(bytes(line) + b"\n")


def _to_json_line(row: Mapping[str, Any]) -> bytes:
    """A row as an object of JSON, which has neither NaN nor infinite numbers: the first becomes null.

    Raises:
        BadInputError: a number is infinite, or bytes are no text.
    """
    values = {name: _to_text(value, name) for name, value in row.items()}
    try:
        return json.dumps(values, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:  # seldom, so that not every value is looked at
        finite = {name: _without_nan(value, name) for name, value in values.items()}
        return json.dumps(finite, ensure_ascii=False, allow_nan=False).encode()


def _without_nan(value: Any, column: str) -> Any:
    if isinstance(value, list):
        return [_without_nan(item, column) for item in value]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        return None
    raise BadInputError(
        f"an infinite number in column '{column}', and JSON has none",
        where="--to jsonl",
        hint="write another format, replace such numbers, or leave the column out with --columns",
    )


def _write_npz(path: Path, tables: Iterator[Any], schema: Any) -> None:
    table = pa.concat_tables(tables)
    arrays = {}
    for field in schema:
        column = table.column(field.name)
        if column.null_count:
            raise _null_error(field.name, "npz")
        if pa.types.is_fixed_size_list(field.type):
            flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
            arrays[field.name] = flat.reshape(len(column), field.type.list_size)
        elif pa.types.is_string(field.type) or pa.types.is_binary(field.type):
            texts = [value.encode() if isinstance(value, str) else bytes(value) for value in column.to_pylist()]
            if any(text.endswith(b"\0") for text in texts):
                raise BadInputError(
                    f"column '{field.name}' has bytes that end with zero, which an array of NumPy does not keep",
                    where=f"column {field.name}",
                    hint="write parquet, recordio or tfrecord, or leave the column out with --columns",
                )
            arrays[field.name] = np.array(texts)
        else:
            arrays[field.name] = column.to_numpy()
    with path.open("wb") as stream:
        np.savez(stream, **arrays)


def _write_recordio(path: Path, batches: Iterator[Any], schema: Any) -> None:
    with Writer(path) as writer:
        for record in _serialized(batches, schema):
            writer.write(record)


def _write_tfrecord(path: Path, batches: Iterator[Any], schema: Any) -> None:
    with path.open("wb") as stream:
        for record in _serialized(batches, schema):
            stream.write(frame_record(record))


_WRITERS: Mapping[str, Callable[[Path, Iterator[Any], Any], None]] = {
    "parquet": _write_parquet,
    "csv": _write_csv,
    "jsonl": _write_jsonl,
    "npz": _write_npz,
    "recordio": _write_recordio,
    "tfrecord": _write_tfrecord,
}


def _serialized(batches: Iterator[Any], schema: Any) -> Iterator[bytes]:
    """Records as bytes: as they are, or as ``tf.train.Example``."""
    for batch in batches:
        if schema is None:
            yield from (bytes(record) for record in batch)
            continue
        for row in _rows(batch):
            missing = [name for name, value in row.items() if value is None]
            if missing:
                raise _null_error(missing[0], "tf.train.Example")
            yield serialize_example(row)


def _null_error(column: str, what: str) -> BadInputError:
    return BadInputError(
        f"a value is missing in column '{column}', and {what} has none",
        where=f"column {column}",
        hint="replace missing values, or leave the column out with --columns",
    )


def _rows(table: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _to_text(value: Any, column: str) -> Any:
    """A value whose bytes are text."""
    if isinstance(value, list):
        return [_to_text(item, column) for item in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadInputError(
            f"bytes of column '{column}' are no text in UTF-8, and this format has only text",
            where="--to",
            hint="write parquet, npz, recordio or tfrecord, or leave the column out with --columns",
        ) from error
