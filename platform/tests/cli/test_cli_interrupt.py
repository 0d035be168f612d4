"""However edl run is stopped, no process stays, the terminal is as before, and the run can go on."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest
from cli.cli_harness import LocalRunHarness, command
from support.text_keys import missing_keys

STATUS = {"job": "digits", "phase": "Training", "records_total": 30, "records_done": 12, "step": 3}
WORKING = [["status", STATUS], ["pause", None]]
PATIENCE = 30.0


def eventually(what: Callable[[], bool]) -> None:
    """Wait until it is so, or fail."""
    until = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.02)


@pytest.fixture
def running_job(local_run: LocalRunHarness) -> Iterator[subprocess.Popen[str]]:
    """edl run with lines, its job at work."""
    local_run.script(*WORKING)
    job = subprocess.Popen(command("run", "job.yaml"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    eventually((local_run.run_dir() / "status.json").exists)
    yield job
    job.kill()
    job.wait()
    assert job.stdout is not None
    job.stdout.close()


def process_tree(pid: int) -> list[psutil.Process]:
    """All processes that a process started, and those that they did."""
    members = psutil.Process(pid).children(recursive=True)
    assert len(members) == 2  # supervisor and master
    return members


def are_gone(members: list[psutil.Process]) -> bool:
    """Whether none of them runs any more."""
    return not any(member.is_running() and member.status() != psutil.STATUS_ZOMBIE for member in members)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_job_and_says_how_to_go_on(
    local_run: LocalRunHarness, running_job: subprocess.Popen[str], number: signal.Signals, code: int
) -> None:
    members = process_tree(running_job.pid)
    running_job.send_signal(number)
    output = running_job.communicate(timeout=PATIENCE)[0]
    assert running_job.returncode == code
    eventually(lambda: are_gone(members))
    assert not missing_keys(output, "Stopping", "checkpoint", "10 s", "Ctrl-C", "12 of 30 records")
    assert output.splitlines()[-1].endswith(": edl run job.yaml --resume r1")
    assert local_run.status()["phase"] == "Interrupted"
    last = json.loads((local_run.run_dir() / "events.jsonl").read_text().splitlines()[-1])
    assert (last["phase"], last["summary"]["records_done"]) == ("Interrupted", 12)


def test_a_second_signal_does_not_wait(local_run: LocalRunHarness, running_job: subprocess.Popen[str]) -> None:
    members = process_tree(running_job.pid)
    supervisor = psutil.Process(running_job.pid).children()[0]
    supervisor.suspend()  # it hears nothing until the end
    running_job.send_signal(signal.SIGINT)
    assert running_job.stdout is not None
    while "Stopping" not in running_job.stdout.readline():
        pass
    running_job.send_signal(signal.SIGINT)
    running_job.communicate(timeout=PATIENCE)
    assert running_job.returncode == 130
    eventually(lambda: are_gone(members))


def test_nobody_outlives_edl_run(running_job: subprocess.Popen[str]) -> None:
    members = process_tree(running_job.pid)
    running_job.kill()
    eventually(lambda: are_gone(members))


def test_a_reader_of_the_output_that_leaves_ends_the_job(
    local_run: LocalRunHarness, running_job: subprocess.Popen[str]
) -> None:
    members = process_tree(running_job.pid)
    assert running_job.stdout is not None
    running_job.stdout.close()
    with (local_run.run_dir() / "events.jsonl").open("a") as events:
        events.write(json.dumps({"event": "warning", "time": time.time(), "message": "say something"}) + "\n")
    assert running_job.wait(PATIENCE) == 141
    eventually(lambda: are_gone(members))
    assert local_run.status()["phase"] == "Interrupted"


def test_after_the_reader_left_standard_error_says_how_to_go_on(local_run: LocalRunHarness) -> None:
    local_run.script(*WORKING)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command("run", "job.yaml"), text=True, **pipes) as job:
        assert job.stdout is not None
        assert job.stderr is not None
        job.stdout.readline()
        job.stdout.close()
        err = job.stderr.read()
    assert job.returncode == 141
    assert err.endswith(": edl run job.yaml --resume r1\n")
    assert err.count("\n") == 1


def test_ctrl_c_on_a_terminal_restores_it(local_run: LocalRunHarness) -> None:
    local_run.script(*WORKING)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        line = command("run", "job.yaml")
        os.execv(line[0], line)
    before = termios.tcgetattr(terminal)
    shown = bytearray()

    def read() -> bool:
        with suppress(OSError):  # the other side is closed
            shown.extend(os.read(terminal, 65536))
        return b"12 of 30 records" in shown

    eventually(read)
    members = process_tree(pid)
    os.write(terminal, b"\x03")
    with suppress(OSError):
        while data := os.read(terminal, 65536):
            shown.extend(data)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    eventually(lambda: are_gone(members))
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l") >= 0  # the cursor is visible again
    assert termios.tcgetattr(terminal) == before
    assert b"--resume r1" in shown
    os.close(terminal)
