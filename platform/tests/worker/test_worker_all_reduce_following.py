"""A worker follows the running round before it joins, so that the others wait for nothing but the boundary."""

from __future__ import annotations

import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from support.all_reduce_job import BOUND, TOKEN, AllReduceJob, CountingReplica, KilledError, Rank

from edl.api.errors import BadInputError
from edl.api.journal_entries import WorldAnnounced
from edl.api.round_id import RoundId
from edl.collective.collective_listener import CollectiveListener
from edl.core.rank_state import RankPhase
from edl.core.world_rounds import RoundPhase, Share
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_connection import MAX_META_BYTES, BulkConnection, FrameKind, FrameLimits, OutgoingFrame
from edl.transport.bulk_server import HandOver
from edl.transport.peer_errors import BulkRefusedError
from edl.worker.allreduce import step_feed, step_follower
from edl.worker.allreduce.step_feed import StepFeed
from edl.worker.allreduce.step_follower import StepFollower
from edl.worker.allreduce.step_message import StepMessage
from edl.worker.allreduce.world_client import RoundView, WorldClient

RECORDS = 2_000


@pytest.fixture
def folder():
    with TemporaryDirectory(prefix="edl-") as path:
        yield Path(path)


def holders_of_round_with(job: AllReduceJob, rank: Rank) -> tuple[str, ...]:
    """The members that had the first state of the first round with this worker."""
    return next(e.holders for e in job.journal if isinstance(e, WorldAnnounced) and rank.uid in e.members)


def start_world(job: AllReduceJob, workers: int = 2) -> list[Rank]:
    ranks = [job.start_rank() for _ in range(workers)]
    job.wait_for_round(workers)
    job.wait_for_step(job.state.world.committed_step + 3)
    return ranks


def test_a_worker_that_joins_has_the_state_already(folder):
    with AllReduceJob(folder, RECORDS, seconds=0.003) as job:
        first = start_world(job)
        fetched = []
        for rank in first:
            rank.replica.fail_at = lambda point: fetched.append(point) if point == "fetched" else None
        joined = job.start_rank()
        job.wait_for_round(3)
        job.wait_for_end()
        assert set(holders_of_round_with(job, joined)) == {each.uid for each in job.ranks}
        assert not fetched


@pytest.mark.repetition
def test_a_worker_that_follows_asks_to_join_also_while_nobody_makes_steps(folder):
    with AllReduceJob(folder, RECORDS, seconds=0.003) as job:
        (first,) = start_world(job, workers=1)
        # Without an answer from the master it soon has no records.
        job.silent.add(first.uid)
        job.wait_for_seconds(0.5)
        job.start_rank()
        job.wait(lambda: job.state.world.candidates)
        job.silent.clear()
        job.wait_for_end()


def test_several_join_together(folder):
    with AllReduceJob(folder, RECORDS, seconds=0.003) as job:
        start_world(job)
        for _ in range(2):
            job.start_rank()
        job.wait_for_round(4)
        job.wait_for_end()


