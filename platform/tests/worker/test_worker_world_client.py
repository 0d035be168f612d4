"""A worker's connection to the rounds."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from edl.transport import edl_pb2 as pb
from edl.worker.allreduce.world_client import WorldClient


def test_a_view_that_arrived_before_the_wait_ends_it() -> None:
    class Session:
        version = 1

        def request_world(self, request: Callable[[], pb.WorldRequest], wait_seconds: float) -> pb.WorldReply:
            return pb.WorldReply(phase="closing", version=self.version)

    session = Session()
    client = WorldClient(session, "w0", "", is_leaving=lambda: False, on_closed=lambda reason: None)
    client.report()
    known = client.view
    session.version = 2
    client.report()
    began = time.monotonic()
    client.wait_for_view(known, 30)
    assert time.monotonic() - began < 20


def test_an_error_of_the_thread_that_asks_reaches_the_main_thread_and_ends_the_round() -> None:
    class Session:
        def request_world(self, request: Callable[[], pb.WorldRequest], wait_seconds: float) -> pb.WorldReply:
            return pb.WorldReply(phase="unknown to this worker")

    reasons: list[str] = []
    client = WorldClient(Session(), "w0", "", is_leaving=lambda: False, on_closed=reasons.append)
    client.run()
    assert reasons
    with pytest.raises(ValueError, match="unknown to this worker"):
        _ = client.view
