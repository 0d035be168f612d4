"""One bulk connection: frames through a stream socket, with neither copies nor allocations per frame.

Memory is taken as bytes arrive, not as a head announces them: whatever a peer sends, a connection takes at most twice
as many bytes, and ``2 * AHEAD`` more.

Waiting is bounded by the kernel (``SO_RCVTIMEO``, ``SO_SNDTIMEO``), which spares the poll before every call that
Python's own timeouts cost. A connection is used by one thread at a time; only ``wake`` may be called from another.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from edl.api.errors import RetryableError
from edl.transport.handshake import PROTOCOL_VERSION, check_protocol_version
from edl.transport.peer_errors import PeerRefusedError

if TYPE_CHECKING:
    from typing_extensions import Buffer


# --------------------------------------------------------------------------------------------------
# The frames of the bulk plane, as bytes: a fixed head, a small protobuf message, a raw body.
#
# ======== ====== ====================================================
# bytes    type   field (little endian)
# ======== ====== ====================================================
# 0..4     4s     magic ``EDLB``
# 4..6     u16    protocol version
# 6..8     u16    kind
# 8..12    u32    length of the meta message, at most 1 MiB
# 12..20   u64    length of the body, at most what the receiver allows
# ======== ====== ====================================================
#
# Meta is the message of edl.proto that belongs to the kind; HELLO carries the token's bytes instead, since nothing
# that an unknown peer sends is parsed. Nothing here touches a socket or allocates what a head asks for.


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
    """A handler's answer; the buffers (contiguous) are on the wire before the connection receives again."""

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
        PeerRefusedError: the meta message is larger than any receiver takes.
    """
    if meta_size > MAX_META_BYTES:
        raise PeerRefusedError(f"A bulk head of {meta_size} bytes is larger than {MAX_META_BYTES}", kind="bad")
    return _HEAD.pack(FRAME_MAGIC, PROTOCOL_VERSION, kind, meta_size, body_size)


def decode_frame_head(data: Buffer, limits: FrameLimits) -> FrameHead:
    """Read and check the ``HEAD_SIZE`` bytes of a head.

    Raises:
        PeerRefusedError: another version of the protocol, no frame at all, or one larger than the limits.
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


_MAX_VECTORS = 512  # IOV_MAX is 1024 on Linux and the BSDs, 16 is all that POSIX promises
_KEEPALIVE_SECONDS = 2  # seconds until a silent TCP peer is probed, and between probes
_KEEPALIVE_PROBES = 3
_USER_TIMEOUT_MS = 10_000  # milliseconds that sent bytes may stay unacknowledged
_DRAIN_SECONDS = 1.0  # seconds that a peer which was refused may go on sending
_FIRST_BODY_BYTES = 1 << 16  # bytes
_SEND_BUFFER_BYTES = 1 << 20  # bytes, of a Unix socket
READ_AHEAD_BYTES = 1 << 20
"""Bytes that a connection takes for a body before they have come."""


