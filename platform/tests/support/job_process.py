"""A whole job under test: ``edl run --json`` as a process, its lines as they come, signals to its roles.

Waiting is always for a condition, with a deadline; the pids come from the lines. Whatever a test does, on exit every
process of the job is gone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support import fork_server

from edl.ops.fault_injection import RolePids, is_alive

Line = Mapping[str, Any]

POLL_SECONDS = 0.01
START_SECONDS = 90.0
"""How long a condition may take by default: TensorFlow's import on a busy machine, several times over."""


STARTED = os.environ.get("EDL_TEST_FORKS") != "1"
"""Whether processes of jobs are started by the system. The tests fork them, but for `make third` and `make test-all`;
benchmarks never do: a forked process has TensorFlow in its memory from the start."""


class JobStuckError(AssertionError):
    """A condition did not come true in time, or the job ended before it did."""


class JobProcess:
    """``edl run`` of one job, as a context manager.

    Args:
        job: the job file.
        options: further arguments of ``edl run``.
        cwd: where it is called: ``./.edl`` is below it.
        command: ``run``, ``evaluate`` or ``predict``.
        started: its processes are started by the system, instead of forked by `support.fork_server`; see ``STARTED``.
    """

    def __init__(self, job: Path, *options: str, cwd: Path, command: str = "run", started: bool = STARTED) -> None:
        self._arguments = [command, str(job), "--json", *options]
        self._cwd, self._started = cwd, started
        self._changed = threading.Condition()
        self._errors: list[str] = []
        self.lines: list[Line] = []
        self.pids_by_role = RolePids()
        self._start_of_pid: dict[int, float] = {}

    def __enter__(self) -> Self:
        self.began = time.time()
        self.process: subprocess.Popen[str] | fork_server.Popen
        if self._started:
            self.process = subprocess.Popen(
                [str(Path(sys.executable).with_name("edl")), *self._arguments],
                cwd=self._cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is a signal for the whole group, which must not be that of the tests
            )
        else:
            self.process = fork_server.Popen(self._arguments, self._cwd)
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self._line), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self._errors.append), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        gone = self._gone(5.0)
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)
        for reader in self._readers:
            reader.join(5.0)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        if error is None and not gone:
            raise AssertionError("processes of the job were left after edl run had ended")

    # ------------------------------------------------------------------ what it says

    def _read(self, stream: Any, take: Callable[[str], None]) -> None:
        for text in stream:
            with self._changed:
                take(text)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _line(self, text: str) -> None:
        line = json.loads(text)
        self.lines.append(line)
        self.pids_by_role.record_event(line)
        pid = line.get("pid")
        if pid and (line["event"] == "role_started" or pid not in self._start_of_pid):
            self._start_of_pid[pid] = line.get("time", time.time())

    @property
    def errors(self) -> str:
        """What it wrote to standard error."""
        return "".join(self._errors)

    @property
    def run_dir(self) -> Path:
        """The run's directory; waits for it."""
        return Path(self.wait_line(lambda line: "run_dir" in line)["run_dir"])

    def events(self, kind: str) -> list[Line]:
        """The lines of one kind so far."""
        with self._changed:
            return [line for line in self.lines if line["event"] == kind]

    def status(self) -> Line:
        """The newest status; empty before the first."""
        try:
            status: Line = json.loads((self.run_dir / "status.json").read_bytes())
        except FileNotFoundError:
            return {}
        return status

    # ------------------------------------------------------------------ waiting

    def wait_line(self, wanted: Callable[[Line], bool], timeout: float = START_SECONDS, after: int = 0) -> Line:
        """The first line that is ``wanted``, from line ``after`` on.

        Raises:
            JobStuckError: none came in ``timeout`` seconds, or the job ended without one.
        """
        until = time.monotonic() + timeout
        with self._changed:
            while True:
                for line in self.lines[after:]:
                    if wanted(line):
                        return line
                after = len(self.lines)
                left = until - time.monotonic()
                if left <= 0 or not any(reader.is_alive() for reader in self._readers):
                    raise JobStuckError(f"no such line in {timeout:.0f} s\n{self._story()}")
                self._changed.wait(min(left, 0.2))

    def wait_event(self, kind: str, timeout: float = START_SECONDS, after: int = 0, **fields: Any) -> Line:
        """The first event of a kind with these fields."""
        wanted = {"event": kind, **fields}
        return self.wait_line(lambda line: wanted.items() <= line.items(), timeout, after)

    def wait_status(self, wanted: Callable[[Line], bool], timeout: float = START_SECONDS) -> Line:
        """The first status that is ``wanted``.

        Raises:
            JobStuckError: none came in ``timeout`` seconds, or the job ended.
        """
        until = time.monotonic() + timeout
        while True:
            ended = self.process.poll() is not None
            status = self.status()
            if status and wanted(status):
                return status
            if ended or time.monotonic() > until:
                raise JobStuckError(f"no such status in {timeout:.0f} s: {status}\n{self._story()}")
            time.sleep(POLL_SECONDS)

    def wait_step(self, step: int, timeout: float = START_SECONDS) -> Line:
        """The first status in which ``step`` training steps are done."""
        return self.wait_status(lambda status: status["step"] >= step, timeout)

    def wait(self, timeout: float = START_SECONDS) -> int:
        """The exit code, and all lines are read."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise JobStuckError(f"still running after {timeout:.0f} s\n{self._story()}") from error
        for reader in self._readers:
            reader.join(5.0)
        return code

    def summary(self, timeout: float = START_SECONDS) -> Line:
        """The last line, of a job that must have ended well."""
        code = self.wait(timeout)
        if code or not self.lines or self.lines[-1]["event"] != "summary":
            raise JobStuckError(f"exit code {code}\n{self._story()}")
        return self.lines[-1]

    # ------------------------------------------------------------------ signals

    def pids(self, role: str) -> dict[int, int]:
        """Pid by index of the live processes of a role."""
        with self._changed:
            return self.pids_by_role.pids_of(role)

    def training(self) -> dict[int, int]:
        """Pid by index of the workers that hold a training lease; waits until there is one."""
        return _training(self.wait_status(lambda status: bool(_training(status))))

    def send(self, role: str, index: int, number: signal.Signals) -> float:
        """Send a signal to a live role; returns when, in unix seconds."""
        pid = self.pids(role)[index]
        at = time.time()
        os.kill(pid, number)
        return at

    def kill(self) -> float:
        """SIGKILL ``edl run`` itself; returns when."""
        at = time.time()
        self.process.kill()
        return at

    def interrupt(self) -> float:
        """What Ctrl-C on a terminal does: SIGINT to every process of the foreground group; returns when."""
        at = time.time()
        os.killpg(self.process.pid, signal.SIGINT)
        return at

    # ------------------------------------------------------------------ what is left

    def alive(self) -> list[int]:
        """Pids that the lines told of and that are still processes of this job (not zombies, not others by now)."""
        return [pid for pid, start in sorted(self._start_of_pid.items()) if is_alive(pid, self.began, start)]

    def wait_gone(self, timeout: float) -> float:
        """Seconds until no process of the job is left.

        Raises:
            JobStuckError: some are left after ``timeout`` seconds.
        """
        began = time.monotonic()
        if not self._gone(timeout):
            raise JobStuckError(f"{self.alive()} are left after {timeout:.0f} s\n{self._story()}")
        return time.monotonic() - began

    def _gone(self, timeout: float) -> bool:
        until = time.monotonic() + timeout
        while self.alive() and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        return not self.alive()

    def _story(self) -> str:
        """What happened, for whoever reads a failure: the last lines, standard error, the ends of the logs."""
        lines = [json.dumps(line) for line in self.lines[-30:]]
        run_line = next((line for line in self.lines if "run_dir" in line), None)
        logs = sorted((Path(run_line["run_dir"]) / "logs").glob("*.log")) if run_line else []
        tails = [f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs]
        return "\n".join([*lines, "--- standard error", self.errors[-2000:], *tails])


def _training(status: Line) -> dict[int, int]:
    return {worker["index"]: worker["pid"] for worker in status["workers"] if worker["state"] == "training"}


def edl(
    *arguments: str, cwd: Path, timeout: float = 60.0, text: str = "", more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a short ``edl`` command to its end, with ``more`` in its environment and ``text`` as its standard input."""
    environment = {**os.environ, **(more or {})}
    if not STARTED:
        return fork_server.run(arguments, cwd, timeout, text, environment)
    program: Sequence[str] = [str(Path(sys.executable).with_name("edl")), *arguments]
    return subprocess.run(
        program, cwd=cwd, env=environment, input=text, capture_output=True, text=True, timeout=timeout, check=False
    )
