"""The control plane: proof on every call, errors that name the peer, and recovery from restarts."""

from __future__ import annotations

import logging
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from support.sleep_clock import SleepClock

from edl.api.errors import BadInputError, EdlError, RefusedError, RetryableError
from edl.core.backoff import ExponentialBackoff
from edl.retry.attempts import no_jitter
from edl.transport import control_client, control_server
from edl.transport import edl_pb2 as pb
from edl.transport.control_client import ControlChannel, RetryPolicy
from edl.transport.control_methods import MasterMethods, PsControlMethods
from edl.transport.control_server import ControlServer, start_control_server
from edl.transport.edl_pb2_grpc import MasterServicer, add_MasterServicer_to_server
from edl.transport.grpc_options import MAX_MESSAGE_BYTES
from edl.transport.handshake import PROTOCOL_VERSION
from edl.transport.peer_errors import PeerRefusedError

TOKEN = "0123456789abcdef" * 4


class ScriptedService(MasterServicer):
    """A master whose answers a test writes; Progress echoes unless told otherwise."""

    def __init__(self, progress: Callable[[pb.ProgressRequest, grpc.ServicerContext], Any] | None = None) -> None:
        self._progress = progress

    def Progress(self, request: pb.ProgressRequest, context: grpc.ServicerContext) -> pb.ProgressReply:
        if self._progress is not None:
            return self._progress(request, context)
        return pb.ProgressReply(incarnation=request.member.index)


class RetryTime(SleepClock):
    """Also records how long was slept, and calls ``wake`` after each sleep."""

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.slept: list[float] = []
        self._wake = wake

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.slept.append(seconds)
        self._wake()

    def options(self) -> dict[str, Callable[..., Any]]:
        return {"clock": self.clock, "sleep": self.sleep, "jitter": no_jitter}


@pytest.fixture(params=["unix", "tcp"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"unix:{tmp_path}/m" if request.param == "unix" else "127.0.0.1:0"


Start = Callable[..., ControlServer]


@pytest.fixture
def start(address: str) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(servicer: MasterServicer | None = None, at: str = address, **options: Any) -> ControlServer:
            def register(server: grpc.Server) -> None:
                add_MasterServicer_to_server(servicer or ScriptedService(), server)

            server = start_control_server(register, at, TOKEN, 8, **options)
            stack.callback(server.stop)
            return server

        yield start


@pytest.fixture
def open_channel() -> Iterator[Callable[..., ControlChannel]]:
    with ExitStack() as stack:
        yield lambda address, token=TOKEN, **options: stack.enter_context(ControlChannel(address, token, **options))


Opened = Callable[..., ControlChannel]
ASK = pb.ProgressRequest(member=pb.Member(index=7))


def test_a_call_and_its_reply(start: Start, open_channel: Opened) -> None:
    reply = open_channel(start().address).call(MasterMethods.Progress, ASK, timeout=5.0)
    assert isinstance(reply, pb.ProgressReply)
    assert reply.incarnation == 7


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1]])
def test_a_wrong_token_is_refused_and_not_tried_again(start: Start, open_channel: Opened, token: str) -> None:
    time, server = RetryTime(), start()
    channel = open_channel(server.address, token, **time.options())
    with pytest.raises(PeerRefusedError, match="token") as refused:
        channel.call(MasterMethods.Progress, ASK, timeout=5.0, retry=RetryPolicy())
    assert (refused.value.kind, refused.value.where, time.slept) == ("token", server.address, [])


def test_no_proof_at_all_is_refused(start: Start) -> None:
    with grpc.insecure_channel(start().address) as bare:
        call = bare.unary_unary(MasterMethods.Progress.path, pb.ProgressRequest.SerializeToString)
        with pytest.raises(grpc.RpcError) as error:
            call(ASK, timeout=5.0)
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_another_version_is_refused_with_both_named(
    start: Start, open_channel: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "PROTOCOL_VERSION", 99)
    channel = open_channel(start().address)
    with pytest.raises(PeerRefusedError, match=rf"\b{PROTOCOL_VERSION}\b.*\b99\b") as refused:
        channel.call(MasterMethods.Progress, ASK, timeout=5.0)
    assert refused.value.kind == "version"


