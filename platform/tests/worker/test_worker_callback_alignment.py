"""What callbacks do at the beginning of a round, so that those of all ranks are at the same place."""

from __future__ import annotations

import math
from typing import Any

import pytest

from edl.api.round_id import RoundId
from edl.core.rank_state import NO_ENDED_STEP, NOT_BEGUN, CallbackEpoch, EndedStep
from edl.worker.allreduce.callback_alignment import CallbackAlignment, CallbackPlace, describe_place, read_place

STEP = 7
FIRST = RoundId(1, 1)
IN_EPOCH_1 = CallbackEpoch(2, 4.5, 3, FIRST, None, 0)


class RecordedCallbacks:
    """Says what was called."""

    def __init__(self, place: CallbackPlace | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.begun_step = None if place is None else (place.begun_step, place.begun_epoch)
        self.callback_epoch = NOT_BEGUN if place is None else place.epoch
        self.ended_step = NO_ENDED_STEP if place is None else place.ended

    def begin_step(self, step: int, epoch: int) -> None:
        self.calls.append(("begin_step", step, epoch))

    def make_up_step(self, ended: EndedStep) -> None:
        self.calls.append(("make_up_step", ended.step))

    def adopt_state(self, epoch: CallbackEpoch, step: int) -> None:
        self.calls.append(("adopt_state", epoch, step))

    def forget_old_values(self) -> None:
        self.calls.append(("forget_old_values",))


def place(
    begun: int, epoch: int = 1, *, at: CallbackEpoch = IN_EPOCH_1, ended: EndedStep = NO_ENDED_STEP
) -> CallbackPlace:
    return CallbackPlace(begun, epoch, at, ended)


def align(*places: CallbackPlace, own: CallbackPlace | None = None) -> tuple[CallbackAlignment, list[tuple[Any, ...]]]:
    callbacks = RecordedCallbacks(own)
    return CallbackAlignment(callbacks, places, STEP), callbacks.calls


def test_holders_begin_the_step_in_the_latest_epoch_in_which_one_has_begun_it() -> None:
    alignment, calls = align(place(STEP, 1), place(STEP - 1, 3), place(STEP, 2))
    alignment.begin_step()
    assert calls == [("begin_step", STEP, 2)]


def test_holders_begin_nothing_if_none_has() -> None:
    alignment, calls = align(place(STEP - 1), place(STEP - 1))
    alignment.begin_step()
    assert calls == []


def test_a_member_without_the_state_gets_the_epoch_of_a_holder_that_has_not_begun_the_step() -> None:
    """That of one which has begun it has the changes of the next step already."""
    before, after = IN_EPOCH_1, IN_EPOCH_1._replace(begun=3, loss_sum=0.0, steps=0)
    alignment, calls = align(place(STEP, 2, at=after), place(STEP - 1, at=before))
    alignment.adopt_state()
    assert calls == [("adopt_state", before, STEP), ("begin_step", STEP, 2), ("forget_old_values",)]


def test_a_member_without_the_state_takes_the_rate_of_the_lowest_rank_that_has_set_one() -> None:
    rates = [IN_EPOCH_1, IN_EPOCH_1._replace(learning_rate=0.5), IN_EPOCH_1._replace(learning_rate=0.25)]
    alignment, calls = align(*(place(STEP - 1, at=epoch) for epoch in rates))
    alignment.adopt_state()
    assert calls == [("adopt_state", IN_EPOCH_1._replace(learning_rate=0.5), STEP)]


def test_a_rank_that_lacks_one_step_makes_it_up_unless_training_has_begun_again() -> None:
    others = place(STEP - 1, ended=EndedStep(STEP - 1, 1, 0.5))
    alignment, calls = align(others, others, own=place(STEP - 1))
    alignment.adopt_state()
    assert calls[0] == ("make_up_step", STEP - 1)
    began_again = place(STEP - 1, at=IN_EPOCH_1._replace(began_in=RoundId(2, 5)))
    alignment, calls = align(others, own=began_again)
    alignment.adopt_state()
    assert [name for name, *_ in calls] == ["adopt_state"]


def test_without_callbacks_on_any_rank_training_has_not_begun_for_them() -> None:
    alignment, calls = align()
    alignment.begin_step()
    assert calls == []
    alignment.adopt_state()
    assert calls == [("adopt_state", NOT_BEGUN, STEP)]


@pytest.mark.parametrize("loss", [0.5, math.nan])
def test_what_a_holder_says_is_what_the_others_read(loss: float) -> None:
    own = place(STEP, 2, ended=EndedStep(STEP - 1, 1, loss))
    read = read_place(describe_place(RecordedCallbacks(own), is_holder=True))
    assert read is not None
    assert repr(read) == repr(own)  # NaN is not equal to itself


def test_one_that_lacks_the_state_or_has_no_callbacks_says_nothing() -> None:
    assert describe_place(RecordedCallbacks(place(STEP)), is_holder=False) == b""
    assert describe_place(RecordedCallbacks(), is_holder=True) == b""
    assert read_place(b"") is None


@pytest.mark.parametrize("begun", [-2, "7", None])
def test_a_place_that_cannot_be_is_refused(begun: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        read_place(describe_place(RecordedCallbacks(place(begun)), is_holder=True))
