"""Rows of a query that stay in the database: ranges of a unique key are read as often as they are needed.

One pass in the order of the key finds the number of rows, their types and digest, and the key at which each block
begins. A block has as many rows as a row group of extracted rows, so statistics, the order of records and with it the
trained model are those of the extracted way. With a snapshot all passes and all workers read one state.

Which rows are for validation is decided once, and kept as a bit for each row: workers need no statistics.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from edl.api.errors import BadInputError, EdlError
from edl.data.database import Database, check_select, find_scheme, strip_semicolon
from edl.data.parquet_reader import RowGroup, to_row_group
from edl.data.reader import BlockSizes, CorruptRange, CorruptRecordError, Metadata, OnCorrupt, Source
from edl.data.record_columns import join_records
from edl.data.table_statistics import TableStatistics
from edl.jobfile.database_address import ENVIRONMENT_SCHEME, FILE_SCHEMES, database_file, with_database_file
from edl.sql_jobs.column_plan import LabelKind
from edl.sql_jobs.model_inputs import InputColumn, ModelInputs
from edl.sql_jobs.parquet_parts import ContentDigest, choose_group_rows, final_type
from edl.sql_jobs.prepared_rows import PreparedRows, RowForm, stack_columns
from edl.sql_jobs.query_errors import QueryError, translate_query_error
from edl.sql_jobs.query_extraction import ExtractedColumn, OnProgress
from edl.sql_jobs.row_batches import read_query_batches

STREAM_MODULE = "edl_stream"
_DESCRIPTION_FILE = "stream.json"
_FOLDER = "stream"
_HELD_BLOCKS = 2
_MODULE = '''"""Reads the rows of the statement from the database, by ranges of a key. `edl sql --stream` wrote it."""

from edl.sql_jobs.row_stream import open_stream as custom_data_reader

__all__ = ["custom_data_reader"]
'''


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """Where rows are.

    Args:
        database: its address, without a password.
        query: one SELECT.
        key: a column of its result: unique, without NULL.
        snapshot: that ``pg_export_snapshot()`` named; empty: ranges may be of several states.
        statement_seconds: what each read may take in the database; None: no limit.
    """

    database: str
    query: str
    key: str
    snapshot: str = ""
    statement_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RowIndex:
    """What one pass over the rows finds.

    Args:
        schema: Arrow's types of the columns.
        nulls: of each column.
        rows: number of them.
        row_bytes: average memory of a row.
        digest: of the content, that of extracted rows in this order.
        block_rows: rows of each block but the last.
        starts: key of each block's first row.
        last: key of the last row.
    """

    schema: pa.Schema
    nulls: tuple[int, ...]
    rows: int
    row_bytes: int
    digest: str
    block_rows: int
    starts: tuple[int | str, ...]
    last: int | str


class StreamedRows:
    """The rows of a query, in the order of their key. Threads share it.

    Args:
        origin: where they are.
        index: what ``survey_rows`` found.
        database: that of the survey; None: a connection of its own.
    """

    def __init__(self, origin: RowOrigin, index: RowIndex, database: Database | None = None) -> None:
        self.origin, self.index = origin, index
        self._database = database or Database(origin.database, snapshot=origin.snapshot)

    @property
    def schema(self) -> Any:
        """Arrow's types of the columns."""
        return self.index.schema

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.index.rows

    @property
    def digest(self) -> str:
        """Of the content."""
        return self.index.digest

    @property
    def columns(self) -> tuple[ExtractedColumn, ...]:
        """The columns of the query."""
        fields = zip(self.index.schema, self.index.nulls, strict=True)
        return tuple(ExtractedColumn(field.name, field.type, nulls) for field, nulls in fields)

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.index.starts)

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """A record batch for each block."""
        for number in range(self.blocks):
            yield self.read_block(number, columns)

    def summarize(self, columns: Sequence[str], threads: int) -> TableStatistics:
        """Statistics of these columns, from shares as ``scan_table`` divides row groups among threads."""
        shares = [TableStatistics() for _ in range(max(1, min(threads, self.blocks)))]
        for number, batch in enumerate(self.batches(columns)):
            shares[number % len(shares)].add(batch)
        first, *others = shares
        for other in others:
            first.merge(other)
        return first

    def read_block(self, number: int, columns: Sequence[str]) -> Any:
        """One block as a record batch.

        Raises:
            BadInputError: the snapshot is gone, or the block has other rows than were counted.
            RetryableError: the database cannot be read.
        """
        index, dialect = self.index, self._dialect
        key = _quote_name(self.origin.key, dialect)
        after = (
            f"{key} < {_sql_literal(index.starts[number + 1])}"
            if number + 1 < self.blocks
            else f"{key} <= {_sql_literal(index.last)}"
        )
        chosen = ", ".join(_quote_name(name, dialect) for name in columns)
        where = f" WHERE {key} >= {_sql_literal(index.starts[number])} AND {after}"
        schema = pa.schema([index.schema.field(name) for name in columns])
        parts = self._database.run(
            lambda connection: list(_read(self._database, connection, self.origin, chosen, f"{where} ORDER BY {key}"))
        )
        expected = min(index.block_rows, index.rows - number * index.block_rows)
        row_count = sum(part.num_rows for part in parts)
        if row_count != expected:
            raise self._changed(f"{row_count:,} rows are where {expected:,} were counted")
        try:
            table = pa.Table.from_batches([part.cast(schema) for part in parts], schema).combine_chunks()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self._changed(f"a column has other values than before ({error})") from None
        return table.to_batches()[0]

    @property
    def _dialect(self) -> str:
        return str(self._database.engine.dialect.name)

    def _changed(self, what: str) -> BadInputError:
        if not self.origin.snapshot:
            return self._database.changed(what)
        return BadInputError(
            f"the query returned other rows for the same state of the database: {what}",
            where=self.origin.database,
            hint="with --stream it must return the same rows each time: leave out random() and a LIMIT without an "
            "order by the key, or leave --stream out",
        )


