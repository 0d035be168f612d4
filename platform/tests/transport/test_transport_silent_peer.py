"""Peers over TCP that fall silent without a reset, as pods do that vanish with their node.

A stopped process stands for them: its kernel still takes connections and bytes, and nobody answers.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from edl.api.errors import RetryableError
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_connection import FrameKind
from edl.transport.control_client import ControlChannel
from edl.transport.control_methods import MasterMethods

TOKEN = "a-token-of-these-tests"
FOREVER = 30.0
"""Seconds; the deadline of a call that something else has to end."""

SERVER = """
import sys, threading
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_connection import FrameKind, OutgoingFrame
from edl.transport.bulk_server import BulkServer
from edl.transport.control_server import start_control_server
from edl.transport.edl_pb2_grpc import MasterServicer, add_MasterServicer_to_server

class Echo(MasterServicer):
    def Progress(self, request, context):
        return pb.ProgressReply(incarnation=request.member.index)

control = start_control_server(lambda s: add_MasterServicer_to_server(Echo(), s), "127.0.0.1:0", sys.argv[1], 2)
bulk = BulkServer("127.0.0.1:0", sys.argv[1], lambda frame: OutgoingFrame(frame.kind, frame.meta), max_body_bytes=2**26)
bulk.start()
print(control.address, bulk.address, flush=True)
threading.Event().wait()
"""


class SilentPeer:
    def __init__(self) -> None:
        command = [sys.executable, "-c", SERVER, TOKEN]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.control, self.bulk = self.process.stdout.readline().split()

    def fall_silent(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # until it is stopped

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def peer() -> Iterator[SilentPeer]:
    silent_peer = SilentPeer()
    yield silent_peer
    silent_peer.close()


def ask(channel: object, cut: int, deadline: float) -> int:
    reply = channel.call(MasterMethods.Progress, pb.ProgressRequest(member=pb.Member(index=cut)), timeout=deadline)  # type: ignore[attr-defined]
    return int(reply.incarnation)


def test_a_call_on_its_way_is_ended_by_keepalive_long_before_its_deadline(peer: SilentPeer) -> None:
    with ControlChannel(peer.control, TOKEN) as channel:
        assert ask(channel, 7, FOREVER) == 7
        peer.fall_silent()
        with pytest.raises(RetryableError) as caught:
            ask(channel, 8, FOREVER)
        assert "no answer within" not in str(caught.value)
        assert peer.control in str(caught.value)
        peer.process.send_signal(signal.SIGCONT)
        assert ask(channel, 9, FOREVER) == 9


def test_a_new_connection_to_a_peer_that_is_silent_meets_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:  # the kernel accepts, nobody else does
        with (
            ControlChannel(f"127.0.0.1:{deaf.getsockname()[1]}", TOKEN) as channel,
            pytest.raises(RetryableError),
        ):
            ask(channel, 1, 0.5)
        with pytest.raises(RetryableError):
            BulkClient(f"127.0.0.1:{deaf.getsockname()[1]}", TOKEN, timeout=0.5)


@pytest.mark.parametrize("body", [0, 1 << 25])
def test_a_bulk_request_is_not_waited_for_whether_it_was_taken_or_not(peer: SilentPeer, body: int) -> None:
    with BulkClient(peer.bulk, TOKEN, timeout=0.5) as client:
        peer.fall_silent()
        with pytest.raises(RetryableError, match=r"silent|gone"):
            client.request(FrameKind.PULL, b"", [bytes(body)] if body else [])


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux only")
def test_bytes_that_nobody_acknowledges_end_a_bulk_connection(peer: SilentPeer) -> None:
    with BulkClient(peer.bulk, TOKEN, timeout=FOREVER) as client:
        sock = client._connection._sock
        assert 0 < sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 10_000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
