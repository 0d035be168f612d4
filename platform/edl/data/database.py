"""Connections to databases, through SQLAlchemy: read-only unless a table is written, without credentials in messages,
tried again when lost.

Embedded databases (SQLite, DuckDB) are opened for each read, so that their file is not held. Servers keep a few
connections.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from edl.api.errors import BadInputError, EdlError, RetryableError
from edl.data.data_files import FileVersion, changed_error, file_version, read_error
from edl.data.temporary_errors import TRIES, retry_temporary
from edl.jobfile.database_address import (
    CREDENTIALS_HINT,
    ENVIRONMENT_SCHEME,
    database_file,
    has_password,
    is_database,
)

_log = logging.getLogger(__name__)

USER_VARIABLE, PASSWORD_VARIABLE = "EDL_DATABASE_USER", "EDL_DATABASE_PASSWORD"
_DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql"}
_CONNECT_SECONDS, _SILENT_SECONDS = 10, 60
_LOCK_SECONDS = 30
"""What SQLite waits for another program that writes."""
_EXTRA_HINT = "install EDL with the extra sql, also in the job's image: pip install 'edl-platform[sql]'"
_DUCKDB_HINT = "install EDL with the extra duckdb, also in the job's image: pip install 'edl-platform[sql,duckdb]'"
_REFUSED = re.compile(
    r"authentication failed|access denied|no password supplied|does not exist|unknown database|permission denied"
    r"|no pg_hba|not permitted|unable to open|not a database|malformed",
    re.I,
)
_SNAPSHOT = re.compile(r"[0-9A-Fa-f]+(-[0-9A-Fa-f]+)*")
_NO_TABLE = re.compile(
    r"no such table|relation .* does not exist|doesn't exist|table with name .* does not exist", re.I
)

ResultT = TypeVar("ResultT")


def check_address(address: str) -> None:
    """Refuse what is no address, and one with a password, which is not printed.

    Raises:
        BadInputError: it is one of these.
    """
    if not is_database(address):
        raise BadInputError(
            "is not the address of a database",
            where=address,
            hint="write postgresql://host/database, sqlite:///file.db or env://NAME for each source",
        )
    if has_password(address):
        where = f"{address.partition('://')[0]}://…"
        raise BadInputError("the address contains a password", where=where, hint=CREDENTIALS_HINT)


def find_scheme(address: str) -> str:
    """The scheme of an address, such as ``postgresql``, also of one that is in the environment.

    Raises:
        BadInputError: the environment variable that ``env://`` names has no address.
    """
    if not is_database(address):
        return address.partition("://")[0].lower()
    return _read_address(address).partition("://")[0].lower()


class Database:
    """One database. Threads share it.

    Args:
        address: as in the job file, without a table. It is what messages name.
        writable: connections may write; the file of an embedded database may change.
        snapshot: what ``pg_export_snapshot()`` of PostgreSQL gave a connection that is still open: all transactions
            read the state that its transaction reads.
    """

    def __init__(self, address: str, *, writable: bool = False, snapshot: str = "") -> None:
        check_address(address)
        if snapshot and not _SNAPSHOT.fullmatch(snapshot):
            raise BadInputError("is no name of a snapshot", where=snapshot, hint="pg_export_snapshot() returns one")
        self._snapshot = snapshot
        self.address = address
        self._writable = writable
        self._engine: Any = None
        self._secrets: tuple[str, ...] = ()
        self._version: FileVersion | None = None

    def run(self, action: Callable[[Any], ResultT]) -> ResultT:
        """The result of an action on a connection; a lost one is replaced, and the action begins again.

        Raises:
            BadInputError: trying again is of no use.
            RetryableError: every try failed.
        """

        def connect_and_run() -> ResultT:
            self._check_file()
            with self.engine.connect() as connection:
                return action(connection)

        return retry_temporary(connect_and_run, self.translate, errors=self.errors, tries=TRIES, hides_cause=True)

    @contextmanager
    def connect(self) -> Iterator[Any]:
        """A connection. What fails on it is not tried again.

        Raises:
            BadInputError: trying again is of no use.
            RetryableError: the database is not reachable, or the connection was lost.
        """
        self._check_file()
        engine = self.engine
        try:
            with engine.connect() as connection:
                yield connection
        except self.errors as error:
            raise self.translate(error) from None

    def quote_name(self, name: str) -> str:
        """The name of a column as a query must write it: in quotes of the dialect, if it needs any."""
        quoted: str = self.engine.dialect.identifier_preparer.quote(name)
        return quoted

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What fails on a connection: through SQLAlchemy, in the driver, and in what converts values."""
        from sqlalchemy.exc import SQLAlchemyError

        driver_error: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        return (SQLAlchemyError, driver_error, ValueError, OSError)  # ValueError: text in a column of dates

    def changed(self, what: str) -> BadInputError:
        """The error for a table that is another one than when its rows were counted."""
        return BadInputError(
            f"the table changed while it was in use: {what}",
            where=self.address,
            hint="train on a table that nobody writes to, such as a copy (CREATE TABLE … AS SELECT …)",
        )

    @property
    def engine(self) -> Any:
        """SQLAlchemy's engine, made on use."""
        if self._engine is None:
            self._engine = self._make_engine()
            weakref.finalize(self, self._engine.dispose)
        return self._engine

    def _check_file(self) -> None:
        """The file of an embedded database is there, and is the one that was opened first."""
        file = self._file
        if file is None:
            return
        try:
            version = file_version(file.stat())
        except OSError as error:
            raise read_error(file, error) from error
        if self._version is None or self._writable:
            self._version = version
        if version != self._version:
            raise changed_error(file)

    @property
    def _file(self) -> Path | None:
        name = database_file(self._whole_address())
        return None if name is None else Path(name)

    def _whole_address(self) -> str:
        return _read_address(self.address)

    def _make_engine(self) -> Any:
        try:
            import sqlalchemy as sa
        except ImportError as error:
            raise BadInputError(
                f"a database needs the package sqlalchemy: {error}", where="data", hint=_EXTRA_HINT
            ) from error
        address = self._whole_address()
        scheme = address.partition("://")[0].lower()
        if self._snapshot and scheme != "postgresql":
            raise BadInputError(
                "has no snapshots that connections share; only PostgreSQL has",
                where=self.address,
                hint="leave the snapshot out",
            )
        try:
            if scheme == "sqlite":
                return self._sqlite_engine(sa)
            if scheme == "duckdb":
                url = sa.URL.create("duckdb", database=str(self._file))
                settings: dict[str, Any] = {"read_only": not self._writable}
                return sa.create_engine(url, connect_args=settings, poolclass=sa.NullPool, hide_parameters=True)
            return self._server_engine(sa, scheme, address)
        except (ImportError, sa.exc.NoSuchModuleError) as error:
            hint = _DUCKDB_HINT if scheme == "duckdb" else _EXTRA_HINT
            raise BadInputError(f"{scheme}:// needs a package: {error}", where="data", hint=hint) from None
        except (ValueError, sa.exc.ArgumentError):
            raise BadInputError(
                "cannot be read as an address",
                where=self.address,
                hint="write postgresql://host:port/database; in a password, write @ as %40, # as %23 and / as %2F",
            ) from None

    def _sqlite_engine(self, sa: Any) -> Any:
        import sqlite3

        # A file that is missing is not made.
        address = f"file:{quote(str(self._file))}?mode={'rw' if self._writable else 'ro'}"
        return sa.create_engine(
            "sqlite://",
            creator=lambda: sqlite3.connect(address, uri=True, timeout=_LOCK_SECONDS, check_same_thread=False),
            poolclass=sa.NullPool,
            hide_parameters=True,
        )

    def _server_engine(self, sa: Any, scheme: str, address: str) -> Any:
        url = sa.make_url(address).set(drivername=_DRIVERS[scheme])
        user = url.username or os.environ.get(USER_VARIABLE)
        password = url.password or os.environ.get(PASSWORD_VARIABLE)
        url = url.set(username=user, password=password)
        self._secrets = tuple(each for each in (str(password or ""), quote(str(password or ""), safe="")) if each)
        settings: dict[str, Any] = {"connect_timeout": _CONNECT_SECONDS}
        if scheme == "postgresql":
            # A peer that is gone is noticed, and a long query is not: the kernel answers keepalives.
            settings |= {"keepalives_idle": 20, "keepalives_interval": 10, "keepalives_count": 4}
            settings |= {"tcp_user_timeout": 1000 * _SILENT_SECONDS, "application_name": "edl"}
            # That of the server may be none, SQL_ASCII, of which SQLAlchemy cannot read the version.
            settings["client_encoding"] = "UTF8"
        else:
            # Its connect_timeout ends before the server's greeting.
            settings["read_timeout"] = _CONNECT_SECONDS
        engine = sa.create_engine(
            url,
            connect_args={name: value for name, value in settings.items() if name not in url.query},
            pool_size=2,
            max_overflow=8,
            pool_pre_ping=True,
            hide_parameters=True,
        )
        if scheme != "postgresql":
            sa.event.listen(engine, "connect", _watch_peer)
        if self._snapshot:
            statement = f"SET TRANSACTION SNAPSHOT '{self._snapshot}'"
            sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(statement))
        if self._writable:
            return engine
        if scheme == "postgresql":
            return engine.execution_options(postgresql_readonly=True, isolation_level="REPEATABLE READ")
        sa.event.listen(engine, "connect", _make_session_read_only)
        return engine

    def translate(self, error: Exception) -> EdlError:
        """The error of EDL for one of SQLAlchemy, of a driver or of what converts values."""
        cause = getattr(error, "orig", None) or error
        reason = self.hide_secrets(" ".join(str(cause).split()) or type(cause).__name__)
        number = cause.args[0] if cause.args and isinstance(cause.args[0], int) else 0
        state = str(getattr(cause, "sqlstate", None) or "")
        if "snapshot" in reason and self._snapshot in reason and self._snapshot:
            return BadInputError(
                f"the snapshot is gone: {reason}",
                where=self.address,
                hint="the connection that exported it was closed or lost; begin again with a new snapshot",
            )
        if _NO_TABLE.search(reason) and state != "3D000" and "database" not in reason.split(" does not")[0].lower():
            return BadInputError(
                f"there is no such table: {reason}", where=self.address, hint="check data.reader.table"
            )
        if _REFUSED.search(reason) or number in (1044, 1045, 1049, 1142):
            return BadInputError(
                f"the database refused: {reason}",
                where=self.address,
                hint=f"check the address, and {USER_VARIABLE} and {PASSWORD_VARIABLE} in the environment; the user "
                "needs the right to SELECT",
            )
        is_lost = bool(getattr(error, "connection_invalidated", False)) or state[:2] in ("08", "53", "57", "40", "55")
        is_operational = type(error).__name__ in ("OperationalError", "InterfaceError", "TimeoutError")
        embedded = database_file(self._whole_address()) is not None
        is_lost |= is_operational and not state and not (embedded and "locked" not in reason)
        is_lost |= embedded and "could not set lock" in reason.lower()
        if is_lost:
            return RetryableError(f"the database cannot be read: {reason}", where=self.address, hint="is it reachable?")
        return BadInputError(
            f"the database refused: {reason}",
            where=self.address,
            hint="run the query of data.reader in the database's own client",
        )

    def hide_secrets(self, text: str) -> str:
        """A text without the password, in whichever spelling."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _read_address(address: str) -> str:
    """The address with what ``env://`` stands for."""
    scheme, _, name = address.partition("://")
    if scheme.lower() != ENVIRONMENT_SCHEME:
        return address
    stored = os.environ.get(name)
    if not stored:
        raise BadInputError(
            f"the environment variable {name} is not set",
            where=address,
            hint="it holds the address of the database; on a cluster, take it from a Secret with pod.env",
        )
    if not is_database(stored) or stored.lower().startswith(f"{ENVIRONMENT_SCHEME}://") or "#" in stored:
        raise BadInputError(
            f"the environment variable {name} has no address of a database",
            where=address,
            hint=f"write postgresql://…, with # in a password as %23; a table goes into the job file: {name}#TABLE",
        )
    return stored


