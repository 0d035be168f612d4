"""A worker that follows a round gets parts of one state from several members; what does not come, its source sends."""

from __future__ import annotations

import fcntl
import resource
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.all_reduce_job import BOUND, TOKEN, AllReduceJob, CountingReplica, Rank

from edl.api.errors import RetryableError
from edl.api.journal_entries import WorldAnnounced
from edl.api.round_id import RoundId
from edl.collective.collective_listener import CollectiveListener
from edl.core.world_rounds import RoundPhase
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_connection import BulkConnection, FrameKind, FrameLimits, encode_frame_head
from edl.transport.peer_errors import BulkRefusedError
from edl.worker.allreduce import state_parts, step_feed
from edl.worker.allreduce.step_feed import StepFeed
from edl.worker.allreduce.step_follower import StepFollower
from edl.worker.allreduce.world_client import RoundView, WorldClient

ROUND = RoundId(1, 1)
SHARES = b'{"after": 0, "step": 0, "done": [], "newest": []}'
RECORDS = 100


@pytest.fixture(autouse=True)
def _every_state_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_parts, "SPLIT_BYTES", 0)


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="edl-") as path:
        yield Path(path)


class Member:
    """A member whose state after a step has this step in every number."""

    def __init__(self, folder: Path, index: int) -> None:
        self.feed = StepFeed(f"worker-{index}", CountingReplica(RECORDS))
        self.listener = CollectiveListener(f"unix:{folder}/{index}", TOKEN, handle_frame=self.feed.handle_frame)
        self.listener.start()
        self.held: list[int] = []
        """The steps after which its state was asked for."""

    def apply(self, step: int, *, serves: bool = True) -> None:
        if serves:
            self.feed.serve_waiting(ROUND, step, lambda: self._hold(step))

    def _hold(self, step: int) -> tuple[bytes, list[np.ndarray[Any, Any]]]:
        self.held.append(step)
        return SHARES, [np.full(2 * RECORDS + 2, float(step))]

    def close(self) -> None:
        self.feed.close()
        self.listener.stop()


class Following:
    """A source, two helpers, and a worker that follows them in a thread."""

    def __init__(self, folder: Path) -> None:
        self.members = [Member(folder, index) for index in range(3)]
        self.fetched: list[list[int]] = []
        """The parts that the worker asked its source for."""
        self.step = 10
        for member in self.members:
            member.apply(self.step)
        self.replica = CountingReplica(RECORDS)
        self.world = WorldClient(
            None,  # type: ignore[arg-type]
            "w",
            "here",
            is_leaving=lambda: False,
            on_closed=lambda *_: None,
        )
        self.world._rank.leave_world(ROUND, may_follow=True)
        self.must_end, self.is_late = False, False
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._changed = threading.Event()

    def _follow(self) -> None:
        source, *helpers = (member.listener.address for member in self.members)
        view = RoundView(
            version=1, round=ROUND, phase=RoundPhase.RUNNING, source_address=source, helper_addresses=tuple(helpers)
        )
        self.world._view = view
        StepFollower(
            "w",
            self.replica,
            self.world,
            TOKEN,
            self.replica.pack_state().nbytes,
            lambda outcome: None,
            lambda epoch, step: None,
            must_end=lambda: self.must_end,
        ).follow(view)

    def start(self) -> None:
        """Let the worker ask all members."""
        self._thread.start()
        self.wait(lambda: all(member.feed._waiting for member in self.members if member.listener is not None))

    def wait(self, condition: Callable[[], Any]) -> None:
        until = time.monotonic() + BOUND
        while not condition():
            assert time.monotonic() < until, "it takes too long"
            self._changed.wait(0.005)

    def make_steps(self, serves: Callable[[int, int], bool] = lambda member, step: True) -> None:
        """Make steps until the worker has a state, and end the round."""
        while not self.world.step:
            self.step += 1
            for number, member in enumerate(self.members):
                member.apply(self.step, serves=serves(number, self.step))
            self.wait(lambda: self.world.step or self.members[0].feed._waiting or self.members[0].held)
            if self.members[0].held and not self.is_late:
                # Members that have missed the step notice it with the next one.
                self.is_late = True
            elif self.members[0].held:
                self.wait(lambda: self.world.step)
        self.end_round()

    def end_round(self) -> None:
        for member in self.members:
            member.feed.end_round()
        self._thread.join(BOUND)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self.must_end = True
        for member in self.members:
            member.close()


