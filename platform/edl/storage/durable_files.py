"""Writing files that survive a crash (write, fsync, rename, fsync of the folder), and translating OSErrors."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, cast
from uuid import uuid4

from edl.api.errors import BadInputError, RefusedError, StorageError
from edl.core.strict_json import decode_json_file

_ERRNO_HINTS = {
    errno.ENOSPC: "The disk is full: free some space, or set storage.path to a larger volume.",
    errno.EDQUOT: "The quota is used up: free some space, or set storage.path to another volume.",
    errno.EFBIG: "The file may not grow further: raise the file size limit (ulimit -f) of this process.",
    errno.EROFS: "The file system is read-only: set storage.path to a volume that can be written.",
    errno.EACCES: "Permission is missing: check the owner of the folder, and security.run_as in the spec.",
    errno.EPERM: "Permission is missing: check the owner of the folder, and security.run_as in the spec.",
}
_LEFT_SECONDS = 24 * 3600
_OTHER_HINT = "Check the disk and its mount. What was stored before is still valid."


def to_storage_error(error: OSError, path: Path, activity: str) -> StorageError:
    """Translate an error that occurred during an ``activity`` such as "write a journal group" on ``path``."""
    return StorageError(
        f"cannot {activity}: {error.strerror or error}",
        where=str(path),
        hint=_ERRNO_HINTS.get(error.errno or 0, _OTHER_HINT),
    )


@contextlib.contextmanager
def translate_os_errors(path: Path, activity: str) -> Iterator[None]:
    """Raise every OSError of the block as a StorageError with ``path``."""
    try:
        yield
    except OSError as error:
        raise to_storage_error(error, path, activity) from error


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of ``data``, a view of single bytes. One call of ``os.write`` may write only a part of it.

    Raises:
        OSError: as the system reports it; a part may have been written.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def set_file_mode(target: Path | int, mode: int) -> None:
    """Set the mode of a path or an open file, if the volume supports modes and this user may set them.

    Some network volumes have one mode for all files, which is chosen when they are mounted, and report an error.
    """
    with contextlib.suppress(PermissionError, NotImplementedError):
        try:
            os.chmod(target, mode)
        except OSError as error:
            # what file systems without modes answer
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOSYS):
                raise


def sync_directory(directory: Path) -> None:
    """Make the names in ``directory`` durable: files that were created, renamed or removed."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the content of ``path`` durable, even if another process wrote it."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_durably(temporary: Path, final: Path) -> None:
    """Rename a file that is written and synced. Whoever sees the final name sees the complete file."""
    os.rename(temporary, final)
    sync_directory(final.parent)


def temporary_path(path: Path) -> Path:
    """A hidden name in the same folder, for a file that is being written. No two are equal.

    Process ids would not tell writers apart: those of two pods on one volume may be equal. The same function as
    ``edl.data.temporary_names.temporary_path``, because data and storage import nothing of each other.
    """
    return path.with_name(f".{path.name}.{uuid4().hex[:12]}.tmp")


def remove_left_temporaries(path: Path) -> None:
    """Remove the temporary files for ``path`` of processes that were killed: those without a change for a day."""
    name = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{12}}\.tmp")
    with contextlib.suppress(OSError):  # they take space, nothing else
        for left in path.parent.iterdir():
            if name.fullmatch(left.name) and time.time() - left.stat().st_mtime > _LEFT_SECONDS:
                left.unlink(missing_ok=True)


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Write the file at the path that is yielded: at the end of the block it is made durable, and becomes ``path``.

    If the block fails, the unfinished file is removed, and an earlier file at ``path`` is unchanged.
    """
    temporary = temporary_path(path)
    with remove_on_error(temporary):
        yield temporary
        sync_file(temporary)
        rename_durably(temporary, path)


@contextlib.contextmanager
def remove_on_error(path: Path) -> Iterator[None]:
    """Remove the unfinished file at ``path`` if the block fails, so that its space is free again."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # the error of the block is the one to report
            path.unlink(missing_ok=True)
        raise


# --------------------------------------------------------------------------------------------------
# JSON files: replaced as a whole, appended line by line, and followed while another process writes.


