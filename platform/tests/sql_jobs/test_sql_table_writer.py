"""Tables of predictions: all rows or none, in SQLite, DuckDB, and PostgreSQL and MariaDB as real servers."""

from __future__ import annotations

import datetime
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from sql_jobs.conftest import DatabaseUnderTest, duckdb_database, sqlite_database
from support.databases import MariaDbServer, PostgresServer

from edl.api.errors import BadInputError, EdlError, RetryableError
from edl.data import database as database_connections
from edl.sql_jobs import table_writer
from edl.sql_jobs.table_writer import TableWriter, check_table, count_rows, write_table

pytest.importorskip("sqlalchemy")

HOSTILE = 'x"; DROP TABLE t; --`'


def batch_of(first: int, rows: int) -> pa.RecordBatch:
    numbers = range(first, first + rows)
    return pa.record_batch({"id": pa.array(numbers, pa.int64()), "text": [f"row {number}" for number in numbers]})


def batches_of(count: int, rows: int = 100) -> Iterator[pa.RecordBatch]:
    return (batch_of(number * rows, rows) for number in range(count))


def read(database: DatabaseUnderTest, table: str, order: str = "id") -> list[Any]:
    quoted = database.quote(table)
    return [tuple(row) for row in database.execute(f"SELECT * FROM {quoted} ORDER BY {database.quote(order)}")]


def refuse(database: DatabaseUnderTest, table: tuple[str, ...] = ("p",), **options: Any) -> EdlError:
    with pytest.raises(EdlError) as refused:
        write_table(database.address, table, batches_of(2), **{"replace": False, **options})
    return refused.value


