"""Steps in turn, overlapped, and local between two pulls: each step is in once, whoever is killed or told to go.

The other fault tests run with the defaults: in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest
from faults.job_assertions import finished
from faults.linear_job import LinearJob

pytestmark = pytest.mark.faults


@pytest.mark.repetition
@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param({"overlap": True}, id="overlapped"),
        pytest.param({"overlap": True, "get_model_steps": 3}, id="overlapped local steps"),
        pytest.param({"get_model_steps": 3}, id="local steps in turn"),
    ],
)
def test_workers_are_killed_and_told_to_go(linear: Callable[..., LinearJob], strategy: dict[str, Any]) -> None:
    job = linear(embedding=True, ps=2, strategy=strategy)
    with job.start() as run:
        for step, number in ((100, SIGKILL), (500, SIGTERM)):
            run.wait_step(step)
            victim = min(run.training())
            run.send("worker", victim, number)
            run.wait_event("role_ended", role="worker", index=victim)
        finished(job, run, lost=2)
