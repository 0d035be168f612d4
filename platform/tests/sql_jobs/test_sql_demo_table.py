"""The demo's table."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edl.api.errors import StorageError
from edl.sql_jobs import demo_table
from edl.sql_jobs.demo_table import ROWS, make_demo


def test_two_processes_that_make_the_demo_at_once_write_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, rows = tmp_path / "demo.db", list(demo_table._rows())

    def rows_while_another_process_makes_it() -> Iterator[tuple[object, ...]]:
        with monkeypatch.context() as other:
            other.setattr(demo_table, "_rows", lambda: iter(rows))
            other.setattr(os, "getpid", lambda: 1)
            assert make_demo(file)
        yield from rows

    monkeypatch.setattr(demo_table, "_rows", rows_while_another_process_makes_it)
    assert make_demo(file)
    assert list(tmp_path.iterdir()) == [file]
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT count(*) FROM employee").fetchone() == (ROWS,)


def test_a_demo_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_no_room() -> Iterator[tuple[object, ...]]:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(demo_table, "_rows", find_no_room)
    with pytest.raises(StorageError, match="the demo table cannot be written: database or disk is full"):
        make_demo(tmp_path / "demo.db")
    assert list(tmp_path.iterdir()) == []
