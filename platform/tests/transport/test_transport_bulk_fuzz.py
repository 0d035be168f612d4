"""Any bytes on the bulk plane: an error or a closed connection for who sent them, and nothing for anybody else."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.examples import examples

from edl.api.errors import EdlError
from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_connection import (
    FRAME_MAGIC,
    HEAD_SIZE,
    MAX_META_BYTES,
    FrameKind,
    OutgoingFrame,
    ReceivedFrame,
    encode_frame_head,
)
from edl.transport.bulk_server import BulkServer
from edl.transport.handshake import PROTOCOL_VERSION
from edl.transport.peer_errors import BulkRefusedError

TOKEN = "the-token-of-these-tests"
MAX_BODY = 1 << 16
MANY = settings(
    deadline=None,
    max_examples=examples(200),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
LENGTHS = st.one_of(
    st.integers(0, 40), st.sampled_from([MAX_META_BYTES, MAX_META_BYTES + 1, MAX_BODY, MAX_BODY + 1, 2**31, 2**32 - 1])
)
HELLO = encode_frame_head(FrameKind.HELLO, len(TOKEN), 0) + TOKEN.encode()


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """Heads that are right but for some of their fields."""
    magic = draw(st.sampled_from([FRAME_MAGIC, FRAME_MAGIC, FRAME_MAGIC, b"EDLC", b"\0\0\0\0"]))
    version = draw(st.sampled_from([PROTOCOL_VERSION] * 5 + [0, PROTOCOL_VERSION + 1, 2**16 - 1]))
    kind = draw(st.one_of(st.sampled_from([int(kind) for kind in FrameKind]), st.integers(0, 2**16 - 1)))
    body = draw(st.one_of(LENGTHS, st.sampled_from([2**40, 2**63, 2**64 - 1])))
    return struct.pack("<4sHHIQ", magic, version, kind, draw(LENGTHS), body)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Whole frames."""
    meta, body = draw(st.binary(max_size=40)), draw(st.binary(max_size=200))
    return encode_frame_head(draw(st.sampled_from(FrameKind)), len(meta), len(body)) + meta + body


@st.composite
def byte_streams(draw: st.DrawFn) -> bytes:
    """What somebody sends who may know the token, and who may stop anywhere."""
    parts = draw(st.lists(st.one_of(frames(), heads(), st.binary(max_size=60)), max_size=4))
    sent = b"".join([*draw(st.sampled_from([[HELLO], [HELLO], []])), *parts])
    return sent[: draw(st.integers(0, len(sent)))] if draw(st.booleans()) else sent


def echo(frame: ReceivedFrame) -> OutgoingFrame:
    return OutgoingFrame(FrameKind.PULLED, frame.meta, [frame.body])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BulkServer]:
    server = BulkServer(f"unix:{tmp_path_factory.mktemp('fuzz')}/s", TOKEN, echo, max_body_bytes=MAX_BODY)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def other_client(server: BulkServer) -> Iterator[BulkClient]:
    """Somebody else's connection."""
    with BulkClient(server.address, TOKEN, timeout=20) as client:
        yield client


@MANY
@given(byte_streams())
@example(b"")
@example(HELLO)
@example(HELLO + HELLO)
@example(HELLO + encode_frame_head(FrameKind.PUSH, MAX_META_BYTES, MAX_BODY))
@example(encode_frame_head(FrameKind.HELLO, 0, 0))
@example(encode_frame_head(FrameKind.HELLO, MAX_META_BYTES, 0))
def test_a_server_answers_whole_frames_or_hangs_up_and_serves_the_others(
    server: BulkServer, other_client: BulkClient, caplog: pytest.LogCaptureFixture, said: bytes
) -> None:
    caplog.clear()
    answers = answers_to(server.address, said)
    assert not answers or answers[0] in (FrameKind.WELCOME, FrameKind.REFUSED)
    assert FrameKind.REFUSED not in answers[:-1]
    assert other_client.request(FrameKind.PULL, b"still here").meta == b"still here"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_server_keeps_nothing_of_those_who_sent_garbage(server: BulkServer, other_client: BulkClient) -> None:
    before = threading.active_count()
    for _ in range(20):
        answers_to(server.address, HELLO + encode_frame_head(FrameKind.PUSH, 9, 9) + b"short")
    assert other_client.request(FrameKind.PULL, b"").kind is FrameKind.PULLED
    assert threading.active_count() <= before + 1  # the last one may be on its way out


