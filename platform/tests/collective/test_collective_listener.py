"""Who may enter a round, when, and what strangers can do: nothing."""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.rank_threads import BOUND, NATIVE, NUMPY, TOKEN, RankThreads

from edl.api.errors import BadInputError, RefusedError, RetryableError
from edl.api.round_id import RoundId
from edl.collective import collective_listener
from edl.collective.collective_listener import CollectiveListener
from edl.collective.communicator import Communicator
from edl.collective.neighbours import connect_neighbours
from edl.collective.round_errors import RoundBrokenError
from edl.collective.round_frames import JoinRequest
from edl.transport import bulk_server
from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_connection import (
    FRAME_MAGIC,
    HEAD_SIZE,
    MAX_META_BYTES,
    FrameKind,
    FrameLimits,
    OutgoingFrame,
    ReceivedFrame,
    decode_frame_head,
    encode_frame_head,
)
from edl.transport.bulk_server import BulkServer
from edl.transport.handshake import PROTOCOL_VERSION
from edl.transport.peer_errors import BulkRefusedError, PeerRefusedError

ROUND = RoundId(3, 5)
OTHER_JOBS_TOKEN = b"the-token-of-another-job"


@pytest.fixture(params=["unix", "tcp"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CollectiveListener]:
    address = f"unix:{tmp_path}/s" if request.param == "unix" else "127.0.0.1:0"
    with CollectiveListener(address, TOKEN) as listener:
        yield listener


def join(listener: CollectiveListener, **fields: Any) -> FrameKind:
    """Ask to join a round as rank 0 of two, whose rank 1 listens; returns the answer's kind."""
    request = JoinRequest(
        **{"round_id": ROUND, "sender": 0, "receiver": 1, "size": 2, "shared_memory": False, **fields}
    )
    with BulkClient(listener.address, TOKEN, timeout=BOUND, max_body=0) as client:
        return client.request(FrameKind.JOIN_ROUND, request.encode()).kind


def test_the_previous_rank_is_taken(listener: CollectiveListener) -> None:
    admission = listener.open_round(ROUND, 1, 2)
    assert join(listener) is FrameKind.JOINED_ROUND
    sock, shared_memory = admission.take_previous(time.monotonic() + BOUND)
    sock.close()
    assert not shared_memory


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"round_id": RoundId(3, 4)}, "round"),
        ({"round_id": RoundId(2, 9)}, "round"),
        ({"sender": 1}, "bad"),
        ({"receiver": 0}, "bad"),
        ({"size": 3}, "bad"),
    ],
)
def test_who_means_another_round_or_rank_is_refused(
    listener: CollectiveListener, fields: dict[str, Any], kind: str
) -> None:
    listener.open_round(ROUND, 1, 2)
    with pytest.raises(BulkRefusedError) as refused:
        join(listener, **fields)
    assert refused.value.kind == kind
    assert join(listener) is FrameKind.JOINED_ROUND, "the round is not concerned"


def test_an_established_round_takes_no_further_connection(listener: CollectiveListener) -> None:
    listener.open_round(ROUND, 1, 2).finish()
    with pytest.raises(BulkRefusedError) as refused:
        join(listener)
    assert refused.value.kind == "round"


def test_a_neighbour_that_is_early_waits_for_the_round(listener: CollectiveListener) -> None:
    listener.open_round(RoundId(3, 4), 1, 2)
    kinds: list[FrameKind] = []
    thread = threading.Thread(target=lambda: kinds.append(join(listener)))
    thread.start()
    listener.open_round(ROUND, 1, 2)
    thread.join(BOUND)
    assert kinds == [FrameKind.JOINED_ROUND]


def test_rounds_only_grow(listener: CollectiveListener) -> None:
    first = listener.open_round(ROUND, 0, 2)
    for earlier in (ROUND, RoundId(3, 4), RoundId(2, 100)):
        with pytest.raises(RefusedError):
            listener.open_round(earlier, 0, 2)
    listener.open_round(RoundId(4, 0), 0, 2)
    with pytest.raises(RoundBrokenError, match=r"round 4\.0"):
        first.take_previous(time.monotonic() + BOUND)


@pytest.mark.parametrize("meta", [b"", b"x" * 28, b"\xff" * 29, b"\xff" * 30])
def test_a_request_that_is_none_is_refused(listener: CollectiveListener, meta: bytes) -> None:
    listener.open_round(ROUND, 1, 2)
    with BulkClient(listener.address, TOKEN, timeout=BOUND) as client, pytest.raises(BulkRefusedError):
        client.request(FrameKind.JOIN_ROUND, meta)
    with BulkClient(listener.address, TOKEN, timeout=BOUND) as client, pytest.raises(BulkRefusedError):
        client.request(FrameKind.PUSH, b"")
    assert join(listener) is FrameKind.JOINED_ROUND


def test_requests_are_read_as_written() -> None:
    request = JoinRequest(ROUND, 1, 2, 7, True)
    assert JoinRequest.decode(request.encode()) == request
    with pytest.raises(PeerRefusedError):
        JoinRequest.decode(JoinRequest(ROUND, 7, 2, 7, True).encode())


