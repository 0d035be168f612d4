"""Benchmarks that play a part of a job themselves: they have to say what the real one would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.jobs, pytest.mark.repetition]

BENCH = Path(__file__).resolve().parents[3] / "bench"


def test_the_played_workers_and_servers_of_the_control_planes_benchmark_train(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, str(BENCH / "control_plane.py"), "--rounds", "1", "--seconds", "1", "--out", str(out)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    measured = {figure["measure"]: figure["measured"] for figure in json.loads(out.read_text())["figures"]}
    assert measured["control plane: requests/s"] > 0
