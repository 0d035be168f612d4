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

from edl.api.errors import EdlError, RefusedError
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import Answer, BulkClient, BulkServer, Frame, Kind
from edl.worker.ps_connections import Exchange, Request

TOKEN = "the-token-of-these-tests"
SIZE = 12


class FalseServer:
    """Gives the same answer to whatever it is asked."""

    def __init__(self, folder: Path) -> None:
        self.answer = Answer(Kind.PULLED)
        self.server = BulkServer(f"unix:{folder}/s", TOKEN, self._handle, max_body=1 << 20)
        self.server.start()

    def _handle(self, frame: Frame) -> Answer:
        return self.answer

    def exchange(self) -> Exchange:
        placement = SimpleNamespace(addresses={0: self.server.address}, uids={0: "uid"})
        directory: Any = SimpleNamespace(placement=placement, register=lambda: placement)
        declaration: Callable[[int], Request] = lambda part: Request(Kind.DECLARE, bytes)  # noqa: E731
        connect = lambda address: BulkClient(address, TOKEN, timeout=20)  # noqa: E731
        return Exchange(directory, connect, declaration, patience=0.0, pause=lambda seconds: None)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FalseServer]:
    made = FalseServer(tmp_path_factory.mktemp("false"))
    yield made
    made.server.stop()


answers = st.builds(
    lambda kind, meta, body: Answer(kind, meta, [body]),
    st.sampled_from(Kind),
    st.one_of(st.binary(max_size=20), st.just(pb.Refusal(reason="no", kind="busy").SerializeToString())),
    st.one_of(st.just(bytes(SIZE)), st.binary(max_size=3 * SIZE)),
)
asked = st.sampled_from([Kind.PULL, Kind.PULL_ROWS, Kind.PUSH, Kind.SCAN_ROWS, Kind.DECLARE])


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked, answers)
def test_what_comes_through_is_an_answer_of_the_right_size(server: FalseServer, kind: Kind, answer: Answer) -> None:
    server.answer = answer
    room = np.full(SIZE // 4, 7, np.float32)
    into = room.data.cast("B") if kind in (Kind.PULL, Kind.PULL_ROWS, Kind.PUSH) else None
    with closing(server.exchange()) as exchange, suppress(EdlError):
        frame = exchange({0: Request(kind, bytes, into=into)})[0]
        assert frame.kind.name in (f"{kind.name}ED", f"{kind.name}D", "ROWS", "SCANNED")
        if into is not None:
            assert frame.body.nbytes == SIZE or (kind is Kind.PUSH and not frame.body.nbytes)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(Kind.PULLED, b"", [bytes(SIZE - 4)]), "PULLED has 8 bytes of values where 12 were asked for"),
        (Answer(Kind.PULLED, b"", [bytes(SIZE + 4)]), "PULLED has 16 bytes of values where 12 were asked for"),
        (Answer(Kind.PULLED), "PULLED has 0 bytes"),
        (Answer(Kind.ROWS, b"", [bytes(SIZE)]), "answers ROWS to PULL, not PULLED"),
    ],
)
def test_a_false_answer_is_refused_by_the_server_s_name(server: FalseServer, answer: Answer, said: str) -> None:
    """Values that were not sent would be those that happened to lie in that memory."""
    server.answer = answer
    room = memoryview(bytearray(SIZE))
    with closing(server.exchange()) as exchange, pytest.raises(RefusedError, match=said) as caught:
        exchange({0: Request(Kind.PULL, bytes, into=room)})
    assert caught.value.where == "ps-0"