def survey_rows(origin: RowOrigin, on_progress: OnProgress | None = None) -> StreamedRows:
    """Read all rows once, in the order of their key.

    Args:
        origin: where they are. The path of a file is made absolute.
        on_progress: told the number of rows so far.

    Raises:
        BadInputError: the query, its result or its key cannot be used; a ``QueryError`` may name the place.
        RetryableError: the database cannot be reached.
    """
    check_select(origin.query, "the query")
    origin = replace(origin, database=_absolute(origin.database))
    database = Database(origin.database, snapshot=origin.snapshot)
    names = database.run(lambda connection: _column_names(database, connection, origin))
    origin = replace(origin, key=_find_name(origin.key, names))
    dialect = str(database.engine.dialect.name)

    def survey(connection: Any) -> _Survey:
        surveyed = _Survey(origin.key, dialect)
        order = f" ORDER BY {_quote_name(origin.key, dialect)}"
        with closing(_read(database, connection, origin, "*", order)) as batches:
            for batch in batches:
                surveyed.add(batch)
                if on_progress is not None:
                    on_progress(surveyed.rows)
        return surveyed

    surveyed = database.run(survey)
    rows = StreamedRows(origin, surveyed.index(), database)
    if rows.rows and not rows.digest:  # a type became wider: the digest is one of the final types
        digest = ContentDigest(rows.schema)
        for batch in rows.batches(rows.schema.names):
            digest.update(pa.Table.from_batches([batch]))
        rows = StreamedRows(origin, replace(rows.index, digest=digest.hexdigest()), database)
    return rows


