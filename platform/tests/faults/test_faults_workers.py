"""Workers are killed, stopped and told to go; the others never stop, and no record is lost or counted twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import psutil
import pytest
from faults.conftest import Measure
from faults.job_assertions import finished
from faults.linear_job import LinearJob
from support.job_process import JobProcess, Line
from support.journal_bytes import read_entries

pytestmark = pytest.mark.faults

Make = Callable[..., LinearJob]


def leased_again(run: JobProcess) -> float:
    """When what was returned last is leased again, in unix seconds: it is at the head, so the next lease is of it."""
    until = time.monotonic() + 30.0
    while time.monotonic() < until:
        kinds = [entry["kind"] for entry in read_entries(run.run_dir / "journal")]
        if "leased" in kinds[len(kinds) - kinds[::-1].index("returned") :]:
            return time.time()
        time.sleep(0.005)
    raise AssertionError("what was returned was not leased again")


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([1], id="at the first step"),
        pytest.param([150, 700], id="twice later", marks=pytest.mark.repetition),
    ],
)
def test_a_worker_is_killed(linear: Make, measure: Measure, steps: list[int]) -> None:
    job = linear(records=8000 if steps == [1] else 16000)
    with job.start(started=True) as run:
        for step in steps:
            run.wait_step(step)
            victim = min(run.training())
            at = run.send("worker", victim, SIGKILL)
            returned = run.wait_event("records_returned", worker=victim)
            measure("worker SIGKILL to records returned", returned["time"] - at)
            ended = run.wait_event("role_ended", role="worker", index=victim)
            assert ended["exit_code"] == 128 + SIGKILL
            if run.pids("worker").keys() & run.training().keys():
                measure("worker SIGKILL to leased again", leased_again(run) - at)
            run.wait_event("role_started", role="worker", index=2)
        _, counted = finished(job, run, lost=len(steps))
    assert counted.partial_step_count == 0


@pytest.mark.repetition
def test_a_worker_stops_past_its_lease_and_comes_back(linear: Make) -> None:
    """Its late report is refused, its late pushes are: the parameters would show one that was not."""
    job = linear(epochs=2)
    with job.start() as run:
        run.wait_step(200)
        victim = min(run.training())
        run.send("worker", victim, SIGSTOP)
        run.wait_event("lease_revoked", worker=victim)
        run.wait_event("records_returned", worker=victim)
        run.send("worker", victim, SIGCONT)
        run.wait_status(lambda status: _state(status, victim) == "training")
        finished(job, run, silent=1)


def _state(status: Line, index: int) -> str:
    return next((worker["state"] for worker in status["workers"] if worker["index"] == index), "gone")


@pytest.mark.repetition
def test_workers_are_told_to_go(linear: Make, measure: Measure) -> None:
    job = linear()
    steps = [1, 500]
    with job.start() as run:
        for step in steps:
            run.wait_step(step)
            victim, pid = min(run.training().items())
            process = psutil.Process(pid)
            at = run.send("worker", victim, SIGTERM)
            psutil.wait_procs([process], timeout=20)
            measure("worker SIGTERM to gone", time.time() - at)
            run.wait_event("role_ended", role="worker", index=victim, pid=pid)
        summary, _ = finished(job, run, lost=len(steps))
    assert summary["records_repeated"] == 0, "a worker that is told to go finishes or drops its minibatch"


@pytest.mark.repetition
def test_all_workers_are_killed_at_once(linear: Make) -> None:
    job = linear()
    with job.start() as run:
        run.wait_step(300)
        victims = run.pids("worker")
        for victim in victims:
            run.send("worker", victim, SIGKILL)
        for victim in victims:
            run.wait_event("role_ended", role="worker", index=victim)
        finished(job, run, lost=len(victims))


@pytest.mark.repetition
def test_a_worker_is_killed_while_rows_are_served(linear: Make) -> None:
    job = linear(embedding=True, ps=2)
    with job.start() as run:
        run.wait_step(500)
        run.send("worker", min(run.training()), SIGKILL)
        finished(job, run, lost=1)
        shards = {file.stem for file in run.run_dir.glob("checkpoints/*/ps-*.safetensors")}
    assert shards == {"ps-0", "ps-1"}
