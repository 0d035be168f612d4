"""The client of the bulk plane. All tensors pass through it; the server is in bulk_server.py.

The first frame of a connection proves the job's token and the protocol's version. Then requests and replies alternate.
Only its owner can use a Unix socket; TCP is not encrypted.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edl.api.errors import EdlError, RetryableError
from edl.transport.bulk_connection import (
    MAX_META_BYTES,
    REPLY_KINDS,
    BulkConnection,
    FrameKind,
    FrameLimits,
    ReceivedFrame,
    set_kernel_timeout,
)
from edl.transport.edl_pb2 import Refusal
from edl.transport.listener import UnixAddress, parse_address
from edl.transport.message_validation import parse_message
from edl.transport.peer_errors import BulkRefusedError, PeerRefusedError

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_BODY_BYTES = 1 << 34
"""Default limit of one reply's body in bytes."""
CONNECT_SECONDS = 3.0
"""Maximum time to open a TCP connection. The address of a vanished pod does not even refuse it."""


class BulkClient:
    """A connection to a bulk server. Only one thread may use it at a time.

    After a RetryableError the connection is closed; make a new client. After a BulkRefusedError it can still be used.

    Args:
        address: ``unix:<path>`` or ``host:port``.
        token: the job's token.
        timeout: maximum seconds without progress, also while the server computes a reply.
        max_body: maximum bytes of a reply; a larger one is refused before memory is allocated.

    Raises:
        RetryableError: nobody listens there at present, or the peer is silent.
        BulkRefusedError: the server does not accept the token or this version of the protocol.
    """

    def __init__(self, address: str, token: str, *, timeout: float, max_body: int = MAX_BODY_BYTES) -> None:
        self.address = address
        self._connection = _open_connection(address, FrameLimits(MAX_META_BYTES, max_body), timeout)
        self._authenticate(token)

    def send(self, kind: FrameKind, meta: bytes, buffers: Sequence[Buffer] = ()) -> None:
        """Send a frame. The buffers must be contiguous, and may be changed when this returns.

        Raises:
            RetryableError: the peer is gone; the connection is closed.
        """
        try:
            self._connection.send(kind, meta, buffers)
        except RetryableError as gone:
            self._close_with_last_reply(gone)

    def receive(self, into: memoryview | None = None) -> ReceivedFrame:
        """Wait for the next frame.

        Args:
            into: writable contiguous memory for the body, which is used if the body fits.

        Raises:
            RetryableError: the peer is gone or silent; the connection is closed.
            BulkRefusedError: the peer sent REFUSED, or an invalid frame (then the connection is closed).
        """
        try:
            frame = self._connection.receive(into)
        except RetryableError:
            self.close()
            raise
        except PeerRefusedError as error:
            self.close()
            raise BulkRefusedError(error.message, kind=error.kind, where=self.address, hint=error.hint) from error
        if frame.kind is FrameKind.REFUSED:
            raise self._refused_error(frame)
        return frame

    def request(
        self, kind: FrameKind, meta: bytes, buffers: Sequence[Buffer] = (), *, into: memoryview | None = None
    ) -> ReceivedFrame:
        """Send a frame and wait for the reply; raises what ``send`` and ``receive`` raise."""
        self.send(kind, meta, buffers)
        return self.receive(into)

    def check_reply_kind(self, request: FrameKind, frame: ReceivedFrame) -> ReceivedFrame:
        """Return the frame if it has the right kind for a reply to such a request.

        Raises:
            BulkRefusedError: it has another kind; the connection is closed.
        """
        if frame.kind is not REPLY_KINDS[request]:
            self.close()
            raise BulkRefusedError(
                f"The server answers {frame.kind.name} to {request.name} instead of {REPLY_KINDS[request].name}",
                kind="bad",
                where=self.address,
            )
        return frame

    def shut_down(self) -> None:
        """End what another thread waits for on this connection; it sees the peer gone."""
        self._connection.shut_down()

    def release_socket(self) -> socket.socket:
        """Give the socket up, with the timeout that it has: the caller owns it, and this client is closed."""
        return self._connection.release_socket()

    def close(self) -> None:
        """Close the connection. Closing twice does nothing."""
        self._connection.close()

    def __enter__(self) -> BulkClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _authenticate(self, token: str) -> None:
        try:
            self.check_reply_kind(FrameKind.HELLO, self.request(FrameKind.HELLO, token.encode()))
        except BulkRefusedError:
            self.close()
            raise

    def _close_with_last_reply(self, disconnected: RetryableError) -> None:
        """Close, and raise the server's refusal if it sent one before it closed the connection during our frame."""
        try:
            self._connection.set_timeout(0.1)
            frame = self._connection.receive()
        except EdlError:
            raise disconnected from None
        else:
            raise self._refused_error(frame) if frame.kind is FrameKind.REFUSED else disconnected
        finally:
            self.close()

    def _refused_error(self, frame: ReceivedFrame) -> BulkRefusedError:
        try:
            refusal = parse_message(Refusal, frame.meta)
        except PeerRefusedError as error:
            return BulkRefusedError(
                f"The peer refused without a readable reason: {error}", kind="bad", where=self.address
            )
        return BulkRefusedError(refusal.reason, kind=refusal.kind, where=self.address, hint=refusal.hint or None)


def _open_connection(address: str, limits: FrameLimits, timeout: float) -> BulkConnection:
    target = parse_address(address)
    try:
        if isinstance(target, UnixAddress):
            sock = _open_unix_socket(target.path, timeout)
        else:
            sock = socket.create_connection((target.host, target.port), timeout=min(timeout, CONNECT_SECONDS))
            sock.settimeout(None)
    except OSError as error:
        raise RetryableError(f"The server cannot be reached: {error}", where=address) from error
    return BulkConnection(sock, address, limits, timeout)


def _open_unix_socket(path: str, timeout: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # the kernel's timeout makes connect() wait if the server's queue is full; with Python's it would fail at once
        set_kernel_timeout(sock, timeout)
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock
