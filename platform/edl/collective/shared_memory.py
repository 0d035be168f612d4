"""Memory that two neighbours on one machine share, and how its descriptors get from one to the other."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
from dataclasses import dataclass

from edl.collective.round_errors import RoundBrokenError
from edl.collective.round_frames import HEADER_SIZE

SEGMENT_HEAD_BYTES = 4096
"""Counters in front of the ring of bytes."""
RING_BYTES = 1 << 20
"""Bytes that may be on their way: they stay in the cache that both processors share."""

_DESCRIPTORS = 3


@dataclass(frozen=True, slots=True)
class SharedSegment:
    """The open descriptors of one segment; they belong to its holder.

    Attributes:
        memory: a memfd that cannot shrink: a file that could would end the process that maps it.
        data_event: an eventfd that wakes the reader.
        room_event: an eventfd that wakes the writer.
    """

    memory: int
    data_event: int
    room_event: int

    @classmethod
    def create(cls, capacity: int = RING_BYTES) -> SharedSegment:
        """Make a segment for the way to the next rank."""
        opened: list[int] = []
        try:
            opened.append(os.memfd_create("edl-round", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            os.ftruncate(opened[0], SEGMENT_HEAD_BYTES + capacity)
            fcntl.fcntl(opened[0], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            opened.extend(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2))
        except OSError:
            _close_all(opened)
            raise
        return cls(*opened)

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """All three, as the native ring takes them."""
        return self.memory, self.data_event, self.room_event

    def close(self) -> None:
        """Close the descriptors; what is mapped stays."""
        _close_all(self.descriptors)


def can_share_memory() -> bool:
    """Whether this machine has what a segment is made of."""
    return all(hasattr(os, name) for name in ("memfd_create", "eventfd")) and hasattr(fcntl, "F_ADD_SEALS")


def send_entry(sock: socket.socket, header: bytes, segment: SharedSegment | None) -> None:
    """Send the frame with which a connection enters a round, and the segment's descriptors with it.

    Raises:
        OSError: the peer is gone.
    """
    if segment is None:
        sock.sendall(header)
        return
    count = socket.send_fds(sock, [header], segment.descriptors)
    sock.sendall(header[count:])


def receive_entry(sock: socket.socket, rank: int) -> tuple[bytes, SharedSegment | None]:
    """Receive that frame.

    Args:
        sock: its kernel timeout bounds the wait.
        rank: of the peer, for errors.

    Raises:
        RoundBrokenError: the peer is gone or silent, or sent other descriptors than a segment has.
    """
    descriptors = array.array("i")
    try:
        header = _receive_header(sock, descriptors)
    except OSError as error:
        _close_all(descriptors)
        raise RoundBrokenError(rank, f"rank {rank} did not enter the round: {error}") from error
    return header, SharedSegment(*descriptors) if descriptors else None


def _receive_header(sock: socket.socket, descriptors: array.array[int]) -> bytes:
    """Receive a header, and none or all descriptors of a segment; an OSError leaves these to the caller to close."""
    received, room = b"", socket.CMSG_SPACE(_DESCRIPTORS * descriptors.itemsize)
    while len(received) < HEADER_SIZE:
        data, ancillary, flags, _ = sock.recvmsg(HEADER_SIZE - len(received), room, _RECEIVE_FLAGS)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(content[: len(content) // descriptors.itemsize * descriptors.itemsize])
        if not data or flags & socket.MSG_CTRUNC or len(descriptors) not in (0, _DESCRIPTORS):
            raise ConnectionResetError(errno.ECONNRESET, "closed, or with other descriptors")
        received += data
    return received


_RECEIVE_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


def _close_all(descriptors: array.array[int] | list[int] | tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
