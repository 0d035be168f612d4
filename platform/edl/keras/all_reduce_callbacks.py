"""The Keras callbacks of a job under strategy AllReduce: which ones work, and what they decide.

All ranks must apply the same change before the same step. So only callbacks work whose decision one step message can
carry:

- ``EarlyStopping`` and ``ReduceLROnPlateau`` decide by evaluations. The master decides instead of them
  (``edl.core.evaluation``), while all ranks pause for the evaluation.
- ``LearningRateScheduler`` determines the rate of an epoch. Each rank computes it for its records, with Keras' own
  code, and sends it with the step.

Everything else is refused by name before the first step. A callback of the user's could change any variable of one
rank, and the ranks would no longer be equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.core.evaluation import CallbackSpec
from edl.keras import monitor_callbacks
from edl.keras.model_contract import ModelModule
from edl.keras.trainable_model import TrainableModel
from edl.keras.user_callbacks import is_keras_class
from edl.keras.user_code import source_file, user_code

_SUPPORTED = "EarlyStopping, ReduceLROnPlateau and LearningRateScheduler"


@dataclass(frozen=True)
class SharedCallbacks:
    """What the callbacks of a job do.

    Attributes:
        declared: the callbacks for which the master decides.
        epoch_rate: returns the learning rate of an epoch; None: no callback sets it.
    """

    declared: tuple[CallbackSpec, ...] = ()
    epoch_rate: Callable[[int], float] | None = None


def declare_training_callbacks(module: ModelModule, model: TrainableModel, spec: JobSpec) -> SharedCallbacks:
    """Check the module's callbacks, and compute the rate of the first epoch.

    Call it while the optimizer has its initial rate.

    Raises:
        BadInputError: a callback cannot work; the error names it.
        UserCodeError: the user's code raised an exception.
    """
    if module.callbacks is None:
        return SharedCallbacks()
    with user_code(module.zoo, "callbacks()", function=module.callbacks):
        callbacks = keras.tree.flatten(list(module.callbacks() or ()))
    monitors = [each for each in callbacks if monitor_callbacks.is_monitor(each)]
    others = [each for each in callbacks if not monitor_callbacks.is_monitor(each)]
    # Both strategies train the worker's own model, so the same callbacks can never work.
    monitor_callbacks.refuse_unsupported_callbacks(others, trains_locally=True)
    schedulers = [each for each in others if type(each) is keras.callbacks.LearningRateScheduler]
    for callback in others:
        if callback not in schedulers:
            raise _refuse(callback)
    for callback in monitors:
        _refuse_best_weights(callback)
    monitor_callbacks.check_monitors(monitors, model.metric_directions, spec)
    optimizer = model.optimizer
    declared = monitor_callbacks.declare_callbacks(monitors, getattr(optimizer, "inner_optimizer", optimizer))
    monitor_callbacks.refuse_conflicting_rates(others, declared)
    if not schedulers:
        return SharedCallbacks(declared)
    rates = _ScheduledRates(schedulers, model, module.zoo)
    # An error of the schedule ends the job before its first step.
    rates.rate_of(0)
    return SharedCallbacks(declared, rates.rate_of)


def _refuse(callback: Any) -> BadInputError:
    kind = type(callback)
    if is_keras_class(kind):
        return BadInputError(
            f"the callback {kind.__name__} is not supported under strategy AllReduce",
            hint=f"remove it; {_SUPPORTED} work. Or use strategy ParameterServer or Local",
        )
    methods = ", ".join(f"{name}()" for name in sorted(_user_methods(kind)))
    return BadInputError(
        f"the callback {kind.__name__}{f' with {methods}' if methods else ''} cannot be used under strategy AllReduce: "
        "what it changes on one worker would be missing on the others",
        where=source_file(kind),
        hint=f"remove it; Keras' own {_SUPPORTED} work. Or use strategy ParameterServer or Local",
    )


def _user_methods(kind: type) -> set[str]:
    """The methods of a callback that Keras calls and the user's class defines."""
    return {
        name
        for base in kind.__mro__
        if base is not object and not is_keras_class(base)
        for name in vars(base)
        if name.startswith("on_") or name in ("set_model", "set_params")
    }


def _refuse_best_weights(callback: Any) -> None:
    """Refuse callbacks that keep the weights of an evaluation.

    Raises:
        BadInputError: it is one.
    """
    kind = type(callback).__name__
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        raise BadInputError(
            f"the callback {kind} with save_best_only=True is not supported under strategy AllReduce",
            hint="use checkpoint.every_steps, or strategy ParameterServer or Local",
        )
    if getattr(callback, "restore_best_weights", False):
        raise BadInputError(
            f"restore_best_weights=True of the callback {kind} is not supported under strategy AllReduce",
            hint="leave it out: the job then exports the weights of its last step; or use strategy ParameterServer or "
            "Local",
        )


class _ScheduledRates:
    """The rates that ``LearningRateScheduler`` sets, by epoch.

    A schedule may depend on the last rate. So the rates of all epochs are computed in turn from the optimizer's initial
    rate, also on a worker that joins later. They do not depend on the state of the worker, so none is lost or set
    twice when the world changes.
    """

    def __init__(self, schedulers: Sequence[Any], model: TrainableModel, zoo: Path) -> None:
        self._schedulers = schedulers
        self._optimizer = model.optimizer
        self._zoo = zoo
        self._rates: list[float] = []
        with user_code(zoo, "set_model() of LearningRateScheduler"):
            model.model.optimizer = model.optimizer
            for scheduler in schedulers:
                scheduler.set_model(model.model)

    def rate_of(self, epoch: int) -> float:
        """The rate of an epoch.

        Raises:
            BadInputError: a rate is not finite.
            UserCodeError: a schedule raised an exception.
        """
        while len(self._rates) <= epoch:
            self._rates.append(self._compute_next_rate())
        return self._rates[epoch]

    def _compute_next_rate(self) -> float:
        epoch, optimizer = len(self._rates), self._optimizer
        with user_code(self._zoo, "on_epoch_begin() of LearningRateScheduler"):
            current = float(optimizer.learning_rate)
            # The variable is part of the state, which changes at a step only.
            try:
                if self._rates:
                    optimizer.learning_rate = self._rates[-1]
                for scheduler in self._schedulers:
                    scheduler.on_epoch_begin(epoch)
                rate = float(optimizer.learning_rate)
            finally:
                optimizer.learning_rate = current
        if not math.isfinite(rate):
            raise BadInputError(
                f"the callback LearningRateScheduler sets the learning rate {rate} in epoch {epoch}",
                hint="its schedule must return a finite number",
            )
        return rate
