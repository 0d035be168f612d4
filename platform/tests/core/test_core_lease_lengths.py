"""Leases of AllReduce shorten where the next ones have to wait: all ranks run out of records in the same steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.all_reduce_master import AllReduceMaster
from support.examples import examples

from edl.core.events import LeaseReply, TaskReported
from edl.core.grants import MAX_TRAINING_LEASES
from edl.core.ledger import MODEL_FILE, Ledger
from edl.core.model_files import ModelFile
from edl.core.rank_state import RankPhase
from edl.core.record_ranges import RecordRange, RecordSource, ShardPlan
from edl.core.world_rounds import Share, StepShares

SLOTS = MAX_TRAINING_LEASES + 1
"""Leases with records that a worker holds: see ``ALL_REDUCE_LEASES_AHEAD``."""


class UndisturbedWorld:
    """Ranks that take step after step; the master hears of each ``lag`` steps later.

    Args:
        epoch_files: whether a file is written after each epoch.

    Attributes:
        without: by rank and epoch, the steps in which it had no records.
    """

    def __init__(
        self,
        ranks: int,
        sources: Sequence[int],
        minibatch: int,
        lease_steps: int,
        epochs: int,
        lag: int,
        seed: int = 0,
        *,
        epoch_files: bool = False,
    ) -> None:
        self.master = AllReduceMaster(
            started=ranks,
            sources=tuple((f"s{at}", records) for at, records in enumerate(sources)),
            minibatch=minibatch,
            task_records=minibatch * lease_steps,
            epochs=epochs,
            workers_min=ranks,
            callbacks=(ModelFile("{epoch}.keras"),) if epoch_files else None,
        )
        self.files = 0
        self.random, self.lag, self.step = Random(seed), lag, 0
        self.master.start_round(*self.master.workers)
        self.leases: dict[str, list[LeaseReply]] = {worker: [] for worker in self.master.rounds.members}
        self.done: Counter[int] = Counter()
        self.shares: dict[int, StepShares] = {}
        self.without: Counter[tuple[str, int]] = Counter()

    @property
    def most_without(self) -> int:
        """The most steps of an epoch in which a rank had no records."""
        return max(self.without.values(), default=0)

    @property
    def training(self) -> Ledger:
        assert self.master.state.training_ledger is not None
        return self.master.state.training_ledger

    def train(self, *, new_master_after: int = -1) -> None:
        while not self.training.is_finished:
            before = self.step, self.training.done_records
            for worker in self.random.sample(sorted(self.leases), len(self.leases)):
                self._request(worker)
            self._make_step()
            self._report()
            assert (self.step, self.training.done_records) != before, "nobody has records, and nobody gets any"
            if self.step == new_master_after:
                new_master_after = -1
                ledger = self.training.to_snapshot()
                self.master.restart()
                assert self.training.to_snapshot() == ledger, "the leases are in the journal"
        assert self.training.done_records == self.training.total_records

    def _has_records(self, lease: LeaseReply) -> bool:
        return self.done[lease.lease] < lease.record_range.records

    def _request(self, worker: str) -> None:
        leases = self.leases[worker]
        while sum(map(self._has_records, leases)) < SLOTS:
            answer = self.master.lease(worker, *(each.lease for each in leases))
            if not isinstance(answer, LeaseReply):
                return
            leases.append(answer)

    def _make_step(self) -> None:
        shares = []
        for leases in self.leases.values():
            lease = next(filter(self._has_records, leases), None)
            if lease is not None:
                start = self.done[lease.lease]
                self.done[lease.lease] = end = min(start + lease.minibatch, lease.record_range.records)
                shares.append((lease, Share(lease.lease, start, end)))
        # A step without records is not run.
        if shares:
            self.step += 1
            self.shares[self.step] = tuple(share for _, share in shares)
            with_records = {lease.lease for lease, _ in shares}
            without = [w for w, leases in self.leases.items() if not with_records & {x.lease for x in leases}]
            self.without.update((w, max(lease.record_range.epoch for lease, _ in shares)) for w in without)

    def _report(self) -> None:
        """Rank 0 reports; when nobody has records all ranks have applied the newest step."""
        is_idle = not any(self._has_records(lease) for leases in self.leases.values() for lease in leases)
        stable = self.step if is_idle else self.step - 1 - self.lag
        if stable > self.master.rounds.committed_step:
            first = self.master.rounds.members[0]
            view = self.master.report(
                first, RankPhase.RUNNING, step=self.step, stable=stable, shares=self.shares, is_paused=is_idle
            )
            self.shares = {step: shares for step, shares in self.shares.items() if step > view.committed_step}
            for worker, leases in self.leases.items():
                self.leases[worker] = [each for each in leases if each.lease in self.training.leases]
            if MODEL_FILE in self.master.state.ledgers:
                self._write_file(first)

    def _write_file(self, worker: str) -> None:
        task = self.master.lease(worker)
        assert task.kind == MODEL_FILE
        self.master.handle(TaskReported(worker, task.lease, None, {"written": task.payload["written"], "paths": ["f"]}))
        self.files += 1


def test_two_ranks_divide_the_last_leases() -> None:
    """Five leases of four minibatches: one rank would train alone for four steps."""
    world = UndisturbedWorld(2, [80], minibatch=4, lease_steps=4, epochs=1, lag=0)
    world.train()
    assert (world.step, world.most_without) == (10, 0)


def test_a_job_of_fewer_steps_than_a_lease_is_divided_from_the_beginning() -> None:
    world = UndisturbedWorld(3, [40], minibatch=4, lease_steps=16, epochs=1, lag=0)
    world.train()
    assert (world.step, world.most_without) == (4, 1)


def test_leases_of_an_epoch_that_another_one_follows_are_not_shortened() -> None:
    world = UndisturbedWorld(2, [80], minibatch=4, lease_steps=4, epochs=3, lag=1)
    world.train()
    assert (world.step, world.most_without) == (30, 0)
    granted = [entry for entry in world.master.journal if entry["kind"] == "leased"]
    assert {entry["work"][3] - entry["work"][2] for entry in granted if entry["work"][0] < 2} == {16}


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_each_epoch_is_divided_if_the_next_one_waits_for_its_file(lag: int) -> None:
    """Three leases of 64 minibatches: one rank would train alone for 64 steps at the end of each epoch."""
    world = UndisturbedWorld(2, [3 * 64 * 4], minibatch=4, lease_steps=64, epochs=3, lag=lag, epoch_files=True)
    world.train()
    assert (world.files, world.step, world.most_without) == (3, 3 * 96, 0)


@settings(max_examples=examples(100), deadline=None)
@given(
    ranks=st.integers(1, 6),
    sources=st.lists(st.integers(1, 300), min_size=1, max_size=3),
    minibatch=st.integers(1, 9),
    lease_steps=st.integers(2, 16),
    epochs=st.integers(1, 3),
    lag=st.integers(0, 2),
    seed=st.integers(0, 99),
    new_master_after=st.integers(-1, 30),
    epoch_files=st.booleans(),
)
def test_in_an_undisturbed_epoch_a_rank_has_no_records_in_two_steps_at_most(
    ranks: int,
    sources: list[int],
    minibatch: int,
    lease_steps: int,
    epochs: int,
    lag: int,
    seed: int,
    new_master_after: int,
    epoch_files: bool,
) -> None:
    if sum(sources) < minibatch:
        return
    world = UndisturbedWorld(ranks, sources, minibatch, lease_steps, epochs, lag, seed, epoch_files=epoch_files)
    world.train(new_master_after=new_master_after)
    assert world.most_without <= 2
    assert world.files == (epochs if epoch_files else 0)


def test_an_epoch_is_leased_although_more_is_done_of_later_ones_than_is_left_of_it() -> None:
    """Three ranks have each done half of an epoch or more. One goes on, with a new callback as after a resumption."""
    master = AllReduceMaster(records=256, task_records=256, epochs=3)
    master.start_round("w0", "w1", "w2")
    own, *others = [master.lease(worker) for worker in master.workers]
    shares = {1: (Share(own.lease, 0, 128), *(Share(each.lease, 0, 136) for each in others))}
    for worker in ("w1", "w2"):
        master.kill(worker)
    master.report("w0", RankPhase.ENDED, step=1, shares=shares)
    master.report("w0", RankPhase.CONFIRMED)
    master.callbacks = (ModelFile("{epoch}.keras"),)
    master.restart()
    master.report("w0", RankPhase.RUNNING, step=3, stable=2, shares={2: (Share(own.lease, 128, 256),)})
    lease = master.lease("w0")
    assert (lease.record_range.epoch, lease.record_range.start) == (others[0].record_range.epoch, 136)
    assert master.state.training_ledger is not None
    assert master.state.training_ledger.open_epoch() == (1, 120)


@pytest.mark.parametrize("seed", range(30))
def test_a_journal_with_leases_of_earlier_versions_replays(seed: int) -> None:
    """They leased whole shards. The rest of a lease that was cut for a suspect minibatch was like one that returned."""
    random = Random(seed)
    plan = ShardPlan((RecordSource("a", 90), RecordSource("b", 31)), 16, seed)
    old, new = Ledger(plan, 2, 4), Ledger(plan, 2, 4, 16)
    for number in range(1, 40):
        work = old.next_range()
        assert work is not None
        if random.random() < 0.3:
            work = work.split(min(work.end, work.start + 4 * random.randint(1, 3)))[0]
        done = random.randint(0, 4)
        for ledger in (old, new):
            lease = ledger.grant_range(number, work, "w")
            if done >= lease.step_count:
                ledger.finish_lease(number)
            elif number % 3:
                ledger.return_lease(number, done)
        if not old.has_work:
            break
    assert _open_records(old) == _open_records(new)
    assert (old.done_records, old.leases) == (new.done_records, new.leases)
    # It goes on from there, in parts of any length.
    for number in range(100, 1000):
        work = new.next_range(random.randint(1, 5), "w")
        if work is None:
            break
        new.grant_range(number, work, "w")
        new.finish_lease(number)
    for number in [*new.leases]:
        new.finish_lease(number)
    assert (new.is_finished, new.done_records) == (True, new.total_records)


def _open_records(ledger: Ledger) -> set[tuple[int, str, int]]:
    """The records that are neither done nor leased."""
    copy = ledger.empty_copy()
    copy.restore_snapshot(ledger.to_snapshot())
    for number in [*copy.leases]:
        copy.finish_lease(number)
    open_records: set[tuple[int, str, int]] = set()
    while (work := copy.next_range()) is not None:
        copy.grant_range(10_000, work, "w")
        copy.finish_lease(10_000)
        open_records |= _records(work)
    return open_records


def _records(work: RecordRange) -> set[tuple[int, str, int]]:
    return {(work.epoch, work.source, number) for number in range(work.start, work.end)}
