"""Statistics in files: workers of a job write what they have summarized, and the files of all workers are merged.

A worker's file has the statistics of the ranges that the master has entered as done, and apart from these, those of
ranges of which the worker has not heard that. It is replaced before a range is reported. So each range that is done is
in a file, wherever a worker is killed, and a range that another worker did as well can be left out.

A file is a ``.npz`` without pickled objects: numbers and arrays, with a description in JSON. Sizes and types are
checked when it is read.
"""

from __future__ import annotations

import base64
import io
import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count as count_up
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from edl.api.errors import BadInputError
from edl.core.short_list import format_short_list
from edl.core.strict_json import decode_json_file
from edl.data import sketches
from edl.data.sketches import DistinctSketch, FrequentValues, Moments, QuantileSketch
from edl.data.table_statistics import ColumnStatistics, TableStatistics
from edl.data.temporary_names import temporary_path

VERSION = 1
FOLDER = "statistics"
"""In the run directory: the files of the workers, and the result."""
RESULT = "statistics.json"
_DESCRIPTION = "description"
_MOST_LEVELS = 64
_KINDS = ("number", "boolean", "text")
_Arrays = Mapping[str, Any]


class SourceRange(NamedTuple):
    """Records ``[start, end)`` of a source."""

    source: str
    start: int
    end: int

    def __str__(self) -> str:
        return f"records {self.start} to {self.end - 1} of {self.source}"

    def overlaps(self, other: SourceRange) -> bool:
        """Whether a record is in both."""
        return self.source == other.source and self.start < other.end and other.start < self.end


@dataclass(frozen=True)
class RangeStatistics:
    """Statistics of one range."""

    place: SourceRange
    statistics: TableStatistics


@dataclass
class WorkerStatistics:
    """What a worker has summarized.

    Args:
        sources: records of each file of the data set.
        done: ranges that the master has entered as done.
        statistics: of these, together.
        unconfirmed: ranges that were, or will be, reported.
    """

    sources: dict[str, int]
    done: list[SourceRange] = field(default_factory=list)
    statistics: TableStatistics = field(default_factory=TableStatistics)
    unconfirmed: list[RangeStatistics] = field(default_factory=list)

    def confirm(self, part: RangeStatistics) -> None:
        """The master has entered an unconfirmed range as done."""
        self.unconfirmed.remove(part)
        self.done = join_ranges([*self.done, part.place])
        forget_narrower_columns(self.statistics, part.statistics)
        self.statistics.merge(part.statistics)


def forget_narrower_columns(earlier: TableStatistics, later: TableStatistics) -> None:
    """Leave out what earlier ranges have of a column of CSV with a wider type by now. It has too few values then."""
    for name, column in later.columns.items():
        if name in earlier.columns and earlier.columns[name].type_name != column.type_name:
            del earlier.columns[name]


def find_wider_types(workers: Sequence[WorkerStatistics]) -> dict[str, str]:
    """Columns of CSV of which some ranges are summarized by a type that is too narrow, each with the type it needs.

    Args:
        workers: of a job on CSV: each cell has a value or is missing.
    """
    tables = [each.statistics for each in workers] + [part.statistics for each in workers for part in each.unconfirmed]
    filled = [table for table in tables if table.records]
    wider: dict[str, str] = {}
    for name in {name: None for table in filled for name in table.columns}:
        columns = [table.columns.get(name) for table in filled]
        kinds = {column.type_name for column in columns if column is not None}
        is_whole = all(
            column is not None and column.count + column.missing + column.infinite == table.records
            for table, column in zip(filled, columns, strict=True)
        )
        if len(kinds) > 1 or not is_whole:
            wider[name] = max(kinds, key=_WIDER_TYPES.index)
    return wider


_WIDER_TYPES = ("int64", "double", "string")


def join_ranges(ranges: Iterable[SourceRange]) -> list[SourceRange]:
    """The same records in as few ranges as possible, in order."""
    joined: list[SourceRange] = []
    for each in sorted(ranges):
        last = joined[-1] if joined else None
        if last is not None and last.source == each.source and each.start <= last.end:
            joined[-1] = SourceRange(each.source, last.start, max(last.end, each.end))
        else:
            joined.append(each)
    return joined


# --------------------------------------------------------------------------------------------------
# Merging.


def merge_workers(workers: Sequence[WorkerStatistics]) -> TableStatistics:
    """The statistics of a whole table, with each record once.

    Of an unconfirmed range, either all is done by its worker, so no other file has it, or the master gave it away, so
    others have all of it.

    Raises:
        BadInputError: the files are of several data sets, records are missing, or are in two files.
    """
    sources = workers[0].sources if workers else {}
    if any(worker.sources != sources for worker in workers):
        raise BadInputError("the files of the workers are of several data sets", hint="run the job again")
    merged, done = TableStatistics(), list[SourceRange]()
    for worker in workers:
        for place in worker.done:
            if (twice := next((other for other in done if place.overlaps(other)), None)) is not None:
                raise BadInputError(f"two workers have entered {place}, and {twice}", hint="run the job again")
        done += worker.done
        merged.merge(worker.statistics)
    parts = [part for worker in workers for part in worker.unconfirmed]
    for part in _choose_parts(join_ranges(done), parts, sources):
        merged.merge(part.statistics)
    return merged


