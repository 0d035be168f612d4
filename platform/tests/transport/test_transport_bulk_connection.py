"""One connection: bytes arrive whole and in order however the kernel cuts them, and waiting ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.api.errors import RetryableError
from edl.transport.bulk_connection import (
    HEAD_SIZE,
    MAX_META_BYTES,
    BulkConnection,
    FrameKind,
    FrameLimits,
    encode_frame_head,
    remaining_views,
    send_buffers,
)
from edl.transport.peer_errors import PeerRefusedError

LIMITS = FrameLimits(MAX_META_BYTES, 1 << 26)


class TricklingSocket:
    """A socket that takes a few bytes at a time."""

    def __init__(self, sizes: list[int]) -> None:
        self.taken = b""
        self._sizes = cycle(sizes)

    def sendmsg(self, views: list[memoryview]) -> int:
        part = b"".join(views)[: next(self._sizes)]
        self.taken += part
        return len(part)


@given(st.lists(st.binary(max_size=50), max_size=20), st.lists(st.integers(1, 60), min_size=1))
def test_partial_sends_lose_and_repeat_nothing(pieces: list[bytes], sizes: list[int]) -> None:
    sock = TricklingSocket(sizes)
    send_buffers(sock, pieces)  # type: ignore[arg-type]
    assert sock.taken == b"".join(pieces)


def test_more_pieces_than_one_system_call_takes() -> None:
    pieces = [bytes([number % 251]) for number in range(3000)]
    sock = TricklingSocket([700])
    send_buffers(sock, pieces)  # type: ignore[arg-type]
    assert sock.taken == b"".join(pieces)


@given(st.lists(st.binary(max_size=9)), st.data())
def test_what_remains_is_the_rest(pieces: list[bytes], data: st.DataObject) -> None:
    content = b"".join(pieces)
    count = data.draw(st.integers(0, len(content)))
    rest = remaining_views([memoryview(piece) for piece in pieces], count)
    assert b"".join(rest) == content[count:]
    assert all(view.nbytes for view in rest)


@pytest.fixture
def connection_pair() -> Iterator[tuple[BulkConnection, socket.socket]]:
    ours, theirs = socket.socketpair()
    connection = BulkConnection(ours, "the peer", LIMITS, 5.0)
    yield connection, theirs
    connection.close()
    theirs.close()


def test_arrays_travel_as_raw_bytes(connection_pair: tuple[BulkConnection, socket.socket]) -> None:
    connection, theirs = connection_pair
    slab, ids, nothing = np.arange(6, dtype=np.float32), np.array([[7], [8]]), np.empty((0, 4), np.float32)
    connection.send(FrameKind.PUSH, b"meta", [slab, ids, nothing])
    body = slab.tobytes() + ids.tobytes()
    assert theirs.recv(1000) == encode_frame_head(FrameKind.PUSH, 4, len(body)) + b"meta" + body


def test_strided_memory_is_a_mistake_of_the_caller(connection_pair: tuple[BulkConnection, socket.socket]) -> None:
    with pytest.raises(TypeError, match="contiguous"):
        connection_pair[0].send(FrameKind.PUSH, b"", [np.arange(6)[::2]])


def test_a_frame_that_comes_byte_by_byte(connection_pair: tuple[BulkConnection, socket.socket]) -> None:
    connection, theirs = connection_pair
    data = encode_frame_head(FrameKind.PULL, 3, 20_000) + b"abc" + bytes(range(250)) * 80

    def send_slowly() -> None:
        for byte in data[:60]:
            theirs.send(bytes([byte]))
        theirs.sendall(data[60:])

    sender = threading.Thread(target=send_slowly)
    sender.start()
    frame = connection.receive()
    sender.join()
    assert (frame.kind, frame.meta, bytes(frame.body)) == (FrameKind.PULL, b"abc", bytes(range(250)) * 80)


def test_the_buffer_is_used_again_and_grows(connection_pair: tuple[BulkConnection, socket.socket]) -> None:
    connection, theirs = connection_pair
    theirs.sendall((encode_frame_head(FrameKind.PULL, 0, 8) + b"12345678") * 2)
    assert connection.receive().body.obj is connection.receive().body.obj
    large = bytes(100_000)
    writer = threading.Thread(target=theirs.sendall, args=(encode_frame_head(FrameKind.PULL, 0, len(large)) + large,))
    writer.start()
    assert connection.receive().body.nbytes == len(large)
    writer.join()


@pytest.mark.parametrize("size", [0, 8, 12, 20])
def test_a_body_goes_to_the_given_memory_if_it_fits(
    size: int, connection_pair: tuple[BulkConnection, socket.socket]
) -> None:
    connection, theirs = connection_pair
    slab = np.zeros(3, np.float32)
    theirs.sendall(encode_frame_head(FrameKind.PULLED, 0, size) + b"\1" * size)
    body = connection.receive(memoryview(slab)).body
    assert bytes(body) == b"\1" * size
    assert slab.tobytes() == (b"\1" * size).ljust(12, b"\0") if size <= 12 else not slab.any()


def test_a_frame_above_the_limits_is_refused_unread(connection_pair: tuple[BulkConnection, socket.socket]) -> None:
    connection, theirs = connection_pair
    theirs.sendall(encode_frame_head(FrameKind.PUSH, 0, LIMITS.body + 1))
    with pytest.raises(PeerRefusedError, match="larger than"):
        connection.receive()


@pytest.mark.parametrize("size", [0, 1, HEAD_SIZE - 1, HEAD_SIZE, HEAD_SIZE + 7])
def test_a_peer_that_ends_within_a_frame_is_gone(
    size: int, connection_pair: tuple[BulkConnection, socket.socket]
) -> None:
    connection, theirs = connection_pair
    theirs.sendall((encode_frame_head(FrameKind.PUSH, 2, 6) + b"abcdefgh")[:size])
    theirs.close()
    with pytest.raises(RetryableError, match="the peer: The peer is gone"):
        connection.receive()


@pytest.mark.parametrize("size", [0, 5])
def test_a_silent_peer_is_not_waited_for(size: int, connection_pair: tuple[BulkConnection, socket.socket]) -> None:
    connection, theirs = connection_pair
    theirs.send(bytes(size))
    connection.set_timeout(0.05)
    with pytest.raises(RetryableError, match="the peer: The peer is silent"):
        connection.receive()


def test_a_peer_that_does_not_read_is_not_waited_for(connection_pair: tuple[BulkConnection, socket.socket]) -> None:
    connection, _ = connection_pair
    connection.set_timeout(0.05)
    with pytest.raises(RetryableError, match="sending took longer"):
        connection.send(FrameKind.PUSH, b"", [bytes(1 << 25)])


def test_a_dribbling_stranger_meets_the_deadline(connection_pair: tuple[BulkConnection, socket.socket]) -> None:
    connection, theirs = connection_pair
    ended = threading.Event()

    def send_slowly() -> None:
        while not ended.wait(0.02):
            theirs.send(b"E")

    connection.set_timeout(0.03)
    sender = threading.Thread(target=send_slowly)
    sender.start()
    try:
        with pytest.raises(RetryableError, match="silent"):
            connection.receive(frame_timeout=0.0)
    finally:
        ended.set()
        sender.join()


def test_another_thread_can_end_the_wait(connection_pair: tuple[BulkConnection, socket.socket]) -> None:
    connection, _ = connection_pair
    waker = threading.Timer(0.05, connection.shut_down)
    waker.start()
    with pytest.raises(RetryableError):
        connection.receive()
    waker.join()


def test_a_unix_socket_holds_more_than_it_would_by_itself() -> None:
    """A step's frame is larger than the kernel's own buffer: each side would be woken several times for it."""
    here, other_end = socket.socketpair(socket.AF_UNIX)
    before = here.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    connection = BulkConnection(here, "peer", LIMITS, 1.0)
    try:
        assert here.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > before
    finally:
        connection.close()
        other_end.close()
