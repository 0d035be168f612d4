"""Reads Parquet files. A record is a row: a mapping from columns to values.

A row group is a block: to read one row of it, all of its chosen columns are decoded. The last row group stays in
memory, and shuffled training keeps those of its window. Row groups that are needed soon are decoded ahead by threads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from edl.api.errors import BadInputError
from edl.data.data_files import FileVersion, changed_error, find_source, read_error, stream_version
from edl.data.decoding_ahead import DecodingAhead
from edl.data.file_digests import SourceDigests, digest_file
from edl.data.reader import BlockSizes, CorruptRange, CorruptRecordError, Metadata, OnCorrupt, Source
from edl.data.reader_factory import ReaderOptions
from edl.data.record_columns import Column, ColumnRecords, RaggedColumn, join_records
from edl.data.remote_files import FileStat, RemoteStream, fetch_ahead, fetch_ends, is_remote

_MEMORY_FACTOR = 1.2
"""Memory of a decoded row group, of its uncompressed size in the file."""
_MOST_METADATA_BYTES = 4 << 20
"""Size in files of the footers that stay in memory as pyarrow has them, about ten times as large; the others are parsed
again for each row group."""
NULL_VALUE = "no value in column"
"""Why a row cannot be used, followed by the column's name."""


@dataclass(frozen=True)
class ParquetFooter:
    """What the end of a file says.

    Args:
        schema: all columns.
        group_records: number of rows of each row group.
        group_offsets: byte offset of each row group's first column.
        decoded_bytes: uncompressed size of all row groups.
        version: of the file.
        ranges: start and end of each column's bytes of each row group, by its name; only of a remote file.
        metadata: the footer as pyarrow has it, if it is kept and need not be parsed again for each row group.
    """

    schema: pa.Schema
    group_records: tuple[int, ...]
    group_offsets: tuple[int, ...]
    decoded_bytes: int
    version: FileVersion
    ranges: tuple[Mapping[str, tuple[int, int]], ...] = ()
    metadata: pq.FileMetaData | None = None

    @cached_property
    def first_records(self) -> tuple[int, ...]:
        """Number of each row group's first row, and at the end the number of rows."""
        return tuple(accumulate(self.group_records, initial=0))


@dataclass(frozen=True)
class RowGroup:
    """A decoded row group.

    Args:
        records: its rows.
        unusable: why a row cannot be used, by its number in the group.
    """

    records: ColumnRecords
    unusable: Mapping[int, str]


