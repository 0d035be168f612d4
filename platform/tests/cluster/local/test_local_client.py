"""The client against a supervisor that misbehaves: dropped connections, silence, another version."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from edl.api.cluster_port import PodPhase, PodStatus, Role, WatchSynced
from edl.api.errors import RefusedError, RetryableError
from edl.cluster.local import supervisor_protocol
from edl.cluster.local.local_cluster import LocalCluster

Script = Callable[["ScriptedSupervisor"], None]


class ScriptedSupervisor:
    """The supervisor's end of one connection, played by a script."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(20)
        self._connection = connection
        self._lines = supervisor_protocol.MessageDecoder()

    def receive(self) -> supervisor_protocol.Message:
        (message,) = self._lines.feed(self._connection.recv(65536))
        return message

    def send(self, *messages: supervisor_protocol.Message) -> None:
        self._connection.sendall(b"".join(supervisor_protocol.encode_message(message) for message in messages))

    def accept_hello(self) -> supervisor_protocol.Message:
        """Accept the hello and return the request that follows."""
        assert self.receive() == supervisor_protocol.hello_message("secret")
        self.send({"edl": supervisor_protocol.PROTOCOL_VERSION})
        return self.receive()


@pytest.fixture
def scripted_client() -> Iterator[Callable[..., LocalCluster]]:
    """Play one script for each connection, in order; returns the client."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="edl-"))
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        path = Path(folder) / "s"
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(20)

        def serve(scripts: tuple[Script, ...]) -> None:
            for script in scripts:
                with listener.accept()[0] as connection:
                    script(ScriptedSupervisor(connection))
            listener.close()

        def start(*scripts: Script, patience: float = 0.05) -> LocalCluster:
            thread = threading.Thread(target=serve, args=(scripts,))
            thread.start()
            stack.callback(thread.join)
            cluster = LocalCluster(path, "secret", connect_seconds=patience)
            stack.callback(cluster.close)
            return cluster

        yield start


def pod(index: int, phase: PodPhase = PodPhase.RUNNING, exit_code: int | None = None, reason: str = "") -> PodStatus:
    return PodStatus(f"worker-{index}-u", Role.WORKER, index, phase, exit_code, reason)


def listing(*messages: supervisor_protocol.Message) -> Script:
    def script(peer: ScriptedSupervisor) -> None:
        assert peer.accept_hello() == {"op": "watch"}
        peer.send(*messages)

    return script


def test_watch_that_was_cut_off_lists_again_and_derives_what_it_missed(
    scripted_client: Callable[..., LocalCluster],
) -> None:
    synced = {"synced": True}
    ended = pod(1, PodPhase.FAILED, 137, "Killed (SIGKILL)")
    pods = [supervisor_protocol.pod_message(pod(index)) for index in range(3)]
    cluster = scripted_client(
        listing(*pods, synced),
        listing(supervisor_protocol.pod_message(ended), pods[2]),  # cut off before it is synced: says nothing
        listing(
            supervisor_protocol.pod_message(ended),
            pods[2],
            supervisor_protocol.pod_message(pod(3)),
            synced,
            supervisor_protocol.pod_message(pod(4)),
        ),
    )
    watched: list[PodStatus | WatchSynced] = []
    with pytest.raises(RetryableError, match="cannot be reached"):
        note_all(cluster, watched)
    assert watched == [
        pod(0),
        pod(1),
        pod(2),
        WatchSynced(),
        pod(0, PodPhase.GONE, None, "Vanished"),
        ended,
        pod(3),
        pod(4),
    ]


def note_all(cluster: LocalCluster, seen: list[PodStatus | WatchSynced]) -> None:
    for item in cluster.watch():
        seen.append(item)  # noqa: PERF402 - what came before an error counts


def test_request_that_was_cut_off_is_made_again(scripted_client: Callable[..., LocalCluster]) -> None:
    def answered(peer: ScriptedSupervisor) -> None:
        assert peer.accept_hello() == {"op": "start", "role": "worker", "index": 1}
        peer.send({"uid": "worker-1-u"})

    cluster = scripted_client(lambda peer: peer.accept_hello() and None, answered)
    assert cluster.start(Role.WORKER, 1) == "worker-1-u"


def test_supervisor_that_is_gone_is_given_up_on(scripted_client: Callable[..., LocalCluster]) -> None:
    cluster = scripted_client()
    with pytest.raises(RetryableError, match="cannot be reached"):
        cluster.delete("worker-1-u", grace=1)


def test_errors_come_back_as_what_they_are(scripted_client: Callable[..., LocalCluster]) -> None:
    def busy(peer: ScriptedSupervisor) -> None:
        peer.accept_hello()
        peer.send(supervisor_protocol.error_message(RetryableError("no process left")))

    with pytest.raises(RetryableError, match="no process left"):
        scripted_client(busy).start(Role.WORKER, 1)


def test_other_version_is_refused(scripted_client: Callable[..., LocalCluster]) -> None:
    def newer(peer: ScriptedSupervisor) -> None:
        peer.receive()
        peer.send(supervisor_protocol.error_message(RefusedError("The supervisor speaks version 2, the client 1")))

    with pytest.raises(RefusedError, match="version 2"):
        scripted_client(newer).start(Role.WORKER, 1)
