"""A job whose files are there and whose master follows a script."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edl.cli import app
from edl.ops import local_run_start

SUPERVISOR = Path(__file__).with_name("scripted_supervisor.py")
JOB = """\
name: digits
model: {definition: small.model}
data: {training: train.csv, validation: test.csv, prediction: test.csv}
train: {epochs: 3, minibatch_size: 4}
"""
MODULE = """\
def model(): ...
def loss(labels, predictions): ...
def optimizer(): ...
def eval_metrics_fn(): ...
def feed(dataset, mode, metadata): ...
"""
SUMMARY = {"records_total": 30, "records_done": 30, "seconds": 2.0, "samples_per_second": 15.0, "export": "/out/export"}
DONE = [
    ["event", {"event": "role_started", "role": "worker", "index": 0, "pid": 77}],
    ["status", {"job": "digits", "phase": "Training", "records_total": 30, "records_done": 12, "step": 3, "loss": 0.5}],
    ["event", {"event": "role_ended", "role": "worker", "index": 0, "pid": 77, "reason": "Deleted", "exit_code": 0}],
    ["event", {"event": "job_ended", "phase": "Done", "reason": "all records are done", "summary": SUMMARY}],
    ["status", {"job": "digits", "phase": "Done", "records_total": 30, "records_done": 30, "step": 9}],
]


@dataclass
class Stage:
    """The folder of a job, and what its master will do."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def script(self, *steps: list[Any]) -> None:
        """What the master of the next run does; it ends well after the last step."""
        self.monkeypatch.setenv("EDL_TEST_SCRIPT", json.dumps(steps))

    def edl(self, *args: str) -> int:
        """Exit code of a command line."""
        with pytest.raises(SystemExit) as ended:
            app.main(args)
        assert isinstance(ended.value.code, int)
        return ended.value.code

    def run_dir(self, run: str = "r1") -> Path:
        """Where a run keeps its files."""
        return self.folder / ".edl" / "local" / "digits" / run

    def status(self, run: str = "r1") -> dict[str, Any]:
        """What the run's status says."""
        value: dict[str, Any] = json.loads((self.run_dir(run) / "status.json").read_text())
        return value


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    (tmp_path / "model_zoo").mkdir()
    (tmp_path / "model_zoo" / "small.py").write_text(MODULE)
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "train.csv").write_text("x,y\n" + "1,2\n" * 10)
    (tmp_path / "test.csv").write_text("x,y\n" + "1,2\n" * 5)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_run_start, "SUPERVISOR_PROGRAM", (str(SUPERVISOR),))
    stage = Stage(tmp_path, monkeypatch)
    stage.script(*DONE)
    return stage


def command(*args: str) -> list[str]:
    """A command line of ``edl`` with the scripted supervisor, as a process of its own."""
    imports = "from edl.cli import app; from edl.ops import local_run_start as start"
    code = f"{imports}; start.SUPERVISOR_PROGRAM = ({str(SUPERVISOR)!r},); app.main()"
    return [sys.executable, "-c", code, *args]
