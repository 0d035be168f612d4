"""Ranges of one state of a database, which several processes read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sql_jobs.conftest import DatabaseUnderTest, sqlite_database
from support.databases import PostgresServer

from edl.api.errors import BadInputError, RetryableError
from edl.data.reader_factory import open_reader
from edl.sql_jobs.exported_snapshot import ExportedSnapshot, export_snapshot

pytest.importorskip("sqlalchemy")

QUERY = "SELECT id, text FROM t"


@pytest.fixture
def server(postgres: PostgresServer) -> PostgresServer:
    postgres.connect("CREATE TABLE t AS SELECT n AS id, repeat('x', 3000) AS text FROM generate_series(0, 499) AS n")
    return postgres


def open_rows(server: PostgresServer, snapshot: ExportedSnapshot) -> Any:
    return open_reader(server.address, {"query": QUERY, "key": "id", "snapshot": snapshot.name})


def test_all_readers_see_the_state_that_is_held(server: PostgresServer) -> None:
    with export_snapshot(server.address) as snapshot:
        assert snapshot.is_consistent
        first = open_rows(server, snapshot)
        (source,) = first.sources()
        server.connect(
            "DELETE FROM t WHERE id < 250", "UPDATE t SET text = 'new'", "INSERT INTO t VALUES (9999, 'more')"
        )
        second = open_rows(server, snapshot)
        assert second.sources() == first.sources()
        for reader in (first, second):
            for start, end in ((0, 200), (200, 500)):
                rows = reader.read(source.name, start, end)
                assert [row["id"] for row in rows] == list(range(start, end))
                assert {row["text"] for row in rows} == {b"x" * 3000}
        snapshot.check()
    with pytest.raises(BadInputError, match="the snapshot is gone"):
        open_rows(server, snapshot).sources()


def test_a_snapshot_that_is_lost_with_its_connection_is_noticed(server: PostgresServer) -> None:
    with export_snapshot(server.address) as snapshot:
        server.connect(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "
            "backend_type = 'client backend'"
        )
        with pytest.raises(RetryableError, match="the snapshot is gone"):
            snapshot.check()


def test_an_error_of_the_block_stays_what_it_is(server: PostgresServer) -> None:
    with pytest.raises(ValueError, match="mine"), export_snapshot(server.address):
        raise ValueError("mine")


def test_a_server_that_is_not_reachable(no_waiting: list[float]) -> None:
    with pytest.raises(RetryableError), export_snapshot("postgresql://127.0.0.1:9/db"):
        pass


def test_other_databases_are_refused_unless_several_states_are_accepted(any_database: DatabaseUnderTest) -> None:
    if any_database.kind == "postgresql":
        pytest.skip("it shares snapshots")
    with pytest.raises(BadInputError, match="cannot let several connections"), export_snapshot(any_database.address):
        pass
    with export_snapshot(any_database.address, allow_inconsistent=True) as snapshot:
        assert (snapshot.name, snapshot.is_consistent) == ("", False)
        snapshot.check()


def test_a_name_that_is_no_snapshot_is_refused(tmp_path: Path, server: PostgresServer) -> None:
    options = {"query": QUERY, "key": "id"}
    with pytest.raises(BadInputError, match="no name of a snapshot"):
        open_reader(server.address, {**options, "snapshot": "1'; DROP TABLE t; --"})
    database = sqlite_database(tmp_path)
    database.fill("id INTEGER, text TEXT", [(1, "'a'")])
    with pytest.raises(BadInputError, match="only PostgreSQL"):
        open_reader(database.address, {**options, "snapshot": "1-2"}).sources()
