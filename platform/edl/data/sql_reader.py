"""Reads tables and results of databases. A record is a row: a mapping from columns to values, as of Parquet.

Rows are numbered in the order of a unique key. One pass finds the number of rows and the key at which each block
begins; a block is then ``WHERE key >= a AND key < b``, so any worker reads any range without the rows before it. The
master of a run makes this index, and the other processes read it where they see the run's folder. Its digest is part of
the source's name: processes that found different rows do not agree on a name, and so never mix their numbers.
"""

from __future__ import annotations

import datetime
import decimal
import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from edl.api.errors import BadInputError
from edl.core.short_list import format_short_list
from edl.data.database import Database, as_subquery_text, check_select, distinct_names
from edl.data.parquet_reader import RowGroup, to_row_group
from edl.data.reader import BlockSizes, CorruptRange, CorruptRecordError, Metadata, OnCorrupt, Source
from edl.data.reader_factory import ReaderOptions
from edl.data.record_columns import join_records
from edl.data.temporary_names import temporary_path
from edl.jobfile.database_address import split_table

_log = logging.getLogger(__name__)
_SAMPLE_ROWS = 64
_BLOCK_BYTES = 256 << 10
_MOST_BLOCK_ROWS = 1024
_FEWEST_BLOCK_ROWS = 16
_CELL_BYTES = 8
_INDEX_ROWS_AT_ONCE = 1000
_MOST_INTEGER = 1 << 63
_CAST_HINT = "convert it in data.reader.query with CAST, or name the other columns in data.reader.columns"

_ARROW_TYPES: dict[type, tuple[pa.DataType, str]] = {
    bool: (pa.bool_(), "bool"),
    int: (pa.int64(), "int64"),
    float: (pa.float64(), "float64"),
    str: (pa.string(), "string"),
    bytes: (pa.binary(), "string"),
    datetime.date: (pa.date32(), "int64"),
    datetime.datetime: (pa.timestamp("us"), "int64"),
    datetime.time: (pa.time64("us"), "int64"),
    datetime.timedelta: (pa.duration("us"), "int64"),
}
"""Types of Python's values, and for each Arrow's and the name of TensorFlow's."""


@dataclass(frozen=True)
class SqlIndex:
    """Where the blocks of a source begin.

    Args:
        records: number of rows.
        block_rows: rows of each block but the last.
        starts: the key of each block's first row.
        row_bytes: average memory of a row.
    """

    records: int
    block_rows: int
    starts: Sequence[Any]
    row_bytes: int

    @cached_property
    def digest(self) -> str:
        """What differs for other rows, if the number of rows or the keys of blocks do."""
        content = json.dumps([self.records, self.block_rows, [str(start) for start in self.starts]])
        return sha256(content.encode()).hexdigest()[:8]