def write_json(path: Path, value: Any, *, fsync: bool = False, mode: int | None = None) -> None:
    """Replace the file at ``path`` by ``value`` as indented JSON. Readers see the old file or the new one.

    Args:
        path: the file; its folder must exist.
        value: any JSON value.
        fsync: make the file durable; needed if something else relies on it after a crash of the machine.
        mode: mode of the file, regardless of the umask; None: 0644 and the umask. At no moment is the file readable
            for more users than that.

    Raises:
        StorageError: the file cannot be written; the old one is unchanged.
    """
    data = json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"
    temporary = temporary_path(path)
    with translate_os_errors(path, "write"), remove_on_error(temporary):
        # created with its final mode, so that nobody can open the file before chmod
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644 if mode is None else mode)
        try:
            if mode is not None:
                set_file_mode(descriptor, mode)
            write_all(descriptor, data)
            if fsync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        # without fsync the rename is still atomic for readers, but a crash of the machine may lose
        # the content
        os.rename(temporary, path)
        if fsync:
            sync_directory(path.parent)


def read_json(path: Path) -> Any:
    """Read the JSON value in ``path``.

    Raises:
        StorageError: the file does not exist, cannot be read or is not JSON.
    """
    with translate_os_errors(path, "read"):
        data = path.read_bytes()
    try:
        return decode_json_file(data)
    except ValueError as error:
        raise StorageError(f"is not JSON: {error}", where=str(path)) from error


def append_json_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append ``value`` as one line. Only one process may write the file. If the disk is full, nothing is appended.

    Raises:
        StorageError: the line cannot be written.
    """
    line = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    with translate_os_errors(path, "append"):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            length = os.fstat(descriptor).st_size
            with _truncate_on_error(descriptor, length):
                write_all(descriptor, line)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def _truncate_on_error(descriptor: int, length: int) -> Iterator[None]:
    try:
        yield
    except OSError:
        os.ftruncate(descriptor, length)
        raise


class JsonLinesTail:
    """Follows a file of JSON lines that another process appends to."""

    def __init__(self, path: Path) -> None:
        """Start at the beginning of ``path``, which need not exist yet."""
        self.path = path
        self.damaged_lines = 0
        """Number of complete lines that were not JSON objects, and were skipped."""
        self._offset = 0

    def poll(self) -> list[dict[str, Any]]:
        """The values of the lines that were completed since the last call. A partial line is left for a later call.

        Raises:
            StorageError: the file exists and cannot be read.
        """
        with translate_os_errors(self.path, "read"):
            try:
                with self.path.open("rb") as file:
                    file.seek(self._offset)
                    data = file.read()
            except FileNotFoundError:
                return []
        # the writer may be in the middle of a line
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        values = [_parse_object(line) for line in complete.splitlines()]
        self.damaged_lines += values.count(None)
        return [value for value in values if value is not None]


def _parse_object(line: bytes) -> dict[str, Any] | None:
    try:
        value = decode_json_file(line)
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


# --------------------------------------------------------------------------------------------------
# Lock files that contain the name of their holder, for the message to a second process.


_HOLDER_LIMIT = 4096  # bytes that a message shows at most; a lock file has one line


class LockHeldError(RefusedError, BadInputError):
    """Another process holds the lock; the message has its name (exit code 2)."""

    exit_code = 2


class FileLock:
    """An exclusive ``flock``, held until ``close`` or until the process ends in any way.

    The file is not removed when the lock is released: a second file of the same name would be a second lock.
    """

    def __init__(self, path: Path, holder: str, *, protected_thing: str, hint: str) -> None:
        """Take the lock and write ``holder`` into the file.

        Args:
            path: the lock file; created if it does not exist.
            holder: name of the new holder, one line of text.
            protected_thing: what the lock protects, for the message ("the journal").
            hint: what the user can do if another process holds it.

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
                raise LockHeldError(f"{protected_thing} is in use by {other}", where=str(path), hint=hint) from None
            except OSError:
                os.close(self._descriptor)
                raise
        self.write_holder(holder)

    def write_holder(self, holder: str) -> None:
        """Replace the name of the holder in the file."""
        with translate_os_errors(self.path, "write the holder's name"):
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            write_all(self._descriptor, holder.encode() + b"\n")

    def close(self) -> None:
        """Release the lock. Closing twice does nothing."""
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError):  # the name is only for messages; closing the descriptor releases the lock
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def is_lock_held(path: Path) -> bool:
    """Whether a process holds a ``FileLock``.

    It takes the lock for a moment, shared with other readers: a process that starts in that moment finds it
    held. Ask only of a file that names a holder.

    Raises:
        OSError: there is no such file, or it cannot be read or locked.
    """
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _read_holder(descriptor: int) -> str:
    text = os.pread(descriptor, _HOLDER_LIMIT, 0).decode(errors="replace").strip()
    return text or "a process that has not written its name yet"
