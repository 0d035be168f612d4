"""Ranks that evaluate a copy of their variables while the others train: what is evaluated, and what faults cost."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import pytest
from support.all_reduce_job import AllReduceJob, Rank

from edl.api.run_events import WarningRaised
from edl.core.events import StopRequested

EVERY = 20


@pytest.fixture
def folder():
    with TemporaryDirectory(prefix="edl-") as path:
        yield Path(path)


def evaluating_job(folder: Path, **more: Any) -> AllReduceJob:
    """A job whose steps take some milliseconds, and whose evaluations take dozens of steps."""
    settings: dict[str, Any] = {"records": 1600, "seconds": 0.002, "validation": 64, "evaluation_steps": EVERY} | more
    job = AllReduceJob(folder, settings.pop("records"), **settings)
    job.evaluation_seconds = 0.03
    return job


def begun_steps(job: AllReduceJob) -> list[int]:
    return [entry.step for entry in job.journal if entry.kind == "evaluation"]


def check_evaluations(job: AllReduceJob) -> None:
    """Each evaluation has a single state, and it is the one after exactly its step."""
    totals: dict[int, set[float]] = defaultdict(set)
    for _, step, total in job.evaluated:
        totals[step].add(total)
    records = 0
    records_after = {}
    for number, (_, applied) in enumerate(job.step_records(), start=1):
        records += len(applied)
        records_after[number] = records
    for step, step_totals in totals.items():
        assert step_totals == {records_after[step]}, step
    assert all(step % EVERY == 0 for step in begun_steps(job)[:-1])


def test_one_rank_evaluates_exactly_one_step_while_the_others_train(folder):
    with evaluating_job(folder, workers_min=3) as job:
        for _ in range(3):
            job.start_rank()
        job.wait(lambda: job.state.evaluation is not None)
        step = job.state.evaluation.step
        evaluator = next(rank for rank in job.ranks if rank.evaluation.has_copy)
        assert not job.state.world_pauses
        # Steps are made that contain no record of the rank that evaluates.
        job.wait(lambda: job.state.step >= step + 5)
        assert job.state.evaluation is not None
        assert job.state.evaluation.step == step
        assert evaluator.world.rank != 0
        job.wait_for_end()
        assert step == EVERY
        check_evaluations(job)
        during = [uid for uid, at, _ in job.evaluated if at < job.state.step]
        assert set(during) == {evaluator.uid}


def test_two_ranks_share_an_evaluation_if_the_job_says_so(folder):
    with evaluating_job(folder, workers_min=3, evaluation_workers=2, validation=128) as job:
        for _ in range(3):
            job.start_rank()
        job.wait_for_end()
        check_evaluations(job)
        first = {uid for uid, step, _ in job.evaluated if step == EVERY}
        assert len(first) == 2


def test_a_world_of_one_pauses(folder):
    with evaluating_job(folder, records=400) as job:
        job.start_rank()
        job.wait(lambda: job.state.evaluation is not None)
        assert job.state.world_pauses
        job.wait_for_end()
        check_evaluations(job)
        assert begun_steps(job) == [*range(EVERY, job.state.step, EVERY), job.state.step]


def evaluator_of(job: AllReduceJob) -> Rank:
    """The rank that has evaluated a part of the present evaluation."""
    job.wait(lambda: job.state.evaluation is not None and not job.state.evaluation.final and job.evaluated)
    return next(rank for rank in job.ranks if rank.evaluation.has_copy)


def test_the_only_evaluator_is_killed_and_a_later_step_is_evaluated(folder):
    with evaluating_job(folder, validation=160) as job:
        for _ in range(3):
            job.start_rank()
        victim = evaluator_of(job)
        step = job.state.evaluation.step
        job.kill(victim)
        job.wait_for_end()
        kinds = [entry.kind for entry in job.journal]
        assert "evaluation_off" in kinds
        completed = [entry.step for entry in job.journal if entry.kind == "evaluated"]
        assert step not in completed
        assert len(completed) >= 2
        check_evaluations(job)
        assert [w.message for w in job.events if isinstance(w, WarningRaised)] == [
            f"the evaluation of step {step} was given up: no worker is left that has a copy of its variables"
        ]


def test_one_of_two_evaluators_is_killed_and_the_other_one_goes_on(folder):
    with evaluating_job(folder, workers_min=3, evaluation_workers=2, validation=320) as job:
        for _ in range(4):
            job.start_rank()
        job.wait(lambda: len({uid for uid, _, _ in job.evaluated}) == 2)
        step = job.state.evaluation.step
        job.kill(evaluator_of(job))
        job.wait_for_end()
        assert "evaluation_off" not in [entry.kind for entry in job.journal]
        assert step in [entry.step for entry in job.journal if entry.kind == "evaluated"]
        check_evaluations(job)


@pytest.mark.repetition
def test_an_evaluator_that_was_stopped_comes_back_without_its_copy(folder):
    """The others may have made the step that it copied anew."""
    with evaluating_job(folder, records=3000, validation=160) as job:
        resume, is_stopped = Event(), Event()

        def stop_once(rank: Rank) -> None:
            def stop(point: str) -> None:
                if point == "apply" and rank.evaluation.has_copy and not is_stopped.is_set():
                    is_stopped.set()
                    job.silent.add(rank.uid)
                    rank.connection.abort(rank.world.round, "its neighbours hear nothing from it")
                    resume.wait(20)
                    job.silent.discard(rank.uid)

            rank.replica.fail_at = stop

        for _ in range(3):
            job.start_rank(stop_once)
        job.wait(is_stopped.is_set)
        job.wait_for_round(2)
        stopped = next(rank for rank in job.ranks if rank.uid in job.silent)
        copied = stopped.evaluation.report
        assert copied.step == EVERY
        resume.set()
        job.wait_for_round(3)
        assert stopped.evaluation.report.changes > copied.changes
        job.wait_for_end()
        check_evaluations(job)


@pytest.mark.repetition
def test_an_evaluator_that_is_told_to_leave_leaves_at_the_next_boundary(folder):
    with evaluating_job(folder, validation=160) as job:
        for _ in range(3):
            job.start_rank()
        leaver = evaluator_of(job)
        job.tell_to_leave(leaver)
        job.wait(leaver.ended.is_set, seconds=5)
        job.wait_for_end()
        check_evaluations(job)


@pytest.mark.repetition
def test_a_worker_joins_during_an_evaluation(folder):
    with evaluating_job(folder, workers_min=2, validation=320, records=2400) as job:
        for _ in range(2):
            job.start_rank()
        evaluator_of(job)
        step = job.state.evaluation.step
        job.start_rank()
        job.wait_for_round(3)
        assert job.state.evaluation is not None
        assert job.state.evaluation.step == step
        job.wait_for_end()
        assert "evaluation_off" not in [entry.kind for entry in job.journal]
        check_evaluations(job)


@pytest.mark.repetition
def test_the_master_is_replaced_during_an_evaluation(folder):
    with evaluating_job(folder, workers_min=2, validation=320, records=2400) as job:
        for _ in range(3):
            job.start_rank()
        evaluator_of(job)
        step = job.state.evaluation.step
        job.stop_master()
        job.start_master()
        assert job.state.evaluation.step == step
        job.wait_for_end()
        assert "evaluation_off" not in [entry.kind for entry in job.journal]
        assert step in [entry.step for entry in job.journal if entry.kind == "evaluated"]
        check_evaluations(job)


def test_all_others_are_killed_and_the_evaluator_goes_on_alone(folder):
    with evaluating_job(folder, validation=320) as job:
        for _ in range(3):
            job.start_rank()
        evaluator = evaluator_of(job)
        for rank in job.ranks:
            if rank is not evaluator:
                job.kill(rank)
        job.wait(lambda: job.state.evaluation is None)
        job.evaluation_seconds = 0.0
        job.wait_for_end()
        check_evaluations(job)


@pytest.mark.repetition
def test_a_rank_that_is_left_alone_evaluates_no_step_that_passed_meanwhile(folder):
    """The others have trained beyond the next multiple: what comes next is the one after it, as with copies."""
    with evaluating_job(folder, validation=320) as job:
        job.evaluation_seconds = 0.2
        for _ in range(3):
            job.start_rank()
        evaluator = evaluator_of(job)
        first = job.state.evaluation.step
        job.wait(lambda: job.state.step > first + EVERY + 3)
        assert job.state.evaluation.step == first
        for rank in job.ranks:
            if rank is not evaluator:
                job.kill(rank)
        job.evaluation_seconds = 0.0
        job.wait_for_end()
        assert first + EVERY not in begun_steps(job)
        check_evaluations(job)


def test_an_evaluating_rank_does_not_hold_the_last_records_of_training_back(folder):
    """It has leases of its own when it begins, and the others have no records any more before it ends."""
    with evaluating_job(folder, records=240, workers_min=2, evaluation_steps=10, validation=64) as job:
        job.evaluation_seconds = 1.0
        for _ in range(2):
            job.start_rank()
        job.wait(lambda: job.state.evaluation is not None)
        job.wait(lambda: job.state.is_training_over())
        assert job.state.evaluation is not None
        assert not job.state.evaluation.final
        job.evaluation_seconds = 0.0
        job.wait_for_end()


def test_a_global_batch_stays_full_while_a_rank_evaluates(folder):
    with evaluating_job(folder, workers_min=3, global_batch=12, records=1200) as job:
        for _ in range(3):
            job.start_rank()
        job.wait_for_end()
        sizes = [len(records) for _, records in job.step_records()]
        assert set(sizes) == {12}
        check_evaluations(job)
        assert len(begun_steps(job)) >= 3


def test_a_stop_during_an_evaluation_ends_the_job(folder):
    with evaluating_job(folder, records=40_000, durable=True, checkpoint_steps=1000, validation=320) as job:
        for _ in range(2):
            job.start_rank()
        evaluator_of(job)
        job.handle(StopRequested("stopped by its user", 10.0))
        job.wait(lambda: job.end is not None)
        assert job.state.checkpoint is not None
        assert job.state.checkpoint.step == job.state.step


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.repetition) for seed in range(1, 6))])
def test_evaluations_under_random_faults(folder, seed):
    random = Random(seed)
    with evaluating_job(folder, workers_min=1, workers=6, validation=96, evaluation_workers=2) as job:
        job.evaluation_seconds = 0.01
        for _ in range(3):
            job.start_rank()
        job.wait_for_step(2)
        while job.end is None and len(job.ranks) < 12:
            living = [rank for rank in job.living_ranks() if not rank.ended.is_set() and not rank.gate.closed]
            fault = random.choice(("kill", "leave", "master"))
            if fault == "master":
                job.stop_master()
                job.wait_for_seconds(random.random() * 0.1)
                job.start_master()
            elif len(living) > 2:
                victim = random.choice(living)
                job.kill(victim) if fault == "kill" else job.tell_to_leave(victim)
            job.start_rank()
            job.wait_for_seconds(random.random() * 0.3)
        job.wait_for_end()
        check_evaluations(job)


@pytest.mark.repetition
def test_the_learning_rate_is_scaled_by_the_ranks_that_gave_a_step_records(folder):
    """A rank that evaluates gives none, one that has no further lease neither; a worker that follows knows it, too."""
    with evaluating_job(folder, workers_min=3) as job:
        job.rate_factor = lambda ranks: float(ranks)
        for _ in range(3):
            job.start_rank()
        job.wait(lambda: job.state.evaluation is not None)
        job.wait_for_step(job.state.evaluation.step + 5)
        job.start_rank()
        job.wait_for_end()
        minibatch = job.settings.minibatch
        for rank in job.ranks:
            factors = rank.replica.factor_of_update.values()
            assert all(factor == weight / minibatch for weight, factor in factors)
        assert len({factor for _, factor in job.ranks[0].replica.factor_of_update.values()}) > 1
