"""Rows of a query as Arrow batches, in one snapshot of the database and by a cursor of the server.

PostgreSQL sends them by COPY, which Arrow parses; DuckDB has Arrow itself; MariaDB sends text, which Arrow converts by
columns. SQLite has values, each with a type of its own.
"""

from __future__ import annotations

import select
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.csv as pa_csv

from edl.api.errors import BadInputError
from edl.data.database import strip_semicolon
from edl.sql_jobs.value_columns import (
    TIME,
    TIMESTAMP,
    ColumnValues,
    misfit_error,
    parse_arrays,
    parse_texts,
    unusable_column,
)

Batches = Iterator[pa.RecordBatch]

_BATCH_CELLS = 1 << 17
_MOST_BATCH_ROWS, _FEWEST_BATCH_ROWS = 16_384, 64
_BATCH_BYTES = 4 << 20
_POLL_MILLISECONDS = 1000


def read_query_batches(connection: Any, query: str, statement_seconds: float | None) -> Batches:
    """The rows of a query. Its transaction is that of the connection, and ends with it.

    Args:
        connection: SQLAlchemy's, read-only.
        query: one SELECT, which is passed on as it is.
        statement_seconds: what the whole query may take; None: the server's own limit.
    """
    readers: dict[str, Callable[[Any, str, float | None], Batches]] = {
        "postgresql": _read_postgresql,
        "duckdb": _read_duckdb,
        "sqlite": _read_sqlite,
        "mysql": _read_mysql,
        "mariadb": _read_mysql,
    }
    return readers[connection.engine.dialect.name](connection.connection.driver_connection, query, statement_seconds)


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise BadInputError("is no SELECT: it has no columns", where="the query", hint="write one SELECT statement")
    nameless = [str(at) for at, name in enumerate(names, 1) if not name.strip()]
    if nameless:
        raise BadInputError(
            f"column {', '.join(nameless)} has no name", where="the query", hint="name it: SELECT … AS a_name"
        )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise BadInputError(
            f"several columns are called {', '.join(twice)}", where="the query", hint="name each once, with AS"
        )


