"""The page *Programs of your own*: its job runs as it stands, also with a killed worker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from signal import SIGKILL

import numpy as np
import pytest
from sklearn.datasets import load_digits
from support.job_process import JobProcess
from support.repetition import repetition

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(240)]

PAGE = (Path(__file__).parents[3] / "docs" / "programs.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"<!-- test: (.+?) -->\n```python\n(.*?)```", PAGE, re.S))
JOB, SHARED_JOB = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
RECORDS, EPOCHS = 1797, 5


@pytest.mark.repetition
def test_the_job_of_the_page_trains_and_survives_a_killed_worker(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAMS["train.py"])
    (tmp_path / "job.yaml").write_text(JOB)
    subprocess.run([sys.executable, "-c", PROGRAMS["data"]], cwd=tmp_path, check=True, timeout=100)
    with JobProcess(tmp_path / "job.yaml", cwd=tmp_path) as run:
        run.wait_step(5)
        run.send("worker", 0, SIGKILL)
        summary = run.summary(120)
    assert summary["records_done"] == summary["records_total"] == EPOCHS * RECORDS
    assert summary["records_lost"] == 0
    assert list(tmp_path.glob("model-*.pickle"))
    assert run.status()["loss"] < 0.2


@pytest.mark.parametrize("program", ["shared/train.py", repetition("tensorflow/train.py")])
@pytest.mark.repetition
def test_the_shared_model_of_the_page_learns_and_survives_a_killed_worker(tmp_path: Path, program: str) -> None:
    # All of it takes less than a second, and a worker takes longer to start.
    block = "        with step:\n"
    paced = PROGRAMS[program].replace(block, f"{block}            time.sleep(0.02)\n")
    assert paced.count("time.sleep") == 1
    (tmp_path / "train.py").write_text(f"import time\n{paced}")
    (tmp_path / "job.yaml").write_text(SHARED_JOB)
    subprocess.run([sys.executable, "-c", PROGRAMS["data"]], cwd=tmp_path, check=True, timeout=100)
    with JobProcess(tmp_path / "job.yaml", cwd=tmp_path) as run:
        run.wait_event("world_changed", workers=2)
        run.send("worker", 0, SIGKILL)
        summary = run.summary(120)
        assert run.wait() == 0
    assert summary["records_done"] == summary["records_total"] == 20 * RECORDS
    assert summary["records_lost"] == 0
    digits = load_digits()
    guessed = (digits.data / 16 @ np.load(tmp_path / "weights.npy")).argmax(axis=1)
    assert (guessed == digits.target).mean() > 0.96