@pytest.fixture
def following(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Following]:
    following_worker = Following(folder)
    send = BulkConnection.send

    def note_request(connection: BulkConnection, kind: FrameKind, meta: bytes = b"", buffers: Any = ()) -> None:
        if kind is FrameKind.FETCH_PARTS:
            following_worker.fetched.append(list(pb.FetchParts.FromString(meta).parts))
        send(connection, kind, meta, buffers)

    monkeypatch.setattr(BulkConnection, "send", note_request)
    yield following_worker
    following_worker.close()


def chosen_step(following: Following) -> int:
    """After which the members cut their states."""
    (step,) = {each.at_step for member in following.members for each in member.feed._waiting}
    return step


def assert_is_state_of(following: Following, step: int) -> None:
    assert following.world.step == step
    np.testing.assert_array_equal(following.replica.counts, np.full(RECORDS, float(step)))
    np.testing.assert_array_equal(following.replica.rates, np.full(RECORDS, float(step)))


def test_each_member_sends_its_part_of_one_step(following: Following) -> None:
    following.start()
    at_step = chosen_step(following)
    assert at_step >= 12, "another member may have made the next step already"
    following.make_steps()
    assert_is_state_of(following, at_step)
    assert following.fetched == [[]]
    assert [member.held for member in following.members] == [[at_step]] * 3


def test_the_source_sends_the_part_of_a_member_that_is_lost(following: Following) -> None:
    following.start()
    at_step = chosen_step(following)
    following.members[2].close()
    following.make_steps()
    assert_is_state_of(following, at_step)
    assert following.fetched == [[2]]


def test_a_member_that_cannot_be_reached_is_not_asked(following: Following) -> None:
    following.members[1].close()
    following.members = [following.members[0], following.members[2], following.members[1]]
    lost = following.members[2]
    following._thread.start()
    following.wait(lambda: all(member.feed._waiting for member in following.members[:2]))
    following.make_steps(lambda number, step: following.members[number] is not lost)
    assert following.fetched == [[]]
    assert_is_state_of(following, following.members[0].held[0])


def test_a_member_that_misses_the_step_sends_nothing(following: Following) -> None:
    """Its callbacks have changed the state before the next step, say."""
    following.start()
    at_step = chosen_step(following)
    following.make_steps(lambda number, step: (number, step) != (1, at_step))
    assert following.fetched == [[1]]
    assert following.members[1].held == []
    assert_is_state_of(following, at_step)


def test_a_source_that_misses_the_step_sends_the_whole_state_of_the_next_one(following: Following) -> None:
    following.start()
    at_step = chosen_step(following)
    following.make_steps(lambda number, step: (number, step) != (0, at_step))
    assert_is_state_of(following, at_step + 1)
    assert following.fetched == []


def test_while_no_steps_are_made_the_source_sends_the_whole_state(following: Following) -> None:
    following.start()
    following.members[0].apply(following.step)
    following.wait(lambda: following.world.step)
    following.end_round()
    assert_is_state_of(following, following.step)