class _Survey:
    """What is collected while all rows pass by."""

    def __init__(self, key: str, dialect: str) -> None:
        self._key, self._dialect = key, dialect
        self._schema: pa.Schema | None = None
        self._digest: ContentDigest | None = None
        self._nulls: Any = 0
        self._starts = list[int | str]()
        self._last: int | str | None = None
        self._bytes = self._block_rows = 0
        self.rows = 0

    def add(self, batch: Any) -> None:
        """Add the next rows."""
        if self._schema is None:
            self._block_rows = choose_group_rows(batch.num_columns)
            self._digest = ContentDigest(batch.schema)
        elif batch.schema != self._schema:
            self._digest = None
        self._schema = batch.schema
        if self._digest is not None:
            self._digest.update(pa.Table.from_batches([batch]))
        keys = batch.column(self._key)
        self._check_keys(keys)
        first = -self.rows % self._block_rows
        self._starts += keys.take(pa.array(range(first, len(keys), self._block_rows), pa.int64())).to_pylist()
        self._last = keys[-1].as_py()
        self._nulls = self._nulls + np.array([column.null_count for column in batch.columns])
        self._bytes += batch.nbytes
        self.rows += batch.num_rows

    def _check_keys(self, keys: Any) -> None:
        is_text = pa.types.is_string(keys.type)
        # Elsewhere texts may be equal that differ, such as in capital letters.
        if not pa.types.is_integer(keys.type) and not (is_text and self._dialect == "postgresql"):
            raise _key_error(f"has {self._key} as {keys.type}, which cannot be its key")
        if keys.null_count:
            raise _key_error(f"has a row in which {self._key} is NULL, so it cannot be its key")
        before = keys if self._last is None else pa.concat_arrays([pa.array([self._last], keys.type), keys])
        same = np.asarray(pc.equal(before[:-1], before[1:])).nonzero()[0]
        if len(same):
            raise _key_error(
                f"has several rows in which {self._key} is {before[int(same[0])]}, so it cannot be its key"
            )

    def index(self) -> RowIndex:
        """What was found."""
        if self._schema is None:
            return RowIndex(pa.schema([]), (), 0, 1, "", 1, (), 0)
        assert self._last is not None
        final = pa.schema([field.with_type(final_type(field.type)) for field in self._schema])
        digest = "" if self._digest is None or final != self._schema else self._digest.hexdigest()
        nulls = tuple(int(each) for each in self._nulls)
        row_bytes = -(-self._bytes // self.rows)
        return RowIndex(final, nulls, self.rows, row_bytes, digest, self._block_rows, tuple(self._starts), self._last)


def _key_error(message: str) -> BadInputError:
    return BadInputError(
        message,
        where="the query",
        hint="--stream needs a column with another whole number in each row; or leave it out",
    )


def _find_name(key: str, names: Sequence[str]) -> str:
    """The column of the result; capital letters matter only where it is not clear otherwise."""
    same = [name for name in names if name.lower() == key.lower()]
    if key in names or len(same) != 1:
        if key not in names:
            raise BadInputError(
                f"has no column {key}, which is to be its key", where="the query", hint=f"it has {', '.join(names)}"
            )
        return key
    return same[0]


# --------------------------------------------------------------------------------------------------
# Statements.


def _read(database: Database, connection: Any, origin: RowOrigin, columns: str, after: str) -> Generator[Any]:
    """Batches of columns of the query; what the database says about it has the place in the query."""
    before = f"SELECT {columns} FROM ("  # noqa: S608 - the user's own SELECT, and quoted names
    statement = f"{before}{strip_semicolon(origin.query)}\n) AS edl_rows{after}"
    _begin(connection, origin)
    try:
        yield from read_query_batches(connection, statement, origin.statement_seconds)
    except BaseException as error:
        # Rows that nobody wants are not read to the end.
        connection.invalidate()
        is_driver_error = isinstance(error, connection.engine.dialect.loaded_dbapi.Error)
        if not is_driver_error or not isinstance(error, Exception) or isinstance(error, EdlError):
            raise
        _raise_translated(error, database, origin, statement, len(before))


def _raise_translated(error: Exception, database: Database, origin: RowOrigin, statement: str, before: int) -> NoReturn:
    """An error of the driver with its place in the user's own query; what a lost connection raises, as it is."""
    translated = translate_query_error(error, database, statement)
    if translated is None:
        raise error
    if isinstance(translated, QueryError) and translated.offset is not None:
        offset = max(0, min(translated.offset - before, len(origin.query)))
        translated = QueryError(translated.message, query=origin.query, offset=offset, hint=translated.hint)
    raise translated from None


def _begin(connection: Any, origin: RowOrigin) -> None:
    """Begin the transaction in the snapshot: the driver's own statements would begin another one."""
    if origin.snapshot and not connection.in_transaction():
        connection.begin()


def _column_names(database: Database, connection: Any, origin: RowOrigin) -> list[str]:
    before = "SELECT * FROM ("
    statement = f"{before}{strip_semicolon(origin.query)}\n) AS edl_rows WHERE 1 = 0"
    _begin(connection, origin)
    try:
        cursor = connection.connection.cursor()
        cursor.execute(statement)
        return [str(column[0]) for column in cursor.description or ()]
    except connection.engine.dialect.loaded_dbapi.Error as error:
        _raise_translated(error, database, origin, statement, len(before))


def _quote_name(name: str, dialect: str) -> str:
    """A name of SQL, escaped, in the quotes of the dialect."""
    mark = "`" if dialect in ("mysql", "mariadb") else '"'
    return mark + name.replace(mark, 2 * mark) + mark


def _sql_literal(key: int | str) -> str:
    """A key as a value of SQL, escaped."""
    # Texts are keys in PostgreSQL only, where a backslash is a character like others.
    return str(int(key)) if isinstance(key, int) else "'" + key.replace("'", "''") + "'"


def _absolute(address: str) -> str:
    """The address with an absolute path: workers have working folders of their own."""
    if find_scheme(address) not in FILE_SCHEMES:
        return address
    scheme, _, name = address.partition("://")
    whole = os.environ[name] if scheme.lower() == ENVIRONMENT_SCHEME else address
    file = database_file(whole)
    return whole if file is None else with_database_file(whole, os.path.abspath(file))


# --------------------------------------------------------------------------------------------------
# What a job reads.


def write_stream(folder: Path, rows: StreamedRows, form: RowForm, validation: Any) -> PreparedRows:
    """Write what workers need to read the rows: a description, which rows a data set has, and a module. No rows, but
    the first key of each block.

    Args:
        folder: of the job.
        rows: surveyed.
        form: in which workers read them, with a label.
        validation: ``[rows]``, bool: the rows for validation.
    """
    assert form.kind is not None
    own = folder / _FOLDER
    own.mkdir(parents=True)
    index = rows.index
    description = {
        "origin": asdict(rows.origin),
        "schema": base64.b64encode(index.schema.serialize().to_pybytes()).decode(),
        **{name: getattr(index, name) for name in RowIndex.__slots__ if name != "schema"},
        "inputs": [asdict(each) for each in form.inputs.inputs],
        "prepared_label": form.inputs.label,
        "label": form.label,
        "kind": form.kind.name,
    }
    (own / _DESCRIPTION_FILE).write_text(json.dumps(description), encoding="utf-8")
    chosen_rows = {"training": ~validation, "validation": validation, "all": np.ones_like(validation)}
    for name, chosen in chosen_rows.items():
        np.save(own / f"{name}.npy", np.packbits(chosen))
    (folder / f"{STREAM_MODULE}.py").write_text(_MODULE, encoding="utf-8")
    count = int(validation.sum())
    return PreparedRows(rows.rows - count, count)


def stream_settings(*, has_validation: bool = True) -> list[str]:
    """Arguments of ``edl run`` for a job that reads what ``write_stream`` wrote.

    Args:
        has_validation: validation rows are held back; otherwise the job trains on all rows.
    """
    paths = {"data.training": "training.npy", "data.validation": "validation.npy"}
    fields = {
        **({name: f"{_FOLDER}/{file}" for name, file in paths.items()} if has_validation else {}),
        **({} if has_validation else {"data.training": f"{_FOLDER}/all.npy"}),
        "model.functions.custom_data_reader": f"{STREAM_MODULE}.custom_data_reader",
    }
    return [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]


class StreamReader:
    """A data set of streamed rows in the form of a model. Threads share it.

    Args:
        path: of the file that says which rows it has, beside the description.
    """

    def __init__(self, path: Path) -> None:
        description = json.loads((path.parent / _DESCRIPTION_FILE).read_text(encoding="utf-8"))
        fields: dict[str, Any] = {name: description[name] for name in RowIndex.__slots__}
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(fields.pop("schema"))))
        nulls, starts = tuple(fields.pop("nulls")), tuple(fields.pop("starts"))
        index = RowIndex(schema=schema, nulls=nulls, starts=starts, **fields)
        self._rows = StreamedRows(RowOrigin(**description["origin"]), index)
        columns = tuple(InputColumn(**each) for each in description["inputs"])
        inputs = ModelInputs(columns, description["prepared_label"])
        self._form = RowForm(inputs, description["label"], LabelKind[description["kind"]])
        self._chosen = np.unpackbits(np.load(path), count=index.rows).astype(bool)
        counts = np.add.reduceat(self._chosen, np.arange(0, index.rows, index.block_rows), dtype=np.int64)
        self._firsts = [0, *np.cumsum(counts).tolist()]
        self._name = f"{index.digest[:12]}#{path.stem}"
        self._held: dict[int, RowGroup] = {}
        self._lock = threading.Lock()

    @property
    def metadata(self) -> Metadata:
        """Names and types of prepared rows."""
        schema = self._form.schema(stacked=True)
        names = {pa.float32(): "float32", pa.float64(): "float64", pa.string(): "string"}
        items = {
            each.name: each.type.value_type if pa.types.is_fixed_size_list(each.type) else each.type for each in schema
        }
        return Metadata("sql", tuple(schema.names), {name: names[kind] for name, kind in items.items()})

    def sources(self) -> tuple[Source, ...]:
        """The one source."""
        return (Source(self._name, self._firsts[-1]),)

    def blocks(self, source: str) -> BlockSizes:
        """Rows of each block that belong to this data set."""
        del source
        sizes = [after - first for first, after in zip(self._firsts, self._firsts[1:], strict=False)]
        return BlockSizes([size for size in sizes if size], self._rows.index.row_bytes * self._firsts[-1])

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> Sequence[Any]:
        """Rows ``[start, end)``; see ``Reader.read``. A row without a label is corrupt.

        Raises:
            BadInputError: the snapshot is gone, the table has other rows than were counted, or no such range.
            RetryableError: the database cannot be read.
        """
        if source != self._name or not 0 <= start <= end <= self._firsts[-1]:
            raise BadInputError(f"there are no rows {start} to {end}", where=source)
        parts: list[Sequence[Any]] = []
        while start < end:
            number = bisect_right(self._firsts, start) - 1
            first = self._firsts[number]
            until = min(end, self._firsts[number + 1])
            parts.append(self._take(self._read_block(number), range(start - first, until - first), first, on_corrupt))
            start = until
        return join_records(parts) if parts else self._read_block(0).records[:0]

    def _take(self, group: RowGroup, rows: range, first: int, on_corrupt: OnCorrupt | None) -> Sequence[Any]:
        bad = [row for row in rows if row in group.unusable] if group.unusable else []
        for row in bad:
            corrupt = CorruptRange(self._name, first + row, first + row + 1, None, 0, group.unusable[row])
            if on_corrupt is None:
                raise CorruptRecordError(corrupt)
            on_corrupt(corrupt)
        if not bad:
            return group.records[rows.start : rows.stop]
        return group.records.take(np.array(sorted(set(rows).difference(bad)), np.int64))

    def _read_block(self, number: int) -> RowGroup:
        with self._lock:
            held = self._held.get(number)
            if held is not None:
                return held
            index = self._rows.index
            table = self._form.prepare_batch(self._rows.read_block(number, self._form.query_columns))
            first = number * index.block_rows
            chosen = table.filter(pa.array(self._chosen[first : first + table.num_rows]))
            group = to_row_group(stack_columns(chosen, self._form.inputs))
            while len(self._held) >= _HELD_BLOCKS:
                del self._held[next(iter(self._held))]
            self._held[number] = group
            return group


def open_stream(path: str) -> StreamReader:
    """The reader of a data set, as ``custom_data_reader`` of a module."""
    return StreamReader(Path(path))