class TestEveryDatabase:
    def test_a_view_is_not_replaced_by_a_table(self, any_database: DatabaseUnderTest) -> None:
        any_database.execute("CREATE TABLE t (a INTEGER)")
        any_database.execute("CREATE VIEW v AS SELECT a FROM t")
        with pytest.raises(BadInputError, match="is a view"):
            check_table(any_database.address, ("v",), replace=True)
        error = refuse(any_database, ("v",), replace=True)
        assert isinstance(error, BadInputError)
        assert "is a view" in error.message
        assert list(any_database.execute("SELECT * FROM v")) == []
        any_database.execute("DROP VIEW v")

    def test_a_new_table_has_all_rows(self, any_database: DatabaseUnderTest) -> None:
        assert write_table(any_database.address, ("p",), batches_of(3, 4000), replace=False) == 12_000
        rows = read(any_database, "p")
        assert (len(rows), rows[11_999]) == (12_000, (11_999, "row 11999"))
        assert any_database.tables() == ["p"]

    def test_rows_are_counted_and_a_table_may_be_missing(self, any_database: DatabaseUnderTest) -> None:
        assert count_rows(any_database.address, (HOSTILE,)) is None
        write_table(any_database.address, (HOSTILE,), batches_of(3), replace=False)
        assert count_rows(any_database.address, (HOSTILE,)) == 300

    def test_values_keep_their_types_and_texts_their_characters(self, any_database: DatabaseUnderTest) -> None:
        texts = ["", "a,b", 'say "hi"', "two\nlines", "ä€😀", "50%s", "\\N", "NULL", None]
        batch = pa.record_batch(
            {
                "id": pa.array(range(len(texts)), pa.int32()),
                "text": pa.array(texts),
                "ok": pa.array([True, None, False] * 3),
                "share": pa.array([0.1, None, -1e300] * 3),
                "small": pa.array([0.5, None, 2.0] * 3, pa.float32()),
                "day": pa.array([datetime.date(2020, 2, 29), None, None] * 3),
                "at": pa.array([datetime.datetime(2020, 1, 1, 1, 2, 3, 4), None, None] * 3),
                "town": pa.array(["Ulm", None, "Bonn"] * 3).dictionary_encode(),
            }
        )
        write_table(any_database.address, ("p",), [batch], replace=False)
        rows = read(any_database, "p")
        assert [row[1] for row in rows] == texts
        first, second, third = rows[:3]
        assert (first[2], first[3], first[4], first[7]) == (True, 0.1, 0.5, "Ulm")
        assert second[2:] == (None,) * 6
        assert (third[2], third[3]) == (False, -1e300)
        assert str(first[5]) == "2020-02-29"
        assert str(first[6]) == "2020-01-01 01:02:03.000004"

    def test_names_that_try_to_inject_are_only_names(self, any_database: DatabaseUnderTest) -> None:
        any_database.fill("id INTEGER", [(1,)])
        columns = [HOSTILE, "Größe in cm", "100%s (x)", "values (%s)", "SELECT"]
        batch = pa.record_batch([pa.array([number]) for number in range(len(columns))], columns)
        assert write_table(any_database.address, (HOSTILE,), [batch, batch], replace=False) == 2
        assert write_table(any_database.address, (HOSTILE,), [batch], replace=False, append=True) == 1
        assert write_table(any_database.address, (HOSTILE,), [batch], replace=True) == 1
        assert any_database.tables() == sorted([HOSTILE, "t"])
        assert read(any_database, HOSTILE, HOSTILE) == [tuple(range(len(columns)))]

    def test_a_table_that_exists_is_replaced_only_when_asked(self, any_database: DatabaseUnderTest) -> None:
        any_database.execute("CREATE TABLE p (other INTEGER)", "INSERT INTO p VALUES (7)")
        assert "there is such a table" in refuse(any_database).message
        assert read(any_database, "p", "other") == [(7,)]
        assert write_table(any_database.address, ("p",), batches_of(2), replace=True) == 200
        assert len(read(any_database, "p")) == 200
        assert any_database.tables() == ["p"]

    def test_rows_are_added_to_a_table_that_has_their_columns(self, any_database: DatabaseUnderTest) -> None:
        any_database.execute(
            "CREATE TABLE p (id BIGINT, more INTEGER, text VARCHAR(50))", "INSERT INTO p VALUES (-1, 5, 'a')"
        )
        write_table(any_database.address, ("p",), batches_of(2), replace=False, append=True)
        rows = read(any_database, "p")
        assert (len(rows), rows[0], rows[1]) == (201, (-1, 5, "a"), (0, None, "row 0"))
        any_database.execute("CREATE TABLE q (id BIGINT)")
        assert "has no column text" in refuse(any_database, ("q",), append=True).message
        assert "there is no such table" in refuse(any_database, ("r",), append=True).message

    @pytest.mark.parametrize("option", ["new", "replace", "append"])
    @pytest.mark.first_cases(6)
    def test_an_error_in_the_middle_leaves_what_was_there(self, any_database: DatabaseUnderTest, option: str) -> None:
        if option != "new":
            any_database.execute("CREATE TABLE p (id BIGINT, text VARCHAR(50))", "INSERT INTO p VALUES (-1, 'a')")

        def broken() -> Iterator[pa.RecordBatch]:
            yield from batches_of(3)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write_table(any_database.address, ("p",), broken(), replace=option == "replace", append=option == "append")
        if option == "new":
            assert any_database.tables() == []
        else:
            assert any_database.tables() == ["p"]
            assert read(any_database, "p") == [(-1, "a")]

    def test_what_the_database_refuses_is_said_and_undone(self, any_database: DatabaseUnderTest) -> None:
        if any_database.kind == "sqlite":
            any_database.execute("CREATE TABLE p (id BIGINT UNIQUE, text TEXT)", "INSERT INTO p VALUES (150, 'a')")
        else:
            any_database.execute(
                "CREATE TABLE p (id BIGINT UNIQUE, text VARCHAR(50))", "INSERT INTO p VALUES (150, 'a')"
            )
        error = refuse(any_database, append=True)
        assert isinstance(error, BadInputError)
        assert "\n" not in error.message
        assert "150" in error.message or any_database.kind == "sqlite"
        assert read(any_database, "p") == [(150, "a")]

    def test_other_columns_names_and_types_are_refused(self, any_database: DatabaseUnderTest) -> None:
        two = [batch_of(0, 1), pa.record_batch({"other": [1]})]
        with pytest.raises(BadInputError, match="other columns"):
            write_table(any_database.address, ("p",), two, replace=False)
        with pytest.raises(BadInputError, match="column raw has the type binary"):
            write_table(any_database.address, ("p",), [pa.record_batch({"raw": [b"x"]})], replace=False)
        with pytest.raises(BadInputError, match="no rows to write"):
            write_table(any_database.address, ("p",), [], replace=False)
        assert any_database.tables() == []
        for name in ((), ("",), ("a", "b", "c")):
            with pytest.raises(BadInputError, match="no name of a table"):
                write_table(any_database.address, name, batches_of(1), replace=False)

    def test_lists_are_arrays_or_texts(self, any_database: DatabaseUnderTest) -> None:
        lists = [[0.5, None], [], None]
        batch = pa.record_batch({"id": [0, 1, 2], "v": pa.array(lists, pa.list_(pa.float32()))})
        write_table(any_database.address, ("p",), [batch], replace=False)
        texts = ["[0.5, null]", "[]", None]
        expected = lists if any_database.kind in ("postgresql", "duckdb") else texts
        assert [row[1] for row in read(any_database, "p")] == expected

    def test_a_name_that_is_too_long_is_refused_and_not_cut(self, any_database: DatabaseUnderTest) -> None:
        if any_database.kind in ("sqlite", "duckdb"):
            pytest.skip("names may be as long as they like")
        name = "ä" * 40 if any_database.kind == "postgresql" else "a" * 65
        assert "too long" in refuse(any_database, (name,)).message
        with pytest.raises(BadInputError, match="too long"):
            write_table(any_database.address, ("p",), [pa.record_batch({name: [1]})], replace=False)
        assert any_database.tables() == []


