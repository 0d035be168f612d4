"""The supervisor's socket against strangers and slow readers."""

from __future__ import annotations

import errno
import json
import re
import resource
import socket
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.cluster.local import supervisor_protocol
from edl.cluster.local import supervisor_server as server_module
from edl.cluster.local.supervisor_server import EventLoop, SupervisorServer

POD = PodStatus("worker-0-u", Role.WORKER, 0, PodPhase.RUNNING, reason="Started", pid=1)


class OnePod:
    def start(self, role: Role, index: int) -> str:
        return POD.uid

    def delete(self, uid: str, grace: float) -> None:
        """Nothing to do."""

    def list_pods(self) -> Iterable[PodStatus]:
        return [POD]


class ServerHarness:
    """A server and its loop, turned by the test, with clients that the test speaks for byte by byte."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "s"
        self.loop = EventLoop()
        self.server = SupervisorServer(self.loop, self.path, "secret", OnePod())
        self.clients: list[socket.socket] = []

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.connect(str(self.path))
        client.setblocking(False)
        self.clients.append(client)
        self.loop.run_once()
        return client

    def read(self, client: socket.socket) -> bytes:
        """Turn the loop until the server has said something to the client or left it."""
        while True:
            try:
                return client.recv(1 << 20)
            except BlockingIOError:
                self.loop.run_once()

    def drain(self, client: socket.socket) -> bytes:
        data = b""
        while piece := self.read(client):
            data += piece
        return data

    def close(self) -> None:
        self.server.close()
        self.loop.close()
        for client in self.clients:
            client.close()


@pytest.fixture
def harness() -> Iterator[ServerHarness]:
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        harness = ServerHarness(Path(folder))
        yield harness
        harness.close()


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (supervisor_protocol.encode_message({"edl": 2, "token": "secret"}), r"version 1 .* client has 2"),
        (supervisor_protocol.encode_message({"edl": 1, "token": "secreT"}), "token"),
        (supervisor_protocol.encode_message({"edl": 1, "token": ["secret"]}), "token"),
        (supervisor_protocol.encode_message({"edl": 1}), "token"),
        (supervisor_protocol.encode_message({"op": "watch"}), "version"),
        (b"GET / HTTP/1.1\r\n\r\n", "not JSON"),
        (b"[]\n", "not a JSON object"),
        (b"x" * (supervisor_protocol.MAX_LINE_BYTES + 2), "longer"),
    ],
)
def test_stranger_is_refused_and_left(harness: ServerHarness, said: bytes, answer: str) -> None:
    client = harness.connect()
    client.sendall(said)
    reply = json.loads(harness.drain(client))
    assert reply["error"] == "refused"
    assert re.search(answer, reply["message"])


@pytest.mark.parametrize(
    "request_message",
    [
        {"op": "dance"},
        {"op": "start", "role": "worker"},
        {"op": "start", "role": "king", "index": 0},
        {"op": "start", "role": "worker", "index": "0"},
        {"op": "start", "role": "worker", "index": True},
        {"op": "start", "role": "worker", "index": -1},
        {"op": "start", "role": "worker", "index": 1 << 62},
        {"op": "delete", "uid": "u"},
        {},
    ],
)
def test_wrong_request_is_answered_and_the_connection_goes_on(
    harness: ServerHarness, request_message: supervisor_protocol.Message
) -> None:
    client = harness.connect()
    client.sendall(supervisor_protocol.encode_message(supervisor_protocol.hello_message("secret")))
    assert json.loads(harness.read(client)) == {"edl": 1}
    client.sendall(supervisor_protocol.encode_message(request_message))
    assert json.loads(harness.read(client))["error"] == "bad_input"
    client.sendall(supervisor_protocol.encode_message({"op": "start", "role": "worker", "index": 0}))
    assert json.loads(harness.read(client)) == {"uid": POD.uid}


def test_silent_stranger_is_left_after_a_while(harness: ServerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "AUTHENTICATION_SECONDS", 0.0)
    assert harness.drain(harness.connect()) == b""


def test_slow_reader_is_left_and_never_blocks_the_server(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_BACKLOG_BYTES", 10_000)
    client = harness.connect()
    client.sendall(
        supervisor_protocol.encode_message(supervisor_protocol.hello_message("secret"))
        + supervisor_protocol.encode_message({"op": "watch"})
    )
    harness.loop.run_once()
    for _ in range(10_000):
        harness.server.publish(POD)
    lines = harness.drain(client).splitlines()
    assert json.loads(lines[2]) == {"synced": True}
    assert 3 < len(lines) < 10_000


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ECONNABORTED])
def test_a_connection_that_cannot_be_accepted_does_not_end_the_supervisor(
    harness: ServerHarness, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "EXHAUSTED_PAUSE_SECONDS", 0.05)
    listener, failures = harness.server._listener, iter([OSError(number, "no"), OSError(number, "no")])

    class ExhaustedListener:
        """The listener, whose first connections fail."""

        def accept(self) -> tuple[socket.socket, object]:
            for failure in failures:
                raise failure
            return listener.accept()

        def fileno(self) -> int:
            return listener.fileno()

        def close(self) -> None:
            listener.close()

    monkeypatch.setattr(harness.server, "_listener", ExhaustedListener())
    client = harness.connect()
    client.sendall(b'{"edl": 1, "token": "secret"}\n')
    assert json.loads(harness.read(client)) == {"edl": 1}


def test_a_server_that_pauses_for_lack_of_descriptors_can_be_closed(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "EXHAUSTED_PAUSE_SECONDS", 0.05)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    harness.clients.append(client)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        client.connect(str(harness.path))
        harness.loop.run_once()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    harness.server.close()
    harness.loop.run_once()
