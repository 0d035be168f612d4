"""Where a test meets the processes of a supervisor with fake roles, without polling and without sleeping.

Every fake role connects to the harness. A connection that ends is a process that is gone, whoever killed it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edl.cluster.local.local_cluster import LocalCluster
from edl.cluster.local.supervisor_launch import start_supervisor
from edl.transport.process_identity import ProcessIdentity

WAIT_SECONDS = 20.0
"""Seconds; a bound for a loaded machine, never an expectation."""
PROGRAM = (str(Path(__file__).with_name("fake_supervisor.py")),)


class FakeRole:
    """One fake role process."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(WAIT_SECONDS)
        self._connection = connection
        self._lines = connection.makefile("rb")
        report: dict[str, Any] = json.loads(self._lines.readline())
        self.pid: int = report["pid"]
        self.parent: int = report["parent"]
        self.session: int = report["session"]
        self.variables: Mapping[str, str] = report["env"]
        self.identity = ProcessIdentity.from_environment(self.variables)

    @property
    def uid(self) -> str:
        return self.identity.uid

    @property
    def token_file(self) -> Path:
        return Path(self.variables["EDL_TOKEN_FILE"])

    @property
    def cluster_socket(self) -> Path:
        return Path(self.variables["EDL_CLUSTER_SOCKET"])

    def obey(self, line: str) -> None:
        """Tell it what to do and wait until it has done it."""
        self._connection.sendall(line.encode() + b"\n")
        assert self._lines.readline() == b"ok\n"

    def wait_for_sigusr1(self) -> None:
        """Block until it says that it was told to end its job."""
        assert self._lines.readline() == b"got-sigusr1\n"

    def exit(self, code: int) -> None:
        self._connection.sendall(f"exit {code}\n".encode())

    def signal(self, signum: int) -> None:
        os.kill(self.pid, signum)

    def wait_gone(self, seconds: float = WAIT_SECONDS) -> None:
        """Block until the process, and all that it forked, is gone; TimeoutError when it takes longer."""
        self._connection.settimeout(seconds)
        try:
            assert self._lines.read() == b""
        except ConnectionResetError:  # it went with something unread
            return

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


class SupervisorHarness:
    """A run directory, a supervisor for it, and the roles that report."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._folder = Path(tempfile.mkdtemp(prefix="edl-test-"))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._folder / "harness.sock"))
        self._listener.listen()
        self._listener.settimeout(WAIT_SECONDS)
        self._roles: dict[str, FakeRole] = {}
        self._clusters: list[LocalCluster] = []
        self.supervisor: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return str(self._folder / "harness.sock")

    def open(self) -> FakeRole:
        """Start the supervisor and return the master."""
        self.supervisor = start_supervisor(self.run_dir, PROGRAM)
        return self.next_role()

    def next_role(self) -> FakeRole:
        """Wait for the next role that reports."""
        role = FakeRole(self._listener.accept()[0])
        self._roles[role.uid] = role
        return role

    def role(self, uid: str) -> FakeRole:
        """Wait for the role of that uid."""
        while uid not in self._roles:
            self.next_role()
        return self._roles[uid]

    def connect(self, role: FakeRole) -> LocalCluster:
        """Return the cluster port, as that role has it."""
        cluster = LocalCluster.from_environment(role.identity.token, role.variables)
        self._clusters.append(cluster)
        return cluster

    def wait_closed(self, seconds: float = WAIT_SECONDS) -> int:
        assert self.supervisor is not None
        return self.supervisor.wait(seconds)

    def close_supervisor(self) -> None:
        if self.supervisor is not None and self.supervisor.stdin is not None:
            self.supervisor.kill()
            self.supervisor.wait()
            self.supervisor.stdin.close()

    def close(self) -> None:
        for cluster in self._clusters:
            cluster.close()
        self.close_supervisor()
        for role in self._roles.values():
            role.close()
            shutil.rmtree(role.identity.runtime_dir, ignore_errors=True)  # left by a supervisor that was killed
        self._listener.close()
        shutil.rmtree(self._folder)
