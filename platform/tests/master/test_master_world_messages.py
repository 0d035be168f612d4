"""What a worker of strategy AllReduce may say: no message ends the master, and the next one replays the journal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.all_reduce_master import AllReduceMaster

from edl.core.events import (
    CheckpointSaveFinished,
    CopiedState,
    LeaseRequested,
    Tick,
    WorldView,
    WrittenShard,
)
from edl.core.job import JobStateMachine
from edl.core.rank_state import RankPhase
from edl.master import master_service
from edl.master.master_service import MemberDirectory, parse_world_report, view_to_reply
from edl.transport import edl_pb2 as pb
from edl.transport.grpc_options import MAX_MESSAGE_BYTES
from edl.transport.message_validation import check_message
from edl.transport.peer_errors import PeerRefusedError

WORKERS = ("w0", "w1", "w2")

pytestmark = pytest.mark.examples

numbers = st.one_of(st.integers(0, 4), st.integers(0, 40), st.just(2**62 - 1))
rounds = st.builds(pb.Round, incarnation=st.integers(0, 2), number=st.integers(0, 3))
ranges = st.builds(
    pb.LeaseRecords,
    lease=st.one_of(st.integers((1 << 32) + 1, (1 << 32) + 4), numbers),
    start=st.integers(0, 3),
    end=st.one_of(st.integers(4, 16), numbers),
)
requests = st.builds(
    pb.WorldRequest,
    member=st.builds(pb.Member, role=st.just("worker"), uid=st.sampled_from((*WORKERS, "stranger"))),
    phase=st.sampled_from([*(phase.value for phase in RankPhase), "elsewhere"]),
    round=rounds,
    state_round=rounds,
    step=st.one_of(st.none(), numbers),
    digest=st.integers(0, 1),
    stable=numbers,
    after=numbers,
    done=st.lists(ranges, max_size=4),
    members_known=rounds,
    loss=st.one_of(st.none(), st.floats(0, 10)),
    leaving=st.booleans(),
    paused=st.booleans(),
    entered=st.one_of(st.none(), numbers),
)


@given(st.lists(st.one_of(requests, st.sampled_from(["lease", "restart", "time"])), max_size=40))
def test_no_sequence_of_messages_ends_the_master(said: list[Any]) -> None:
    master = AllReduceMaster()
    for each in said:
        if each == "restart":
            master.restart()
        elif each == "time":
            master.now += 3.0
            master.handle(Tick())
        elif each == "lease":
            for worker in WORKERS:
                master.handle(LeaseRequested(worker, frozenset()))
        else:
            try:
                event = parse_world_report(check_message(each))
            except PeerRefusedError:
                continue
            views = [command for command in master.handle(event) if isinstance(command, WorldView)]
            assert len(views) == 1
            message = MemberDirectory().members_message(views[0])
            check_message(view_to_reply(views[0], master.number, message))
    training = master.state.training_ledger
    assert training is not None
    assert training.done_records + training.count_remaining_records() == training.total_records
    before = master.state.to_snapshot()
    replayed = JobStateMachine(master.settings)
    replayed.replay_journal(None, master.journal)
    assert replayed.to_snapshot() == before
    restored = JobStateMachine(master.settings)
    restored.replay_journal(before, [])
    assert restored.to_snapshot() == before


def test_the_members_are_sent_once_to_each_of_them() -> None:
    master = AllReduceMaster(started=200)
    workers = tuple(master.workers)
    master.start_round(*workers)
    view = master.report(workers[5], RankPhase.RUNNING, step=0)
    directory = MemberDirectory()
    for worker in workers:
        directory.keep_address(worker, f"10.0.0.1:{worker}", lambda uid: True)
    members = directory.members_message(view)
    first = view_to_reply(view, 1, members)
    assert [(each.uid, each.address) for each in first.members][:2] == [("w0", "10.0.0.1:w0"), ("w1", "10.0.0.1:w1")]
    again = view_to_reply(view, 1, members, members_known=view.round)
    assert not again.members
    assert again.ByteSize() < 100
    outside = master.report(master.start_worker(), RankPhase.OUTSIDE)
    assert not view_to_reply(outside, 1, directory.members_message(outside)).members


def test_a_new_address_is_in_the_next_message() -> None:
    master = AllReduceMaster()
    master.start_round("w0", "w1")
    view, directory = master.report("w0", RankPhase.RUNNING, step=0), MemberDirectory()
    directory.keep_address("w0", "unix:0", lambda uid: True)
    assert [each.address for each in directory.members_message(view).members] == ["unix:0", ""]
    directory.keep_address("w1", "unix:1", lambda uid: True)
    assert [each.address for each in directory.members_message(view).members] == ["unix:0", "unix:1"]


@pytest.mark.parametrize("evaluators", [0, 1])
def test_an_interval_that_is_never_reached_fits_into_messages(evaluators: int) -> None:
    """``train.evaluation_steps`` and ``checkpoint.every_steps`` may be any 64-bit number, such as ``sys.maxsize``."""
    never: dict[str, Any] = {"evaluation_steps": 2**63 - 1, "checkpoint_steps": 2**63 - 1, "durable": True}
    master = AllReduceMaster(validation=8, evaluation_workers=evaluators, **never)
    master.start_round("w0", "w1", "w2")
    first = master.report("w0", RankPhase.RUNNING).checkpoint
    assert first is not None
    copied = CopiedState(first.cut, 0, 0.0, WrittenShard("ps-0.safetensors", 1, 1, ""), {}, ())
    master.report("w0", RankPhase.RUNNING, copied=copied)
    master.handle(CheckpointSaveFinished(first.cut))
    master.handle(Tick())
    views = [master.report(worker, RankPhase.RUNNING) for worker in master.workers]
    for view in views:
        check_message(view_to_reply(view, 1, pb.WorldReply()))
    assert views[0].checkpoint is not None
    assert views[0].checkpoint.at_step > 1 << 60
    assert max(max(view.evaluate_at, view.copy_at) for view in views) > 1 << 60


def test_a_file_with_an_impossible_checksum_is_refused() -> None:
    shard = pb.WrittenShard(file="ps-0.safetensors", size=8, crc32=2**32)
    request = pb.WorldRequest(phase=RankPhase.RUNNING.value, copied=pb.CopiedState(cut=1, shard=shard))
    with pytest.raises(PeerRefusedError, match="CRC-32"):
        parse_world_report(request)


def test_a_control_message_has_room_for_the_longest_report() -> None:
    records = [
        pb.LeaseRecords(lease=(1000 << 32) + number, end=2**31, skipped=2**31)
        for number in range(master_service._MAX_REPORTED_LEASES)
    ]
    member, copied = pb.Member(uid="w0"), pb.CopiedState(done=records)
    request = pb.WorldRequest(member=member, phase=RankPhase.RUNNING.value, done=records, copied=copied)
    assert len(parse_world_report(request).report.done) == len(records)
    assert request.ByteSize() < MAX_MESSAGE_BYTES
    request.done.append(records[0])
    with pytest.raises(PeerRefusedError, match="more than 65536 leases"):
        parse_world_report(request)
