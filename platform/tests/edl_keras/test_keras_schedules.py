"""Learning rates of the user's own making: any schedule that Keras calls counts, and what is no rate is said."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow

import keras  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.keras.optimizer_translation import (  # noqa: E402
    LearningRate,
    translate_optimizer,
)
from edl.keras.user_code import UserCodeError  # noqa: E402


class UserSchedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A schedule of the user's."""

    def __init__(self, rate: Callable[[Any], Any]) -> None:
        self._rate = rate

    def __call__(self, step: Any) -> Any:
        return self._rate(step)

    def get_config(self) -> dict[str, Any]:
        return {}


def rate_of(schedule: Callable[[Any], Any]) -> LearningRate:
    return LearningRate(keras.optimizers.SGD(UserSchedule(schedule)), Path(__file__).parent)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda step: 0.5 / (keras.ops.cast(step, "float32") + 1.0),
        lambda step: 0.5 / (1.0 + float(step)),
        lambda step: 0.5 / (1.0 + math.floor(step)),
        lambda step: np.float64(0.5) / np.add(step, 1.0),
    ],
    ids=["ops", "float", "math", "numpy"],
)
def test_a_schedule_may_compute_with_what_it_likes(schedule: Callable[[Any], Any]) -> None:
    rate = rate_of(schedule)
    assert [rate(step) for step in range(4)] == pytest.approx([0.5, 0.25, 0.5 / 3, 0.125])


def test_a_schedule_may_decide_by_the_step() -> None:
    rate = rate_of(lambda step: 0.1 if step < 2 else 0.01)
    assert [rate(step) for step in range(4)] == pytest.approx([0.1, 0.1, 0.01, 0.01])


class ScheduleWithoutConfig(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Has all that keras.fit needs, and no configuration."""

    def __call__(self, step: Any) -> Any:
        return 0.1


def test_a_schedule_without_a_configuration_is_refused_by_its_class() -> None:
    with pytest.raises(
        BadInputError, match="the learning-rate schedule ScheduleWithoutConfig has no get_config"
    ) as caught:
        translate_optimizer(keras.optimizers.SGD(ScheduleWithoutConfig()), zoo=Path(__file__).parent)
    assert caught.value.where == __file__
    assert "add get_config(self) to ScheduleWithoutConfig" in str(caught.value.hint)


def test_what_a_configuration_raises_is_the_users() -> None:
    class RaisingSchedule(ScheduleWithoutConfig):
        def get_config(self) -> Any:
            raise ZeroDivisionError("on purpose")

    with pytest.raises(UserCodeError, match=r"get_config\(\) of the optimizer raised ZeroDivisionError") as caught:
        translate_optimizer(keras.optimizers.SGD(RaisingSchedule()), zoo=Path(__file__).parent)
    assert str(caught.value.where).startswith(__file__)


def test_what_a_schedule_raises_is_the_users() -> None:
    def broken(step: Any) -> Any:
        raise LookupError("no rate for this epoch")

    with pytest.raises(UserCodeError, match="the learning rate raised LookupError: no rate for this epoch") as caught:
        rate_of(broken)(3)
    assert "in broken" in caught.value.detail


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_rate_is_refused_with_its_step(bad: float) -> None:
    rate = rate_of(lambda step: bad if step == 2 else 0.1)
    assert rate(1) == pytest.approx(0.1)
    with pytest.raises(BadInputError, match=f"the learning rate of step 2 is {bad}") as caught:
        rate(2)
    assert "callbacks" in str(caught.value.hint)


def test_a_callback_cannot_assign_what_is_no_rate_either() -> None:
    optimizer = keras.optimizers.SGD(0.1)
    rate = LearningRate(optimizer)
    optimizer.learning_rate = math.nan
    with pytest.raises(BadInputError, match="step 7 is nan"):
        rate(7)
