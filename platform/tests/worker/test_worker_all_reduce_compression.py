"""Gradients that travel as bfloat16 or float16: the loss that is reached, equal bits, and what is never rounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import numpy as np
import pytest
from support.all_reduce_job import AllReduceJob, CountedStep, CountingReplica, Rank
from support.rank_threads import NATIVE, NUMPY, RankThreads

from edl.api.errors import BadInputError
from edl.collective.communicator import Communicator
from edl.collective.round_errors import RoundBrokenError
from edl.worker.allreduce import gradient_sums
from edl.worker.allreduce.gradient_sums import GradientSums
from edl.worker.allreduce.step_message import StepOutcome

RECORDS, INPUTS = 480, 6
GENERATOR = np.random.default_rng(11)
X = GENERATOR.normal(size=(RECORDS, INPUTS)).astype(np.float32)
Y = X @ np.arange(1, INPUTS + 1, dtype=np.float32) + GENERATOR.normal(size=RECORDS).astype(np.float32) * np.float32(0.1)
LOSS_TOLERANCE = 0.02
"""Of the loss that float32 reaches. The order of records, and so the loss, differs by one percent between runs."""


@pytest.fixture
def folder():
    with TemporaryDirectory(prefix="edl-") as path:
        yield Path(path)


class RegressionReplica(CountingReplica):
    """Least squares in float32, beside the counts of records, which must stay exact."""

    def __init__(self) -> None:
        super().__init__(RECORDS)
        self.weights = np.zeros(INPUTS, np.float32)
        # The counts of float64 first, so that the compressed buffer is the last one; it ends with a float32 count.
        self.buffers = (*self.buffers, np.zeros(INPUTS + 1, np.float32))
        self.gradient_counts = (RECORDS, INPUTS)

    def compute(self, features: Any, labels: Any, weights: Any, *, adds: bool = False) -> CountedStep:
        result = super().compute(features, labels, weights, adds=adds)
        self._records = list(features)
        self._add_gradient()
        return result

    def write_again(self) -> None:
        super().write_again()
        self._add_gradient()

    def _add_gradient(self) -> None:
        records = self._records
        x, y = X[records], Y[records]
        self.buffers[1][:INPUTS] += x.T @ (x @ self.weights - y)
        # 1/3 is none of the numbers of bfloat16.
        self.buffers[1][INPUTS] += np.float32(len(records) / 3)

    def clear(self) -> None:
        for buffer in self.buffers:
            buffer.fill(0)

    def apply(self, total_weight: float, rate_factor: float | None = None) -> None:
        super().apply(total_weight)
        self.weights -= self.buffers[1][:INPUTS] * np.float32(0.02 / total_weight)
        assert abs(self.buffers[1][INPUTS] - total_weight / 3) < 1e-5 * total_weight

    def pack_state(self) -> np.ndarray[Any, Any]:
        return np.concatenate([super().pack_state(), self.weights.view(np.uint8)])

    def unpack_state(self, buffer: np.ndarray[Any, Any]) -> None:
        size = self.weights.nbytes
        super().unpack_state(buffer[:-size].copy())
        self.weights = buffer[-size:].copy().view(np.float32)

    def loss(self) -> float:
        return float(np.mean((X @ self.weights - Y) ** 2))


def train(folder: Path, compression: str, disturb: Callable[[AllReduceJob], None] | None = None) -> list[Any]:
    """Train with two ranks; returns the replicas that are left."""
    (folder / compression).mkdir()
    with AllReduceJob(folder / compression, records=RECORDS, epochs=6, seconds=0.001 if disturb else 0.0) as job:
        job.make_replica, job.gradient_compression = lambda index: RegressionReplica(), compression
        for _ in range(2):
            job.start_rank()
        if disturb is not None:
            disturb(job)
        job.wait_for_end()
        return [rank.replica for rank in job.living_ranks()]


def join_and_kill(job: AllReduceJob) -> None:
    job.wait_for_round(2)
    job.wait_for_step(20)
    job.start_rank()
    job.wait_for_round(3)
    job.wait_for_step(job.state.step + 20)
    job.kill(job.ranks[1])


@pytest.mark.repetition
def test_compressed_gradients_reach_the_same_loss_with_equal_bits_on_all_ranks(folder):
    expected = train(folder, "none")[0].loss()
    assert expected < 0.02
    for compression in ("bfloat16", "float16"):
        replicas = train(folder, compression, join_and_kill)
        assert len(replicas) == 2
        assert len({replica.digest() for replica in replicas}) == 1
        assert abs(replicas[0].loss() - expected) < LOSS_TOLERANCE * expected, compression


def make_sums(count: int, wire_type: str) -> tuple[list[RegressionReplica], list[GradientSums]]:
    replicas = [RegressionReplica() for _ in range(count)]
    return replicas, [GradientSums(replica, wire_type) for replica in replicas]


@pytest.mark.parametrize("variant", [NUMPY[1], NATIVE[1]], ids=lambda variant: variant.name)
@pytest.mark.parametrize(("wire_type", "unit"), [("bfloat16", 2.0**-7), ("float16", 2.0**-10)])
def test_what_is_rounded_away_comes_later_and_only_gradients_are_rounded(folder, variant, wire_type, unit):
    """The sum over many steps is exact but for one step's rounding; without feedback the small value never arrives."""
    replicas, sums = make_sums(2, wire_type)
    total, small, steps = np.zeros(INPUTS), np.float32(1 + unit / 8), 64
    with RankThreads(variant, folder, most=2) as threads, threads.round(2) as ranks:
        for step in range(steps):
            for replica in replicas:
                replica.buffers[0][:] = 1 / 3
                replica.buffers[1][:] = small

            def reduce(rank: Communicator, step: int = step) -> None:
                sums[rank.rank].reduce(rank, b"", step, has_gradient=True)
                sums[rank.rank].end_step(step + 1, is_applied=True)

            threads.each(reduce, ranks)
            np.testing.assert_array_equal(*(replica.buffers[1] for replica in replicas))
            assert replicas[0].buffers[1][INPUTS] == 2 * small
            assert (replicas[0].buffers[0] == 2 / 3).all()
            total += replicas[0].buffers[1][:INPUTS]
    np.testing.assert_allclose(total, 2.0 * small * steps, rtol=0, atol=2 * unit)