def test_a_refusal_of_the_handler_keeps_its_kind(start: Start, open_channel: Opened) -> None:
    def refuse(*_: object) -> None:
        raise PeerRefusedError("A newer master is known", kind="incarnation")

    channel = open_channel(start(ScriptedService(refuse)).address)
    for _ in range(2):
        with pytest.raises(PeerRefusedError, match="A newer master is known") as refused:
            channel.call(MasterMethods.Progress, ASK, timeout=5.0)
        assert refused.value.kind == "incarnation"


def test_a_mistake_in_the_handler_is_told(start: Start, open_channel: Opened, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("boom")

    with pytest.raises(PeerRefusedError, match="boom") as refused:
        open_channel(start(ScriptedService(fail)).address).call(MasterMethods.Progress, ASK, timeout=5.0)
    assert refused.value.kind == "internal"
    assert any(record.levelno == logging.ERROR for record in caplog.records)


UNSENDABLE = ("a\ud800b", "\udfff" * 5000, "x" * 20_000, "é" * 5000, "%" * 9000, "\0\n\x1b[2J" * 3000)
"""What a status cannot carry: halves of surrogate pairs, and more than a client takes."""


@pytest.mark.parametrize("error", [lambda text: PeerRefusedError(text, kind="full"), RetryableError, ValueError])
@pytest.mark.parametrize("text", UNSENDABLE, ids=lambda text: f"{len(text)} of {text[0]!a}")
def test_whatever_an_error_quotes_the_call_is_answered_with_it(
    start: Start,
    open_channel: Opened,
    error: Callable[[str], Exception],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_server.log, "disabled", True)  # what it logs, pytest-xdist cannot carry

    def fail(*_: object) -> None:
        raise error(text)

    with pytest.raises(EdlError) as refused:
        open_channel(start(ScriptedService(fail)).address).call(MasterMethods.Progress, ASK, timeout=20.0)
    expected = {PeerRefusedError: "full", ValueError: "internal"}.get(type(error(text)))
    assert getattr(refused.value, "kind", None) == expected
    assert "no answer within" not in refused.value.message
    assert "metadata" not in refused.value.message, "it is not the client's word for an answer that it does not take"
    assert len(refused.value.message.encode()) < 4096


def test_a_method_that_the_peer_does_not_serve(start: Start, open_channel: Opened) -> None:
    with pytest.raises(RefusedError):
        open_channel(start().address).call(PsControlMethods.Attach, pb.AttachRequest(), timeout=5.0)


def test_a_busy_handler_is_tried_again(start: Start, open_channel: Opened) -> None:
    answers = iter([RetryableError("not yet"), RetryableError("not yet"), pb.ProgressReply(incarnation=3)])

    def progress(*_: object) -> pb.ProgressReply:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    time, server = RetryTime(), start(ScriptedService(progress))
    channel = open_channel(server.address, **time.options())
    reply = channel.call(
        MasterMethods.Progress, ASK, timeout=5.0, retry=RetryPolicy(backoff=ExponentialBackoff(0.1, 0.5))
    )
    assert reply.incarnation == 3
    assert time.slept == pytest.approx([0.1, 0.2])


def test_an_absent_peer_is_tried_until_time_is_up(open_channel: Opened, tmp_path: Path) -> None:
    time, address = RetryTime(), f"unix:{tmp_path}/nobody"
    with pytest.raises(RetryableError, match=f"{address}: Progress: ") as error:
        open_channel(address, **time.options()).call(
            MasterMethods.Progress, ASK, timeout=5.0, retry=RetryPolicy(timeout_seconds=2.0)
        )
    assert error.value.where == address
    assert 1.5 < time.now <= 2.0


def test_without_a_retry_there_is_one_try(open_channel: Opened, tmp_path: Path) -> None:
    time = RetryTime()
    with pytest.raises(RetryableError):
        open_channel(f"unix:{tmp_path}/nobody", **time.options()).call(MasterMethods.Progress, ASK, timeout=5.0)
    assert time.slept == []


def test_a_deadline_names_the_peer_and_the_next_try_has_a_new_connection(start: Start, open_channel: Opened) -> None:
    release, peers = threading.Event(), set[str]()

    def progress(request: pb.ProgressRequest, context: grpc.ServicerContext) -> pb.ProgressReply:
        peers.add(context.peer())
        release.wait(10)
        return pb.ProgressReply()

    server = start(ScriptedService(progress))
    channel = open_channel(server.address)
    with pytest.raises(RetryableError, match=r"Progress: no answer within 0\.2 s") as error:
        channel.call(MasterMethods.Progress, ASK, timeout=0.2)
    assert error.value.where == server.address
    release.set()
    channel.call(MasterMethods.Progress, ASK, timeout=5.0)
    if not server.address.startswith("unix:"):
        assert len(peers) == 2


def test_a_silent_call_does_not_cut_off_another(start: Start, open_channel: Opened) -> None:
    arrived, release = threading.Semaphore(0), threading.Event()

    def progress(request: pb.ProgressRequest, context: grpc.ServicerContext) -> pb.ProgressReply:
        arrived.release()
        release.wait(10)
        return pb.ProgressReply(incarnation=request.member.index)

    channel, replies = open_channel(start(ScriptedService(progress)).address), list[int]()

    def poll() -> None:
        replies.append(channel.call(MasterMethods.Progress, ASK, timeout=10.0).incarnation)

    poller = threading.Thread(target=poll)
    poller.start()
    assert arrived.acquire(timeout=10)
    with pytest.raises(RetryableError, match="no answer"):
        channel.call(MasterMethods.Progress, ASK, timeout=0.1)
    release.set()
    poller.join()
    assert replies == [7]


def test_a_message_above_the_limit_is_refused_and_not_tried_again(start: Start, open_channel: Opened) -> None:
    time = RetryTime()
    channel = open_channel(start().address, **time.options())
    leases = [pb.LeaseProgress(lease=1 << 60, through=1 << 60)] * (MAX_MESSAGE_BYTES // 20)
    with pytest.raises(PeerRefusedError, match="larger than max"):
        channel.call(MasterMethods.Progress, pb.ProgressRequest(leases=leases), timeout=5.0, retry=RetryPolicy())
    assert time.slept == []


def test_a_server_is_back_on_its_address(start: Start, open_channel: Opened) -> None:
    server = start()
    time = RetryTime(wake=lambda: start(at=server.address) and None if len(time.slept) == 2 else None)
    channel = open_channel(server.address, **time.options())
    channel.call(MasterMethods.Progress, ASK, timeout=5.0)
    server.stop()
    assert channel.call(MasterMethods.Progress, ASK, timeout=5.0, retry=RetryPolicy()).incarnation == 7
    assert len(time.slept) == 2


KILLED = """
import signal, sys
from edl.transport.control_server import start_control_server
print(start_control_server(lambda server: None, sys.argv[1], sys.argv[2], 2).address, flush=True)
signal.pause()
"""


def test_a_killed_servers_address_is_used_again(start: Start, open_channel: Opened, address: str) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, address, TOKEN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        served_address = process.stdout.readline().strip()
        channel = open_channel(served_address)
        with pytest.raises(RefusedError):
            channel.call(MasterMethods.Progress, ASK, timeout=5.0)
        process.send_signal(signal.SIGKILL)
    with pytest.raises(RetryableError):
        channel.call(MasterMethods.Progress, ASK, timeout=5.0)
    start(at=served_address)
    assert channel.call(MasterMethods.Progress, ASK, timeout=5.0, retry=RetryPolicy()).incarnation == 7


def test_a_live_servers_address_is_not_taken(start: Start) -> None:
    server = start()
    with pytest.raises(RefusedError) as error:
        start(at=server.address)
    assert error.value.where == server.address


def test_a_socket_file_is_private(tmp_path: Path) -> None:
    server = start_control_server(lambda _: None, f"unix:{tmp_path}/m", TOKEN, 1)
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o600
    server.stop()


def test_stop_wakes_those_that_wait(start: Start, open_channel: Opened) -> None:
    waiting, work = threading.Event(), threading.Event()

    def wait(*_: object) -> pb.ProgressReply:
        waiting.set()
        assert work.wait(30), "nobody woke the handler"
        return pb.ProgressReply(incarnation=1)

    server = start(ScriptedService(wait), before_stop=work.set)
    channel, replies = open_channel(server.address), list[int]()

    def ask() -> None:
        replies.append(channel.call(MasterMethods.Progress, ASK, timeout=30.0).incarnation)

    asker = threading.Thread(target=ask)
    asker.start()
    assert waiting.wait(10)
    server.stop()
    asker.join()
    assert server.stopping.is_set()
    assert replies == [1]


def test_a_call_that_is_cut_off_by_stop_can_be_tried_again(start: Start, open_channel: Opened) -> None:
    waiting, cut_off = threading.Event(), threading.Event()

    def wait(*_: object) -> pb.ProgressReply:
        waiting.set()
        assert cut_off.wait(30), "the caller still waits"
        return pb.ProgressReply()

    server = start(ScriptedService(wait))
    channel, errors = open_channel(server.address), list[Exception]()

    def ask() -> None:
        try:
            channel.call(MasterMethods.Progress, ASK, timeout=30.0)
        except (RetryableError, RefusedError) as error:
            errors.append(error)
            cut_off.set()

    asker = threading.Thread(target=ask)
    asker.start()
    assert waiting.wait(10)
    server.stop(grace_seconds=0.05)
    asker.join()
    assert [type(error) for error in errors] == [RetryableError]


def test_threads_share_a_channel_through_a_restart(start: Start, open_channel: Opened) -> None:
    server = start()
    channel, replies = open_channel(server.address), list[int]()

    def ask(number: int) -> None:
        for _ in range(20):
            request = pb.ProgressRequest(member=pb.Member(index=number))
            replies.append(
                channel.call(MasterMethods.Progress, request, timeout=5.0, retry=RetryPolicy()).incarnation == number
            )

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    server.stop()
    start(at=server.address)
    for thread in threads:
        thread.join()
    assert replies == [True] * 160


def test_a_closed_channel_says_so(start: Start) -> None:
    channel = ControlChannel(start().address, TOKEN)
    channel.close()
    channel.close()
    with pytest.raises(PeerRefusedError, match="closed"):
        channel.call(MasterMethods.Progress, ASK, timeout=5.0, retry=RetryPolicy())


def test_an_address_that_is_none() -> None:
    with pytest.raises(BadInputError):
        ControlChannel("nowhere", TOKEN)


def test_nothing_is_left_after_stop(start: Start) -> None:
    def cycle() -> None:
        server = start()
        with ControlChannel(server.address, TOKEN) as channel:
            channel.call(MasterMethods.Progress, ASK, timeout=5.0)
        server.stop()

    def sockets() -> int:
        return len(psutil.Process().net_connections(kind="all"))

    cycle()
    before = sockets(), set(threading.enumerate())
    for _ in range(5):
        cycle()
    assert sockets() <= before[0]
    for thread in set(threading.enumerate()) - before[1]:
        thread.join(5.0)  # one that gRPC has told to end may be about to
    assert set(threading.enumerate()) <= before[1]


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("keep")
    with pytest.raises(RefusedError, match="cannot listen"):
        start_control_server(lambda _: None, f"unix:{path}", TOKEN, 1)
    assert path.read_text() == "keep"
