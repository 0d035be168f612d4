"""The course of a run's training, in its directory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from edl.api.status import RoleStatus, Status
from edl.storage.run_directory import RunDirectory
from edl.storage.training_history import HISTORY_PERIOD_SECONDS, TrainingHistory

STATUS = Status("digits", "r1", "/r1", "Training", 100.0, step=10, records_done=640, loss=0.5, samples_per_second=99.0)


def lines(run: RunDirectory) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.history.read_text().splitlines()]


def test_a_line_every_few_seconds_while_there_are_steps(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    history = TrainingHistory(run)
    for moment in range(60):
        status = replace(STATUS, updated=100.0 + moment / 4, step=10 + min(moment, 55))
        history.record_status(status)
    assert [line["time"] for line in lines(run)] == [100.0, 104.5, 109.0, 113.5]
    assert HISTORY_PERIOD_SECONDS == 5.0
    history.record_status(replace(STATUS, updated=115.0, step=70, phase="Done"))
    assert lines(run)[-1]["step"] == 70, "the last step is kept, however soon it comes"


def test_what_a_line_says(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    workers = (RoleStatus(0, 7, "training"), RoleStatus(1, None, "pending"))
    TrainingHistory(run).record_status(replace(STATUS, workers=workers, loss=float("nan")))
    assert lines(run) == [
        {"time": 100.0, "step": 10, "epoch": 0, "records_done": 640, "loss": None, "samples_per_second": 99.0,
         "workers": 1, "pending": 1}
    ]  # fmt: skip


def test_a_place_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    TrainingHistory(RunDirectory(tmp_path / "file")).record_status(STATUS)
