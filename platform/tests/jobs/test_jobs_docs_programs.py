"""The page *Programs of your own*: its job runs as it stands, also with a killed worker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from signal import SIGKILL

import pytest
from support.job_process import JobProcess

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(240)]

PAGE = (Path(__file__).parents[3] / "docs" / "programs.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"<!-- test: (.+?) -->\n```python\n(.*?)```", PAGE, re.S))
(JOB,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
RECORDS, EPOCHS = 1797, 5


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
