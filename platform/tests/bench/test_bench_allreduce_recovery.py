"""What the benchmark of AllReduce's recovery takes for the end of a pause, and for a gap."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture(autouse=True)
def _bench_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


def test_a_step_that_was_reduced_before_the_kill_does_not_end_the_pause() -> None:
    from allreduce_recovery import resume_time

    early = np.array([1.0, 1.01, 1.02, 1.12, 1.13, 1.14])
    late = np.array([1.0, 1.01, 1.013, 1.115, 1.125, 1.135])
    assert resume_time([early, late], 1.012) == pytest.approx(1.12)


def test_the_pause_ends_when_the_last_survivor_goes_on() -> None:
    from allreduce_recovery import resume_time

    assert resume_time([np.array([0.0, 0.5, 0.6, 0.7]), np.array([0.0, 0.52, 0.6, 0.7])], 0.1) == pytest.approx(0.52)


def test_a_gap_counts_if_any_of_it_is_in_the_window() -> None:
    from allreduce_recovery import longest_gap

    times = np.array([0.0, 3.0, 3.1, 3.4, 9.0])
    assert longest_gap([times], 3.05, 3.2) == pytest.approx(0.3)
    assert longest_gap([times], 2.9, 3.2) == pytest.approx(3.0)
    assert longest_gap([times, np.array([3.0, 3.8])], 3.05, 3.2) == pytest.approx(0.8)


def test_the_trace_of_the_model_is_no_step(tmp_path: Path) -> None:
    from allreduce_recovery import read_step_times

    np.array([5.0, 6.0, 6.5]).tofile(tmp_path / "17")
    assert list(read_step_times(tmp_path, 17)) == [6.0, 6.5]
    assert len(read_step_times(tmp_path, 18)) == 0