def test_a_step_that_is_made_again_uses_the_same_values_and_a_step_that_counts_is_not_made_again(folder):
    """By the step of the state, a rank knows whether the step that it abandoned is in it."""
    results = {}
    for outcome in ("applied", "made again", "in the state of another", "dropped", "joined"):
        (replica, other), (sums, others) = make_sums(2, "bfloat16")

        def reduce(rank: Communicator, step: int, sums: Any = (sums, others), replicas: Any = (replica, other)) -> None:
            replicas[rank.rank].buffers[1][:] = np.float32(1.003)
            sums[rank.rank].reduce(rank, b"", step, has_gradient=True)

        with RankThreads(NUMPY[1], folder, most=2) as threads, threads.round(2) as ranks:
            threads.each(lambda rank, do=reduce: do(rank, 7), ranks)
            if outcome == "made again":
                first = replica.buffers[1].copy()
                threads.each(lambda rank, do=reduce: do(rank, 7), ranks)
                np.testing.assert_array_equal(replica.buffers[1], first)
            if outcome in ("applied", "made again", "dropped"):
                for each in (sums, others):
                    each.end_step(8, is_applied=outcome != "dropped")
            threads.each(lambda rank, do=reduce, at=outcome: do(rank, 30 if at == "joined" else 8), ranks)
        results[outcome] = replica.buffers[1][:INPUTS].copy()
    np.testing.assert_array_equal(results["applied"], results["made again"])
    np.testing.assert_array_equal(results["applied"], results["in the state of another"])
    np.testing.assert_array_equal(results["dropped"], results["joined"])
    assert (results["applied"] != results["dropped"]).any()


@pytest.mark.parametrize(
    "gives_up", ["by an abandoned step", "by a step that was made", "by the step of its new state"]
)
def test_a_rank_that_was_outside_the_round_brings_no_rounding_errors_of_its_old_state(folder, gives_up):
    """It was stopped in the 8th step or behind it, and the state that it got has another version of that step."""
    (replica, other), (sums, others) = make_sums(2, "bfloat16")
    value = np.float32(1.003)

    def reduce(rank: Communicator, step: int) -> None:
        (replica, other)[rank.rank].buffers[1][:] = value
        (sums, others)[rank.rank].reduce(rank, b"", step, has_gradient=True)

    with RankThreads(NUMPY[1], folder, most=2) as threads, threads.round(2) as ranks:
        threads.each(lambda rank: reduce(rank, 7), ranks)
        first = replica.buffers[1].copy()
        if gives_up != "by an abandoned step":
            for each in (sums, others):
                each.end_step(8, is_applied=True)
        if gives_up == "by the step of its new state":
            threads.each(lambda rank: reduce(rank, 30), ranks)
        else:
            for each in (sums, others):
                each.forget_errors()
            threads.each(lambda rank: reduce(rank, 8), ranks)
    np.testing.assert_array_equal(replica.buffers[1], first)


