"""A parameter server that answers what it likes: a worker takes whole answers of the right kind, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples

from edl.api.errors import EdlError, RefusedError
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_connection import FrameKind, OutgoingFrame, ReceivedFrame
from edl.transport.bulk_server import BulkServer
from edl.worker.ps_connections import PsBulkConnections, PsRequest

TOKEN = "the-token-of-these-tests"
SIZE = 12


class FalseServer:
    """Gives the same answer to whatever it is asked."""

    def __init__(self, folder: Path) -> None:
        self.answer = OutgoingFrame(FrameKind.PULLED)
        self.server = BulkServer(f"unix:{folder}/s", TOKEN, self._handle, max_body_bytes=1 << 20)
        self.server.start()

    def _handle(self, frame: ReceivedFrame) -> OutgoingFrame:
        return self.answer

    def connections(self) -> PsBulkConnections:
        placement = SimpleNamespace(addresses={0: self.server.address}, uids={0: "uid"})
        directory: Any = SimpleNamespace(placement=placement, register=lambda: placement)
        declaration: Callable[[int], PsRequest] = lambda part: PsRequest(FrameKind.DECLARE, pb.Declare())  # noqa: E731
        connect = lambda address: BulkClient(address, TOKEN, timeout=20)  # noqa: E731
        return PsBulkConnections(directory, connect, declaration, answer_timeout=0.0, pause=lambda seconds: None)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FalseServer]:
    false_server = FalseServer(tmp_path_factory.mktemp("false"))
    yield false_server
    false_server.server.stop()


answers = st.builds(
    lambda kind, meta, body: OutgoingFrame(kind, meta, [body]),
    st.sampled_from(FrameKind),
    st.one_of(st.binary(max_size=20), st.just(pb.Refusal(reason="no", kind="busy").SerializeToString())),
    st.one_of(st.just(bytes(SIZE)), st.binary(max_size=3 * SIZE)),
)
asked = st.sampled_from([FrameKind.PULL, FrameKind.PULL_ROWS, FrameKind.PUSH, FrameKind.SCAN_ROWS, FrameKind.DECLARE])


@settings(deadline=None, max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked, answers)
def test_what_comes_through_is_an_answer_of_the_right_size(
    server: FalseServer, kind: FrameKind, answer: OutgoingFrame
) -> None:
    server.answer = answer
    room = np.full(SIZE // 4, 7, np.float32)
    into = room.data.cast("B") if kind in (FrameKind.PULL, FrameKind.PULL_ROWS, FrameKind.PUSH) else None
    with closing(server.connections()) as connections, suppress(EdlError):
        frame = connections.exchange({0: PsRequest(kind, pb.Pull(), receive_into=into)})[0]
        assert frame.kind.name in (f"{kind.name}ED", f"{kind.name}D", "ROWS", "SCANNED")
        if into is not None:
            assert frame.body.nbytes == SIZE or (kind is FrameKind.PUSH and not frame.body.nbytes)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            OutgoingFrame(FrameKind.PULLED, b"", [bytes(SIZE - 4)]),
            "PULLED answer has 8 bytes of values",
        ),
        (
            OutgoingFrame(FrameKind.PULLED, b"", [bytes(SIZE + 4)]),
            "PULLED answer has 16 bytes of values",
        ),
        (OutgoingFrame(FrameKind.PULLED), "PULLED answer has 0 bytes"),
        (OutgoingFrame(FrameKind.ROWS, b"", [bytes(SIZE)]), "ROWS.* PULL.* PULLED"),
    ],
)
def test_a_false_answer_is_refused_by_the_server_s_name(server: FalseServer, answer: OutgoingFrame, said: str) -> None:
    """Values that were not sent would be those that happened to lie in that memory."""
    server.answer = answer
    room = memoryview(bytearray(SIZE))
    with closing(server.connections()) as connections, pytest.raises(RefusedError, match=said) as caught:
        connections.exchange({0: PsRequest(FrameKind.PULL, pb.Pull(), receive_into=room)})
    assert caught.value.where == "ps-0"
