"""A learning rate, whoever sets it, takes effect with the next step that a worker makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from worker.loop_harness import MINIBATCH, LinearNetwork, LoopHarness, task

from edl.keras.user_callbacks import NoCallbacks
from edl.worker.parameter_client import ParameterClient, StepPush
from edl.worker.trainer import Trainer

STEPS = 4


class RateCallback(NoCallbacks):
    """Sets a rate, as a user's callback would: before a step, or after it."""

    def __init__(self, *, before: Callable[[int, float], float] | None = None, after: float | None = None) -> None:
        self.rate = 1.0
        self._before, self._after = before, after

    def begin_step(self, step: int) -> None:
        if self._before is not None:
            self.rate = self._before(step, self.rate)

    def end_step(self, step: int, loss: float) -> None:
        if self._after is not None:
            self.rate *= self._after


@pytest.fixture
def harness() -> Iterator[LoopHarness]:
    harness = LoopHarness()
    yield harness
    harness.close()


def rates(
    harness: LoopHarness, monkeypatch: pytest.MonkeyPatch, rate: Callable[[int], float], watcher: NoCallbacks
) -> list[float]:
    """What the pushes of a few steps carry."""
    pushed: list[float] = []
    push = ParameterClient.push

    def recording(self: ParameterClient, what: StepPush) -> object:
        assert what.gradients is not None
        pushed.append(what.gradients.learning_rate)
        return push(self, what)

    monkeypatch.setattr(ParameterClient, "push", recording)
    network = LinearNetwork()
    trainer = Trainer(
        network,
        rate,
        harness.parameters(network),
        harness.streams["training"],
        harness.leases,
        harness.progress,
        harness.gate,
        skip_nan=False,
        training_callbacks=watcher,
    )
    for leased in harness.take(task(1, 0, STEPS * MINIBATCH)):
        trainer.run(leased)
    return pushed


def test_a_schedule_is_evaluated_at_the_global_step(harness, monkeypatch):
    assert rates(harness, monkeypatch, lambda step: 1e-3 * (step + 1), NoCallbacks()) == [1e-3, 2e-3, 3e-3, 4e-3]


def test_what_a_callback_sets_before_a_step_is_the_rate_of_that_step(harness, monkeypatch):
    callback = RateCallback(before=lambda step, rate: 1e-3 / 2**step)
    assert rates(harness, monkeypatch, lambda step: callback.rate, callback) == [
        1e-3 / 2**step for step in range(STEPS)
    ]


def test_what_a_callback_sets_after_a_step_is_the_rate_of_the_next(harness, monkeypatch):
    callback = RateCallback(after=0.5)
    callback.rate = 1e-3
    assert rates(harness, monkeypatch, lambda step: callback.rate, callback) == [
        1e-3 / 2**step for step in range(STEPS)
    ]
