"""The master is killed, and everything is: the journal is the memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from signal import SIGKILL

import psutil
import pytest
from faults.conftest import Measure
from faults.job_assertions import done, finished
from faults.linear_job import LinearJob
from support.job_process import JobProcess, edl

pytestmark = pytest.mark.faults

Make = Callable[..., LinearJob]


def test_the_master_is_killed_again_and_again(linear: Make, measure: Measure) -> None:
    job = linear()
    with job.start() as run:
        for life, step in enumerate([1, 300, 900], start=2):
            run.wait_step(step)
            at = run.send("master", 0, SIGKILL)
            first = run.wait_status(lambda status, life=life: status["incarnation"] == life)["step"]
            run.wait_status(lambda status, first=first: status["step"] > first)
            measure("master SIGKILL to the next step", time.time() - at)
        _, counted = finished(job, run)
        ends = {line["reason"] for line in run.events("role_ended") if line["role"] != "master"}
    assert ends <= {"Completed", "Deleted"}, "workers and PS wait for their master and go on"
    assert counted.repeated_records == 0


@pytest.mark.repetition
def test_the_master_is_killed_together_with_a_worker(linear: Make) -> None:
    job = linear()
    with job.start() as run:
        run.wait_step(400)
        victim = min(run.training())
        run.send("master", 0, SIGKILL)
        run.send("worker", victim, SIGKILL)
        finished(job, run, lost=1)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], id="as it was", marks=pytest.mark.repetition),
        pytest.param(["--ps", "2"], id="with another parameter server"),
    ],
)
@pytest.mark.repetition
def test_everything_is_killed_and_resumed(linear: Make, options: list[str]) -> None:
    """``edl run`` is killed: no process is left within 2 s. ``--resume`` goes on from the newest checkpoint."""
    job = linear(embedding=True)
    with job.start() as run:
        saved = run.wait_line(lambda line: line["event"] == "checkpoint_saved" and line["step"] > 0)
        run.wait_step(saved["step"] + 100)
        run_dir = run.run_dir
        run.kill()
        assert run.wait_gone(2.0) <= 2.0
    with job.start("--resume", *options) as again:
        assert again.run_dir == run_dir
        back = again.wait_event("rolled_back")
        assert back["to_cut"] >= saved["cut"]
        summary, counted = done(job, again, lost=job.workers)
        job.check_checkpoints(run_dir, counted)
    assert 0 < summary["records_rolled_back"] <= job.interval * job.minibatch
    assert summary["updates_rolled_back"] == 0


@pytest.mark.repetition
def test_ctrl_c_and_a_second_run(linear: Make) -> None:
    """While a run is alive a second one is refused and told who holds it; Ctrl-C leaves no process behind."""
    job = linear(epochs=50, workers=1)
    with job.start() as run:
        run.wait_step(10)
        for options in ([], ["--resume"]):
            second = edl("run", str(job.file), *options, cwd=job.file.parent)
            assert second.returncode == 2, second.stderr
            assert named(run) & set(second.stderr.replace(",", " ").split()), second.stderr
        run.interrupt()
        assert run.wait(20) == 130
        assert run.alive() == []
        assert run.lines[-1]["phase"] == "Interrupted"


def named(run: JobProcess) -> set[str]:
    """Pids, as text, of which one should be named as the holder."""
    process = run.process.pid
    return {str(process), *(str(child.pid) for child in psutil.Process(process).children())}
