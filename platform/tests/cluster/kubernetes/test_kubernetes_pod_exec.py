"""A program in a container over a websocket: bytes in and out, its end, its errors."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import urllib3
from cluster.kubernetes.exec_server import ExecChannel, ExecServer

from edl.cluster.kubernetes.api_client import KubeConnection
from edl.cluster.kubernetes.api_errors import NoResponseError, RbacDeniedError
from edl.cluster.kubernetes.pod_exec import PodExec

INPUT, OUTPUT, ERRORS, END = range(4)
SUCCESS = b'{"status": "Success"}'


@contextmanager
def executed(talk: Callable[[ExecChannel], None], refusal: bytes = b"") -> Iterator[tuple[PodExec, ExecServer]]:
    server, pool = ExecServer(talk, refusal), urllib3.PoolManager()
    try:
        with PodExec(server.connection(pool), "pod-1", ["python", "-m", "x y"]) as execution:
            yield execution, server
    finally:
        server.close()
        pool.clear()


def test_bytes_travel_both_ways_in_whatever_pieces() -> None:
    def echo(channel: ExecChannel) -> None:
        number, data = channel.receive()
        assert number == INPUT
        for byte in data:
            channel.send(OUTPUT, bytes([byte]))
        channel.send(OUTPUT, b"and more")
        channel.send(END, SUCCESS)

    with executed(echo) as (execution, _):
        execution.write(b"hello")
        assert execution.read(5) == b"hello"
        assert execution.read(4) == b"and "
        assert execution.has_pending_input()
        assert execution.read(100) == b"more"
        assert execution.read(1) == b""


def test_the_request_is_that_of_an_exec() -> None:
    with executed(lambda channel: channel.send(END, SUCCESS)) as (execution, server):
        assert execution.read(1) == b""
    path = server.request.splitlines()[0]
    assert path.startswith("GET /api/v1/namespaces/team/pods/pod-1/exec?container=edl&stdin=true&stdout=true")
    assert "command=python&command=-m&command=x+y" in path
    assert "authorization: Bearer t" in server.request
    assert "v5.channel.k8s.io" in server.request


def test_the_programs_last_words_are_kept() -> None:
    def fail(channel: ExecChannel) -> None:
        channel.send(ERRORS, b"No module named edl\n")
        channel.send(END, b'{"status": "Failure", "message": "command terminated with exit code 1"}')

    with executed(fail) as (execution, _):
        assert execution.read(1) == b""
        assert execution.stderr_tail == "No module named edl"


def test_an_end_without_words_has_those_of_the_server() -> None:
    with executed(lambda channel: channel.send(END, b'{"status": "Failure", "message": "exit code 137"}')) as (one, _):
        assert one.read(1) == b""
        assert one.stderr_tail == "exit code 137"


def test_a_connection_that_breaks_is_no_end() -> None:
    with executed(lambda channel: channel.send(OUTPUT, b"ab")) as (execution, _):
        assert execution.read(2) == b"ab"
        with pytest.raises(NoResponseError, match="The connection was lost"):
            execution.read(1)


def test_a_refusal_is_that_of_the_api_server() -> None:
    refusal = b'{"message": "User \\"ann\\" cannot get resource \\"pods/exec\\""}'
    with pytest.raises(RbacDeniedError, match="cannot get resource"), executed(lambda _: None, refusal):
        pass


def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    pool = urllib3.PoolManager()
    with pytest.raises(NoResponseError, match="does not answer"):
        PodExec(KubeConnection(f"http://127.0.0.1:{port}", pool, dict, "team"), "pod-1", ["true"])


@pytest.mark.parametrize(
    "noise",
    [
        lambda channel: channel.control(9, b"are you there?"),
        lambda channel: channel.send(ERRORS, b"a warning"),
        lambda channel: channel.send(OUTPUT, b""),
    ],
    ids=["ping", "standard error", "empty message"],
)
def test_what_is_no_output_does_not_make_a_writer_wait_for_output(noise: Callable[[ExecChannel], None]) -> None:
    """Both ends would wait for each other: this one for an answer, the program for the rest of its input."""

    def talk(channel: ExecChannel) -> None:
        noise(channel)
        assert channel.receive() == (INPUT, b"first")
        assert channel.receive() == (INPUT, b"rest")
        channel.send(OUTPUT, b"done")
        channel.send(END, SUCCESS)

    with executed(talk) as (execution, _):
        execution.write(b"first")
        while not execution._is_readable():  # the noise has arrived
            pass
        assert not execution.has_pending_input()
        execution.write(b"rest")
        assert execution.read(4) == b"done"


def test_pings_are_no_words_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def talk(channel: ExecChannel) -> None:
        for _ in range(3):
            channel.control(9)
        channel.receive()

    with executed(talk) as (execution, _):
        monkeypatch.setattr("edl.cluster.kubernetes.pod_exec.EXEC_IDLE_SECONDS", 0.0)
        with pytest.raises(NoResponseError, match="no message for"):
            execution.read(1)
        execution.write(b"bye")


def test_a_server_that_closes_the_connection_has_not_ended_the_program() -> None:
    with (
        executed(lambda channel: channel.control(8, b"\x03\xe8bye")) as (execution, _),
        pytest.raises(NoResponseError, match="closed by the server"),
    ):
        execution.read(1)
