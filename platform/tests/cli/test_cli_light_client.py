"""What an installation without the extra ``train`` says when it is asked to run a job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edl.cli.app import main

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "command", [["run"], ["validate", "--model"], ["predict", "--output", "out"]], ids=lambda c: c[0]
)
def test_a_job_is_refused_before_a_process_starts(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each role would end with an ImportError, and the master would be started again for half a minute."""
    monkeypatch.chdir(tmp_path)
    for name in ("tensorflow", "numpy"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    job = ROOT / "model_zoo/mnist/job.yaml"
    monkeypatch.setattr(sys, "argv", ["edl", *command, str(job), "--set", "data.prediction=records"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert "edl-platform[train]" in err
    assert "tensorflow, numpy" in err
    assert not (tmp_path / ".edl").exists()