def answers_to(address: str, said: bytes) -> list[FrameKind]:
    """Say something, stop talking, and listen to the end."""
    with closing(socket.socket(socket.AF_UNIX)) as sock:
        sock.settimeout(20)
        sock.connect(address.removeprefix("unix:"))
        with suppress(OSError):  # it has hung up before we were done: what it said can be read
            sock.sendall(said)
            sock.shutdown(socket.SHUT_WR)
        return kinds(received_bytes(sock))


def received_bytes(sock: socket.socket) -> bytes:
    parts = []
    with suppress(ConnectionResetError):
        while part := sock.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def kinds(data: bytes) -> list[FrameKind]:
    """The kinds of the frames that these bytes are, all of them whole."""
    frame_kinds = []
    while data:
        magic, version, kind, meta, body = struct.unpack_from("<4sHHIQ", data)
        assert (magic, version) == (FRAME_MAGIC, PROTOCOL_VERSION)
        assert len(data) >= HEAD_SIZE + meta + body
        frame_kinds.append(FrameKind(kind))
        data = data[HEAD_SIZE + meta + body :]
    return frame_kinds


# ------------------------------------------------------------------ the other side

WELCOME = encode_frame_head(FrameKind.WELCOME, 0, 0)


@st.composite
def replies(draw: st.DrawFn) -> bytes:
    """What a server says that may be none."""
    parts = draw(st.lists(st.one_of(frames(), heads(), st.binary(max_size=60)), max_size=3))
    return b"".join([*draw(st.sampled_from([[WELCOME], [WELCOME], []])), *parts])


class MalformedServer:
    """Listens, lets a client say HELLO, says what it is told to, and hangs up."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix:{folder}/f"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{folder}/f")
        self._listener.listen()

    def send(self, reply: bytes) -> threading.Thread:
        thread = threading.Thread(target=self._one, args=(reply,))
        thread.start()
        return thread

    def _one(self, reply: bytes) -> None:
        with closing(self._listener.accept()[0]) as sock:
            sock.recv(len(HELLO), socket.MSG_WAITALL)
            with suppress(BrokenPipeError, ConnectionResetError):  # the client has heard enough
                sock.sendall(reply)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(scope="module")
def false_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MalformedServer]:
    with closing(MalformedServer(tmp_path_factory.mktemp("false"))) as server:
        yield server


@MANY
@given(replies())
@example(b"")
@example(WELCOME + encode_frame_head(FrameKind.REFUSED, 3, 0) + b"\xff\xff\xff")
@example(encode_frame_head(FrameKind.REFUSED, 0, 0))
@example(WELCOME + encode_frame_head(FrameKind.PULLED, MAX_META_BYTES, 0))
@example(encode_frame_head(FrameKind.PULLED, 0, 0))
def test_a_client_gets_frames_or_an_error_that_names_the_server(false_server: MalformedServer, reply: bytes) -> None:
    speaking = false_server.send(reply)
    with pytest.raises(EdlError) as caught:
        listen(false_server.address)
    speaking.join()
    assert false_server.address in str(caught.value)


def listen(address: str) -> NoReturn:
    target = bytearray(16)
    with BulkClient(address, TOKEN, timeout=20, max_body=MAX_BODY) as client:
        while True:
            assert isinstance(client.receive(memoryview(target)), ReceivedFrame)


def test_only_a_welcome_is_one(false_server: MalformedServer) -> None:
    speaking = false_server.send(encode_frame_head(FrameKind.PULLED, 0, 0))
    with pytest.raises(BulkRefusedError, match=r"PULLED.* HELLO.* WELCOME") as caught:
        BulkClient(false_server.address, TOKEN, timeout=20)
    speaking.join()
    assert caught.value.where == false_server.address
