"""A thousand ranks lose a tenth of them at once: one new round, soon. Time is virtual, the master's core is real.

The master answers one message after the other. How long each takes is taken from a measurement of the whole master:
about 5,000 requests a second, and less for the answer to one that waited.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Callable
from random import Random
from types import FrameType
from typing import Any

from support.all_reduce_master import AllReduceMaster

from edl.api.round_id import RoundId
from edl.core.events import WorldView, WorldViewed
from edl.core.rank_state import RankPhase
from edl.core.world_rounds import RoundPhase
from edl.worker.allreduce.world_client import FOLLOWER_POLL_SECONDS, POLL_SECONDS

RANKS = 1_000
LOST = RANKS // 10
REQUEST_SECONDS = 0.0002
"""Time of the master for one request, of which the core takes less than a half."""
ANSWER_SECONDS = 0.00006
"""Time of the master for the answer to a request that waited."""
LATENCY_SECONDS = 0.001
"""Of a message, one way."""
CONNECT_SECONDS = 0.02
"""Until the ring of a new round is connected, and digests are computed."""
BREAK_SECONDS = 0.1
"""Until the last survivor has noticed the broken ring."""


class SimulatedWorld:
    """The master and its workers on a virtual clock."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.master = AllReduceMaster(started=RANKS, records=64 * RANKS)
        self.master.start_round(*self.master.workers)
        # Workers that end before their first lease would count as crashes of the role.
        for uid in self.master.workers:
            self.master.lease(uid)
        self.now = self.master.now
        self.free_at = self.now
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.ranks = {uid: WaitingRank(self, uid) for uid in self.master.workers}
        self.requests = 0

    def call_at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (time, next(self.order), action))

    def run_until(self, condition: Callable[[], bool], limit: float) -> None:
        until = self.now + limit
        while not condition():
            self.now, _, action = heapq.heappop(self.queue)
            assert self.now < until, self.master.rounds.waiting_reason
            action()

    def serve(self, seconds: float, action: Callable[[], None]) -> None:
        """Let the master do something when it is free; it takes so long."""
        self.free_at = max(self.free_at, self.now + LATENCY_SECONDS) + seconds
        self.call_at(self.free_at, action)

    def handle(self, act: Callable[[], Any]) -> Any:
        """Let the core handle an event; workers that wait are answered if it has news for them."""
        before = self.master.state.world_version
        self.master.now = self.now
        result = act()
        if self.master.state.world_version != before:
            for rank in self.ranks.values():
                rank.answer_waiting_request()
        return result


