"""One role process: started, told to go, killed, and its end seen."""

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

from edl.api.cluster_port import PodPhase, Role
from edl.cluster.local.parent_death import parent_death_hook

# --------------------------------------------------------------------------------------------------
# How a role process is started: its command line and the environment that tells it who it is.
#
# Every role is ``python -m edl.<role>`` with the variables below and no arguments; what the job is stands in
# ``<run>/spec.json``. The token is a file that only the user can read: it is never in argv or in the environment.
#
# ====================== ========================================================================================
# ``EDL_RUN_DIR``        the run directory: ``spec.json``, ``journal/``, ``logs/``, ``events.jsonl``
# ``EDL_ROLE``           ``master``, ``ps`` or ``worker``
# ``EDL_INDEX``          the pod's index within its role, from 0
# ``EDL_UID``            this incarnation's uid, unique over the run
# ``EDL_RUNTIME_DIR``    a short private folder for Unix sockets; it vanishes with the supervisor
# ``EDL_TOKEN_FILE``     the file that holds the job's token (hex, mode 0600)
# ``EDL_CLUSTER_SOCKET`` the supervisor's socket, read by ``edl.cluster.local.local_cluster``
# ``EDL_MASTER_ADDRESS`` where the master listens: ``unix:<path>``
# ====================== ========================================================================================
#
# All but ``EDL_CLUSTER_SOCKET`` are the same for pods; roles read them with ``edl.transport.process_identity``.


RoleCommand = Callable[[Role, int], Sequence[str]]
"""Builds the argument list that starts a role; tests put small fake roles here."""


def role_command(role: Role, index: int) -> Sequence[str]:
    """Return the command of a real role; ``index`` travels in the environment.

    ``-P`` keeps the current folder from the front of ``sys.path``: its modules must not stand for EDL's.
    """
    del index
    return [sys.executable, "-P", "-m", f"edl.{role}"]


@dataclass(frozen=True, slots=True)
class RoleEnvironment:
    """Who a role process is and where it finds what it needs."""

    role: Role
    index: int
    uid: str
    run_dir: Path
    runtime_dir: Path
    token_file: Path
    cluster_socket: Path
    master_address: str

    def to_variables(self) -> dict[str, str]:
        """Return the environment variables that carry these values."""
        return {
            "EDL_ROLE": self.role.value,
            "EDL_INDEX": str(self.index),
            "EDL_UID": self.uid,
            "EDL_RUN_DIR": str(self.run_dir),
            "EDL_RUNTIME_DIR": str(self.runtime_dir),
            "EDL_TOKEN_FILE": str(self.token_file),
            "EDL_CLUSTER_SOCKET": str(self.cluster_socket),
            "EDL_MASTER_ADDRESS": self.master_address,
        }


# --------------------------------------------------------------------------------------------------
# How a process ended, in the words that users and the master read.


_SIGNAL_BASE = 128


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """The end of a process: its exit code as a shell reports it (0-255; 128 + n for signal n) and the reason."""

    exit_code: int
    reason: str

    @property
    def phase(self) -> PodPhase:
        """The pod phase that the ending means."""
        return PodPhase.SUCCEEDED if self.exit_code == 0 else PodPhase.FAILED

    @classmethod
    def from_returncode(cls, returncode: int) -> ExitStatus:
        """Describe a return code of ``subprocess``, in which a signal is negative.

        A role that catches SIGTERM and exits 143 itself was terminated just the same.
        """
        exit_code = _SIGNAL_BASE - returncode if returncode < 0 else returncode
        return cls(exit_code, _exit_reason(exit_code))


def _exit_reason(exit_code: int) -> str:
    if exit_code == 0:
        return "Completed"
    if exit_code <= _SIGNAL_BASE:
        return "Error"
    try:
        name = signal.Signals(exit_code - _SIGNAL_BASE).name
    except ValueError:
        return "Error"
    return f"{'Terminated' if name == 'SIGTERM' else 'Killed'} ({name})"


class RoleProcess:
    """A child in a session of its own, whose output goes to ``<run>/logs/<role>-<index>.log``.

    A session of its own keeps a terminal's Ctrl-C away from it, and makes its process group its own, so that whatever
    it started dies with it.

    Raises:
        OSError: the process or its log file cannot be made.
    """

    def __init__(self, environment: RoleEnvironment, command: Sequence[str]) -> None:
        self.uid = environment.uid
        self.role = environment.role
        self.index = environment.index
        self._start_time = time.monotonic()
        with _open_log(environment) as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment.to_variables()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=parent_death_hook(),
            )

    @property
    def pid(self) -> int:
        """The process id, which is the process group's id too."""
        return self._process.pid

    @property
    def age_seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start_time

    def terminate(self) -> None:
        """Tell the process, and not what it started, to go."""
        self._process.send_signal(signal.SIGTERM)

    def request_job_end(self) -> None:
        """Tell a master to take a final checkpoint and to end its job."""
        self._process.send_signal(signal.SIGUSR1)

    def kill(self) -> None:
        """Kill the process and all that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def poll(self) -> ExitStatus | None:
        """Return how the process ended, or None while it lives."""
        returncode = self._process.poll()
        if returncode is None:
            return None
        self.kill()  # what it left behind in its group
        return ExitStatus.from_returncode(returncode)


def log_path(run_dir: Path, role: Role, index: int) -> Path:
    """Return where a role's output goes; later incarnations of the same name append."""
    return run_dir / "logs" / f"{role}-{index}.log"


def _open_log(environment: RoleEnvironment) -> FileIO:
    path = log_path(environment.run_dir, environment.role, environment.index)
    log = path.open("ab", buffering=0)
    log.write(f"--- {environment.uid} started {datetime.now(UTC).isoformat(timespec='milliseconds')} ---\n".encode())
    return log
