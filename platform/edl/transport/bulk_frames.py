"""The frames of the bulk plane, as bytes: a fixed head, a small protobuf message, a raw body.

======== ====== ====================================================
bytes    type   field (little endian)
======== ====== ====================================================
0..4     4s     magic ``EDLB``
4..6     u16    protocol version
6..8     u16    kind
8..12    u32    length of the meta message, at most 1 MiB
12..20   u64    length of the body, at most what the receiver allows
======== ====== ====================================================

Meta is the message of edl.proto that belongs to the kind; HELLO carries the token's bytes instead, since nothing
that an unknown peer sends is parsed. Nothing here touches a socket or allocates what a head asks for.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from edl.transport.handshake import PROTOCOL_VERSION, check_protocol_version
from edl.transport.peer_errors import PeerRefusedError

if TYPE_CHECKING:
    from typing_extensions import Buffer

FRAME_MAGIC = b"EDLB"
MAX_META_BYTES = 1 << 20
"""Bytes."""

_HEAD = struct.Struct("<4sHHIQ")
HEAD_SIZE = _HEAD.size


class FrameKind(IntEnum):
    """What a frame means; the meta message that goes with it stands beside."""

    HELLO = 1  # the token's bytes
    WELCOME = 2  # nothing
    REFUSED = 3  # Refusal
    DECLARE = 4  # Declare
    DECLARED = 5  # Declared
    PULL = 6  # Pull
    PULLED = 7  # Pulled
    PULL_ROWS = 8  # PullRows
    ROWS = 9  # PullRows: the same tables
    PUSH = 10  # Push
    PUSHED = 11  # Pushed
    SCAN_ROWS = 12  # ScanRows
    SCANNED = 13  # ScannedRows


REPLY_KINDS = {
    FrameKind.HELLO: FrameKind.WELCOME,
    FrameKind.DECLARE: FrameKind.DECLARED,
    FrameKind.PULL: FrameKind.PULLED,
    FrameKind.PULL_ROWS: FrameKind.ROWS,
    FrameKind.PUSH: FrameKind.PUSHED,
    FrameKind.SCAN_ROWS: FrameKind.SCANNED,
}
"""What a request is answered with, unless with REFUSED."""

_KINDS = {int(kind): kind for kind in FrameKind}  # a lookup costs a tenth of calling the enum


class ReceivedFrame(NamedTuple):
    """A frame as it arrived; ``body`` is valid until the next receive on its connection."""

    kind: FrameKind
    meta: bytes
    body: memoryview


class OutgoingFrame(NamedTuple):
    """A frame to send; the buffers (contiguous) are on the wire before the connection receives again."""

    kind: FrameKind
    meta: bytes = b""
    buffers: Sequence[Buffer] = ()


class FrameHead(NamedTuple):
    """The fixed part of a frame, checked."""

    kind: FrameKind
    meta_size: int
    body_size: int


class FrameLimits(NamedTuple):
    """The largest meta and body that a receiver takes, in bytes."""

    meta: int
    body: int


def encode_frame_head(kind: FrameKind, meta_size: int, body_size: int) -> bytes:
    """Return the head of a frame.

    Raises:
        Refused: the meta message is larger than any receiver takes.
    """
    if meta_size > MAX_META_BYTES:
        raise PeerRefusedError(f"A bulk head of {meta_size} bytes is larger than {MAX_META_BYTES}", kind="bad")
    return _HEAD.pack(FRAME_MAGIC, PROTOCOL_VERSION, kind, meta_size, body_size)


def decode_frame_head(data: Buffer, limits: FrameLimits) -> FrameHead:
    """Read and check the ``HEAD_SIZE`` bytes of a head.

    Raises:
        Refused: another version of the protocol, no frame at all, or one larger than the limits.
    """
    magic, version, number, meta_size, body_size = _HEAD.unpack(data)
    if magic != FRAME_MAGIC:
        raise PeerRefusedError(f"This is not an EDL bulk frame: it begins with {magic!r}", kind="bad")
    check_protocol_version(version)
    kind = _KINDS.get(number)
    if kind is None:
        raise PeerRefusedError(f"There is no bulk frame of kind {number}", kind="bad")
    if meta_size > limits.meta or body_size > limits.body:
        raise PeerRefusedError(
            f"A {kind.name} frame of {meta_size} + {body_size} bytes is larger than {limits.meta} + {limits.body}",
            kind="bad",
        )
    return FrameHead(kind, meta_size, body_size)