class WaitingRank:
    """A worker: one request that waits for a newer view at a time, and reports of its own."""

    def __init__(self, world: SimulatedWorld, uid: str) -> None:
        self.world, self.uid = world, uid
        self.phase, self.round = RankPhase.RUNNING, world.master.rounds.round
        self.seen = world.master.state.world_version
        self.waits_since: float | None = None
        self.is_alive = True

    def poll(self) -> None:
        """Request a newer view."""
        self.world.requests += 1
        self.world.serve(REQUEST_SECONDS, self._arrive)

    def report(self) -> None:
        """Say what this worker knows, without a wait."""
        self.world.requests += 1
        self.world.serve(REQUEST_SECONDS, lambda: self._deliver(self._handle()))

    def _handle(self) -> WorldView | None:
        if not self.is_alive:
            return None
        step = 0 if self.phase in (RankPhase.RUNNING, RankPhase.ENDED) else None
        view: WorldView = self.world.handle(
            lambda: self.world.master.report(self.uid, self.phase, self.round, step=step)
        )
        return view

    def _arrive(self) -> None:
        view = self._handle()
        if view is not None and view.version == self.seen:
            self.waits_since = since = self.world.now
            follows = self.phase is RankPhase.RUNNING and view.members[0] != self.uid
            wait = FOLLOWER_POLL_SECONDS if follows else POLL_SECONDS
            self.world.call_at(since + wait, lambda: self._end_wait(since))
        elif view is not None:
            self._deliver(view, polls=True)

    def _end_wait(self, since: float) -> None:
        if self.waits_since == since:
            self.answer_waiting_request()

    def answer_waiting_request(self) -> None:
        if self.waits_since is not None:
            self.waits_since = None
            self.world.serve(ANSWER_SECONDS, self._answer)

    def _answer(self) -> None:
        if self.is_alive:
            commands = self.world.handle(lambda: self.world.master.handle(WorldViewed(self.uid), after=0.0))
            self._deliver(next(each for each in commands if isinstance(each, WorldView)), polls=True)

    def _deliver(self, view: WorldView | None, *, polls: bool = False) -> None:
        if view is not None:
            self.world.call_at(self.world.now + LATENCY_SECONDS, lambda: self._take(view, polls))

    def _take(self, view: WorldView, polls: bool) -> None:
        if not self.is_alive:
            return
        if view.version >= self.seen:
            self.seen = view.version
            self._follow(view)
        if polls:
            self.poll()

    def _follow(self, view: WorldView) -> None:
        if view.phase is RoundPhase.CLOSING and self.phase is not RankPhase.ENDED:
            self.end_round()
        elif view.round > self.round and view.is_member:
            self.round, self.phase = view.round, RankPhase.FETCHING
            self.world.call_at(self.world.now + CONNECT_SECONDS, lambda: self._confirm(view.round))
        elif view.phase is RoundPhase.RUNNING and self.phase is RankPhase.CONFIRMED:
            self.phase = RankPhase.RUNNING

    def _confirm(self, round_id: RoundId) -> None:
        if self.is_alive and self.round == round_id and self.phase is RankPhase.FETCHING:
            self.phase = RankPhase.CONFIRMED
            self.report()

    def end_round(self) -> None:
        """Its ring is broken, or the master has closed the round."""
        if self.is_alive and self.phase is RankPhase.RUNNING:
            self.phase = RankPhase.ENDED
            self.report()


def test_a_tenth_of_a_thousand_ranks_is_lost_at_once() -> None:
    world = SimulatedWorld(seed=0)
    master, rounds = world.master, world.master.rounds
    for rank in world.ranks.values():
        world.call_at(world.now + world.random.uniform(0, FOLLOWER_POLL_SECONDS), rank.poll)
    world.run_until(lambda: world.requests > 2 * RANKS, 5.0)
    before, entries = rounds.round, len(master.journal)
    began = world.now
    for uid in world.random.sample(master.workers, LOST):
        world.ranks[uid].is_alive = False
        world.serve(REQUEST_SECONDS, lambda uid=uid: world.handle(lambda: master.kill(uid)))
    survivors = [rank for rank in world.ranks.values() if rank.is_alive]
    for rank in survivors:
        world.call_at(began + world.random.uniform(0, BREAK_SECONDS), rank.end_round)
    world.run_until(lambda: rounds.phase is RoundPhase.RUNNING and rounds.round > before, 10.0)
    assert rounds.round.number == before.number + 1
    kinds = [entry["kind"] for entry in master.journal[entries:]]
    assert [kind for kind in kinds if kind.startswith("world")] == ["world", "world_started"]
    assert set(rounds.members) == {rank.uid for rank in survivors}
    assert world.now - began < 1.0
    world.run_until(lambda: all(rank.phase is RankPhase.RUNNING for rank in survivors), 1.0)


def count_calls(act: Callable[[], object]) -> int:
    """The number of Python functions that are called."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


def count_message_calls(ranks: int) -> list[int]:
    """The calls for a report, for the answer to a request that waited, and for a lease."""
    master = AllReduceMaster(started=ranks, records=64 * ranks)
    master.start_round(*master.workers)
    uid = master.workers[-1]
    master.report(uid, RankPhase.RUNNING, step=0)
    return [
        count_calls(lambda: master.report(uid, RankPhase.RUNNING, step=0)),
        count_calls(lambda: master.handle(WorldViewed(uid))),
        count_calls(lambda: master.lease(uid)),
    ]


def test_the_work_for_one_message_does_not_grow_with_the_ranks() -> None:
    for few, many in zip(count_message_calls(10), count_message_calls(RANKS), strict=True):
        assert many <= few + 1
