"""Frames of a round as bytes: bulk frames whose meta message has a fixed layout.

The layout is fixed because native code reads the frames without protobuf. The table of fields is in
``edl/numerics/native/round_frames.hpp``. Every frame names its round. A receiver knows each header
in advance, except for the length of a control message. Any other header ends the round before
memory is allocated for it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edl.api.round_id import RoundId
from edl.transport.bulk_connection import FRAME_MAGIC, HEAD_SIZE, FrameKind
from edl.transport.handshake import PROTOCOL_VERSION
from edl.transport.peer_errors import PeerRefusedError

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEADER_SIZE = 64
"""Bytes of a header: the bulk frame's head and the fixed part of the meta message."""
MAX_CONTROL_BYTES = 64 * 1024
"""Maximum bytes of a rank's control message."""
CHUNK_BYTES = 512 * 1024
"""Maximum bytes of data in one frame.

Part of the protocol: both sides cut a step into the same chunks. A multiple of every element's size.
"""

_HEADER = struct.Struct("<4sHHIQQQQQIHBBI")
_JOIN = struct.Struct("<QQIIIB")
assert _HEADER.size == HEADER_SIZE
_MAX_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RoundHeader:
    """The header of a frame within an established round.

    Attributes:
        kind: CHUNK, HEARTBEAT, ROUND_BROKEN, ROUND_LEFT or ENTER_ROUND.
        rank: the sender's rank; in ROUND_BROKEN the lost rank.
        body_size: bytes of data that follow the control message.
        sequence: number of the reduction within the round.
        offset: offset of the data in its buffer, in bytes; in ENTER_ROUND the size of the shared
            memory.
        control_size: bytes of the control message, without its padding.
        step: number of the algorithm's step.
    """

    kind: FrameKind
    round_id: RoundId
    rank: int
    body_size: int = 0
    sequence: int = 0
    offset: int = 0
    control_size: int = 0
    step: int = 0
    algorithm: int = 0
    element: int = 0

    def encode(self) -> bytes:
        return _HEADER.pack(
            FRAME_MAGIC,
            PROTOCOL_VERSION,
            self.kind,
            HEADER_SIZE - HEAD_SIZE + padded_size(self.control_size),
            self.body_size,
            *self.round_id,
            self.sequence,
            self.offset,
            self.control_size,
            self.step,
            self.algorithm,
            self.element,
            self.rank,
        )


def padded_size(control_size: int) -> int:
    """Bytes that a control message takes in a frame: a multiple of 64.

    Headers have 64 bytes too, so that bodies in shared memory are aligned.
    """
    return -(-control_size // 64) * 64


def read_control_size(header: Buffer) -> int:
    """The length that a header announces for its control message."""
    size: int = _HEADER.unpack(header)[9]
    return size


def read_rank(header: Buffer) -> int:
    """The rank that a header names."""
    rank: int = _HEADER.unpack(header)[13]
    return rank


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A rank's request to join a round with the next rank, and the answer of that rank.

    Attributes:
        sender: rank of the connecting process.
        receiver: rank that the connecting process assumes for the other one.
        size: number of ranks.
        shared_memory: the sender can use shared memory; in the answer: the receiver agrees to it.
    """

    round_id: RoundId
    sender: int
    receiver: int
    size: int
    shared_memory: bool

    def encode(self) -> bytes:
        """Return the meta message of JOIN_ROUND and JOINED_ROUND."""
        return _JOIN.pack(*self.round_id, self.sender, self.receiver, self.size, self.shared_memory)

    @classmethod
    def decode(cls, meta: bytes) -> JoinRequest:
        """Read the meta message.

        Raises:
            PeerRefusedError: the bytes are not such a message.
        """
        if len(meta) != _JOIN.size:
            raise PeerRefusedError(f"A request to join a round has {_JOIN.size} bytes, not {len(meta)}", kind="bad")
        incarnation, number, sender, receiver, size, shared_memory = _JOIN.unpack(meta)
        if max(incarnation, number) > _MAX_NUMBER or max(sender, receiver) >= size or shared_memory > 1:
            raise PeerRefusedError("A request to join a round has impossible fields", kind="bad")
        return cls(RoundId(incarnation, number), sender, receiver, size, bool(shared_memory))
