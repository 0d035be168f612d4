"""The bulk plane: the one door for tensors. Here is the client's half; the server's is bulk_server.py.

A connection proves the job's token and the protocol's version with its first frame; then it carries requests and
answers, one after the other. Unix sockets can be used by their owner only; TCP is not encrypted.
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
    OutgoingFrame,
    ReceivedFrame,
    set_kernel_timeout,
)
from edl.transport.bulk_server import BulkServer
from edl.transport.edl_pb2 import Refusal
from edl.transport.listener import UnixAddress, parse_address
from edl.transport.message_validation import parse_message as parse_message
from edl.transport.peer_errors import BulkRefusedError, PeerRefusedError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["BulkClient", "BulkRefusedError", "BulkServer", "FrameKind", "OutgoingFrame", "ReceivedFrame"]

MAX_BODY_BYTES = 1 << 34
"""Bytes that a client takes in one answer unless told otherwise."""
CONNECT_SECONDS = 3.0
"""How long a connection over TCP may take: the address of a pod that vanished answers nothing, not even a refusal."""


class BulkClient:
    """A connection to a bulk server, used by one thread at a time.

    After a RetryableError the connection is closed: make a new client. After a BulkRefusedError it can be used on.

    Args:
        address: ``unix:<path>`` or ``host:port``.
        token: the job's.
        timeout: seconds without a byte moving, also while the server works on an answer.
        max_body: bytes; a larger answer is refused before memory is allocated.

    Raises:
        RetryableError: nobody listens there (now), or the peer is silent.
        BulkRefusedError: the server does not take the token or this version of the protocol.
    """

    def __init__(self, address: str, token: str, *, timeout: float, max_body: int = MAX_BODY_BYTES) -> None:
        self.address = address
        self._connection = _open_connection(address, FrameLimits(MAX_META_BYTES, max_body), timeout)
        self._authenticate(token)

    def send(self, kind: FrameKind, meta: bytes, buffers: Sequence[Buffer] = ()) -> None:
        """Send a frame; the buffers are contiguous and may be changed when this returns.

        Raises:
            RetryableError: the peer is away; the connection is closed.
        """
        try:
            self._connection.send(kind, meta, buffers)
        except RetryableError as gone:
            self._close_with_last_reply(gone)

    def receive(self, into: memoryview | None = None) -> ReceivedFrame:
        """Wait for the next frame.

        Args:
            into: writable contiguous memory that the body goes to if it fits.

        Raises:
            RetryableError: the peer is away or silent; the connection is closed.
            BulkRefusedError: the peer's REFUSED, or bytes that are no acceptable frame (then the connection is closed).
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
        """Send a frame and wait for its answer; raises what ``send`` and ``receive`` raise."""
        self.send(kind, meta, buffers)
        return self.receive(into)

    def check_reply_kind(self, request: FrameKind, frame: ReceivedFrame) -> ReceivedFrame:
        """The frame, which must be the answer to a request of this kind.

        Raises:
            BulkRefusedError: it is of another kind; the connection is closed.
        """
        if frame.kind is not REPLY_KINDS[request]:
            self.close()
            raise BulkRefusedError(
                f"The server answers {frame.kind.name} to {request.name}, not {REPLY_KINDS[request].name}",
                kind="bad",
                where=self.address,
            )
        return frame

    def close(self) -> None:
        """Close the connection; again is harmless."""
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
        """Close, but say what the server said before it hung up in the middle of what we sent."""
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
                f"The peer refuses without a readable reason: {error}", kind="bad", where=self.address
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
        set_kernel_timeout(sock, timeout)  # Python's own would fail at once when the server's queue is full
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock
