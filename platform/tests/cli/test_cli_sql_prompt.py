"""The prompt of edl sql: when a statement is complete, what Tab offers, and that errors do not end it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prompt_toolkit")

from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from edl.api.errors import BadInputError
from edl.cli import sql_prompt
from edl.cli.sql_prompt import find_completions, is_complete, open_prompt
from edl.sql_jobs.database_names import DatabaseNames


@pytest.fixture(autouse=True)
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "edl" / "history"
    monkeypatch.setattr(sql_prompt, "HISTORY", path)
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute('CREATE TABLE orders (amount REAL, "home town" TEXT)')
        connection.execute("CREATE TABLE customers (age INTEGER)")
        connection.execute("CREATE VIEW old_orders AS SELECT * FROM orders")
    return path


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("SELECT 1", False),
        ("SELECT 1;", True),
        ("SELECT 1; -- the end", True),
        ("SELECT 1 -- not the end;", False),
        ("SELECT ';", False),
        ("SELECT ';';", True),
        ('SELECT 1 AS "a;', False),
        ("", False),
    ],
)
def test_a_statement_ends_with_a_semicolon_of_its_own(text: str, complete: bool) -> None:
    assert is_complete(text, "sqlite") is complete


def completions(text: str) -> list[str]:
    names = DatabaseNames("sqlite:///shop.db")
    return [candidate for candidate, _ in find_completions(text, names, lambda: ["income", "my model"])]


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("sel", ["SELECT"]),
        ("SELECT * FROM ", ["customers", "orders", "old_orders"]),
        ("SELECT * FROM O", ["orders", "old_orders"]),
        ("SELECT * FROM orders WHERE am", ["amount"]),
        ("SELECT * FROM orders LABEL ho", ['"home town"']),
        ("SELECT orders.am", ["amount"]),
        ("SELECT * FROM orders TO P", ["PREDICT"]),
        ("show m", ["MODELS"]),
        ("SELECT * FROM orders TO PREDICT a.b USING ", ["income", '"my model"']),
        ("SHOW TRAIN i", ["income"]),
        ("SELECT * FROM orders TO TRAIN d", ["dnn", "deepfm"]),
        ("SELECT * FROM orders TO TRAIN dnn COLUMN BU", ["BUCKET("]),
    ],
)
def test_names_and_keywords_are_completed(text: str, offered: list[str]) -> None:
    assert completions(text) == offered


def test_a_database_that_cannot_be_read_offers_keywords() -> None:
    assert DatabaseNames("sqlite:///absent.db").tables() == []
    assert DatabaseNames(None).columns("orders") == []


def test_new_tables_are_offered_after_a_statement() -> None:
    names = DatabaseNames("sqlite:///shop.db")
    assert names.columns("orders") == ["amount", "home town"]
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute("CREATE TABLE predicted (guess TEXT)")
    assert "predicted" not in names.tables()
    names.forget()
    assert names.columns("predicted") == ["guess"]


def type_into_prompt(typed: str, run: Any) -> None:
    with create_pipe_input() as keys:
        keys.send_text(typed)
        open_prompt(run, "sqlite:///shop.db", list, "sqlite", input=keys, output=DummyOutput())


def test_lines_are_collected_until_the_semicolon(history: Path) -> None:
    ran = list[str]()
    type_into_prompt("SELECT 1\n, 2;\n\nSHOW MODELS;\nexit\n", ran.append)
    assert ran == ["SELECT 1\n, 2;", "SHOW MODELS;"]
    assert "SHOW MODELS;" in history.read_text(encoding="utf-8")
    assert history.stat().st_mode & 0o077 == 0


def test_errors_and_interrupts_do_not_end_the_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    ran = list[str]()

    def run(text: str) -> None:
        ran.append(text)
        if text.startswith("BAD"):
            raise BadInputError("is no statement", where="statement, line 1, column 1")
        if text.startswith("LONG"):
            raise KeyboardInterrupt

    type_into_prompt("BAD;\nLONG;\nSELECT half\x03SELECT 1;\n\x04", run)
    assert ran == ["BAD;", "LONG;", "SELECT 1;"]
    err = capsys.readouterr().err
    assert "line 1, column 1: is no statement" in err
    assert "interrupted" in err


def test_without_a_file_for_the_history_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(sql_prompt, "HISTORY", tmp_path / "file" / "history")
    ran = list[str]()
    type_into_prompt("SELECT 1;\n\x04", ran.append)
    assert ran == ["SELECT 1;"]