def test_a_database_that_another_program_has_locked_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_connections, "_LOCK_SECONDS", 0)
    database = sqlite_database(tmp_path)
    other = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    error = refuse(database)
    other.close()
    assert isinstance(error, RetryableError)
    assert "another program" in error.message
    assert "lost" not in error.message


class TestSchemas:
    def test_a_table_in_a_schema(self, postgres: PostgresServer) -> None:
        postgres.connect('DROP SCHEMA IF EXISTS "My Shop" CASCADE', 'CREATE SCHEMA "My Shop"')
        for replace in (False, True):
            assert write_table(postgres.address, ("My Shop", "p"), batches_of(1), replace=replace) == 100
        assert postgres.connect('SELECT count(*) FROM "My Shop".p') == [(100,)]
        with pytest.raises(BadInputError, match="nowhere"):
            write_table(postgres.address, ("nowhere", "p"), batches_of(1), replace=False)

    def test_a_table_in_another_database_of_mariadb(self, mariadb: MariaDbServer) -> None:
        mariadb.connect("DROP DATABASE IF EXISTS `my shop`", "CREATE DATABASE `my shop`")
        for replace in (False, True):
            assert write_table(mariadb.address, ("my shop", "p"), batches_of(1), replace=replace) == 100
        assert mariadb.connect("SELECT table_name FROM information_schema.tables WHERE table_schema = 'my shop'") == [
            ("p",)
        ]