def _batch_rows(columns: int) -> int:
    return max(_FEWEST_BATCH_ROWS, min(_MOST_BATCH_ROWS, _BATCH_CELLS // columns))


@contextmanager
def _interrupting(interrupt: Callable[[], object], seconds: float | None) -> Iterator[None]:
    """An embedded database is interrupted when the time is over."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# --------------------------------------------------------------------------------------------------
# PostgreSQL

_TEXT, _ARRAY_OF = pa.string(), pa.list_
_POSTGRESQL_TYPES: dict[int, pa.DataType] = {
    **dict.fromkeys((20, 21, 23, 26), pa.int64()),  # int8, int2, int4, oid
    **dict.fromkeys((700, 701, 1700), pa.float64()),  # float4, float8, numeric
    # text, varchar, char(n), name, "char", uuid, json, jsonb, xml, inet, cidr, macaddr, macaddr8
    **dict.fromkeys((25, 1043, 1042, 19, 18, 2950, 114, 3802, 142, 869, 650, 829, 774), _TEXT),
    16: pa.bool_(),
    1082: pa.date32(),
    **dict.fromkeys((1114, 1184), TIMESTAMP),  # without and with time zone: in UTC
    1083: TIME,
    **dict.fromkeys((1016, 1005, 1007), _ARRAY_OF(pa.int64())),
    **dict.fromkeys((1021, 1022, 1231), _ARRAY_OF(pa.float64())),
}
_TIME_WITH_ZONE = 1184
_COPY = "COPY ("
_NAMELESS = "?column?"
_FIND_TYPE = """
SELECT typtype::text, typcategory::text, format_type(oid, NULL) FROM pg_type WHERE oid = %s
"""


def _read_postgresql(connection: Any, query: str, statement_seconds: float | None) -> Batches:
    from psycopg import errors, pq

    cursor = connection.cursor()
    # The first statement begins the transaction. What is sent as text reads the same on every server.
    cursor.execute("SET LOCAL DateStyle TO ISO")
    cursor.execute("SET LOCAL TimeZone TO 'UTC'")
    cursor.execute("SET LOCAL extra_float_digits TO 1")
    cursor.execute("SET LOCAL client_encoding TO 'UTF8'")
    # A scan that begins where another one is would order the same rows in another way.
    cursor.execute("SET LOCAL synchronize_seqscans TO off")
    if statement_seconds is not None:
        cursor.execute(f"SET LOCAL statement_timeout TO {max(1, round(1000 * statement_seconds))}")
    # The server parses the query alone first: it is one statement, and places in errors are places in the query.
    with connection.lock:
        results = [connection.pgconn.prepare(b"", query.encode())]
        if results[-1].status == pq.ExecStatus.COMMAND_OK:
            results.append(connection.pgconn.describe_prepared(b""))
    (description,) = results[-1:]
    if description.status != pq.ExecStatus.COMMAND_OK:
        raise errors.error_from_result(description, encoding="utf-8")
    names = [(description.fname(at) or b"").decode() for at in range(description.nfields)]
    _check_names(["" if name == _NAMELESS else name for name in names])
    codes = [description.ftype(at) for at in range(description.nfields)]
    types = [_postgresql_type(cursor, name, code) for name, code in zip(names, codes, strict=True)]
    parser = _CopyParser(names, types, [code == _TIME_WITH_ZONE for code in codes])
    # Bytes of a server without an encoding are checked here, where their column and row are known.
    encoding = "SQL_ASCII" if connection.info.parameter_status("server_encoding") == "SQL_ASCII" else "UTF8"
    statement = f"{_COPY}{strip_semicolon(query)}\n) TO STDOUT (FORMAT csv, ENCODING '{encoding}')"
    yield from parser.parse(_copy_rows(connection.pgconn, statement))


def _postgresql_type(cursor: Any, name: str, code: int) -> pa.DataType:
    known = _POSTGRESQL_TYPES.get(code)
    if known is not None:
        return known
    type_row = cursor.execute(_FIND_TYPE, (code,)).fetchone()
    kind, category, shown = type_row or ("", "", f"number {code}")
    if kind == "e" or category == "S":
        return _TEXT
    raise unusable_column(name, shown)


def _copy_rows(pgconn: Any, statement: str) -> Iterator[Any]:
    """What COPY sends: one message for each row. psycopg's own iterator takes twice as long."""
    from psycopg import errors, pq

    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    pgconn.send_query(statement.encode())
    while pgconn.flush():
        poll.poll(_POLL_MILLISECONDS)
        pgconn.consume_input()
    while pgconn.is_busy():
        poll.poll(_POLL_MILLISECONDS)
        pgconn.consume_input()
    result = pgconn.get_result()
    while result.status == pq.ExecStatus.COPY_OUT:
        size, data = pgconn.get_copy_data(1)  # 1: do not wait
        if size > 0:
            yield data
        elif size == 0:
            poll.poll(_POLL_MILLISECONDS)
            pgconn.consume_input()
        else:
            result = pgconn.get_result()
    if result.status != pq.ExecStatus.COMMAND_OK:
        error: Any = errors.error_from_result(result, encoding="utf-8")
        # The database counts the position of a mistake from the COPY that the user has not written.
        error.edl_before = len(_COPY)
        raise error
    while pgconn.get_result() is not None:
        pass


class _CopyParser:
    """Parses rows of COPY's CSV, in which an empty text has quotes and NULL has none."""

    def __init__(self, names: Sequence[str], types: Sequence[pa.DataType], zoned: Sequence[bool]) -> None:
        self._names, self._types = names, types
        # Names of its own: Arrow would take empty ones and doubles for others.
        self._keys = [str(at) for at in range(len(names))]
        parsed = [_TEXT if pa.types.is_list(kind) else kind for kind in types]
        parsed = [pa.timestamp("us", "UTC") if has_zone else kind for kind, has_zone in zip(parsed, zoned, strict=True)]
        self._parsed = dict(zip(self._keys, parsed, strict=True))
        self._schema = pa.schema(list(zip(names, types, strict=True)))
        self._rows = 0

    def parse(self, rows: Iterator[Any]) -> Batches:
        """Batches of bounded size."""
        most = _batch_rows(len(self._names))
        buffer, count = bytearray(), 0
        for row in rows:
            buffer += row
            count += 1
            if count == most or len(buffer) >= _BATCH_BYTES:
                yield self._parse(buffer, count)
                buffer, count = bytearray(), 0
        if count:
            yield self._parse(buffer, count)

    def _parse(self, text: bytearray, rows: int) -> pa.RecordBatch:
        try:
            table = self._read(text, self._parsed)
        except pa.ArrowInvalid:
            # Some value is none of its type, such as the time infinity, or a text has bytes of no character: find it.
            plain = self._read(text, dict.fromkeys(self._keys, pa.binary()))
            columns = [
                parse_texts(column.combine_chunks(), self._parsed[key], name, self._rows + 1)
                for name, key, column in zip(self._names, self._keys, plain.columns, strict=True)
            ]
            table = pa.table(columns, self._keys)
        if table.num_rows != rows:
            raise BadInputError("the database sent rows that cannot be read", where="the query")
        arrays = [
            self._finish(name, kind, column.combine_chunks())
            for name, kind, column in zip(self._names, self._types, table.columns, strict=True)
        ]
        self._rows += rows
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _finish(self, name: str, kind: pa.DataType, column: pa.Array) -> pa.Array:
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        if pa.types.is_list(kind):
            return parse_arrays(column, kind, name, self._rows + 1)
        return column.cast(kind)

    def _read(self, text: bytearray, types: dict[str, pa.DataType]) -> pa.Table:
        return pa_csv.read_csv(
            pa.BufferReader(pa.py_buffer(text)),
            read_options=pa_csv.ReadOptions(
                column_names=self._keys, block_size=len(text) + 1, use_threads=False, encoding="utf8"
            ),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=pa_csv.ConvertOptions(
                column_types=types,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["t"],
                false_values=["f"],
            ),
        )


# --------------------------------------------------------------------------------------------------
# DuckDB


def _read_duckdb(connection: Any, query: str, statement_seconds: float | None) -> Batches:
    import duckdb

    statements = connection.extract_statements(query)
    if len(statements) != 1 or statements[0].type.name != "SELECT":
        raise BadInputError("is no SELECT", where="the query", hint="write one SELECT statement")
    with _interrupting(connection.interrupt, statement_seconds):
        with suppress(duckdb.Error):  # without the extension for time zones, it has none but UTC
            connection.execute("SET TimeZone = 'UTC'")
        connection.execute("BEGIN")
        try:
            relation = connection.sql(query)
        except duckdb.Error:
            # Only execute() says where in the query the fault is.
            connection.rollback()
            connection.execute(query)
            raise
        names = relation.columns
        _check_names(names)
        rows = _batch_rows(len(names))
        # DuckDB 2 has the first name, DuckDB 1.4 the second one.
        open_reader = getattr(relation, "to_arrow_reader", None) or relation.fetch_record_batch
        reader = open_reader(rows)
        # Names from the relation: Arrow's reader makes doubles unlike.
        schema = pa.schema(
            [(name, _plain_type(name, field.type)) for name, field in zip(names, reader.schema, strict=True)]
        )
        done = 0
        for batch in reader:
            arrays = [
                _plain_array(column, field, done + 1) for column, field in zip(batch.columns, schema, strict=True)
            ]
            done += batch.num_rows
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain_type(name: str, kind: pa.DataType) -> pa.DataType:
    """Arrow's type of a result as one of those that models read."""
    if pa.types.is_boolean(kind) or pa.types.is_date32(kind):
        return kind
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        return _TEXT
    if pa.types.is_timestamp(kind):
        return TIMESTAMP
    if pa.types.is_time(kind):
        return TIME
    if pa.types.is_null(kind):
        return pa.float64()
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = _plain_type(name, kind.value_type)
        if inner in (pa.int64(), pa.float64()):
            return pa.list_(inner)
    raise unusable_column(name, "blob" if pa.types.is_binary(kind) else str(kind))


def _plain_array(column: pa.Array, field: pa.Field, first_row: int) -> pa.Array:
    try:
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            return column.cast(pa.timestamp("ns")).cast(TIMESTAMP, safe=False)
        return column.cast(field.type)
    except pa.ArrowInvalid:
        for at in range(len(column)):
            try:
                column.slice(at, 1).cast(field.type)
            except pa.ArrowInvalid:
                raise misfit_error(field.name, field.type, column[at].as_py(), first_row + at) from None
        raise


# --------------------------------------------------------------------------------------------------
# SQLite

_SQLITE_TYPES = {
    "BOOLEAN": pa.bool_(),
    "BOOL": pa.bool_(),
    "DATE": pa.date32(),
    "DATETIME": TIMESTAMP,
    "TIMESTAMP": TIMESTAMP,
}


def _read_sqlite(connection: Any, query: str, statement_seconds: float | None) -> Batches:
    with ExitStack() as stack:
        stack.enter_context(_interrupting(connection.interrupt, statement_seconds))
        cursor = connection.cursor()
        cursor.execute("BEGIN")
        declared = _declared_types(cursor, query)
        cursor.execute(query)
        _check_names([column[0] for column in cursor.description or ()])
        columns = [ColumnValues(column[0], declared.get(column[0])) for column in cursor.description]
        yield from _read_values(cursor, columns)


def _declared_types(cursor: Any, query: str) -> dict[str, pa.DataType]:
    """Types that tables declare. A view, which only this connection has, tells those of the result.

    Only a SELECT makes a view, so another statement ends here.
    """
    view = f"edl_{uuid4().hex}"
    cursor.execute(f"CREATE TEMP VIEW {view} AS {query}")
    try:
        column_rows = cursor.execute(f"PRAGMA temp.table_info({view})").fetchall()
    finally:
        cursor.execute(f"DROP VIEW temp.{view}")
    return {row[1]: _SQLITE_TYPES[row[2].upper()] for row in column_rows if row[2].upper() in _SQLITE_TYPES}


def _read_values(cursor: Any, columns: Sequence[ColumnValues]) -> Batches:
    size, done = _batch_rows(len(columns)), 0
    names = [column.name for column in columns]
    while rows := cursor.fetchmany(size):
        arrays = [
            column.convert(values, done + 1) for column, values in zip(columns, zip(*rows, strict=True), strict=True)
        ]
        done += len(rows)
        yield pa.RecordBatch.from_arrays(arrays, names)


# --------------------------------------------------------------------------------------------------
# MySQL and MariaDB


def _read_mysql(connection: Any, query: str, statement_seconds: float | None) -> Batches:
    from pymysql.cursors import SSCursor

    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SET time_zone = '+00:00'")
        if statement_seconds is not None:
            _set_mysql_timeout(cursor, statement_seconds)
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
    # Values stay as text, which Arrow converts by columns.
    decoders, connection.decoders = connection.decoders, {}
    cursor = SSCursor(connection)
    try:
        cursor.execute(query)
        description = cursor.description or ()
        _check_names([column[0] for column in description])
        fields = cursor._result.fields
        types = [_mysql_type(field) for field in fields]
        schema = pa.schema([(column[0], kind) for column, kind in zip(description, types, strict=True)])
        size, done = _batch_rows(len(types)), 0
        while rows := cursor.fetchmany(size):
            arrays = [
                parse_texts(pa.array(values, _TEXT), field.type, field.name, done + 1)
                for values, field in zip(zip(*rows, strict=True), schema, strict=True)
            ]
            done += len(rows)
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    finally:
        connection.decoders = decoders
        # When it is collected, it would read what is left; after an error the connection is closed.
        if cursor._result is not None:
            cursor._result.unbuffered_active = False
        cursor.connection = None


def _set_mysql_timeout(cursor: Any, seconds: float) -> None:
    cursor.execute("SELECT VERSION()")
    if "mariadb" in cursor.fetchone()[0].lower():
        cursor.execute("SET SESSION max_statement_time = %s", (seconds,))
    else:
        cursor.execute("SET SESSION max_execution_time = %s", (max(1, round(1000 * seconds)),))


def _mysql_type(field: Any) -> pa.DataType:
    from pymysql.constants import FIELD_TYPE

    types: dict[int, pa.DataType] = {
        **dict.fromkeys(
            (
                FIELD_TYPE.TINY,
                FIELD_TYPE.SHORT,
                FIELD_TYPE.LONG,
                FIELD_TYPE.LONGLONG,
                FIELD_TYPE.INT24,
                FIELD_TYPE.YEAR,
            ),
            pa.int64(),
        ),
        **dict.fromkeys(
            (FIELD_TYPE.FLOAT, FIELD_TYPE.DOUBLE, FIELD_TYPE.DECIMAL, FIELD_TYPE.NEWDECIMAL, FIELD_TYPE.NULL),
            pa.float64(),
        ),
        **dict.fromkeys((FIELD_TYPE.DATE, FIELD_TYPE.NEWDATE), pa.date32()),
        **dict.fromkeys((FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP), TIMESTAMP),
        **dict.fromkeys((FIELD_TYPE.TIME, FIELD_TYPE.JSON), _TEXT),
    }
    if field.type_code in types:
        return types[field.type_code]
    texts = (
        FIELD_TYPE.VARCHAR,
        FIELD_TYPE.VAR_STRING,
        FIELD_TYPE.STRING,
        FIELD_TYPE.ENUM,
        FIELD_TYPE.SET,
        FIELD_TYPE.BLOB,
        FIELD_TYPE.TINY_BLOB,
    )
    binary = 63  # the character set of bytes
    if field.type_code in (*texts, FIELD_TYPE.MEDIUM_BLOB, FIELD_TYPE.LONG_BLOB) and field.charsetnr != binary:
        return _TEXT
    names = {FIELD_TYPE.BIT: "bit", FIELD_TYPE.GEOMETRY: "geometry"}
    raise unusable_column(field.name, names.get(field.type_code, "blob"))
