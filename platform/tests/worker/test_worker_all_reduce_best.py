"""The best weights of a job under AllReduce: real loops and rings, with evaluations whose values a test decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.all_reduce_job import AllReduceJob, KilledError, Rank

from edl.api.run_events import WarningRaised
from edl.core.callback_decisions import BestCheckpoint, EarlyStopping
from edl.core.ledger import BEST_MODEL, EXPORT

EVERY = 5
BEST = 3 * EVERY
"""The evaluation of this step is the best one."""
STOP = EarlyStopping("total", "min", patience=3, restore_best_weights=True)
KEEP = BestCheckpoint("total", "min", filepath="best-{epoch}.keras")


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="edl-") as path:
        yield Path(path)


def value_of(step: int, total: float) -> float:
    return float(abs(step - BEST))


def best_job(folder: Path, *callbacks: Any, records: int = 4000, **settings: Any) -> AllReduceJob:
    job = AllReduceJob(
        folder,
        records=records,
        validation=32,
        evaluation_steps=EVERY,
        callbacks=callbacks,
        **({"durable": True, "checkpoint_steps": 100, "export": True} | settings),
    )
    job.metric = value_of
    return job


def check_best(job: AllReduceJob) -> None:
    """Training ends three evaluations after the best one, and what is exported has the state of that one."""
    job.wait(lambda: job.end is not None)
    assert job.end is not None
    assert (job.end.phase, job.state.step) == ("Done", BEST + 3 * EVERY), job.end
    (progress,) = [each for each in job.state.callbacks.progress if each.best_step]
    assert progress.best_step == BEST
    assert [updates for kind, _, updates in job.exported if kind == EXPORT][-1:] == [BEST]
    # A resumed run goes on from there, with all records done.
    saved = job.state.checkpoint
    assert saved is not None
    assert (saved.step, saved.ledger["world_step"]) == (BEST + 3 * EVERY, BEST + 3 * EVERY)
    assert saved.ledger["done_records"] == job.state.ledgers["training"].done_records
    assert int(job.ranks[-1].checkpoints.read(saved.cut)["updates"][0]) == BEST
    assert not [event for event in job.events if isinstance(event, WarningRaised) and "kept as the best" in str(event)]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("workers", [1, 3])
def test_the_export_has_the_state_of_the_best_evaluation(folder: Path, workers: int) -> None:
    with best_job(folder, STOP, workers_min=workers) as job:
        for _ in range(workers):
            job.start_rank()
        check_best(job)


@pytest.mark.repetition
def test_a_state_of_several_shards_is_kept_as_the_best(folder: Path) -> None:
    with best_job(folder, STOP, workers_min=3, shard_bytes=2000) as job:
        for _ in range(3):
            job.start_rank()
        check_best(job)


def die_once(job: AllReduceJob, is_due: Callable[[Rank, str], bool]) -> Callable[[Rank], None]:
    """Let the first rank that is due at a point be killed there."""
    killed: list[Rank] = []

    def arm(rank: Rank) -> None:
        def die(point: str) -> None:
            if not killed and is_due(rank, point):
                killed.append(rank)
                job.kill(rank)
                raise KilledError

        rank.replica.fail_at = die

    return arm


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("workers", [2, 3])
def test_the_rank_that_writes_the_best_state_is_killed_while_it_copies(folder: Path, workers: int) -> None:
    with best_job(folder, STOP) as job:
        arm = die_once(job, lambda rank, point: point == "copy" and rank.replica.updates == BEST)
        for _ in range(workers):
            job.start_rank(arm)
        check_best(job)
        assert len(job.living_ranks()) == workers - 1


def test_the_rank_that_wrote_the_best_state_is_killed_and_another_one_joins(folder: Path) -> None:
    with best_job(folder, STOP, seconds=0.002) as job:
        ranks = [job.start_rank() for _ in range(2)]
        job.wait(lambda: any(each.best_step == BEST for each in job.state.callbacks.progress))
        assert job.state.world is not None
        writer = next(rank for rank in ranks if rank.uid == job.state.world.members[0])
        job.kill(writer)
        job.start_rank()
        check_best(job)


def test_a_new_master_knows_the_best_state(folder: Path) -> None:
    with best_job(folder, STOP, seconds=0.002) as job:
        for _ in range(2):
            job.start_rank()
        job.wait(lambda: any(each.best_step == BEST for each in job.state.callbacks.progress))
        job.stop_master()
        job.start_master()
        check_best(job)


def test_a_master_is_killed_in_the_evaluation_that_is_the_best(folder: Path) -> None:
    with best_job(folder, STOP) as job:
        job.evaluation_seconds = 0.02
        for _ in range(2):
            job.start_rank()
        job.wait(lambda: job.state.evaluation is not None and job.state.evaluation.step == BEST)
        job.stop_master()
        job.start_master()
        check_best(job)


def test_all_ranks_are_killed_in_the_best_evaluation_after_its_checkpoint(folder: Path) -> None:
    """Training goes back to the checkpoint of that step, whose evaluation is not complete: it is made again."""
    with best_job(folder, STOP) as job:
        killed: list[Rank] = []

        def kill_all(step: int, total: float) -> float:
            # The values of an evaluation are computed when its checkpoint is on disk.
            if step == BEST and not killed:
                killed.extend(job.living_ranks())
                for rank in job.living_ranks():
                    job.kill(rank)
                raise KilledError
            return value_of(step, total)

        job.metric = kill_all
        for _ in range(2):
            job.start_rank()
        job.wait(lambda: len(killed) == 2)
        assert job.state.checkpoint is not None
        assert job.state.checkpoint.step == BEST
        for _ in range(2):
            job.start_rank()
        check_best(job)


@pytest.mark.repetition
def test_all_ranks_are_killed_after_the_best_weights_were_restored(folder: Path) -> None:
    with best_job(folder, STOP) as job:
        killed: list[Rank] = []

        def arm(rank: Rank) -> None:
            def die(point: str) -> None:
                if point == EXPORT and len(killed) < 2:
                    killed.extend(job.living_ranks())
                    for each in job.living_ranks():
                        job.kill(each)
                    raise KilledError

            rank.replica.fail_at = die

        for _ in range(2):
            job.start_rank(arm)
        job.wait(lambda: len(killed) == 2)
        job.start_rank()
        check_best(job)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("workers", [1, 2])
def test_each_best_model_is_written_before_the_next_step(folder: Path, workers: int) -> None:
    with best_job(folder, KEEP, records=480, workers_min=workers) as job:
        for _ in range(workers):
            job.start_rank()
        job.wait_for_end()
        steps = [updates for kind, _, updates in job.exported if kind == BEST_MODEL]
        assert steps == [EVERY, 2 * EVERY, BEST]
        assert job.exported[-1] == (EXPORT, 0, job.state.step), "without restore_best_weights the last step is exported"


def test_the_rank_that_writes_the_best_model_is_killed(folder: Path) -> None:
    with best_job(folder, KEEP, records=480) as job:
        arm = die_once(job, lambda rank, point: point == BEST_MODEL and rank.replica.updates == BEST)
        for _ in range(2):
            job.start_rank(arm)
        job.wait_for_end()
        assert [updates for kind, _, updates in job.exported if kind == BEST_MODEL] == [EVERY, 2 * EVERY, BEST]
        assert len(job.living_ranks()) == 1
