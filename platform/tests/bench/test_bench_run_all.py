"""One script that fails does not keep the others from running."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"

WORKS = """
import argparse
from figures import BenchFigure, ScriptResult
from script import main

def measure(arguments):
    return ScriptResult("works", [BenchFigure("rounds", arguments.rounds, "rounds", limit=1)])

main(__doc__, measure, rounds=3)
"""


@pytest.fixture
def run_all(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setenv("PYTHONPATH", str(BENCH))
    import run_all

    scripts = {"works": WORKS, "fails": "raise SystemExit(3)", "hangs": "import time; time.sleep(600)"}
    for name, text in scripts.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(run_all, "HERE", tmp_path)
    limits = {"fails": 60, "hangs": 0.2, "works": 60}
    measured = tuple(run_all.BenchScript(name, seconds, ("--rounds", "1")) for name, seconds in limits.items())
    monkeypatch.setattr(run_all, "SCRIPTS", measured)
    return run_all


def test_failures_are_reported_and_the_rest_is_measured(run_all, tmp_path, capsys) -> None:
    results = tmp_path / "results"
    assert run_all.main(["--quick", "--results", str(results)]) == 1
    results_by_script = {path.stem: json.loads(path.read_text()) for path in results.iterdir()}
    assert results_by_script["fails"]["failed"] == "exit code 3"
    assert "not done" in results_by_script["hangs"]["failed"]
    assert not results_by_script["works"]["failed"]
    assert results_by_script["works"]["figures"][0]["measured"] == 1
    assert results_by_script["works"]["figures"][0]["met"] is True
    err = capsys.readouterr().err
    assert "fails FAILED: exit code 3" in err
    assert "works FAILED" not in err


def test_a_name_that_does_not_exist_is_refused(run_all) -> None:
    with pytest.raises(SystemExit):
        run_all.main(["nothing"])


def test_every_script_can_say_what_it_does() -> None:
    sys.path.insert(0, str(BENCH))
    try:
        from run_all import SCRIPTS
    finally:
        sys.path.remove(str(BENCH))
    assert all((BENCH / f"{script.name}.py").is_file() for script in SCRIPTS)
    helped = subprocess.run([sys.executable, BENCH / "cli.py", "--help"], capture_output=True, text=True, check=True)
    assert "--rounds" in helped.stdout


def test_the_jobs_of_a_script_are_started_and_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked master has TensorFlow in its memory, and a forked worker need not import it."""
    monkeypatch.delenv("EDL_TEST_FORKS")
    code = "import script; from support.job_process import STARTED; print(STARTED)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=BENCH, capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"
