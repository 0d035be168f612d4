"""``strategy.global_batch``: each step has the same number of records, with any number of ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.all_reduce_job import AllReduceJob, CountedStep, KilledError, Rank

from edl.api.journal_entries import LeaseGranted
from edl.core.ledger import TRAINING


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="edl-") as path:
        yield Path(path)


def check_steps(job: AllReduceJob) -> None:
    """Every record is in one step of each epoch, and all steps but the last of an epoch are full."""
    size = job.settings.global_batch
    assert size is not None
    steps = job.step_records()
    for epoch in range(job.settings.epochs):
        records = [each for its_epoch, each in steps if its_epoch == epoch]
        assert Counter(at for each in records for at in each) == Counter(range(job.records))
        assert [len(each) for each in records[:-1]] == [size] * (job.records // size - (job.records % size == 0))
        assert len(records[-1]) == (job.records % size or size)
    assert [epoch for epoch, _ in steps] == sorted(epoch for epoch, _ in steps)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(("workers", "batch", "lease"), [(1, 10, 16), (2, 10, 16), (3, 16, 16), (4, 7, 7), (3, 24, 8)])
def test_a_step_has_the_same_records_at_any_world_size(folder: Path, workers: int, batch: int, lease: int) -> None:
    with AllReduceJob(folder, 203, epochs=3, workers_min=workers, global_batch=batch, task_records=lease) as job:
        ranks = [job.start_rank() for _ in range(workers)]
        job.wait_for_end()
        check_steps(job)
        assert all(rank.replica.updates == 3 * -(-203 // batch) for rank in ranks)
        assert max(rank.replica.most_records for rank in ranks) <= job.settings.minibatch


@pytest.mark.parametrize("workers", [3, *(pytest.param(workers, marks=pytest.mark.repetition) for workers in (2, 4))])
def test_at_most_two_steps_of_an_epoch_are_without_records_of_a_rank(folder: Path, workers: int) -> None:
    with AllReduceJob(
        folder, 480, epochs=2, workers_min=workers, global_batch=12, minibatch=6, task_records=80, seconds=0.02
    ) as job:
        ranks = [job.start_rank() for _ in range(workers)]
        job.wait_for_end()
        check_steps(job)
        holders = {entry.lease: entry.worker for entry in job.journal if isinstance(entry, LeaseGranted)}
        steps = [shares for _, _, shares in ranks[0].made_steps]
        for rank in ranks:
            without = [at for at, shares in enumerate(steps) if rank.uid not in {holders[x.lease] for x in shares}]
            assert sum(at < len(steps) // 2 for at in without) <= 2, without
            assert sum(at >= len(steps) // 2 for at in without) <= 2, without


def test_each_record_is_trained_with_the_learning_rate_of_its_epoch(folder: Path) -> None:
    with AllReduceJob(
        folder, 203, epochs=3, workers_min=3, global_batch=10, epoch_rate=lambda epoch: float(10**epoch)
    ) as job:
        ranks = [job.start_rank() for _ in range(3)]
        job.wait_for_end()
        assert {rate for rank in ranks for rate in rank.replica.rates} == {111.0}


def test_workers_join_are_killed_and_leave(folder: Path) -> None:
    with AllReduceJob(folder, 1003, epochs=2, global_batch=10, task_records=16, seconds=0.003) as job:
        ranks = [job.start_rank() for _ in range(2)]
        job.wait_for_step(5)
        ranks.append(job.start_rank())
        job.wait_for_round(3)
        job.wait_for_step(job.state.step + 5)
        job.kill(ranks[1], is_preempted=True)
        job.wait_for_round(2)
        job.wait_for_step(job.state.step + 5)
        ranks.append(job.start_rank())
        job.wait_for_round(3)
        job.tell_to_leave(ranks[0])
        job.wait(ranks[0].ended.is_set)
        job.wait_for_end()
        check_steps(job)


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("is_preempted", [True, False])
@pytest.mark.parametrize("point", ["compute", "reduce", "apply", "applied"])
def test_a_rank_is_killed_within_a_step(folder: Path, point: str, is_preempted: bool) -> None:
    def prepare(rank: Rank) -> None:
        def fail_at(reached: str) -> None:
            if reached == point and rank.index == 1 and rank.replica.updates >= 5 and not rank.is_killed:
                job.kill(rank, is_preempted=is_preempted)
                raise KilledError

        rank.replica.fail_at = fail_at

    with AllReduceJob(folder, 300, workers_min=2, global_batch=9, seconds=0.001) as job:
        for _ in range(3):
            job.start_rank(prepare)
        job.wait_for_end()
        assert any(rank.is_killed for rank in job.ranks)
        if is_preempted:
            check_steps(job)
        else:
            # Some of its records are tried alone, so those steps may have fewer.
            sizes = [len(records) for _, records in job.step_records()]
            assert (max(sizes), sum(sizes)) == (9, 300)


def test_a_new_master_in_the_middle_of_an_epoch(folder: Path) -> None:
    with AllReduceJob(folder, 600, workers_min=2, global_batch=10, task_records=200, seconds=0.003) as job:
        ranks = [job.start_rank() for _ in range(2)]
        job.wait_for_step(5)
        job.stop_master()
        step = ranks[0].world.step
        job.wait(lambda: ranks[0].world.step > step + 2)
        job.start_master()
        job.wait_for_end()
        check_steps(job)


def test_all_workers_are_lost_and_training_starts_again(folder: Path) -> None:
    with AllReduceJob(folder, 1200, global_batch=10, seconds=0.003) as job:
        ranks = [job.start_rank() for _ in range(2)]
        job.wait_for_step(5)
        for rank in ranks:
            job.kill(rank, is_preempted=True)
        job.wait(lambda: all(rank.ended.is_set() for rank in ranks))
        for _ in range(3):
            job.start_rank()
        job.wait_for_end()


def test_max_steps_and_evaluations_come_after_full_steps(folder: Path) -> None:
    with AllReduceJob(
        folder,
        400,
        workers_min=3,
        global_batch=10,
        max_steps=25,
        validation=20,
        evaluation_steps=8,
        evaluation_workers=0,
    ) as job:
        ranks = [job.start_rank() for _ in range(3)]
        job.wait(lambda: job.end is not None)
        assert job.end.phase == "Done"
        assert [rank.replica.updates for rank in ranks] == [25] * 3
        assert {step for _, step, _ in job.evaluated} == {8, 16, 24, 25}
        # The variable counts records.
        assert all(total == step * 10 for _, step, total in job.evaluated)


@pytest.mark.repetition
def test_records_that_crash_every_worker_are_found_and_all_others_are_trained(folder: Path) -> None:
    def prepare(rank: Rank) -> None:
        compute = rank.replica.compute

        def crash(features: range, labels: object, weights: object, *, adds: bool = False) -> CountedStep:
            if 77 in features and not rank.is_killed:
                job.kill(rank)
                raise KilledError
            return compute(features, labels, weights, adds=adds)

        rank.replica.compute = crash  # type: ignore[method-assign]

    with AllReduceJob(folder, 200, workers=3, global_batch=10, skip_crashing=True) as job:
        for _ in range(3):
            job.start_rank(prepare)

        def replace_killed() -> bool:
            if sum(not rank.is_killed for rank in job.ranks) < 3 and job.end is None and len(job.ranks) < 20:
                job.start_rank(prepare)
            return job.end is not None

        job.wait(replace_killed)
        assert job.end.phase == "Done", job.end
        training = job.state.ledgers[TRAINING]
        (quarantined,) = training.quarantined_ranges
        assert quarantined.start <= 77 < quarantined.end
        assert quarantined.records <= job.settings.minibatch
        # A worker that follows the last round may be a step behind.
        counts = next(rank for rank in job.ranks if rank.uid in job.state.world.members).replica.counts
        skipped = set(range(quarantined.start, quarantined.end))
        assert [at for at in range(200) if counts[at] != 1] == sorted(skipped)
        assert all(counts[at] == 0 for at in skipped)


def test_a_new_master_leases_more_to_a_rank_with_records_that_are_tried_alone(folder: Path) -> None:
    with AllReduceJob(folder, 400, workers_min=2, global_batch=6, task_records=16, seconds=0.01) as job:
        for _ in range(3):
            job.start_rank()
        job.wait_for_round(3)
        job.wait_for_step(3)
        job.kill(job.living_ranks()[1])
        leases = [rank.loop._shares._open for rank in job.living_ranks()]
        job.wait(lambda: any(each.task.one_by_one and each.has_steps for open_leases in leases for each in open_leases))
        job.stop_master()
        job.start_master()
        job.wait_for_end()
