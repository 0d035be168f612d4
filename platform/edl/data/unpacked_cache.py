"""Unpacks compressed files once into a folder of bounded size, because a compressed file has no random access."""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from edl.api.errors import BadInputError
from edl.data.cache_folder import CacheFolder
from edl.data.data_files import PACKED_SUFFIXES, FileVersion, file_version, read_error
from edl.data.remote_files import RemotePath, is_remote
from edl.data.temporary_names import temporary_path

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
        target = self.cache.folder / sha256(place.encode()).hexdigest()[:16] / file.stem
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
        room, written = cache.evict_blocks(0), 0
        try:
            # Blocks would need the lock, and nobody reads them again.
            readable = file.without_cache() if isinstance(file, RemotePath) else file
            with readable.open("rb") as packed, open_packed(file, packed) as source, target.open("wb") as copy:
                while content := source.read(_COPY_BYTES):
                    written += len(content)
                    if written > room:
                        copy.flush()  # counted by its size; blocks of remote files give way to it
                        room = cache.evict_blocks(len(content)) + written - len(content)
                    if written > room:
                        gib = cache.limit / (1 << 30)
                        raise BadInputError(
                            f"{cache.folder} would become larger than data.reader.cache_gib ({gib:.3g})",
                            where=str(file),
                            hint="allow more, or remove files of other jobs from the folder when none of them runs",
                        )
                    copy.write(content)
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            raise _damage(file, written, error) from error
        except OSError as error:
            if error.errno is None:  # of the content; gzip.BadGzipFile is one
                raise _damage(file, written, error) from error
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise BadInputError(
                f"the disk of {cache.folder} is full after {written} bytes of the unpacked file",
                where=str(file),
                hint="free space there, or name a folder on a larger disk with data.reader.cache",
            ) from error


def is_packed(file: Path) -> bool:
    """Whether a file is compressed, by its name."""
    return file.suffix.lower() in PACKED_SUFFIXES


def name_inside(name: str) -> str:
    """The name of what a file has in it: without the end that says how it is compressed."""
    return name.rpartition(".")[0] if is_packed(Path(name)) else name


def open_packed(file: Path, packed: BinaryIO) -> Any:
    """What a compressed file has in it, as a stream of bytes; ``packed`` is the content of the file."""
    suffix = file.suffix.lower()
    if suffix == ".zst":
        try:
            import pyarrow
        except ModuleNotFoundError as error:
            raise BadInputError(
                "Zstandard needs the package pyarrow, which is not installed",
                where=str(file),
                hint="pip install pyarrow",
            ) from error
        return pyarrow.CompressedInputStream(packed, "zstd")
    openers: Mapping[str, Callable[[BinaryIO], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    return openers[suffix](packed)


def _damage(file: Path, written: int, error: Exception) -> BadInputError:
    return BadInputError(
        f"the file cannot be unpacked after {written} bytes of its content: {error}",
        where=str(file),
        hint="it is truncated or was overwritten; write it again",
    )


def _stamp(packed: FileVersion, target: Path) -> str:
    return f"{packed[0]} {packed[1]} {target.stat().st_size}"
