"""A large file that goes to its disk while it is written, instead of all at once at the end.

Left to the kernel, a file of gigabytes fills as much memory first: of the machine, and in a pod of the pod's limit.
Each page is allocated and cleared before it is copied to, which costs more than the copy, and in a virtual machine that
gives unused memory back a fault in its host as well. At the end ``fsync`` has all of it to write. Written in steps, the
file needs the memory of one step over and over; this is what RocksDB's ``bytes_per_sync`` is for.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from edl.storage.durable_files import write_all

SYNC_STEP_BYTES = 32 << 20
"""Written before the disk is waited for."""


class PacedWriter:
    """A new file, as a context.

    Args:
        path: of the file; what is there already is overwritten.
        step: bytes that are written at most before the disk is waited for, but for a last part that is longer.

    Raises:
        OSError: from each method, as the system reports it; a part may have been written.
    """

    def __init__(self, path: Path, step: int = SYNC_STEP_BYTES) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._step = step
        self._waiting = 0

    def __enter__(self) -> Self:
        """Nothing: it is open already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it; what :meth:`sync` was not called for need not be on the disk."""
        os.close(self._descriptor)

    def write(self, data: memoryview) -> None:
        """Write single bytes where the last ones ended."""
        write_all(self._descriptor, data)
        self._waiting += data.nbytes
        if self._waiting >= self._step:
            self.sync()

    def write_at(self, place: int, data: memoryview) -> None:
        """The same at ``place``, in bytes from the beginning."""
        os.lseek(self._descriptor, place, os.SEEK_SET)
        self.write(data)

    def sync(self) -> None:
        """Make everything that was written durable, and free the memory that it took."""
        os.fsync(self._descriptor)
        self._waiting = 0
        if sys.platform == "linux":
            with suppress(OSError):  # advice: a file system that does not take it keeps the pages
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