def test_a_process_without_the_extension_agrees_to_no_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would not read what the other sends there, and both would wait with healthy heartbeats."""
    monkeypatch.setitem(sys.modules, "edl.collective._ring", None)
    request = JoinRequest(ROUND, 0, 1, 2, True)
    with CollectiveListener(f"unix:{tmp_path}/s", TOKEN) as listener:
        listener.open_round(ROUND, 1, 2)
        with BulkClient(listener.address, TOKEN, timeout=BOUND, max_body=0) as client:
            answer = client.request(FrameKind.JOIN_ROUND, request.encode())
    assert not JoinRequest.decode(answer.meta).shared_memory


def test_connecting_ends_when_the_round_is_cancelled(listener: CollectiveListener) -> None:
    errors: list[BaseException] = []

    def connect() -> None:
        try:
            connect_neighbours(
                listener, ROUND, 0, [listener.address, "127.0.0.1:1"], timeout=BOUND, shared_memory=False
            )
        except RoundBrokenError as error:
            errors.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    while not errors and thread.is_alive():
        listener.cancel_round("a newer round")
    thread.join(BOUND)
    assert "a newer round" in str(errors[0])


def test_a_neighbour_that_does_not_come_is_named(listener: CollectiveListener, tmp_path: Path) -> None:
    members = [listener.address, f"unix:{tmp_path}/nobody"]
    with pytest.raises(RoundBrokenError) as broken:
        Communicator.connect(listener, ROUND, 0, members, timeout=0.2)
    assert broken.value.rank == 1


def test_a_neighbour_that_hears_of_the_round_too_late_breaks_it(
    listener: CollectiveListener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a worker that runs a task for ten seconds would end the job of the one before it."""
    monkeypatch.setattr(collective_listener, "_EARLY_SECONDS", 0.1)
    with CollectiveListener(f"unix:{tmp_path}/other", TOKEN) as other:
        with pytest.raises(RoundBrokenError) as broken:
            Communicator.connect(other, ROUND, 0, [other.address, listener.address], timeout=1.0)
        assert broken.value.rank == 1


@pytest.mark.parametrize("kind", ["bad", "full", "internal"])
def test_a_refusal_breaks_the_round(listener: CollectiveListener, kind: str) -> None:
    def refuse(frame: ReceivedFrame) -> OutgoingFrame:
        raise PeerRefusedError("another rank has this address now", kind=kind)

    server = BulkServer("127.0.0.1:0", TOKEN, refuse, max_body_bytes=0)
    server.start()
    try:
        with pytest.raises(RoundBrokenError, match="another rank") as broken:
            Communicator.connect(listener, ROUND, 0, [listener.address, server.address], timeout=BOUND)
        assert broken.value.rank == 1
    finally:
        server.stop()


def test_a_neighbour_that_refuses_the_token_cannot_be_reached(listener: CollectiveListener, tmp_path: Path) -> None:
    """The address of a pod that is gone may be that of another job's pod: that ends the round, and not the job."""
    with CollectiveListener(f"unix:{tmp_path}/other", "another") as other:
        with pytest.raises(RoundBrokenError, match="rank 1 cannot be reached: another job has its address") as broken:
            Communicator.connect(other, ROUND, 0, [other.address, listener.address], timeout=0.3)
        assert broken.value.rank == 1


