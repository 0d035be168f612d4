"""What a peer can make a connection allocate: it follows the bytes that came, not the sizes that heads announce."""

from __future__ import annotations

import os
import socket
import threading
import tracemalloc
from collections.abc import Iterator

import pytest

from edl.api.errors import RetryableError
from edl.transport.bulk_connection import AHEAD, Connection
from edl.transport.bulk_frames import MAX_META, Kind, Limits, encode_head

LIMITS = Limits(MAX_META, 1 << 34)
SLACK = 1 << 20
"""Bytes: what Python itself takes meanwhile."""


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    connection = Connection(ours, "the peer", LIMITS, 5.0)
    yield connection, theirs
    connection.close()
    theirs.close()


@pytest.mark.parametrize("sent", [0, 1, 100_000])
@pytest.mark.parametrize("announced", [1 << 27, 1 << 34])
def test_a_body_that_does_not_come_costs_no_memory(
    announced: int, sent: int, pair: tuple[Connection, socket.socket]
) -> None:
    connection, theirs = pair
    theirs.sendall(encode_head(Kind.PUSH, 0, announced) + bytes(sent))
    theirs.close()
    tracemalloc.start()
    try:
        with pytest.raises(RetryableError):
            connection.receive()
        assert tracemalloc.get_traced_memory()[1] <= 2 * (sent + AHEAD) + SLACK
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [AHEAD - 1, AHEAD, AHEAD + 1, 5 * AHEAD + 77])
def test_a_large_body_arrives_whole_and_takes_at_most_twice_its_size(
    size: int, pair: tuple[Connection, socket.socket]
) -> None:
    connection, theirs = pair
    body = os.urandom(size)
    writer = threading.Thread(target=theirs.sendall, args=(encode_head(Kind.PUSH, 4, size) + b"meta" + body,))
    writer.start()
    tracemalloc.start()
    try:
        frame = connection.receive()
        assert tracemalloc.get_traced_memory()[1] <= 2 * (size + AHEAD) + SLACK
    finally:
        tracemalloc.stop()
        writer.join()
    assert (frame.meta, bytes(frame.body) == body) == (b"meta", True)


def test_a_large_body_is_followed_by_a_small_one(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    large = os.urandom(3 * AHEAD)
    frames = encode_head(Kind.PUSH, 0, len(large)) + large + encode_head(Kind.PULL, 1, 3) + b"mabc"
    writer = threading.Thread(target=theirs.sendall, args=(frames,))
    writer.start()
    assert bytes(connection.receive().body) == large
    frame = connection.receive()
    writer.join()
    assert (frame.kind, frame.meta, bytes(frame.body)) == (Kind.PULL, b"m", b"abc")
