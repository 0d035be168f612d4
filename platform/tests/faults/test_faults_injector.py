"""Faults by name and step: what a specification means, and that the right process gets the signal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.noise import RunNoise

from edl.api.errors import BadInputError
from edl.ops.fault_injection import ObservedRun, RolePids, ScheduledSignal, SignalInjector, job_dir_of

FAKE_EDL = """
import json, subprocess, sys, time
from pathlib import Path

run = Path("edl/local/fake/r1")
run.mkdir(parents=True)
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
started = {"event": "role_started", "time": time.time(), "role": "worker", "index": 3, "pid": worker.pid}
(run / "events.jsonl").write_text(json.dumps(started) + "\\n")
workers = [{"index": 3, "pid": worker.pid, "state": "training"}]
status = {"updated": time.time(), "step": 7, "records_total": 100, "records_done": 50, "workers": workers}
(run / "status.json.new").write_text(json.dumps(status))
(run / "status.json.new").rename(run / "status.json")
sys.exit(7 if worker.wait() == -9 else 1)
"""


def status(done: int = 0, step: int = 0, **training: int) -> dict[str, Any]:
    workers = [{"index": int(name[1:]), "pid": pid, "state": "training"} for name, pid in training.items()]
    return {"records_total": 100, "records_done": done, "step": step, "workers": workers}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("worker:KILL@50%", ScheduledSignal("worker", None, "KILL", progress_share=0.5)),
        ("ps-1:STOP@400", ScheduledSignal("ps", 1, "STOP", step=400)),
        ("master:TERM@12.5%", ScheduledSignal("master", None, "TERM", progress_share=0.125)),
    ],
)
def test_a_specification_is_read(text: str, fault: ScheduledSignal) -> None:
    assert ScheduledSignal.parse(text) == fault


@pytest.mark.parametrize(
    "text", ["worker", "worker:KILL", "worker:HUP@5", "chief:KILL@5", "worker:KILL@101%", "ps:KILL@-1"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadInputError, match="is not a fault"):
        ScheduledSignal.parse(text)


def test_a_fault_is_due_at_its_step_or_share() -> None:
    assert not ScheduledSignal.parse("ps:KILL@50%").is_due(status(done=49))
    assert ScheduledSignal.parse("ps:KILL@50%").is_due(status(done=50))
    assert not ScheduledSignal.parse("ps:KILL@50%").is_due({"records_total": 0, "records_done": 0, "step": 0})
    assert ScheduledSignal.parse("ps:KILL@3").is_due(status(step=3))


def test_a_worker_that_trains_is_meant_unless_it_is_named() -> None:
    pids_by_role = RolePids()
    for index in (0, 1, 2):
        event = {"event": "role_started", "time": 1.0, "role": "worker", "index": index, "pid": 100 + index}
        pids_by_role.record_event(event)
    assert ScheduledSignal.parse("worker:KILL@0%").find_target(status(w1=101, w2=102), pids_by_role) == (1, 101)
    assert ScheduledSignal.parse("worker:KILL@0%").find_target(status(), pids_by_role) is None
    assert ScheduledSignal.parse("worker-0:KILL@0%").find_target(status(w1=101), pids_by_role) == (0, 100)


def test_the_roster_forgets_who_ended_and_what_was_before() -> None:
    pids_by_role = RolePids(since=10.0)
    start = {"event": "role_started", "role": "worker", "index": 0}
    pids_by_role.record_event({**start, "time": 9.0, "pid": 5})
    assert pids_by_role.pids_of("worker") == {}
    pids_by_role.record_event({**start, "time": 11.0, "pid": 6})
    pids_by_role.record_event({**start, "event": "role_ended", "time": 12.0, "pid": 5})
    assert pids_by_role.pids_of("worker") == {0: 6}
    pids_by_role.record_event({**start, "event": "role_ended", "time": 13.0, "pid": 6})
    assert pids_by_role.pids_of("worker") == {}


@pytest.fixture
def fake_job(tmp_path: Path) -> Path:
    """A folder with a job file and a program that behaves like ``edl run`` of it, as far as files tell."""
    (tmp_path / "fake_edl.py").write_text(FAKE_EDL)
    spec = {"apiVersion": "edl.dev/v1", "name": "fake", "model": {"definition": "m.f"}, "data": {"training": "d"}}
    (tmp_path / "job.json").write_text(json.dumps({**spec, "storage": {"path": "edl"}}))
    return tmp_path


def inject(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("edl")), "inject", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_runs_with_its_fault_and_ends_with_its_exit_code(fake_job: Path) -> None:
    completed = inject(fake_job, "worker:KILL@50%", "--", sys.executable, "fake_edl.py", "run", "job.json")
    assert completed.returncode == 7, completed.stderr
    assert "SIGKILL was sent to worker-3" in completed.stdout
    assert "at step 7" in completed.stdout


def test_a_fault_that_was_never_due_is_told(fake_job: Path) -> None:
    completed = inject(fake_job, "worker:KILL@99%", "--", sys.executable, "-c", "pass", "run", "job.json")
    assert completed.returncode == 1
    assert "SIGKILL to worker was not sent" in completed.stderr


def test_bad_arguments_end_with_2(fake_job: Path) -> None:
    assert inject(fake_job, "worker:KILL@50%").returncode == 2
    assert inject(fake_job, "worker:EAT@50%", "--", "edl", "run", "job.json").returncode == 2
    assert inject(fake_job, "worker:KILL@50%", "--", "edl", "run").returncode == 2
    assert inject(fake_job, "worker:KILL@50%", "--", "no-such-program", "run", "job.json").returncode == 2
    assert inject(fake_job, "--", "edl", "run", "job.json").returncode == 2


def test_jobs_on_a_cluster_are_refused(fake_job: Path) -> None:
    completed = inject(fake_job, "worker:KILL@50%", "--", "edl", "submit", "job.json")
    assert completed.returncode == 2
    assert "edl submit" in completed.stderr


def test_a_pid_that_was_there_before_the_command_gets_nothing(tmp_path: Path) -> None:
    """Such a process is not the role's: the pid was given anew."""
    watched = ObservedRun(tmp_path, time.time() + 60)
    watched.read_status = lambda: status(done=60, w3=os.getpid())
    watched.role_pids.record_event({"event": "role_started", "time": time.time() + 61, "role": "worker", "index": 3,
                        "pid": os.getpid()})  # fmt: skip
    injector = SignalInjector([ScheduledSignal.parse("worker:CONT@50%")], watched)
    injector.send_due_signals()
    assert not injector.sent_signals


def test_the_runs_of_a_job_are_where_its_storage_says(fake_job: Path) -> None:
    assert job_dir_of(["edl", "run", "job.json"], fake_job) == fake_job / "edl/local/fake"
    moved = ["edl", "run", "job.json", "--set", "storage.path=/x", "--set=name=other"]
    assert job_dir_of(moved, fake_job) == Path("/x/local/other")


def test_noise_is_bounded_by_the_spread_and_by_the_cap() -> None:
    noise = RunNoise([0.90, 0.91, 0.92, 0.93, 0.94], cap=1.0)
    assert noise.reach == pytest.approx(9.43 * 0.015811, rel=1e-3)
    assert noise.allows(0.80)
    assert not noise.allows(0.75)
    assert not RunNoise(noise.values, cap=0.05).allows(0.86)
