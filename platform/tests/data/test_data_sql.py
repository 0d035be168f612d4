"""Tables and queries of databases: SQLite, DuckDB, and PostgreSQL and MariaDB as real servers."""

from __future__ import annotations

import datetime
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.databases import (
    PASSWORD,
    USER,
    MariaDbServer,
    PostgresServer,
    find_mariadb,
    find_postgres,
    require,
    start_mariadb,
    start_postgres,
)
from support.reader_contract import FEW_RECORDS, RECORDS, ReaderCase, ReaderContract

from edl.api.errors import BadInputError, EdlError, RetryableError
from edl.api.job_spec import DataSpec, SchemaSpec, SplitSpec
from edl.data import temporary_errors
from edl.data.job_data import open_job_data
from edl.data.reader import CorruptRange
from edl.data.reader_factory import check_reader_options, open_reader

pytest.importorskip("sqlalchemy")

# Keys with gaps, and wide rows, so that there are several blocks.
FIRST = [(3 * number, number, f"ä{number}" + "x" * 2000) for number in range(RECORDS)]
SECOND = [(3 * number, number, "b") for number in range(RECORDS, RECORDS + FEW_RECORDS)]
CREATE = 'CREATE TABLE "my rows" (id BIGINT PRIMARY KEY, n BIGINT, text VARCHAR(3000))'


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []
    monkeypatch.setattr(temporary_errors, "pause", waits.append)
    return waits


def key_of(record: Any) -> int:
    if record["n"] < RECORDS:
        assert record["text"].decode().startswith(f"ä{record['n']}x")
    return int(record["n"])


class TestSqlite(ReaderContract):
    @pytest.fixture(params=["table", "query", "address"])
    def local_case(self, tmp_path: Path, request: pytest.FixtureRequest) -> ReaderCase:
        for name, rows in (("a", FIRST), ("b", SECOND)):
            write_sqlite(tmp_path / f"{name}.db", CREATE, 'INSERT INTO "my rows" VALUES (?, ?, ?)', rows)
        table = "#my rows" if request.param == "address" else ""
        paths = [f"sqlite:///{tmp_path}/{name}.db{table}" for name in "ab"]
        option: dict[str, object] = {
            "table": {"table": "my rows"},
            "query": {"query": 'SELECT * FROM "my rows" -- all of them'},
            "address": {},
        }[request.param]

        def rewrite() -> None:
            write_sqlite(tmp_path / "a.db", 'DELETE FROM "my rows" WHERE n = 0')

        return ReaderCase(paths, {**option, "key": "id", "columns": ["n", "text"]}, key_of, rewrite)


class TestDuckDb(ReaderContract):
    @pytest.fixture
    def local_case(self, tmp_path: Path) -> ReaderCase:
        pytest.importorskip("duckdb_engine")
        import duckdb

        for name, first, end in (("a", 0, RECORDS), ("b", RECORDS, RECORDS + FEW_RECORDS)):
            with duckdb.connect(str(tmp_path / f"{name}.duckdb")) as connection:
                connection.execute(CREATE)  # row by row would take a second
                numbers = f"range({first}, {end}) AS numbers(n)"
                row = "3 * n, n, 'ä' || n || repeat('x', 2000)"
                connection.execute(f'INSERT INTO "my rows" SELECT {row} FROM {numbers}')

        def rewrite() -> None:
            with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
                connection.execute('DELETE FROM "my rows" WHERE n = 0')

        options: dict[str, object] = {"query": 'SELECT * FROM "my rows"', "key": "id", "columns": ["n", "text"]}
        return ReaderCase([f"duckdb:///{tmp_path}/{name}.duckdb" for name in "ab"], options, key_of, rewrite)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with start_postgres(require(find_postgres(), "postgresql")) as server:
        yield server


@pytest.fixture
def server(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> PostgresServer:
    monkeypatch.setenv("EDL_DATABASE_USER", USER)
    monkeypatch.setenv("EDL_DATABASE_PASSWORD", PASSWORD)
    if postgres.process is None:
        postgres.start()
    postgres.connect("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return postgres


class TestPostgres(ReaderContract):
    @pytest.fixture
    def local_case(self, server: PostgresServer) -> ReaderCase:
        text = "'ä' || n || repeat('x', 2000)"
        for name, first, last in (("a", 0, RECORDS - 1), ("b", RECORDS, RECORDS + FEW_RECORDS - 1)):
            server.connect(
                f"CREATE TABLE {name} AS SELECT 3::bigint * n AS id, n, {text} AS text FROM "
                f"generate_series({first}, {last}) AS n"
            )
        paths = [f"{server.address}#{name}" for name in "ab"]
        options: dict[str, object] = {"key": "id", "columns": ["n", "text"]}
        return ReaderCase(paths, options, key_of, lambda: server.connect("DELETE FROM a WHERE n = 0"))


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDbServer]:
    with start_mariadb(require(find_mariadb(), "mariadb-server")) as server:
        yield server


class TestMariaDb(ReaderContract):
    @pytest.fixture
    def local_case(self, mariadb: MariaDbServer, monkeypatch: pytest.MonkeyPatch) -> ReaderCase:
        monkeypatch.setenv("EDL_DATABASE_USER", USER)
        monkeypatch.setenv("EDL_DATABASE_PASSWORD", PASSWORD)
        mariadb.connect("DROP DATABASE shop", "CREATE DATABASE shop")
        text = "concat('ä', seq, repeat('x', 2000))"
        for name, first, last in (("a", 0, RECORDS - 1), ("b", RECORDS, RECORDS + FEW_RECORDS - 1)):
            mariadb.connect(
                f"CREATE TABLE {name} (id BIGINT PRIMARY KEY) AS SELECT 3 * seq AS id, CAST(seq AS SIGNED) AS n, "
                f"{text} AS text FROM seq_{first}_to_{last}"
            )
        paths = [f"{mariadb.address}#{name}" for name in "ab"]
        options: dict[str, object] = {"key": "id", "columns": ["n", "text"]}
        return ReaderCase(paths, options, key_of, lambda: mariadb.connect("DELETE FROM a WHERE n = 0"))


def write_sqlite(path: Path, *statements: Any) -> str:
    """Execute statements; one that a list follows, for each of its rows. The address."""
    connection = sqlite3.connect(path)
    for at, statement in enumerate(statements):
        if isinstance(statement, list):
            connection.executemany(statements[at - 1], statement)
        elif not isinstance((*statements, "")[at + 1], list):
            connection.execute(statement)
    connection.commit()
    connection.close()
    return f"sqlite:///{path}"


def read_all(address: str, on_corrupt: Callable[[CorruptRange], None] | None = None, **options: object) -> Any:
    reader = open_reader(address, {"key": "id", **options})
    (source,) = reader.sources()
    return reader, reader.read(source.name, 0, source.records, on_corrupt)


def refuse(address: str, **options: object) -> EdlError:
    with pytest.raises(EdlError) as refused:
        read_all(address, **options)
    return refused.value


PEOPLE = (
    "CREATE TABLE people (id INTEGER PRIMARY KEY, age INT, size REAL, town TEXT, born DATE, ok BOOLEAN, photo BLOB)"
)


@pytest.fixture
def people(tmp_path: Path) -> str:
    return write_sqlite(
        tmp_path / "p.db",
        PEOPLE,
        "INSERT INTO people VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(number, number % 7, number / 2, "Köln", "1970-01-03", number % 2, b"\0\1") for number in range(20)],
    )


def test_columns_have_the_types_of_the_table(people: str) -> None:
    reader, records = read_all(people, table="people")
    assert reader.metadata.column_dtypes == {
        "id": "int64",
        "age": "int64",
        "size": "float64",
        "town": "string",
        "born": "int64",
        "ok": "bool",
        "photo": "string",
    }
    assert records[3] == {
        "id": 3,
        "age": 3,
        "size": 1.5,
        "town": "Köln".encode(),
        "born": 2,
        "ok": True,
        "photo": b"\0\1",
    }
    assert records.columns["born"].dtype == np.int64


def test_postgresql_has_numbers_times_and_bytes_as_parquet_has_them(server: PostgresServer) -> None:
    server.connect(
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.t (id uuid PRIMARY KEY, price numeric(10, 2), at timestamptz, day date, ok bool, raw bytea)",
        "INSERT INTO shop.t SELECT ('00000000-0000-0000-0000-' || to_char(n, 'fm000000000000'))::uuid, n / 4.0, "
        "'1970-01-01 01:00:00+01'::timestamptz + n * interval '1 s', '1970-01-01'::date + n, n > 1, '\\x00ff'::bytea "
        "FROM generate_series(0, 49) AS n",
    )
    try:
        reader, records = read_all(server.address, table="shop.t")
    finally:
        server.connect("DROP SCHEMA shop CASCADE")
    assert list(reader.metadata.column_dtypes.values()) == ["string", "float64", "int64", "int64", "bool", "string"]
    assert records[2] == {
        "id": b"00000000-0000-0000-0000-000000000002",
        "price": 0.5,
        "at": 2_000_000,
        "day": 2,
        "ok": True,
        "raw": b"\x00\xff",
    }


def test_a_query_may_have_comments_colons_and_another_dialects_casts(server: PostgresServer) -> None:
    server.connect("CREATE TABLE t AS SELECT n AS id FROM generate_series(0, 9) AS n")
    query = "WITH x AS (SELECT id, ':id;' AS text, '50%' AS share, id::text AS name FROM t) SELECT * FROM x; -- end"
    _, records = read_all(server.address, query=query.replace("; -- end", " -- ; )"))
    assert records[9] == {"id": 9, "text": b":id;", "share": b"50%", "name": b"9"}
    _, records = read_all(server.address, query="SELECT id FROM t;\n")
    assert len(records) == 10


def test_a_row_without_a_value_is_corrupt_and_named_by_its_key(people: str, tmp_path: Path) -> None:
    write_sqlite(tmp_path / "p.db", "UPDATE people SET town = NULL, age = 1.5 WHERE id = 4")
    write_sqlite(tmp_path / "p.db", "UPDATE people SET photo = 'text' WHERE id = 6")
    corrupt: list[CorruptRange] = []
    # The type of photo is taken from more than its first value.
    assert "values of the type bytes and str" in str(refuse(people, table="people"))
    _, records = read_all(people, corrupt.append, table="people", columns=["town"])
    assert len(records) == 19
    assert [(each.start, each.end, each.reason) for each in corrupt] == [(4, 5, "no value in column town (id = 4)")]
    with pytest.raises(BadInputError, match=r"record 4 cannot be read: no value in column town \(id = 4\)"):
        read_all(people, table="people", columns=["town"])


def test_a_value_of_another_type_after_the_first_rows_is_corrupt(tmp_path: Path) -> None:
    rows = [(number, number if number != 150 else "x") for number in range(200)]
    address = write_sqlite(tmp_path / "a.db", "CREATE TABLE t (id, v)", "INSERT INTO t VALUES (?, ?)", rows)
    corrupt: list[CorruptRange] = []
    _, records = read_all(address, corrupt.append, table="t")
    assert (len(records), corrupt[0].reason) == (199, "column v has a str, and others int (id = 150)")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(1, 1), (1, 2)], "column id has 1 values in 2 rows, so it cannot be the key"),
        ([(1, 1), (None, 2)], "column id is NULL in 1 rows, so it cannot be the key"),
        ([(1, None), (2, None)], "column v has no value in any row"),
    ],
)
def test_a_key_that_does_not_order_the_rows_is_refused(tmp_path: Path, rows: list[Any], said: str) -> None:
    address = write_sqlite(tmp_path / "a.db", "CREATE TABLE t (id, v)", "INSERT INTO t VALUES (?, ?)", rows)
    assert said in str(refuse(address, table="t"))


