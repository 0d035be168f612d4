"""A job beside eight processes that take all the processor time they can get: nobody who runs is called silent."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from faults.linear_job import LinearJob

Make = Callable[..., LinearJob]
LOOPS = 8
SECONDS = 600.0

pytestmark = [pytest.mark.faults, pytest.mark.thorough, pytest.mark.timeout(SECONDS + 180)]


@pytest.fixture
def busy_machine() -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(LOOPS):
            loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(loop.kill)
        yield


@pytest.mark.usefixtures("busy_machine")
def test_no_worker_that_runs_loses_a_lease(linear: Make) -> None:
    job = linear(epochs=1000, ps=2, workers=3)
    with job.start() as run:
        run.wait_step(1)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            run.wait_step(run.status()["step"] + 1)
            assert not run.events("lease_revoked")
            time.sleep(1.0)
        assert len(run.training()) == 3
