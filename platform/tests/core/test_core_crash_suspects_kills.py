"""Kills from outside, at any rate, do not make AllReduce blame a minibatch; bad minibatches are found all the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from random import Random

import pytest

from edl.core.crash_suspects import CrashSuspects
from edl.core.ledger import Lease
from edl.core.record_ranges import RecordRange

MINIBATCH, LEASE, RECORDS = 4, 16, 400


class KilledWorkers:
    """Workers that take leases as under AllReduce, in steps, and are killed or end by themselves.

    Attributes:
        guilty: the first records of the minibatches that are guilty.
        ends: the workers that have ended.
        is_done: whether every record is done or quarantined.
    """

    def __init__(self, seed: int, workers: int, rate: float, deadly: Iterable[int] = ()) -> None:
        self.random, self.rate, self.deadly = Random(seed), rate, set(deadly)
        self.suspects = CrashSuspects()
        self.queue = deque([RecordRange(0, "a", 0, RECORDS)])
        self.held: list[tuple[Lease, int] | None] = [None] * workers
        self.waits = [0] * workers
        self.last_lease = 0
        self.guilty: list[int] = []
        self.ends = 0

    @property
    def is_done(self) -> bool:
        return not self.queue and not any(self.held)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.is_done:
                return
            self._take_step()

    def _take_step(self) -> None:
        for worker, position in enumerate(self.held):
            if position is None and self.queue:
                self._lease(worker)
        victims = {self.random.randrange(len(self.held))} if self.random.random() < self.rate else set()
        for worker, position in enumerate(self.held):
            if position is None:
                continue
            lease, done = position
            at = lease.record_range.start + done * MINIBATCH
            if worker in victims or at in self.deadly:
                self._end(worker, lease, done)
            elif self.waits[worker]:
                self.waits[worker] -= 1
            elif done + 1 == lease.step_count:
                self.suspects.close_lease(lease, lease.step_count)
                self.held[worker] = None
            else:
                self.held[worker] = (lease, done + 1)

    def _lease(self, worker: int) -> None:
        suspects = self.suspects
        work = self.queue[0]
        if suspects.is_postponed(work):
            work = next((each for each in self.queue if not suspects.is_hard_suspect(each)), work)
        self.queue.remove(work)
        part = suspects.isolate_suspects(work, MINIBATCH)
        if suspects.controls_due and not suspects.is_suspect(part):
            part = suspects.add_control(part, MINIBATCH)
        part = part.split(min(part.end, part.start + LEASE))[0]
        rest = work.split(part.end)[1]
        if rest.records:
            self.queue.appendleft(rest)
        self.last_lease += 1
        lease = Lease(self.last_lease, part, MINIBATCH, f"w{worker}")
        self.waits[worker] = 0
        if suspects.is_suspect(part):
            suspects.one_by_one_leases.add(lease.number)
            # Until it is in the ledger, the worker gets nothing else.
            self.waits[worker] = self.random.randrange(3)
        self.held[worker] = (lease, 0)

    def _end(self, worker: int, lease: Lease, done: int) -> None:
        self.ends += 1
        self.held[worker] = None
        guilty = self.suspects.record_member_crash([(lease, done)], MINIBATCH, is_progress_known=True)
        self.suspects.close_lease(lease, done)
        rest = lease.record_range.split(lease.record_range.start + done * MINIBATCH)[1]
        if guilty is None:
            self.queue.appendleft(rest)
        else:
            self.guilty.append(guilty[0].start)
            self.suspects.clear_range(guilty[0])


SEEDS = [
    pytest.param(range(8), id="some"),
    pytest.param(range(8, 400), marks=pytest.mark.repetition, id="many"),
]


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize(("workers", "rate"), [(4, 0.01), (4, 0.1), (4, 0.5), (4, 1.0), (20, 0.3), (20, 1.0), (2, 0.5)])
def test_kills_from_outside_blame_nothing(workers: int, rate: float, seeds: range) -> None:
    """Also with a kill in every step, at most one job in a hundred blames an innocent minibatch.

    Args:
        rate: kills a step.
    """
    jobs = [KilledWorkers(seed, workers, rate) for seed in seeds]
    for job in jobs:
        job.run(2000)
        assert job.is_done
    assert sum(bool(job.guilty) for job in jobs) <= len(seeds) / 100
    assert sum(job.ends for job in jobs)


@pytest.mark.parametrize("seeds", [SEEDS[0], pytest.param(range(8, 60), marks=pytest.mark.repetition, id="many")])
@pytest.mark.parametrize("workers", [1, 3, 20])
@pytest.mark.parametrize(
    ("deadly", "rate", "most_ends"),
    [
        ([0], 0, 5),
        ([200], 0, 5),
        # No controls are left.
        ([396], 0, 17),
        ([0, 4], 0, 14),
        ([40, 200], 0, 14),
        ([0, 16, 32, 48, 64], 0, 30),
        ([0, 4, 8, 12, 16], 0, 30),
        ([200], 0.1, 100),
        ([40, 200], 0.3, 300),
        ([0, 16, 32, 48, 64], 0.3, 400),
    ],
)
def test_bad_minibatches_are_found_with_and_without_kills_beside_them(
    workers: int, deadly: list[int], rate: float, most_ends: int, seeds: range
) -> None:
    """Args:
    most_ends: of workers, with the kills.
    """
    jobs = [KilledWorkers(seed, workers, rate, deadly) for seed in seeds]
    for job in jobs:
        job.run(2000)
        assert job.is_done
        assert set(deadly) <= set(job.guilty)
        assert job.ends <= most_ends
    # With one worker and these kills, five bad minibatches leave few controls that are ever done.
    assert sum(len(job.guilty) > len(deadly) for job in jobs) <= len(seeds) / 20