def _choose_parts(
    done: Sequence[SourceRange], parts: Sequence[RangeStatistics], sources: Mapping[str, int]
) -> Iterator[RangeStatistics]:
    """Those unconfirmed ranges that together have exactly the records that are not done."""
    missing: list[SourceRange] = []
    for gap in _gaps(done, sources):
        inside = [part for part in parts if part.place.source == gap.source]
        chain = _find_chain(gap.start, gap.end, inside)
        if chain is None:
            missing.append(gap)
        else:
            yield from chain
    if missing:
        named = format_short_list(missing, 3)
        raise BadInputError(f"no worker has {named}", hint="has the job ended? edl status; continue it with --resume")


def _gaps(done: Sequence[SourceRange], sources: Mapping[str, int]) -> Iterator[SourceRange]:
    for source, records in sources.items():
        at = 0
        for place in (place for place in done if place.source == source):
            if place.end > records:
                raise BadInputError(f"a worker has {place}, which has {records} records", hint="run the job again")
            if at < place.start:
                yield SourceRange(source, at, place.start)
            at = place.end
        if at < records:
            yield SourceRange(source, at, records)


def _find_chain(start: int, end: int, parts: Sequence[RangeStatistics]) -> list[RangeStatistics] | None:
    """Parts of which each begins where the one before it ends."""
    # From the last start to the first one: what follows a part is known before the part is looked at.
    chains: dict[int, list[RangeStatistics]] = {end: []}
    for part in sorted(parts, key=lambda part: -part.place.start):
        place = part.place
        if place.start >= start and place.end in chains and place.start not in chains:
            chains[place.start] = [part, *chains[place.end]]
    return chains.get(start)


# --------------------------------------------------------------------------------------------------
# Files.


def write_worker_file(path: Path, worker: WorkerStatistics) -> None:
    """Replace a worker's file. It is on the disk when this returns."""
    content = encode_worker(worker)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_path(path)
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_worker_files(folder: Path) -> list[WorkerStatistics]:
    """The files of all workers of a run.

    Args:
        folder: the run directory, or the folder of the files.

    Raises:
        BadInputError: there is none, or one is damaged.
    """
    if (folder / FOLDER).is_dir():
        folder = folder / FOLDER
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix == ".npz" and not file.name.startswith("."))
        contents = {file: file.read_bytes() for file in files}
    except OSError as error:
        raise BadInputError(
            f"cannot be read: {error.strerror}", where=str(folder), hint="name a run directory"
        ) from error
    if not contents:
        raise BadInputError("no worker has written statistics", where=str(folder))
    return [decode_worker(content, str(file)) for file, content in contents.items()]


def encode_worker(worker: WorkerStatistics) -> bytes:
    """The content of a worker's file."""
    arrays: dict[str, Any] = {}
    numbers = count_up()

    def put(array: Any) -> str:
        name = f"a{next(numbers)}"
        arrays[name] = array
        return name

    description = {
        "version": VERSION,
        "sources": worker.sources,
        "done": worker.done,
        "statistics": _describe_table(worker.statistics, put),
        "unconfirmed": [[part.place, _describe_table(part.statistics, put)] for part in worker.unconfirmed],
    }
    text = json.dumps(description).encode()
    stream = io.BytesIO()
    arrays[_DESCRIPTION] = np.frombuffer(text, np.uint8)
    np.savez(stream, **arrays)
    return stream.getvalue()


def _describe_table(table: TableStatistics, put: Any) -> dict[str, Any]:
    return {
        "records": table.records,
        "corrupt_records": table.corrupt_records,
        "damaged": table.damaged,
        "columns": [_describe_column(column, put) for column in table.columns.values()],
    }


def _describe_column(column: ColumnStatistics, put: Any) -> dict[str, Any]:
    quantiles, frequent = column.quantiles, column.frequent
    return {
        "name": column.name,
        "type": column.type_name,
        "kind": column.kind,
        "count": column.count,
        "missing": column.missing,
        "infinite": column.infinite,
        "minimum": _put_value(column.minimum),
        "maximum": _put_value(column.maximum),
        "moments": [column.moments.count, column.moments.mean, column.moments.squares],
        "levels": [len(level) for level in quantiles.levels],
        "level_values": put(np.concatenate([np.empty(0), *quantiles.levels])),
        "takes_odd": quantiles.takes_odd,
        "rank_count": quantiles.count,
        "rank_error": quantiles.rank_error,
        "hashes": put(column.distinct.hashes),
        "frequent": None if frequent.values is None else put(_pack_array(frequent.values)),
        "counts": put(np.asarray(frequent.counts, np.int64)),
        "count_error": frequent.error,
        "is_dropped": frequent.is_dropped,
        "needs_all": frequent.needs_all,
    }


