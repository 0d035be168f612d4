"""Writes Arrow batches into a table of a database: all of them, or nothing.

PostgreSQL, SQLite and DuckDB undo the definition of a table with its transaction, so everything is one transaction.
MySQL and MariaDB do not: rows go into a table of another name, which is renamed at the end. Names are quoted by
SQLAlchemy.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from types import TracebackType
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.sql import quoted_name

from edl.api.errors import BadInputError, EdlError, RetryableError
from edl.data.database import Database
from edl.sql_jobs.query_errors import shorten_reason

_ROWS_AT_ONCE = 5000
_PARTIAL = "edl_partial"
_MYSQL = ("mysql", "mariadb")
_SERVERS = ("postgresql", *_MYSQL)
_MOST_NAME = {"postgresql": 63, "mysql": 64, "mariadb": 64}
_NO_RIGHT_STATES = ("42501", "25006")
_LOCK_NOT_AVAILABLE = "55P03"
_LOCK_MILLISECONDS = 100
"""So long others may have to wait behind a writer that only tries whether it may replace a table."""
_NO_RIGHT_NUMBERS = (1044, 1142, 1143, 1227, 1290)
_NO_RIGHT_TEXTS = ("readonly database", "read-only", "permission denied")
_REFUSED_HINT = "nothing is written; the values must be those that the columns of the table can have"
_RIGHTS_HINT = "the user needs the right to create tables there and to insert into them, or name another schema"


class TableExistsError(BadInputError):
    """A table would be new, and there is one of its name."""


def write_table(
    database: str, table: tuple[str, ...], batches: Iterable[pa.RecordBatch], *, replace: bool, append: bool = False
) -> int:
    """Write batches of one schema into a table, see ``TableWriter``. The number of rows."""
    writer: TableWriter | None = None
    with ExitStack() as stack:
        for batch in batches:
            # The first batch says which columns there are. Nothing is touched if it fails to come.
            if writer is None:
                writer = TableWriter(database, table, batch.schema, replace=replace, append=append)
                stack.enter_context(writer)
            writer.write(batch)
    if writer is None:
        raise BadInputError("there are no rows to write", where=".".join(table))
    return writer.rows


def check_table(database: str, table: tuple[str, ...], *, replace: bool) -> None:
    """Refuse a table that could not be written, before there are rows to write. What is tried is undone.

    Raises:
        BadInputError: it exists, and is not to be replaced, or cannot be; is no name of a table; or there is no right
            to create it.
        RetryableError: the database is not reachable, or another program has locked it.
    """
    TableWriter(database, table, pa.schema([("any", pa.int64())]), replace=replace).check()


def count_rows(database: str, table: tuple[str, ...]) -> int | None:
    """The rows of a table; None: there is no such table.

    Raises:
        BadInputError: it cannot be read.
        RetryableError: the database is not reachable.
    """
    name, schema = table[-1], table[0] if len(table) > 1 else None

    def count(connection: Any) -> int | None:
        if not sa.inspect(connection).has_table(name, schema=schema):
            return None
        named = sa.table(_quoted_name(name), schema=None if schema is None else _quoted_name(schema))
        return int(connection.execute(sa.select(sa.func.count()).select_from(named)).scalar_one())

    return Database(database).run(count)


class TableWriter:
    """Writes one table; a context manager. Leaving it without an error makes all rows visible at once.

    Args:
        database: its address, without a password.
        table: its name, perhaps after that of its schema. Names are used as they are, with upper and lower case.
        schema: names and types of the columns.
        replace: put the table in the place of one that exists. Without it, such a table is refused.
        append: add the rows to a table that exists, in one transaction.

    Raises:
        BadInputError: the table exists, or there is no right to write.
        RetryableError: the database is not reachable, or the connection was lost. Nothing is written then, unless it
            was lost at the very end, which the message says.
    """

    def __init__(
        self, database: str, table: tuple[str, ...], schema: pa.Schema, *, replace: bool = False, append: bool = False
    ) -> None:
        self.rows = 0
        self._where = ".".join(table)
        if not 1 <= len(table) <= 2 or not all(part.strip() for part in table):
            raise BadInputError("is no name of a table", where=self._where, hint="write table or schema.table")
        if replace and append:
            raise ValueError("rows either replace a table or are added to it")
        self._table_name = table[-1]
        self._schema_name = table[0] if len(table) > 1 else None
        self._fields = _plain_schema(schema)
        self._replace, self._append = replace, append
        self._database = Database(database, writable=True)
        self._stack = ExitStack()
        self._connection: Any = None
        self._table: Any = None
        self._exists = False
        self._transaction: int | None = None

    def __enter__(self) -> TableWriter:
        with self._translated():
            connection = self._database.engine.connect()
        # A lock of MySQL's is that of its connection, which does not stay open.
        self._stack.callback(self._database.engine.dispose)
        self._stack.callback(_close, connection)
        self._connection = connection
        try:
            with self._translated():
                self._begin()
        except BaseException:
            self._abort()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._abort()
            return
        try:
            self._complete()
        except BaseException:
            self._abort()
            raise
        self._stack.close()

    def check(self) -> None:
        """Begin to write, try what comes at the end, and undo it.

        Raises:
            BadInputError: see the class.
            RetryableError: see the class.
        """
        self.__enter__()
        try:
            with self._translated():
                self._try_completion()
        finally:
            self._abort()

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows.

        Raises:
            BadInputError: their columns are not those of the table, or the database refuses a value.
        """
        if batch.schema.names != self._fields.names:
            raise BadInputError(
                "a batch has other columns than the first one", where=self._where, hint=", ".join(self._fields.names)
            )
        with self._translated():
            for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                self._insert(batch.slice(start, _ROWS_AT_ONCE))
            if self._is_mysql and not self._append:
                # Nobody sees this table yet, and a long transaction would keep what it may have to undo.
                self._connection.commit()
        self.rows += batch.num_rows

    # ----------------------------------------------------------------------------------------------
    # The beginning and the end.

    @property
    def _dialect(self) -> str:
        return str(self._database.engine.dialect.name)

    @property
    def _doubles_percents(self) -> bool:
        return self._connection.engine.dialect.paramstyle in ("format", "pyformat")

    @property
    def _is_mysql(self) -> bool:
        return self._dialect in _MYSQL

    def _begin(self) -> None:
        connection = self._connection
        if self._dialect == "sqlite":
            # The driver would begin at the first INSERT, after the table was made.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        self._check_lengths()
        self._exists = sa.inspect(connection).has_table(self._table_name, schema=self._schema_name)
        if not (self._replace or self._append):
            self._refuse_existing(self._exists)
        if self._replace and self._exists:
            self._refuse_view()
        if self._append:
            self._open_existing()
        else:
            self._create_partial()
        if self._dialect == "postgresql":
            self._transaction = connection.exec_driver_sql("SELECT txid_current()").scalar_one()

    def _refuse_existing(self, exists: bool) -> None:
        if exists:
            raise TableExistsError("there is such a table", where=self._where, hint="name another one, or replace it")

    def _refuse_view(self) -> None:
        # SQLite and DuckDB take names for the same that differ in capital letters only, as inspection of them does not.
        views = {name.lower() for name in sa.inspect(self._connection).get_view_names(schema=self._schema_name)}
        if self._table_name.lower() in views:
            raise BadInputError("is a view, and only a table is replaced", where=self._where, hint="name another one")

    def _check_lengths(self) -> None:
        """PostgreSQL would cut a name, and write another table. It counts bytes, MySQL characters."""
        most = _MOST_NAME.get(self._dialect)
        if most is None:
            return
        for name in filter(None, (self._schema_name, self._table_name, *self._fields.names)):
            if len(name if self._is_mysql else name.encode()) > most:
                raise BadInputError(f"the name {name} is too long", where=self._where, hint=f"at most {most} bytes")

    def _create_partial(self) -> None:
        digest = sha256(self._where.encode()).hexdigest()[:8]
        if self._is_mysql:
            self._clear_partial_tables(digest)
        table = self._define(f"{_PARTIAL}_{digest}_{uuid4().hex[:8]}")
        if self._is_mysql:
            # Without the right to drop it, it would stay. The server looks at rights before it looks for the table.
            self._connection.execute(sa.schema.DropTable(table, if_exists=True))
        self._table = table
        self._connection.execute(sa.schema.CreateTable(table))

    def _try_completion(self) -> None:
        """Do what needs other rights than a new table does: those of its owner, or to rename it."""
        if self._is_mysql:
            renamed = self._define(f"{self._table.name}_new")
            self._rename_tables([(self._table, renamed)])
            self._table = renamed
        elif self._exists and self._dialect != "sqlite":  # it has no rights, and would note all pages of the table
            if self._dialect == "postgresql":
                # Ownership is looked at before the lock, which those who read the table may keep for long.
                self._connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_LOCK_MILLISECONDS}")
            try:
                self._connection.execute(sa.schema.DropTable(self._define(self._table_name)))
            except self._database.errors as error:
                if _sql_state(error) != _LOCK_NOT_AVAILABLE:
                    raise

    def _rename_tables(self, names: Iterable[tuple[Any, Any]]) -> None:
        quote = self._connection.engine.dialect.identifier_preparer.format_table
        renamed = ", ".join(f"{quote(old)} TO {quote(new)}" for old, new in names)
        self._connection.exec_driver_sql(f"RENAME TABLE {renamed}")

    def _define(self, name: str) -> Any:
        columns = [
            sa.Column(_quoted_name(field.name), _column_type(field, self._dialect), nullable=True)
            for field in self._fields
        ]
        schema = None if self._schema_name is None else _quoted_name(self._schema_name)
        return sa.Table(_quoted_name(name), sa.MetaData(), *columns, schema=schema)

    def _open_existing(self) -> None:
        if not self._exists:
            raise BadInputError("there is no such table", where=self._where, hint="create it, or do not append")
        existing = self._define(self._table_name)
        no_rows = sa.select(sa.text("*")).select_from(existing).where(sa.false())
        known = list(self._connection.execute(no_rows).keys())
        missing = [name for name in self._fields.names if name not in known]
        if missing:
            raise BadInputError(
                f"the table has no column {', '.join(missing)}", where=self._where, hint=f"it has {', '.join(known)}"
            )
        self._table = existing
        if self._is_mysql:
            engine = self._connection.execute(
                sa.text(
                    "SELECT engine FROM information_schema.tables "
                    "WHERE table_name = :name AND table_schema = coalesce(:schema, database())"
                ),
                {"name": self._table_name, "schema": self._schema_name},
            ).scalar()
            if str(engine).lower() != "innodb":
                raise BadInputError(
                    f"the table's engine {engine} has no transactions", where=self._where, hint="use InnoDB"
                )

    def _clear_partial_tables(self, digest: str) -> None:
        """Drop what writers of this table left that were killed. A lock tells that no other one is at work."""
        connection = self._connection
        locked = connection.execute(sa.text("SELECT GET_LOCK(:name, 0)"), {"name": f"edl:{digest}"}).scalar()
        if locked != 1:
            raise RetryableError("another program writes this table", where=self._where, hint="wait until it has ended")
        names = sa.inspect(connection).get_table_names(schema=self._schema_name)
        for name in names:
            if name.startswith(f"{_PARTIAL}_{digest}_"):
                connection.execute(sa.schema.DropTable(self._define(name), if_exists=True))

    def _complete(self) -> None:
        if self._append:
            self._commit()
            return
        quote = self._connection.engine.dialect.identifier_preparer.format_table
        partial, final = self._table, self._define(self._table_name)
        with self._translated():
            if self._is_mysql:
                old = self._define(f"{partial.name}_old")
                renamed = [*([(final, old)] if self._exists else []), (partial, final)]
                self._table = old if self._exists else None
            else:
                if self._exists:
                    self._connection.execute(sa.schema.DropTable(final))
                short = self._connection.engine.dialect.identifier_preparer.quote_identifier(self._table_name)
                self._connection.exec_driver_sql(f"ALTER TABLE {quote(partial)} RENAME TO {short}")
        if not self._is_mysql:
            self._commit()
            return
        with self._translated(at_end=True):
            self._rename_tables(renamed)
        if self._exists:
            with suppress(Exception):  # the new table is there; the next writer drops the old one
                self._connection.execute(sa.schema.DropTable(old))

    def _commit(self) -> None:
        try:
            with self._translated(at_end=True):
                self._connection.commit()
        except RetryableError:
            if not self._was_committed():
                raise

    def _was_committed(self) -> bool:
        """Whether the server committed what it could not confirm.

        Raises:
            RetryableError: it did not.
        """
        if self._transaction is None:
            return False
        _close(self._connection, broken=True)
        with self._translated(at_end=True), self._database.engine.connect() as connection:
            status = connection.execute(sa.text("SELECT txid_status(:number)"), {"number": self._transaction}).scalar()
        if status == "aborted":
            raise RetryableError(
                "the connection was lost, and nothing is written", where=self._where, hint="write it again"
            )
        return bool(status == "committed")

    def _abort(self) -> None:
        with suppress(Exception):  # the error that ended it is the one to report
            self._connection.rollback()
            if self._is_mysql and not self._append and self._table is not None:
                self._connection.execute(sa.schema.DropTable(self._table, if_exists=True))
        self._stack.close()

    # ----------------------------------------------------------------------------------------------
    # Rows

    def _insert(self, batch: pa.RecordBatch) -> None:
        batch = pa.RecordBatch.from_arrays(
            [
                _plain_array(column, field, self._where)
                for column, field in zip(batch.columns, self._fields, strict=True)
            ],
            schema=self._fields,
        )
        inserts: dict[str, Callable[[pa.RecordBatch], None]] = {
            "postgresql": self._copy_to_postgresql,
            "duckdb": self._insert_into_duckdb,
        }
        inserts.get(self._dialect, self._insert_values)(batch)

    def _copy_to_postgresql(self, batch: pa.RecordBatch) -> None:
        columns = [_array_texts(column) if pa.types.is_list(column.type) else column for column in batch.columns]
        sink = pa.BufferOutputStream()
        keys = [str(at) for at in range(len(columns))]
        # Texts get quotes, NULL gets none.
        pa_csv.write_csv(pa.RecordBatch.from_arrays(columns, keys), sink, pa_csv.WriteOptions(include_header=False))
        preparer = self._connection.engine.dialect.identifier_preparer
        names = ", ".join(preparer.quote_identifier(name) for name in self._fields.names)
        statement = f"COPY {preparer.format_table(self._table)} ({names}) FROM STDIN (FORMAT csv)"
        if self._doubles_percents:  # for parameters, of which this statement has none
            statement = statement.replace("%%", "%")
        with self._connection.connection.cursor() as cursor:
            cursor.execute("SET LOCAL client_encoding TO 'UTF8'")
            with cursor.copy(statement.encode()) as copy:
                copy.write(sink.getvalue().to_pybytes())

    def _insert_into_duckdb(self, batch: pa.RecordBatch) -> None:
        connection = self._connection.connection.driver_connection
        preparer = self._connection.engine.dialect.identifier_preparer
        names = ", ".join(preparer.quote_identifier(name) for name in self._fields.names)
        keys = [f"c{at}" for at in range(batch.num_columns)]
        view = f"edl_batch_{uuid4().hex[:8]}"
        connection.register(view, pa.Table.from_arrays(batch.columns, keys))
        target = f"{preparer.format_table(self._table)} ({names})"
        connection.execute(f"INSERT INTO {target} SELECT {', '.join(keys)} FROM {view}")  # noqa: S608 - quoted
        # After an error the view goes with the connection: DuckDB 2 unregisters none in an aborted transaction.
        connection.unregister(view)

    def _insert_values(self, batch: pa.RecordBatch) -> None:
        columns = [_values(column, self._dialect) for column in batch.columns]
        preparer = self._connection.engine.dialect.identifier_preparer
        names = ", ".join(preparer.quote_identifier(name) for name in self._fields.names)
        marks = ", ".join(["%s" if self._doubles_percents else "?"] * len(columns))
        statement = f"INSERT INTO {preparer.format_table(self._table)} ({names}) VALUES ({marks})"  # noqa: S608 - quoted
        self._connection.exec_driver_sql(statement, list(zip(*columns, strict=True)))

    # ----------------------------------------------------------------------------------------------
    # Errors

    @contextmanager
    def _translated(self, *, at_end: bool = False) -> Iterator[None]:
        try:
            yield
        except EdlError:
            raise
        except self._database.errors as error:
            raise self._translate(error, at_end=at_end) from None

    def _translate(self, error: Exception, *, at_end: bool) -> EdlError:
        cause = _driver_error(error)
        reason = self._database.hide_secrets(shorten_reason(cause))
        number = cause.args[0] if cause.args and isinstance(cause.args[0], int) else 0
        state = _sql_state(error)
        texts = [text for text in _NO_RIGHT_TEXTS if text in reason.lower()]
        if state in _NO_RIGHT_STATES or number in _NO_RIGHT_NUMBERS or (texts and not state and not number):
            return BadInputError(f"there is no right to write: {reason}", where=self._where, hint=_RIGHTS_HINT)
        translated = self._database.translate(error)
        if not isinstance(translated, RetryableError):
            where = f"{self._where} of {self._database.address}"
            return BadInputError(f"the database refused: {reason}", where=where, hint=_REFUSED_HINT)
        if "lock" in reason.lower() and self._dialect not in _SERVERS:
            return RetryableError(
                f"another program has locked the database: {reason}", where=self._where, hint="write it again later"
            )
        if at_end:
            return RetryableError(
                f"the connection was lost while the rows were committed: {reason}",
                where=self._where,
                hint="all rows are there, or none: look whether the table exists before writing it again",
            )
        return RetryableError(
            f"the connection was lost, and nothing is written: {reason}", where=self._where, hint="write it again"
        )


