"""JSON in files: written whole or not at all, appended line by line, and followed while another process writes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from edl.api.errors import StorageError
from edl.storage.durable_files import remove_on_error, set_file_mode, sync_directory, translate_os_errors, write_all


def write_json(path: Path, value: Any, *, fsync: bool = False, mode: int | None = None) -> None:
    """Replace ``path`` by ``value`` as indented JSON: a reader sees the old file or the new one, never a part.

    Args:
        path: the file; its folder exists.
        value: anything JSON can hold.
        fsync: also survive the loss of the machine, for what something else relies on.
        mode: of the file, whatever the umask; None: as the umask leaves 0644. No more can read it, not even a moment.

    Raises:
        StorageError: it cannot be written; the old file stays as it was.
    """
    data = json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with translate_os_errors(path, "write"), remove_on_error(temporary):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644 if mode is None else mode)
        try:
            if mode is not None:
                set_file_mode(descriptor, mode)
            write_all(descriptor, data)
            if fsync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
        if fsync:
            sync_directory(path.parent)


def read_json(path: Path) -> Any:
    """The value in ``path``.

    Raises:
        StorageError: it is missing, cannot be read or is not JSON.
    """
    with translate_os_errors(path, "read"):
        data = path.read_bytes()
    try:
        return json.loads(data)
    except ValueError as error:
        raise StorageError(f"is not JSON: {error}", where=str(path)) from error


def append_json_line(path: Path, value: Mapping[str, Any]) -> None:
    """Add ``value`` as one line. One process writes a file; a line that does not fit on the disk leaves nothing behind.

    Raises:
        StorageError: it cannot be written.
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
        """Begin at the start of ``path``, which need not exist yet."""
        self.path = path
        self.damaged = 0
        """Complete lines that were no JSON object, and were left out."""
        self._offset = 0

    def poll(self) -> list[dict[str, Any]]:
        """The values of the lines completed since the last call; a line still being written waits for the next.

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
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        values = [_parse_object(line) for line in complete.splitlines()]
        self.damaged += values.count(None)
        return [value for value in values if value is not None]


def follow_json_lines(path: Path) -> JsonLinesTail:
    """Follow the JSON lines of ``path`` from its start."""
    return JsonLinesTail(path)


def _parse_object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