def test_the_learning_rate_of_each_step_is_followed(folder):
    with AllReduceJob(folder, RECORDS // 4, seconds=0.003, epochs=4, epoch_rate=lambda epoch: 0.5**epoch) as job:
        start_world(job)
        joined = job.start_rank()
        job.wait_for_round(3)
        job.wait_for_end()
        assert joined.uid in holders_of_round_with(job, joined)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("point", ["fetched", "apply", "applied"])
def test_a_follower_dies(folder, point):
    with AllReduceJob(folder, RECORDS, seconds=0.003) as job:
        start_world(job)

        def die(rank: Rank) -> None:
            def fail(reached: str) -> None:
                if reached == point:
                    job.kill(rank)
                    raise KilledError

            rank.replica.fail_at = fail

        dead = job.start_rank(die)
        job.wait_killed(dead)
        job.wait_for_end()


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("point", ["fetched", "applied"])
def test_the_member_that_is_followed_dies(folder, point):
    with AllReduceJob(folder, RECORDS, seconds=0.003) as job:
        first = start_world(job)
        source = first[2 % len(first)]  # of the worker with index 2

        def kill_source(rank: Rank) -> None:
            def kill(reached: str) -> None:
                if reached == point and not source.is_killed:
                    job.kill(source)

            rank.replica.fail_at = kill

        job.start_rank(kill_source)
        job.wait_killed(source)
        job.wait_for_end()


def test_all_members_die_and_the_follower_goes_on_with_its_state(folder):
    with AllReduceJob(folder, RECORDS, seconds=0.003) as job:
        first = start_world(job)
        has_followed = Event()

        def kill_all(rank: Rank) -> None:
            def kill(reached: str) -> None:
                if reached == "applied" and rank.world.is_outside and rank.replica.updates > 20:
                    has_followed.set()

            rank.replica.fail_at = kill

        follower = job.start_rank(kill_all)
        job.wait(lambda: has_followed.is_set() or follower.uid in job.state.world.members)
        for rank in first:
            job.kill(rank, is_preempted=True)
        job.wait_for_end()


def test_a_follower_that_is_told_to_leave_leaves(folder):
    with AllReduceJob(folder, RECORDS, seconds=0.003) as job:
        start_world(job)

        def leave(rank: Rank) -> None:
            rank.replica.fail_at = lambda point: job.tell_to_leave(rank) if point == "fetched" else None

        leaving = job.start_rank(leave)
        job.wait(leaving.ended.is_set)
        assert leaving.error is None
        job.wait_for_end()


def test_a_follower_that_is_too_slow_gets_the_state_when_it_joins(folder, monkeypatch):
    monkeypatch.setattr(step_feed, "QUEUED_STEPS", -1)
    monkeypatch.setattr(step_feed, "QUEUED_BYTES", -1)
    with AllReduceJob(folder, RECORDS, seconds=0.003) as job:
        start_world(job)
        joined = job.start_rank()
        job.wait_for_round(3)
        job.wait_for_end()
        assert joined.uid not in holders_of_round_with(job, joined)


def test_a_worker_with_another_model_is_refused_and_learns_which_variable_differs(folder):
    with AllReduceJob(folder, RECORDS, seconds=0.003) as job:
        start_world(job)
        job.make_replica = lambda index: CountingReplica(RECORDS + 1)
        other = job.start_rank()
        assert other.ended.wait(BOUND)
        assert isinstance(other.error, BadInputError)
        # Worker 2 follows rank 2 % 2, whichever worker that is.
        source = f"worker-{job.state.world.members[0].removeprefix('w')}"
        assert other.error.message == (
            f"worker-2 and {source} have different models: 'counts' is float64 of shape ({RECORDS + 1},) on worker-2 "
            f"and float64 of shape ({RECORDS},) on {source}"
        )


# ------------------------------------------------------------------------------------------------ frames


@pytest.fixture
def feed(folder):
    """A member's listener, and its feed of a model of four numbers."""
    feed = StepFeed("worker-0", CountingReplica(4))
    with CollectiveListener(f"unix:{folder}/ring", TOKEN, handle_frame=feed.handle_frame) as listener:
        yield listener.address, feed
        feed.close()


def follow(address: str, number: int = 1) -> BulkConnection:
    with BulkClient(address, TOKEN, timeout=5.0, max_body=0) as client:
        request = pb.FollowRound(round=pb.Round(incarnation=1, number=number), model="4")
        assert client.request(FrameKind.FOLLOW_ROUND, request.SerializeToString()).kind is FrameKind.FOLLOWED_ROUND
        return BulkConnection(client.release_socket(), "a member", FrameLimits(1 << 16, 1 << 16), 5.0)


def test_only_one_who_has_the_token_may_follow(feed):
    with pytest.raises(BulkRefusedError, match="token"):
        BulkClient(feed[0], "another token", timeout=5.0)


@pytest.mark.parametrize("model", ["another", "{", "[]", '{"worker": 1}', '{"worker": "w", "variables": {"a": 1}}'])
def test_a_model_that_nothing_is_known_of_is_refused_as_well(feed, model):
    with BulkClient(feed[0], TOKEN, timeout=5.0, max_body=0) as client:
        request = pb.FollowRound(round=pb.Round(incarnation=1, number=1), model=model)
        with pytest.raises(BulkRefusedError, match="the worker that joins and worker-0 have different models") as error:
            client.request(FrameKind.FOLLOW_ROUND, request.SerializeToString())
        assert error.value.kind == "model"


def test_a_request_that_is_no_message_is_refused(feed):
    with BulkClient(feed[0], TOKEN, timeout=5.0) as client, pytest.raises(BulkRefusedError) as refused:
        client.request(FrameKind.FOLLOW_ROUND, b"\xff\xff")
    assert refused.value.kind == "bad"


def test_frames_of_another_kind_are_refused(feed):
    with BulkClient(feed[0], TOKEN, timeout=5.0) as client, pytest.raises(BulkRefusedError, match="PULL"):
        client.request(FrameKind.PULL, b"")


def test_a_follower_gets_the_state_once_and_then_every_step(feed):
    address, steps = feed
    connection = follow(address)
    state, sums = np.arange(4.0), np.ones(4)
    copies = []

    def copy():
        copies.append(True)
        return b"{}", [state]

    while not copies:  # the connection arrives in a thread of the listener
        steps.serve_waiting(RoundId(1, 1), 7, copy)
    steps.add_step([b"a", b"b"], (sums,))
    sums[:] = 5  # the rank computes the next gradient
    steps.add_step([b"c"], ())
    steps.end_round()
    frames = []
    for _ in range(4):
        frame = connection.receive()
        frames.append((frame.kind, frame.meta, bytes(frame.body)))
    connection.close()
    assert [kind for kind, _, _ in frames] == [
        FrameKind.ROUND_STATE,
        FrameKind.ROUND_STEP,
        FrameKind.ROUND_STEP,
        FrameKind.ROUND_END,
    ]
    assert pb.RoundState.FromString(frames[0][1]) == pb.RoundState(step=7, shares=b"{}", crc32=crc32(state.tobytes()))
    assert frames[0][2] == state.tobytes()
    assert list(pb.RoundStep.FromString(frames[1][1]).messages) == [b"a", b"b"]
    assert (frames[1][2], frames[2][2]) == (np.ones(4).tobytes(), b"")
    assert len(copies) == 1


def test_nothing_is_copied_for_a_follower_of_another_round(feed):
    address, steps = feed
    connection = follow(address, number=1)
    while steps._waiting == []:
        pass

    def copy():
        raise AssertionError

    steps.serve_waiting(RoundId(1, 2), 7, copy)
    with pytest.raises(Exception, match="closed"):
        connection.receive()
    connection.close()


def test_a_member_that_ends_closes_the_connections_of_those_that_wait(feed):
    address, steps = feed
    waiting = follow(address)
    steps.close()
    late = follow(address)
    for connection in (waiting, late):
        with pytest.raises(Exception, match="closed"):
            connection.receive()
        connection.close()


def test_all_messages_of_a_thousand_ranks_arrive(feed):
    """A hundred shares of each: 3 MB, and a frame has at most 1 MiB of them."""
    address, steps = feed
    connection = follow(address)
    while not steps._waiting:
        pass
    shares = b"x" * (3 << 20)
    steps.serve_waiting(RoundId(1, 1), 7, lambda: (shares, [np.arange(4.0)]))
    message = StepMessage(tuple(Share(lease, 0, 1) for lease in range(100))).encode()
    steps.add_step([message] * 1000, (np.ones(4),))
    steps.end_round()
    states, messages, bodies = b"", [], []
    connection.set_limits(FrameLimits(MAX_META_BYTES, 1 << 16))
    while (frame := connection.receive()).kind is not FrameKind.ROUND_END:
        if frame.kind is FrameKind.ROUND_STATE:
            state = pb.RoundState.FromString(frame.meta)
            states += state.shares
        else:
            state = pb.RoundStep.FromString(frame.meta)
            messages += state.messages
        bodies.append((state.continues, bytes(frame.body)))
    connection.close()
    assert states == shares
    assert messages == [message] * 1000
    assert [body for continues, body in bodies if not continues] == [np.arange(4.0).tobytes(), np.ones(4).tobytes()]
    assert {body for continues, body in bodies if continues} == {b""}


@pytest.fixture
def hanging():
    """A stream to a follower that reads nothing, and is sent its state: more than the kernel keeps for it."""
    ours, theirs = socket.socketpair()
    stream = step_feed._FollowerStream(ours)
    stream.add([frame_of(8 << 20)])
    while stream.queued_steps:
        pass
    yield stream
    theirs.close()


def frame_of(size: int) -> OutgoingFrame:
    return OutgoingFrame(FrameKind.ROUND_STEP, b"", (memoryview(bytes(size)),))


def test_a_follower_that_hangs_lets_only_two_large_steps_wait(hanging, monkeypatch):
    monkeypatch.setattr(step_feed, "QUEUED_BYTES", 1 << 20)
    for _ in range(2):
        hanging.add([frame_of(8 << 20)])
        assert hanging.is_open
    hanging.add([OutgoingFrame(FrameKind.ROUND_END)])
    assert hanging.is_open
    hanging.add([frame_of(8 << 20)])
    assert not hanging.is_open


def test_of_small_steps_only_the_bytes_are_bounded(hanging, monkeypatch):
    monkeypatch.setattr(step_feed, "QUEUED_BYTES", 1 << 20)
    for _ in range(16):
        hanging.add([frame_of(1 << 16)])
        assert hanging.is_open
    hanging.add([frame_of(1)])
    assert not hanging.is_open


@pytest.fixture
def follower(folder):
    """A follower of a source that sends what the test wants; its replica; and the source's end of the connection."""
    sent: list[tuple[FrameKind, bytes, bytes]] = []

    def send_all(sock):
        source = BulkConnection(sock, "a follower", FrameLimits(0, 0), 5.0)
        try:
            for kind, meta, body in sent:
                source.send(kind, meta, (body,))
        finally:
            # The follower may have gone in the middle of a frame.
            source.close()

    def answer(frame):
        return HandOver(OutgoingFrame(FrameKind.FOLLOWED_ROUND), send_all)

    with CollectiveListener(f"unix:{folder}/source", TOKEN, handle_frame=answer) as listener:
        replica = CountingReplica(4)
        world = WorldClient(None, "w", "here", is_leaving=lambda: False, on_closed=lambda *_: None)  # type: ignore[arg-type]
        world._rank.leave_world(RoundId(1, 1), may_follow=True)
        view = RoundView(version=1, round=RoundId(1, 1), phase=RoundPhase.RUNNING, source_address=listener.address)
        world._view = view
        size = replica.pack_state().nbytes
        round_follower = StepFollower(
            "w", replica, world, TOKEN, size, lambda outcome: None, lambda epoch, step: None, must_end=lambda: False
        )
        yield lambda *frames: (sent.extend(frames), round_follower.follow(view)), replica, world


SHARES = b'{"after": 0, "step": 3, "done": [], "newest": []}'


STATE = CountingReplica(4).pack_state().tobytes()


def state_frame(body: bytes, **fields: Any) -> tuple[FrameKind, bytes, bytes]:
    """A state of step 3, with its checksum unless the fields say otherwise."""
    message = pb.RoundState(**{"step": 3, "shares": SHARES, "crc32": crc32(body), **fields})
    return FrameKind.ROUND_STATE, message.SerializeToString(), body


def test_what_comes_in_several_frames_is_one_state_and_one_step(follower):
    follow, replica, world = follower
    first, last = (StepMessage((Share(lease, 0, 2),), has_gradient=True, weight=2.0).encode() for lease in (1, 2))
    follow(
        (FrameKind.ROUND_STATE, pb.RoundState(step=3, shares=SHARES[:9], continues=True).SerializeToString(), b""),
        state_frame(replica.pack_state().tobytes(), shares=SHARES[9:]),
        (FrameKind.ROUND_STEP, pb.RoundStep(messages=[first], continues=True).SerializeToString(), b""),
        (FrameKind.ROUND_STEP, pb.RoundStep(messages=[last]).SerializeToString(), np.ones(4).tobytes()),
        (FrameKind.ROUND_END, b"", b""),
    )
    assert (world.step, world.phase) == (4, RankPhase.OUTSIDE)
    assert world.done_records() == {1: 2, 2: 2}


def test_a_message_without_an_end_is_not_kept(follower, monkeypatch):
    monkeypatch.setattr(step_follower, "MAX_SHARES_BYTES", 1000)
    follow, _, world = follower
    part = (FrameKind.ROUND_STATE, pb.RoundState(step=3, shares=bytes(600), continues=True).SerializeToString(), b"")
    follow(part, part, part)
    assert (world.step, world.phase) == (0, RankPhase.OUTSIDE)


def test_a_step_in_the_middle_of_a_state_is_refused(follower):
    follow, replica, world = follower
    part = pb.RoundState(step=4, shares=SHARES, continues=True).SerializeToString()
    step = pb.RoundStep(messages=[StepMessage((Share(1, 0, 1),)).encode()]).SerializeToString()
    follow(
        state_frame(replica.pack_state().tobytes()),
        (FrameKind.ROUND_STATE, part, b""),
        (FrameKind.ROUND_STEP, step, b""),
    )
    assert world.step == 3


def test_a_state_and_steps_are_adopted(follower):
    follow, replica, world = follower
    other = CountingReplica(4)
    other.counts[:] = 7
    message = StepMessage((Share(1, 0, 2),), has_gradient=True, weight=2.0).encode()
    step = pb.RoundStep(messages=[message]).SerializeToString()
    follow(
        state_frame(other.pack_state().tobytes()),
        (FrameKind.ROUND_STEP, step, np.ones(4).tobytes()),
        (FrameKind.ROUND_END, b"", b""),
    )
    assert (world.step, world.phase) == (4, RankPhase.OUTSIDE)
    assert list(replica.counts) == [7] * 4
    assert list(replica.buffers[0]) == [1] * 4


@pytest.mark.parametrize(
    "frame",
    [
        state_frame(b"short"),
        state_frame(STATE, crc32=7),
        state_frame(STATE, shares=b"{}"),
        state_frame(STATE, shares=b"["),
        state_frame(STATE, begun_epochs=-1),
        state_frame(STATE[:40], part=0, parts=2),
        *(
            state_frame(STATE, shares=shares)
            for shares in (
                b'{"after": -1, "step": 3, "done": [], "newest": []}',
                b'{"after": 0, "step": 4611686018427387904, "done": [], "newest": []}',
                b'{"after": 0, "step": 3, "done": [[1, -2, 3, 0]], "newest": []}',
                b'{"after": 0, "step": 3, "done": [[1, 2, 3]], "newest": []}',
                b'{"after": 0, "step": 3, "done": [[1, 2, 3, 4]], "newest": []}',
                b'{"after": 0, "step": 3, "done": [], "newest": [[1, 2, 1, 0]]}',
                b'{"after": 0, "step": 3, "done": [], "newest": [[1, 0, 1.5, 0]]}',
                b"[]",
            )
        ),
        (FrameKind.ROUND_STATE, b"\xff", bytes(80)),
        (FrameKind.ROUND_STEP, pb.RoundStep(messages=[b"short"]).SerializeToString(), b""),
        (
            FrameKind.ROUND_STEP,
            pb.RoundStep(messages=[StepMessage(has_gradient=True).encode()]).SerializeToString(),
            b"",
        ),
        (FrameKind.ROUND_STEP, pb.RoundStep(messages=[StepMessage().encode()]).SerializeToString(), b""),
        (FrameKind.ROUND_STATE, b"", bytes(1 << 20)),
        (FrameKind.PULL, b"", b""),
    ],
)
def test_what_is_no_state_and_no_step_changes_nothing(follower, frame):
    follow, replica, world = follower
    before = replica.pack_state().tobytes()
    follow(frame)
    assert replica.pack_state().tobytes() == before
    assert (world.step, world.phase) == (0, RankPhase.OUTSIDE)


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([], id="of no rank"),
        pytest.param([StepMessage((Share(1, 0, 1),), weight=float("nan")).encode()], id="weight NaN"),
        pytest.param([StepMessage((Share(1, 2, 1),)).encode()], id="records backwards"),
        pytest.param([StepMessage((Share(-1, 0, 1),)).encode()], id="lease negative"),
        pytest.param([StepMessage((Share(1, 0, 2**62),)).encode()], id="too many records"),
        pytest.param([StepMessage((Share(2**62, 0, 1),)).encode()], id="lease too large"),
        pytest.param([StepMessage((Share(1, 0, 1, 2),)).encode()], id="more skipped records than done ones"),
        pytest.param([StepMessage((Share(1, 0, 1, -1),)).encode()], id="skipped records negative"),
        pytest.param([StepMessage((Share(1, 0, 1),), epoch=-1).encode()], id="epoch negative"),
        pytest.param([StepMessage((Share(1, 0, 1),), learning_rate=float("inf")).encode()], id="rate infinite"),
        pytest.param([StepMessage((Share(1, 0, 1),), copies_cut=-1).encode()], id="checkpoint negative"),
    ],
)
def test_a_step_with_impossible_messages_is_not_followed(follower, messages):
    follow, replica, world = follower
    step = pb.RoundStep(messages=messages).SerializeToString()
    follow(state_frame(replica.pack_state().tobytes()), (FrameKind.ROUND_STEP, step, b""))
    assert (world.step, world.phase) == (3, RankPhase.OUTSIDE)
