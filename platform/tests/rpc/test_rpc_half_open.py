"""Calls whose message never comes hold nothing that rightful callers need."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from rpc.half_open import HalfOpenConnection

from edl.rpc import edl_pb2 as pb
from edl.rpc.channels import ControlServer, connect, serve
from edl.rpc.edl_pb2_grpc import MasterServicer, add_MasterServicer_to_server
from edl.rpc.methods import Master
from edl.rpc.proof import PROTOCOL_VERSION, TOKEN_KEY, VERSION_KEY

TOKEN = "0123456789abcdef" * 4
PROOF = ((TOKEN_KEY, TOKEN), (VERSION_KEY, str(PROTOCOL_VERSION)))
THREADS = 4
CONNECTIONS, STREAMS = 20, 50
ASK = pb.ProgressRequest(member=pb.Member(uid="worker-0", index=7))


class Echo(MasterServicer):
    def Progress(self, request: pb.ProgressRequest, context: object) -> pb.ProgressReply:
        return pb.ProgressReply(incarnation=request.member.index)


@pytest.fixture(params=["unix", "tcp"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ControlServer]:
    address = f"unix:{tmp_path}/m" if request.param == "unix" else "127.0.0.1:0"
    server = serve(lambda server: add_MasterServicer_to_server(Echo(), server), address, TOKEN, THREADS)
    yield server
    server.stop()


@pytest.mark.parametrize("proof", [(), PROOF], ids=["without the token", "with the token"])
@pytest.mark.parametrize("partial", [b"", b"\0\0\0\1\0" + b"x" * 10], ids=["no message", "half a message"])
@pytest.mark.parametrize("seconds", [2.0, pytest.param(60.0, marks=pytest.mark.thorough)])
def test_a_thousand_half_open_streams_keep_nobody_waiting(
    server: ControlServer, proof: tuple[tuple[str, str], ...], partial: bytes, seconds: float
) -> None:
    with ExitStack() as stack:
        connections = [
            stack.enter_context(closing(HalfOpenConnection(server.address, Master.Progress.path, proof, partial)))
            for _ in range(CONNECTIONS)
        ]
        ended = threading.Event()

        def flood() -> None:
            while not ended.wait(1.0):  # what the server ends is opened again
                for connection in connections:
                    connection.open_streams(STREAMS)

        for connection in connections:
            connection.open_streams(STREAMS)
        flooder = threading.Thread(target=flood)
        flooder.start()
        stack.callback(flooder.join)
        stack.callback(ended.set)
        channel = stack.enter_context(connect(server.address, TOKEN))
        until = time.monotonic() + seconds
        answered = 0
        while time.monotonic() < until:
            assert channel.call(Master.Progress, ASK, deadline=1.0).incarnation == 7
            answered += 1
        assert answered > 10 * seconds


def test_a_call_without_the_token_is_ended_before_its_message(server: ControlServer) -> None:
    with closing(HalfOpenConnection(server.address, Master.Progress.path)) as connection:
        connection.open_streams(1)
        _wait_until(lambda: not connection.open, 5.0)


def test_a_call_with_the_token_has_five_seconds_for_its_message(server: ControlServer) -> None:
    with closing(HalfOpenConnection(server.address, Master.Progress.path, PROOF)) as connection:
        began = time.monotonic()
        connection.open_streams(1)
        _wait_until(lambda: not connection.open, 30.0)
        assert time.monotonic() - began >= 4.0


def test_stop_does_not_wait_for_messages(server: ControlServer) -> None:
    with closing(HalfOpenConnection(server.address, Master.Progress.path, PROOF)) as connection:
        connection.open_streams(10)
        stopped = threading.Thread(target=server.stop)
        stopped.start()
        stopped.join(4.0)
        assert not stopped.is_alive()


def _wait_until(condition: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