class BulkConnection:
    """A connected stream socket that carries frames.

    Args:
        sock: connected; the connection owns it.
        peer: what error messages call the other side.
        limits: largest frame that is taken.
        timeout: seconds without a byte moving after which the peer counts as gone.
    """

    def __init__(self, sock: socket.socket, peer: str, limits: FrameLimits, timeout: float) -> None:
        self.peer = peer
        self._sock = sock
        self._limits = limits
        self._head = bytearray(HEAD_SIZE)
        self._meta = bytearray(min(4096, limits.meta))
        self._body = bytearray(min(_FIRST_BODY_BYTES, limits.body))
        self._timeout = timeout
        set_socket_options(sock)
        self.set_timeout(timeout)

    def set_timeout(self, seconds: float) -> None:
        """Wait at most so long for the peer from now on."""
        self._timeout = seconds
        set_kernel_timeout(self._sock, seconds)

    def set_limits(self, limits: FrameLimits) -> None:
        """Take frames up to these limits from now on."""
        self._limits = limits

    def send(self, kind: FrameKind, meta: bytes = b"", buffers: Sequence[Buffer] = ()) -> None:
        """Send a frame; returns when all its bytes are with the kernel. The buffers are contiguous.

        Raises:
            RetryableError: the peer is gone or does not read.
        """
        views = [view for view in (memoryview(buffer) for buffer in buffers) if view.nbytes]
        head = encode_frame_head(kind, len(meta), sum(view.nbytes for view in views))
        pieces: list[Buffer] = [head + meta, *(view.cast("B") for view in views)]
        try:
            send_buffers(self._sock, pieces)
        except OSError as error:
            raise self._disconnected_error("sending", error) from error

    def receive(self, into: memoryview | None = None, *, frame_timeout: float | None = None) -> ReceivedFrame:
        """Wait for the next frame; the body of the last one becomes invalid.

        Args:
            into: contiguous memory for the body; if it does not fit, the connection's own buffer is used.
            frame_timeout: seconds for the whole frame, however slowly its bytes arrive.

        Raises:
            RefusedError: not a frame, another version, or larger than the limits; what follows cannot be read.
            RetryableError: the peer is gone or silent.
        """
        deadline = None if frame_timeout is None else time.monotonic() + frame_timeout
        try:
            self._receive_exactly([memoryview(self._head)], HEAD_SIZE, deadline)
            kind, meta_size, body_size = decode_frame_head(self._head, self._limits)
            meta, body = self._meta_buffer(meta_size), self._body_buffer(body_size, into)
            if meta_size or body.nbytes:
                self._receive_exactly([meta, body], meta_size + body.nbytes, deadline)
            if body.nbytes < body_size:
                body = self._receive_rest(body_size, deadline)
        except OSError as error:
            raise self._disconnected_error("receiving", error) from error
        return ReceivedFrame(kind, bytes(meta), body)

    def shut_down(self) -> None:
        """End what another thread waits for on this connection; it sees the peer gone."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.EBADF):
                raise

    def send_last_frame(self, frame: OutgoingFrame) -> None:
        """Say a last word and let the peer read it: a close while its bytes are unread would discard the word.

        Raises:
            RetryableError: the peer is gone or does not read.
        """
        self.send(*frame)
        try:
            self._sock.shutdown(socket.SHUT_WR)
            self.set_timeout(_DRAIN_SECONDS)
            deadline = time.monotonic() + _DRAIN_SECONDS
            while self._sock.recv_into(self._body or self._meta) and time.monotonic() < deadline:
                pass
        except OSError as error:
            raise self._disconnected_error("parting", error) from error

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def _meta_buffer(self, size: int) -> memoryview:
        if size > len(self._meta):
            self._meta = bytearray(size)
        return memoryview(self._meta)[:size]

    def _body_buffer(self, size: int, into: memoryview | None) -> memoryview:
        """Memory for a body, or for its beginning if it is larger than any before."""
        if into is not None and size <= into.nbytes:
            return into.cast("B")[:size] if size else into[:0]
        if len(self._body) < min(size, READ_AHEAD_BYTES):
            self._body = bytearray(min(size, READ_AHEAD_BYTES))
        return memoryview(self._body)[:size]

    def _receive_rest(self, size: int, deadline: float | None) -> memoryview:
        """Receive the rest of a body of which as much has come as there was room for."""
        arrived, piece = bytearray(self._body), memoryview(bytearray(READ_AHEAD_BYTES))
        self._body = arrived
        while left := size - len(arrived):
            self._receive_exactly([piece[:left]], min(left, READ_AHEAD_BYTES), deadline)
            arrived += piece[:left]
        return memoryview(arrived)

    def _receive_exactly(self, views: list[memoryview], size: int, deadline: float | None) -> None:
        """Receive exactly ``size`` bytes into the views, which are together that long."""
        while size:
            count = self._sock.recvmsg_into(views, 0, socket.MSG_WAITALL)[0]
            if not count:
                raise ConnectionResetError(errno.ECONNRESET, "closed by the peer")
            size -= count
            if size:
                if deadline is not None and time.monotonic() > deadline:
                    raise BlockingIOError(errno.EAGAIN, "too slow")
                views = remaining_views(views, count)

    def _disconnected_error(self, doing: str, error: OSError) -> RetryableError:
        if isinstance(error, BlockingIOError):
            return RetryableError(f"The peer is silent: {doing} took longer than {self._timeout:g} s", where=self.peer)
        return RetryableError(f"The peer is gone: {doing} failed: {error.strerror or error}", where=self.peer)


def send_buffers(sock: socket.socket, pieces: Sequence[Buffer]) -> None:
    """Send all pieces in order, whatever part of them the kernel takes at a time."""
    views = [memoryview(piece) for piece in pieces]
    while views:
        batch = views[:_MAX_VECTORS]
        count = sock.sendmsg(batch)
        views = remaining_views(batch, count) + views[_MAX_VECTORS:]


def remaining_views(views: Sequence[memoryview], count: int) -> list[memoryview]:
    """Return what is left of byte views after ``count`` bytes of them were used; empty views are left out."""
    for position, view in enumerate(views):
        if count < view.nbytes:
            return [view[count:], *(later for later in views[position + 1 :] if later.nbytes)]
        count -= view.nbytes
    return []


def set_socket_options(sock: socket.socket) -> None:
    """Set the options of a bulk socket: over TCP no delay, and a vanished peer is noticed.

    TCP tunes its buffers by itself, which fixed sizes would end. A Unix socket's holds 200 KB unless told otherwise:
    a step's frames are larger, and both sides would be woken several times for each.
    """
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)  # the kernel takes less if it must
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_SECONDS),
        ("TCP_KEEPINTVL", _KEEPALIVE_SECONDS),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", _USER_TIMEOUT_MS),
    ):
        if hasattr(socket, name):  # each exists on Linux; macOS lacks some
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def set_kernel_timeout(sock: socket.socket, seconds: float) -> None:
    """Let the kernel end blocking calls after so long; they then raise BlockingIOError."""
    whole = int(seconds)
    value = struct.pack("@ll", whole, max(1, int((seconds - whole) * 1_000_000)))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