def test_a_key_may_be_text(tmp_path: Path) -> None:
    rows = [(f"k{number}", number) for number in range(100)]
    address = write_sqlite(tmp_path / "a.db", "CREATE TABLE t (id, v)", "INSERT INTO t VALUES (?, ?)", rows)
    _, records = read_all(address, table="t")
    assert [record["id"].decode() for record in records] == sorted(key for key, _ in rows)


def test_what_is_not_there_is_named(people: str, tmp_path: Path) -> None:
    error = refuse(people, table="peopel")
    assert "there is no table peopel" in str(error)
    assert error.hint == "the database has people"
    assert "there is no column weight" in str(refuse(people, table="people", columns=["weight"]))
    assert "there is no column nr" in str(refuse(people, table="people", key="nr"))
    assert "no such column: weight" in str(refuse(people, query="SELECT id, weight FROM people"))
    assert "no such table: peopel" in str(refuse(people, query="SELECT * FROM peopel"))
    assert "No such file" in str(refuse(f"sqlite:///{tmp_path}/missing.db", table="people"))
    (tmp_path / "text.db").write_text("no database" * 100)
    assert "not a database" in str(refuse(f"sqlite:///{tmp_path}/text.db", table="people"))


def test_an_injection_attempt_in_a_name_is_only_a_name(people: str) -> None:
    name = 'people"; DROP TABLE people; --'
    assert "there is no table" in str(refuse(people, table=name))
    assert "there is no column" in str(refuse(people, table="people", columns=[name]))
    assert len(read_all(people, table="people")[1]) == 20


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM people",
        "SELECT 1 AS id; DROP TABLE people",
        "/* SELECT */ UPDATE people SET id = 1",
        "SELECT id FROM people) x; --",
        "SELECT id FROM people) AS x UNION (SELECT 1",
        "",
        "PRAGMA user_version = 3",
    ],
)
def test_only_one_select_is_accepted(people: str, query: str) -> None:
    with pytest.raises(BadInputError):
        check_reader_options([people], {"query": query, "key": "id"})
    with pytest.raises(BadInputError):
        read_all(people, query=query)