def _watch_peer(connection: Any, _: object) -> None:
    """A query of MySQL may take long; a peer that is gone is noticed by keepalives, as for PostgreSQL."""
    connection._read_timeout = None
    sock = connection._sock
    if sock.family in (socket.AF_INET, socket.AF_INET6) and hasattr(socket, "TCP_KEEPIDLE"):
        for option, value in ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 4)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _make_session_read_only(connection: Any, _: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION READ ONLY")


def check_select(query: str, where: str) -> None:
    """Accept one SELECT only. The database's own parser sees it later, as a subquery and in a read-only transaction.

    Raises:
        BadInputError: it is another statement, or several.
    """
    bare = _strip_literals(query)
    first = re.match(r"[\s(]*(\w+)", bare)
    if first is None or first[1].lower() not in ("select", "with", "values"):
        raise BadInputError("is no SELECT", where=where, hint="write one SELECT statement")
    if ";" in bare:
        raise BadInputError("has several statements", where=where, hint="write one SELECT statement, without ;")
    depth = 0
    for character in bare:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            break
    if depth:
        raise BadInputError("has parentheses without a match", where=where, hint="write one SELECT statement")


_LITERAL = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|(\$\w*\$).*?\1", re.S
)  # comments, text, names; text of PostgreSQL between dollars


def _strip_literals(query: str) -> str:
    return _LITERAL.sub(" ", query).strip().rstrip(";").rstrip()


def strip_semicolon(query: str) -> str:
    """A statement without the semicolon at its end, behind which comments may be."""
    bare = _LITERAL.sub(lambda literal: " " * len(literal[0]), query).rstrip()
    while bare.endswith(";"):
        bare = bare[:-1].rstrip()
        query = query[: len(bare)]
    return query


def as_subquery_text(query: str) -> str:
    """A query without its last semicolon, for SQLAlchemy's ``text``, to which ``:name`` would be a parameter."""
    text = query.rstrip()
    while text.endswith(";"):
        text = text[:-1].rstrip()
    return re.sub(r"(?<![:\w\\]):(?=\w)", r"\\:", text)


def distinct_names(names: Sequence[str], where: str) -> None:
    """Refuse a result in which two columns have one name."""
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise BadInputError(
            f"several columns are called {', '.join(twice)}", where=where, hint="name each column once, with AS"
        )