@pytest.mark.repetition
def test_a_worker_that_was_stopped_and_comes_back_forgets_its_rounding_errors(folder, monkeypatch):
    forgotten, forget = [], GradientSums.forget_errors

    def forget_and_tell(sums: GradientSums) -> None:
        forgotten.append(sums)
        forget(sums)

    monkeypatch.setattr(GradientSums, "forget_errors", forget_and_tell)
    with AllReduceJob(folder, records=RECORDS, epochs=40, seconds=0.002) as job:
        job.make_replica, job.gradient_compression = lambda index: RegressionReplica(), "bfloat16"
        resume, is_stopped, are_all_in = Event(), Event(), Event()

        def stop_once(rank: Rank) -> None:
            def stop(point: str) -> None:
                if point == "reduce" and rank.index == 1 and are_all_in.is_set() and not is_stopped.is_set():
                    forgotten.clear()
                    is_stopped.set()
                    job.silent.add(rank.uid)
                    rank.connection.abort(rank.world.round, "its neighbours hear nothing from it")
                    resume.wait(20)
                    job.silent.discard(rank.uid)

            rank.replica.fail_at = stop

        ranks = [job.start_rank(stop_once) for _ in range(3)]
        job.wait_for_round(3)
        are_all_in.set()
        job.wait(is_stopped.is_set)
        job.wait_for_round(2)
        resume.set()
        job.wait_for_round(3)
        assert set(forgotten) == {ranks[1].loop._sums}
        job.end_with_this_epoch()


def test_a_rank_that_loses_the_end_of_a_skipped_step_keeps_its_rounding_errors(folder, monkeypatch):
    """The others finished the step, and it changed nothing, so neither did it change errors."""
    errors: dict[tuple[str, int], np.ndarray[Any, Any]] = {}
    spoiled, lost_step = Event(), []
    begin_step = gradient_sums._CompressedPart.begin_step

    def begin_and_note(part: gradient_sums._CompressedPart, step: int, **named: bool) -> None:
        begin_step(part, step, **named)
        owner = next(rank for rank in job.ranks if part in rank.loop._sums._parts)
        errors[owner.uid, step] = part._errors_before.copy()

    def prepare(rank: Rank) -> None:
        compute, reduce = rank.replica.compute, rank.loop._sums.reduce

        def spoil_once(*minibatch: Any, **named: Any) -> CountedStep:
            result = compute(*minibatch, **named)
            if rank.uid == "w0" or rank.world.step < 10 or spoiled.is_set():
                return result
            spoiled.set()
            return replace(result, is_finite=False)

        def reduce_and_lose(*arguments: Any, **named: Any) -> list[bytes]:
            messages = reduce(*arguments, **named)
            if rank.uid == "w0" and not lost_step and not StepOutcome.from_messages(messages).is_finite:
                lost_step.append(rank.world.step)
                raise RoundBrokenError(None, "the end of a reduction is lost")
            return messages

        rank.replica.compute, rank.loop._sums.reduce = spoil_once, reduce_and_lose

    monkeypatch.setattr(gradient_sums._CompressedPart, "begin_step", begin_and_note)
    with AllReduceJob(folder, records=RECORDS, workers_min=2, seconds=0.001) as job:
        job.make_replica, job.gradient_compression = lambda index: RegressionReplica(), "bfloat16"
        job.skip_nan = True
        for _ in range(2):
            job.start_rank(prepare)
        job.wait(lambda: job.end is not None)
        (step,) = lost_step
        assert errors["w0", step].any()
        np.testing.assert_array_equal(errors["w0", step + 1], errors["w0", step])


def test_a_rank_alone_rounds_nothing(folder):
    (replica,), (sums,) = make_sums(1, "bfloat16")
    with RankThreads(NUMPY[1], folder, most=1) as threads, threads.round(1) as ranks:
        replica.buffers[1][:] = np.float32(1.003)
        threads.each(lambda rank: sums.reduce(rank, b"", 0, has_gradient=True), ranks)
    assert (replica.buffers[1] == np.float32(1.003)).all()


def test_a_sum_beyond_float16_is_an_error_on_all_ranks(folder):
    replicas, sums = make_sums(2, "float16")
    with RankThreads(NUMPY[1], folder, most=2) as threads, threads.round(2) as ranks:
        for replica in replicas:
            replica.buffers[1][:] = 40_000
        outcomes = threads.outcomes(lambda rank: sums[rank.rank].reduce(rank, b"", 0, has_gradient=True), ranks)
        assert [isinstance(error, BadInputError) for error in outcomes] == [True, True]
        # Dynamic loss scaling expects it, skips the step and lowers its scale.
        for replica in replicas:
            replica.skips_infinite_gradients = True
            replica.buffers[1][:] = 40_000
        threads.each(lambda rank: sums[rank.rank].reduce(rank, b"", 0, has_gradient=True), ranks)
        assert np.isinf(replicas[0].buffers[1][:INPUTS]).all()


def test_a_model_without_float32_gradients_is_refused():
    with pytest.raises(BadInputError, match="float32"):
        GradientSums(CountingReplica(8), "bfloat16")
