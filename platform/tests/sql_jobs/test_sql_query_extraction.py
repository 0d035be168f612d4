"""Rows of queries as Parquet files: SQLite, DuckDB, and PostgreSQL and MariaDB as real servers."""

from __future__ import annotations

import datetime
import os
import socket
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest
from sql_jobs.conftest import DatabaseUnderTest, duckdb_database, sqlite_database
from support.databases import PASSWORD, USER, MariaDbServer, PostgresServer

from edl.api.errors import BadInputError, EdlError, RetryableError, StorageError
from edl.data import database as database_connections
from edl.sql_jobs import parquet_parts, row_batches
from edl.sql_jobs.query_errors import QueryError
from edl.sql_jobs.query_extraction import ExtractedRows, extract_query

pytest.importorskip("sqlalchemy")

NAMES = ["id", 'a "b" c', "Größe", "x; DROP TABLE t; --", "100%"]


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 64 rows, row groups of 128, files of two row groups."""
    monkeypatch.setattr(row_batches, "_MOST_BATCH_ROWS", 64)
    monkeypatch.setattr(parquet_parts, "_MOST_GROUP_ROWS", 128)
    monkeypatch.setattr(parquet_parts, "_FEWEST_GROUP_ROWS", 1)
    monkeypatch.setattr(parquet_parts, "_PART_GROUPS", 2)


def rows_of(extracted: ExtractedRows) -> list[dict[str, Any]]:
    return [row for path in extracted.files for row in pq.read_table(path).to_pylist()]


def types_of(extracted: ExtractedRows) -> dict[str, str]:
    for path in extracted.files:
        assert pq.read_schema(path).types == [column.type for column in extracted.columns]
    return {column.name: str(column.type) for column in extracted.columns}


def refuse(address: str, query: str, folder: Path, **options: Any) -> EdlError:
    with pytest.raises(EdlError) as refused:
        extract_query(address, query, folder, **options)
    assert not [*folder.parent.glob(f"{folder.name}*"), *folder.parent.glob(f".{folder.name}*")]
    return refused.value


def number_table(database: DatabaseUnderTest, rows: int) -> None:
    database.fill("id BIGINT", [(number,) for number in range(rows)])


class TestEveryDatabase:
    def test_rows_come_in_their_order_in_files_of_bounded_row_groups(
        self, any_database: DatabaseUnderTest, tmp_path: Path, small_groups: None
    ) -> None:
        number_table(any_database, 1000)
        row_counts: list[int] = []
        query = "SELECT id, id / 2.0 AS half FROM t ORDER BY id -- all; 'of them'"
        extracted = extract_query(any_database.address, query, tmp_path / "rows", on_progress=row_counts.append)
        assert [(row["id"], float(row["half"])) for row in rows_of(extracted)] == [(n, n / 2) for n in range(1000)]
        assert (extracted.rows, len(extracted.files), row_counts[-1]) == (1000, 4, 1000)
        assert row_counts == sorted(row_counts)
        groups = [
            pq.read_metadata(path).row_group(at).num_rows
            for path in extracted.files
            for at in range(pq.read_metadata(path).num_row_groups)
        ]
        assert groups == [128] * 7 + [104]
        assert {path.parent for path in extracted.files} == {tmp_path / "rows"}
        assert sorted(os.listdir(tmp_path / "rows")) == [path.name for path in extracted.files]

    def test_names_with_quotes_spaces_and_umlauts_are_columns(
        self, any_database: DatabaseUnderTest, tmp_path: Path
    ) -> None:
        columns = ", ".join(f"{any_database.quote(name)} INTEGER" for name in NAMES)
        any_database.fill(columns, [range(len(NAMES))])
        extracted = extract_query(any_database.address, "SELECT * FROM t", tmp_path / "rows")
        assert rows_of(extracted) == [dict(zip(NAMES, range(len(NAMES)), strict=True))]

    def test_texts_keep_quotes_line_breaks_percent_signs_and_the_difference_to_null(
        self, any_database: DatabaseUnderTest, tmp_path: Path
    ) -> None:
        texts = ["", "NULL", "a,b", 'say "hi"', "two\nlines", "ä€😀", "50%s :id", "  ", "\\N", "t"]
        literals = ["'" + text.replace("'", "''") + "'" for text in texts]
        if any_database.kind == "mariadb":
            literals = [text.replace("\\", "\\\\") for text in literals]
        any_database.fill("id INTEGER, text VARCHAR(100)", [*enumerate(literals), (len(texts), "NULL")])
        extracted = extract_query(any_database.address, "SELECT text FROM t ORDER BY id", tmp_path / "rows")
        assert [row["text"] for row in rows_of(extracted)] == [*texts, None]
        assert extracted.columns[0].nulls == 1

    def test_a_column_of_nulls_alone_has_numbers(self, any_database: DatabaseUnderTest, tmp_path: Path) -> None:
        number_table(any_database, 3)
        extracted = extract_query(
            any_database.address, "SELECT id, CAST(NULL AS DECIMAL) AS absent FROM t", tmp_path / "rows"
        )
        assert types_of(extracted)["absent"] == "double"
        assert [column.nulls for column in extracted.columns] == [0, 3]

    def test_the_digest_is_that_of_the_content(
        self, any_database: DatabaseUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        any_database.fill("id INTEGER, text VARCHAR(10)", [(n, f"'a{n}'" if n % 3 else "NULL") for n in range(300)])
        query = "SELECT * FROM t ORDER BY id"
        first = extract_query(any_database.address, query, tmp_path / "a")
        monkeypatch.setattr(row_batches, "_MOST_BATCH_ROWS", 7)
        monkeypatch.setattr(parquet_parts, "_MOST_GROUP_ROWS", 32)
        monkeypatch.setattr(parquet_parts, "_FEWEST_GROUP_ROWS", 1)
        assert extract_query(any_database.address, query, tmp_path / "b").digest == first.digest
        any_database.execute("UPDATE t SET text = NULL WHERE id = 299")
        assert extract_query(any_database.address, query, tmp_path / "c").digest != first.digest
        renamed = "SELECT id, text AS other FROM t ORDER BY id"
        assert len({extract_query(any_database.address, renamed, tmp_path / "d").digest, first.digest}) == 2

    def test_results_without_rows_names_or_with_one_name_twice_are_refused(
        self, any_database: DatabaseUnderTest, tmp_path: Path
    ) -> None:
        number_table(any_database, 3)
        folder = tmp_path / "rows"
        assert "has no rows" in str(refuse(any_database.address, "SELECT id FROM t WHERE id > 5", folder))
        assert "several columns are called id" in str(refuse(any_database.address, "SELECT id, id FROM t", folder))

    @pytest.mark.parametrize(
        "query",
        [
            "DELETE FROM t",
            "CREATE TABLE other (id INTEGER)",
            "SELECT 1 AS id; DELETE FROM t",
            "SELECT 1 AS id) TO STDOUT; DELETE FROM t; --",
            "WITH x AS (DELETE FROM t RETURNING id) SELECT * FROM x",
            "DROP TABLE t",
            "",
        ],
    )
    @pytest.mark.first_cases(14)
    def test_what_is_not_one_select_changes_nothing(
        self, any_database: DatabaseUnderTest, tmp_path: Path, query: str
    ) -> None:
        number_table(any_database, 3)
        assert isinstance(refuse(any_database.address, query, tmp_path / "rows"), BadInputError)
        assert any_database.tables() == ["t"]
        assert len(any_database.execute("SELECT * FROM t")) == 3

    def test_an_unknown_column_or_table_is_said_in_one_line(
        self, any_database: DatabaseUnderTest, tmp_path: Path
    ) -> None:
        number_table(any_database, 3)
        for query, name in (("SELECT id,\n  weight FROM t", "weight"), ("SELECT *\nFROM\n  nowhere", "nowhere")):
            error = refuse(any_database.address, query, tmp_path / "rows")
            assert isinstance(error, QueryError)
            assert name in error.message
            assert "\n" not in error.message
            assert error.offset == query.index(name)
            assert (error.line, error.column) == (query[: error.offset].count("\n") + 1, 3)
            assert "line" in str(error.where)

    def test_the_place_of_a_syntax_error_is_named(self, any_database: DatabaseUnderTest, tmp_path: Path) -> None:
        number_table(any_database, 3)
        query = "SELECT id, 'FORM' AS a\nFORM t ORDER BY id -- FORM"
        error = refuse(any_database.address, query, tmp_path / "rows")
        assert isinstance(error, QueryError)
        # SQLite names the word only, which is there several times.
        assert error.offset == (None if any_database.kind == "sqlite" else query.index("FORM t"))

    def test_a_query_that_names_an_interrupt_is_not_one(self, any_database: DatabaseUnderTest, tmp_path: Path) -> None:
        number_table(any_database, 3)
        error = refuse(any_database.address, "SELECT interrupted FROM t", tmp_path / "rows")
        assert "did not answer" not in error.message

    def test_percent_signs_and_colons_of_a_query_stay(self, any_database: DatabaseUnderTest, tmp_path: Path) -> None:
        number_table(any_database, 30)
        query = "SELECT id, ':id %s %% 50%' AS text FROM t WHERE id % 2 = 0 AND 'a%b' LIKE 'a%'"
        extracted = extract_query(any_database.address, query, tmp_path / "rows")
        assert (extracted.rows, rows_of(extracted)[0]["text"]) == (15, ":id %s %% 50%")

    def test_a_blob_is_refused_by_name(self, any_database: DatabaseUnderTest, tmp_path: Path) -> None:
        kind = "bytea" if any_database.kind == "postgresql" else "BLOB"
        value = r"'\x00ff'" if any_database.kind == "postgresql" else "'ab'"
        if any_database.kind == "sqlite":
            value = "x'00ff'"
        any_database.fill(f"id INTEGER, photo {kind}", [(1, value)])
        error = refuse(any_database.address, "SELECT * FROM t", tmp_path / "rows")
        assert "column photo has the type b" in error.message
        assert "CAST" in str(error.hint)

    def test_dates_times_and_decimals_are_those_of_arrow(self, any_database: DatabaseUnderTest, tmp_path: Path) -> None:
        time = "DATETIME" if any_database.kind in ("mariadb", "sqlite") else "TIMESTAMP"
        any_database.fill(
            f"born DATE, seen {time}, price DECIMAL(10, 2), ok BOOLEAN",
            [("'2020-02-29'", "'2021-03-04 05:06:07'", "1.25", "TRUE"), ("NULL", "NULL", "NULL", "NULL")],
        )
        extracted = extract_query(any_database.address, "SELECT * FROM t", tmp_path / "rows")
        assert types_of(extracted) == {
            "born": "date32[day]",
            "seen": "timestamp[us]",
            "price": "double",
            # TINYINT(1)
            "ok": "int64" if any_database.kind == "mariadb" else "bool",
        }
        assert list(rows_of(extracted)[0].values()) == [
            datetime.date(2020, 2, 29),
            datetime.datetime(2021, 3, 4, 5, 6, 7),
            1.25,
            True,
        ]

    @pytest.mark.first_cases(2)
    def test_thousands_of_columns(self, any_database: DatabaseUnderTest, tmp_path: Path) -> None:
        # PostgreSQL's most is 1,664 in a result, SQLite's 2,000.
        count = 1600
        columns = ", ".join(f"id + {number} AS c{number}" for number in range(count))
        number_table(any_database, 500)
        extracted = extract_query(any_database.address, f"SELECT {columns} FROM t", tmp_path / "rows")
        assert (extracted.rows, len(extracted.columns)) == (500, count)
        assert pq.read_table(extracted.files[0], columns=["c1599"])["c1599"][3].as_py() == 1602

    def test_a_folder_that_is_there_stays_as_it_is(self, any_database: DatabaseUnderTest, tmp_path: Path) -> None:
        (tmp_path / "rows").mkdir()
        (tmp_path / "rows" / "mine").touch()
        number_table(any_database, 3)
        with pytest.raises(BadInputError, match="is there already"):
            extract_query(any_database.address, "SELECT * FROM t", tmp_path / "rows")
        assert os.listdir(tmp_path / "rows") == ["mine"]

    def test_an_interrupted_extraction_leaves_nothing(
        self, any_database: DatabaseUnderTest, tmp_path: Path, small_groups: None
    ) -> None:
        number_table(any_database, 1000)

        def interrupt(rows: int) -> None:
            if rows > 300:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            extract_query(any_database.address, "SELECT * FROM t", tmp_path / "rows", on_progress=interrupt)
        assert not list(tmp_path.glob("*rows*"))
        assert extract_query(any_database.address, "SELECT * FROM t", tmp_path / "rows").rows == 1000

    def test_rows_that_are_written_meanwhile_are_not_read(
        self, any_database: DatabaseUnderTest, tmp_path: Path, small_groups: None
    ) -> None:
        if any_database.kind in ("sqlite", "duckdb"):
            pytest.skip("nobody else can write while it is read")
        number_table(any_database, 1000)

        def write(rows: int) -> None:
            if rows == 64:
                any_database.execute("DELETE FROM t WHERE id > 500", "INSERT INTO t VALUES (7777)")

        extracted = extract_query(any_database.address, "SELECT * FROM t", tmp_path / "rows", on_progress=write)
        assert sorted(row["id"] for row in rows_of(extracted)) == list(range(1000))

    def test_a_query_that_takes_too_long_is_ended(
        self, any_database: DatabaseUnderTest, tmp_path: Path, no_waiting: list[float]
    ) -> None:
        number_table(any_database, 500)
        slow = "SELECT sum((a.id * b.id + c.id * d.id) % 7 * e.id) AS n FROM t a, t b, t c, t d, t e"
        error = refuse(any_database.address, slow, tmp_path / "rows", statement_seconds=0.2)
        assert "did not answer in the time" in error.message
        assert not no_waiting

    @pytest.mark.parametrize("end", [";", " ; -- all; of 'them'", "-- all", ";;\n/* ; */", " -- ;"])
    @pytest.mark.first_cases(10)
    def test_semicolons_and_comments_at_the_end_are_no_part_of_it(
        self, any_database: DatabaseUnderTest, tmp_path: Path, end: str
    ) -> None:
        if end.startswith(";;") and any_database.kind in ("sqlite", "mariadb"):
            pytest.skip("an empty statement is one")
        number_table(any_database, 3)
        extracted = extract_query(any_database.address, f"SELECT id, ';--' AS text FROM t{end}", tmp_path / "rows")
        assert [row["text"] for row in rows_of(extracted)] == [";--"] * 3


class TestSqlite:
    def test_a_column_of_whole_numbers_with_a_fraction_later_has_numbers(
        self, tmp_path: Path, small_groups: None
    ) -> None:
        database = sqlite_database(tmp_path)
        database.fill("a, b, c", [(n, n if n < 900 else n + 0.5, "NULL" if n < 500 else n) for n in range(1000)])
        extracted = extract_query(database.address, "SELECT * FROM t", tmp_path / "rows")
        assert types_of(extracted) == {"a": "int64", "b": "double", "c": "int64"}
        rows = rows_of(extracted)
        assert [rows[3], rows[950]] == [{"a": 3, "b": 3.0, "c": None}, {"a": 950, "b": 950.5, "c": 950}]
        assert [column.nulls for column in extracted.columns] == [0, 0, 500]
        assert len(os.listdir(tmp_path / "rows")) == len(extracted.files)
        # The digest does not tell when the type was found.
        database.execute("CREATE TABLE u AS SELECT * FROM t", "UPDATE u SET b = CAST(b AS REAL)")
        assert extract_query(database.address, "SELECT * FROM u", tmp_path / "u").digest == extracted.digest

    @pytest.mark.parametrize(
        ("late", "shown", "cast"), [("'n/a'", "'n/a'", "INTEGER"), ("x'00'", "blob", "CAST"), ("''", "''", "INTEGER")]
    )
    def test_a_text_in_a_column_of_numbers_is_named_with_its_row(
        self, tmp_path: Path, small_groups: None, late: str, shown: str, cast: str
    ) -> None:
        database = sqlite_database(tmp_path)
        database.fill("id INTEGER, v", [(n, n if n != 700 else late) for n in range(1000)])
        error = refuse(database.address, "SELECT * FROM t", tmp_path / "rows")
        assert "column v" in error.message
        assert "row 701" in error.message
        assert shown in error.message
        assert cast in str(error.hint)

    def test_declared_dates_and_booleans_that_hold_others_stay_what_they_are(self, tmp_path: Path) -> None:
        database = sqlite_database(tmp_path)
        database.fill("born DATE, ok BOOLEAN", [("'spring'", 1), ("'2020-01-01'", 2)])
        extracted = extract_query(database.address, "SELECT * FROM t", tmp_path / "rows")
        assert types_of(extracted) == {"born": "string", "ok": "int64"}

    def test_a_query_with_a_comment_and_a_semicolon_at_its_end(self, tmp_path: Path) -> None:
        database = sqlite_database(tmp_path)
        number_table(database, 2)
        for at, query in enumerate(("SELECT * FROM t;", "SELECT * FROM t; -- all", "-- x\nSELECT * FROM t --")):
            assert extract_query(database.address, query, tmp_path / f"rows{at}").rows == 2

    def test_a_table_may_have_any_name(self, tmp_path: Path) -> None:
        database = sqlite_database(tmp_path)
        database.execute("CREATE TABLE edl_rows (id INTEGER)", "INSERT INTO edl_rows VALUES (1)")
        assert extract_query(database.address, "SELECT * FROM edl_rows", tmp_path / "rows").rows == 1

    def test_a_file_that_is_no_database_and_a_missing_one(self, tmp_path: Path) -> None:
        (tmp_path / "text.db").write_text("no database" * 100)
        assert "not a database" in str(refuse(f"sqlite:///{tmp_path}/text.db", "SELECT 1 AS a", tmp_path / "rows"))
        error = refuse(f"sqlite:///{tmp_path}/missing.db", "SELECT 1 AS a", tmp_path / "rows")
        assert "No such file" in str(error)
        assert not (tmp_path / "missing.db").exists()

    def test_a_folder_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        database = sqlite_database(tmp_path)
        number_table(database, 2)
        (tmp_path / "file").touch()
        with pytest.raises(StorageError, match="cannot be written"):
            extract_query(database.address, "SELECT * FROM t", tmp_path / "file" / "rows")


@pytest.mark.repetition
def test_thousands_of_columns_need_no_more_memory_than_a_few(tmp_path: Path) -> None:
    database = duckdb_database(tmp_path)
    number_table(database, 3000)
    columns = ", ".join(f"id + {number} AS c{number}" for number in range(5000))
    extracted = extract_query(database.address, f"SELECT {columns} FROM t", tmp_path / "rows")
    (file,) = extracted.files
    metadata = pq.read_metadata(file)
    assert [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)] == [1024, 1024, 952]


class TestDuckDb:
    def test_types_of_its_own(self, tmp_path: Path) -> None:
        database = duckdb_database(tmp_path)
        query = (
            "SELECT 1::UTINYINT AS u, 2::HUGEINT AS h, 'a'::ENUM ('a', 'b') AS e, [1, 2] AS l, "
            "[0.5, 1]::FLOAT[2] AS f, "
            "'00000000-0000-0000-0000-000000000001'::UUID AS i, '2020-01-01 01:00:00+01'::TIMESTAMPTZ AS z, "
            "'12:30'::TIME AS o, '2020-01-01'::TIMESTAMP_NS AS n, NULL AS nothing"
        )
        extracted = extract_query(database.address, query, tmp_path / "rows")
        assert rows_of(extracted) == [
            {
                "u": 1,
                "h": 2.0,
                "e": "a",
                "l": [1, 2],
                "f": [0.5, 1.0],
                "i": "00000000-0000-0000-0000-000000000001",
                "z": datetime.datetime(2020, 1, 1),
                "o": datetime.time(12, 30),
                "n": datetime.datetime(2020, 1, 1),
                "nothing": None,
            }
        ]

    @pytest.mark.parametrize("value", ["{'a': 1}", "MAP {'a': 1}", "INTERVAL 1 DAY", "['a']"])
    def test_types_that_no_model_reads_are_refused_by_name(self, tmp_path: Path, value: str) -> None:
        database = duckdb_database(tmp_path)
        error = refuse(database.address, f"SELECT 1 AS id, {value} AS v", tmp_path / "rows")
        assert "column v has the type" in error.message

    def test_a_query_that_writes_files_is_refused(self, tmp_path: Path) -> None:
        database = duckdb_database(tmp_path)
        number_table(database, 3)
        for query in (
            f"COPY t TO '{tmp_path}/copy.csv'",
            f"FROM t; COPY t TO '{tmp_path}/copy.csv'",
            "ATTACH ':memory:'",
        ):
            assert "is no SELECT" in str(refuse(database.address, query, tmp_path / "rows"))
        assert not (tmp_path / "copy.csv").exists()
        assert extract_query(database.address, "FROM t SELECT id", tmp_path / "rows").rows == 3


class TestPostgresql:
    def test_types_of_its_own(self, postgres: PostgresServer, tmp_path: Path) -> None:
        postgres.connect(
            "CREATE TYPE mood AS ENUM ('sad', 'ok')",
            "CREATE TABLE t (u uuid, m mood, j jsonb, f real, n numeric, z timestamptz, o time, i int[], x float8[], "
            "c char(3))",
            "INSERT INTO t VALUES ('00000000-0000-0000-0000-000000000001', 'sad', '{\"a\": [1, \"b\"]}', 0.1, 1e3, "
            "'2020-01-01 01:00+01', '12:30', '{1,NULL,3}', '{0.5,2}', 'ab'), "
            "(NULL, NULL, NULL, 'NaN', 'NaN', NULL, NULL, '{}', NULL, NULL), "
            "(NULL, NULL, NULL, '-Infinity', NULL, NULL, NULL, NULL, '{Infinity}', NULL)",
        )
        extracted = extract_query(postgres.address, "SELECT * FROM t", tmp_path / "rows")
        assert list(types_of(extracted).values()) == [
            "string",
            "string",
            "string",
            "double",
            "double",
            "timestamp[us]",
            "time64[us]",
            "list<item: int64>",
            "list<item: double>",
            "string",
        ]
        first, second, third = rows_of(extracted)
        assert (first["u"], first["m"], first["j"]) == (
            "00000000-0000-0000-0000-000000000001",
            "sad",
            '{"a": [1, "b"]}',
        )
        assert (first["f"], first["n"], first["z"]) == (0.1, 1000.0, datetime.datetime(2020, 1, 1))
        assert (first["o"], first["i"], first["x"]) == (datetime.time(12, 30), [1, None, 3], [0.5, 2.0])
        assert first["c"] == "ab "
        assert str(second["f"]) == str(second["n"]) == "nan"
        assert (second["i"], second["x"], third["i"]) == ([], None, None)
        assert (third["f"], third["x"]) == (float("-inf"), [float("inf")])

    @pytest.mark.parametrize(
        ("value", "shown"),
        [("interval '1 day'", "interval"), ("point(1, 2)", "point"), ("ARRAY['a']", "text[]"), ("ROW(1, 2)", "record")],
    )
    def test_types_without_a_column_in_arrow_are_refused_by_name(
        self, postgres: PostgresServer, tmp_path: Path, value: str, shown: str
    ) -> None:
        error = refuse(postgres.address, f"SELECT 1 AS id, {value} AS v", tmp_path / "rows")
        assert f"column v has the type {shown}" in error.message

    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            ("'infinity'::timestamp", "'infinity' in row 150, which is not a time here"),
            ("'4000-01-01 BC'::date", "which is not a date here"),
            ("'24:00'::time", "'24:00:00' in row 150, which is not a time of day here"),
            ("ARRAY[[1],[2]]", "array of arrays"),
        ],
    )
    def test_a_value_that_arrow_has_not_is_named_with_its_row(
        self, postgres: PostgresServer, tmp_path: Path, small_groups: None, value: str, shown: str
    ) -> None:
        # The others are read again, one by one.
        query = (
            "SELECT true AS b, '10:00:00.25'::time AS t, now() AS s, current_date AS d, 'x' AS x, 1.5 AS f, "
            f"CASE WHEN n = 150 THEN {value} END AS v FROM generate_series(1, 200) AS n"
        )
        error = refuse(postgres.address, query, tmp_path / "rows")
        assert "column v" in error.message
        assert "row 150" in error.message
        assert shown in error.message

    def test_an_error_in_the_middle_of_the_rows(self, postgres: PostgresServer, tmp_path: Path) -> None:
        query = "SELECT 1 / (150 - n) AS v FROM generate_series(1, 200000) AS n"
        assert "division by zero" in str(refuse(postgres.address, query, tmp_path / "rows"))

    def test_a_statement_that_writes_is_refused(self, postgres: PostgresServer, tmp_path: Path) -> None:
        postgres.connect(
            "CREATE TABLE t AS SELECT n AS id FROM generate_series(0, 9) AS n",
            "CREATE FUNCTION wipe() RETURNS bigint AS $$ DELETE FROM t; SELECT 1::bigint $$ LANGUAGE sql",
        )
        assert "read-only transaction" in str(refuse(postgres.address, "SELECT wipe() AS id", tmp_path / "rows"))

    def test_a_column_without_a_name_is_refused(self, postgres: PostgresServer, tmp_path: Path) -> None:
        error = refuse(postgres.address, "SELECT 1 AS a, 1 + 1", tmp_path / "rows")
        assert "column 2 has no name" in error.message
        assert "AS" in str(error.hint)

    def test_one_column_of_empty_texts_and_nulls(self, postgres: PostgresServer, tmp_path: Path) -> None:
        query = "SELECT CASE WHEN n % 2 = 0 THEN '' END AS v FROM generate_series(1, 6) AS n"
        assert [row["v"] for row in rows_of(extract_query(postgres.address, query, tmp_path / "rows"))] == [
            None,
            "",
        ] * 3

    def test_texts_larger_than_a_batch(self, postgres: PostgresServer, tmp_path: Path) -> None:
        query = "SELECT n, repeat('x', 9000000) AS v FROM generate_series(1, 3) AS n"
        extracted = extract_query(postgres.address, query, tmp_path / "rows")
        assert [len(row["v"]) for row in rows_of(extracted)] == [9_000_000] * 3

    def test_bytes_that_are_no_text_are_named_with_their_row(self, postgres: PostgresServer, tmp_path: Path) -> None:
        create = "CREATE DATABASE bytes ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        postgres.connect_alone("DROP DATABASE IF EXISTS bytes", create)
        query = "SELECT n AS id, CASE WHEN n = 150 THEN E'\\xff' ELSE 'a' END AS v FROM generate_series(1, 200) AS n"
        error = refuse(postgres.address.replace("/postgres", "/bytes"), query, tmp_path / "rows")
        assert "column v" in error.message
        assert "row 150" in error.message

    def test_credentials_are_in_no_message(
        self, postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("EDL_DATABASE_PASSWORD", "hunter2")
        error = refuse(postgres.address, "SELECT 1 AS a", tmp_path / "rows")
        assert "password authentication failed" in str(error)
        monkeypatch.setenv("SHOP", postgres.address.replace("://", "://edl:hunter2@"))
        assert "hunter2" not in str(error) + str(refuse("env://SHOP", "SELECT 1 AS a", tmp_path / "rows"))


class TestMariaDb:
    def test_types_of_its_own(self, mariadb: MariaDbServer, tmp_path: Path) -> None:
        mariadb.connect(
            "CREATE TABLE t (e ENUM('x', 'y'), y YEAR, l LONGTEXT, f FLOAT, o TIME, j JSON, u BIGINT UNSIGNED, "
            "s DATETIME(6))",
            "INSERT INTO t VALUES ('y', 2020, 'ä', 0.5, '12:30', '[1]', 7, '2020-01-01 00:00:00.000001'), "
            "(NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        )
        extracted = extract_query(mariadb.address, "SELECT * FROM t", tmp_path / "rows")
        assert rows_of(extracted)[0] == {
            "e": "y",
            "y": 2020,
            "l": "ä",
            "f": 0.5,
            "o": "12:30:00",
            "j": "[1]",
            "u": 7,
            "s": datetime.datetime(2020, 1, 1, 0, 0, 0, 1),
        }
        assert all(column.nulls == 1 for column in extracted.columns)

    def test_a_number_beyond_64_bits_and_a_date_that_is_none_are_named(
        self, mariadb: MariaDbServer, tmp_path: Path
    ) -> None:
        mariadb.connect(
            "CREATE TABLE t (u BIGINT UNSIGNED, d DATE)", "INSERT INTO t VALUES (18446744073709551615, '0000-00-00')"
        )
        assert "has '18446744073709551615' in row 1" in str(
            refuse(mariadb.address, "SELECT u FROM t", tmp_path / "rows")
        )
        assert "has '0000-00-00' in row 1" in str(refuse(mariadb.address, "SELECT d FROM t", tmp_path / "rows"))


class TestServers:
    @pytest.fixture(params=["postgres", "mariadb"])
    def server(self, request: pytest.FixtureRequest) -> PostgresServer | MariaDbServer:
        started_server: PostgresServer | MariaDbServer = request.getfixturevalue(request.param)
        generated = "generate_series(1, 20000) AS id" if request.param == "postgres" else "seq_1_to_20000"
        number = "id" if request.param == "postgres" else "seq AS id"
        # More than lies in buffers between the two: on a busy machine these are up to 32 MiB that were received, 4 MiB
        # that were sent, and a batch of 4 MiB.
        started_server.connect(f"CREATE TABLE t AS SELECT {number}, repeat('x', 2500) AS text FROM {generated}")
        return started_server

    def test_a_server_that_is_lost_in_the_middle_leaves_nothing(
        self, server: PostgresServer, tmp_path: Path, no_waiting: list[float]
    ) -> None:
        def crash(rows: int) -> None:
            server.crash()

        # More rows than fit into the buffers between the two.
        query = "SELECT t.id, other.id AS other FROM t, t AS other"
        error = refuse(server.address, query, tmp_path / "rows", on_progress=crash)
        assert isinstance(error, RetryableError)
        assert len(no_waiting) == 3

    def test_a_connection_that_is_lost_in_the_middle_begins_again(
        self, server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row_counts: list[int] = []

        def lose(rows: int) -> None:
            row_counts.append(rows)
            if len(row_counts) == 1:
                if isinstance(server, MariaDbServer):
                    (number,) = server.connect(
                        "SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND user = 'edl' "
                        "AND command <> 'Sleep'"
                    )
                    server.connect(f"KILL {number[0]}")
                else:
                    server.connect("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'COPY%'")

        extracted = extract_query(server.address, "SELECT * FROM t", tmp_path / "rows", on_progress=lose)
        assert sorted(row["id"] for row in rows_of(extracted)) == list(range(1, 20_001))
        assert row_counts.count(row_counts[0]) == 2

    def test_a_server_that_accepts_and_stays_silent_is_given_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_waiting: list[float]
    ) -> None:
        monkeypatch.setattr(database_connections, "_CONNECT_SECONDS", 2)
        monkeypatch.setattr(database_connections, "TRIES", 1)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            for scheme in ("postgresql", "mariadb"):
                address = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/db"
                assert isinstance(refuse(address, "SELECT 1 AS a", tmp_path / "rows"), RetryableError)

    def test_a_password_is_in_no_file_log_message_or_representation(
        self,
        server: PostgresServer,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level("DEBUG")
        place = server.address.partition("://")[2]
        encoded = quote(PASSWORD, safe="")
        monkeypatch.delenv("EDL_DATABASE_PASSWORD")
        monkeypatch.setenv("SHOP", f"{server.address.partition('://')[0]}://{USER}:{encoded}@{place}")
        extracted = extract_query("env://SHOP", "SELECT * FROM t", tmp_path / "rows")
        assert extracted.rows == 20_000
        texts = [repr(extracted), caplog.text]
        for query in ("SELECT nothing FROM t", "SELECT * FROM nowhere", "SELECT"):
            error = refuse("env://SHOP", query, tmp_path / "refused")
            texts += [str(error), repr(error), repr(vars(error)), "".join(traceback.format_exception(error))]
        server.stop()
        error = refuse("env://SHOP", "SELECT * FROM t", tmp_path / "refused")
        texts += [str(error), repr(error), "".join(traceback.format_exception(error)), caplog.text]
        files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        for secret in (PASSWORD, encoded):
            assert not [text for text in texts if secret in text]
            assert not [content for content in files if secret.encode() in content]

    def test_an_unreachable_server(self, tmp_path: Path, no_waiting: list[float]) -> None:
        for scheme in ("postgresql", "mariadb"):
            error = refuse(f"{scheme}://127.0.0.1:9/db", "SELECT 1 AS a", tmp_path / "rows")
            assert isinstance(error, RetryableError)