class ParquetReader:
    """A data set of Parquet files with the same columns. Other formats of such groups of rows derive from it.

    Args:
        files: the files.
        columns: the columns to read, in this order; all by default.
    """

    format_name, group_name = "parquet", "row group"

    def __init__(self, files: Sequence[Path], columns: Sequence[str] = ()) -> None:
        self._paths = {str(file): file for file in files}
        self._columns = tuple(columns)
        self._footers: dict[str, ParquetFooter] = {}
        self._metadata_bytes = 0
        # Source and number of the last row group, and its rows or why it cannot be read. One tuple, replaced as a
        # whole, because threads share it.
        self._last_group: tuple[str, int, RowGroup | str] = ("", -1, "")
        self._ahead: DecodingAhead[tuple[str, int], RowGroup | str] = DecodingAhead(
            lambda group: self._decode_group(*group), self._group_bytes
        )

    @classmethod
    def from_options(cls, files: Sequence[Path], options: Mapping[str, object]) -> ParquetReader:
        """A reader with the options of ``data.reader``: ``columns`` (all) and ``label`` (see ``CsvReader``)."""
        chosen = ReaderOptions(options, allowed_names=("columns", "label"))
        chosen.get_name("label")  # feed reports a name that is no column
        return cls(files, chosen.get_names("columns"))

    @cached_property
    def metadata(self) -> Metadata:
        """Names and types of the columns; the type of a list is that of its items."""
        return Metadata(
            self.format_name, tuple(self._schema.names), {field.name: _dtype_name(field) for field in self._schema}
        )

    def sources(self) -> tuple[Source, ...]:
        """Name (the path) and row count of each file."""
        _ = self._schema  # refuses files with different columns before any record is counted
        return tuple(Source(name, self._footer(name).first_records[-1]) for name in self._paths)

    def source_digests(self) -> SourceDigests:
        """What finds out whether each file was written again; see ``file_digests``."""
        return {name: partial(digest_file, path) for name, path in self._paths.items()}

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> Sequence[Any]:
        """Rows ``[start, end)`` of one file; see ``Reader.read``. A row without a value in a column is corrupt."""
        footer = self._footer(source)
        firsts = footer.first_records
        if not 0 <= start <= end <= firsts[-1]:
            raise BadInputError(f"rows {start} to {end} were requested, the file has {firsts[-1]}", where=source)
        parts: list[Sequence[Any]] = []
        for number, first in enumerate(firsts[:-1]):
            begin, finish = max(start, first), min(end, firsts[number + 1])
            if begin < finish:
                parts += self._read_rows(source, number, range(begin, finish), on_corrupt)
        return join_records(parts)

    def blocks(self, source: str) -> BlockSizes:
        """The row groups of one file."""
        footer = self._footer(source)
        return BlockSizes(list(footer.group_records), int(_MEMORY_FACTOR * footer.decoded_bytes))

    def fetch_ahead(self, blocks: Sequence[tuple[str, int]]) -> None:
        """Begin to read row groups that are needed next: the source of each, and the number of one of its rows.

        Those of remote files are fetched, and the first of the others are decoded.
        """
        groups = [(source, bisect_right(self._footer(source).first_records, row) - 1) for source, row in blocks]
        fetch_ahead(self._ranges_of(source, number) for source, number in groups)
        self._ahead.expect(
            group for group in dict.fromkeys(groups) if group != self._last_group[:2] and not is_remote(group[0])
        )

    def _group_bytes(self, group: tuple[str, int]) -> int:
        """Approximate memory of a decoded row group."""
        footer = self._footer(group[0])
        share = footer.group_records[group[1]] / max(1, footer.first_records[-1])
        return int(_MEMORY_FACTOR * footer.decoded_bytes * share)

    def _ranges_of(self, source: str, number: int) -> tuple[Path, FileStat, list[tuple[int, int]]]:
        footer = self._footer(source)
        ranges = footer.ranges[number] if number < len(footer.ranges) else {}
        known = set(self._schema.names)
        chosen = [place for name, place in ranges.items() if name.partition(".")[0] in known]
        return self._paths[source], FileStat(*footer.version), chosen

    def _read_rows(self, source: str, number: int, rows: range, on_corrupt: OnCorrupt | None) -> list[Sequence[Any]]:
        """Rows of one row group, which are numbered within the file."""
        group = self._read_group(source, number)
        footer = self._footer(source)
        first = footer.first_records[number]
        if isinstance(group, str):
            whole = (first, footer.first_records[number + 1])
            _report(
                CorruptRange(source, rows.start, rows.stop, number, footer.group_offsets[number], group, whole),
                on_corrupt,
            )
            return []
        bad = [row for row in rows if row - first in group.unusable] if group.unusable else []
        for row in bad:
            reason = group.unusable[row - first]
            _report(CorruptRange(source, row, row + 1, None, footer.group_offsets[number], reason), on_corrupt)
        if not bad:
            return [group.records[rows.start - first : rows.stop - first]]
        good = sorted(set(rows).difference(bad))
        return [group.records.take(np.array(good, np.int64) - first)]

    def _read_group(self, source: str, number: int) -> RowGroup | str:
        last_source, last_number, group = self._last_group
        if (last_source, last_number) != (source, number):
            self._last_group = ("", -1, "")  # frees its memory before the next one is decoded
            group = self._ahead.take((source, number))
            self._last_group = (source, number, group)
        return group

    def _decode_group(self, source: str, number: int) -> RowGroup | str:
        """A row group, or why it cannot be read."""
        path, footer = self._paths[source], self._footer(source)
        try:
            with self.open_stream(path) as stream:
                if stream_version(stream) != footer.version:
                    raise changed_error(path)
                table = self.read_table(stream, footer, number, list(self._schema.names))
        except pa.ArrowException as error:
            return f"{self.group_name} {number}: {str(error).splitlines()[0]}"
        except OSError as error:
            if error.errno is None:  # Arrow's, of content
                return f"{self.group_name} {number}: {str(error).splitlines()[0]}"
            raise read_error(path, error) from error
        if table.num_rows != footer.group_records[number]:  # the footer has no checksum
            return f"{self.group_name} {number}: it has {table.num_rows} rows, not {footer.group_records[number]}"
        return to_row_group(table.select(self._schema.names))

    def open_stream(self, path: Path) -> Any:
        """The bytes of a file. Arrow's threads read those of this machine without Python."""
        return path.open("rb") if is_remote(path) else pa.OSFile(str(path))

    def read_footer(self, path: Path) -> ParquetFooter:
        """What a file says of its groups; see the function of this name."""
        return read_footer(path)

    def read_table(self, stream: Any, footer: ParquetFooter, number: int, names: list[str]) -> pa.Table:
        """The columns ``names`` of a group.

        Raises:
            pa.ArrowException: the group is damaged.
        """
        file = pq.ParquetFile(stream, metadata=footer.metadata, page_checksum_verification=True)
        if isinstance(remote := getattr(stream, "raw", None), RemoteStream):
            wanted = set(names)
            remote.prefetch([at for name, at in footer.ranges[number].items() if name.partition(".")[0] in wanted])
        return file.read_row_group(number, columns=names, use_threads=True)

    def _footer(self, source: str) -> ParquetFooter:
        path = find_source(self._paths, source)
        if source not in self._footers:
            footer = self.read_footer(path)
            if footer.metadata is not None:
                self._metadata_bytes += footer.metadata.serialized_size
                if self._metadata_bytes > _MOST_METADATA_BYTES:
                    footer = replace(footer, metadata=None)
            self._footers[source] = footer
        return self._footers[source]

    @cached_property
    def _schema(self) -> pa.Schema:
        """The chosen columns, which must have the same types in all files.

        Raises:
            BadInputError: files differ, a column does not exist, or its type is none of a feature.
        """
        first, *others = self._paths
        fetch_ends(self._paths.values())
        chosen = self._choose(first)
        known = set(chosen.names)
        for other in others:
            other_schema = self._choose(other)
            extra = [name for name in self._footer(other).schema.names if name not in known]
            if extra and not self._columns:
                raise BadInputError(
                    f"column {', '.join(extra)} is not in {first}",
                    where=other,
                    hint="all files of a data set must have the same columns with the same types, or name those that "
                    "all have in data.reader.columns or data.schema.features",
                )
            different = [field for field in chosen if other_schema.field(field.name).type != field.type]
            if different:
                name = different[0].name
                raise BadInputError(
                    f"column {name} is {other_schema.field(name).type}, in {first} it is {different[0].type}",
                    where=other,
                    hint="all files of a data set must have the same columns with the same types",
                )
        return chosen

    def _choose(self, source: str) -> pa.Schema:
        schema = self._footer(source).schema
        names = self._columns or self._footer(next(iter(self._paths))).schema.names
        if not names:
            raise BadInputError("the file has no columns", where=source, hint="write it again, or remove it")
        counts = Counter(schema.names)
        missing = [name for name in names if name not in counts]
        if missing:
            raise BadInputError(
                f"no column {', '.join(missing)} in {source}",
                where="data.reader.columns" if self._columns else source,
                hint=f"the file has the columns {', '.join(schema.names)}",
            )
        for name in names:
            if counts[name] > 1:
                raise BadInputError(
                    f"the file has two columns {name}",
                    where=source,
                    hint="write it with names that differ, or name the other columns in data.reader.columns",
                )
            if (reason := _unusable_type(schema.field(name).type)) is not None:
                raise BadInputError(
                    f"column {name} of {source} is {schema.field(name).type}: {reason}",
                    where="data.reader.columns",
                    hint="name the other columns there, or convert this one when you write the file",
                )
        return pa.schema([schema.field(name) for name in names])


