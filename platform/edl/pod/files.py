"""Lists, receives and sends files of a volume for ``edl data``. It is started in a temporary pod through pods/exec.

``python -m edl.pod.files ROOT`` answers requests on standard input, one after the other, until it ends
(edl.storage.copy_protocol has the frames). Paths are relative to ROOT; nothing outside of it is accessed. Requests and
their answers:

``list`` path, recursive
    ``{"entries": [{path, kind, size, modified}], "more": bool}``, repeated while ``more`` is true.
``stat`` path, digest
    ``{"kind": file | directory | other | missing, "size", "sha256"}``.
``make`` path
    Creates a directory: ``{}``.
``remove`` path
    Removes a directory and all below it: ``{}``.
``receive`` path, size, sha256
    ``{"arrived": bytes}``, what is left from an earlier attempt; then data follows up to ``size``; then ``{}``, when
    the checksum was verified and the file is durable under its name.
``send`` path, offset, size
    Data up to ``size``.

An error has a frame of its own. After an error during ``receive`` this process exits, because data may be on the way.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from edl.api.errors import BadInputError, EdlError, StorageError
from edl.storage.copy_protocol import (
    BUSY_FRAME,
    BUSY_SECONDS,
    CHUNK_BYTES,
    DATA_FRAME,
    ERROR_FRAME,
    REPLY_FRAME,
    CopyFrame,
    PartialUpload,
    encode_frame,
    encode_json_frame,
    file_sha256,
    read_frame,
)
from edl.storage.durable_files import translate_os_errors

ENTRIES_PER_ANSWER = 1000
"""Entries in one answer. Even with long names, they stay far below the largest frame."""


class FileServer:
    """Answers requests about files below ``root``."""

    def __init__(self, root: Path, source: BinaryIO, sink: BinaryIO) -> None:
        self._root, self._source, self._sink = root.resolve(), source, sink
        self._last_write = time.monotonic()

    def serve(self) -> None:
        """Answer requests until the other end exits."""
        while (request := read_frame(self._source.read)) is not None:
            value = request.json_payload()
            try:
                self._handle_request(value)
            except EdlError as error:
                self._write_frame(encode_json_frame(ERROR_FRAME, self._error_payload(error)))
                # data frames of the failed file may follow, and would be read as requests
                if value.get("op") == "receive":
                    return

    def _error_payload(self, error: EdlError) -> dict[str, Any]:
        """The error in the terms of the user: with paths of the volume, and the user that this process runs as."""
        where = None if error.where is None else error.where.removeprefix(str(self._root)) or "/"
        payload = {
            "message": error.message,
            "where": where,
            "hint": error.hint,
            "input": isinstance(error, BadInputError),
        }
        if isinstance(error.__cause__, PermissionError):
            user_text = f"user {os.getuid()}, group {os.getgid()}"
            payload |= {"hint": f"This was tried as {user_text}; --uid and --gid select others.", "input": True}
        return payload

    def _handle_request(self, value: dict[str, Any]) -> None:
        path = self._resolve_path(str(value.get("path", "")))
        match value.get("op"):
            case "list":
                self._send_listing(path, recursive=bool(value.get("recursive")))
            case "stat":
                self._write_frame(
                    encode_json_frame(REPLY_FRAME, self._stat_path(path, with_digest=bool(value.get("digest"))))
                )
            case "make":
                with translate_os_errors(path, "make the directory"):
                    path.mkdir(parents=True, exist_ok=True)
                self._write_frame(encode_json_frame(REPLY_FRAME, {}))
            case "remove":
                self._remove_tree(path)
            case "receive":
                self._receive_file(path, int(value["size"]), str(value["sha256"]))
            case "send":
                self._send_file(path, int(value["offset"]), int(value["size"]))
            case other:
                raise BadInputError(f"unknown request {other!r}", hint="The image has another version of EDL.")

    def _resolve_path(self, text: str) -> Path:
        # resolve() follows links, so that a link cannot lead out of the volume either
        path = (self._root / text.lstrip("/")).resolve()
        if not path.is_relative_to(self._root):
            raise BadInputError("the path leads out of the volume", where=text)
        return path

    def _send_listing(self, path: Path, *, recursive: bool) -> None:
        entries: list[dict[str, Any]] = []
        with translate_os_errors(path, "list"):
            for entry in _walk_entries(path, recursive=recursive):
                entries.append(entry)
                if len(entries) == ENTRIES_PER_ANSWER:
                    self._write_frame(encode_json_frame(REPLY_FRAME, {"entries": entries, "more": True}))
                    entries = []
        self._write_frame(encode_json_frame(REPLY_FRAME, {"entries": entries, "more": False}))

    def _stat_path(self, path: Path, *, with_digest: bool) -> dict[str, Any]:
        with translate_os_errors(path, "look at"):
            try:
                file_stat = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return {"kind": "missing", "size": 0}
        answer: dict[str, Any] = {"kind": _file_kind(file_stat.st_mode), "size": file_stat.st_size}
        if with_digest and answer["kind"] == "file":
            answer["sha256"] = file_sha256(path, self._send_keepalive)
        return answer

    def _remove_tree(self, path: Path) -> None:
        if path == self._root:
            raise BadInputError("this is the whole volume, which is not removed", where=str(path))
        with translate_os_errors(path, "remove"):
            if path.exists():
                # Gone under its name at once: nobody reads half of it.
                gone = path.rename(path.with_name(f".{uuid4().hex}.removed"))
                shutil.rmtree(gone)
        self._write_frame(encode_json_frame(REPLY_FRAME, {}))

    def _receive_file(self, path: Path, size: int, sha256: str) -> None:
        with PartialUpload(path, size, sha256, self._send_keepalive) as partial:
            self._write_frame(encode_json_frame(REPLY_FRAME, {"arrived": partial.received_bytes}))
            while partial.missing_bytes:
                partial.write(_data_payload(read_frame(self._source.read)))
            partial.finish()
        self._write_frame(encode_json_frame(REPLY_FRAME, {}))

    def _send_file(self, path: Path, offset: int, size: int) -> None:
        with translate_os_errors(path, "read"), path.open("rb") as file:
            file.seek(offset)
            while offset < size:
                block = file.read(min(CHUNK_BYTES, size - offset))
                if not block:
                    raise StorageError("the file was truncated during the copy", where=str(path), hint="Copy it again.")
                self._write_frame(encode_frame(DATA_FRAME, block))
                offset += len(block)

    def _send_keepalive(self) -> None:
        if time.monotonic() - self._last_write >= BUSY_SECONDS:
            self._write_frame(encode_frame(BUSY_FRAME))

    def _write_frame(self, data: bytes) -> None:
        self._sink.write(data)
        self._sink.flush()
        self._last_write = time.monotonic()


def _data_payload(arrived: CopyFrame | None) -> bytes:
    if arrived is None or arrived.kind != DATA_FRAME:
        raise StorageError("the connection was lost; received bytes are kept")
    return arrived.payload


def _walk_entries(path: Path, *, recursive: bool) -> Iterator[dict[str, Any]]:
    """The entries below a directory, or the file itself, in the order of names. Links are not followed."""
    if not path.is_dir():
        yield _entry_json(path, path.name)
        return
    for name in sorted(os.listdir(path)):
        # lstat(): a link is reported as "other", so nothing outside of the volume is listed through it
        entry = _entry_json(path / name, name)
        yield entry
        if recursive and entry["kind"] == "directory":
            for below in _walk_entries(path / name, recursive=True):
                yield {**below, "path": f"{name}/{below['path']}"}


def _entry_json(path: Path, name: str) -> dict[str, Any]:
    entry = path.lstat()
    return {"path": name, "kind": _file_kind(entry.st_mode), "size": entry.st_size, "modified": entry.st_mtime}


_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"))


def _file_kind(mode: int) -> str:
    return next((name for is_one, name in _KINDS if is_one(mode)), "other")


def main() -> None:
    """Serve the directory on the command line."""
    try:
        FileServer(Path(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer).serve()
    except EdlError as error:  # invalid input, or the other end is gone: nobody can be answered, so it is logged
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
