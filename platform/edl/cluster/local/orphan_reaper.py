"""Kills the roles of a supervisor that died, where the kernel does not do it (``edl.cluster.local.parent_death``).

A small process of its own that hears of every role through a pipe. The pipe ends when the supervisor does, however it
died; whoever is still on the list then is killed, stopped processes too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress


class OrphanReaper:
    """The supervisor's end of the pipe.

    Raises:
        OSError: the guard cannot be started.
    """

    def __init__(self) -> None:
        # -I -S: this file needs nothing but the standard library.
        command = [sys.executable, "-I", "-S", __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)

    def add_group(self, pid: int) -> None:
        """Put a process group on the list."""
        self._send_line(f"+{pid}\n")

    def remove_group(self, pid: int) -> None:
        """Take a process group off the list."""
        self._send_line(f"-{pid}\n")

    def close(self) -> None:
        """End the guard, which kills whoever is on the list."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _send_line(self, line: str) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(line.encode())


def remaining_groups(lines: Iterable[str]) -> set[int]:
    """Return the process groups on the list after the lines, of which the last may be torn."""
    pids: set[int] = set()
    for line in lines:
        if line.endswith("\n"):
            (pids.add if line[0] == "+" else pids.discard)(int(line[1:]))
    return pids


def main() -> None:
    """Wait for the end of standard input and kill who is left."""
    for pid in remaining_groups(sys.stdin):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
