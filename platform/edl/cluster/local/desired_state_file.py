"""The desired state of a run of this machine: a file in its run directory.

``edl scale`` replaces the file, and the master of the run polls it. A resumed run begins with the
numbers of its job file again, so the file is removed then. On Kubernetes, likewise, a resumed run is a
new Job without the annotation.
"""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from edl.cluster.desired_state import desired_state_json, merge_desired_state, parse_desired_state, unreadable_state
from edl.cluster.status_port import DesiredState
from edl.storage.durable_files import translate_os_errors, write_json

POLL_SECONDS = 0.5
_MAX_BYTES = 4096
"""A request has tens of bytes. A larger file is not read."""


class DesiredStateFile:
    """The desired state in a file; see ``edl.cluster.status_port.DesiredStateSource``.

    Args:
        path: the file. It exists only after a request.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._closed = threading.Event()

    def read(self) -> DesiredState:
        """The desired state now; ``unreadable`` if the file is invalid."""
        try:
            file_stat = self._path.stat()
            # another kind of file, such as a pipe, could block the reader
            if not stat.S_ISREG(file_stat.st_mode) or file_stat.st_size > _MAX_BYTES:
                return self._unreadable(f"it is not a file of at most {_MAX_BYTES} bytes")
            with self._path.open("rb") as file:
                text = file.read(_MAX_BYTES).decode()
        except FileNotFoundError:
            return DesiredState()
        except OSError as error:
            return self._unreadable(f"it cannot be read: {error.strerror}")
        except UnicodeDecodeError:
            return self._unreadable("it is not UTF-8")
        return parse_desired_state(text, str(self._path))

    def update(self, change: DesiredState, spec_bounds: tuple[int, int]) -> DesiredState:
        """Change the desired state; return the result. Of two changes at the same moment, one may be lost.

        Args:
            change: a field that is None keeps its current value.
            spec_bounds: ``workers.min`` and ``workers.max`` of the run.

        Raises:
            BadInputError: see ``merge_desired_state``.
            StorageError: the file cannot be written.
        """
        desired = merge_desired_state(self.read(), change, spec_bounds)
        write_json(self._path, desired_state_json(desired))
        return desired

    def remove(self) -> None:
        """Forget the desired state: the numbers of the job file are wanted again.

        Raises:
            StorageError: the file cannot be removed.
        """
        with translate_os_errors(self._path, "remove"):
            self._path.unlink(missing_ok=True)

    def watch_desired_state(self) -> Iterator[DesiredState]:
        """Yield the desired state now, then every change, until ``close``. The file is polled."""
        last: DesiredState | None = None
        last_version: object = ()
        while not self._closed.is_set():
            version = self._version()
            if version != last_version:
                last_version = version
                desired = self.read()
                if desired != last:
                    last = desired
                    yield desired
            self._closed.wait(POLL_SECONDS)

    def close(self) -> None:
        """End ``watch_desired_state``."""
        self._closed.set()

    def _version(self) -> tuple[int, int] | None:
        """Differs after each replacement of the file; None while it cannot be found."""
        try:
            file_stat = self._path.stat()
        except OSError:
            return None
        return file_stat.st_ino, file_stat.st_mtime_ns

    def _unreadable(self, reason: str) -> DesiredState:
        return unreadable_state(str(self._path), "", reason)
