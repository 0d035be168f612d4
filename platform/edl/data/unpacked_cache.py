"""Unpacks compressed files once into a folder of bounded size, because a compressed file has no random access."""

from __future__ import annotations

import errno
import gzip
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from edl.api.errors import BadInputError
from edl.data.cache_folder import CacheFolder
from edl.data.data_files import FileVersion, file_version, read_error, temporary_path
from edl.data.remote_files import RemotePath, is_remote

PACKED_SUFFIX = ".gz"
CACHED_FORMATS = ("text", "jsonl", "csv", "tfrecord")
"""Formats whose files may be compressed."""
_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class UnpackedCache:
    """Unpacked copies of compressed files.

    Args:
        cache: the folder that has them.
    """

    cache: CacheFolder

    def unpack_all(self, files: Sequence[Path]) -> tuple[Path, ...]:
        """The files, with its unpacked copy in place of each compressed one.

        Raises:
            BadInputError: a file is damaged, or the folder would become too large.
        """
        if not any(is_packed(file) for file in files):
            return tuple(files)
        try:
            with self.cache.lock():
                return tuple(self._unpack(file) if is_packed(file) else file for file in files)
        except OSError as error:
            raise read_error(Path(error.filename or self.cache.folder), error) from error

    def _unpack(self, file: Path) -> Path:
        packed = file_version(file.stat())
        # The same name in every process and after a restart: the ledger knows sources by their names.
        place = str(file) if is_remote(file) else os.path.abspath(file)
        target = self.cache.folder / sha256(place.encode()).hexdigest()[:16] / file.name[: -len(PACKED_SUFFIX)]
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
        cache = self.cache
        cache.remove_temporary_files()
        room, written = cache.make_room(0), 0
        try:
            # Blocks would need the lock, and nobody reads them again.
            readable = file.without_cache() if isinstance(file, RemotePath) else file
            with readable.open("rb") as packed, gzip.open(packed) as source, target.open("wb") as copy:
                while content := source.read(_COPY_BYTES):
                    written += len(content)
                    if written > room:
                        copy.flush()  # counted by its size; blocks of remote files give way to it
                        room = cache.make_room(len(content)) + written - len(content)
                    if written > room:
                        raise BadInputError(
                            f"{cache.folder} would become larger than data.reader.cache_gib ({cache.limit >> 30} GiB)",
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
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise BadInputError(
                f"the disk of {cache.folder} is full after {written} bytes of the unpacked file",
                where=str(file),
                hint="free space there, or name a folder on a larger disk with data.reader.cache",
            ) from error


def is_packed(file: Path) -> bool:
    """Whether a file is compressed, by its name."""
    return file.suffix.lower() == PACKED_SUFFIX


def _stamp(packed: FileVersion, target: Path) -> str:
    return f"{packed[0]} {packed[1]} {target.stat().st_size}"
