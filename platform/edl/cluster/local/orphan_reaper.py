"""Kills the roles of a supervisor that died, on systems where the kernel does not (``edl.cluster.local.parent_death``).

It is a small process that gets the id of every role through a pipe. The pipe ends when the supervisor dies in any way,
and the reaper then kills all roles that are still listed, including stopped processes.
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
        OSError: the reaper cannot be started.
    """

    def __init__(self) -> None:
        # -I -S: isolated, without site-packages, for a fast start; this file needs only the standard library
        command = [sys.executable, "-I", "-S", __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)

    def add_group(self, pid: int) -> None:
        """Add a process group to the list."""
        self._send_line(f"+{pid}\n")

    def remove_group(self, pid: int) -> None:
        """Remove a process group from the list."""
        self._send_line(f"-{pid}\n")

    def close(self) -> None:
        """End the reaper, which kills the groups that are still listed."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _send_line(self, line: str) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(line.encode())


def remaining_groups(lines: Iterable[str]) -> set[int]:
    """Return the process groups that are listed after these lines. The last line may be incomplete."""
    pids: set[int] = set()
    for line in lines:
        if line.endswith("\n"):
            (pids.add if line[0] == "+" else pids.discard)(int(line[1:]))
    return pids


def main() -> None:
    """Wait for the end of standard input, then kill the remaining groups."""
    for pid in remaining_groups(sys.stdin):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
