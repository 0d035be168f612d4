"""A copy of a role's output in a file, as far as the file's disk keeps up: a log must never stop what it is about."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

BACKLOG_BYTES = 4 << 20
"""Bytes that wait for the disk at most; what comes on top is left out, and the file says so."""


class LogFile:
    """Writes on a thread of its own. No method but ``close`` waits, and that one not for long.

    Args:
        notice: told once, in a sentence, when the file cannot be written; nothing is written any more then.
        limit: bytes that may wait.
    """

    def __init__(self, notice: Callable[[str], None], *, limit: int = BACKLOG_BYTES) -> None:
        self._on_failure, self._limit = notice, limit
        self._waiting: deque[bytes] = deque()
        self._backlog_bytes = 0
        self._dropped_bytes = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def open(self, path: Path, heading: str) -> None:
        """Append to ``path``, beginning with what waits already; the folder is made if it is missing.

        Args:
            path: the file.
            heading: a line that says whose output follows.
        """
        self._thread = threading.Thread(target=self._run, args=(path, heading), name="log", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Hand over output."""
        with self._changed:
            if self._backlog_bytes + len(data) > self._limit:
                self._dropped_bytes += len(data)
                return
            if self._dropped_bytes:
                data = b"[%d bytes left out: the disk was too slow]\n" % self._dropped_bytes + data
                self._dropped_bytes = 0
            self._waiting.append(data)
            self._backlog_bytes += len(data)
            self._changed.notify()

    def close(self, patience: float) -> None:
        """Give the disk up to ``patience`` seconds for what waits."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(patience)

    def _run(self, path: Path, heading: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0) as file:
                file.write(heading.encode() + b"\n")
                while data := self._next():
                    _write_all(file.fileno(), data)
        except OSError as error:
            with self._changed:
                self._limit = 0
                self._waiting.clear()
            self._on_failure(f"{path}: {error.strerror or error}; this log goes on without the file")

    def _next(self) -> bytes:
        """What waits, once something does; nothing when it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            data = b"".join(self._waiting)
            self._waiting.clear()
            self._backlog_bytes = 0
            return data


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
