"""What counts as a stall of a worker for a checkpoint, and what does not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from stalls import SavedCheckpoint, WorkerSteps

BENCH = Path(__file__).resolve().parents[3] / "bench"


@pytest.fixture(autouse=True)
def _bench_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


def worker(end: np.ndarray, number: np.ndarray | None = None, slept: float = 0.0) -> WorkerSteps:
    from stalls import steps_after_first

    return steps_after_first(np.arange(float(len(end))) if number is None else number, end, np.full(len(end), slept))


def saved(due: int, at: float, pause: float = 0.0) -> SavedCheckpoint:
    from stalls import SavedCheckpoint

    return SavedCheckpoint(due, at, pause)


def test_a_stall_is_what_a_checkpoint_adds_to_a_step() -> None:
    from stalls import beyond_usual, checkpoint_windows, longest_step

    end = 0.01 * np.arange(1000.0)
    end[:300] -= 0.500  # before the first checkpoint, while a table fills
    end[501:] += 0.030  # while the checkpoint is written
    end[800:] += 0.200  # after it
    windows = checkpoint_windows([worker(end)], [saved(500, at=6.0)])
    workers = beyond_usual([worker(end)], windows)
    assert longest_step(workers, windows[0]) == pytest.approx(0.030)
    reason = "what happens while there is none is told, and not hidden"
    assert workers[0].seconds_outside(windows).max() == pytest.approx(0.200), reason


def test_the_step_of_which_a_checkpoint_is_due_belongs_to_it() -> None:
    """The cut begins when that step is in: the next one may wait."""
    from stalls import checkpoint_windows, longest_step

    end = 0.01 * np.arange(1000.0)
    end[500:] += 1.0
    windows = checkpoint_windows([worker(end)], [saved(500, at=7.0)])
    assert longest_step([worker(end)], windows[0]) == pytest.approx(1.01)


def test_what_a_step_slept_is_no_part_of_it() -> None:
    assert worker(np.array([0.0, 0.1, 0.25]), slept=0.1).step_seconds == pytest.approx([0.0, 0.05])


def test_of_several_workers_the_one_that_stands_longest_counts_each_by_its_own_usual_time() -> None:
    from stalls import beyond_usual, checkpoint_windows, longest_step

    quick, slow = 0.01 * np.arange(1000.0), 0.1 * np.arange(100.0)
    quick[520:] += 0.02
    slow[53:] += 0.05
    workers = [worker(quick), worker(slow, number=10 * np.arange(100.0))]
    windows = checkpoint_windows(workers, [saved(500, at=6.0)])
    assert longest_step(beyond_usual(workers, windows), windows[0]) == pytest.approx(0.05)


def test_workers_that_push_at_once_know_of_a_step_by_a_lower_number() -> None:
    from stalls import checkpoint_windows

    # Three workers push steps 30, 31 and 32 at once, and all of them call theirs 30.
    workers = [worker(0.1 * np.arange(100.0), number=3 * np.arange(100.0)) for _ in range(3)]
    [(since, _)] = checkpoint_windows(workers, [saved(32, at=2.0)], together=3)
    assert since == pytest.approx(1.0)


def test_a_checkpoint_is_due_from_its_first_attempt_on() -> None:
    from stalls import read_checkpoints

    lines = [
        {"step": step, "time": float(step), "pause_seconds": pause} for step, pause in ((0, 0.0), (44, 0.1), (130, 0.2))
    ]
    assert read_checkpoints(lines, every=40) == [saved(40, 44.0, 0.1), saved(80, 130.0, 0.2)]


def test_a_pause_lies_in_the_window_of_its_checkpoint() -> None:
    from stalls import checkpoint_windows

    assert checkpoint_windows([worker(0.01 * np.arange(10.0))], [saved(500, at=6.0, pause=1.5)]) == [(4.5, 6.0)]


def test_between_two_checkpoints_as_long_is_looked_at_where_there_is_room() -> None:
    from stalls import windows_between

    assert windows_between([(0.0, 1.0), (5.0, 8.0), (9.0, 10.0)]) == [(2.5, 3.5)]


def test_of_each_join_the_worst_counts_and_elsewhere_every_one() -> None:
    from joining import JoiningSplit, split_values

    windows = [(float(at), at + 0.5) for at in range(6)]
    values = [0.1, 0.9, 0.2, 0.3, 0.8, 0.4]
    joins = [(1.0, 2.7), (4.4, 4.9), (20.0, 21.0)]
    assert split_values(values, windows, joins) == JoiningSplit(joins=[0.9, 0.8], settled=[0.1, 0.3, 0.4])


def test_a_step_log_that_is_being_written_is_read_without_its_last_line(tmp_path: Path) -> None:
    from stalls import read_steps

    lines = np.array([[0, 10.0, 0.1], [1, 11.0, 0.1], [2, 12.0, 0.5], [3, 13.0, 0.1]])
    (tmp_path / "1").write_bytes(lines.tobytes()[:-8])
    steps = read_steps(tmp_path / "1", settle=1)
    assert (steps.number, steps.begin, steps.end, steps.step_seconds) == ([2.0], [11.0], [12.0], [0.5])


@pytest.mark.tensorflow
def test_a_step_log_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stalls import read_steps

    monkeypatch.syspath_prepend(str(BENCH / "zoo"))
    monkeypatch.setenv("EDL_BENCH_DIARY", str(tmp_path))
    from step_log import StepLog

    step_log = StepLog(sleep=1e-3)
    for step in (5, 6, 8):
        step_log.on_train_batch_begin(step)
        step_log.on_train_batch_end(step)
    step_log.file.close()
    [file] = tmp_path.iterdir()
    steps = read_steps(file, settle=0)
    assert steps.number.tolist() == [6, 8]
    assert (steps.step_seconds < steps.end - steps.begin).all(), "it slept"
