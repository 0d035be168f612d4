"""A burst of connections that come faster than they are accepted."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from edl.api.errors import RetryableError
from edl.transport import listener as listening
from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_connection import FrameKind, OutgoingFrame
from edl.transport.bulk_server import BulkServer
from edl.transport.listener import SocketListener, UnixAddress, parse_address

TOKEN = "0123456789abcdef" * 4
BURST = 800
ALLOWED = Path("/proc/sys/net/core/somaxconn")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connect_at_once(stack: ExitStack, address: str) -> None:
    """A connection of a client that does not wait for a place in the queue."""
    target = parse_address(address)
    assert isinstance(target, UnixAddress)
    sock = stack.enter_context(socket.socket(socket.AF_UNIX))
    sock.setblocking(False)
    sock.connect(target.path)


def fill(stack: ExitStack, address: str) -> None:
    for _ in range(9):
        connect_at_once(stack, address)


@pytest.mark.skipif(not ALLOWED.exists() or int(ALLOWED.read_text()) < BURST, reason="the kernel allows fewer")
def test_as_many_connections_wait_to_be_accepted_as_the_kernel_allows(stack: ExitStack, tmp_path: Path) -> None:
    listener = stack.enter_context(closing(SocketListener(f"unix:{tmp_path}/s")))
    for _ in range(BURST):
        connect_at_once(stack, listener.address)


def test_a_client_waits_for_a_place_in_a_queue_that_is_full(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "_LISTEN_BACKLOG", 1)
    server = BulkServer(
        f"unix:{tmp_path}/s", TOKEN, lambda frame: OutgoingFrame(FrameKind.PULLED), max_body_bytes=1 << 10
    )
    accepting = threading.Event()
    accept = server._accept
    monkeypatch.setattr(server, "_accept", lambda listener: accepting.wait(20) and accept(listener))
    server.start()
    stack.callback(server.stop)
    stack.callback(accepting.set)
    with pytest.raises(BlockingIOError):
        fill(stack, server.address)
    with pytest.raises(RetryableError, match="cannot be reached"):
        BulkClient(server.address, TOKEN, timeout=0.2)
    threading.Timer(0.3, accepting.set).start()
    with closing(BulkClient(server.address, TOKEN, timeout=20)) as client:
        assert client.request(FrameKind.PULL, b"").kind is FrameKind.PULLED
