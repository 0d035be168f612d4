"""A worker is lost in the middle of a step: the survivors keep their gradients, unless their state changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.all_reduce_job import AllReduceJob, CountingReplica, KilledError, Rank
from support.two_updates import TwoUpdatesJob

from edl.collective.communicator import Communicator
from edl.core.state_agreement import RankFacts
from edl.core.world_rounds import Share
from edl.worker.allreduce.callback_alignment import CallbackAlignment
from edl.worker.allreduce.kept_gradient import KeptGradient
from edl.worker.allreduce.step_message import StepMessage
from edl.worker.allreduce.world_client import RoundView

SHARES = (Share(3, 0, 4),)


@pytest.fixture
def folder():
    with TemporaryDirectory(prefix="edl-") as path:
        yield Path(path)


def other_instructions(index: int) -> RankFacts:
    return RankFacts(f"worker-{index}", instructions=("x86_64", "avx2") if index == 2 else ("x86_64",))


def kill_before_reduction(job: AllReduceJob, rank: Rank, call: int) -> None:
    """Let a rank die when it has computed its gradient for the ``call``-th time: the others have computed theirs."""
    left = [call]

    def die(reached: str) -> None:
        left[0] -= reached == "reduce"
        if left[0] == 0:
            job.kill(rank)
            raise KilledError

    rank.replica.fail_at = die


def repeated_minibatches(rank: Rank) -> list[tuple[int, ...]]:
    """The minibatches of which a rank made more than one forward pass."""
    return [minibatch for minibatch, passes in Counter(rank.replica.computed).items() if passes > 1]


def train_with_a_loss(job: AllReduceJob) -> tuple[Rank, Rank]:
    """Three workers train, one of them is lost in the middle of a step; returns the others, by rank."""
    ranks = [job.start_rank() for _ in range(3)]
    job.wait_for_round(3)
    kill_before_reduction(job, ranks[1], 5)
    job.wait_killed(ranks[1])
    job.wait_for_round(2)
    job.hurry()
    job.wait_for_end()
    return ranks[0], ranks[2]


def test_survivors_of_a_lost_worker_compute_no_gradient_again(folder):
    with AllReduceJob(folder, records=400, seconds=0.005) as job:
        for rank in train_with_a_loss(job):
            assert len(rank.replica.computed) > 10
            assert repeated_minibatches(rank) == []
            # The random layers have drawn once for each minibatch, too.
            assert rank.replica.draws == len(rank.replica.computed)


def test_two_losses_one_after_the_other_cost_no_forward_pass(folder):
    """The second one ends the round before a step of it is made."""
    with AllReduceJob(folder, records=600, seconds=0.005) as job:
        ranks = [job.start_rank() for _ in range(4)]
        job.wait_for_round(4)
        kill_before_reduction(job, ranks[1], 5)
        job.wait_killed(ranks[1])
        # Its first step in the next round writes the gradient again.
        kill_before_reduction(job, ranks[3], 1)
        job.wait_killed(ranks[3])
        job.hurry()
        job.wait_for_end()
        for rank in (ranks[0], ranks[2]):
            assert repeated_minibatches(rank) == []


def test_a_gradient_of_a_state_that_was_replaced_is_computed_again(folder):
    """Rank 2 has another processor and rounds differently, so it takes the state of rank 0 with every round."""

    def make(at: int) -> CountingReplica:
        replica = CountingReplica(400, seconds=0.005)

        def round_differently(point: str) -> None:
            if at == 2 and point == "applied":
                replica.rates *= 1 + 1e-13

        replica.fail_at = round_differently
        return replica

    with AllReduceJob(folder, records=400) as job:
        job.make_replica, job.make_facts = make, other_instructions
        first, other = train_with_a_loss(job)
        assert repeated_minibatches(first) == []
        assert len(repeated_minibatches(other)) == 1


def test_a_gradient_is_computed_again_if_callbacks_change_variables_between_the_rounds(folder):
    """Other ranks have begun the step in a later epoch: with the next round all begin that epoch."""
    with AllReduceJob(folder, records=400, seconds=0.005) as job:
        ranks = [job.start_rank() for _ in range(3)]
        job.wait_for_round(3)

        def change_variables(rank: Rank) -> None:
            align = rank.loop._align_callbacks

            def align_and_change(view: RoundView, communicator: Communicator) -> CallbackAlignment | None:
                rank.replica.rates = rank.replica.rates * 2
                return align(view, communicator)

            rank.loop._align_callbacks = align_and_change  # type: ignore[method-assign]

        for rank in (ranks[0], ranks[2]):
            change_variables(rank)
        kill_before_reduction(job, ranks[1], 5)
        job.wait_killed(ranks[1])
        job.wait_for_round(2)
        job.hurry()
        job.wait_for_end()
        for rank in (ranks[0], ranks[2]):
            assert len(repeated_minibatches(rank)) == 1


def test_a_share_of_a_global_batch_has_another_size_in_the_next_round(folder):
    """Parts of it are computed again; the job checks that every record counts once."""
    with AllReduceJob(folder, records=400, seconds=0.005, global_batch=12) as job:
        train_with_a_loss(job)


def test_a_step_of_two_updates_is_made_again_from_its_first_update(folder):
    with TwoUpdatesJob(folder, records=400, seconds=0.005) as job:
        for rank in train_with_a_loss(job):
            assert len(repeated_minibatches(rank)) == 1


@pytest.mark.parametrize(
    ("step", "shares", "digest", "is_found"),
    [
        (7, SHARES, 11, True),
        (8, SHARES, 11, False),
        (7, (Share(3, 4, 8),), 11, False),
        (7, (Share(4, 0, 4),), 11, False),
        (7, SHARES, 12, False),
    ],
)
def test_a_gradient_counts_for_the_same_step_records_and_state(step, shares, digest, is_found):
    kept_gradient, message = KeptGradient(), StepMessage(SHARES, True, 4.0, 0.5)
    kept_gradient.keep(7, message)
    assert kept_gradient.find(7, SHARES) is None, "its round goes on: nobody has compared the states"
    kept_gradient.end_round(11)
    kept_gradient.start_round(digest)
    assert (kept_gradient.find(step, shares) == message) == is_found


def test_a_gradient_keeps_the_digest_of_its_own_state_if_a_round_ends_before_it_started():
    kept_gradient = KeptGradient()
    kept_gradient.keep(7, StepMessage(SHARES, True, 4.0, 0.5))
    assert kept_gradient.lacks_digest
    kept_gradient.end_round(11)
    assert not kept_gradient.lacks_digest
