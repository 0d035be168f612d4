"""Parquet files of a result whose types may widen while it is read: row groups of bounded memory, and a digest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from edl.api.errors import BadInputError
from edl.storage.durable_files import sync_file

_MOST_GROUP_ROWS, _FEWEST_GROUP_ROWS = 65_536, 1024
_GROUP_CELLS = 1 << 23
_GROUP_BYTES = 64 << 20
_PART_GROUPS = 16
_SEEN_TEXTS = 4096


class NoRowsError(BadInputError):
    """The query has no rows."""


def choose_group_rows(columns: int) -> int:
    """Rows of a row group: a power of two, fewer where there are many columns."""
    wanted = min(_MOST_GROUP_ROWS, max(_FEWEST_GROUP_ROWS, _GROUP_CELLS // max(1, columns)))
    return 1 << (wanted.bit_length() - 1)


class PartWriter:
    """Writes batches into files of a folder. Batches may have other types than those before: wider ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._schemas: list[pa.Schema] = []
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._groups = 0
        self._digest: ContentDigest | None = None
        self._nulls: Any = 0
        self.rows = 0

    @property
    def files(self) -> list[Path]:
        """The files, in the order of their rows."""
        return [self._name(number) for number in range(len(self._schemas))]

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        if self._pending and batch.schema != self._pending[0].schema:
            self._write_group()
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        self.rows += batch.num_rows
        group_rows = choose_group_rows(batch.num_columns)
        while self._pending_rows >= group_rows or self._pending_bytes >= _GROUP_BYTES:
            self._write_group(group_rows)

    def finish(self) -> tuple[pa.Schema, Sequence[int], str]:
        """Complete the files: their schema, the NULLs of each column, and the digest of the content.

        Raises:
            NoRowsError: there are no rows.
        """
        if not self.rows:
            raise NoRowsError("has no rows", where="the query", hint="check its WHERE and its tables")
        self._write_group()
        self._close_part()
        last = self._schemas[-1]
        # No value at all: a column of numbers without any.
        final = pa.schema([field.with_type(final_type(field.type)) for field in last])
        if any(schema != final for schema in self._schemas):
            self._rewrite(final)
        assert self._digest is not None
        return final, [int(each) for each in self._nulls], self._digest.hexdigest()

    def close(self) -> None:
        """End without completing anything."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _name(self, number: int) -> Path:
        return self._folder / f"part-{number:05}.parquet"

    def _write_group(self, most_rows: int | None = None) -> None:
        if not self._pending:
            return
        table = pa.Table.from_batches(self._pending)
        rows = table.num_rows if most_rows is None else min(most_rows, table.num_rows)
        rest = table.slice(rows)
        table = table.slice(0, rows).combine_chunks()
        self._pending = rest.to_batches()
        self._pending_rows, self._pending_bytes = rest.num_rows, rest.nbytes
        self._write_table(table)

    def _write_table(self, table: pa.Table) -> None:
        schema = table.schema
        if self._writer is None or self._groups == _PART_GROUPS or schema != self._schemas[-1]:
            self._close_part()
            if self._digest is None:
                self._digest = ContentDigest(schema)
            self._schemas.append(schema)
            self._writer = self._open(self._name(len(self._schemas) - 1), table)
            self._groups = 0
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._groups += 1
        assert self._digest is not None
        self._digest.update(table)
        self._nulls = self._nulls + np.array([column.null_count for column in table.columns])

    def _open(self, path: Path, first: pa.Table) -> pq.ParquetWriter:
        repeated = [field.name for field in first.schema if _is_repeated_text(first[field.name])]
        # Statistics of thousands of columns are most of a footer.
        return pq.ParquetWriter(
            path, first.schema, compression="lz4", use_dictionary=repeated, write_statistics=False, store_schema=True
        )

    def _close_part(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            sync_file(self._name(len(self._schemas) - 1))

    def _rewrite(self, final: pa.Schema) -> None:
        """Give every part the final types; the digest is one of these."""
        self._digest = ContentDigest(final)
        for number, schema in enumerate(self._schemas):
            path = self._name(number)
            if schema == final:
                for table in _groups(path):
                    self._digest.update(table)
                continue
            temporary = path.with_suffix(".tmp")
            with ExitStack() as stack:
                writer: pq.ParquetWriter | None = None
                for table in _groups(path):
                    widened = table.cast(final)
                    writer = writer or stack.enter_context(self._open(temporary, widened))
                    writer.write_table(widened, row_group_size=max(1, widened.num_rows))
                    self._digest.update(widened)
            sync_file(temporary)
            temporary.replace(path)
            self._schemas[number] = final


def _is_repeated_text(column: pa.ChunkedArray) -> bool:
    """Whether the first texts of a column come again. For others a dictionary takes time and saves nothing."""
    first = column[:_SEEN_TEXTS]
    return bool(pa.types.is_string(column.type) and 2 * pc.count_distinct(first).as_py() <= len(first))


def final_type(kind: pa.DataType) -> pa.DataType:
    """The type of a column whose values had a type so far."""
    return pa.float64() if pa.types.is_null(kind) else kind


def _groups(path: Path) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            yield file.read_row_group(number)


class ContentDigest:
    """SHA-256 of names, types and values, whichever way the rows are divided into groups."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._columns: list[Any] | None = None

    def update(self, table: pa.Table) -> None:
        """Add rows."""
        if self._columns is None:
            self._columns = [[sha256() for _ in range(_HASHES)] for _ in self._schema]
        for hashes, column in zip(self._columns, table.columns, strict=True):
            for chunk in column.chunks:
                _hash_array(chunk, hashes)

    def hexdigest(self) -> str:
        """The digest of all rows so far."""
        whole = sha256()
        for field, hashes in zip(self._schema, self._columns or [], strict=True):
            name = field.name.encode()
            whole.update(f"{len(name)}:".encode() + name + str(field.type).encode())
            for each in hashes:
                whole.update(each.digest())
        return whole.hexdigest()


def _hash_array(array: pa.Array, hashes: Sequence[Any]) -> None:
    """Add which values there are, lengths of texts and lists, and values. What lies under a NULL is undefined."""
    valid, lengths, values = hashes[:3]
    kind = array.type
    valid.update(np.ascontiguousarray(array.is_valid().to_numpy(zero_copy_only=False)).view(np.uint8))
    if pa.types.is_null(kind):
        return
    if pa.types.is_list(kind):
        lengths.update(array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype("<i4"))
        _hash_array(array.flatten(), hashes[2:])
        return
    if pa.types.is_string(kind):
        if array.null_count:
            array = array.fill_null("")
        offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
        lengths.update(np.diff(offsets).astype("<i4"))
        data = array.buffers()[2]
        if data is not None and len(offsets):
            values.update(memoryview(data)[offsets[0] : offsets[-1]])
        return
    if pa.types.is_boolean(kind):
        values.update(np.ascontiguousarray(array.fill_null(False).to_numpy(zero_copy_only=False)).view(np.uint8))
        return
    whole = array.view(_INTEGERS[kind.bit_width])
    if whole.null_count:
        whole = whole.fill_null(0)
    values.update(np.ascontiguousarray(whole.to_numpy()))


_HASHES = 5
"""Of a column: three for its cells, or two for lists and three for what is in them."""
_INTEGERS = {32: pa.int32(), 64: pa.int64()}
