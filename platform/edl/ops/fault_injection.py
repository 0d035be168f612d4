"""Signals to the roles of a job on this machine, by name and step: ``edl inject``.

A fault is ``ROLE[-INDEX]:SIGNAL@WHEN``:

* ROLE is ``worker``, ``ps`` or ``master``; without INDEX it is the running one with the lowest index;
* SIGNAL is KILL, TERM, STOP or CONT;
* WHEN is a step (``@400``) or a share of all records (``@50%``).

Roles contain no code for this. The run's ``events.jsonl`` lists the processes, its ``status.json``
has the job's progress, and a fault is a call of ``os.kill``. Only processes that started after the
command receive signals.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from edl.api.errors import BadInputError, StorageError
from edl.jobfile.loader import load_job_file
from edl.jobfile.path_resolution import resolve_local_paths
from edl.storage.durable_files import JsonLinesTail, read_json
from edl.storage.run_directory import RunDirectory, locate_job_dir, newest_run


class RolePids:
    """Pids of live roles, from the lines of ``--json`` or ``events.jsonl``.

    Args:
        since: unix seconds. Older lines are from an earlier start of the run, and other processes
            may have their pids now.
    """

    def __init__(self, since: float = 0.0) -> None:
        self._start_time = since
        self._pid_by_role: dict[tuple[str, int], int] = {}
        self._start_of_pid: dict[int, float] = {}

    def record_event(self, event: Mapping[str, Any]) -> None:
        """Enter a line. Lines that do not start or end a process are ignored."""
        if event.get("time", 0.0) < self._start_time or not event.get("pid"):
            return
        key = (event["role"], event["index"])
        if event["event"] == "role_started":
            self._pid_by_role[key] = event["pid"]
            self._start_of_pid[event["pid"]] = event["time"]
        elif event["event"] == "role_ended" and self._pid_by_role.get(key) == event["pid"]:
            del self._pid_by_role[key]

    def pids_of(self, role: str) -> dict[int, int]:
        """Pid by index of the live processes of a role."""
        return {index: pid for (name, index), pid in sorted(self._pid_by_role.items()) if name == role}

    def is_alive(self, pid: int) -> bool:
        """Whether the process of a role, whose start was recorded, has not ended."""
        return is_alive(pid, self._start_time, self._start_of_pid[pid])

    def __contains__(self, pid: object) -> bool:
        return pid in self._pid_by_role.values()


def is_alive(pid: int, since: float, until: float) -> bool:
    """Whether the pid is a process that was started between two times, in unix seconds, and has not ended.

    Kernels give a pid to another process after some minutes on a busy machine, because each thread
    takes one as well. That process was started later than the one that is meant.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        has_started = since - 1.0 < process.create_time() < until + 1.0  # clocks of boot time and lines differ a little
        return has_started and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


POLL_SECONDS = 0.02
_ON_PODS = "to end a pod: kubectl delete pod; for a job on this machine: edl inject ... -- edl run job.yaml"
SIGNALS = ("KILL", "TERM", "STOP", "CONT")
_SPEC = re.compile(r"(worker|ps|master)(?:-(\d+))?:([A-Z]+)@(?:(\d+)|(\d+(?:\.\d+)?)%)")


@dataclass(frozen=True, slots=True)
class ScheduledSignal:
    """A signal for a role at a point of the training.

    Attributes:
        index: index of the process; None: the running one with the lowest index.
        signal: name of the signal without SIG.
        step: number of finished steps at which the signal is sent; None if ``progress_share`` is set.
        progress_share: share of finished records at which it is sent, 0 to 1.
    """

    role: str
    index: int | None
    signal: str
    step: int | None = None
    progress_share: float | None = None

    @classmethod
    def parse(cls, text: str) -> ScheduledSignal:
        """The fault of ``ROLE[-INDEX]:SIGNAL@WHEN``; raises BadInputError for anything else."""
        match = _SPEC.fullmatch(text)
        if not match or match[3] not in SIGNALS or (match[5] and float(match[5]) > 100):
            raise BadInputError(
                f"{text!r} is not a fault",
                hint=f"expected ROLE[-INDEX]:{'|'.join(SIGNALS)}@STEP or @PERCENT%, such as worker:KILL@50%",
            )
        role, index, name, step, percent = match.groups()
        return cls(
            role,
            int(index) if index else None,
            name,
            int(step) if step else None,
            _parse_share(percent) if percent else None,
        )

    def __str__(self) -> str:
        return f"SIG{self.signal} to {self.role}{'' if self.index is None else f'-{self.index}'}"

    def is_due(self, status: Mapping[str, Any]) -> bool:
        """Whether the job of this ``status.json`` has reached the fault's step or share."""
        if self.step is not None:
            return bool(status["step"] >= self.step)
        assert self.progress_share is not None
        return bool(0 < status["records_total"] * self.progress_share <= status["records_done"])

    def find_target(self, status: Mapping[str, Any], role_pids: RolePids) -> tuple[int, int] | None:
        """Index and pid of the target process; None while there is none."""
        pids = role_pids.pids_of(self.role)
        if self.index is not None:
            return (self.index, pids[self.index]) if self.index in pids else None
        if self.role == "worker" and self.signal != "CONT":
            training = {worker["pid"] for worker in status["workers"] if worker["state"] == "training"}
            pids = {index: pid for index, pid in pids.items() if pid in training}
        return next(iter(pids.items()), None)


