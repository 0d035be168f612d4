"""edl run that is stopped takes a checkpoint first, and --resume goes on from there."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs.test_jobs_models import iris
from support.job_folder import JobFolder
from support.job_process import START_SECONDS

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(400), pytest.mark.tensorflow]


def eventually(what: Callable[[], bool]) -> None:
    """Wait until it is so, or fail."""
    until = time.monotonic() + START_SECONDS
    while not what():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.02)


@pytest.fixture
def endless_job(tmp_path: Path) -> JobFolder:
    """A job that takes a checkpoint at its start and then, within the test, none of itself."""
    train = {"epochs": 100_000, "minibatch_size": 16, "minibatches_per_task": 8}
    return iris(tmp_path, train=train, checkpoint={"every_steps": 1_000_000}, export=None, ps={"count": 2})


def test_nothing_is_done_again_after_ctrl_c(endless_job: JobFolder) -> None:
    with endless_job.run("--workers", "2") as run:
        run.wait_step(300)
        began = run.interrupt()
        assert run.wait() == 130
        run.wait_gone(5.0)
        (ended,) = run.events("job_ended")
        status = run.status()
    assert ended["time"] - began < 10.0
    assert ended["reason"].endswith(f"contains all {status['step']:,} steps")
    with endless_job.run("--resume", "--workers", "2") as again:
        back = again.wait_event("rolled_back")
        assert back["records"] == 0
        assert again.wait_step(status["step"] + 50)["records_done"] > status["records_done"]
        again.process.send_signal(signal.SIGTERM)
        assert again.wait() == 143
        (summary,) = again.events("summary")
    assert summary["records_rolled_back"] == 0
    assert "contains all" in summary["reason"]


@pytest.mark.repetition
def test_a_second_ctrl_c_ends_at_once(endless_job: JobFolder) -> None:
    with endless_job.run() as run:
        run.wait_step(50)
        run.send("ps", 0, signal.SIGSTOP)  # no cut can be taken without it
        run.interrupt()
        eventually(lambda: "A second Ctrl-C skips it" in run.errors)
        run.interrupt()
        assert run.wait(8.0) == 130
