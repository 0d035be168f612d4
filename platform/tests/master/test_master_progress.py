"""What a master's log says of the training."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from support.job_objects import STATUS
from support.text_keys import missing_keys

from edl.api.run_events import EvaluationEnded, EvaluationStarted
from edl.master.status_reporter import ProgressLogger, log_event

MIDST = replace(STATUS, loss=0.18684, step=7021, epoch=3, epochs=5, records_done=402112, records_total=600000)


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "edl.master.status_reporter")


def test_the_loss_once_for_each_step(caplog: pytest.LogCaptureFixture) -> None:
    progress = ProgressLogger()
    for status in (MIDST, MIDST, replace(MIDST, step=7022, loss=0.2)):
        progress.log_status(status)
    first, second = caplog.messages
    assert not missing_keys(first, "0.1868", "step 7,021", "epoch 3/5", "402,112 of 600,000 records")
    assert not missing_keys(second, "0.2", "step 7,022")


def test_nothing_before_the_first_step(caplog: pytest.LogCaptureFixture) -> None:
    ProgressLogger().log_status(replace(MIDST, loss=None))
    assert caplog.messages == []


def test_one_epoch_is_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    ProgressLogger().log_status(replace(MIDST, epoch=1, epochs=1))
    assert "epoch" not in caplog.text


def test_each_evaluation_with_its_measures(caplog: pytest.LogCaptureFixture) -> None:
    log_event(EvaluationStarted(time=1.0, step=7000))
    log_event(EvaluationEnded(time=2.0, step=7000, metrics={"loss": 0.09169, "accuracy": 0.9805}))
    log_event(EvaluationEnded(time=3.0, step=8000, metrics={}))
    assert caplog.messages == [
        "Evaluation metrics[v=7000]: {'loss': 0.09169, 'accuracy': 0.9805}",
        "Evaluation metrics[v=8000]: {}",
    ]
