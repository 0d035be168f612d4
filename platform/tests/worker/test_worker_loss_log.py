"""The lines with the loss in a worker's log."""

from __future__ import annotations

import logging

import pytest

from edl.worker.loss_log import LossLog


def lines(caplog: pytest.LogCaptureFixture, every_steps: int | None, *steps: int) -> list[str]:
    caplog.set_level(logging.INFO)
    log = LossLog(every_steps)
    for step in steps:
        log.end_step(step, step / 1000)
    return [record.getMessage() for record in caplog.records]


def test_a_single_worker_logs_every_interval(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, 100, *range(1, 251)) == ["Loss = 0.1, steps = 100", "Loss = 0.2, steps = 200"]


def test_a_worker_that_sees_some_steps_logs_once_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, 10, 3, 9, 12, 15, 31, 39, 40) == [
        "Loss = 0.012, steps = 12",
        "Loss = 0.031, steps = 31",
        "Loss = 0.04, steps = 40",
    ]


def test_a_worker_that_comes_later_does_not_log_at_once(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, 10, 55, 60) == ["Loss = 0.06, steps = 60"]


def test_steps_that_go_back_to_a_checkpoint_are_not_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, 10, 20, 15, 20, 30) == ["Loss = 0.02, steps = 20", "Loss = 0.03, steps = 30"]


def test_nothing_is_logged_without_the_field_or_without_records(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, None, 100) == []
    LossLog(1).end_step(1, None)
    assert not caplog.records