class TestServers:
    @pytest.fixture(params=["postgres", "mariadb"])
    def server(self, request: pytest.FixtureRequest) -> PostgresServer | MariaDbServer:
        started_server: PostgresServer | MariaDbServer = request.getfixturevalue(request.param)
        return started_server

    @pytest.mark.parametrize("option", ["new", "replace", "append"])
    @pytest.mark.parametrize(("end", "lost_at"), [("kill", 0), ("kill", 2), ("kill", 3), ("crash", 2)])
    @pytest.mark.first_cases(5)
    def test_a_connection_that_is_lost_leaves_what_was_there(
        self, server: PostgresServer, option: str, end: str, lost_at: int
    ) -> None:
        if option != "new":
            server.connect("CREATE TABLE p (id BIGINT, text VARCHAR(50))", "INSERT INTO p VALUES (-1, 'a')")

        def lose() -> None:
            if end == "crash":
                server.crash()
            elif isinstance(server, MariaDbServer):
                others = server.connect(
                    "SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND user = 'edl'"
                )
                server.connect(*[f"KILL {number}" for (number,) in others])
            else:
                server.connect(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "
                    "backend_type = 'client backend'"
                )

        def losing() -> Iterator[pa.RecordBatch]:
            for number, batch in enumerate(batches_of(3)):
                yield batch
                if number == lost_at:
                    lose()
            if lost_at == 3:
                lose()

        with pytest.raises(RetryableError, match="the connection was lost"):
            write_table(server.address, ("p",), losing(), replace=option == "replace", append=option == "append")
        if server.process is None:
            server.start()
        if option != "new":
            assert server.connect("SELECT * FROM p") == [(-1, "a")]
        self._check_that_only_p_is_there(server, [] if option == "new" else ["p"])
        # The next one finds no remains.
        written = write_table(
            server.address, ("p",), batches_of(1), replace=option == "replace", append=option == "append"
        )
        assert written == 100
        assert server.connect("SELECT count(*) FROM p") == [(101 if option == "append" else 100,)]
        names = self._tables(server)
        assert names == ["p"]

    def _tables(self, server: PostgresServer) -> list[str]:
        schema = "shop" if isinstance(server, MariaDbServer) else "public"
        rows = server.connect(f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{schema}'")
        return sorted(name for (name,) in rows)

    def _check_that_only_p_is_there(self, server: PostgresServer, expected: list[str]) -> None:
        names = self._tables(server)
        if isinstance(server, MariaDbServer):
            # MariaDB keeps the definition of a table: it has another name until it is complete.
            names = [name for name in names if not name.startswith("edl_partial_")]
        assert names == expected

    def test_a_user_without_the_right_to_write_is_told_so(
        self, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.connect("CREATE TABLE p (id BIGINT, text VARCHAR(50))")
        if isinstance(server, MariaDbServer):
            server.connect("CREATE OR REPLACE USER reader IDENTIFIED BY 'x'", "GRANT SELECT ON shop.* TO reader")
        else:
            server.connect(
                "DROP ROLE IF EXISTS reader",
                "CREATE ROLE reader LOGIN PASSWORD 'x'",
                "REVOKE CREATE ON SCHEMA public FROM public",
                "GRANT USAGE ON SCHEMA public TO reader",
                "GRANT SELECT ON p TO reader",
            )
        monkeypatch.setenv("EDL_DATABASE_USER", "reader")
        monkeypatch.setenv("EDL_DATABASE_PASSWORD", "x")
        for table, options in (("q", {}), ("p", {"replace": True}), ("p", {"append": True})):
            if table == "q":
                with pytest.raises(BadInputError, match="there is no right to write"):
                    check_table(server.address, (table,), replace=False)
            with pytest.raises(BadInputError, match="there is no right to write") as refused:
                write_table(server.address, (table,), batches_of(2), **{"replace": False, **options})
            assert "denied" in refused.value.message or "must be owner" in refused.value.message
        if not isinstance(server, MariaDbServer):
            monkeypatch.undo()
            server.connect("DROP OWNED BY reader", "DROP ROLE reader")

    def test_a_table_that_cannot_be_replaced_is_found_before_its_rows_are_there(
        self, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The right to create tables is not that to remove the one of somebody else."""
        server.connect("CREATE TABLE p (id BIGINT, text VARCHAR(50))", "INSERT INTO p VALUES (1, 'a')")
        if isinstance(server, MariaDbServer):
            server.connect(
                "CREATE OR REPLACE USER writer IDENTIFIED BY 'x'", "GRANT SELECT, INSERT, CREATE ON shop.* TO writer"
            )
        else:
            server.connect("DROP ROLE IF EXISTS writer", "CREATE ROLE writer LOGIN PASSWORD 'x'")
            server.connect("GRANT USAGE, CREATE ON SCHEMA public TO writer", "GRANT ALL ON p TO writer")
        with monkeypatch.context() as other:
            other.setenv("EDL_DATABASE_USER", "writer")
            other.setenv("EDL_DATABASE_PASSWORD", "x")
            with pytest.raises(BadInputError, match="there is no right to write") as refused:
                check_table(server.address, ("p",), replace=True)
        assert "denied" in refused.value.message or "must be owner" in refused.value.message
        check_table(server.address, ("p",), replace=True)
        assert server.connect("SELECT * FROM p") == [(1, "a")]
        if not isinstance(server, MariaDbServer):
            server.connect("DROP OWNED BY writer", "DROP ROLE writer")
            server.connect("CREATE VIEW dependent AS SELECT * FROM p")
            with pytest.raises(BadInputError, match="depend"):
                check_table(server.address, ("p",), replace=True)
            server.connect("DROP VIEW dependent")

    def test_a_table_that_is_being_read_is_not_waited_for_at_the_beginning(self, postgres: PostgresServer) -> None:
        postgres.connect("CREATE TABLE p (id BIGINT, text VARCHAR(50))")
        engine = database_connections.Database(postgres.address).engine
        with engine.connect() as reader:
            reader.exec_driver_sql("LOCK TABLE p IN ACCESS SHARE MODE")
            check_table(postgres.address, ("p",), replace=True)
        engine.dispose()

    def test_two_writers_of_one_table_do_not_mix(self, server: PostgresServer) -> None:
        def write_meanwhile() -> Iterator[pa.RecordBatch]:
            yield batch_of(0, 10)
            # PostgreSQL: this one is complete, and the first one finds its table. MariaDB: there is a lock.
            write_table(server.address, ("p",), batches_of(1), replace=False)

        with pytest.raises(EdlError, match=r"another program writes this table|exist"):
            write_table(server.address, ("p",), write_meanwhile(), replace=False)
        assert self._tables(server) == ([] if isinstance(server, MariaDbServer) else ["p"])
        assert write_table(server.address, ("p",), batches_of(1), replace=True) == 100

    def test_a_commit_that_is_not_confirmed_is_looked_up(
        self, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import sqlalchemy as sa

        commit = sa.Connection.commit

        def lose_answer(connection: Any) -> None:
            commit(connection)
            raise sa.exc.OperationalError("COMMIT", {}, Exception("server closed the connection"), True)

        monkeypatch.setattr(sa.Connection, "commit", lose_answer)
        assert write_table(postgres.address, ("p",), batches_of(1), replace=False) == 100
        assert postgres.connect("SELECT count(*) FROM p") == [(100,)]

        def lose_commit(connection: Any) -> None:
            connection.rollback()
            raise sa.exc.OperationalError("COMMIT", {}, Exception("server closed the connection"), True)

        monkeypatch.setattr(sa.Connection, "commit", lose_commit)
        with pytest.raises(RetryableError, match="nothing is written"):
            write_table(postgres.address, ("q",), batches_of(1), replace=False)

    def test_no_secret_is_in_errors_or_representations(
        self, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("EDL_DATABASE_PASSWORD", "hunter2")
        with pytest.raises(EdlError) as refused:
            write_table(server.address, ("p",), batches_of(1), replace=False)
        writer = TableWriter(server.address, ("p",), batch_of(0, 1).schema)
        assert "hunter2" not in f"{refused.value!r} {refused.value} {refused.value.hint} {writer!r} {vars(writer)}"
        with pytest.raises(BadInputError, match="contains a password") as error:
            write_table(server.address.replace("://", "://edl:hunter2@"), ("p",), batches_of(1), replace=False)
        assert "hunter2" not in str(error.value)

    def test_an_unreachable_server_is_not_waited_for(self, no_waiting: list[float]) -> None:
        with pytest.raises(RetryableError):
            write_table("postgresql://127.0.0.1:9/db", ("p",), batches_of(1), replace=False)
        assert not no_waiting


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write everything: as nobody, if it is root."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_a_file_that_may_only_be_read_is_told_so() -> None:
    with TemporaryDirectory() as folder:  # folders of pytest are closed to others
        database = sqlite_database(Path(folder))
        Path(folder).chmod(0o755)
        (Path(folder) / "shop.db").chmod(0o444)
        with unprivileged(), pytest.raises(BadInputError, match="there is no right to write"):
            check_table(database.address, ("p",), replace=False)
        with unprivileged(), pytest.raises(BadInputError, match="there is no right to write"):
            write_table(database.address, ("p",), batches_of(1), replace=False)


def test_memory_is_that_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    insert = table_writer.TableWriter._insert

    def noted(writer: TableWriter, batch: pa.RecordBatch) -> None:
        sizes.append(batch.num_rows)
        insert(writer, batch)

    monkeypatch.setattr(table_writer.TableWriter, "_insert", noted)
    database = sqlite_database(tmp_path)
    assert write_table(database.address, ("p",), batches_of(1, 12_000), replace=False) == 12_000
    assert sizes == [5000, 5000, 2000]


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_table_is_looked_for_before_its_rows_are_there(kind: str, tmp_path: Path) -> None:
    database = sqlite_database(tmp_path) if kind == "sqlite" else duckdb_database(tmp_path)
    database.execute("CREATE TABLE t (a INTEGER)")
    with pytest.raises(BadInputError, match="there is such a table"):
        check_table(database.address, ("t",), replace=False)
    check_table(database.address, ("another",), replace=False)
    check_table(database.address, ("t",), replace=True)
    assert database.tables() == ["t"]
    assert database.execute("SELECT count(*) FROM t") == [(0,)]
