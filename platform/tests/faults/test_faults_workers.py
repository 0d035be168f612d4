"""Workers are killed, stopped and told to go; the others never stop, and no record is lost or counted twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import psutil
import pytest

from edl.testing.jobs import JobProcess, Line
from edl.testing.journal_bytes import read_entries
from faults.conftest import Measure
from faults.linear_job import LinearJob
from faults.verdict import finished

pytestmark = pytest.mark.faults

Make = Callable[..., LinearJob]


def released(run: JobProcess, returned: Line) -> float:
    """When the returned range was leased again, in unix seconds; waits for it, looking at the journal."""
    until = time.monotonic() + 30.0
    wanted = [returned["source"], returned["start"]]
    while time.monotonic() < until:
        entries = read_entries(run.run_dir / "journal")
        back = next((i for i, entry in enumerate(entries) if entry["kind"] == "returned"), len(entries))
        if any(entry["kind"] == "leased" and entry["work"][1:3] == wanted for entry in entries[back:]):
            return time.time()
        time.sleep(0.005)
    raise AssertionError(f"{returned} was not leased again")


@pytest.mark.parametrize("step", [1, 150, 700])
def test_a_worker_is_killed(linear: Make, measure: Measure, step: int) -> None:
    job = linear()
    with job.start() as run:
        run.wait_step(step)
        victim = min(run.training())
        at = run.send("worker", victim, SIGKILL)
        returned = run.wait_event("records_returned", worker=victim)
        measure("worker SIGKILL to records returned", returned["time"] - at)
        measure("worker SIGKILL to leased again", released(run, returned) - at)
        ended = run.wait_event("role_ended", role="worker", index=victim)
        assert ended["exit_code"] == 128 + SIGKILL
        run.wait_event("role_started", role="worker", index=2)
        summary, found = finished(job, run, lost=1)
    assert found.partial == 0
    assert summary["records_repeated"] in (0, job.minibatch)


def test_a_worker_stops_past_its_lease_and_comes_back(linear: Make) -> None:
    job = linear(epochs=2)
    with job.start() as run:
        run.wait_step(200)
        victim = min(run.training())
        run.send("worker", victim, SIGSTOP)
        run.wait_event("lease_revoked", worker=victim)
        run.wait_event("records_returned", worker=victim)
        run.send("worker", victim, SIGCONT)
        run.wait_status(lambda status: _state(status, victim) == "training")
        summary, _ = finished(job, run, lost=summary_of_stop(run))
    assert summary["records_repeated"] <= job.minibatch


def summary_of_stop(run: JobProcess) -> int:
    """A worker that came back is not lost."""
    return len([line for line in run.events("role_ended") if line["role"] == "worker"])


def _state(status: Line, index: int) -> str:
    return next((worker["state"] for worker in status["workers"] if worker["index"] == index), "gone")


@pytest.mark.parametrize("step", [1, 500])
def test_a_worker_is_told_to_go(linear: Make, measure: Measure, step: int) -> None:
    job = linear()
    with job.start() as run:
        run.wait_step(step)
        victim, pid = min(run.training().items())
        process = psutil.Process(pid)
        at = run.send("worker", victim, SIGTERM)
        psutil.wait_procs([process], timeout=20)
        measure("worker SIGTERM to gone", time.time() - at)
        run.wait_event("role_ended", role="worker", index=victim, pid=pid)
        summary, _ = finished(job, run, lost=1)
    assert summary["records_repeated"] == 0, "a worker that is told to go finishes or drops its minibatch"


def test_all_workers_are_killed_at_once(linear: Make) -> None:
    job = linear(workers=3, records=24000)
    with job.start() as run:
        run.wait_step(300)
        victims = run.pids("worker")
        for victim in victims:
            run.send("worker", victim, SIGKILL)
        for victim in victims:
            run.wait_event("role_ended", role="worker", index=victim)
        finished(job, run, lost=len(victims))


def test_a_worker_is_killed_while_rows_are_served(linear: Make) -> None:
    job = linear(embedding=True, ps=2)
    with job.start() as run:
        run.wait_step(500)
        run.send("worker", min(run.training()), SIGKILL)
        finished(job, run, lost=1)
        shards = {file.stem for file in run.run_dir.glob("checkpoints/*/ps-*.safetensors")}
    assert shards == {"ps-0", "ps-1"}
