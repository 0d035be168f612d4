"""Ranks compare their states: one that has other values, other packages or another processor."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from support.all_reduce_job import BOUND, AllReduceJob, CountingReplica
from support.rank_threads import NUMPY, RankThreads

from edl.api.errors import BadInputError
from edl.collective.communicator import Communicator
from edl.core.state_agreement import DIGEST_STEPS, RankFacts
from edl.worker.allreduce.state_digests import StateDigests
from edl.worker.allreduce.vector_instructions import find_vector_instructions

RECORDS = 12 * DIGEST_STEPS
"""With minibatches of four and two ranks, one and a half times the steps between two digests."""


@pytest.fixture
def folder():
    with TemporaryDirectory(prefix="edl-") as path:
        yield Path(path)


def wait_for_errors(job: AllReduceJob) -> list[BaseException | None]:
    """The errors of all ranks, when all have ended."""
    for rank in job.ranks:
        assert rank.ended.wait(BOUND), rank.uid
    return [rank.error for rank in job.ranks]


def change_rates(index: int, step: int, factor: float, seconds: float = 0.0) -> Callable[[int], CountingReplica]:
    """Makes replicas; that of one rank multiplies its variable ``rates`` at one update."""

    def make(at: int) -> CountingReplica:
        replica = CountingReplica(RECORDS, seconds=seconds)

        def change(point: str) -> None:
            if at == index and point == "applied" and replica.updates == step:
                replica.rates *= factor

        replica.fail_at = change
        return replica

    return make


def other_instructions(index: int) -> RankFacts:
    return RankFacts(f"worker-{index}", instructions=("x86_64", "avx2") if index == 1 else ("x86_64",))


@pytest.mark.parametrize(("ranks", "changed", "other"), [(2, 1, 0), (3, 0, 1)])
def test_a_rank_with_another_value_stops_the_job_and_is_named_with_the_variable(folder, ranks, changed, other):
    with AllReduceJob(folder, records=RECORDS, epochs=4, workers_min=ranks) as job:
        job.make_replica = change_rates(changed, 20, 1 + 1e-12)
        for _ in range(ranks):
            job.start_rank()
        for error in wait_for_errors(job):
            assert isinstance(error, BadInputError)
            assert f"worker-{changed} (rank {changed}) has another value of 'rates'" in error.message
            assert f"worker-{other} (rank {other}) after step {DIGEST_STEPS}" in error.message


def test_a_value_that_is_wrong_when_a_round_begins_is_named_as_well(folder):
    with AllReduceJob(folder, records=RECORDS, epochs=4, workers_min=2) as job:
        # Without a pause the digests of step 100 may come before the change of the world.
        job.make_replica = change_rates(1, 20, 1 + 1e-12, seconds=0.005)
        for _ in range(3):
            job.start_rank()
        job.wait(lambda: any(rank.world.step >= 25 for rank in job.ranks))
        job.kill(job.ranks[2])
        wait_for_errors(job)
        for rank in job.ranks[:2]:
            assert isinstance(rank.error, BadInputError)
            assert "has another value of 'rates' than" in rank.error.message


def test_different_processors_take_one_state_and_go_on(folder):
    """Rank 1 rounds differently in every step, and nobody stops; a worker joins, and one is killed."""

    def make(at: int) -> CountingReplica:
        replica = CountingReplica(RECORDS)

        def round_differently(point: str) -> None:
            if at == 1 and point == "applied":
                replica.rates *= 1 + 1e-13

        replica.fail_at = round_differently
        return replica

    with AllReduceJob(folder, records=RECORDS, epochs=6) as job:
        job.make_replica, job.make_facts = make, other_instructions
        for _ in range(2):
            job.start_rank()
        job.wait_for_round(2)
        job.wait_for_step(DIGEST_STEPS + 10)
        job.start_rank()
        job.wait_for_round(3)
        job.wait_for_step(job.state.step + 30)
        # The two others have the same processor, but their states have drifted from what one of them followed.
        job.kill(job.ranks[1])
        job.wait_for_end()
        world = job.state.world
        assert world.states_taken >= 3
        states = [rank.replica.digest() for rank in job.living_ranks()]
        assert len(set(states)) == 1


def test_a_drift_beyond_rounding_stops_the_job(folder):
    with AllReduceJob(folder, records=RECORDS, epochs=4, workers_min=2) as job:
        job.make_replica, job.make_facts = change_rates(1, 30, 1.01), other_instructions
        for _ in range(2):
            job.start_rank()
        for error in wait_for_errors(job):
            assert isinstance(error, BadInputError)
            assert "worker-1 (rank 1) has drifted from worker-0 (rank 0)" in error.message
            assert "'rates' differ by 0.0" in error.message


def test_different_packages_are_an_error(folder):
    with AllReduceJob(folder, records=RECORDS, workers_min=2) as job:
        job.make_facts = lambda index: RankFacts(f"worker-{index}", versions={"keras": f"3.{index}"})
        for _ in range(2):
            job.start_rank()
        for error in wait_for_errors(job):
            assert isinstance(error, BadInputError)
            assert "worker-0 (rank 0) has keras 3.0, worker-1 (rank 1) has keras 3.1" in error.message


@pytest.mark.parametrize("ranks", [2, 3])
def test_different_models_are_an_error_that_names_ranks_and_variable(folder, ranks):
    with AllReduceJob(folder, records=RECORDS, workers_min=ranks) as job:
        job.make_replica = lambda index: CountingReplica(RECORDS + (index == ranks - 1))
        for _ in range(ranks):
            job.start_rank()
        first, last = "worker-0 (rank 0)", f"worker-{ranks - 1} (rank {ranks - 1})"
        # The first end closes the round: a rank that has not heard everything by then waits for the next one.
        until = time.monotonic() + BOUND
        while not (errors := [rank.error for rank in job.ranks if rank.error is not None]):
            assert time.monotonic() < until
            time.sleep(0.005)
        for error in errors:
            assert isinstance(error, BadInputError)
            assert error.message == (
                f"{first} and {last} have different models: 'counts' is float64 of shape ({RECORDS},) on {first} "
                f"and float64 of shape ({RECORDS + 1},) on {last}"
            )


def test_many_variables_with_long_names_are_compared_as_well(folder):
    """Together they are longer than a control message."""

    class LargeReplica(CountingReplica):
        def describe_variables(self) -> dict[str, str]:
            return {f"{'layer/' * 30}{at}": "float32 of shape ()" for at in range(2_000)} | super().describe_variables()

    replicas = [LargeReplica(4), LargeReplica(5), LargeReplica(4)]
    digests = [StateDigests(replica, RankFacts(f"worker-{at}")) for at, replica in enumerate(replicas)]
    with RankThreads(NUMPY[1], folder, most=3) as threads, threads.round(3) as ranks:
        outcomes = threads.outcomes(lambda rank: digests[rank.rank].compare_ranks(rank), ranks)
    for outcome in outcomes:
        assert isinstance(outcome, BadInputError)
        assert "'counts' is float64 of shape (4,) on worker-0 (rank 0) and float64 of shape (5,)" in outcome.message


def test_after_a_round_of_different_processors_all_take_one_state_once(folder):
    """A worker that follows such a round does not get the states that its members take."""
    with RankThreads(NUMPY[1], folder) as threads:
        replicas = [CountingReplica(8) for _ in range(3)]
        digests = [StateDigests(replica, other_instructions(at)) for at, replica in enumerate(replicas)]
        with threads.round(2) as ranks:
            threads.each(lambda rank: digests[rank.rank].compare_ranks(rank), ranks)
            assert [each.takes_state for each in digests[:2]] == [True, True]
            threads.each(lambda rank: digests[rank.rank].compare_states(rank, 0), ranks)
        # Rank 1 is gone, and rank 2 followed.
        del digests[1], replicas[1]
        replicas[1].rates += 1e-14
        state = replicas[0].pack_state()

        def take_first_state(rank: Communicator) -> None:
            digests[rank.rank].take_state(rank, state.copy(), 0, 9)

        for expected in (True, False):
            with threads.round(2) as ranks:
                threads.each(lambda rank: digests[rank.rank].compare_ranks(rank), ranks)
                assert [(each.takes_state, each.difference) for each in digests] == [(expected, "")] * 2
                if expected:
                    threads.each(take_first_state, ranks)
                assert len(set(threads.each(lambda rank: digests[rank.rank].compare_states(rank, 9), ranks))) == 1


def test_variables_of_every_type_are_compared(folder):
    class TypedReplica(CountingReplica):
        arrays: dict[str, np.ndarray[Any, Any]]

        def state_arrays(self) -> dict[str, np.ndarray[Any, Any]]:
            return self.arrays

        def unpack_state(self, buffer: np.ndarray[Any, Any]) -> None:
            self.arrays = self.taken

    types = {"single": np.float32, "half": np.float16, "count": np.int64, "flag": np.bool_}
    first = {name: np.ones(4, dtype) for name, dtype in types.items()}
    for name, value, is_refused in (
        ("single", 1 + 1e-6, False),
        ("single", 1.01, True),
        ("half", 1.002, False),
        ("single", np.nan, True),
        ("count", 2, True),
        ("flag", False, True),
    ):
        replicas = [TypedReplica(2), TypedReplica(2)]
        for replica in replicas:
            replica.arrays, replica.taken = dict(first), dict(first)  # type: ignore[attr-defined]
        replicas[1].arrays[name] = np.full(4, value, types[name])
        digests = [StateDigests(replica, other_instructions(at)) for at, replica in enumerate(replicas)]
        with RankThreads(NUMPY[1], folder, most=2) as threads, threads.round(2) as ranks:
            threads.each(lambda rank, d=digests: d[rank.rank].compare_ranks(rank), ranks)
            outcomes = threads.outcomes(
                lambda rank, d=digests: d[rank.rank].take_state(rank, np.zeros(8, np.uint8), 0, 9), ranks
            )
        assert [isinstance(each, BadInputError) for each in outcomes] == [is_refused] * 2, (name, value, outcomes)


def test_vector_instructions_are_those_of_the_first_processor():
    lines = ["processor\t: 0", "flags\t\t: fpu avx2 sse4_2 fma rdrand smep avx512f", "flags\t\t: fpu"]
    assert find_vector_instructions(lines) == ["avx2", "avx512f", "fma", "sse4_2"]
    assert find_vector_instructions(["Features\t: fp asimd sve sme"]) == ["asimd", "sme", "sve"]
    assert find_vector_instructions(["processor: 0"]) == []
