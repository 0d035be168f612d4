"""What a worker of strategy AllReduce may say: no message ends the master, and the next one replays the journal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.all_reduce_master import AllReduceMaster

from edl.core.events import LeaseRequested, Tick, WorldView
from edl.core.job import JobStateMachine
from edl.core.rank_state import RankPhase
from edl.master.master_service import parse_world_report, view_to_reply
from edl.transport import edl_pb2 as pb
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
    shares=st.lists(st.builds(pb.StepShares, step=numbers, shares=st.lists(ranges, max_size=2)), max_size=4),
    loss=st.one_of(st.none(), st.floats(0, 10)),
    leaving=st.booleans(),
    paused=st.booleans(),
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
            check_message(view_to_reply(views[0], master.number, {}))
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
