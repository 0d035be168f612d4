"""The message of a step, and what a worker of strategy AllReduce makes of its job."""

from __future__ import annotations

import pytest

from edl.api.strategy import Strategy
from edl.core.world_rounds import Share
from edl.worker.allreduce.setup import make_rate_scaling
from edl.worker.allreduce.step_message import StepMessage, StepOutcome

MESSAGES = (
    StepMessage(),
    StepMessage(Share((7 << 32) + 1, 64, 128), True, 64.0, 0.25),
    StepMessage(Share(1, 0, 4), is_finite=False),
    StepMessage(leaves_round=True, pauses=True),
    StepMessage(Share(2, 0, 4), True, 4.0, 1.0, epoch=7, learning_rate=0.1),
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
        StepMessage(Share(1, 0, 4), True, 4.0, 1.0),
        StepMessage(),
        StepMessage(Share(2, 4, 16), True, 12.0, 2.0),
    ]
    outcome = StepOutcome.from_messages([part.encode() for part in parts])
    assert outcome == StepOutcome((Share(1, 0, 4), Share(2, 4, 16)), 16.0, True, 1.75, True, False, False)
    parts.append(StepMessage(Share(3, 0, 4), is_finite=False, leaves_round=True, pauses=True))
    outcome = StepOutcome.from_messages([part.encode() for part in parts])
    assert (outcome.is_finite, outcome.leaves_round, outcome.pauses) == (False, True, True)
    assert StepOutcome.from_messages([StepMessage().encode()]) == StepOutcome((), 0.0, False, None, True, False, False)


def make_outcome(*parts: tuple[int, float | None]) -> StepOutcome:
    """The outcome of a step in which each rank has records of an epoch, and its callbacks set a rate."""
    share = Share(1, 0, 4)
    return StepOutcome.from_messages(
        [StepMessage(share, True, 4.0, 1.0, epoch=epoch, learning_rate=rate).encode() for epoch, rate in parts]
    )


def test_a_step_has_one_learning_rate_that_of_its_latest_epoch() -> None:
    assert make_outcome((0, None), (0, None)).learning_rate is None
    assert make_outcome((3, 0.5), (3, 0.5)).learning_rate == 0.5
    mixed = make_outcome((3, 0.5), (4, 0.25), (3, 0.5))
    assert (mixed.learning_rate, mixed.rate_conflict) == (0.25, None)
    # A rank without records says nothing about the rate.
    own = StepMessage(Share(1, 0, 4), True, 4.0, 1.0, epoch=1, learning_rate=0.5)
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
