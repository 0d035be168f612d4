"""The message of a step, and what a worker of strategy AllReduce makes of its job."""

from __future__ import annotations

import pytest

from edl.api.cluster_port import POD_GRACE_SECONDS
from edl.api.strategy import Strategy
from edl.core.global_batch import RankRecords
from edl.core.world_rounds import Share
from edl.worker.allreduce.leaving import wait_until_left
from edl.worker.allreduce.rate_scaling import make_rate_scaling
from edl.worker.allreduce.step_message import StepMessage, StepOutcome

MESSAGES = (
    StepMessage(),
    StepMessage((Share((7 << 32) + 1, 64, 128),), True, 64.0, 0.25),
    StepMessage((Share(1, 0, 4),), is_finite=False),
    StepMessage(leaves_round=True, pauses=True),
    StepMessage((Share(2, 0, 4),), True, 4.0, 1.0, epoch=7, learning_rate=0.1),
    StepMessage((Share(2, 0, 4),), True, 1.0, 1.0, common_loss=0.5),
    StepMessage((Share(2, 9, 11), Share(4, 0, 3)), available=RankRecords(7, True), epoch_left=90, may_be_short=True),
)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_read_as_it_was_written(message: StepMessage) -> None:
    assert StepMessage.decode(message.encode()) == message


@pytest.mark.parametrize("data", [b"", b"x", MESSAGES[0].encode() + b"x"])
def test_a_message_of_another_length_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="bytes"):
        StepMessage.decode(data)


def test_the_outcome_is_the_weighted_mean_and_what_any_rank_asks_for() -> None:
    parts = [
        StepMessage((Share(1, 0, 4),), True, 4.0, 1.0, epoch_left=20),
        StepMessage(available=RankRecords(8)),
        StepMessage((Share(2, 4, 16),), True, 12.0, 2.0, epoch_left=24),
    ]
    outcome = StepOutcome.from_messages([part.encode() for part in parts])
    assert (outcome.shares, outcome.weight) == ((Share(1, 0, 4), Share(2, 4, 16)), 16.0)
    assert (outcome.gradient_count, outcome.loss, outcome.is_finite) == (2, 1.75, True)
    assert (outcome.leaves_round, outcome.pauses) == (False, False)
    assert (outcome.available, outcome.epoch_left) == ((RankRecords(), RankRecords(8), RankRecords()), 20)
    parts.append(StepMessage((Share(3, 0, 4),), is_finite=False, leaves_round=True, pauses=True))
    outcome = StepOutcome.from_messages([part.encode() for part in parts])
    assert (outcome.is_finite, outcome.leaves_round, outcome.pauses) == (False, True, True)
    nothing = StepOutcome.from_messages([StepMessage().encode()])
    assert (nothing.shares, nothing.weight, nothing.gradient_count, nothing.loss) == ((), 0.0, 0, None)


def test_summed_losses_are_added_and_their_regularizers_count_once() -> None:
    """The second rank has computed two minibatches; each of the three losses has 0.5 of regularizers."""
    parts = [
        StepMessage((Share(1, 0, 4),), True, 1.0, 3.5, common_loss=0.5),
        StepMessage(),
        StepMessage((Share(2, 0, 8),), True, 2.0, 2.5, common_loss=0.5),
    ]
    outcome = StepOutcome.from_messages([part.encode() for part in parts])
    assert (outcome.weight, outcome.loss) == (3.0, 3 + 2 + 2 + 0.5)


def make_outcome(*parts: tuple[int, float | None]) -> StepOutcome:
    """The outcome of a step in which each rank has records of an epoch, and its callbacks set a rate."""
    share = (Share(1, 0, 4),)
    return StepOutcome.from_messages(
        [StepMessage(share, True, 4.0, 1.0, epoch=epoch, learning_rate=rate).encode() for epoch, rate in parts]
    )


def test_a_step_has_one_learning_rate_that_of_its_latest_epoch() -> None:
    assert make_outcome((0, None), (0, None)).learning_rate is None
    assert make_outcome((3, 0.5), (3, 0.5)).learning_rate == 0.5
    mixed = make_outcome((3, 0.5), (4, 0.25), (3, 0.5))
    assert (mixed.learning_rate, mixed.rate_conflict) == (0.25, None)
    # A rank without records says nothing about the rate.
    own = StepMessage((Share(1, 0, 4),), True, 4.0, 1.0, epoch=1, learning_rate=0.5)
    assert StepOutcome.from_messages([StepMessage().encode(), own.encode()]).learning_rate == 0.5


def test_two_ranks_with_different_rates_for_one_epoch_are_named() -> None:
    assert make_outcome((3, 0.5), (4, 0.2), (4, 0.25)).rate_conflict == (1, 2)


@pytest.mark.parametrize(
    ("scaling", "reference", "expected"), [("linear", 4, [0.25, 1.0, 2.0]), ("sqrt", 4, [0.5, 1.0, 2.0**0.5])]
)
def test_the_learning_rate_follows_the_number_of_ranks(scaling: str, reference: int, expected: list[float]) -> None:
    factor = make_rate_scaling(Strategy(learning_rate_scaling=scaling, reference_world=reference))
    assert factor is not None
    assert [factor(ranks) for ranks in (1, 4, 8)] == pytest.approx(expected)


def test_without_scaling_the_learning_rate_is_the_users() -> None:
    assert make_rate_scaling(Strategy()) is None


class SlowWorld:
    """A world in which nobody leaves; it keeps for how long the worker waits."""

    def __init__(self, *, is_busy: bool) -> None:
        self.is_busy = is_busy
        self.waits: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return False


@pytest.mark.parametrize(
    ("step_seconds", "is_busy", "least", "most"),
    [(0.1, False, 3.0, 3.0), (4.0, False, 12.0, 12.0), (60.0, False, 20.0, 29.0), (0.1, True, 20.0, 29.0)],
)
def test_a_worker_that_is_told_to_end_waits_for_the_steps_of_the_others_within_its_grace_period(
    step_seconds: float, *, is_busy: bool, least: float, most: float
) -> None:
    world = SlowWorld(is_busy=is_busy)
    wait_until_left(world, world, step_seconds)
    assert least <= sum(world.waits) <= most < POD_GRACE_SECONDS
