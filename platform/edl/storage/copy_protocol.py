"""What two ends of a pipe say to each other when files travel: frames with their length in front.

A pipe through the API server cannot be closed in one direction, so nothing here means anything by ending.

======== ===== ======================================================================================
bytes    type  field (big endian)
======== ===== ======================================================================================
0        c     kind: ``Q`` request, ``A`` answer, ``D`` data, ``X`` error, ``K`` still at it
1..5     u32   length of the payload, at most 1 MiB: JSON, or bytes of a file for ``D``, or nothing for ``K``
======== ===== ======================================================================================
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from edl.api.errors import RefusedError

REQUEST_FRAME, REPLY_FRAME, DATA_FRAME, ERROR_FRAME, BUSY_FRAME = b"Q", b"A", b"D", b"X", b"K"
MAX_PAYLOAD_BYTES = 1 << 20
"""Bytes of a payload."""
CHUNK_BYTES = 256 << 10
"""Bytes of a file in one frame: small enough that progress moves, large enough that frames cost nothing."""
BUSY_SECONDS = 5.0
"""The other end says at least this often that it is still at it."""

_FRAME_HEAD = struct.Struct(">cI")
_FRAME_KINDS = (REQUEST_FRAME, REPLY_FRAME, DATA_FRAME, ERROR_FRAME, BUSY_FRAME)


class CopyFrame(NamedTuple):
    """One message."""

    kind: bytes
    payload: bytes

    def json(self) -> dict[str, Any]:
        """The payload as a JSON object; raises RefusedError if it is none."""
        try:
            value = json.loads(self.payload)
        except ValueError as error:
            raise RefusedError("The other end sends what is no JSON") from error
        if not isinstance(value, dict):
            raise RefusedError("The other end sends what is no JSON object")
        return value


class ProcessPipe(Protocol):
    """Bytes to and from another process."""

    @property
    def last_words(self) -> str:
        """The end of what the process wrote for people."""
        ...

    def read(self, size: int) -> bytes:
        """Exactly ``size`` bytes; fewer only when the other end has ended."""
        ...

    def write(self, data: bytes) -> None:
        """Send all of ``data``."""
        ...

    def waiting(self) -> bool:
        """Whether the other end has said something that was not read yet, or has ended."""
        ...


def encode_frame(kind: bytes, payload: bytes = b"") -> bytes:
    """A frame as bytes; ``payload`` is at most LARGEST."""
    assert len(payload) <= MAX_PAYLOAD_BYTES
    return _FRAME_HEAD.pack(kind, len(payload)) + payload


def encode_json_frame(kind: bytes, value: dict[str, Any]) -> bytes:
    """A frame of JSON; names that are not UTF-8 survive."""
    return encode_frame(kind, json.dumps(value).encode())


def read_frame(read: Callable[[int], bytes]) -> CopyFrame | None:
    """The next frame; None when the other end has ended between two of them.

    Raises:
        RefusedError: what arrives is no frame, or one that is cut off.
    """
    head = read(_FRAME_HEAD.size)
    if not head:
        return None
    if len(head) < _FRAME_HEAD.size:
        raise RefusedError("The other end ended in the middle of a message")
    kind, size = _FRAME_HEAD.unpack(head)
    if kind not in _FRAME_KINDS or size > MAX_PAYLOAD_BYTES:
        raise RefusedError(f"The other end sends what is no message: {head!r}")
    payload = read(size) if size else b""
    if len(payload) < size:
        raise RefusedError("The other end ended in the middle of a message")
    return CopyFrame(kind, payload)
