"""Corrupt records that ranks skip: each counts once, and all others are trained exactly once, with faults too."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from support.all_reduce_job import AllReduceJob, CountingStream

from edl.api.journal_entries import WorldAnnounced
from edl.core.ledger import TRAINING

# Single ones, a whole minibatch, and parts of two.
CORRUPT = frozenset({0, 3, 17, *range(40, 44), 90, 91, 92, 250, 399, 640, *range(642, 650)})
RECORDS = 800


@pytest.fixture
def folder():
    with TemporaryDirectory(prefix="edl-") as path:
        yield Path(path)


def damaged_job(folder: Path, **settings) -> AllReduceJob:
    job = AllReduceJob(folder, RECORDS, **({"max_corrupt": len(CORRUPT), "seconds": 0.002} | settings))
    job.make_stream = partial(CountingStream, CORRUPT)
    return job


def check(job: AllReduceJob) -> None:
    """The job is done, without the corrupt records, and has counted each of them once."""
    job.wait(lambda: job.end is not None)
    assert job.end.phase == "Done", job.end
    training = job.state.ledgers[TRAINING]
    assert (training.done_records, training.count_remaining_records()) == (RECORDS, 0)
    assert job.state.counters.skipped == len(CORRUPT)
    expected = [0 if record in CORRUPT else 1 for record in range(RECORDS)]
    remaining = [rank for rank in job.living_ranks() if rank.replica.updates and not rank.gate.closed]
    assert remaining
    for rank in remaining:
        rank.ended.wait(10.0)
        assert list(rank.replica.counts) == expected


@pytest.mark.parametrize("global_batch", [None, 10])
@pytest.mark.parametrize("workers", [1, 3])
def test_corrupt_records_are_skipped_and_counted(folder, workers, global_batch):
    with damaged_job(folder, global_batch=global_batch) as job:
        for _ in range(workers):
            job.start_rank()
        check(job)


@pytest.mark.parametrize("global_batch", [None, 10])
def test_a_step_of_corrupt_records_alone_is_made(folder, global_batch):
    with AllReduceJob(folder, 40, max_corrupt=40, global_batch=global_batch) as job:
        job.make_stream = partial(CountingStream, range(40))
        rank = job.start_rank()
        job.wait(lambda: job.end is not None)
        assert job.end.phase == "Done"
        assert (job.state.counters.skipped, job.state.step) == (40, 40 // (global_batch or 4))
        assert not rank.replica.counts.any()


def test_more_than_the_limit_end_the_job(folder):
    with damaged_job(folder, max_corrupt=len(CORRUPT) - 1) as job:
        for _ in range(2):
            job.start_rank()
        job.wait(lambda: job.end is not None)
        assert (job.end.phase, job.end.failure_kind) == ("Failed", "input")
        assert "corrupt records in epoch 1" in job.end.reason


@pytest.mark.parametrize("global_batch", [None, 10])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.repetition) for seed in range(1, 4))])
def test_with_kills_joins_and_new_masters_each_counts_once(folder, seed, global_batch):
    random = Random(seed)
    with damaged_job(folder, global_batch=global_batch, workers=6) as job:
        # One rank lives to the end: without any state, the steps would be made again from the start.
        job.start_rank()
        for _ in range(2):
            job.start_rank()
        job.wait_for_step(2)
        while job.end is None and len(job.ranks) < 10:
            others = [rank for rank in job.ranks[1:] if not rank.is_killed and not rank.gate.closed]
            fault = random.choice(("kill", "leave", "master"))
            if fault == "kill" and others:
                job.kill(random.choice(others))
            elif fault == "leave" and others:
                job.tell_to_leave(random.choice(others))
            elif fault == "master":
                job.stop_master()
                job.start_master()
            job.start_rank()
            reached = job.state.step + random.randint(1, 8)
            job.wait(lambda reached=reached: job.end is not None or job.state.step >= reached)
        check(job)
        assert not any(isinstance(entry, WorldAnnounced) and entry.records for entry in job.journal)