def _report(corrupt: CorruptRange, on_corrupt: OnCorrupt | None) -> None:
    if on_corrupt is None:
        raise CorruptRecordError(corrupt)
    on_corrupt(corrupt)


def read_footer(path: Path) -> ParquetFooter:
    """The footer of a file.

    Raises:
        BadInputError: the file is not Parquet, or was truncated.
    """
    try:
        with path.open("rb") as stream:
            version = stream_version(stream)
            metadata = pq.ParquetFile(stream).metadata
        schema = metadata.schema.to_arrow_schema()
        _ = schema.names  # raises UnicodeDecodeError
        counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        if min(counts, default=0) < 0 or sum(counts) != metadata.num_rows:
            raise pa.ArrowInvalid(f"its row groups have {sum(counts)} rows, and its footer says {metadata.num_rows}")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise read_error(path, error) from error
        raise BadInputError(
            f"the file cannot be read as Parquet: {str(error).splitlines()[0]}",
            where=str(path),
            hint="it is truncated or has another format; write it again",
        ) from error
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return ParquetFooter(
        schema,
        tuple(group.num_rows for group in groups),
        tuple(
            group.column(0).file_offset or group.column(0).data_page_offset if group.num_columns else 0
            for group in groups
        ),
        sum(group.total_byte_size for group in groups),
        version,
        tuple(_column_ranges(group) for group in groups) if is_remote(path) else (),
        metadata,
    )