def _put_value(value: Any) -> Any:
    return {"bytes": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def _pack_array(values: Any) -> Any:
    """An Arrow array as the bytes of an IPC stream of one batch."""
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([values], names=["values"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return np.frombuffer(sink.getvalue(), np.uint8)


def decode_worker(content: bytes, where: str) -> WorkerStatistics:
    """What a worker's file says.

    Raises:
        BadInputError: it is damaged, or of another version.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            description = decode_json_file(bytes(_take(arrays, _DESCRIPTION, np.uint8)))
            _check_version(description["version"], where)
            unconfirmed = [
                RangeStatistics(_read_range(place), _read_table(table, arrays))
                for place, table in description["unconfirmed"]
            ]
            return WorkerStatistics(
                {str(source): _whole(records) for source, records in description["sources"].items()},
                [_read_range(place) for place in description["done"]],
                _read_table(description["statistics"], arrays),
                unconfirmed,
            )
    except BadInputError:
        raise
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        EOFError,
        OSError,
        zipfile.BadZipFile,
        pa.ArrowException,
    ) as error:
        raise BadInputError(
            f"the file of statistics is damaged: {error}", where=where, hint="run the job again"
        ) from error


def _check_version(version: object, where: str) -> None:
    if version != VERSION:
        raise BadInputError(
            f"the statistics have format {version}, and this version of EDL reads {VERSION}",
            where=where,
            hint="use one version of EDL in all workers and here",
        )


def _take(arrays: _Arrays, name: str, dtype: Any) -> Any:
    array = arrays[name]
    if array.dtype != np.dtype(dtype) or array.ndim != 1:
        raise ValueError(f"array {name} has type {array.dtype} and {array.ndim} axes")
    return array


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no number of records")
    return value


def _read_range(place: Sequence[Any]) -> SourceRange:
    source, start, end = place
    if not isinstance(source, str) or not _whole(start) <= _whole(end):
        raise ValueError(f"{place!r} is no range")
    return SourceRange(source, start, end)


def _read_table(table: Mapping[str, Any], arrays: _Arrays) -> TableStatistics:
    columns = [_read_column(column, arrays) for column in table["columns"]]
    return TableStatistics(
        _whole(table["records"]),
        _whole(table["corrupt_records"]),
        {column.name: column for column in columns},
        [str(place) for place in table["damaged"]],
    )


def _read_column(column: Mapping[str, Any], arrays: _Arrays) -> ColumnStatistics:
    if column["kind"] not in _KINDS:
        raise ValueError(f"kind {column['kind']!r}")
    count, mean, squares = column["moments"]
    return ColumnStatistics(
        str(column["name"]),
        str(column["type"]),
        column["kind"],
        _whole(column["count"]),
        _whole(column["missing"]),
        _whole(column["infinite"]),
        _read_value(column["minimum"]),
        _read_value(column["maximum"]),
        Moments(_whole(count), float(mean), float(squares)),
        _read_quantiles(column, arrays),
        DistinctSketch(_read_hashes(_take(arrays, column["hashes"], np.uint64))),
        _read_frequent(column, arrays),
    )


def _read_value(value: Any) -> Any:
    if isinstance(value, dict):
        return base64.b64decode(value["bytes"], validate=True)
    if value is not None and not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no value of a column")
    return value


def _read_quantiles(column: Mapping[str, Any], arrays: _Arrays) -> QuantileSketch:
    sizes, values = [_whole(size) for size in column["levels"]], _take(arrays, column["level_values"], np.float64)
    takes_odd = [bool(value) for value in column["takes_odd"]]
    if len(sizes) > _MOST_LEVELS or len(takes_odd) != len(sizes) or sum(sizes) != len(values):
        raise ValueError("the levels of a quantile sketch do not add up")
    if any(size >= 2 * sketches.LEVEL_VALUES for size in sizes) or not np.isfinite(values).all():
        raise ValueError("a level of a quantile sketch is too large, or not finite")
    levels = [part.copy() for part in np.split(values, np.cumsum(sizes)[:-1])] if sizes else []
    return QuantileSketch(levels, takes_odd, _whole(column["rank_count"]), _whole(column["rank_error"]))


def _read_hashes(hashes: Any) -> Any:
    if len(hashes) > sketches.HASHES or (len(hashes) > 1 and not (hashes[1:] > hashes[:-1]).all()):
        raise ValueError("the hashes are not sorted, or too many")
    return hashes


def _read_frequent(column: Mapping[str, Any], arrays: _Arrays) -> FrequentValues:
    values, counts = None, _take(arrays, column["counts"], np.int64)
    if column["frequent"] is not None:
        packed = _take(arrays, column["frequent"], np.uint8)
        with pa.ipc.open_stream(pa.py_buffer(packed.tobytes())) as stream:
            batch = stream.read_next_batch()
        batch.validate(full=True)
        values = batch.column(0)
    if len(counts) > sketches.COUNTERS or (0 if values is None else len(values)) != len(counts) or (counts < 0).any():
        raise ValueError("the counts of frequent values do not fit their values")
    error = _whole(column["count_error"])
    return FrequentValues(bool(column["needs_all"]), values, counts, error, bool(column["is_dropped"]))
