"""Two minutes of random signals to random roles: ``make chaos`` has more seeds, modes and minutes."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.__main__ import run_chaos

pytestmark = [pytest.mark.faults, pytest.mark.thorough, pytest.mark.tensorflow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("mode", ["async", "all-reduce"])
def test_no_promise_is_broken_under_random_faults(tmp_path: Path, mode: str) -> None:
    report = run_chaos(tmp_path, seed=11, mode=mode, seconds=120.0)
    assert report["violations"] == []
    assert sum(report["faults"].values()) >= 15
