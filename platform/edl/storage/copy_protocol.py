"""The protocol for copying files through a pipe to another process: frames that begin with their length.

A pipe through the API server cannot be closed in one direction, so the end of a transfer is always a frame and never
the end of the stream.

======== ===== ======================================================================================
bytes    type  field (big endian)
======== ===== ======================================================================================
0        c     kind: ``Q`` request, ``A`` reply, ``D`` data, ``X`` error, ``K`` busy
1..5     u32   length of the payload, at most 1 MiB: JSON, or bytes of a file for ``D``, or nothing for ``K``
======== ===== ======================================================================================
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from edl.api.errors import RefusedError, StorageError
from edl.core.strict_json import decode_json_file
from edl.storage.durable_files import remove_on_error, rename_durably, translate_os_errors

REQUEST_FRAME, REPLY_FRAME, DATA_FRAME, ERROR_FRAME, BUSY_FRAME = b"Q", b"A", b"D", b"X", b"K"
MAX_PAYLOAD_BYTES = 1 << 20
"""Maximum bytes of a payload. Checked before anything is allocated."""
CHUNK_BYTES = 256 << 10
"""Bytes of a file per frame: small enough for smooth progress, large enough that the overhead of frames is small."""
BUSY_SECONDS = 5.0
"""Maximum time between two messages: the other end sends a busy frame while it computes for longer."""

_FRAME_HEAD = struct.Struct(">cI")
_FRAME_KINDS = (REQUEST_FRAME, REPLY_FRAME, DATA_FRAME, ERROR_FRAME, BUSY_FRAME)


class CopyFrame(NamedTuple):
    """One message."""

    kind: bytes
    payload: bytes

    def json_payload(self) -> dict[str, Any]:
        """The payload as a JSON object; raises RefusedError if it is not one."""
        try:
            value = decode_json_file(self.payload)
        except ValueError as error:
            raise RefusedError("The other end sent a message that is not JSON") from error
        if not isinstance(value, dict):
            raise RefusedError("The other end sent a message that is not a JSON object")
        return value


class ProcessPipe(Protocol):
    """Bytes to and from another process."""

    @property
    def stderr_tail(self) -> str:
        """The end of the process's standard error output."""
        ...

    def read(self, size: int) -> bytes:
        """Exactly ``size`` bytes; fewer only if the other end has exited."""
        ...

    def write(self, data: bytes) -> None:
        """Send all of ``data``."""
        ...

    def has_pending_input(self) -> bool:
        """Whether the other end has sent something that was not read yet, or has exited."""
        ...


def encode_frame(kind: bytes, payload: bytes = b"") -> bytes:
    """A frame as bytes; ``payload`` has at most MAX_PAYLOAD_BYTES."""
    assert len(payload) <= MAX_PAYLOAD_BYTES
    return _FRAME_HEAD.pack(kind, len(payload)) + payload


def encode_json_frame(kind: bytes, value: dict[str, Any]) -> bytes:
    """A frame of JSON. File names that are not UTF-8 survive, because json.dumps escapes their surrogates."""
    return encode_frame(kind, json.dumps(value).encode())


def read_frame(read: Callable[[int], bytes]) -> CopyFrame | None:
    """The next frame; None if the other end has exited between two frames.

    Raises:
        RefusedError: the bytes are not a frame, or the frame is truncated.
    """
    head = read(_FRAME_HEAD.size)
    if not head:
        return None
    if len(head) < _FRAME_HEAD.size:
        raise RefusedError("The other end exited in the middle of a message")
    kind, size = _FRAME_HEAD.unpack(head)
    # the length is checked before anything is read or allocated
    if kind not in _FRAME_KINDS or size > MAX_PAYLOAD_BYTES:
        raise RefusedError(f"The other end sent something that is not a message: {head!r}")
    payload = read(size) if size else b""
    if len(payload) < size:
        raise RefusedError("The other end exited in the middle of a message")
    return CopyFrame(kind, payload)