def _driver_error(error: Exception) -> Any:
    return getattr(error, "orig", None) or error


def _sql_state(error: Exception) -> str:
    """PostgreSQL's code of an error; empty in other databases."""
    return str(getattr(_driver_error(error), "sqlstate", None) or "")


def _close(connection: Any, *, broken: bool = False) -> None:
    with suppress(Exception):  # a lost connection cannot be closed in order
        if broken:
            connection.invalidate()
        connection.close()


def _quoted_name(name: str) -> Any:
    """A name that SQLAlchemy writes in quotes, escaped, in every dialect."""
    return quoted_name(name, quote=True)


# --------------------------------------------------------------------------------------------------
# Types


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    names = schema.names
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice or not names or not all(name.strip() for name in names):
        raise BadInputError(
            f"columns have no names of their own: {', '.join(twice) or names}", where="the rows to write"
        )
    return pa.schema([(field.name, _plain_type(field.name, field.type)) for field in schema])


def _plain_type(name: str, kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        return kind
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return pa.float64()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_date(kind):
        return pa.date32()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us")
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_type(name, kind.value_type))
    raise BadInputError(f"column {name} has the type {kind}, which no table gets", where="the rows to write")


def _plain_array(column: pa.Array, field: pa.Field, where: str) -> pa.Array:
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise BadInputError(f"column {field.name} cannot be written: {error}", where=where) from None


