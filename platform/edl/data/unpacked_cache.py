"""Unpacks compressed files once into a folder of bounded size, because a compressed file has no random access."""

from __future__ import annotations

import fcntl
import gzip
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from edl.api.errors import BadInputError
from edl.data.data_files import FileVersion, file_version, read_error, temporary_path

PACKED_SUFFIX = ".gz"
CACHED_FORMATS = ("text", "jsonl", "csv", "tfrecord")
"""Formats whose files may be compressed."""
CACHE_OPTIONS = ("cache", "cache_gib")
_DEFAULT_GIB = 50
_COPY_BYTES = 1 << 20
_LOCK_FILE = ".lock"


@dataclass(frozen=True)
class UnpackedCache:
    """A folder of unpacked files. Processes of one machine, or of one volume, may share it.

    Args:
        folder: is made if it is missing.
        limit: bytes of all unpacked files in it.
    """

    folder: Path
    limit: int

    @staticmethod
    def from_options(options: Mapping[str, object]) -> UnpackedCache | None:
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
        return UnpackedCache(Path(folder), int(size * (1 << 30)))

    def unpack_all(self, files: Sequence[Path]) -> tuple[Path, ...]:
        """The files, with its unpacked copy in place of each compressed one.

        Raises:
            BadInputError: a file is damaged, or the folder would become too large.
        """
        if not any(is_packed(file) for file in files):
            return tuple(files)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._lock():
                return tuple(self._unpack(file) if is_packed(file) else file for file in files)
        except OSError as error:
            raise read_error(Path(error.filename or self.folder), error) from error

    def _unpack(self, file: Path) -> Path:
        packed = file_version(file.stat())
        # The same name in every process and after a restart: the ledger knows sources by their names.
        target = (
            self.folder / sha256(os.path.abspath(file).encode()).hexdigest()[:16] / file.name[: -len(PACKED_SUFFIX)]
        )
        stamp = target.parent / ".packed"
        if target.exists() and stamp.exists() and stamp.read_text() == _stamp(packed, target):
            return target
        target.unlink(missing_ok=True)
        target.parent.mkdir(exist_ok=True)
        temporary = temporary_path(target)
        try:
            self._copy(file, temporary)
            # That of the packed file: whoever unpacks again makes the same version of the file.
            os.utime(temporary, ns=(packed[1], packed[1]))
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        stamp.write_text(_stamp(packed, target))
        return target

    def _copy(self, file: Path, target: Path) -> None:
        room, written = self.limit - self._used_bytes(), 0
        try:
            with gzip.open(file) as source, target.open("wb") as copy:
                while content := source.read(_COPY_BYTES):
                    written += len(content)
                    if written > room:
                        raise BadInputError(
                            f"{self.folder} would become larger than data.reader.cache_gib ({self.limit >> 30} GiB)",
                            where=str(file),
                            hint="allow more, or remove files of other jobs from the folder when none of them runs",
                        )
                    copy.write(content)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise BadInputError(
                f"the file cannot be unpacked after {written} bytes of its content: {error}",
                where=str(file),
                hint="it is truncated or was overwritten; write it again",
            ) from error

    def _used_bytes(self) -> int:
        for rest in self.folder.glob("*/.*.tmp"):
            rest.unlink(missing_ok=True)  # of a process that was killed: nobody else writes under the lock
        return sum(path.stat().st_size for path in self.folder.glob("*/*") if path.is_file())

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with (self.folder / _LOCK_FILE).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # closing the file, also by the end of the process, frees it
            yield


def is_packed(file: Path) -> bool:
    """Whether a file is compressed, by its name."""
    return file.suffix.lower() == PACKED_SUFFIX


def _stamp(packed: FileVersion, target: Path) -> str:
    return f"{packed[0]} {packed[1]} {target.stat().st_size}"