def test_a_neighbour_that_comes_to_the_address_of_another_jobs_pod_is_reached(
    listener: CollectiveListener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"unix:{tmp_path}/reused"
    other, members = CollectiveListener(address, "another"), [listener.address, address]
    is_refused = threading.Event()
    monkeypatch.setattr(bulk_server.log, "warning", lambda *_: is_refused.set())
    other.start()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(Communicator.connect, listener, ROUND, 0, members, timeout=BOUND)
        assert is_refused.wait(BOUND)
        other.stop()
        with CollectiveListener(address, TOKEN) as neighbour:
            second = threads.submit(Communicator.connect, neighbour, ROUND, 1, members, timeout=BOUND)
            for connected in (first, second):
                connected.result().close()


@pytest.mark.parametrize("fields", [{"round_id": RoundId(3, 6)}, {"sender": 2}, {"receiver": 2}, {"size": 4}])
def test_an_answer_for_something_else_is_not_believed(listener: CollectiveListener, fields: dict[str, Any]) -> None:
    request_fields = {"round_id": ROUND, "sender": 0, "receiver": 1, "size": 3, "shared_memory": False}
    answer = OutgoingFrame(FrameKind.JOINED_ROUND, JoinRequest(**(request_fields | fields)).encode())
    server = BulkServer("127.0.0.1:0", TOKEN, lambda _: answer, max_body_bytes=0)
    server.start()
    try:
        members = [listener.address, server.address, "127.0.0.1:1"]
        with pytest.raises(RoundBrokenError) as broken:
            Communicator.connect(listener, ROUND, 0, members, timeout=BOUND)
        assert broken.value.rank == 1
    finally:
        server.stop()


def test_a_round_of_one_needs_nobody(listener: CollectiveListener) -> None:
    with Communicator.connect(listener, ROUND, 0, [listener.address]) as alone:
        buffer = np.arange(4.0)
        assert alone.all_reduce(buffer, b"x") == [b"x"]
        assert alone.begin_step().finish(b"y") == [b"y"]
        np.testing.assert_array_equal(buffer, np.arange(4.0))
    with pytest.raises(RoundBrokenError):
        alone.all_reduce(buffer)


def test_a_rank_outside_the_world_is_refused(listener: CollectiveListener) -> None:
    with pytest.raises(BadInputError):
        Communicator.connect(listener, ROUND, 1, [listener.address])


@pytest.mark.parametrize("variant", NUMPY, ids=lambda variant: variant.name)
def test_strangers_do_not_disturb_a_round(variant: Any, tmp_path: Path) -> None:
    with RankThreads(variant, tmp_path, most=3) as ranks:
        strangers = [connect_stranger(listener.address) for listener in ranks.listeners]
        for stranger in strangers:
            stranger.sendall(os.urandom(200))
        with ranks.round(3) as round_:
            for listener in ranks.listeners:
                with closing(connect_stranger(listener.address)) as late:
                    late.sendall(os.urandom(200))
                with pytest.raises((BulkRefusedError, RetryableError)):
                    BulkClient(listener.address, "wrong", timeout=BOUND)
            buffers = ranks.each(lambda each: (each.all_reduce(each_buffer := np.ones(5)), each_buffer)[1], round_)
            np.testing.assert_array_equal(buffers, 3)
        for stranger in strangers:
            stranger.close()


@pytest.mark.parametrize("variant", NUMPY, ids=lambda variant: variant.name)
@pytest.mark.parametrize("meta_size", [len(OTHER_JOBS_TOKEN), MAX_META_BYTES, (1 << 32) - 1])
def test_a_worker_of_another_job_is_refused_and_the_round_goes_on(
    variant: Any, meta_size: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The network policy admits the workers of all jobs, so the token alone keeps them out."""
    hello = struct.pack("<4sHHIQ", FRAME_MAGIC, PROTOCOL_VERSION, FrameKind.HELLO, meta_size, 0) + OTHER_JOBS_TOKEN
    request = JoinRequest(RoundId(1, 1), 0, 1, 2, False).encode()
    with RankThreads(variant, tmp_path, most=2) as ranks, ranks.round(2) as round_:
        tracemalloc.start()
        with closing(connect_stranger(ranks.listeners[1].address)) as other:
            other.settimeout(BOUND)
            other.sendall(hello + encode_frame_head(FrameKind.JOIN_ROUND, len(request), 0) + request)
            answer = b"".join(iter(partial(_receive_some, other), b""))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        buffers = ranks.each(lambda each: (each.all_reduce(each_buffer := np.ones(5)), each_buffer)[1], round_)
        np.testing.assert_array_equal(buffers, 2)
    head = decode_frame_head(answer[:HEAD_SIZE], FrameLimits(MAX_META_BYTES, 0))
    assert head.kind is FrameKind.REFUSED
    assert len(answer) == HEAD_SIZE + head.meta_size, "and nothing after it"
    assert peak < 1 << 20, "no memory for what it claims"
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "edl.transport.bulk_server"]
    assert ranks.listeners[1].address in warning
    assert "is refused" in warning
    assert ("token is wrong" if meta_size == len(OTHER_JOBS_TOKEN) else str(meta_size)) in warning
    assert OTHER_JOBS_TOKEN.decode() not in warning


def _receive_some(sock: socket.socket) -> bytes:
    try:
        return sock.recv(4096)
    except ConnectionResetError:
        # The listener closed with unread bytes of the refused peer.
        return b""


def connect_stranger(address: str) -> socket.socket:
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(address.removeprefix("unix:"))
        return sock
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


@pytest.mark.parametrize("variant", NUMPY, ids=lambda variant: variant.name)
def test_a_listener_serves_many_rounds_and_leaks_nothing(variant: Any, tmp_path: Path) -> None:
    check_many_rounds(variant, tmp_path)


@pytest.mark.native
@pytest.mark.parametrize("variant", NATIVE, ids=lambda variant: variant.name)
def test_native_rounds_leak_nothing(variant: Any, tmp_path: Path) -> None:
    check_many_rounds(variant, tmp_path)


def check_many_rounds(variant: Any, folder: Path) -> None:
    process = psutil.Process()
    with RankThreads(variant, folder, most=3) as ranks:

        def run(number: int) -> None:
            with ranks.round(3) as round_:
                if number % 3 == 2:
                    round_[number % 2].abort("half-way")
                    return
                for message in ranks.each(lambda each: each.all_reduce(np.ones(100), b"x"), round_):
                    assert message == [b"x"] * 3

        for number in range(10):
            run(number)
        before = process.num_fds(), process.num_threads()
        for number in range(100):
            run(number)
        deadline = time.monotonic() + BOUND
        # A server's thread ends a moment after it has handed its connection over.
        while (now := (process.num_fds(), process.num_threads())) > before and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        assert now[0] <= before[0]
        assert now[1] <= before[1]
