"""One connection of the bulk plane: frames over a stream socket, without copying bodies or allocating for each frame.

Memory is allocated as bytes arrive, and not as a frame's head announces them. Whatever a peer sends, a connection
allocates at most twice the received bytes plus ``2 * READ_AHEAD_BYTES``.

Timeouts are those of the kernel (``SO_RCVTIMEO``, ``SO_SNDTIMEO``). Python's own would cost a poll before every call.
Only one thread may use a connection at a time, except that any thread may call ``shut_down``.
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
# Frames of the bulk plane: a fixed head, a small protobuf message, a raw body.
#
# ======== ====== ====================================================
# bytes    type   field (little endian)
# ======== ====== ====================================================
# 0..4     4s     magic ``EDLB``
# 4..6     u16    protocol version
# 6..8     u16    kind
# 8..12    u32    length of the meta message, at most 1 MiB
# 12..20   u64    length of the body, at most what the receiver accepts
# ======== ====== ====================================================
#
# The meta message has the type in edl.proto that belongs to the kind. HELLO has the token's bytes instead, because
# nothing from an unknown peer is parsed. The functions here do not use sockets and allocate nothing for a frame.
# Kinds 14 to 20 carry the fixed layouts of edl/collective/round_frames.py, which native code reads as well.


FRAME_MAGIC = b"EDLB"
MAX_META_BYTES = 1 << 20
"""Maximum bytes of a meta message."""

_HEAD = struct.Struct("<4sHHIQ")
HEAD_SIZE = _HEAD.size


class FrameKind(IntEnum):
    """Kind of a frame; the comment names its meta message."""

    HELLO = 1  # the token's bytes
    WELCOME = 2  # no message
    REFUSED = 3  # Refusal
    DECLARE = 4  # Declare
    DECLARED = 5  # Declared
    PULL = 6  # Pull
    PULLED = 7  # Pulled
    PULL_ROWS = 8  # PullRows
    ROWS = 9  # PullRows, with the same tables
    PUSH = 10  # Push
    PUSHED = 11  # Pushed
    SCAN_ROWS = 12  # ScanRows
    SCANNED = 13  # ScannedRows
    JOIN_ROUND = 14  # JoinRequest
    JOINED_ROUND = 15  # JoinRequest: what was agreed
    ENTER_ROUND = 16  # RoundHeader, as all that follow; from here on the connection belongs to the round
    CHUNK = 17
    HEARTBEAT = 18
    ROUND_BROKEN = 19
    ROUND_LEFT = 20
    FOLLOW_ROUND = 21  # FollowRound
    FOLLOWED_ROUND = 22  # FollowedRound; from here on frames come from the member that is followed
    ROUND_STATE = 23  # RoundState
    ROUND_STEP = 24  # RoundStep
    ROUND_END = 25  # no message
    FETCH_PARTS = 26  # FetchParts, to the member that is followed


REPLY_KINDS = {
    FrameKind.HELLO: FrameKind.WELCOME,
    FrameKind.DECLARE: FrameKind.DECLARED,
    FrameKind.PULL: FrameKind.PULLED,
    FrameKind.PULL_ROWS: FrameKind.ROWS,
    FrameKind.PUSH: FrameKind.PUSHED,
    FrameKind.SCAN_ROWS: FrameKind.SCANNED,
    FrameKind.JOIN_ROUND: FrameKind.JOINED_ROUND,
    FrameKind.FOLLOW_ROUND: FrameKind.FOLLOWED_ROUND,
}
"""The reply to each request, unless it is REFUSED."""

_KINDS = {int(kind): kind for kind in FrameKind}  # a lookup takes a tenth of the time of FrameKind(number)


class ReceivedFrame(NamedTuple):
    """A received frame; ``body`` is valid until the next receive on its connection."""

    kind: FrameKind
    meta: bytes
    body: memoryview


class OutgoingFrame(NamedTuple):
    """A handler's reply. The contiguous buffers are sent before the connection receives again."""

    kind: FrameKind
    meta: bytes = b""
    buffers: Sequence[Buffer] = ()


class FrameHead(NamedTuple):
    """The validated head of a frame."""

    kind: FrameKind
    meta_size: int
    body_size: int


class FrameLimits(NamedTuple):
    """Maximum meta and body that a receiver accepts, in bytes."""

    meta: int
    body: int


def encode_frame_head(kind: FrameKind, meta_size: int, body_size: int) -> bytes:
    """Return the head of a frame.

    Raises:
        PeerRefusedError: the meta message is larger than any receiver accepts.
    """
    if meta_size > MAX_META_BYTES:
        raise PeerRefusedError(f"A bulk head of {meta_size} bytes is larger than {MAX_META_BYTES}", kind="bad")
    return _HEAD.pack(FRAME_MAGIC, PROTOCOL_VERSION, kind, meta_size, body_size)


def decode_frame_head(data: Buffer, limits: FrameLimits) -> FrameHead:
    """Parse and check the ``HEAD_SIZE`` bytes of a head.

    Raises:
        PeerRefusedError: it has another protocol version, is not a frame, or exceeds the limits.
    """
    # every length is checked here, before anything is allocated for it
    magic, version, number, meta_size, body_size = _HEAD.unpack(data)
    if magic != FRAME_MAGIC:
        raise PeerRefusedError(f"This is not an EDL bulk frame: it begins with {magic!r}", kind="bad")
    check_protocol_version(version)
    kind = _KINDS.get(number)
    if kind is None:
        raise PeerRefusedError(f"Unknown kind of bulk frame: {number}", kind="bad")
    if meta_size > limits.meta or body_size > limits.body:
        raise PeerRefusedError(
            f"A {kind.name} frame of {meta_size} + {body_size} bytes is larger than {limits.meta} + {limits.body}",
            kind="bad",
        )
    return FrameHead(kind, meta_size, body_size)


