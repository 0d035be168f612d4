"""edl sql: where statements come from, and what is refused before anything runs."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from edl.cli import app
from edl.cli.sql_output import TerminalObserver
from edl.reporting.terminal_text import sanitize_standard_streams


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDL_MODELS", str(tmp_path / "models"))
    monkeypatch.delenv("EDL_DATABASE", raising=False)
    return tmp_path


def sql(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = 0
    try:
        app.main(["sql", *arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_the_demo_makes_its_table_once_and_says_what_to_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output = sql(capsys, "--demo")
    assert code == 0
    assert "Made edl-demo.db" in output
    assert "SELECT * FROM employee LABEL income INTO my_elasticdl_model" in output
    database_bytes = (folder / "edl-demo.db").read_bytes()
    code, output = sql(capsys, "--demo", "SELECT count(*) AS n FROM employee")
    assert (code, (folder / "edl-demo.db").read_bytes()) == (0, database_bytes)
    assert output.endswith("n\n4000\n")


def test_a_query_may_have_no_rows(capsys: pytest.CaptureFixture[str]) -> None:
    code, output = sql(capsys, "--demo", "SELECT * FROM employee WHERE age > 999")
    assert (code, output.splitlines()[-1]) == (0, "no rows")


def test_statements_come_from_an_argument_a_file_and_standard_input(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sql(capsys, "--demo")
    statements = "SELECT 1 AS a; -- one\nSELECT 'x;y' AS b"
    (folder / "two.sql").write_text(statements, encoding="utf-8")
    (folder / "WINDOWS.SQL").write_text(statements.replace("\n", "\r\n"), encoding="utf-8-sig", newline="")
    monkeypatch.setattr("sys.stdin", io.StringIO(statements))
    for source in (statements, "two.sql", "WINDOWS.SQL", "-"):
        code, output = sql(capsys, "--database", "sqlite:///edl-demo.db", source)
        assert (code, output) == (0, "a\n1\nb\nx;y\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "the statements: are missing"),
        (["SELECT 1"], "EDL_DATABASE"),
        (["absent.sql"], "absent.sql: cannot be read"),
        ([";"], "has no statement"),
        (["SELECT * FROM t TO TRIAN dnn LABEL a INTO b"], "line 1, column 17"),
        (["SHOW MODELS", "--export", "out"], "--export: is for one training"),
        (["DROP MODEL m"], "there is no model m"),
        (["SHOW MODELS", "--stream=always"], "--stream: has no value always"),
        (["SHOW MODELS", "--stream", "--submit"], "whose process holds the snapshot"),
        (["SHOW MODELS; SELECT * FROM t TO EVALUATE m", "--stream"], "line 1, column 14: --stream is for TO TRAIN"),
        (
            ["--demo", "--stream", "SELECT * FROM employee LABEL income INTO m"],
            "sqlite cannot let several connections read one state",
        ),
        (["SELECT 1", "--database", "postgresql://me:hunter2@h/d"], "contains a password"),
    ],
)
def test_what_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = sql(capsys, *arguments)
    assert code == 2
    assert said in printed
    assert "hunter2" not in printed


def test_an_empty_registry_is_said_to_be_empty(capsys: pytest.CaptureFixture[str]) -> None:
    assert sql(capsys, "SHOW MODELS") == (0, "there are no models\n")


def test_a_whole_address_with_a_password_may_be_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("edl.data.temporary_errors.pause", lambda _: None)
    monkeypatch.setenv("EDL_DATABASE", "postgresql://me:hunter2@127.0.0.1:9/db")
    code, output = sql(capsys, "SELECT 1 AS a")
    assert code == 1
    assert "env://EDL_DATABASE: the database cannot be read" in output
    assert "hunter2" not in output
    # Typed, it would be in the shell's history and in the list of processes.
    code, output = sql(capsys, "SELECT 1 AS a", "--database", "postgresql://me:hunter3@127.0.0.1:9/db")
    assert (code, "contains a password" in output, "hunter3" in output) == (2, True, False)


def test_a_query_that_takes_too_long_is_ended(capsys: pytest.CaptureFixture[str]) -> None:
    sql(capsys, "--demo")
    slow = "SELECT count(*) AS n FROM employee a, employee b, employee c"
    code, output = sql(capsys, "--database", "sqlite:///edl-demo.db", "--query-timeout", "0.2", slow)
    assert code == 2
    assert "did not answer in the time" in output
    assert "--query-timeout" in output
    assert "line 1, column 1" in output
    code, output = sql(capsys, "--database", "sqlite:///edl-demo.db", "--query-timeout", "0", "SELECT 1 AS a")
    assert code == 2


def test_progress_is_one_line_that_goes_before_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with sanitize_standard_streams(), TerminalObserver() as observer:
        observer.extracted(4000)
    assert screen.getvalue() == "\r\x1b[Kreading the query: 4,000 rows\r\x1b[K"


def test_a_prediction_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = list[str]()
    monkeypatch.setattr(TerminalObserver, "_show", lambda self, text: shown.append(text))
    event = {"event": "status", "phase": "Predicting", "records_done": 1000, "records_total": 4000}
    TerminalObserver().job_event(event)
    assert shown == ["predicting: 1,000 of 4,000 rows"]
