"""One role process: started, told to go, killed, and its end seen."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

from edl.api.cluster_port import Role
from edl.cluster.local.exit_status import ExitStatus
from edl.cluster.local.parent_death import parent_death_hook
from edl.cluster.local.role_environment import RoleEnvironment


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
    def age(self) -> float:
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
        return ExitStatus.of(returncode)


def log_path(run_dir: Path, role: Role, index: int) -> Path:
    """Return where a role's output goes; later incarnations of the same name append."""
    return run_dir / "logs" / f"{role}-{index}.log"


def _open_log(environment: RoleEnvironment) -> FileIO:
    path = log_path(environment.run_dir, environment.role, environment.index)
    log = path.open("ab", buffering=0)
    log.write(f"--- {environment.uid} started {datetime.now(UTC).isoformat(timespec='milliseconds')} ---\n".encode())
    return log
