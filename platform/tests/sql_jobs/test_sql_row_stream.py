"""Rows that stay in the database: what they say is what extracted rows say, and they are the same each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sql_jobs.conftest import DatabaseUnderTest, sqlite_database
from support.databases import PostgresServer

from edl.api.errors import BadInputError
from edl.data.parquet_reader import ParquetReader
from edl.sql_jobs import parquet_parts, row_stream
from edl.sql_jobs.column_plan import LabelKind, plan_columns
from edl.sql_jobs.exported_snapshot import export_snapshot
from edl.sql_jobs.model_inputs import NUMBER, choose_inputs
from edl.sql_jobs.prepared_rows import RowForm, mark_validation, prepare_training
from edl.sql_jobs.query_errors import QueryError
from edl.sql_jobs.query_extraction import extract_query
from edl.sql_jobs.row_statistics import collect_facts
from edl.sql_jobs.row_stream import RowOrigin, StreamReader, survey_rows, write_stream
from edl.sql_jobs.statements import ColumnName, TextPosition

pytest.importorskip("sqlalchemy")

QUERY = "SELECT * FROM people"
PEOPLE = (
    "CREATE TABLE people AS SELECT n AS id, (n * 7919) % 101 AS age, 'town ' || (n % 40) AS town, "
    "CASE WHEN n % 9 > 0 THEN n / 7.0 END AS pay, date '2000-01-01' + n % 900 AS born, (n * 7919) % 101 > 50 AS rich "
    "FROM generate_series(1, 2500) AS n"
)
EIGHT_ROWS = [(n, "NULL" if n < 5 else n * 1.5) for n in range(1, 9)]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (row_stream, parquet_parts):
        monkeypatch.setattr(module, "choose_group_rows", lambda columns: 1024 if columns > 2 else 4)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("is_wide", [False, True])
def test_statistics_digest_and_records_are_those_of_extracted_rows(
    postgres: PostgresServer, tmp_path: Path, is_wide: bool
) -> None:
    postgres.connect(PEOPLE)
    files = extract_query(postgres.address, QUERY, tmp_path / "rows")
    with export_snapshot(postgres.address) as snapshot:
        # Of another state, which nobody reads.
        postgres.connect("DELETE FROM people WHERE id % 2 = 0", "UPDATE people SET age = 7")
        rows = survey_rows(RowOrigin(postgres.address, QUERY, "ID", snapshot.name))
        assert (rows.rows, rows.digest, rows.columns) == (files.rows, files.digest, files.columns)
        assert (rows.index.starts, rows.index.last) == ((1, 1025, 2049), 2500)
        facts = collect_facts(rows, "rich", threads=1)
        assert facts == collect_facts(files.files, "rich", threads=1)
        inputs = choose_inputs(plan_columns(facts, ColumnName("rich", TextPosition(1, 1))))
        if is_wide:  # numbers are one matrix, as of thousands of columns
            stacked = [replace(each, matrix="numbers") if each.dtype == NUMBER else each for each in inputs.inputs]
            inputs = replace(inputs, inputs=tuple(stacked))
        form = RowForm(inputs, "rich", LabelKind.BINARY)
        counts = prepare_training(files.files, form, tmp_path / "data", 0.2)
        marks = mark_validation(rows, form, 0.2)
        assert write_stream(tmp_path, rows, form, marks) == counts
        for name in ("training", "validation"):
            reader, extracted = (
                StreamReader(tmp_path / "stream" / f"{name}.npy"),
                ParquetReader(sorted((tmp_path / "data" / name).glob("*.parquet"))),
            )
            (source,), (file,) = reader.sources(), extracted.sources()
            assert source.records == file.records == getattr(counts, name)
            assert sum(reader.blocks(source.name).records) == source.records
            assert reader.metadata == replace(extracted.metadata, format="sql")
            records: Any = reader.read(source.name, 3, source.records - 1)
            wanted: Any = extracted.read(file.name, 3, source.records - 1)
            for column, values in wanted.columns.items():
                np.testing.assert_array_equal(records.columns[column], values)
            with pytest.raises(BadInputError, match="there are no rows"):
                reader.read(source.name, 0, source.records + 1)
        # No row is in what the job gets, but keys of blocks.
        assert "town 1" not in (tmp_path / "stream" / "stream.json").read_text(encoding="utf-8")
    late = StreamReader(tmp_path / "stream" / "training.npy")
    with pytest.raises(BadInputError, match="the snapshot is gone"):
        late.read(late.sources()[0].name, 0, 10)


@pytest.mark.usefixtures("small_blocks")
def test_each_database_is_read_by_ranges(any_database: DatabaseUnderTest, tmp_path: Path) -> None:
    any_database.fill("id INTEGER, pay DOUBLE PRECISION", list(reversed(EIGHT_ROWS)))
    rows = survey_rows(RowOrigin(any_database.address, "SELECT * FROM t", "id"))
    assert (rows.rows, rows.index.starts, rows.index.last, rows.index.nulls) == (8, (1, 5), 8, (0, 4))
    assert [batch.column(0).to_pylist() for batch in rows.batches(["pay"])] == [[None] * 4, [7.5, 9.0, 10.5, 12.0]]
    ordered = extract_query(any_database.address, "SELECT * FROM t ORDER BY id", tmp_path / "rows")
    assert rows.digest == ordered.digest


@pytest.mark.usefixtures("small_blocks")
def test_without_a_snapshot_new_rows_are_not_read_and_lost_ones_end_the_job(any_database: DatabaseUnderTest) -> None:
    any_database.fill("id INTEGER, pay DOUBLE PRECISION", EIGHT_ROWS)
    origin = RowOrigin(any_database.address, "SELECT * FROM t", "id")
    index = survey_rows(origin).index
    any_database.execute("INSERT INTO t VALUES (9, 1.0)", "UPDATE t SET pay = 2.0 WHERE id = 8")
    later = row_stream.StreamedRows(origin, index)
    assert [batch.num_rows for batch in later.batches(["pay"])] == [4, 4]
    any_database.execute("DELETE FROM t WHERE id = 6")
    with pytest.raises(BadInputError, match="3 rows are where 4 were counted"):
        row_stream.StreamedRows(origin, index).read_block(1, ["pay"])


def test_a_query_that_returns_other_rows_each_time_is_found_out(postgres: PostgresServer) -> None:
    postgres.connect(PEOPLE)
    with export_snapshot(postgres.address) as snapshot:
        rows = survey_rows(RowOrigin(postgres.address, QUERY, "id", snapshot.name))
        other = replace(rows.origin, query=f"{QUERY} WHERE random() < .5")
        with pytest.raises(BadInputError, match="returned other rows for the same state") as refused:
            row_stream.StreamedRows(other, rows.index).read_block(0, ["age"])
        assert "--stream" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([(1, 1), (2, 2), (2, 3)], "has several rows in which id is 2"),
        ([("NULL", 1), (2, 2)], "has a row in which id is NULL"),
        ([(1.5, 1), (2.5, 2)], "has id as double, which cannot be its key"),
    ],
)
def test_a_key_that_is_none(tmp_path: Path, values: Any, said: str) -> None:
    database = sqlite_database(tmp_path)
    database.fill("id, pay", values)
    with pytest.raises(BadInputError, match=said):
        survey_rows(RowOrigin(database.address, "SELECT * FROM t", "id"))


def test_texts_are_keys_in_postgresql_only(postgres: PostgresServer, tmp_path: Path) -> None:
    postgres.connect("CREATE TABLE t AS SELECT 'it''s \\ ' || n AS id, n AS pay FROM generate_series(1, 9) AS n")
    with export_snapshot(postgres.address) as snapshot:
        rows = survey_rows(RowOrigin(postgres.address, "SELECT * FROM t", "id", snapshot.name))
        assert [batch.column(0).to_pylist() for batch in rows.batches(["pay"])] == [list(range(1, 10))]
    database = sqlite_database(tmp_path)
    database.fill("id, pay", [("'a'", 1), ("'b'", 2)])
    with pytest.raises(BadInputError, match="has id as string"):
        survey_rows(RowOrigin(database.address, "SELECT * FROM t", "id"))


@pytest.mark.parametrize(
    ("query", "key", "said"),
    [
        ("SELECT * FROM t", "nr", "has no column nr"),
        ("DELETE FROM t", "id", "is no SELECT"),
        ("SELECT 1) AS x; DROP TABLE t; --", "id", "several statements"),
    ],
)
def test_a_query_that_cannot_be_read(tmp_path: Path, query: str, key: str, said: str) -> None:
    database = sqlite_database(tmp_path)
    database.fill("id, pay", [(1, 1), (2, 2)])
    with pytest.raises(BadInputError, match=said):
        survey_rows(RowOrigin(database.address, query, key))


def test_an_error_of_the_database_has_its_place_in_the_query(postgres: PostgresServer) -> None:
    postgres.connect(PEOPLE)
    with pytest.raises(QueryError) as refused:
        survey_rows(RowOrigin(postgres.address, "SELECT id,\n agee FROM people", "id"))
    assert (refused.value.line, refused.value.column) == (2, 2)


def test_no_rows(tmp_path: Path) -> None:
    database = sqlite_database(tmp_path)
    database.fill("id, pay", [(1, 1)])
    heard = list[int]()
    on_progress: Callable[[int], object] = heard.append
    assert survey_rows(RowOrigin(database.address, "SELECT * FROM t WHERE id > 1", "id"), on_progress).rows == 0
    assert survey_rows(RowOrigin(database.address, "SELECT * FROM t", "id"), on_progress).rows == 1
    assert heard == [1]
