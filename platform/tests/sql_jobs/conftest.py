"""Databases for tests: two embedded ones, and two servers, which start once for each process of pytest."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.databases import (
    PASSWORD,
    USER,
    DatabaseServer,
    MariaDbServer,
    PostgresServer,
    find_mariadb,
    find_postgres,
    require,
    start_mariadb,
    start_postgres,
)

from edl.data import temporary_errors

DATABASES = ("sqlite", "duckdb", "postgresql", "mariadb")


class DatabaseUnderTest:
    """One empty database.

    Args:
        kind: one of ``DATABASES``.
        address: without credentials; these are in the environment.
        execute: runs statements, commits, and returns the rows of the last one.
    """

    def __init__(self, kind: str, address: str, execute: Callable[..., list[Any]]) -> None:
        self.kind, self.address, self.execute = kind, address, execute

    def quote(self, name: str) -> str:
        mark = "`" if self.kind == "mariadb" else '"'
        return mark + name.replace(mark, 2 * mark) + mark

    def tables(self) -> list[str]:
        """Names of all tables."""
        if self.kind == "sqlite":
            query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        else:
            schema = {"mariadb": "shop", "duckdb": "main"}.get(self.kind, "public")
            query = f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{schema}'"
        return sorted(row[0] for row in self.execute(query))

    def fill(self, definition: str, rows: Sequence[Sequence[Any]]) -> None:
        """A table ``t`` with these rows; values are literals of SQL."""
        values = ", ".join("(" + ", ".join(map(str, row)) + ")" for row in rows)
        self.execute(f"CREATE TABLE t ({definition})", f"INSERT INTO t VALUES {values}")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []
    monkeypatch.setattr(temporary_errors, "pause", waits.append)
    return waits


@pytest.fixture(scope="session")
def postgres_process() -> Iterator[PostgresServer]:
    with start_postgres(require(find_postgres(), "postgresql")) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_process() -> Iterator[MariaDbServer]:
    with start_mariadb(require(find_mariadb(), "mariadb-server")) as server:
        yield server


def _prepare(server: DatabaseServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_DATABASE_USER", USER)
    monkeypatch.setenv("EDL_DATABASE_PASSWORD", PASSWORD)
    if server.process is None:
        server.start()


@pytest.fixture
def postgres(postgres_process: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> PostgresServer:
    _prepare(postgres_process, monkeypatch)
    postgres_process.connect("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return postgres_process


@pytest.fixture
def mariadb(mariadb_process: MariaDbServer, monkeypatch: pytest.MonkeyPatch) -> MariaDbServer:
    _prepare(mariadb_process, monkeypatch)
    mariadb_process.connect("DROP DATABASE shop", "CREATE DATABASE shop")
    return mariadb_process


@pytest.fixture(params=DATABASES)
def any_database(request: pytest.FixtureRequest, tmp_path: Path) -> DatabaseUnderTest:
    kind: str = request.param
    if kind == "sqlite":
        return sqlite_database(tmp_path)
    if kind == "duckdb":
        return duckdb_database(tmp_path)
    server = request.getfixturevalue("postgres" if kind == "postgresql" else "mariadb")
    return DatabaseUnderTest(kind, server.address, server.connect)


def sqlite_database(folder: Path) -> DatabaseUnderTest:
    path = folder / "shop.db"

    def execute(*statements: str) -> list[Any]:
        connection = sqlite3.connect(path)
        try:
            for statement in statements:
                rows = connection.execute(statement).fetchall()
            connection.commit()
        finally:
            connection.close()
        return rows

    execute("PRAGMA user_version = 1")  # the file exists
    return DatabaseUnderTest("sqlite", f"sqlite:///{path}", execute)


def duckdb_database(folder: Path) -> DatabaseUnderTest:
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("duckdb_engine")
    path = str(folder / "shop.duckdb")

    def execute(*statements: str) -> list[Any]:
        with duckdb.connect(path) as connection:
            for statement in statements:
                rows = connection.execute(statement).fetchall()
        return list(rows)

    execute("SELECT 1")
    return DatabaseUnderTest("duckdb", f"duckdb:///{path}", execute)
