"""The folder of ``data.reader.cache``: a bounded place for what is not random access on this machine.

It has unpacked copies of compressed files, which stay until somebody removes them, because a job reads them as files;
and blocks of remote files, of which those that were used longest ago make room for others.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from edl.api.errors import BadInputError

CACHE_OPTIONS = ("cache", "cache_gib")
BLOCK_SUFFIX = ".block"
"""Ends the names of files that may be removed at any time."""
_DEFAULT_GIB = 50
_LOCK_FILE = ".lock"


@dataclass(frozen=True)
class CacheFolder:
    """A cache. Processes of one machine, or of one volume, may share it.

    Args:
        folder: is made if it is missing.
        limit: bytes of all files in it.
    """

    folder: Path
    limit: int

    @staticmethod
    def from_options(options: Mapping[str, object]) -> CacheFolder | None:
        """The cache of ``data.reader.cache`` (a folder) and ``cache_gib`` (50); None: the job names none."""
        folder, size = options.get("cache"), options.get("cache_gib", _DEFAULT_GIB)
        if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size < 1 << 30:
            raise BadInputError(f"{size!r} is not allowed", where="data.reader.cache_gib", hint="allowed: GiB above 0")
        if folder is None:
            return None
        if not isinstance(folder, str) or not Path(folder).is_absolute():
            raise BadInputError(
                f"{folder!r} is not allowed", where="data.reader.cache", hint="allowed: the absolute path of a folder"
            )
        return CacheFolder(Path(folder), int(size * (1 << 30)))

    @contextmanager
    def lock(self, *, wait: bool = True) -> Iterator[bool]:
        """Only one process at a time is inside; the folder exists.

        Args:
            wait: for another process. Otherwise the result says whether the lock is this process'.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / _LOCK_FILE).open("a") as lock:
            try:  # closing the file, also by the end of the process, frees it
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True

    def evict_blocks(self, wanted: int) -> int:
        """Evict the blocks that were used longest ago until ``wanted`` bytes fit, or no block is left.

        The caller has the lock.

        Returns:
            The free bytes.
        """
        blocks: list[tuple[int, int, Path]] = []
        used = 0
        for path in self.folder.glob("*/*"):
            with suppress(FileNotFoundError):
                stat = path.stat()
                # Unpacked copies take room as well, although only blocks are evicted.
                used += stat.st_size
                if BLOCK_SUFFIX in path.name:  # also one that a killed process began to write
                    blocks.append((stat.st_mtime_ns, stat.st_size, path))
        for _, size, path in sorted(blocks):
            if used + wanted <= self.limit:
                break
            path.unlink(missing_ok=True)
            used -= size
            with suppress(OSError):
                path.parent.rmdir()  # when it was the last block
        return self.limit - used

    def remove_temporary_files(self) -> None:
        """Remove what killed processes left of unpacked files, which are written under the lock that the caller has."""
        for rest in self.folder.glob("*/.*.tmp"):
            if BLOCK_SUFFIX not in rest.name:
                rest.unlink(missing_ok=True)


def touch(path: Path) -> None:
    """Note that a block was used now."""
    with suppress(OSError):
        os.utime(path)
