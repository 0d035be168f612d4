"""Callbacks of ranks that train together: all use the same learning rate for a step, and stop after the same one."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from support.all_reduce_job import AllReduceJob, KilledError, Rank

from edl.core.evaluation import EarlyStopping, ReduceLROnPlateau

# The metric of the harness grows with every step, so no evaluation is better than the first one.
LOWER = ReduceLROnPlateau("total", "min", factor=0.5, patience=1, rate=1.0)
STOP = EarlyStopping("total", "min", patience=3)
EVERY = 5


@pytest.fixture
def folder():
    with TemporaryDirectory(prefix="edl-") as path:
        yield Path(path)


def plateau_rate(update: int) -> float:
    """The rate of an update: halved after the second evaluation and each one that follows."""
    evaluations = (update - 1) // EVERY
    return 0.5 ** max(0, evaluations - 1)


def check_rates(job: AllReduceJob) -> None:
    """All ranks used the same rate for each update, and the remaining ones have the same sum of them."""
    rate_of_update: dict[int, float] = {}
    for rank in job.ranks:
        for update, rate in rank.replica.rate_of_update.items():
            assert rate_of_update.setdefault(update, rate) == rate, (rank.uid, update)
    remaining = [rank for rank in job.living_ranks() if not rank.gate.closed and rank.replica.updates]
    for rank in remaining[1:]:
        np.testing.assert_array_equal(rank.replica.rates, remaining[0].replica.rates)
    assert remaining


@pytest.mark.parametrize("workers", [1, 3])
def test_a_plateau_lowers_the_rate_of_the_step_after_the_evaluation(folder, workers):
    with AllReduceJob(folder, records=400, validation=32, evaluation_steps=EVERY, callbacks=(LOWER,)) as job:
        for _ in range(workers):
            job.start_rank()
        job.wait_for_end()
        check_rates(job)
        for rank in job.ranks:
            assert {u: plateau_rate(u) for u in rank.replica.rate_of_update} == rank.replica.rate_of_update


@pytest.mark.parametrize("victim", ["w0", pytest.param("w2", marks=pytest.mark.repetition)])
@pytest.mark.parametrize("point", ["compute", "apply", "applied"])
def test_a_rank_is_killed_in_the_step_with_the_new_rate(folder, point, victim):
    def arm(rank: Rank) -> None:
        def die(at: str) -> None:
            # The eleventh update is the first one with half the rate.
            if rank.uid == victim and at == point and rank.replica.updates == 10 + (point == "applied"):
                job.kill(rank)
                raise KilledError

        rank.replica.fail_at = die

    settings = {"validation": 32, "evaluation_steps": EVERY, "callbacks": (LOWER,), "workers_min": 2}
    with AllReduceJob(folder, records=600, seconds=0.002, **settings) as job:
        for _ in range(3):
            job.start_rank(arm)
        job.wait_for_end()
        check_rates(job)
        for rank in job.ranks:
            assert {u: plateau_rate(u) for u in rank.replica.rate_of_update} == rank.replica.rate_of_update


@pytest.mark.parametrize("workers", [1, 2])
def test_early_stopping_ends_with_the_evaluated_step_on_all_ranks(folder, workers):
    settings = {"validation": 32, "evaluation_steps": EVERY, "callbacks": (STOP,), "workers_min": workers}
    with AllReduceJob(folder, records=4000, **settings) as job:
        ranks = [job.start_rank() for _ in range(workers)]
        job.wait(lambda: job.end is not None)
        assert job.end.phase == "Done"
        assert job.end.reason.startswith("EarlyStopping")
        assert {rank.replica.updates for rank in ranks} == {4 * EVERY}
        assert job.state.step == 4 * EVERY


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.repetition) for seed in range(1, 3))])
def test_the_rate_of_an_epoch_under_random_faults(folder, seed):
    random = Random(seed)
    with AllReduceJob(folder, records=160, epochs=6, seconds=0.004, epoch_rate=lambda epoch: 0.5**epoch) as job:
        for _ in range(3):
            job.start_rank()
        while job.end is None and len(job.ranks) < 9:
            living = [rank for rank in job.living_ranks() if not rank.ended.is_set()]
            if len(living) > 1:
                job.kill(random.choice(living))
            job.start_rank()
            reached = job.state.step + random.randint(2, 8)
            job.wait(lambda reached=reached: job.end is not None or job.state.step >= reached)
        job.wait_for_end()
        check_rates(job)
        rates = [rate for rank in job.ranks for _, rate in sorted(rank.replica.rate_of_update.items())]
        assert set(rates) <= {0.5**epoch for epoch in range(6)}
