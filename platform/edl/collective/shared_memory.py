"""Memory that two neighbours on one machine share, and the transfer of its descriptors."""

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
"""Bytes before the ring of data. They hold the counters of both sides."""
RING_BYTES = 1 << 20
"""Capacity of the ring. So few bytes stay in the cache that both processors share.

The size is a guess that has not been measured (docs/design/0011-collective.md).
"""

# Descriptors of one segment: the memory and two eventfds.
_DESCRIPTORS = 3


@dataclass(frozen=True, slots=True)
class SharedSegment:
    """The open descriptors of one segment. The holder closes them.

    Attributes:
        memory: a memfd sealed against shrinking. If the file could shrink, access to the lost pages
            would kill the process that maps it.
        data_event: an eventfd that wakes the reader.
        room_event: an eventfd that wakes the writer.
    """

    memory: int
    data_event: int
    room_event: int

    @classmethod
    def create(cls, capacity: int = RING_BYTES) -> SharedSegment:
        """Create a segment for data to the next rank."""
        opened: list[int] = []
        try:
            # A memfd has no name in any file system, so nothing is left of it after a SIGKILL.
            opened.append(os.memfd_create("edl-round", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            os.ftruncate(opened[0], SEGMENT_HEAD_BYTES + capacity)
            # The receiver maps the memory only with these seals, and if it has the agreed size.
            fcntl.fcntl(opened[0], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            opened.extend(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2))
        except OSError:
            _close_all(opened)
            raise
        return cls(*opened)

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """All three descriptors, in the order that the native ring expects."""
        return self.memory, self.data_event, self.room_event

    def close(self) -> None:
        """Close the descriptors. Mapped memory stays mapped."""
        _close_all(self.descriptors)


def can_share_memory() -> bool:
    """Whether this machine has memfds with seals, and eventfds."""
    return all(hasattr(os, name) for name in ("memfd_create", "eventfd")) and hasattr(fcntl, "F_ADD_SEALS")


def send_entry(sock: socket.socket, header: bytes, segment: SharedSegment | None) -> None:
    """Send the ENTER_ROUND frame of a connection, together with the segment's descriptors.

    Raises:
        OSError: the peer has closed the connection.
    """
    if segment is None:
        sock.sendall(header)
        return
    count = socket.send_fds(sock, [header], segment.descriptors)
    sock.sendall(header[count:])


def receive_entry(sock: socket.socket, rank: int) -> tuple[bytes, SharedSegment | None]:
    """Receive the frame of ``send_entry``.

    Args:
        sock: the connection. Its kernel timeout bounds the wait.
        rank: the peer's rank, for errors.

    Raises:
        RoundBrokenError: the peer closed the connection, sent nothing in time, or sent a wrong
            number of descriptors.
    """
    descriptors = array.array("i")
    try:
        header = _receive_header(sock, descriptors)
    except OSError as error:
        _close_all(descriptors)
        raise RoundBrokenError(rank, f"rank {rank} did not enter the round: {error}") from error
    return header, SharedSegment(*descriptors) if descriptors else None


def _receive_header(sock: socket.socket, descriptors: array.array[int]) -> bytes:
    """Receive a header, with no or all descriptors of a segment.

    After an OSError the caller closes the descriptors that have arrived.
    """
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
