"""What the supervisor writes into the run directory.

``logs/supervisor.log`` has a line for each start and end. ``events.jsonl`` gets the ends of the master, which nobody
else can know; all other events are the master's to write.
"""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

from edl.cluster.local.exit_status import ExitStatus
from edl.cluster.local.role_process import RoleProcess


class RunLog:
    """Appends to the files of one run.

    A full disk does not end a job: what could not be written is counted, and the log says so when it can.
    """

    def __init__(self, run_dir: Path) -> None:
        self._log_path = run_dir / "logs" / "supervisor.log"
        self._events = run_dir / "events.jsonl"
        self._lost = 0
        self._log_path.parent.mkdir(exist_ok=True)

    def line(self, text: str) -> None:
        """Append a line to the supervisor's log."""
        gap = f"{self._lost} lines and events before this could not be written\n" if self._lost else ""
        line = f"{gap}{datetime.now(UTC).isoformat(timespec='milliseconds')} {text}\n"
        if self._append(self._log_path, line):
            self._lost = 0

    def ended(self, process: RoleProcess, ending: ExitStatus) -> None:
        """Note a process's end."""
        self.line(f"{process.uid} (pid {process.pid}) ended: {ending.reason}, exit code {ending.exit_code}")
        if process.role == "master":
            self._append(self._events, json.dumps(_role_ended_event(process, ending)) + "\n")

    def _append(self, path: Path, text: str) -> bool:
        try:
            _append_text(path, text)
        except OSError:
            self._lost += 1
            return False
        return True


def _role_ended_event(process: RoleProcess, ending: ExitStatus) -> dict[str, object]:
    return {
        "event": "role_ended",
        "time": time.time(),
        "role": process.role.value,
        "index": process.index,
        "pid": process.pid,
        "reason": ending.reason,
        "exit_code": ending.exit_code,
    }


def _append_text(path: Path, text: str) -> None:
    # One write of a short line to a file opened with O_APPEND never mixes with another process's line.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
