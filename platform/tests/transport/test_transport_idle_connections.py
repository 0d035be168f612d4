"""Peers that only connect to the control plane use up no file descriptors, and rightful clients notice nothing."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from edl.transport import control_server, open_files
from edl.transport import edl_pb2 as pb
from edl.transport.control_client import ControlChannel
from edl.transport.control_methods import MasterMethods
from edl.transport.control_server import start_control_server
from edl.transport.edl_pb2_grpc import MasterServicer, add_MasterServicer_to_server

TOKEN = "a-token-of-these-tests"
LIMIT = 128
"""File descriptors of the server."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"

SERVER = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT // 2}, {LIMIT}))
from edl.transport import edl_pb2 as pb
from edl.transport.control_server import start_control_server
from edl.transport.edl_pb2_grpc import MasterServicer, add_MasterServicer_to_server
from edl.transport.open_files import raise_open_files_limit

class Echo(MasterServicer):
    def Progress(self, request, context):
        return pb.ProgressReply(incarnation=request.member.index)

raise_open_files_limit()
server = start_control_server(lambda s: add_MasterServicer_to_server(Echo(), s), sys.argv[1], sys.argv[2], 2)
print(server.address, flush=True)
for line in sys.stdin:
    try:
        for file in [open("/dev/null") for _ in range({LIMIT // 4})]:
            file.close()
        print("opened", flush=True)
    except OSError as error:
        print(error, flush=True)
"""


@pytest.fixture
def server_process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", SERVER, "127.0.0.1:0", TOKEN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield server
        server.kill()


def ask(channel: ControlChannel, index: int) -> int:
    request = pb.ProgressRequest(member=pb.Member(index=index))
    return channel.call(MasterMethods.Progress, request, timeout=5.0).incarnation


def is_open(peer: socket.socket) -> bool:
    try:
        while peer.recv(4096):
            pass
        return False
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@pytest.mark.parametrize("sent", [b"", PREFACE], ids=["silent", "preface"])
def test_connections_that_are_only_held_leave_files_and_calls_alone(
    server_process: subprocess.Popen[str], sent: bytes
) -> None:
    assert server_process.stdin is not None
    assert server_process.stdout is not None
    address = server_process.stdout.readline().strip()
    host, port = address.rsplit(":", 1)
    peers: list[socket.socket] = []
    try:
        with ControlChannel(address, TOKEN) as channel:
            assert ask(channel, 1) == 1
            for _ in range(3 * LIMIT):
                peer = socket.create_connection((host, int(port)))
                peers.append(peer)
                with suppress(ConnectionError):  # closed already
                    peer.sendall(sent)
                peer.setblocking(False)
            for index in range(2, 6):
                time.sleep(0.2)
                assert ask(channel, index) == index
                server_process.stdin.write("open\n")
                server_process.stdin.flush()
                assert server_process.stdout.readline() == "opened\n"
        assert sum(map(is_open, peers)) <= LIMIT // 2
    finally:
        for peer in peers:
            peer.close()


IDLE_MS = 200
"""For which a connection without calls is kept."""


class DelayedService(MasterServicer):
    """Answers at once, or after as many milliseconds as it is asked for."""

    def Progress(self, request: pb.ProgressRequest, context: object) -> pb.ProgressReply:
        time.sleep(request.member.index / 1000)
        return pb.ProgressReply(incarnation=request.member.index)


def wait_disconnected(channel: ControlChannel) -> None:
    """Block until the server has closed the connection of a client that has made a call."""
    disconnected = threading.Event()

    def changed(state: grpc.ChannelConnectivity) -> None:
        if state is grpc.ChannelConnectivity.IDLE:
            disconnected.set()

    connection = channel._connection._channel
    connection.subscribe(changed)
    assert disconnected.wait(30)
    connection.unsubscribe(changed)


def wait_closed(peer: socket.socket) -> None:
    """Block until the server has closed the connection."""
    peer.settimeout(30)
    with suppress(ConnectionError):
        while peer.recv(4096):
            pass


def test_connections_without_calls_are_closed_and_clients_connect_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shorter = {"grpc.server_handshake_timeout_ms": 500, "grpc.max_connection_idle_ms": IDLE_MS}
    options = tuple((name, shorter.pop(name, value)) for name, value in control_server.SERVER_OPTIONS)
    assert not shorter
    monkeypatch.setattr(control_server, "SERVER_OPTIONS", options)
    address = f"unix:{tmp_path}/s"
    server = start_control_server(lambda s: add_MasterServicer_to_server(DelayedService(), s), address, TOKEN, 2)
    silent, preface = (socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(2))
    try:
        for peer, sent in ((silent, b""), (preface, PREFACE)):
            peer.connect(f"{tmp_path}/s")
            peer.sendall(sent)
        with ControlChannel(address, TOKEN) as channel:
            for _ in range(2):
                assert ask(channel, 0) == 0
                wait_disconnected(channel)
            assert ask(channel, 3 * IDLE_MS) == 3 * IDLE_MS, "a call that waits is no idle connection"
        wait_closed(silent)
        wait_closed(preface)
    finally:
        silent.close()
        preface.close()
        server.stop()


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "warned"),
    [
        (1024, 20_000, 20_000, False),
        (1024, resource.RLIM_INFINITY, 1 << 20, False),
        (1024, 1 << 30, 1 << 20, False),
        (1024, 1024, None, True),
        (256, 512, 512, True),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, False),
        (1 << 30, 1 << 30, None, False),
    ],
)
def test_a_role_may_open_as_many_files_as_the_hard_limit_allows(
    soft: int,
    hard: int,
    raised: int | None,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    limits = []
    monkeypatch.setattr(open_files.resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(open_files.resource, "setrlimit", lambda _, both: limits.append(both))
    open_files.raise_open_files_limit()
    assert limits == ([] if raised is None else [(raised, hard)])
    assert bool(capsys.readouterr().err) == warned
