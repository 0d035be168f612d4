"""Which processes a job has: told by its start and end events, and by nothing else.

Whoever sends signals takes the pids from here. A pattern over process names would hit other people's jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Roster:
    """Pids of live roles, from the lines of ``--json`` or ``events.jsonl``.

    Args:
        since: unix seconds; older lines are of an earlier life of the run and their pids may be anybody's.
    """

    def __init__(self, since: float = 0.0) -> None:
        self._since = since
        self._pids: dict[tuple[str, int], int] = {}

    def see(self, event: Mapping[str, Any]) -> None:
        """Enter a line; those that start or end no process change nothing."""
        if event.get("time", 0.0) < self._since or not event.get("pid"):
            return
        key = (event["role"], event["index"])
        if event["event"] == "role_started":
            self._pids[key] = event["pid"]
        elif event["event"] == "role_ended" and self._pids.get(key) == event["pid"]:
            del self._pids[key]

    def of(self, role: str) -> dict[int, int]:
        """Pid by index of the live processes of a role."""
        return {index: pid for (name, index), pid in sorted(self._pids.items()) if name == role}

    def __contains__(self, pid: object) -> bool:
        return pid in self._pids.values()


def is_alive(pid: int, since: float) -> bool:
    """Whether the pid is a process that was started after ``since`` and has not ended."""
    import psutil

    try:
        process = psutil.Process(pid)
        return bool(process.create_time() > since - 1.0 and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
