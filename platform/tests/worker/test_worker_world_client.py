"""A worker's connection to the rounds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from edl.api.round_id import RoundId
from edl.core.world_rounds import Share
from edl.transport import edl_pb2 as pb
from edl.worker.allreduce.world_client import WorldClient


def test_a_view_that_arrived_before_the_wait_ends_it() -> None:
    class Session:
        version = 1

        def request_world(self, request: Callable[[], pb.WorldRequest], wait_seconds: float) -> pb.WorldReply:
            return pb.WorldReply(phase="closing", version=self.version)

    session = Session()
    client = WorldClient(session, "w0", "", is_leaving=lambda: False, on_closed=lambda round_id, reason: None)
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
    client = WorldClient(
        Session(), "w0", "", is_leaving=lambda: False, on_closed=lambda round_id, reason: reasons.append(reason)
    )
    client.run()
    assert reasons
    with pytest.raises(ValueError, match="unknown to this worker"):
        _ = client.view


def ignore_end(round_id: RoundId, reason: str) -> None:
    """Do nothing about the end of a round."""


def make_client(on_closed: Callable[[RoundId, str], None] = ignore_end) -> tuple[WorldClient, Master]:
    """A worker that is rank 0 of two in a running round, and the master that it talks to."""
    master = Master()
    client = WorldClient(master, "w0", "unix:0", is_leaving=lambda: False, on_closed=on_closed)
    client.report()
    client.enter_round(client.view)
    client.adopt_state(client.view.round, 0, None)
    client.confirm(7)
    client.report()
    master.change(phase="running")
    client.report()
    client.start(client.view.round)
    return client, master


class Master:
    """Answers with what a test says, and keeps the last request."""

    def __init__(self) -> None:
        members = [pb.WorldMember(uid=f"w{index}", address=f"unix:{index}") for index in range(2)]
        self.members = pb.WorldReply(members=members, holders=["w1"])
        self.reply = pb.WorldReply(version=1, phase="confirming", member=True, round=pb.Round(incarnation=1, number=1))
        self.last_request = pb.WorldRequest()

    def change(self, **fields: Any) -> None:
        self.reply = pb.WorldReply(
            **{"member": True, "round": self.reply.round, "version": self.reply.version + 1} | fields
        )

    def request_world(self, request: Callable[[], pb.WorldRequest], wait_seconds: float) -> pb.WorldReply:
        self.last_request = request()
        reply = pb.WorldReply()
        reply.CopyFrom(self.reply)
        if self.last_request.members_known != reply.round:
            reply.MergeFrom(self.members)
        return reply


def test_members_that_a_worker_has_stay_in_its_view_although_they_are_not_sent_again() -> None:
    client, master = make_client()
    assert master.last_request.members_known == pb.Round(incarnation=1, number=1)
    assert client.view.members == ("w0", "w1")
    assert client.view.has_all_addresses
    master.change(phase="running", round=pb.Round(incarnation=1, number=2))
    client.report()
    assert client.view.members == ("w0", "w1")
    # The master is another one, and does not know all addresses yet.
    master.members.members[1].address = ""
    master.change(phase="confirming", round=pb.Round(incarnation=2, number=3))
    client.report()
    assert not client.view.has_all_addresses
    client.report()
    assert master.last_request.members_known == pb.Round()


def test_the_size_of_a_report_does_not_depend_on_the_steps_without_a_master() -> None:
    client, master = make_client()
    ranks, steps, step_records = 100, 3_000, 128
    leases = [(1 << 32) + rank for rank in range(ranks)]
    for step in range(steps):
        shares = tuple(Share(lease, step * step_records, (step + 1) * step_records) for lease in leases)
        client.apply_step(shares, 0.5)
    client.report()
    request = master.last_request
    # The newest step is not stable yet.
    assert (request.after, request.stable, len(request.done)) == (0, steps - 1, ranks)
    assert {each.end for each in request.done} == {(steps - 1) * step_records}
    assert request.ByteSize() < 32 * ranks
    client.end_round()
    client.report()
    assert {each.end for each in master.last_request.done} == {steps * step_records}
    assert len(json.dumps(client.pending_shares())) < 200 * ranks


def test_the_master_hears_how_many_exchanges_of_the_round_were_entered() -> None:
    client, master = make_client()
    for _ in range(3):
        client.enter_exchange()
    client.report()
    assert master.last_request.entered == 3
    client.end_round()
    client.report()
    assert not master.last_request.HasField("entered")
    master.change(phase="confirming", round=pb.Round(incarnation=1, number=2))
    client.report()
    client.enter_round(client.view)
    client.adopt_state(client.view.round, 0, None)
    client.confirm(7)
    client.report()
    assert master.last_request.HasField("entered")
    assert master.last_request.entered == 0


def test_a_round_that_is_over_is_named() -> None:
    """The main thread may have entered the next one when this is called."""
    closed: list[RoundId] = []
    client, master = make_client(lambda round_id, reason: closed.append(round_id))
    master.change(phase="closing")
    client.report()
    assert closed == [RoundId(1, 1)]


def test_a_reply_that_another_thread_overtook_does_not_replace_a_newer_one() -> None:
    """With a global batch, the records left in the epoch would count steps twice that are done."""
    client, master = make_client()
    version = master.reply.version
    master.change(version=version, phase="running", committed=12, epoch_left=4)
    client.report()
    master.change(version=version, phase="running", committed=10, epoch_left=24)
    client.report()
    assert (client.view.committed_step, client.view.epoch_left) == (12, 4)
    master.change(phase="running", committed=10)
    client.report()
    assert client.view.committed_step == 10, "a newer view may start from an older checkpoint"
