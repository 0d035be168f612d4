"""The bulk plane as its users see it: the same cases over a Unix socket and over TCP."""

from __future__ import annotations

import logging
import os
import queue
import re
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from edl.api.errors import RefusedError, RetryableError
from edl.transport import bulk_server
from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_connection import (
    MAX_META_BYTES,
    BulkConnection,
    FrameKind,
    OutgoingFrame,
    ReceivedFrame,
    encode_frame_head,
)
from edl.transport.bulk_server import BulkServer
from edl.transport.edl_pb2 import Refusal
from edl.transport.handshake import PROTOCOL_VERSION
from edl.transport.peer_errors import BulkRefusedError, PeerRefusedError

TOKEN = "0123456789abcdef" * 4
MAX_BODY = 1 << 20


def echo(frame: ReceivedFrame) -> OutgoingFrame:
    return OutgoingFrame(frame.kind, frame.meta, [frame.body])


@pytest.fixture(params=["unix", "tcp"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"unix:{tmp_path}/s" if request.param == "unix" else "127.0.0.1:0"


Start = Callable[..., BulkServer]


@pytest.fixture
def start(address: str) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(
            handle: Callable[[ReceivedFrame], OutgoingFrame] = echo, at: str = address, **options: Any
        ) -> BulkServer:
            server = BulkServer(at, TOKEN, handle, max_body_bytes=MAX_BODY, **options)
            stack.callback(server.stop)
            server.start()
            return server

        yield start


def client_of(server: BulkServer, token: str = TOKEN) -> BulkClient:
    return BulkClient(server.address, token, timeout=10.0)


def stranger(address: str) -> socket.socket:
    """Connect without the client's code."""
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address.removeprefix("unix:"))
        return sock
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


def last_word(sock: socket.socket) -> Refusal:
    """Read what the server says before it hangs up."""
    data = b"".join(iter(lambda: sock.recv(4096), b""))
    _, version, kind, size, body = struct.unpack_from("<4sHHIQ", data)
    assert (version, kind, body) == (PROTOCOL_VERSION, FrameKind.REFUSED, 0)
    return Refusal.FromString(data[20 : 20 + size])


@pytest.mark.parametrize("size", [0, 1, 400_000, MAX_BODY])
def test_a_frame_comes_back_as_it_went(start: Start, size: int) -> None:
    body = os.urandom(size)
    with client_of(start()) as client:
        for _ in range(3):
            frame = client.request(FrameKind.PUSH, b"head", [body[: size // 3], body[size // 3 :]])
            assert (frame.kind, frame.meta, bytes(frame.body)) == (FrameKind.PUSH, b"head", body)


def test_an_answer_into_given_memory(start: Start) -> None:
    target = bytearray(8)
    with client_of(start()) as client:
        client.request(FrameKind.PULL, b"", [b"12345"], into=memoryview(target))
    assert target == b"12345\0\0\0"


def test_requests_may_be_sent_ahead(start: Start) -> None:
    with client_of(start()) as client:
        for number in range(20):
            client.send(FrameKind.PULL, b"%d" % number)
        assert [client.receive().meta for _ in range(20)] == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], TOKEN + "0"])
def test_a_wrong_token_is_refused(start: Start, token: str) -> None:
    with pytest.raises(BulkRefusedError, match="token") as refused:
        client_of(start(), token)
    assert refused.value.kind == "token"


def test_refused_connections_do_not_fill_the_log(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    server = start(echo)
    for _ in range(20):
        with pytest.raises(BulkRefusedError, match="token"):
            client_of(server, "wrong")
    server.stop()
    warnings = [record.getMessage() for record in caplog.records if "is refused" in record.getMessage()]
    assert len(warnings) == 1, warnings


def test_a_token_that_is_too_long_is_refused_unread(start: Start) -> None:
    with pytest.raises(BulkRefusedError, match="larger than"):
        client_of(start(), "x" * 5000)


def test_another_version_is_refused_with_both_named(start: Start) -> None:
    with closing(stranger(start().address)) as sock:
        sock.sendall(struct.pack("<4sHHIQ", b"EDLB", 99, FrameKind.HELLO, len(TOKEN), 0) + TOKEN.encode())
        refusal = last_word(sock)
    assert refusal.kind == "version"
    assert re.search(rf"\b{PROTOCOL_VERSION}\b.*\b99\b", refusal.reason)


def test_a_server_of_another_version_is_refused_with_both_named(tmp_path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(f"{tmp_path}/s")
        listener.listen()

        def answer() -> None:
            with closing(listener.accept()[0]) as sock:
                sock.recv(1000)
                sock.sendall(struct.pack("<4sHHIQ", b"EDLB", 99, FrameKind.WELCOME, 0, 0))

        server = threading.Thread(target=answer)
        server.start()
        with pytest.raises(BulkRefusedError, match=rf"\b{PROTOCOL_VERSION}\b.*\b99\b") as refused:
            BulkClient(f"unix:{tmp_path}/s", TOKEN, timeout=5.0)
        server.join()
    assert refused.value.kind == "version"


def test_a_stranger_cannot_send_a_body(start: Start) -> None:
    with closing(stranger(start().address)) as sock:
        sock.sendall(encode_frame_head(FrameKind.HELLO, 4, 1 << 40))
        assert last_word(sock).kind == "bad"


def test_a_stranger_must_say_hello_first(start: Start) -> None:
    with closing(stranger(start().address)) as sock:
        sock.sendall(encode_frame_head(FrameKind.PULL, 0, 0))
        assert last_word(sock).kind == "token"


def test_a_stranger_must_speak_soon(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_server, "_HANDSHAKE_SECONDS", 0.05)
    with closing(stranger(start().address)) as sock:
        assert sock.recv(100) == b""


def test_garbage_ends_the_connection_and_no_other(start: Start) -> None:
    server = start()
    with client_of(server) as client, closing(stranger(server.address)) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert last_word(sock).kind == "bad"
        assert client.request(FrameKind.PULL, b"still here").meta == b"still here"


def test_a_body_above_the_limit_is_refused_with_the_reason(start: Start) -> None:
    with client_of(start()) as client, pytest.raises(BulkRefusedError, match=f" \\+ {MAX_BODY}$"):
        client.request(FrameKind.PUSH, b"", [bytes(MAX_BODY + 1)])


def test_an_answer_above_the_clients_limit_is_refused(start: Start) -> None:
    with (
        BulkClient(start().address, TOKEN, timeout=5.0, max_body=10) as client,
        pytest.raises(BulkRefusedError, match=f"larger than {MAX_META_BYTES} \\+ 10"),
    ):
        client.request(FrameKind.PULL, b"", [bytes(11)])


def test_a_refusal_has_its_kind_and_the_connection_lives_on(start: Start) -> None:
    def handle(frame: ReceivedFrame) -> OutgoingFrame:
        if frame.kind is FrameKind.PUSH:
            raise PeerRefusedError("Lease 7 was revoked", kind="revoked", hint="take another")
        if frame.kind is FrameKind.SCAN_ROWS:
            raise RefusedError("No such table")
        return echo(frame)

    server = start(handle)
    with client_of(server) as client:
        with pytest.raises(BulkRefusedError, match="Lease 7 was revoked") as refused:
            client.request(FrameKind.PUSH, b"")
        assert (refused.value.kind, refused.value.where) == ("revoked", server.address)
        assert (refused.value.message, refused.value.hint) == ("Lease 7 was revoked", "take another")
        with pytest.raises(BulkRefusedError) as refused:
            client.request(FrameKind.SCAN_ROWS, b"")
        assert (refused.value.kind, refused.value.hint) == ("bad", None)
        assert client.request(FrameKind.PULL, b"on").meta == b"on"


@pytest.mark.parametrize("text", ["a\ud800b", "x" * (2 << 20)], ids=["half of a pair", "2 MiB"])
def test_whatever_a_refusal_quotes_it_arrives(start: Start, text: str) -> None:
    def handle(frame: ReceivedFrame) -> OutgoingFrame:
        raise PeerRefusedError(text, kind="full", hint=text)

    with client_of(start(handle)) as client:
        for _ in range(2):
            with pytest.raises(BulkRefusedError) as refused:
                client.request(FrameKind.PULL, b"")
            assert refused.value.kind == "full"


def test_a_mistake_in_the_handler_is_logged_and_told(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    def handle(frame: ReceivedFrame) -> OutgoingFrame:
        raise ZeroDivisionError("boom")

    with client_of(start(handle)) as client, pytest.raises(BulkRefusedError, match="boom") as refused:
        client.request(FrameKind.PULL, b"")
    assert refused.value.kind == "internal"
    assert any(record.exc_info for record in caplog.records if record.levelno == logging.ERROR)


def test_a_peer_that_may_try_again_is_not_refused(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    def handle(frame: ReceivedFrame) -> OutgoingFrame:
        if not frame.meta:
            raise RetryableError("not yet")
        return OutgoingFrame(FrameKind.PULLED, frame.meta)

    server = start(handle)
    with client_of(server) as client, pytest.raises(RetryableError):
        client.request(FrameKind.PULL, b"")
    with client_of(server) as client:
        assert client.request(FrameKind.PULL, b"on").meta == b"on"
    assert not caplog.records


def test_a_body_that_there_is_no_memory_for_is_refused_and_others_are_served(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer whose connection just ended would send the same again and again."""

    room = BulkConnection._body_buffer

    def none_left(connection: BulkConnection, size: int, into: memoryview | None) -> memoryview:
        if size:
            raise MemoryError
        return room(connection, size, into)

    server = start(lambda frame: OutgoingFrame(FrameKind.PULLED, b"on"))
    with monkeypatch.context() as little:
        little.setattr(BulkConnection, "_body_buffer", none_left)
        with client_of(server) as client, pytest.raises(BulkRefusedError, match="no memory for a frame") as refused:
            client.request(FrameKind.PUSH, b"", [bytes(9)])
    assert refused.value.kind == "full"
    with client_of(server) as client:
        assert client.request(FrameKind.PULL, b"").meta == b"on"


def test_a_slow_answer_ends_in_an_error_that_names_the_peer(start: Start) -> None:
    release = threading.Event()

    def handle(frame: ReceivedFrame) -> OutgoingFrame:
        release.wait(10)
        return echo(frame)

    server = start(handle)
    client = BulkClient(server.address, TOKEN, timeout=0.1)
    with pytest.raises(RetryableError, match="silent") as error:
        client.request(FrameKind.PULL, b"")
    release.set()
    assert error.value.where == server.address


def test_nobody_listens(start: Start) -> None:
    server = start()
    server.stop()
    with pytest.raises(RetryableError, match="cannot be reached") as error:
        client_of(server)
    assert error.value.where == server.address


def test_a_server_is_back_on_its_address(start: Start) -> None:
    server = start()
    client = client_of(server)
    server.stop()
    with pytest.raises(RetryableError):
        client.request(FrameKind.PULL, b"")
    start(at=server.address)
    with client_of(server) as client:
        assert client.request(FrameKind.PULL, b"again").meta == b"again"


def test_stop_ends_open_connections_and_is_harmless_twice(start: Start) -> None:
    server = start()
    with client_of(server) as client:
        server.stop()
        server.stop()
        with pytest.raises(RetryableError):
            client.receive()


def test_a_server_that_never_started_can_be_stopped(address: str) -> None:
    BulkServer(address, TOKEN, echo, max_body_bytes=1).stop()


def test_the_end_of_a_connection_is_told_in_its_own_thread(start: Start) -> None:
    served: list[int] = []
    parted: queue.SimpleQueue[int] = queue.SimpleQueue()

    def handle(frame: ReceivedFrame) -> OutgoingFrame:
        served.append(threading.get_ident())
        return echo(frame)

    server = start(handle, on_disconnect=lambda: parted.put(threading.get_ident()))
    with client_of(server) as client:
        client.request(FrameKind.PULL, b"")
        assert parted.empty()
    assert parted.get(timeout=10) == served[0]


def test_many_connections_at_once(start: Start) -> None:
    server = start()
    failures: list[BaseException] = []

    def use(number: int) -> None:
        body = bytes([number]) * 10_000
        try:
            with client_of(server) as client:
                assert all(bytes(client.request(FrameKind.PUSH, b"", [body]).body) == body for _ in range(5))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_more_connections_than_allowed_are_turned_away(start: Start) -> None:
    server = start(max_connections=1)
    with client_of(server) as client:
        with pytest.raises(RetryableError):
            client_of(server)
        assert client.request(FrameKind.PULL, b"first").meta == b"first"


def test_nothing_is_left_after_stop(start: Start) -> None:
    process = psutil.Process()
    start().stop()
    before = process.num_fds(), threading.active_count()
    for _ in range(5):
        server = start()
        clients = [client_of(server) for _ in range(8)]
        server.stop()
        for client in clients:
            client.close()
    assert (process.num_fds(), threading.active_count()) == before


def test_a_socket_file_is_private_and_goes_with_its_server(tmp_path: Path) -> None:
    path = tmp_path / "s"
    server = BulkServer(f"unix:{path}", TOKEN, echo, max_body_bytes=1)
    server.start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    server.stop()
    assert list(tmp_path.iterdir()) == []


def test_a_live_servers_address_is_not_taken(start: Start) -> None:
    server = start()
    with pytest.raises(RefusedError) as error:
        start(at=server.address)
    assert error.value.where == server.address


KILLED = """
import signal, sys
from edl.transport.bulk_server import BulkServer
server = BulkServer(sys.argv[1], sys.argv[2], None, max_body_bytes=1)
server.start()
print(server.address, flush=True)
signal.pause()
"""


def test_a_killed_servers_address_is_used_again(start: Start, address: str) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, address, TOKEN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        served_address = process.stdout.readline().strip()
        client = BulkClient(served_address, TOKEN, timeout=10.0)
        process.send_signal(signal.SIGKILL)
    with pytest.raises(RetryableError):
        client.request(FrameKind.PULL, b"")
    with client_of(start(at=served_address)) as client:
        assert client.request(FrameKind.PULL, b"back").meta == b"back"


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("keep")
    server = BulkServer(f"unix:{path}", TOKEN, echo, max_body_bytes=1)
    with pytest.raises(RefusedError, match="cannot listen"):
        server.start()
    server.stop()
    assert path.read_text() == "keep"