def test_a_part_with_another_checksum_is_fetched_from_the_source(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    following.start()
    at_step = chosen_step(following)
    hold = following.members[1]._hold

    def hold_and_damage(step: int) -> tuple[bytes, list[np.ndarray[Any, Any]]]:
        shares, (array,) = hold(step)
        checksum = step_feed.pieces_checksum

        def damage(pieces: Any) -> int:
            result = checksum(pieces)
            if any(np.shares_memory(piece, array) for piece in pieces):
                array[:] = 7
            return result

        monkeypatch.setattr(step_feed, "pieces_checksum", damage)
        return shares, [array]

    monkeypatch.setattr(following.members[1], "_hold", hold_and_damage)
    following.make_steps()
    assert_is_state_of(following, at_step)
    assert following.fetched == [[1]]


def test_a_source_that_cuts_another_step_than_the_others_is_not_followed(following: Following) -> None:
    """Its part and theirs would be no state of any step."""
    following.start()
    at_step = chosen_step(following)
    feed = following.members[0].feed
    feed._waiting = [each._replace(at_step=at_step + 1) for each in feed._waiting]
    for step in range(following.step + 1, at_step + 2):
        for member in following.members:
            member.apply(step)
    following.end_round()
    assert not following.world.step
    assert following.replica.counts.max() == 0


def test_a_part_that_comes_too_slowly_is_fetched_from_the_source(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes progress, so that no silence ends the wait; the source would give the worker up."""
    monkeypatch.setattr(state_parts, "WAIT_SECONDS", 0.2)
    send = BulkConnection.send

    def send_byte(connection: BulkConnection, byte: int) -> None:
        try:
            connection._sock.send(bytes([byte]))
        except OSError as error:
            raise RetryableError("the worker has gone") from error

    def send_bit_by_bit(connection: BulkConnection, kind: FrameKind, meta: bytes = b"", buffers: Any = ()) -> None:
        if kind is FrameKind.ROUND_STATE and pb.RoundState.FromString(meta).part == 2 and not following.fetched:
            size = sum(memoryview(each).nbytes for each in buffers)
            for byte in b"".join((encode_frame_head(kind, len(meta), size), meta, *map(bytes, buffers))):
                send_byte(connection, byte)
                following._changed.wait(0.005)
            return
        send(connection, kind, meta, buffers)

    monkeypatch.setattr(BulkConnection, "send", send_bit_by_bit)
    following.start()
    at_step = chosen_step(following)
    following.make_steps()
    assert following.fetched == [[2]]
    assert_is_state_of(following, at_step)


def test_a_member_holds_only_the_part_that_it_sends(following: Following) -> None:
    """Of workers that join together each may get its parts of another step: all members would hold all these states."""
    member, elements = following.members[1], 1 << 20
    model = CountingReplica(RECORDS).fingerprint()
    request = pb.FollowRound(round=pb.Round(incarnation=1, number=1), model=model, part=1, parts=3)
    with BulkClient(member.listener.address, TOKEN, timeout=5.0, max_body=0) as client:
        client.request(FrameKind.FOLLOW_ROUND, request.SerializeToString())
        limits = FrameLimits(1 << 16, 8 * elements)
        connection = BulkConnection(client.release_socket(), "a member", limits, 5.0)
    following.wait(lambda: member.feed._waiting)
    array_refs: list[weakref.ref[Any]] = []

    def hold() -> tuple[bytes, list[np.ndarray[Any, Any]]]:
        arrays = [np.full(elements, float(number)) for number in range(3)]
        array_refs.extend(map(weakref.ref, arrays))
        return SHARES, arrays

    for step in range(following.step + 1, member.feed._waiting[0].at_step + 1):
        member.feed.serve_waiting(ROUND, step, hold)
    # It is more than the socket takes, so that it is still being sent.
    assert [array() is not None for array in array_refs] == [False, True, False]
    np.testing.assert_array_equal(np.frombuffer(connection.receive().body), np.full(elements, 1.0))
    connection.close()


@pytest.mark.parametrize("fields", [{"part": 2, "parts": 2}, {"parts": 65}, {"part": 1}])
def test_an_impossible_part_is_refused(following: Following, fields: dict[str, int]) -> None:
    model = CountingReplica(RECORDS).fingerprint()
    request = pb.FollowRound(round=pb.Round(incarnation=1, number=1), model=model, **fields)
    with BulkClient(following.members[0].listener.address, TOKEN, timeout=5.0) as client:
        with pytest.raises(BulkRefusedError, match="part") as refused:
            client.request(FrameKind.FOLLOW_ROUND, request.SerializeToString())
        assert refused.value.kind == "bad"


def test_a_part_that_there_is_not_ends_the_stream(following: Following) -> None:
    model = CountingReplica(RECORDS).fingerprint()
    request = pb.FollowRound(round=pb.Round(incarnation=1, number=1), model=model, parts=2)
    with BulkClient(following.members[0].listener.address, TOKEN, timeout=5.0, max_body=0) as client:
        client.request(FrameKind.FOLLOW_ROUND, request.SerializeToString())
        connection = BulkConnection(client.release_socket(), "a member", FrameLimits(1 << 16, 1 << 16), 5.0)
    member = following.members[0]
    following.wait(lambda: member.feed._waiting)
    for step in range(11, member.feed._waiting[0].at_step + 1):
        member.apply(step)
    assert connection.receive().kind is FrameKind.ROUND_STATE
    connection.send(FrameKind.FETCH_PARTS, pb.FetchParts(parts=[2]).SerializeToString())
    with pytest.raises(Exception, match="closed"):
        connection.receive()
    connection.close()


def test_a_worker_does_not_wait_for_many_steps_whose_duration_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first step of a job the members trace their models, and each step may take minutes."""
    now = 0.0
    monkeypatch.setattr(step_feed, "time", SimpleNamespace(monotonic=lambda: now))
    clock = step_feed._StepClock()
    clock.note_step(0)
    assert clock.choose_step() == 2
    now += step_feed.CHOICE_SECONDS / 10
    clock.note_step(1)
    assert clock.choose_step() in (12, 13)


# ------------------------------------------------------------------------------------------------ in a job


def start_job(folder: Path) -> AllReduceJob:
    job = AllReduceJob(folder, 4_000, seconds=0.02)
    job.find_node = lambda index: f"node-{index}"
    for _ in range(3):
        job.start_rank()
    job.wait_for_round(3)
    job.wait_for_step(job.state.world.committed_step + 3)
    return job


def join_until(job: AllReduceJob, condition: Callable[[], Any]) -> list[Rank]:
    """Start workers one by one until the condition holds; returns them.

    One gets the whole state of its source if no rank has records just then, or if the machine is busy.
    """
    started: list[Rank] = []
    while not condition():
        started.append(job.start_rank())
        job.wait(lambda: condition() or started[-1].uid in job.state.world.members)
    return started


def test_a_worker_joins_with_parts_from_all_nodes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted_parts: list[list[int]] = []
    wait = state_parts.PartsFromHelpers.wait

    def note_missing(parts: Any, state: memoryview, must_end: Callable[[], bool]) -> list[int]:
        missing = wait(parts, state, must_end)
        noted_parts.append([parts.parts, *missing])
        return missing

    monkeypatch.setattr(state_parts.PartsFromHelpers, "wait", note_missing)
    with start_job(folder) as job:
        # The third one may have joined the two others so as well.
        noted_parts.clear()
        *_, joined = started = join_until(job, lambda: noted_parts)
        job.wait_for_round(3 + len(started))
        job.hurry()
        job.wait_for_end()
        announced = next(e for e in job.journal if isinstance(e, WorldAnnounced) and joined.uid in e.members)
        assert joined.uid in announced.holders
    assert noted_parts[0] in ([3], [4])


@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.repetition)])
def test_a_source_or_a_helper_dies_while_a_worker_fetches_the_state(
    folder: Path, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker follows rank 0; its death ends the round, and the fetch starts anew."""
    with start_job(folder) as job:
        begun = threading.Event()
        wait = state_parts.PartsFromHelpers.wait

        def kill_member(parts: Any, state: memoryview, must_end: Callable[[], bool]) -> list[int]:
            if not begun.is_set():
                begun.set()
                ranks: dict[str, Rank] = {rank.uid: rank for rank in job.ranks}
                job.kill(ranks[job.state.world.members[lost]])
            return wait(parts, state, must_end)

        monkeypatch.setattr(state_parts.PartsFromHelpers, "wait", kill_member)
        started = join_until(job, begun.is_set)
        job.wait_for_round(2 + len(started))
        job.hurry()
        job.wait_for_end()


def test_a_worker_that_has_a_thousand_files_open_can_wait_for_a_connection() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    here, peer = socket.socketpair()
    try:
        with socket.socket(fileno=fcntl.fcntl(here.fileno(), fcntl.F_DUPFD, 1100)) as sock:
            assert not state_parts.wait_readable(sock, 0.0)
            peer.send(b"x")
            assert state_parts.wait_readable(sock, 5.0)
            assert sock.recv(1) == b"x"
            peer.close()
            assert state_parts.wait_readable(sock, 5.0), "the end of the connection wakes as well"
    finally:
        here.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