_MAX_VECTORS = 512  # buffers per system call; IOV_MAX is 1024 on Linux and the BSDs, POSIX guarantees only 16
_KEEPALIVE_SECONDS = 2  # seconds until a silent TCP peer is probed, and between probes
_KEEPALIVE_PROBES = 3
_USER_TIMEOUT_MS = 10_000  # milliseconds that sent bytes may stay unacknowledged
_DRAIN_SECONDS = 1.0  # seconds for which a refused peer may keep sending
_FIRST_BODY_BYTES = 1 << 16  # bytes
_SEND_BUFFER_BYTES = 1 << 20  # bytes, of a Unix socket
READ_AHEAD_BYTES = 1 << 20
"""Maximum bytes that a connection allocates for a body before they have arrived."""


class BulkConnection:
    """A connected stream socket that carries frames.

    Args:
        sock: the connected socket, which the connection owns.
        peer: name of the other side in error messages.
        limits: limits of received frames.
        timeout: seconds without progress after which the peer counts as gone.
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
        """Change the time for which calls wait for the peer."""
        self._timeout = seconds
        set_kernel_timeout(self._sock, seconds)

    def set_limits(self, limits: FrameLimits) -> None:
        """Change the limits of received frames."""
        self._limits = limits

    def send(self, kind: FrameKind, meta: bytes = b"", buffers: Sequence[Buffer] = ()) -> None:
        """Send a frame. Returns when the kernel has all bytes; the buffers must be contiguous.

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
        """Wait for the next frame. The body of the previous one becomes invalid.

        Args:
            into: contiguous memory for the body; if the body does not fit, the connection's own buffer is used.
            frame_timeout: seconds for the whole frame, however slowly its bytes arrive.

        Raises:
            RefusedError: it is not a frame, has another version or exceeds the limits. Nothing after it can be read.
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
        """End a call on this connection in another thread, for which the peer then seems to be gone."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.EBADF):
                raise

    def send_last_frame(self, frame: OutgoingFrame) -> None:
        """Send a frame and give the peer time to read it. Closing with unread bytes of the peer would discard it.

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

    def release_socket(self) -> socket.socket:
        """Give the socket up: the caller owns it, and this connection is closed."""
        return socket.socket(fileno=self._sock.detach())

    def _meta_buffer(self, size: int) -> memoryview:
        if size > len(self._meta):
            self._meta = bytearray(size)
        return memoryview(self._meta)[:size]

    def _body_buffer(self, size: int, into: memoryview | None) -> memoryview:
        """Memory for a body; for one that is larger than any before, only for its beginning."""
        if into is not None and size <= into.nbytes:
            return into.cast("B")[:size] if size else into[:0]
        if len(self._body) < min(size, READ_AHEAD_BYTES):
            self._body = bytearray(min(size, READ_AHEAD_BYTES))
        return memoryview(self._body)[:size]

    def _receive_rest(self, size: int, deadline: float | None) -> memoryview:
        """Receive the rest of a body whose beginning has filled the buffer."""
        arrived, piece = bytearray(self._body), memoryview(bytearray(READ_AHEAD_BYTES))
        self._body = arrived
        while left := size - len(arrived):
            self._receive_exactly([piece[:left]], min(left, READ_AHEAD_BYTES), deadline)
            arrived += piece[:left]
        return memoryview(arrived)

    def _receive_exactly(self, views: list[memoryview], size: int, deadline: float | None) -> None:
        """Receive exactly ``size`` bytes into the views, which have that length in total."""
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
    """Send all pieces in order, however few bytes the kernel accepts at a time."""
    views = [memoryview(piece) for piece in pieces]
    while views:
        batch = views[:_MAX_VECTORS]
        count = sock.sendmsg(batch)
        views = remaining_views(batch, count) + views[_MAX_VECTORS:]


def remaining_views(views: Sequence[memoryview], count: int) -> list[memoryview]:
    """Return the byte views without their first ``count`` bytes, and without empty views."""
    for position, view in enumerate(views):
        if count < view.nbytes:
            return [view[count:], *(later for later in views[position + 1 :] if later.nbytes)]
        count -= view.nbytes
    return []


def set_socket_options(sock: socket.socket) -> None:
    """Set the options of a bulk socket: over TCP no delay, and keepalive to detect a vanished peer.

    TCP tunes its buffers itself, and fixed sizes would prevent that. A Unix socket's buffer has 200 KB by default:
    frames of a step are larger, and both sides would be woken several times for each.
    """
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)  # the kernel may limit it
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_SECONDS),
        ("TCP_KEEPINTVL", _KEEPALIVE_SECONDS),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", _USER_TIMEOUT_MS),
    ):
        if hasattr(socket, name):  # all exist on Linux; macOS lacks some
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def set_kernel_timeout(sock: socket.socket, seconds: float) -> None:
    """Let the kernel end blocking calls after some seconds; they then raise BlockingIOError."""
    full_seconds = int(seconds)
    # at least a microsecond: zero would mean no timeout
    value = struct.pack("@ll", full_seconds, max(1, int((seconds - full_seconds) * 1_000_000)))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
