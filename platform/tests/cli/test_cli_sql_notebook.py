"""%%edl: statements in cells of IPython. jobs/test_jobs_edl_notebook.py runs a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("IPython")
pytest.importorskip("pandas")

from edl.sql_jobs.demo_table import make_demo

DATABASE = "sqlite:///edl-demo.db"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDL_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("EDL_DATABASE", raising=False)
    make_demo()
    return tmp_path


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    InteractiveShell.clear_instance()
    settings = Config({"HistoryManager": {"enabled": False}})
    shell = InteractiveShell.instance(config=settings)
    shell.run_line_magic("load_ext", "edl")
    yield shell
    InteractiveShell.clear_instance()


def test_a_cell_returns_the_rows_of_its_last_statement(shell: Any) -> None:
    done = shell.run_cell(f"%%edl --database {DATABASE}\nSHOW MODELS;\nSELECT age, income FROM employee ORDER BY id")
    assert len(done.result) == 4000
    assert list(done.result.columns) == ["age", "income"]


def test_a_variable_gets_the_dataframe(shell: Any) -> None:
    done = shell.run_cell(f"%%edl --database {DATABASE} --to ages\nSELECT avg(age) AS age FROM employee")
    assert done.result is None
    assert shell.user_ns["ages"]["age"].between(20, 70).all()


def test_an_error_is_shown_without_a_traceback_and_ends_the_cell(
    shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    done = shell.run_cell(f"%%edl --database {DATABASE}\nSELECT 1 AS a\nTO TRIAN dnn")
    assert "did you mean TO TRAIN" in str(done.error_in_exec)
    captured = capsys.readouterr()
    assert "line 2, column 1" in captured.out + captured.err
    assert "Traceback" not in captured.out + captured.err


@pytest.mark.parametrize(
    ("options", "said"),
    [("--stream", "--stream=inconsistent"), ("--stream=often", "often"), ("--stream --submit", "on this machine")],
)
def test_a_cell_streams_or_says_why_not(shell: Any, options: str, said: str) -> None:
    done = shell.run_cell(f"%%edl --database {DATABASE} {options}\nSELECT * FROM employee LABEL income INTO m")
    assert said in str(done.error_in_exec)
