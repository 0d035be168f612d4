"""``python -m edl.pod.log_follower LOG STATUS SINCE``: prints a log while it grows, and ends when the job has ended.

It is the program of the pod that ``master.log_pod`` asks for. The log is the copy on the volume of what the master's
container prints, so the pod needs no right on the cluster. It exits with 0 if the job is done, with 1 if it has failed
or was interrupted, and with 0 when it is told to exit.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

POLL_SECONDS = 1.0
_CHUNK_BYTES = 1 << 16
_ENDED = {"Done": 0, "Failed": 1, "Interrupted": 1}


class LogFollower:
    """Copies what is new in a file to an output.

    Args:
        log: the file, which may not exist yet.
        status: the run's ``status.json``.
        output: what has been read is written here and flushed.
        since: unix seconds. An older status is of the run before it was resumed, and says nothing of its end.
    """

    def __init__(self, log: Path, status: Path, output: BinaryIO, since: float = 0.0) -> None:
        self._log, self._status, self._output, self._since = log, status, output, since
        self._position = 0

    def run(self, wait: Callable[[float], object] = time.sleep) -> int:
        """Copy until the job has ended, and return the exit code."""
        while True:
            # The phase first: what the master printed before its end is then in the file.
            ended = self._read_end()
            copied = self._copy()
            if ended is not None and not copied:
                return ended
            wait(POLL_SECONDS)

    def _copy(self) -> int:
        """Copy the new bytes; returns how many."""
        try:
            with self._log.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._position:  # another file has its name
                    self._position = 0
                file.seek(self._position)
                begin = self._position
                while chunk := file.read(_CHUNK_BYTES):
                    self._output.write(chunk)
                    self._position += len(chunk)
        except OSError:  # not there yet, or the volume does not answer: the next round may find it
            return 0
        self._output.flush()
        return self._position - begin

    def _read_end(self) -> int | None:
        try:
            status = json.loads(self._status.read_bytes())
            is_new, phase = float(status["updated"]) >= self._since, status["phase"]
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return _ENDED.get(phase) if is_new else None


def main(log: str, status: str, since: str) -> int:
    """Follow a log on standard output."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    return LogFollower(Path(log), Path(status), sys.stdout.buffer, float(since)).run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