def test_a_statement_that_writes_fails_in_the_database_too(server: PostgresServer) -> None:
    server.connect(
        "CREATE TABLE t AS SELECT n AS id FROM generate_series(0, 9) AS n",
        "CREATE FUNCTION wipe() RETURNS bigint AS $$ DELETE FROM t; SELECT 1::bigint $$ LANGUAGE sql",
    )
    assert "read-only transaction" in str(refuse(server.address, query="SELECT wipe() AS id"))
    assert len(read_all(server.address, table="t")[1]) == 10


def test_options_are_checked_without_the_database() -> None:
    address = "postgresql://nowhere.example/shop"
    check_reader_options([address], {"table": "orders", "key": "id"})
    check_reader_options([f"{address}#orders", "env://SHOP#orders"], {"format": "sql", "key": "id"})
    for options, message in (
        ({"table": "orders"}, "is missing"),
        ({"key": "id"}, "no table is named"),
        ({"key": "id", "table": "a", "query": "SELECT 1"}, "there is a query, too"),
        ({"key": "id", "tabel": "a"}, "unknown option 'tabel'"),
        ({"key": "id", "table": "a", "format": "csv"}, "has not the format csv"),
    ):
        with pytest.raises(BadInputError, match=message):
            check_reader_options([address], options)
    for paths, message in (([address, "a.csv"], "is not the address"), ([address, address], "listed twice")):
        with pytest.raises(BadInputError, match=message):
            check_reader_options(paths, {"key": "id", "table": "a"})


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:hunter2@host/db",
        "postgresql://me:hunter2#x@host/db",
        "mysql://host/db?password=hunter2",
    ],
)
def test_a_password_in_an_address_is_refused_and_not_printed(address: str) -> None:
    with pytest.raises(BadInputError, match="contains a password") as refused:
        check_reader_options([address], {"key": "id", "table": "a"})
    assert "EDL_DATABASE_PASSWORD" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_credentials_come_from_the_environment_and_are_in_no_message(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.connect("CREATE TABLE t AS SELECT n AS id FROM generate_series(0, 9) AS n")
    monkeypatch.delenv("EDL_DATABASE_PASSWORD")
    assert "no password supplied" in str(refuse(server.address, table="t"))
    monkeypatch.setenv("EDL_DATABASE_PASSWORD", "wrong")
    assert "password authentication failed" in str(refuse(server.address, table="t"))
    monkeypatch.delenv("EDL_DATABASE_USER")
    assert "env://SHOP" in str(refuse("env://SHOP", table="t"))
    place = server.address.partition("://")[2]
    monkeypatch.setenv("SHOP", f"postgresql://{USER}:se%2Fcr%23et%401@{place}")
    reader, records = read_all("env://SHOP#t")
    assert len(records) == 10
    assert reader.sources()[0].name.startswith("env://SHOP#t@")
    monkeypatch.setenv("SHOP", f"postgresql://{USER}:hunter2@{place}x")
    assert "hunter2" not in str(refuse("env://SHOP#t"))
    monkeypatch.setenv("SHOP", f"postgresql://{USER}:hunter2:x:y@{place.replace(':', ':z')}")
    assert "hunter2" not in str(refuse("env://SHOP#t"))


def test_an_unreachable_server_is_tried_again_and_ends_as_retryable(no_waiting: list[float]) -> None:
    error = refuse("postgresql://127.0.0.1:9/db", table="t")
    assert isinstance(error, RetryableError)
    assert "is it reachable?" in str(error)
    assert len(no_waiting) == 3


def test_a_server_that_restarts_is_connected_again(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.connect("CREATE TABLE t AS SELECT n AS id, repeat('x', 3000) AS text FROM generate_series(0, 199) AS n")
    reader = open_reader(server.address, {"table": "t", "key": "id"})
    (source,) = reader.sources()
    assert len(reader.read(source.name, 0, 1)) == 1
    server.stop()
    monkeypatch.setattr(temporary_errors, "pause", lambda _: server.start() if server.process is None else None)
    assert reader.read(source.name, 150, 200)[0]["id"] == 150
    server.stop()
    monkeypatch.setattr(temporary_errors, "pause", lambda _: None)
    with pytest.raises(RetryableError, match="cannot be read"):
        reader.read(source.name, 0, 1)


def test_processes_that_count_other_rows_do_not_share_a_source(server: PostgresServer) -> None:
    server.connect("CREATE TABLE t AS SELECT n AS id, repeat('x', 3000) AS text FROM generate_series(0, 199) AS n")
    options = {"table": "t", "key": "id"}
    master = open_reader(server.address, options)
    (source,) = master.sources()
    server.connect("INSERT INTO t VALUES (1000, '')")
    worker = open_reader(server.address, options)
    assert worker.sources()[0].name != source.name
    with pytest.raises(BadInputError, match="the table changed while it was in use"):
        worker.read(source.name, 0, 1)
    assert len(master.read(source.name, 0, 1)) == 1
    with pytest.raises(BadInputError, match="the table changed while it was in use"):
        master.read(source.name, 199, 200)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("INT", lambda number: number),
        ("TEXT", lambda number: f"ü{number:05}"),
        ("BLOB", lambda number: b"%05d" % number),
        ("REAL", lambda number: number / 4),
    ],
)
def test_a_worker_reads_with_the_index_of_the_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, key: Callable[[int], Any]
) -> None:
    rows = [(key(number), number) for number in range(3000)]
    create = f"CREATE TABLE t (id {kind} UNIQUE, n INT)"
    data = DataSpec(
        training=(write_sqlite(tmp_path / "a.db", create, "INSERT INTO t VALUES (?, ?)", rows),),
        reader={"table": "t", "key": "id", "columns": ["n"]},
    )
    master = open_job_data(data, "training", tmp_path, is_first=True)
    (source,) = master.sources()
    is_saved = kind != "REAL"
    assert len(list(tmp_path.glob("rows-*.json"))) == is_saved
    if is_saved:
        monkeypatch.setattr("edl.data.sql_reader._SqlSource._make_index", None)
        monkeypatch.setattr("edl.data.sql_reader._SqlSource._check_key", None)
    worker = open_job_data(data, "training", tmp_path)
    assert worker.sources() == master.sources()
    assert [record["n"] for record in worker.read(source.name, 1000, 2100)] == list(range(1000, 2100))
    write_sqlite(tmp_path / "a.db", "DELETE FROM t WHERE n = 1500")
    late = open_job_data(data, "training", tmp_path)
    with pytest.raises(BadInputError, match="the table changed while it was in use"):
        late.read(source.name, 1000, 2100)


