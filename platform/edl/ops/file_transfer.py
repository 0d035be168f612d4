"""The near end of a file transfer: asks the process of ``edl.pod.files`` over a pipe, and proves what arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edl.api.errors import BadInputError, EdlError, RetryableError, StorageError
from edl.storage.copy_protocol import (
    BUSY_FRAME,
    CHUNK_BYTES,
    DATA_FRAME,
    ERROR_FRAME,
    REPLY_FRAME,
    REQUEST_FRAME,
    CopyFrame,
    ProcessPipe,
    encode_frame,
    encode_json_frame,
    read_frame,
)
from edl.storage.durable_files import translate_os_errors
from edl.storage.partial_upload import PartialUpload, file_sha256

BytesMoved = Callable[[int], None]
"""Called with the number of bytes that need not travel any more."""


@dataclass(frozen=True, slots=True)
class VolumeEntry:
    """A file or directory of a volume.

    Attributes:
        path: relative to what was listed.
        kind: ``file``, ``directory`` or ``other``: links, sockets, devices.
        size: in bytes.
        modified: unix seconds.
    """

    path: str
    kind: str
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class PathStat:
    """What is at a path: ``file``, ``directory``, ``other`` or ``missing``; a checksum only if that was asked for."""

    kind: str
    size: int
    sha256: str = ""


class VolumeFiles:
    """The files of a volume, through a pipe.

    Every method raises BadInputError or StorageError for what the other end refuses or cannot do, and RetryableError
    when the connection broke: then what has arrived is kept, and a new connection goes on from there.
    """

    def __init__(self, pipe: ProcessPipe) -> None:
        self._pipe = pipe

    def entries(self, path: str, *, recursive: bool) -> Iterator[VolumeEntry]:
        """What is below a directory, or the file itself."""
        self._ask("list", path, recursive=recursive)
        more = True
        while more:
            answer = self._answer()
            more = bool(answer["more"])
            for each in answer["entries"]:
                yield VolumeEntry(each["path"], each["kind"], each["size"], each["modified"])

    def read(self, path: str, offset: int, size: int) -> Iterator[bytes]:
        """The bytes of a file from ``offset`` up to ``size``."""
        self._ask("send", path, offset=offset, size=size)
        while offset < size:
            data = self._receive_frame(DATA_FRAME).payload
            offset += len(data)
            yield data

    def stat(self, path: str, *, with_digest: bool = False) -> PathStat:
        """What is at a path; of a file, with its SHA-256 if wanted."""
        self._ask("stat", path, digest=with_digest)
        answer = self._answer()
        return PathStat(answer["kind"], answer["size"], answer.get("sha256", ""))

    def make(self, path: str) -> None:
        """Make a directory and those above it."""
        self._ask("make", path)
        self._answer()

    def upload(self, source: Path, path: str, moved: BytesMoved) -> int:
        """Write a file of this machine to the volume, unless it is there; returns the bytes that did travel."""
        with translate_os_errors(source, "read"):
            size = source.stat().st_size
        sha256 = file_sha256(source)
        there = self.stat(path)
        if there.kind == "directory":
            raise BadInputError("there is a directory of this name", where=path)
        if there.kind == "file" and there.size == size and self.stat(path, with_digest=True).sha256 == sha256:
            moved(size)
            return 0
        self._ask("receive", path, size=size, sha256=sha256)
        arrived = int(self._answer()["arrived"])
        moved(arrived)
        self._send(source, arrived, size, moved)
        self._answer()
        return size - arrived

    def download(self, path: str, target: Path, moved: BytesMoved) -> int:
        """Write a file of the volume to this machine, unless it is here; returns the bytes that did travel."""
        there = self.stat(path, with_digest=True)
        if there.kind != "file":
            raise BadInputError(f"this is no file ({there.kind})", where=path)
        if target.is_file() and target.stat().st_size == there.size and file_sha256(target) == there.sha256:
            moved(there.size)
            return 0
        with PartialUpload(target, there.size, there.sha256) as incoming:
            before = incoming.arrived
            moved(before)
            self._ask("send", path, offset=incoming.arrived, size=there.size)
            while incoming.missing:
                data = self._receive_frame(DATA_FRAME).payload
                incoming.write(data)
                moved(len(data))
            incoming.finish()
        return there.size - before

    def _send(self, source: Path, offset: int, size: int, moved: BytesMoved) -> None:
        with translate_os_errors(source, "read"), source.open("rb") as file:
            file.seek(offset)
            while offset < size:
                data = file.read(min(CHUNK_BYTES, size - offset))
                if not data:
                    raise StorageError("the file has become shorter", where=str(source), hint="Copy it once more.")
                self._pipe.write(encode_frame(DATA_FRAME, data))
                moved(len(data))
                offset += len(data)
                if self._pipe.waiting():  # it speaks only at the end, unless something is wrong
                    self._check_interruption()

    def _check_interruption(self) -> None:
        """Whatever it says in the middle of a file, other than that it is still there, is the end of that."""
        heard = self._next()
        if heard.kind == ERROR_FRAME:
            raise _error_from_frame(heard)

    def _ask(self, op: str, path: str, **more: Any) -> None:
        self._pipe.write(encode_json_frame(REQUEST_FRAME, {"op": op, "path": path, **more}))

    def _answer(self) -> dict[str, Any]:
        return self._receive_frame(REPLY_FRAME).json()

    def _receive_frame(self, kind: bytes) -> CopyFrame:
        while (heard := self._next()).kind == BUSY_FRAME:
            continue
        if heard.kind == ERROR_FRAME:
            raise _error_from_frame(heard)
        if heard.kind != kind:
            raise StorageError(f"the other end answers with {heard.kind!r}, which was not asked for")
        return heard

    def _next(self) -> CopyFrame:
        heard = read_frame(self._pipe.read)
        if heard is None:
            said = self._pipe.last_words
            raise RetryableError(f"The other end has ended{f': {said}' if said else ''}")
        return heard


def _error_from_frame(heard: CopyFrame) -> EdlError:
    said = heard.json()
    kind = BadInputError if said.get("input") else StorageError
    return kind(str(said.get("message")), where=said.get("where"), hint=said.get("hint"))
