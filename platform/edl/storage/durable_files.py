"""Bytes that survive a crash: write, fsync, rename, fsync the folder; and the translation of what can go wrong."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from edl.api.errors import StorageError

_ERRNO_HINTS = {
    errno.ENOSPC: "The disk is full: free some space, or set storage.path to a larger volume.",
    errno.EDQUOT: "The quota is used up: free some space, or set storage.path to another volume.",
    errno.EFBIG: "The file may not grow further: raise the file size limit (ulimit -f) of this process.",
    errno.EROFS: "The file system is read-only: set storage.path to a volume that can be written.",
    errno.EACCES: "Permission is missing: check the owner of the folder, and security.run_as in the spec.",
    errno.EPERM: "Permission is missing: check the owner of the folder, and security.run_as in the spec.",
}
_OTHER_HINT = "Look at the disk and its mount; what was stored before is still valid."


def to_storage_error(error: OSError, path: Path, doing: str) -> StorageError:
    """Translate ``error``, met while ``doing`` something ("write a journal group") to ``path``."""
    return StorageError(
        f"cannot {doing}: {error.strerror or error}",
        where=str(path),
        hint=_ERRNO_HINTS.get(error.errno or 0, _OTHER_HINT),
    )


@contextlib.contextmanager
def translate_os_errors(path: Path, doing: str) -> Iterator[None]:
    """Raise every OSError of the block as a StorageError that names ``path``."""
    try:
        yield
    except OSError as error:
        raise to_storage_error(error, path, doing) from error


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write every byte of ``data`` (a view of single bytes): one ``os.write`` may take only a part.

    Raises:
        OSError: as the system reports it; a part may have been written.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def set_file_mode(target: Path | int, mode: int) -> None:
    """Set the mode of a path or an open file, as far as the volume has modes and this user may set them.

    Network volumes may have one mode for all files, which says who mounts them, and answer with an error.
    """
    with contextlib.suppress(PermissionError, NotImplementedError):
        try:
            os.chmod(target, mode)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOSYS):
                raise


def sync_directory(directory: Path) -> None:
    """Make the names in ``directory`` durable: files created, renamed and removed."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the content of ``path`` durable, whoever wrote it."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_durably(temporary: Path, final: Path) -> None:
    """Give a file that is written and synced its name: whoever sees the name sees the whole file."""
    os.rename(temporary, final)
    sync_directory(final.parent)


@contextlib.contextmanager
def remove_on_error(path: Path) -> Iterator[None]:
    """Remove the half-made file at ``path`` when the block fails, so that a full disk gets its space back."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # the error on its way out is the one to report
            path.unlink(missing_ok=True)
        raise