def test_a_saved_index_of_rows_that_is_damaged_or_of_an_earlier_start_is_not_used(tmp_path: Path) -> None:
    address = write_sqlite(
        tmp_path / "a.db", "CREATE TABLE t (id INT, n INT)", "INSERT INTO t VALUES (?, ?)", [(1, 1), (2, 2)]
    )
    data = DataSpec(training=(address,), reader={"table": "t", "key": "id"})
    first = open_job_data(data, "training", tmp_path, is_first=True).sources()
    (file,) = tmp_path.glob("rows-*.json")
    for damage in ("", "[]", '{"kind": "int", "starts": [1, 2], "rows": [2, 16, 8]}', '{"kind": "x"}'):
        file.write_text(damage)
        assert open_job_data(data, "training", tmp_path).sources() == first
    write_sqlite(tmp_path / "a.db", "INSERT INTO t VALUES (3, 3)")
    (source,) = open_job_data(data, "training", tmp_path, is_first=True).sources()
    assert (source.records, source.name != first[0].name) == (3, True)


def test_a_missing_package_names_the_extra(people: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    assert "edl-platform[sql]" in str(refuse(people, table="people"))


def test_columns_of_the_schema_are_selected_and_a_split_and_weights_divide_tables(people: str, tmp_path: Path) -> None:
    write_sqlite(tmp_path / "p.db", PEOPLE.replace("people", "more"))
    write_sqlite(tmp_path / "p.db", "INSERT INTO more SELECT * FROM people WHERE id < 5")
    paths = (f"{people}#people", f"{people}#more")
    schema = SchemaSpec(label="ok", features={"age": "int64", "size": "float32"})
    data = DataSpec(
        training=paths,
        validation=paths,
        reader={"key": "id"},
        schema=schema,
        weights=(1, 1),
        split=SplitSpec(key="id", validation=0.4),
    )
    reader = open_job_data(data, "training")
    assert set(reader.metadata.column_names) == {"age", "size", "ok", "id"}
    parts = [open_job_data(data, name).sources() for name in ("training", "validation")]
    assert [sum(part[at].records for part in parts) for at in range(2)] == [20, 5]
    assert all(part[0].records for part in parts)


def test_times_with_a_zone_count_from_utc() -> None:
    from edl.data.sql_reader import _convert

    at = datetime.datetime(1970, 1, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    assert _convert(at, datetime.datetime) == datetime.datetime(1970, 1, 1)