def _column_ranges(group: Any) -> dict[str, tuple[int, int]]:
    ranges = {}
    for at in range(group.num_columns):
        column = group.column(at)
        start = column.data_page_offset
        if column.has_dictionary_page and column.dictionary_page_offset:
            start = min(start, column.dictionary_page_offset)
        ranges[column.path_in_schema] = (start, start + column.total_compressed_size)
    return ranges


# --------------------------------------------------------------------------------------------------
# Arrow's types as those of features.


def _unusable_type(kind: pa.DataType) -> str | None:
    """Why a column of this type cannot be a feature; None: it can."""
    if _is_list(kind):
        return None if _unusable_type(kind.value_type) is None else "lists contain numbers, text, or lists of these"
    return None if _is_scalar(kind) else "features are numbers, booleans, text, bytes, times, or lists of them"


def _is_scalar(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_scalar(kind.value_type)
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_temporal(kind)
        or _is_text(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    return kind.id in _TEXT_IDS


# Of each column of each row group is asked what it is, which one look-up answers faster than five calls.
_TEXT_IDS = frozenset(
    kind.id for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(1))
)
_LIST_IDS = frozenset(kind.id for kind in (pa.list_(pa.int8()), pa.large_list(pa.int8()), pa.list_(pa.int8(), 1)))


def _dtype_name(field: pa.Field) -> str:
    kind = field.type
    while _is_list(kind):
        kind = kind.value_type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if _is_text(kind):
        return "string"
    if pa.types.is_decimal(kind):
        return "float64"
    if pa.types.is_temporal(kind):
        return "int64"
    return "bool" if pa.types.is_boolean(kind) else np.dtype(kind.to_pandas_dtype()).name


def to_row_group(table: pa.Table) -> RowGroup:
    """The rows of a table. A row with NULL in a column is refused: it is named as unusable, a corrupt record."""
    unusable: dict[int, str] = {}
    columns: dict[str, Column] = {}
    for name, chunked in zip(table.column_names, table.columns, strict=True):
        array = _combine(chunked)
        for row in _missing_rows(array):
            unusable.setdefault(row, f"{NULL_VALUE} {name}")
        columns[name] = _to_column(array)
    return RowGroup(ColumnRecords(columns), unusable)


def _combine(chunked: pa.ChunkedArray) -> pa.Array:
    combined = chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):  # of no or of very long chunks
        combined = pa.concat_arrays(combined.chunks) if combined.num_chunks else pa.array([], combined.type)
    return combined.dictionary_decode() if pa.types.is_dictionary(combined.type) else combined


def _missing_rows(array: pa.Array) -> list[int]:
    """Rows that have NULL, or a list with NULL in it."""
    missing = np.asarray(pc.is_null(array)).nonzero()[0].tolist() if array.null_count else []
    if _is_list(array.type) and (bad := _missing_rows(array.flatten())):
        parents = np.asarray(pc.list_parent_indices(array))
        missing += sorted(set(parents[bad].tolist()))
    return [int(row) for row in missing]


def _is_list(kind: pa.DataType) -> bool:
    return kind.id in _LIST_IDS


def _to_column(array: pa.Array) -> Column:
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        # With the items of missing lists: a row group with one has the form of the others.
        items = _to_column(array.values.slice(array.offset * size, len(array) * size))
        if isinstance(items, RaggedColumn):
            return RaggedColumn(items, np.arange(len(array) + 1) * size)
        return items.reshape(len(array), size, *items.shape[1:])
    if _is_list(array.type):
        lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0), np.int64)
        return RaggedColumn(_to_column(array.flatten()), np.concatenate(([0], np.cumsum(lengths))))
    return _to_values(array)


def _to_values(array: pa.Array) -> npt.NDArray[Any]:
    """Values as NumPy's; a missing value becomes 0 or empty, and its row is not used."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if pa.types.is_temporal(kind):
        array = array.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64())
    elif pa.types.is_decimal(kind):
        array = array.cast(pa.float64())
    elif _is_text(kind):
        array = array.cast(pa.large_binary())
        return np.array((pc.fill_null(array, b"") if array.null_count else array).to_pylist(), dtype=object)
    if array.null_count:
        array = pc.fill_null(array, False if pa.types.is_boolean(array.type) else 0)
    values = array.to_numpy(zero_copy_only=False)
    return values if values.flags.writeable else _writable_values(array, values)


def _writable_values(array: pa.Array, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Numbers that an Arrow array holds: its memory itself where it was decoded for it, otherwise a copy."""
    memory = array.buffers()[-1]
    if memory is None or not memory.is_mutable or not memory.size:
        return values.copy()
    return np.frombuffer(memory, values.dtype, len(array), array.offset * values.itemsize)