# --------------------------------------------------------------------------------------------------
# A file that arrives in parts, perhaps over several connections. It gets its name when its checksum
# was verified.
#
# Received bytes are in ``.<name>.<16 hex digits of its SHA-256>.part`` beside the final name. The
# digits ensure that a transfer continues only what an earlier transfer of the same content has
# left.


_BLOCK_BYTES = 1 << 20


def ignore_progress() -> None:
    """The default of ``tick`` parameters: do nothing."""


def file_sha256(path: Path, tick: Callable[[], None] = ignore_progress, *, limit: int | None = None) -> str:
    """SHA-256 of a file, or of its first ``limit`` bytes, in hex; ``tick`` is called after each MiB.

    Raises:
        StorageError: the file cannot be read.
    """
    return _hash_file(path, tick, limit).hexdigest()


class PartialUpload:
    """A file that is being received; a context manager that keeps the received bytes for a later attempt.

    Args:
        final: the file's final path; its folders are created.
        size: size of the whole file in bytes.
        sha256: SHA-256 of the whole file, in hex.
        tick: called repeatedly while bytes of an earlier attempt are read again.

    Raises:
        StorageError: the file cannot be written.
    """

    def __init__(self, final: Path, size: int, sha256: str, tick: Callable[[], None] = ignore_progress) -> None:
        self._final_path, self._size, self._sha256 = final, size, sha256
        self._part_path = partial_upload_path(final, sha256)
        with translate_os_errors(final, "write"):
            final.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._part_path, os.O_CREAT | os.O_RDWR, 0o666)
            arrived = os.fstat(self._descriptor).st_size
            if arrived > size:  # not the beginning of this file
                os.ftruncate(self._descriptor, 0)
                arrived = 0
            os.lseek(self._descriptor, arrived, os.SEEK_SET)
        self._received_bytes, self._hash = arrived, _hash_file(self._part_path, tick, arrived)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def received_bytes(self) -> int:
        """Number of bytes that were received; the next ones must follow them."""
        return self._received_bytes

    @property
    def missing_bytes(self) -> int:
        """Number of bytes that are still to be received."""
        return self._size - self._received_bytes

    def write(self, data: bytes) -> None:
        """Append bytes; raises StorageError if they cannot be written, or exceed the announced size."""
        if len(data) > self.missing_bytes:
            raise StorageError("more bytes arrived than were announced", where=str(self._final_path))
        with translate_os_errors(self._final_path, "write"):
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
        self._hash.update(data)
        self._received_bytes += len(data)

    def finish(self) -> None:
        """Verify the checksum and rename the file to its final path, durably.

        Raises:
            StorageError: bytes are missing, or the checksum is wrong. With a wrong checksum, the received bytes are
                removed.
        """
        if self.missing_bytes:
            raise StorageError(f"{self.missing_bytes:,} bytes are missing", where=str(self._final_path))
        # a wrong part must go: the next attempt would continue it
        with remove_on_error(self._part_path):
            if self._hash.hexdigest() != self._sha256:
                raise StorageError(
                    "the checksum is wrong: the file changed while it was read, or on the way",
                    where=str(self._final_path),
                    hint="Copy the file again; nothing was kept.",
                )
        with translate_os_errors(self._final_path, "write"):
            os.fsync(self._descriptor)
            rename_durably(self._part_path, self._final_path)


def partial_upload_path(final: Path, sha256: str) -> Path:
    """The path of the received bytes of a file until it is complete."""
    return final.with_name(f".{final.name}.{sha256[:16]}.part")


def _hash_file(path: Path, tick: Callable[[], None], limit: int | None) -> hashlib._Hash:
    digest, left = hashlib.sha256(), limit
    with translate_os_errors(path, "read"), path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES if left is None else min(_BLOCK_BYTES, left)):
            digest.update(block)
            left = None if left is None else left - len(block)
            tick()
    return digest
