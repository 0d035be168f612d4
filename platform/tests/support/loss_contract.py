"""How rounds end: one suite, which each implementation of reductions runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.rank_threads import RankThreads, Variant

from edl.collective.communicator import Communicator
from edl.collective.reduction_plan import Algorithm, ring_steps
from edl.collective.round_errors import InjectedFaultError, RoundBrokenError
from edl.collective.round_frames import CHUNK_BYTES

SECONDS = 5.0
"""Within which all survivors must know, on a busy machine."""
COUNT = 3 * CHUNK_BYTES // 4 + 100
"""Elements of the buffer: two blocks."""
FAULTS = ("before", "during reduce-scatter", "between steps", "during all-gather", "with the last byte")


def received_until(fault: str, rank: int) -> int:
    """Bytes that a rank of three has received when it is lost."""
    steps = ring_steps(np.empty(4 * COUNT, np.uint8), 4, rank, 3)
    sizes = [len(step.receive) for step in steps]
    copying = next(number for number, step in enumerate(steps) if not step.add)
    return {
        "before": 0,
        "during reduce-scatter": sizes[0] // 2,
        "between steps": sizes[0],
        "during all-gather": sum(sizes[:copying]) + sizes[copying] // 2,
        "with the last byte": sum(sizes),
    }[fault]


def reduce_until_broken(communicator: Communicator) -> tuple[int, RoundBrokenError]:
    """Reduce until the round breaks; returns how many reductions were done."""
    for done in range(100_000):
        try:
            communicator.all_reduce(np.ones(COUNT, np.float32), algorithm=Algorithm.RING)
        except RoundBrokenError as error:
            return done, error
    raise AssertionError("the round went on")


class LossContract:
    """Subclasses name the ``variant`` fixture's parameters."""

    @pytest.fixture
    def ranks(self, variant: Variant, tmp_path: Path) -> Iterator[RankThreads]:
        with RankThreads(variant, tmp_path) as ranks:
            yield ranks

    @pytest.mark.parametrize("fault", FAULTS)
    @pytest.mark.parametrize("victim", [0, 1])
    def test_a_rank_lost_within_a_reduction_breaks_the_round(self, ranks: RankThreads, victim: int, fault: str) -> None:
        def run(communicator: Communicator) -> tuple[int, RoundBrokenError]:
            communicator.all_reduce(np.ones(10, np.float32))
            if communicator.rank == victim:
                communicator.fail_after(received_until(fault, victim))
                with pytest.raises(InjectedFaultError):
                    communicator.all_reduce(np.ones(COUNT, np.float32), algorithm=Algorithm.RING)
                return 0, RoundBrokenError(victim, "lost")
            return reduce_until_broken(communicator)

        with ranks.round(3) as round_:
            begun = time.monotonic()
            results = ranks.each(run, round_)
            assert time.monotonic() - begun < SECONDS
            survivors = [results[rank] for rank in range(3) if rank != victim]
            assert all(done <= 1 for done, _ in survivors), "no reduction can be done without the lost rank"
            assert victim in {error.rank for _, error in survivors}
            assert all(communicator.broken for communicator in round_)

    def test_a_rank_lost_between_reductions_breaks_the_next(self, ranks: RankThreads) -> None:
        with ranks.round(4) as round_:
            ranks.each(lambda each: each.all_reduce(np.ones(10, np.float32)), round_)
            round_[2].fail_after(0)
            with pytest.raises(InjectedFaultError):
                round_[2].all_reduce(np.ones(10, np.float32))
            errors = ranks.outcomes(lambda each: each.all_reduce(np.ones(10, np.float32)), round_)
            assert all(isinstance(error, RoundBrokenError) for error in errors), errors

    @pytest.mark.parametrize("count", [10, 200_000])
    def test_abort_ends_a_pending_reduction_on_all_ranks(self, ranks: RankThreads, count: int) -> None:
        with ranks.round(3) as round_:
            outcomes: list[Any] = []

            def reduce(communicator: Communicator) -> None:
                outcomes.extend(
                    ranks.outcomes(lambda each: each.all_reduce(np.ones(count, np.float32)), [communicator])
                )

            threads = [threading.Thread(target=reduce, args=(each,)) for each in round_[:2]]
            for thread in threads:
                thread.start()
            round_[2].abort("a change of round")
            for thread in threads:
                thread.join(SECONDS)
            assert len(outcomes) == 2
            assert all(isinstance(error, RoundBrokenError) for error in outcomes), outcomes
            with pytest.raises(RoundBrokenError, match="a change of round") as own:
                round_[2].all_reduce(np.ones(count, np.float32))
            assert own.value.rank is None

    def test_an_abort_reaches_the_thread_that_waits_in_the_same_rank(self, ranks: RankThreads) -> None:
        with ranks.round(2) as round_:
            step = round_[0].begin_step()
            step.reduce_bucket(np.ones(1_000_000, np.float32))
            round_[0].abort("told to stop")
            with pytest.raises(RoundBrokenError, match="told to stop"):
                step.finish(b"")

    @pytest.mark.parametrize("count", [1, 400_000])
    def test_who_leaves_after_a_reduction_takes_it_from_nobody(self, ranks: RankThreads, count: int) -> None:
        def run(communicator: Communicator) -> float:
            buffer = np.ones(count, np.float32)
            with communicator:
                communicator.all_reduce(buffer)
            return float(buffer.sum())

        for _ in range(20):
            assert ranks.each(run, ranks.connect(4)) == [4.0 * count] * 4

    def test_a_rank_that_computes_for_long_is_no_loss(self, ranks: RankThreads) -> None:
        timeout = 0.3

        def run(communicator: Communicator) -> None:
            until = time.monotonic() + (2 * timeout if communicator.rank == 1 else 0)
            while time.monotonic() < until:
                sum(range(1000))
            communicator.all_reduce(np.ones(10, np.float32))

        with ranks.round(3, heartbeat_timeout=timeout) as round_:
            ranks.each(run, round_)

    def test_a_rank_that_waits_for_a_late_neighbour_is_no_loss(self, ranks: RankThreads) -> None:
        """Rank 1 has both neighbours before rank 2 has, which sends no heartbeat until the last rank comes."""

        def reduce(communicator: Communicator) -> float:
            buffer = np.ones(10, np.float32)
            communicator.all_reduce(buffer)
            return float(buffer[0])

        with ranks.round(4, late={3: 1.0}, heartbeat_timeout=0.3) as round_:
            assert ranks.each(reduce, round_) == [4.0] * 4

    def test_a_broken_round_stays_broken_and_closing_it_twice_is_harmless(self, ranks: RankThreads) -> None:
        with ranks.round(2) as round_:
            round_[0].abort("first")
            round_[0].abort("second")
            for _ in range(2):
                with pytest.raises(RoundBrokenError, match="first"):
                    round_[0].all_reduce(np.ones(1, np.float32))
            for each in round_:
                each.close()
        with ranks.round(2) as round_:
            ranks.each(lambda each: each.all_reduce(np.ones(1, np.float32)), round_)
