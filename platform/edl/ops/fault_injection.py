"""Faults by name and step, sent to a job from outside.

``python -m edl.ops.fault_injection worker:KILL@50% -- edl run job.yaml`` runs the command on this terminal and, when
half of the records are done, kills a worker that is training. Each fault is ``ROLE[-INDEX]:SIGNAL@WHEN``:

* ROLE is ``worker``, ``ps`` or ``master``; without INDEX the lowest one at work is meant;
* SIGNAL is KILL, TERM, STOP or CONT;
* WHEN is a step (``@400``) or a share of all records (``@50%``).

Nothing inside the roles knows of this: who runs and how far the job is stands in the run's ``events.jsonl`` and
``status.json``, and a fault is ``os.kill``. Exits with the command's exit code; if that is 0 although a fault could not
be sent, with 1.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from edl.api.errors import BadInputError, EdlError, StorageError
from edl.jobfile.loader import load_job_file
from edl.jobfile.path_resolution import resolve_local_paths
from edl.ops.role_pids import Roster
from edl.storage.run_directory import RunDirectory, follow_json_lines, locate_job_dir, newest_run, read_json

POLL_SECONDS = 0.02
SIGNALS = ("KILL", "TERM", "STOP", "CONT")
_SPEC = re.compile(r"(worker|ps|master)(?:-(\d+))?:([A-Z]+)@(?:(\d+)|(\d+(?:\.\d+)?)%)")


@dataclass(frozen=True, slots=True)
class Fault:
    """A signal for a role at a point of the training.

    Attributes:
        index: of the role's process; None means the lowest one at work.
        signal: its name without SIG.
        step: sent when so many steps are done; None when ``share`` says when.
        share: of all records that are done, 0 to 1.
    """

    role: str
    index: int | None
    signal: str
    step: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> Fault:
        """The fault of ``ROLE[-INDEX]:SIGNAL@WHEN``; raises BadInputError for anything else."""
        found = _SPEC.fullmatch(text)
        if not found or found[3] not in SIGNALS or (found[5] and float(found[5]) > 100):
            raise BadInputError(
                f"{text!r} is not a fault", hint=f"ROLE[-INDEX]:{'|'.join(SIGNALS)}@STEP or @PERCENT%: worker:KILL@50%"
            )
        role, index, name, step, percent = found.groups()
        return cls(
            role, int(index) if index else None, name, int(step) if step else None, _share(percent) if percent else None
        )

    def __str__(self) -> str:
        return f"SIG{self.signal} to {self.role}{'' if self.index is None else f'-{self.index}'}"

    def due(self, status: Mapping[str, Any]) -> bool:
        """Whether the job of this ``status.json`` is as far as the fault wants it."""
        if self.step is not None:
            return bool(status["step"] >= self.step)
        assert self.share is not None
        return bool(0 < status["records_total"] * self.share <= status["records_done"])

    def target(self, status: Mapping[str, Any], roster: Roster) -> tuple[int, int] | None:
        """Index and pid of the process that is meant; None while there is none."""
        pids = roster.of(self.role)
        if self.index is not None:
            return (self.index, pids[self.index]) if self.index in pids else None
        if self.role == "worker" and self.signal != "CONT":
            training = {worker["pid"] for worker in status["workers"] if worker["state"] == "training"}
            pids = {index: pid for index, pid in pids.items() if pid in training}
        return next(iter(pids.items()), None)


def _share(percent: str) -> float:
    return float(percent) / 100.0


class Watched:
    """The run that a command has started, seen through its files.

    Args:
        folder: of all runs of the job.
        since: unix seconds; what was there before is of an earlier run or of an earlier life of this one.
    """

    def __init__(self, folder: Path, since: float) -> None:
        self._folder, self._since = folder, since
        self._run: RunDirectory | None = None
        self.roster = Roster(since)

    def status(self) -> Mapping[str, Any] | None:
        """The job's status, with the roster brought up to date; None while the run has not told one."""
        run = newest_run(self._folder)
        if run is None:
            return None
        if self._run != run:
            self._run, self.roster, self._events = run, Roster(self._since), follow_json_lines(run.events)
        for event in self._events.poll():
            self.roster.see(event)
        if not run.status.exists():
            return None
        status: Mapping[str, Any] = read_json(run.status)
        return status if status["updated"] >= self._since else None


class Injector:
    """Sends every fault once, when it is due.

    Attributes:
        sent: a line for people about each fault that was sent.
    """

    def __init__(self, faults: Sequence[Fault], watched: Watched) -> None:
        self.left = list(faults)
        self.sent: list[str] = []
        self._watched = watched

    def poll(self) -> None:
        """Send what is due."""
        status = self._watched.status()
        if status is None:
            return
        for fault in [fault for fault in self.left if fault.due(status)]:
            target = fault.target(status, self._watched.roster)
            if target is not None:
                self._send(fault, *target, step=status["step"])

    def _send(self, fault: Fault, index: int, pid: int, *, step: int) -> None:
        try:
            os.kill(pid, getattr(signal, f"SIG{fault.signal}"))
        except ProcessLookupError:
            return  # it ended by itself in this moment: another one is looked for
        self.left.remove(fault)
        self.sent.append(f"SIG{fault.signal} was sent to {fault.role}-{index} (pid {pid}) at step {step}")


def runs_of(command: Sequence[str], cwd: Path) -> Path:
    """The folder of all runs of the job that ``edl run`` in ``command`` means.

    Raises:
        BadInputError: there is no job file among the arguments, or it is not valid.
    """
    files = [arg for arg in command if arg.endswith((".yaml", ".yml", ".json"))]
    if not files:
        raise BadInputError("the command names no job file", hint="... -- edl run job.yaml")
    file = cwd / files[0]
    spec = resolve_local_paths(load_job_file(file, _overrides(command)), file.parent, cwd)
    assert spec.storage.path is not None
    return locate_job_dir(Path(spec.storage.path), spec.name)


def _overrides(command: Sequence[str]) -> list[str]:
    given = [value for flag, value in pairwise(command) if flag == "--set"]
    return given + [arg.removeprefix("--set=") for arg in command if arg.startswith("--set=")]


def main(arguments: Sequence[str]) -> int:
    """Run the command with its faults; returns the exit code."""
    try:
        at = list(arguments).index("--")
        faults = [Fault.parse(text) for text in arguments[:at]]
        command = list(arguments[at + 1 :])
        watched = Watched(runs_of(command, Path.cwd()), time.time())
    except ValueError:
        print(__doc__, file=sys.stderr)
        return 2
    except EdlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return _run(command, Injector(faults, watched))


def _run(command: Sequence[str], injector: Injector) -> int:
    process = subprocess.Popen(command)
    # Ctrl-C reaches the command too, which ends in its own way; this process stays to tell how.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    while process.poll() is None:
        try:
            injector.poll()
        except StorageError as error:
            print(error, file=sys.stderr)
        _wait(process, POLL_SECONDS)
    for line in injector.sent:
        print(f"faults: {line}")
    for fault in injector.left:
        print(f"faults: {fault} was never due, or nobody was there to get it", file=sys.stderr)
    code = process.returncode
    if code < 0:
        return 128 - code
    return code or int(bool(injector.left))


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
