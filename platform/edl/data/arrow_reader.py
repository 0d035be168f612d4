"""Reads Arrow files, which are those of ``datasets.save_to_disk`` of Hugging Face too.

These are streams, without a footer: one pass over the headers of a file notes where each record batch is. A record
batch is a block, and its rows are records as those of Parquet.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc

from edl.api.errors import BadInputError
from edl.data.data_files import changed_error, file_version, read_error
from edl.data.parquet_reader import ParquetFooter, ParquetReader
from edl.data.reader import Metadata
from edl.data.remote_files import is_remote

_FILE_MAGIC = b"ARROW1\0\0"
"""Begins a file with a footer. A stream follows it, so the footer is not needed."""
_END_MARKS = (b"\xff\xff\xff\xff\0\0\0\0", b"\0\0\0\0")
_ENCODED_FIELDS = {"bytes", "path"}
"""Fields of images and sounds of Hugging Face. The bytes become the column."""


class ArrowReader(ParquetReader):
    """A data set of Arrow files with the same columns."""

    format_name, group_name = "arrow", "record batch"

    @cached_property
    def metadata(self) -> Metadata:
        """As of Parquet, and the names of classes if one column of a data set of Hugging Face has them."""
        table = super().metadata
        return Metadata(table.format, table.column_names, table.column_dtypes, self._class_names())

    def open_stream(self, path: Path) -> Any:
        """The bytes of a file, which are read by Python."""
        return path.open("rb")

    def read_footer(self, path: Path) -> ParquetFooter:
        """The record batches of a file; see the function ``read_arrow_footer``."""
        return read_arrow_footer(path)

    def read_table(self, stream: BinaryIO, footer: ParquetFooter, number: int, names: list[str]) -> pa.Table:
        """The columns ``names`` of a record batch, whose values are checked, because Arrow has no checksums."""
        start, end = footer.group_offsets[number : number + 2]
        stream.seek(start)
        content = stream.read(end - start)
        if len(content) < end - start:
            raise changed_error(cast(Path, stream.name), "it became shorter")
        schema = _read_schema(stream)
        batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(content)), schema)
        batch.validate(full=True)
        return pa.table({name: _unwrap(batch.column(name)) for name in names})

    def _class_names(self) -> tuple[str, ...]:
        for path in self._paths.values():
            try:
                features = json.loads((path.parent / "dataset_info.json").read_bytes())["features"]
                class_lists = [features[name].get("names") for name in self._schema.names if name in features]
                lists = [tuple(map(str, names)) for names in class_lists if names]
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                return ()  # the file only describes
            return lists[0] if len(lists) == 1 else ()
        return ()


def read_arrow_footer(path: Path) -> ParquetFooter:
    """Where the record batches of a file are. ``group_offsets`` has the end of the last one too.

    Raises:
        BadInputError: the file is no Arrow stream, was truncated, or has columns in the form of a dictionary.
    """
    offset = 0
    try:
        version = file_version(path.stat())
        if not version[0]:
            raise _file_error(path, 0, "the file is empty")
        with pa.PythonFile(path.open("rb"), "r") if is_remote(path) else pa.memory_map(str(path)) as source:
            offset = len(_FILE_MAGIC) if source.read(len(_FILE_MAGIC)) == _FILE_MAGIC else 0
            source.seek(offset)
            schema = pa.ipc.read_schema(pa.ipc.read_message(source))
            _ = schema.names  # raises UnicodeDecodeError
            _refuse_dictionaries(path, schema)
            offset = source.tell()
            records, offsets, total = [], [offset], 0
            while not _is_end(source, offset):
                batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), schema)
                offset = source.tell()
                records.append(batch.num_rows)
                offsets.append(offset)
                total += batch.nbytes + batch.num_rows
    except (pa.ArrowException, EOFError, UnicodeDecodeError) as error:
        raise _file_error(path, offset, str(error).splitlines()[0]) from error
    except OSError as error:
        if error.errno is None:  # Arrow's, of content
            raise _file_error(path, offset, str(error).splitlines()[0]) from error
        raise read_error(path, error) from error
    usable = pa.schema([field.with_type(_unwrapped_type(field.type)) for field in schema])
    return ParquetFooter(usable, tuple(records), tuple(offsets), total, version)


def _read_schema(stream: BinaryIO) -> pa.Schema:
    stream.seek(0)
    start = stream.read(len(_FILE_MAGIC))
    stream.seek(len(_FILE_MAGIC) if start == _FILE_MAGIC else 0)
    return pa.ipc.read_schema(pa.PythonFile(stream, mode="r"))


def _is_end(source: Any, offset: int) -> bool:
    """Whether the end mark is at an offset. A file that just ends was truncated, even between record batches."""
    mark = source.read_at(8, offset)
    source.seek(offset)  # read_at() of a file of Python moves the position
    if not mark:
        raise EOFError("the file ends without an end mark")
    return bool(mark == _END_MARKS[0] or mark[:4] == _END_MARKS[1])


def _refuse_dictionaries(path: Path, schema: pa.Schema) -> None:
    for column in schema:
        if pa.types.is_dictionary(column.type):
            raise BadInputError(
                f"column {column.name} is {column.type}: a record batch cannot be read without those before it",
                where=str(path),
                hint="write the column decoded (cast it to its value_type), or write Parquet",
            )


def _is_encoded(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) and {each.name for each in kind} == _ENCODED_FIELDS)


def _unwrapped_type(kind: pa.DataType) -> pa.DataType:
    return kind.field("bytes").type if _is_encoded(kind) else kind


def _unwrap(column: pa.Array) -> pa.Array:
    return pc.struct_field(column, "bytes") if _is_encoded(column.type) else column


def _file_error(path: Path, offset: int, reason: str) -> BadInputError:
    return BadInputError(
        f"the file cannot be read as Arrow at byte {offset}: {reason}",
        where=str(path),
        hint="it is truncated or has another format; write it again",
    )
