"""Connections that have not proved the token keep nobody out who can."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from time import monotonic

import pytest
from transport.test_transport_bulk import MAX_BODY, TOKEN, client_of, echo, stranger

from edl.api.errors import RetryableError
from edl.transport.bulk_connection import FrameKind
from edl.transport.bulk_server import BulkServer

IDLE = 1100
LONGEST = 2.0
"""Seconds that a rightful call may take on a machine that does much else."""


@pytest.fixture
def server() -> Iterator[BulkServer]:
    server = BulkServer("127.0.0.1:0", TOKEN, echo, max_body_bytes=MAX_BODY)
    server.start()
    yield server
    server.stop()


def is_closed(sock: socket.socket) -> bool:
    """Whether the server closes a connection that has sent nothing, in time for another."""
    sock.settimeout(LONGEST)
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def test_1100_idle_connections_turn_nobody_away_who_has_the_token(server: BulkServer) -> None:
    with ExitStack() as stack:
        for number in range(IDLE):
            stack.enter_context(closing(stranger(server.address)))
            if number % 20 == 0:
                began = monotonic()
                client = stack.enter_context(client_of(server))
                assert client.request(FrameKind.PULL, b"mine").meta == b"mine"
                assert monotonic() - began < LONGEST
        threads = sum(thread.name == "bulk" for thread in threading.enumerate())
        assert threads < IDLE // 20 + 64 + 64, "one for each that has proved it, and few for others"


def test_the_oldest_that_has_proved_nothing_goes_first(caplog: pytest.LogCaptureFixture) -> None:
    server = BulkServer("127.0.0.1:0", TOKEN, echo, max_body_bytes=MAX_BODY, max_unauthenticated=2)
    server.start()
    with ExitStack() as stack, caplog.at_level(logging.WARNING):
        stack.callback(server.stop)
        client = stack.enter_context(client_of(server))
        first, second, third = (stack.enter_context(closing(stranger(server.address))) for _ in range(3))
        assert is_closed(first)
        second.settimeout(0.0)
        third.settimeout(0.0)
        for sock in (second, third):
            with pytest.raises(BlockingIOError):
                sock.recv(1)
        assert client.request(FrameKind.PULL, b"mine").meta == b"mine"
        warnings = [record.getMessage() for record in caplog.records if record.name == "edl.transport.bulk_server"]
        assert len(warnings) == 1
        assert server.address in warnings[0]


def test_those_that_have_proved_it_have_a_bound_of_their_own() -> None:
    server = BulkServer("127.0.0.1:0", TOKEN, echo, max_body_bytes=MAX_BODY, max_connections=1, max_unauthenticated=8)
    server.start()
    with ExitStack() as stack:
        stack.callback(server.stop)
        client = stack.enter_context(client_of(server))
        for _ in range(3):
            with pytest.raises(RetryableError):
                client_of(server)
        assert client.request(FrameKind.PULL, b"first").meta == b"first"
