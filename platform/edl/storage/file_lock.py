"""Locked files that say who holds them: a folder has one owner, and whoever comes second learns its name."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType

from edl.api.errors import BadInputError, RefusedError
from edl.storage.durable_files import translate_os_errors, write_all

_HOLDER_LIMIT = 4096  # bytes of holder text shown; a lock file holds one line


class LockHeldError(RefusedError, BadInputError):
    """Another process holds the lock; the message names it (exit code 2)."""

    exit_code = 2


class FileLock:
    """An exclusive ``flock``, held until ``close`` or until the process is gone, however it goes.

    The file stays where it is after a release: removing it would let two processes lock two files of one name.
    """

    def __init__(self, path: Path, holder: str, *, what: str, hint: str) -> None:
        """Take the lock and write ``holder`` into the file.

        Args:
            path: the lock file; created when it is missing.
            holder: who is taking it, one line of text.
            what: what the lock protects, for the message ("the journal").
            hint: what the user can do when another holds it.

        Raises:
            LockHeldError: another process (or another lock in this one) holds it.
            StorageError: the file cannot be created or locked.
        """
        self.path = path
        with translate_os_errors(path, "lock"):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                other = _read_holder(self._descriptor)
                os.close(self._descriptor)
                raise LockHeldError(f"{what} is in use by {other}", where=str(path), hint=hint) from None
            except OSError:
                os.close(self._descriptor)
                raise
        self.describe(holder)

    def describe(self, holder: str) -> None:
        """Replace the holder's text."""
        with translate_os_errors(self.path, "write the holder's name"):
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            write_all(self._descriptor, holder.encode() + b"\n")

    def close(self) -> None:
        """Release the lock. Closing twice does nothing."""
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError):  # the text is a courtesy; the lock goes with the descriptor
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _read_holder(descriptor: int) -> str:
    text = os.pread(descriptor, _HOLDER_LIMIT, 0).decode(errors="replace").strip()
    return text or "a process that has not written its name yet"
