"""Files of ``ModelCheckpoint`` under AllReduce: real loops and rings, with states in the place of files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.all_reduce_job import AllReduceJob, KilledError, Rank

from edl.api.journal_entries import LeaseGranted
from edl.api.run_events import CallbackDecided
from edl.core.callback_decisions import BestCheckpoint, EarlyStopping, ReduceLROnPlateau
from edl.core.ledger import BEST_MODEL, MODEL_FILE
from edl.core.model_files import ModelFile

EACH_EPOCH = ModelFile("epoch-{epoch}.keras")
EVERY_7 = ModelFile("step-{batch}.weights.h5", weights_only=True, every_steps=7)


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="edl-") as path:
        yield Path(path)


def file_job(folder: Path, *callbacks: Any, **settings: Any) -> AllReduceJob:
    return AllReduceJob(folder, callbacks=callbacks, **({"records": 96, "epochs": 3} | settings))


def check_epoch_files(job: AllReduceJob, epochs: int = 3, *, extra: int = 0) -> None:
    """There is a file of each epoch, with all its records and none of the next one; the same if written twice."""
    states = [(payload["epoch"], counts) for _, payload, counts in job.written]
    assert all(counts == [epoch] * job.records for epoch, counts in states), states
    assert sorted({epoch for epoch, _ in states}) == list(range(1, epochs + 1))
    assert epochs <= len(states) <= epochs + extra


def arm_once(job: AllReduceJob, is_due: Callable[[Rank, str], bool], *, all_ranks: bool = False) -> Any:
    """Let the first rank that is due at a point be killed there, or all of them."""
    killed: list[Rank] = []

    def arm(rank: Rank) -> None:
        def die(point: str) -> None:
            if not killed and is_due(rank, point):
                killed.extend(job.living_ranks() if all_ranks else [rank])
                for each in killed:
                    job.kill(each)
                raise KilledError

        rank.replica.fail_at = die

    return arm


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("global_batch", [None, 10])
@pytest.mark.parametrize("workers", [1, 3])
def test_each_epoch_has_a_file_with_exactly_its_records(folder: Path, workers: int, global_batch: int | None) -> None:
    with file_job(folder, EACH_EPOCH, workers_min=workers, global_batch=global_batch) as job:
        for _ in range(workers):
            job.start_rank()
        job.wait_for_end()
        check_epoch_files(job)
        decided = [event.decision for event in job.events if isinstance(event, CallbackDecided)]
        assert decided == ["wrote epoch-{epoch}.keras"] * 3


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("workers", [2, 3])
def test_in_an_epoch_with_a_file_a_rank_is_without_records_in_two_steps_at_most(folder: Path, workers: int) -> None:
    """Three leases of eight minibatches: a rank that got two of them would train alone for eight steps or more."""
    with file_job(folder, EACH_EPOCH, task_records=32, workers_min=workers, seconds=0.02) as job:
        ranks = [job.start_rank() for _ in range(workers)]
        job.wait_for_end()
        check_epoch_files(job)
        granted = {entry.lease: entry for entry in job.journal if isinstance(entry, LeaseGranted)}
        steps = [[granted[share.lease] for share in shares] for _, _, shares in ranks[0].made_steps]
        for epoch in range(3):
            of_epoch = [leases for leases in steps if leases[0].work[0] == epoch]
            for rank in ranks:
                without = sum(rank.uid not in {lease.worker for lease in leases} for leases in of_epoch)
                assert without <= 2, (rank.uid, epoch)


@pytest.mark.parametrize("global_batch", [None, 10])
def test_a_file_every_few_steps_has_the_state_of_exactly_this_step(folder: Path, global_batch: int | None) -> None:
    with file_job(folder, EVERY_7, workers_min=2, global_batch=global_batch) as job:
        for _ in range(2):
            job.start_rank()
        job.wait_for_end()
        last = job.state.step
        assert [payload["step"] for _, payload, _ in job.written] == list(range(7, last + 1, 7))
        records = dict(enumerate((len(records) for _, records in job.step_records()), 1))
        for _, payload, counts in job.written:
            step = payload["step"]
            assert sum(counts) == sum(records[each] for each in range(1, step + 1))
            assert payload["epoch"] == -(-sum(counts) // job.records)


def test_two_files_of_one_step_are_written_by_one_task(folder: Path) -> None:
    with file_job(folder, EACH_EPOCH, ModelFile("b-{batch}.keras", every_steps=8), workers_min=1) as job:
        job.start_rank()
        job.wait_for_end()
        # An epoch has 24 steps.
        assert [(payload["step"], len(payload["files"])) for _, payload, _ in job.written] == [
            (8 * n, 1 + (n % 3 == 0)) for n in range(1, 10)
        ]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("point", [MODEL_FILE, "written"])
@pytest.mark.parametrize("epoch", [1, 3])
def test_the_writer_is_killed(folder: Path, point: str, epoch: int) -> None:
    with file_job(folder, EACH_EPOCH) as job:
        arm = arm_once(job, lambda rank, at: at == point and rank.replica.counts.sum() == epoch * job.records)
        for _ in range(2):
            job.start_rank(arm)
        job.wait_for_end()
        check_epoch_files(job, extra=point == "written")
        assert len(job.living_ranks()) == 1


def test_a_master_is_killed_while_a_file_is_written(folder: Path) -> None:
    with file_job(folder, EACH_EPOCH) as job:

        def restart(rank: Rank) -> None:
            def stop(point: str) -> None:
                if point == MODEL_FILE and job.incarnation == 1:
                    job.stop_master()
                    job.start_master()

            rank.replica.fail_at = stop

        for _ in range(2):
            job.start_rank(restart)
        job.wait_for_end()
        assert job.incarnation == 2
        check_epoch_files(job, extra=1)


def test_a_worker_joins_while_others_write(folder: Path) -> None:
    with file_job(folder, EACH_EPOCH, seconds=0.004) as job:
        started: list[Rank] = []

        def join(rank: Rank) -> None:
            def start(point: str) -> None:
                if point == MODEL_FILE and not started:
                    started.append(rank)
                    job.start_rank()

            rank.replica.fail_at = start

        for _ in range(2):
            job.start_rank(join)
        job.wait_for_end()
        check_epoch_files(job)
        assert len(job.ranks) == 3


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("durable", [False, True])
def test_all_workers_are_killed_while_a_file_is_written(folder: Path, durable: bool) -> None:
    """Training goes back to the newest checkpoint, or to the start: the files after it are written again."""
    with file_job(folder, EACH_EPOCH, durable=durable, checkpoint_steps=6 if durable else None) as job:
        arm = arm_once(
            job, lambda rank, at: at == MODEL_FILE and rank.replica.counts.sum() == 2 * job.records, all_ranks=True
        )
        for _ in range(2):
            job.start_rank(arm)
        job.wait(lambda: not job.living_ranks())
        for _ in range(2):
            job.start_rank()
        job.wait_for_end()
        check_epoch_files(job, extra=1)


def test_an_early_end_is_the_end_of_an_epoch(folder: Path) -> None:
    def stop(callbacks: Any, update: int) -> None:
        callbacks.has_stopped = callbacks.has_stopped or update == 30

    def prepare(rank: Rank) -> None:
        rank.callbacks.after_step = stop

    with file_job(folder, EACH_EPOCH, validation=32) as job:
        job.start_rank(prepare)
        job.wait(lambda: job.end is not None)
        assert [(payload["epoch"], payload["step"]) for _, payload, _ in job.written] == [(1, 24), (2, 30)]
    with file_job(folder, EACH_EPOCH, max_steps=40) as job:
        job.start_rank()
        job.wait(lambda: job.end is not None)
        assert [(payload["epoch"], payload["step"]) for _, payload, _ in job.written] == [(1, 24), (2, 40)]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("global_batch", [None, 10])
def test_files_evaluations_and_other_callbacks_work_together(folder: Path, global_batch: int | None) -> None:
    others = (ReduceLROnPlateau("total", "min", patience=1, rate=1.0), EarlyStopping("total", "min", patience=100))
    settings = {"validation": 32, "evaluation_steps": 7, "durable": True, "checkpoint_steps": 5, "export": True}
    with file_job(folder, EACH_EPOCH, EVERY_7, *others, global_batch=global_batch, **settings) as job:
        for _ in range(2):
            job.start_rank()
        job.wait_for_end()
        steps = [payload["step"] for _, payload, _ in job.written]
        assert [step for step in steps if step % 7 == 0] == list(range(7, job.state.step + 1, 7))
        full = [counts for _, payload, counts in job.written if any(place == 0 for place, _ in payload["written"])]
        assert full == [[epoch] * job.records for epoch in (1, 2, 3)]


def test_files_are_written_beside_the_evaluation_of_a_copy(folder: Path) -> None:
    with file_job(folder, EACH_EPOCH, validation=32, evaluation_steps=5, workers_min=2, seconds=0.001) as job:
        for _ in range(2):
            job.start_rank()
        job.wait_for_end()
        check_epoch_files(job)
        assert {step for _, step, _ in job.evaluated if step % 5 == 0}


def test_each_evaluation_has_a_file_if_its_name_has_values_of_the_evaluation(folder: Path) -> None:
    every = BestCheckpoint("total", "min", filepath="{epoch}-{val_total}.keras", saves_every=True)
    settings = {"validation": 32, "evaluation_steps": 10, "durable": True, "checkpoint_steps": 100}
    with file_job(folder, every, epochs=1, workers_min=2, **settings) as job:
        for _ in range(2):
            job.start_rank()
        job.wait_for_end()
        steps = [updates for kind, _, updates in job.exported if kind == BEST_MODEL]
        assert steps == [*range(10, job.state.step, 10), job.state.step]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.repetition) for seed in range(1, 6))])
@pytest.mark.parametrize("global_batch", [None, pytest.param(10, marks=pytest.mark.repetition)])
def test_files_under_random_faults(folder: Path, seed: int, global_batch: int | None) -> None:
    random = Random(seed)
    settings = {"epochs": 6, "seconds": 0.003, "durable": True, "checkpoint_steps": 11, "global_batch": global_batch}
    with file_job(folder, EACH_EPOCH, EVERY_7, **settings) as job:
        for _ in range(3):
            job.start_rank()
        while job.end is None and len(job.ranks) < 9:
            living = [rank for rank in job.living_ranks() if not rank.ended.is_set()]
            if len(living) > 1:
                job.kill(random.choice(living))
            if random.random() < 0.3:
                job.stop_master()
                job.start_master()
            job.start_rank()
            reached = job.state.step + random.randint(2, 8)
            job.wait(lambda reached=reached: job.end is not None or job.state.step >= reached)
        job.wait_for_end()
        for _, payload, counts in job.written:
            assert payload["epoch"] == -(-sum(counts) // job.records), payload
            if any(place == 0 for place, _ in payload["written"]):
                assert counts == [payload["epoch"]] * job.records
        states = {(payload["step"], tuple(counts)) for _, payload, counts in job.written}
        assert len({step for step, _ in states}) == len(states), "a step has two states"