def _parse_share(percent: str) -> float:
    return float(percent) / 100.0


class ObservedRun:
    """The run that a command has started, observed through its files.

    Args:
        folder: folder of all runs of the job.
        since: unix seconds; older files belong to an earlier run or to an earlier start of this
            one.
    """

    def __init__(self, folder: Path, since: float) -> None:
        self._folder, self.start_time = folder, since
        self._newest_run: RunDirectory | None = None
        self.role_pids = RolePids(since)

    def read_status(self) -> Mapping[str, Any] | None:
        """Update the roster and read the job's status; None before the first status."""
        run = newest_run(self._folder)
        if run is None:
            return None
        if self._newest_run != run:
            self._newest_run, self.role_pids = run, RolePids(self.start_time)
            self._events = JsonLinesTail(run.events)
        for event in self._events.poll():
            self.role_pids.record_event(event)
        if not run.status.exists():
            return None
        status: Mapping[str, Any] = read_json(run.status)
        return status if status["updated"] >= self.start_time else None


class SignalInjector:
    """Sends every fault once, when it is due."""

    def __init__(self, faults: Sequence[ScheduledSignal], watched: ObservedRun) -> None:
        self.pending_signals = list(faults)
        self.sent_signals: list[str] = []
        self._observed_run = watched

    def send_due_signals(self) -> None:
        status = self._observed_run.read_status()
        if status is None:
            return
        for fault in [fault for fault in self.pending_signals if fault.is_due(status)]:
            target = fault.find_target(status, self._observed_run.role_pids)
            # The process may have ended, and another one may have its pid by now.
            if target is not None and self._observed_run.role_pids.is_alive(target[1]):
                self._send_signal(fault, *target, step=status["step"])

    def _send_signal(self, fault: ScheduledSignal, index: int, pid: int, *, step: int) -> None:
        try:
            os.kill(pid, getattr(signal, f"SIG{fault.signal}"))
        except ProcessLookupError:
            return  # it has just ended by itself; the next poll looks for another one
        self.pending_signals.remove(fault)
        self.sent_signals.append(f"SIG{fault.signal} was sent to {fault.role}-{index} (pid {pid}) at step {step}")


def job_dir_of(command: Sequence[str], cwd: Path) -> Path:
    """The folder of all runs of the job that ``command``, an ``edl run``, starts.

    Raises:
        BadInputError: the arguments contain no job file, or it is invalid.
    """
    files = [arg for arg in command if arg.endswith((".yaml", ".yml", ".json"))]
    if not files:
        raise BadInputError("the command names no job file", hint="... -- edl run job.yaml")
    if "submit" in command:
        raise BadInputError(
            "edl inject sends signals to processes of this machine, but edl submit starts pods", hint=_ON_PODS
        )
    file = cwd / files[0]
    spec = resolve_local_paths(load_job_file(file, _set_arguments(command)), file.parent, cwd)
    assert spec.storage.path is not None
    return locate_job_dir(Path(spec.storage.path), spec.name)


def _set_arguments(command: Sequence[str]) -> list[str]:
    overrides = [value for flag, value in pairwise(command) if flag == "--set"]
    return overrides + [arg.removeprefix("--set=") for arg in command if arg.startswith("--set=")]


@dataclass(frozen=True, slots=True)
class InjectionResult:
    """The end of the command, and the faults that were sent.

    Attributes:
        exit_code: the command's exit code; 128 + N if signal N ended it; 1 instead of 0 if a fault
            was not sent.
        sent_signals: one line for each fault that was sent.
        unsent_signals: the faults that were never due, or had no target process.
    """

    exit_code: int
    sent_signals: Sequence[str]
    unsent_signals: Sequence[ScheduledSignal]


def run_with_faults(
    faults: Sequence[ScheduledSignal], command: Sequence[str], warn: Callable[[str], None]
) -> InjectionResult:
    """Run the command on this terminal and send each fault to its job when it is due.

    Args:
        warn: called with a line if the files of the run cannot be read.

    Raises:
        BadInputError: the command is not an ``edl run`` of a valid job file, or cannot be started.
    """
    injector = SignalInjector(faults, ObservedRun(job_dir_of(command, Path.cwd()), time.time()))
    try:
        process = subprocess.Popen(command)
    except OSError as error:
        raise BadInputError(f"{command[0]} cannot be started: {error.strerror}") from error
    # Ctrl-C reaches the command too, and ends it. This process stays to report the result.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        _inject_until_end(injector, process, warn)
    finally:
        # After an error of this process, the job would train on without the faults, and nobody would see its end.
        if process.poll() is None:
            process.terminate()
            process.wait()
    code = process.returncode
    code = 128 - code if code < 0 else code or int(bool(injector.pending_signals))
    return InjectionResult(code, injector.sent_signals, injector.pending_signals)


def _inject_until_end(injector: SignalInjector, process: subprocess.Popen[bytes], warn: Callable[[str], None]) -> None:
    warned = ""
    while process.poll() is None:
        try:
            injector.send_due_signals()
        except StorageError as error:
            if str(error) != warned:
                warned = str(error)
                warn(warned)
        _wait_for_exit(process, POLL_SECONDS)


def _wait_for_exit(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
