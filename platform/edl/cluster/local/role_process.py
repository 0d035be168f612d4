"""Starts one role process, signals it, and reports how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

from edl.api.cluster_port import ALLOCATOR_VARIABLES, PodPhase, Role
from edl.cluster.local.parent_death import parent_death_hook

# --------------------------------------------------------------------------------------------------
# How a role process is started: its command line and environment.
#
# Every role is ``python -m edl.<role>`` with the variables below and without arguments; the job is in
# ``<run>/spec.json``. The token is in a file that only the user can read, and never in argv or the environment.
#
# ====================== ========================================================================================
# ``EDL_RUN_DIR``        the run directory: ``spec.json``, ``journal/``, ``logs/``, ``events.jsonl``
# ``EDL_ROLE``           ``master``, ``ps`` or ``worker``
# ``EDL_INDEX``          the pod's index within its role, from 0
# ``EDL_UID``            uid of this process, unique in the run
# ``EDL_RUNTIME_DIR``    private folder with a short path, for Unix sockets; the supervisor removes it
# ``EDL_TOKEN_FILE``     file with the job's token (hex, mode 0600)
# ``EDL_CLUSTER_SOCKET`` the supervisor's socket, read by ``edl.cluster.local.local_cluster``
# ``EDL_MASTER_ADDRESS`` address of the master: ``unix:<path>``
# ====================== ========================================================================================
#
# Pods have the same variables except ``EDL_CLUSTER_SOCKET``. Roles read them with ``edl.transport.process_identity``.


RoleCommand = Callable[[Role, int], Sequence[str]]
"""Returns the argument list that starts a role; tests use small fake roles."""


def role_command(role: Role, index: int) -> Sequence[str]:
    """Return the command of a real role; ``index`` is passed in the environment.

    ``-P`` keeps the current folder off ``sys.path``, so that a user's module cannot replace one of EDL's.
    """
    del index
    return [sys.executable, "-P", "-m", f"edl.{role}"]


@dataclass(frozen=True, slots=True)
class RoleEnvironment:
    """Identity of a role process, and the paths and addresses that it needs."""

    role: Role
    index: int
    uid: str
    run_dir: Path
    runtime_dir: Path
    token_file: Path
    cluster_socket: Path
    master_address: str

    def to_variables(self) -> dict[str, str]:
        """Return the environment variables with these values."""
        return {
            "EDL_ROLE": self.role.value,
            "EDL_INDEX": str(self.index),
            "EDL_UID": self.uid,
            "EDL_RUN_DIR": str(self.run_dir),
            "EDL_RUNTIME_DIR": str(self.runtime_dir),
            "EDL_TOKEN_FILE": str(self.token_file),
            "EDL_CLUSTER_SOCKET": str(self.cluster_socket),
            "EDL_MASTER_ADDRESS": self.master_address,
            **ALLOCATOR_VARIABLES.get(self.role, {}),
        }


# --------------------------------------------------------------------------------------------------
# How a process ended, in words for users and the master.


_SIGNAL_BASE = 128


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: its exit code as a shell reports it (0-255; 128 + n for signal n), and the reason."""

    exit_code: int
    reason: str

    @property
    def phase(self) -> PodPhase:
        """The pod phase that corresponds to the exit code."""
        return PodPhase.SUCCEEDED if self.exit_code == 0 else PodPhase.FAILED

    @classmethod
    def from_returncode(cls, returncode: int) -> ExitStatus:
        """Convert a return code of ``subprocess``, where signals are negative.

        A role that catches SIGTERM and exits with 143 counts as terminated, too.
        """
        exit_code = _SIGNAL_BASE - returncode if returncode < 0 else returncode
        return cls(exit_code, _exit_reason(exit_code))


def _exit_reason(exit_code: int) -> str:
    if exit_code == 0:
        return "Completed"
    # a shell reports signal n as 128 + n
    if exit_code <= _SIGNAL_BASE:
        return "Error"
    try:
        name = signal.Signals(exit_code - _SIGNAL_BASE).name
    except ValueError:
        return "Error"
    return f"{'Terminated' if name == 'SIGTERM' else 'Killed'} ({name})"


class RoleProcess:
    """A child process in its own session, with output to ``<run>/logs/<role>-<index>.log``.

    Its own session protects it from Ctrl-C in the terminal, and gives it a process group, so that its own children can
    be killed with it.

    Raises:
        OSError: the process or its log file cannot be created.
    """

    def __init__(self, environment: RoleEnvironment, command: Sequence[str]) -> None:
        self.uid = environment.uid
        self.role = environment.role
        self.index = environment.index
        self._start_time = time.monotonic()
        with _open_log(environment) as log:
            self._process = subprocess.Popen(
                command,
                # unbuffered: a killed role must not lose the last lines of its log
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment.to_variables()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=parent_death_hook(),
            )

    @property
    def pid(self) -> int:
        """The process id, which is also the id of the process group."""
        return self._process.pid

    @property
    def age_seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start_time

    def terminate(self) -> None:
        """Send SIGTERM to the process, and not to its children."""
        self._process.send_signal(signal.SIGTERM)

    def request_job_end(self) -> None:
        """Tell a master to take a final checkpoint and end its job."""
        self._process.send_signal(signal.SIGUSR1)

    def kill(self) -> None:
        """Kill the process and all of its children."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def poll(self) -> ExitStatus | None:
        """Return how the process ended, or None while it runs."""
        returncode = self._process.poll()
        if returncode is None:
            return None
        self.kill()  # its remaining children
        return ExitStatus.from_returncode(returncode)


def log_path(run_dir: Path, role: Role, index: int) -> Path:
    """Return the log file of a role. Later processes of the same role and index append to it."""
    return run_dir / "logs" / f"{role}-{index}.log"


def _open_log(environment: RoleEnvironment) -> FileIO:
    path = log_path(environment.run_dir, environment.role, environment.index)
    log = path.open("ab", buffering=0)
    log.write(f"--- {environment.uid} started {datetime.now(UTC).isoformat(timespec='milliseconds')} ---\n".encode())
    return log