class SqlReader:
    """A data set of tables, or of results of a query.

    Args:
        addresses: of databases, each perhaps with a table after ``#``.
        key: the column that orders the rows: unique, without NULL.
        query: a SELECT for the addresses without a table.
        table: for these, in place of the query.
        columns: the columns to read, in this order; by default all.
        snapshot: of PostgreSQL, exported by a connection that is open as long as anybody reads.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        key: str,
        query: str = "",
        table: str = "",
        columns: Sequence[str] = (),
        snapshot: str = "",
    ) -> None:
        self._sources = [_SqlSource(address, key, query, table, tuple(columns), snapshot) for address in addresses]

    @classmethod
    def from_options(cls, addresses: Sequence[str], options: Mapping[str, object]) -> SqlReader:
        """A reader with the options of ``data.reader``: ``key``, and ``query`` or ``table``; the rest is optional."""
        chosen = ReaderOptions(options, allowed_names=("query", "table", "key", "columns", "label", "snapshot"))
        chosen.get_name("label")  # feed reports a name that is no column
        query, table, key, snapshot = (chosen.get_name(name) for name in ("query", "table", "key", "snapshot"))
        if not key:
            raise BadInputError(
                "is missing", where="data.reader.key", hint="name a column with a unique value in each row, such as id"
            )
        if query and table:
            raise BadInputError("there is a query, too", where="data.reader.table", hint="leave one of the two out")
        if query:
            check_select(query, "data.reader.query")
        for address in addresses:
            if not (query or table or split_table(address)[1]):
                raise BadInputError(
                    "no table is named",
                    where=split_table(address)[0],
                    hint="write it after the address (#orders), or set data.reader.table or data.reader.query",
                )
        return cls(addresses, key, query, table, chosen.get_names("columns"), snapshot)

    @cached_property
    def metadata(self) -> Metadata:
        """Names and types of the columns, which must be the same in all sources."""
        first, *others = self._sources
        for other in others:
            different = [name for name, kind in first.types.items() if other.types.get(name) != kind]
            if different or len(other.types) != len(first.types):
                name = (different or sorted(set(other.types) - set(first.types)))[0]
                raise BadInputError(
                    f"column {name} has another type than in {first.address}, or is in one of them only",
                    where=other.address,
                    hint="all sources of a data set need the same columns; name those in data.reader.columns",
                )
        return Metadata("sql", tuple(first.types), {name: _ARROW_TYPES[kind][1] for name, kind in first.types.items()})

    def sources(self) -> tuple[Source, ...]:
        """Address, table and digest, and row count of each source."""
        _ = self.metadata
        return tuple(Source(each.name, each.index.records) for each in self._sources)

    def share_index(self, folder: Path, *, makes: bool) -> None:
        """Keep the indexes in a folder.

        Args:
            folder: of a run.
            makes: this process makes the indexes anew and saves them; others read them, if they are there.
        """
        for each in self._sources:
            each.share_index(folder, makes=makes)

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> Sequence[Any]:
        """Rows ``[start, end)`` of one source; see ``Reader.read``. A row without a value in a column is corrupt."""
        opened = self._find(source)
        index = opened.index
        if not 0 <= start <= end <= index.records:
            raise BadInputError(f"rows {start} to {end} were requested, there are {index.records}", where=source)
        _ = self.metadata
        parts: list[Sequence[Any]] = []
        for number in range(start // index.block_rows, -(-end // index.block_rows) if end > start else 0):
            first = number * index.block_rows
            rows = range(max(start, first), min(end, first + index.block_rows))
            parts += self._take_rows(opened, source, opened.read_block(number), rows, first, on_corrupt)
        if not parts:
            return to_row_group(opened.empty_table).records
        return join_records(parts)

    def _take_rows(
        self, opened: _SqlSource, source: str, group: RowGroup, rows: range, first: int, on_corrupt: OnCorrupt | None
    ) -> list[Sequence[Any]]:
        bad = [row for row in rows if row - first in group.unusable]
        for row in bad:
            corrupt = CorruptRange(source, row, row + 1, None, 0, group.unusable[row - first])
            if on_corrupt is None:
                raise CorruptRecordError(corrupt)
            on_corrupt(corrupt)
        if not bad:
            return [group.records[rows.start - first : rows.stop - first]]
        return [group.records.take(np.array(sorted(set(rows).difference(bad)), np.int64) - first)]

    def blocks(self, source: str) -> BlockSizes:
        """The blocks of one source, each of them one query."""
        index = self._find(source).index
        full, rest = divmod(index.records, index.block_rows)
        return BlockSizes([index.block_rows] * full + [rest] * bool(rest), index.row_bytes * index.records)

    def _find(self, source: str) -> _SqlSource:
        for each in self._sources:
            if each.name == source:
                return each
            if source.startswith(each.prefix):
                raise each.database.changed("its rows are others than when the job counted them")
        raise BadInputError("no such source in this data set", where=source)


class _SqlSource:
    """One table, or the result of one query. Threads share it."""

    def __init__(self, address: str, key: str, query: str, table: str, columns: tuple[str, ...], snapshot: str) -> None:
        place, own_table = split_table(address)
        self.address = address
        self.database = Database(place, snapshot=snapshot)
        self._key, self._columns = key, columns
        self._table = own_table or table
        self._query = "" if own_table else query
        described = repr((self.prefix, self._query, key, columns, snapshot))
        self._index_name = f"rows-{sha256(described.encode()).hexdigest()[:12]}.json"
        self._index_file: Path | None = None
        self._makes_index = True
        # Number of the last block and its rows. One tuple, replaced as a whole, because threads share it.
        self._last: tuple[int, RowGroup] | None = None

    def share_index(self, folder: Path, *, makes: bool) -> None:
        """See ``SqlReader.share_index``."""
        self._index_file, self._makes_index = folder / self._index_name, makes

    @property
    def prefix(self) -> str:
        """The name without its digest."""
        return f"{self.address}@" if "#" in self.address else f"{self.address}#{self._table or 'query'}@"

    @cached_property
    def name(self) -> str:
        """What master and workers call it."""
        return f"{self.prefix}{self.index.digest}"

    @property
    def index(self) -> SqlIndex:
        """Where its blocks begin; the first use reads all keys."""
        return self._opened[1]

    @property
    def types(self) -> Mapping[str, type]:
        """The columns of a record, and the type of each in Python."""
        return self._opened[2]

    @property
    def empty_table(self) -> pa.Table:
        """No rows."""
        return pa.table({name: pa.array([], _ARROW_TYPES[kind][0]) for name, kind in self.types.items()})

    @cached_property
    def _opened(self) -> tuple[Any, SqlIndex, Mapping[str, type]]:
        return self.database.run(self._open)

    def _open(self, connection: Any) -> tuple[Any, SqlIndex, Mapping[str, type]]:
        rows = self._find_rows(connection)
        names = self._choose_columns([column.name for column in rows.columns])
        saved = None if self._index_file is None or self._makes_index else load_index(self._index_file)
        if saved is None:
            self._check_key(connection, rows)
        sample = self._fetch(connection, rows, names, limit=_SAMPLE_ROWS)
        types = {
            name: self._find_type(connection, rows, name, [row[at] for row in sample])
            for at, name in enumerate(names, 1)
        }
        if saved is not None:
            return rows, saved, types
        row_bytes = max(1, sum(_size(cell) for row in sample for cell in row[1:]) // max(1, len(sample)))
        wanted = max(_FEWEST_BLOCK_ROWS, min(_MOST_BLOCK_ROWS, _BLOCK_BYTES // row_bytes))
        block_rows = 1 << (wanted.bit_length() - 1)
        index = self._make_index(connection, rows, block_rows, row_bytes)
        if self._index_file is not None and self._makes_index:
            save_index(self._index_file, index)
        return rows, index, types

    def _find_rows(self, connection: Any) -> Any:
        """The table, or the query as a subquery; names are quoted by SQLAlchemy."""
        import sqlalchemy as sa

        if self._query:
            text = as_subquery_text(self._query)
            where = "data.reader.query"
            # The last line of a query may be a comment.
            empty = sa.text(f"SELECT * FROM ({text}\n) AS edl_rows WHERE 1 = 0")  # noqa: S608 - the user's own SELECT
            names = list(connection.execute(empty).keys())
            distinct_names(names, where)
            return sa.text(f"{text}\n").columns(*[sa.column(name) for name in names]).subquery("edl_rows")
        inspector = sa.inspect(connection)
        schema, name = None, self._table
        if not inspector.has_table(name) and "." in name:
            schema, _, name = name.partition(".")
        if not inspector.has_table(name, schema=schema):
            known = sorted([*inspector.get_table_names(), *inspector.get_view_names()])
            hint = f"the database has {format_short_list(known, 10) or 'no tables'}"
            raise BadInputError(f"there is no table {self._table}", where=self.address, hint=hint)
        return sa.Table(name, sa.MetaData(), schema=schema, autoload_with=connection, resolve_fks=False)

    def _choose_columns(self, table_columns: list[str]) -> list[str]:
        missing = [name for name in (self._key, *self._columns) if name not in table_columns]
        if missing:
            raise BadInputError(
                f"there is no column {', '.join(missing)}",
                where="data.reader.key" if self._key in missing else "data.reader.columns",
                hint=f"{self.address} has the columns {', '.join(table_columns)}",
            )
        return list(self._columns or table_columns)

    def _check_key(self, connection: Any, rows: Any) -> None:
        import sqlalchemy as sa

        key = rows.c[self._key]
        is_primary = isinstance(rows, sa.Table) and [*rows.primary_key.columns] == [key]
        counts = [sa.func.count(), sa.func.count(key)]
        if not is_primary:
            counts.append(sa.func.count(sa.distinct(key)))
        total, filled, *distinct = connection.execute(sa.select(*counts).select_from(rows)).one()
        if filled != total:
            raise BadInputError(
                f"column {self._key} is NULL in {total - filled} rows, so it cannot be the key",
                where=self.address,
                hint="name a column with a unique value in each row, or leave these rows out in data.reader.query",
            )
        if distinct and distinct[0] != total:
            raise BadInputError(
                f"column {self._key} has {distinct[0]} values in {total} rows, so it cannot be the key",
                where=self.address,
                hint="name a column with a unique value in each row",
            )

    def _find_type(self, connection: Any, rows: Any, name: str, cells: list[Any]) -> type:
        """The type of a column: that of its first values."""
        import sqlalchemy as sa

        kinds = {_kind(cell) for cell in cells if cell is not None}
        if not kinds:
            column = rows.c[name]
            first = sa.select(column).where(column.is_not(None)).order_by(rows.c[self._key]).limit(1)
            first_row = connection.execute(first).first()
            if first_row is None and cells:
                raise BadInputError(
                    f"column {name} has no value in any row", where=self.address, hint="leave it out of the columns"
                )
            kinds = {float} if first_row is None else {_kind(first_row[0])}
        if kinds == {int, float}:
            return float
        kind = next(iter(kinds))
        if len(kinds) > 1 or kind not in _ARROW_TYPES:
            listed = " and ".join(sorted(each.__name__ for each in kinds))
            raise BadInputError(f"column {name} has values of the type {listed}", where=self.address, hint=_CAST_HINT)
        return kind

    def _make_index(self, connection: Any, rows: Any, block_rows: int, row_bytes: int) -> SqlIndex:
        import sqlalchemy as sa

        key = rows.c[self._key]
        number = (sa.func.row_number().over(order_by=key) - 1).label("edl_number")
        numbered = sa.select(key.label("edl_key"), number).subquery("edl_numbered")
        firsts = (
            sa.select(numbered.c.edl_key)
            .where(numbered.c.edl_number % block_rows == 0)
            .order_by(numbered.c.edl_number)
            .execution_options(yield_per=_INDEX_ROWS_AT_ONCE)
        )
        total = connection.execute(sa.select(sa.func.count()).select_from(rows)).scalar_one()
        starts = [row[0] for row in connection.execute(firsts)]
        if len(starts) != -(-total // block_rows):
            raise self.database.changed("while its rows were counted")
        return SqlIndex(int(total), block_rows, starts, row_bytes)

    def _fetch(
        self, connection: Any, rows: Any, names: list[str], *, limit: int | None = None, where: Sequence[Any] = ()
    ) -> list[Any]:
        """Rows in the order of the key, which comes first in each."""
        import sqlalchemy as sa

        key = rows.c[self._key]
        chosen = sa.select(key.label("edl_key"), *[rows.c[name].label(f"edl_{at}") for at, name in enumerate(names)])
        query = chosen.where(*where).order_by(key)
        return list(connection.execute(query if limit is None else query.limit(limit)).all())

    def read_block(self, number: int) -> RowGroup:
        last = self._last
        if last is not None and last[0] == number:
            return last[1]
        group = self._query_block(number)
        self._last = (number, group)
        return group

    def _query_block(self, number: int) -> RowGroup:
        rows, index, types = self._opened
        key, starts = rows.c[self._key], index.starts
        where = [key >= starts[number]]
        if number + 1 < len(starts):
            where.append(key < starts[number + 1])
        cell_rows = self.database.run(lambda connection: self._fetch(connection, rows, list(types), where=where))
        expected = min(index.block_rows, index.records - number * index.block_rows)
        keys = [row[0] for row in cell_rows]
        if len(cell_rows) != expected or keys[0] != starts[number] or any(a == b for a, b in pairwise(keys)):
            raise self.database.changed(f"{len(cell_rows)} rows are where {expected} were counted, from {keys[:1]} on")
        return _to_group(self._key, keys, types, cell_rows)


# --------------------------------------------------------------------------------------------------
# The index in a file. Keys of other types than these are read by each process.


_KEY_CODECS: Mapping[str, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    "date": (datetime.date.isoformat, datetime.date.fromisoformat),
    "datetime": (datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "Decimal": (str, decimal.Decimal),
    "UUID": (str, uuid.UUID),
    "bytes": (bytes.hex, bytes.fromhex),
}
_PLAIN_KEYS = ("int", "str")


def save_index(file: Path, index: SqlIndex) -> None:
    """Save an index. If it cannot be written, or one of an earlier start removed, that is no error."""
    kinds = {type(start).__name__ for start in index.starts}
    kind = kinds.pop() if len(kinds) == 1 else ""
    temporary = temporary_path(file)
    try:
        file.unlink(missing_ok=True)
        if kind not in (*_PLAIN_KEYS, *_KEY_CODECS):
            return
        write = str if kind == "str" else int if kind == "int" else _KEY_CODECS[kind][0]
        starts = [write(start) for start in index.starts]
        document = {"kind": kind, "starts": starts, "rows": [index.records, index.block_rows, index.row_bytes]}
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(document), encoding="utf-8")
        temporary.replace(file)  # atomic: others read it
    except OSError as error:
        _log.info("each process makes the index of rows for itself: %s", error)


def load_index(file: Path) -> SqlIndex | None:
    """A saved index; None: there is none, or it cannot be used."""
    try:
        return _parse_index(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, decimal.InvalidOperation) as error:
        _log.info("the index %s cannot be used: %s", file, error)
        return None


def _parse_index(text: str) -> SqlIndex:
    document = json.loads(text)
    kind, starts = document["kind"], list(document["starts"])
    records, block_rows, row_bytes = map(int, document["rows"])
    if kind not in _PLAIN_KEYS:
        starts = [_KEY_CODECS[kind][1](start) for start in starts]
    if not (records > 0 and block_rows > 0 and len(starts) == -(-records // block_rows)):
        raise ValueError("its numbers do not fit")
    return SqlIndex(records, block_rows, starts, row_bytes)


def _kind(cell: object) -> type:
    """The type of a value as one of ``_ARROW_TYPES``, if it is one."""
    if isinstance(cell, decimal.Decimal):
        return float
    if isinstance(cell, uuid.UUID):
        return str
    if isinstance(cell, memoryview | bytearray):
        return bytes
    return type(cell)


def _size(cell: object) -> int:
    return _CELL_BYTES + (len(cell) if isinstance(cell, str | bytes | memoryview | bytearray) else 0)


def _to_group(key: str, keys: Sequence[Any], types: Mapping[str, type], rows: Sequence[Any]) -> RowGroup:
    """The rows as columns; a row with a value of another type than its column has is unusable."""
    misfits: dict[int, str] = {}
    arrays = {}
    for at, (name, kind) in enumerate(types.items(), 1):
        cells = [row[at] for row in rows]
        for number, cell in enumerate(cells):
            converted = _convert(cell, kind)
            if converted is None and cell is not None:
                misfits.setdefault(number, f"column {name} has a {type(cell).__name__}, and others {kind.__name__}")
            cells[number] = converted
        arrays[name] = pa.array(cells, _ARROW_TYPES[kind][0])
    group = to_row_group(pa.table(arrays))
    unusable = {**group.unusable, **misfits}
    return RowGroup(group.records, {row: f"{reason} ({key} = {keys[row]})" for row, reason in unusable.items()})


def _convert(cell: Any, kind: type) -> Any:
    """A value for Arrow; None: it has another type, or there is none."""
    if cell is None:
        return None
    cell_kind = _kind(cell)
    if kind is float and cell_kind in (int, float):
        return float(cell)
    if cell_kind is not kind or (kind is int and not -_MOST_INTEGER <= cell < _MOST_INTEGER):
        return None
    if kind is str:
        return str(cell)
    if kind is bytes:
        return bytes(cell)
    if kind is datetime.datetime and cell.tzinfo is not None:
        return cell.astimezone(datetime.UTC).replace(tzinfo=None)
    return cell
