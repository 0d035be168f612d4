"""Calls whose message never comes hold nothing that rightful callers need."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from support.repetition import repetition
from transport import half_open
from transport.echo_service import EchoService
from transport.half_open import HalfOpenConnection

from edl.transport import edl_pb2 as pb
from edl.transport.control_client import ControlChannel
from edl.transport.control_methods import MasterMethods
from edl.transport.control_server import ControlServer, start_control_server
from edl.transport.edl_pb2_grpc import add_MasterServicer_to_server
from edl.transport.handshake import PROTOCOL_VERSION, TOKEN_KEY, VERSION_KEY

TOKEN = "0123456789abcdef" * 4
PROOF = ((TOKEN_KEY, TOKEN), (VERSION_KEY, str(PROTOCOL_VERSION)))
THREADS = 4
CONNECTIONS = 20
ASK = pb.ProgressRequest(member=pb.Member(uid="worker-0", index=7))


@pytest.fixture(params=[repetition("unix"), "tcp"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ControlServer]:
    address = f"unix:{tmp_path}/m" if request.param == "unix" else "127.0.0.1:0"
    server = start_control_server(
        lambda server: add_MasterServicer_to_server(EchoService(), server), address, TOKEN, THREADS
    )
    yield server
    server.stop()


@pytest.mark.parametrize("proof", [(), PROOF], ids=["without the token", "with the token"])
@pytest.mark.parametrize(
    "partial",
    [
        pytest.param(b"", id="no message", marks=pytest.mark.repetition),
        pytest.param(b"\0\0\0\1\0" + b"x" * 10, id="half a message"),
    ],
)
@pytest.mark.parametrize(
    ("seconds", "within"),
    [
        pytest.param(0.0, 30.0, id="some calls"),  # beside other tests
        pytest.param(60.0, 1.0, id="60 s", marks=pytest.mark.thorough),
    ],
)
def test_a_thousand_half_open_streams_keep_nobody_waiting(
    server: ControlServer, proof: tuple[tuple[str, str], ...], partial: bytes, seconds: float, within: float
) -> None:
    command = [sys.executable, half_open.__file__, server.address, MasterMethods.Progress.path, json.dumps(proof)]
    command += [partial.hex(), str(CONNECTIONS)]  # in a process of its own: not in the way of the server's interpreter
    with ExitStack() as stack:
        flood = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(flood.kill)
        assert flood.stdout is not None
        assert flood.stdout.readline() == "open\n"
        channel = stack.enter_context(ControlChannel(server.address, TOKEN))
        until = time.monotonic() + seconds
        durations: list[float] = []
        while len(durations) < 8 or time.monotonic() < until:
            began = time.monotonic()
            assert channel.call(MasterMethods.Progress, ASK, timeout=within).incarnation == 7
            durations.append(time.monotonic() - began)
        # Any call would wait for a held thread: for ever, or five seconds. The machine delays some of them.
        assert min(durations) < 2.5
        assert flood.poll() is None, "the calls were not held"


def test_a_call_without_the_token_is_ended_before_its_message(server: ControlServer) -> None:
    with closing(HalfOpenConnection(server.address, MasterMethods.Progress.path)) as connection:
        connection.open_streams(1)
        _wait_until(lambda: not connection.open, 5.0)


def test_a_call_with_the_token_has_five_seconds_for_its_message(server: ControlServer) -> None:
    with closing(HalfOpenConnection(server.address, MasterMethods.Progress.path, PROOF)) as connection:
        began = time.monotonic()
        connection.open_streams(1)
        _wait_until(lambda: not connection.open, 30.0)
        assert time.monotonic() - began >= 4.0


def test_stop_does_not_wait_for_messages(server: ControlServer) -> None:
    with closing(HalfOpenConnection(server.address, MasterMethods.Progress.path, PROOF)) as connection:
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
