"""Pods have IPv4 or IPv6 addresses; both planes serve and are reached on either."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from transport.echo_service import EchoService

from edl.api.cluster_port import Role
from edl.ps.server_process import listen_addresses
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_connection import FrameKind, OutgoingFrame
from edl.transport.bulk_server import BulkServer
from edl.transport.control_client import ControlChannel
from edl.transport.control_methods import MasterMethods
from edl.transport.control_server import start_control_server
from edl.transport.edl_pb2_grpc import add_MasterServicer_to_server
from edl.transport.process_identity import ProcessIdentity

TOKEN = "a-token-of-these-tests"


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


HOSTS = ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here"))]


@pytest.mark.parametrize(("host", "written"), [("10.0.0.7", "10.0.0.7"), ("fd00::7", "[fd00::7]")])
def test_a_parameter_server_listens_on_its_pods_address(host: str, written: str) -> None:
    identity = ProcessIdentity(Path("/r"), Role.PS, 0, "uid", TOKEN, Path("/run/edl"), "edl-j-master.team:7070", host)
    assert listen_addresses(identity) == (f"{written}:7070", f"{written}:7071")


@pytest.mark.parametrize("host", HOSTS)
def test_both_planes_on_a_pods_address(host: str) -> None:
    written = f"[{host}]" if ":" in host else host
    control = start_control_server(lambda s: add_MasterServicer_to_server(EchoService(), s), f"{written}:0", TOKEN, 2)
    bulk = BulkServer(
        f"{written}:0", TOKEN, lambda frame: OutgoingFrame(frame.kind, frame.meta), max_body_bytes=1 << 20
    )
    bulk.start()
    try:
        assert control.address.startswith(f"{written}:")
        with ControlChannel(control.address, TOKEN) as channel:
            reply = channel.call(MasterMethods.Progress, pb.ProgressRequest(member=pb.Member(index=7)), timeout=10)
        assert reply.incarnation == 7
        with BulkClient(bulk.address, TOKEN, timeout=10) as client:
            assert client.request(FrameKind.PULL, b"meta").meta == b"meta"
    finally:
        bulk.stop()
        control.stop(0)
