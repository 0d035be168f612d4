"""What a peer can make a connection allocate: it follows the bytes that came, not the sizes that heads announce."""

from __future__ import annotations

import os
import socket
import threading
import tracemalloc
from collections.abc import Iterator

import pytest

from edl.api.errors import RetryableError
from edl.transport.bulk_connection import (
    MAX_META_BYTES,
    READ_AHEAD_BYTES,
    BulkConnection,
    FrameKind,
    FrameLimits,
    encode_frame_head,
)

LIMITS = FrameLimits(MAX_META_BYTES, 1 << 34)
SLACK = 1 << 20
"""Bytes: what Python itself takes meanwhile."""


@pytest.fixture
def connection_pair() -> Iterator[tuple[BulkConnection, socket.socket]]:
    ours, theirs = socket.socketpair()
    connection = BulkConnection(ours, "the peer", LIMITS, 5.0)
    yield connection, theirs
    connection.close()
    theirs.close()


@pytest.mark.parametrize("sent", [0, 1, 100_000])
@pytest.mark.parametrize("announced", [1 << 27, 1 << 34])
def test_a_body_that_does_not_come_costs_no_memory(
    announced: int, sent: int, connection_pair: tuple[BulkConnection, socket.socket]
) -> None:
    connection, theirs = connection_pair
    theirs.sendall(encode_frame_head(FrameKind.PUSH, 0, announced) + bytes(sent))
    theirs.close()
    tracemalloc.start()
    try:
        with pytest.raises(RetryableError):
            connection.receive()
        assert tracemalloc.get_traced_memory()[1] <= 2 * (sent + READ_AHEAD_BYTES) + SLACK
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "size", [READ_AHEAD_BYTES - 1, READ_AHEAD_BYTES, READ_AHEAD_BYTES + 1, 5 * READ_AHEAD_BYTES + 77]
)
def test_a_large_body_arrives_whole_and_takes_at_most_twice_its_size(
    size: int, connection_pair: tuple[BulkConnection, socket.socket]
) -> None:
    connection, theirs = connection_pair
    body = os.urandom(size)
    writer = threading.Thread(
        target=theirs.sendall, args=(encode_frame_head(FrameKind.PUSH, 4, size) + b"meta" + body,)
    )
    writer.start()
    tracemalloc.start()
    try:
        frame = connection.receive()
        assert tracemalloc.get_traced_memory()[1] <= 2 * (size + READ_AHEAD_BYTES) + SLACK
    finally:
        tracemalloc.stop()
        writer.join()
    assert (frame.meta, bytes(frame.body) == body) == (b"meta", True)


def test_a_large_body_is_followed_by_a_small_one(connection_pair: tuple[BulkConnection, socket.socket]) -> None:
    connection, theirs = connection_pair
    large = os.urandom(3 * READ_AHEAD_BYTES)
    frames = (
        encode_frame_head(FrameKind.PUSH, 0, len(large)) + large + encode_frame_head(FrameKind.PULL, 1, 3) + b"mabc"
    )
    writer = threading.Thread(target=theirs.sendall, args=(frames,))
    writer.start()
    assert bytes(connection.receive().body) == large
    frame = connection.receive()
    writer.join()
    assert (frame.kind, frame.meta, bytes(frame.body)) == (FrameKind.PULL, b"m", b"abc")
