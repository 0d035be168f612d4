"""Process 1 with a real child: exit codes, signals, orphans, and every byte of the output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ENTRY = str(Path(__file__).with_name("fake_entry.py"))
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="subreapers are Linux's")


class InitProcess:
    def __init__(self, script: str, log: Path | None = None) -> None:
        command = [sys.executable, ENTRY, str(log or ""), script]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.output = self.process.stdout

    def line(self) -> bytes:
        return self.output.readline()

    def end(self) -> tuple[int, bytes]:
        rest = self.output.read()
        return self.process.wait(), rest


@pytest.fixture
def start() -> Iterator[type[InitProcess]]:
    started: list[InitProcess] = []

    class StartedInit(InitProcess):
        def __init__(self, script: str, log: Path | None = None) -> None:
            super().__init__(script, log)
            started.append(self)

    yield StartedInit
    for each in started:
        each.process.kill()
        each.process.wait()
        each.output.close()


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 2", 2), ("exit 255", 255), ("kill -KILL $$", 137), ("kill -SEGV $$", 139)],
)
def test_it_ends_as_its_child_ends(start: type[InitProcess], script: str, code: int) -> None:
    assert start(script).end() == (code, b"")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_are_the_childs(start: type[InitProcess], number: signal.Signals, code: int) -> None:
    process = start("echo ready; exec tail -f /dev/null")
    assert process.line() == b"ready\n"
    process.process.send_signal(number)
    assert process.end() == (code, b"")


def test_a_child_that_catches_the_signal_says_how_it_ends(start: type[InitProcess]) -> None:
    process = start("trap 'echo leaving; exit 7' TERM; echo ready; while :; do read -t 0.05 <> <(:); done")
    assert process.line() == b"ready\n"
    process.process.send_signal(signal.SIGTERM)
    assert process.end() == (7, b"leaving\n")


def test_output_is_complete_when_it_ends(start: type[InitProcess], tmp_path: Path) -> None:
    log = tmp_path / "logs" / "worker-0.log"
    code, output = start("echo error >&2; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last; exit 3", log).end()
    assert code == 3
    assert output == b"error\n" + b"x" * 3_000_000 + b"\nlast\n"
    assert log.read_bytes() == b"--- here ---\n" + output


def test_a_process_that_is_left_behind_does_not_hold_it(start: type[InitProcess]) -> None:
    process = start("(echo $BASHPID; exec tail -f /dev/null) & wait -n; exit 4")
    left = int(process.line())
    child = Path(f"/proc/{process.process.pid}/task/{process.process.pid}/children").read_text().split()
    os.kill(int(child[0]), signal.SIGKILL)
    assert process.process.wait() == 137
    os.kill(left, signal.SIGKILL)


def test_orphans_are_reaped(start: type[InitProcess]) -> None:
    # the orphan's number is free again when it was reaped: a zombie would keep it
    script = """
    orphan=$( (sh -c 'echo $$; exec >&-; exec true') & )
    while [ -e /proc/$orphan ]; do :; done
    echo reaped
    """
    assert start(script).end() == (0, b"reaped\n")


def test_a_log_that_cannot_be_written_is_said_once_and_costs_nothing(start: type[InitProcess], tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    code, output = start("for i in 1 2 3; do echo line $i; done", tmp_path / "logs" / "worker-0.log").end()
    assert code == 0
    assert [line for line in output.splitlines() if b"line" in line] == [b"line 1", b"line 2", b"line 3"]
    assert output.count(b"logging continues without this file") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_costs_nothing(start: type[InitProcess]) -> None:
    code, output = start("for i in 1 2 3; do echo line $i; done", Path("/dev/full")).end()
    assert code == 0
    assert [line for line in output.splitlines() if line.startswith(b"line")] == [b"line 1", b"line 2", b"line 3"]


def test_a_disk_that_hangs_holds_neither_the_role_nor_its_end(start: type[InitProcess], tmp_path: Path) -> None:
    pipe = tmp_path / "worker-0.log"
    os.mkfifo(pipe)  # nobody reads: opening it for writing waits
    assert start("head -c 6000000 /dev/zero; exit 5", pipe).end() == (5, b"\0" * 6_000_000)


def test_stdout_that_nobody_reads_does_not_end_the_role(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, ENTRY, str(log), "echo one; echo two; exit 6"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait() == 6
    assert log.read_text() == "--- here ---\none\ntwo\n"