def _column_type(field: pa.Field, dialect: str) -> Any:
    kind = field.type
    if pa.types.is_list(kind):
        if dialect in ("postgresql", "duckdb") and not pa.types.is_list(kind.value_type):
            return sa.ARRAY(_column_type(pa.field("", kind.value_type), dialect))
        kind = pa.string()
    long_text, exact_time, exact_day_time = mysql.LONGTEXT(), mysql.DATETIME(fsp=6), mysql.TIME(fsp=6)
    types: dict[pa.DataType, Any] = {
        pa.bool_(): sa.Boolean(create_constraint=False),
        pa.int64(): sa.BigInteger(),
        pa.float64(): sa.Double(),
        pa.string(): sa.Text().with_variant(long_text, *_MYSQL),
        pa.date32(): sa.Date(),
        pa.timestamp("us"): sa.DateTime().with_variant(exact_time, *_MYSQL),
        pa.time64("us"): sa.Time().with_variant(exact_day_time, *_MYSQL),
    }
    return types[kind]


def _array_texts(column: pa.Array) -> pa.Array:
    """PostgreSQL's text of arrays."""
    if pa.types.is_list(column.type.value_type) or pa.types.is_string(column.type.value_type):
        return pa.array([None if row is None else _array_text(row) for row in column.to_pylist()], pa.string())
    texts = column.cast(pa.list_(pa.string()))
    flat = pc.fill_null(texts.flatten(), "NULL")
    texts = pa.ListArray.from_arrays(texts.offsets, flat, mask=column.is_null()) if len(texts) else texts
    return pc.binary_join_element_wise("{", pc.binary_join(texts, ","), "}", "")


def _array_text(row: list[Any]) -> str:
    cells = [
        "NULL"
        if cell is None
        else '"' + cell.replace("\\", "\\\\").replace('"', '\\"') + '"'
        if isinstance(cell, str)
        else _array_text(cell)
        if isinstance(cell, list)
        else str(cell)
        for cell in row
    ]
    return "{" + ",".join(cells) + "}"


def _values(column: pa.Array, dialect: str) -> list[Any]:
    """Values for a driver without arrays and, in MySQL, without numbers that are none."""
    kind = column.type
    if pa.types.is_list(kind):
        return [None if row is None else json.dumps(row) for row in column.to_pylist()]
    if dialect == "sqlite" and pa.types.is_temporal(kind):
        column = column.cast(pa.string())
    if dialect in _MYSQL and pa.types.is_floating(kind):
        return [None if value is None or math.isnan(value) else value for value in column.to_pylist()]
    return list(column.to_pylist())
