"""Every field of every message to the master, over the wire: none ends it, and none is answered by a failure inside."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from master.master_stubs import TOKEN
from master.test_master_servicer import WORKER, ServiceHarness
from transport.malformed_messages import messages_with

from edl.api.errors import EdlError
from edl.master.master_service import MasterService
from edl.transport import edl_pb2 as pb
from edl.transport.control_client import ControlChannel
from edl.transport.control_methods import MasterMethods
from edl.transport.control_server import start_control_server
from edl.transport.edl_pb2_grpc import add_MasterServicer_to_server
from edl.transport.peer_errors import PeerRefusedError, refusal_kind

THREADS = 4


@pytest.fixture
def harness() -> ServiceHarness:
    return ServiceHarness().train()


@pytest.fixture
def channel(harness: ServiceHarness, tmp_path: Path) -> Iterator[ControlChannel]:
    with ExitStack() as stack:
        register = partial(add_MasterServicer_to_server, harness.service)
        server = start_control_server(
            register, f"unix:{tmp_path}/m", TOKEN, THREADS, before_stop=harness.shell.stop_waiting
        )
        stack.callback(server.stop)
        yield stack.enter_context(ControlChannel(server.address, TOKEN))


PS = pb.Member(role="ps", index=0, uid="ps-0")
BASES: dict[str, tuple[pb.RegisterRequest | Any, ...]] = {
    "Register": (
        pb.RegisterRequest(member=WORKER),
        pb.RegisterRequest(member=WORKER, ready=True),
        pb.RegisterRequest(member=PS),
    ),
    "Lease": (pb.LeaseRequest(member=WORKER),),
    "Progress": (pb.ProgressRequest(member=WORKER),),
    "Report": (pb.ReportRequest(member=WORKER, last=pb.LeaseProgress(through=2)),),
    "Fail": (pb.FailRequest(member=WORKER, kind="crash"),),
    "Leave": (pb.LeaveRequest(member=pb.Member(role="worker", index=1, uid="worker-1")),),
    # Of a master with parameter servers; ``test_master_world_messages`` walks it for AllReduce.
    "World": (pb.WorldRequest(member=WORKER, phase="outside"),),
}
METHODS = [getattr(MasterMethods, name) for name in vars(MasterMethods) if not name.startswith("_")]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_no_field_of_a_message_ends_the_master(harness: ServiceHarness, channel: ControlChannel, method: Any) -> None:
    assert set(BASES) == {each.name for each in METHODS}, "a new method is walked as well"
    own = harness.lease().task.lease
    for base in BASES[method.name]:
        if hasattr(base, "lease") and method.name == "Report":
            base.lease = base.last.lease = own
        for path, _, value, request in messages_with(method.request, base):
            if path == "wait_seconds" and value == 1e308:
                continue  # it is answered after LONGEST_WAIT
            refused = refusal_of(lambda request=request: channel.call(method, request, timeout=20.0))
            assert refused in (None, "bad", "retryable"), f"{path} = {value!r:.60}"
            assert harness.shell.failure is None, f"{path} = {value!r:.60}"
    for entry in harness.stubs.journal.entries:
        repr(entry).encode()


@pytest.mark.parametrize(
    "result",
    [
        rb'{"accuracy": {"additive": true, "states": ["\ud800"]}}',
        rb'{"\ud800": {"additive": true, "states": [1]}}',
        b'{"a": {"additive": true, "states": [' + b"9" * 400 + b"]}}",
        b'{"a": {"additive": true, "states": ' + b"[" * 500 + b"]" * 500 + b"}}",
        rb'["\ud800"]',
    ],
)
def test_a_result_that_no_journal_can_hold_is_refused(harness: ServiceHarness, result: bytes) -> None:
    with pytest.raises(PeerRefusedError, match="not JSON"):
        harness.report(harness.lease().task.lease, result=result)
    assert harness.shell.failure is None


@pytest.mark.parametrize(
    "callbacks",
    [
        rb'[{"kind": "EarlyStopping", "mode": "min", "monitor": "\ud800"}]',
        rb'[{"kind": "EarlyStopping", "mode": "min", "monitor": "loss", "\ud800": 1}]',
        rb'[{"kind": "\ud800"}]',
        b'[{"kind": "EarlyStopping", "mode": "min", "monitor": "loss", "min_delta": NaN}]',
        b'[{"kind": "EarlyStopping", "mode": "min", "monitor": "loss", "patience": ' + b"9" * 400 + b"}]",
        b"[" * 50_000,
        b'{"kind": "EarlyStopping"}',
    ],
    ids=len,
)
def test_callbacks_that_no_journal_can_hold_are_refused(
    harness: ServiceHarness, channel: ControlChannel, callbacks: bytes
) -> None:
    request = pb.RegisterRequest(member=WORKER, ready=True, callbacks=callbacks)
    with pytest.raises(PeerRefusedError, match="callbacks cannot be read"):
        channel.call(MasterMethods.Register, request, timeout=20.0)
    assert harness.shell.failure is None
    assert channel.call(MasterMethods.Register, pb.RegisterRequest(member=WORKER), timeout=20.0).placement.ps


def test_a_flood_of_parameter_servers_that_nobody_knows_holds_no_thread_and_no_place(
    harness: ServiceHarness, channel: ControlChannel
) -> None:
    """Each is told to try again, at once; workers are answered meanwhile, and nothing is kept of what it said."""
    state = harness.shell.state
    pods, entries = set(state.pods.by_uid), len(harness.stubs.journal.entries)

    def stranger(number: int) -> str | None:
        member = pb.Member(role="ps", index=number % 3, uid=f"nobody-{number}")
        registration = pb.RegisterRequest(
            member=member,
            control_address="unix:/a",
            bulk_address="unix:/b",
            figures=pb.PsFigures(entered=1),
            leaving=number % 2 == 0,
        )
        return refusal_of(lambda: channel.call(MasterMethods.Register, registration, timeout=20.0))

    with ThreadPoolExecutor(32) as strangers:
        answers = [strangers.submit(stranger, number) for number in range(1000)]
        for _ in range(20):
            channel.call(MasterMethods.Progress, pb.ProgressRequest(member=WORKER), timeout=5.0)
            channel.call(MasterMethods.Register, pb.RegisterRequest(member=WORKER), timeout=5.0)
        assert {each.result() for each in answers} == {"retryable"}
    assert sum(thread.name.startswith("control_") for thread in threading.enumerate()) <= THREADS
    assert (
        channel.call(MasterMethods.Register, pb.RegisterRequest(member=WORKER), timeout=1.0).placement.ps[0].uid
        == "ps-0"
    )
    assert set(harness.servers.links) == {"ps-0"}
    assert not harness.figures, "of its figures"
    assert not state.leaving_ps
    assert set(state.pods.by_uid) == pods
    assert len(harness.stubs.journal.entries) == entries


def test_servicers_are_walked_whole() -> None:
    assert {each.name for each in METHODS} <= set(vars(MasterService))


def refusal_of(call: Callable[[], object]) -> str | None:
    """The kind of the refusal; None where there is an answer."""
    try:
        call()
    except EdlError as error:
        if "no answer within" in error.message:
            return "unanswered"
        return refusal_kind(error) if isinstance(error, PeerRefusedError) else "retryable"
    return None
