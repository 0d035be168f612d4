"""The pod that prints the master's log."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edl.api.status import ENDED
from edl.pod import log_follower
from edl.pod.log_follower import LogFollower


class Script:
    """What happens between two rounds, one after the other."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = list(steps)

    def wait(self, seconds: float) -> None:
        assert seconds == log_follower.POLL_SECONDS
        self._steps.pop(0)()


def follow(folder: Path, *steps: Callable[[], object], since: float = 0.0) -> tuple[int, bytes]:
    output = io.BytesIO()
    follower = LogFollower(folder / "master-0.log", folder / "status.json", output, since)
    return follower.run(Script(*steps).wait), output.getvalue()


@pytest.mark.parametrize(("phase", "code"), [("Done", 0), ("Failed", 1), ("Interrupted", 1)])
def test_it_prints_what_is_there_and_what_comes_and_ends_with_the_job(tmp_path: Path, phase: str, code: int) -> None:
    log, status = tmp_path / "master-0.log", tmp_path / "status.json"

    def append(text: str) -> None:
        with log.open("a") as file:
            file.write(text)

    def end() -> None:
        status.write_text(json.dumps({"phase": phase, "updated": 5.0}))
        append("c\n")

    ended, printed = follow(
        tmp_path,
        lambda: append("a\n"),
        lambda: status.write_text("{"),
        lambda: status.write_text('{"phase": "Training", "updated": 4}'),
        lambda: append("b\n" * 50_000),
        end,
        lambda: None,
    )
    assert ended == code
    assert printed == b"a\n" + b"b\n" * 50_000 + b"c\n"


def test_every_phase_that_ends_a_job_ends_it() -> None:
    assert log_follower._ENDED.keys() == set(ENDED)


def test_the_end_of_the_run_before_it_was_resumed_is_no_end(tmp_path: Path) -> None:
    log, status = tmp_path / "master-0.log", tmp_path / "status.json"
    log.write_text("before\n")
    status.write_text('{"phase": "Interrupted", "updated": 99.5}')
    ended, printed = follow(
        tmp_path,
        lambda: None,
        lambda: log.write_text("before\nagain\n"),
        lambda: status.write_text('{"phase": "Done", "updated": 130}'),
        lambda: None,
        since=100.0,
    )
    assert (ended, printed) == (0, b"before\nagain\n")


def test_a_file_that_was_replaced_is_printed_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "master-0.log"
    log.write_text("long before\n")
    status = tmp_path / "status.json"
    _, printed = follow(
        tmp_path,
        lambda: log.write_text("new\n"),
        lambda: status.write_text('{"phase": "Done", "updated": 4}'),
        lambda: None,
    )
    assert printed == b"long before\nnew\n"


def test_it_is_light_and_leaves_when_it_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("first\n")
    command = [sys.executable, "-P", "-m", "edl.pod.log_follower", tmp_path / "log", tmp_path / "status.json", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"first\n"
        status = Path(f"/proc/{running.pid}/status").read_text() if sys.platform == "linux" else "VmHWM: 0 kB"
        (peak,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        running.send_signal(signal.SIGTERM)
        assert running.wait(10) == 0
    assert peak < 24 << 10, "KiB; the pod requests 32 MiB"
