"""The Keras callbacks of a job under strategy AllReduce: which ones work, and what they decide.

All ranks must apply the same change before the same step:

- ``EarlyStopping``, ``ReduceLROnPlateau`` and ``ModelCheckpoint(save_best_only=True)`` decide by evaluations. The
  master decides instead of them (``edl.core.callback_decisions``), while all ranks pause for the evaluation. Without
  them the others train on during an evaluation (``evaluation.max_workers``).
- Other ``ModelCheckpoint`` write their files at a pause of all ranks (``edl.keras.model_checkpoint_callback``). One
  rank writes them.
- ``LearningRateScheduler`` determines the rate of an epoch. Each rank computes it for its records, with Keras' own
  code, and sends it with the step.
- All others run on every rank, as ``edl.keras.rank_callbacks`` describes.

What cannot work so is refused by name before the first step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.core.callback_decisions import CallbackSpec, ReduceLROnPlateau
from edl.core.model_files import ModelFile
from edl.keras import monitor_callbacks
from edl.keras.model_checkpoint_callback import EpochLoss, declare_model_file
from edl.keras.model_contract import ModelModule
from edl.keras.rank_callbacks import MakeParams, NoRankCallbacks, RankCallbacks
from edl.keras.replica_state import ReplicaState
from edl.keras.user_callbacks import is_keras_class
from edl.keras.user_code import source_file, user_code

NO_CALLBACKS = NoRankCallbacks()

_SUPPORTED = "EarlyStopping, ReduceLROnPlateau, ModelCheckpoint, LearningRateScheduler and callbacks of your own"
_REFUSED = {
    "OrbaxCheckpoint": "use ModelCheckpoint, or checkpoint.every_steps and checkpoint.keep",
    "SwapEMAWeights": "remove it; use_ema of the optimizer works",
}
"""Keras' callbacks that several ranks cannot run, and what to do instead."""


@dataclass(frozen=True)
class SharedCallbacks:
    """What the callbacks of a job do.

    Attributes:
        declared: the callbacks for which the master decides.
        files: the callbacks whose files a worker writes for all.
        epoch_rate: returns the learning rate of an epoch; None: no callback sets it.
        own: the callbacks that every rank runs.
        epoch_loss: the loss for the names of files.
    """

    declared: tuple[CallbackSpec, ...] = ()
    files: tuple[ModelFile, ...] = ()
    epoch_rate: Callable[[int], float] | None = None
    own: RankCallbacks | NoRankCallbacks = NO_CALLBACKS
    epoch_loss: EpochLoss = field(default_factory=EpochLoss)


def declare_training_callbacks(
    module: ModelModule,
    model: ReplicaState,
    spec: JobSpec,
    *,
    worker_index: int | None = None,
    make_params: MakeParams = dict,
) -> SharedCallbacks:
    """Check the module's callbacks, and compute the rate of the first epoch.

    Call it while the optimizer has its initial rate.

    Args:
        module: the user's model module.
        model: this rank's model.
        spec: the job.
        worker_index: this worker's index.
        make_params: returns the ``params`` of the callbacks.

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
    _refuse_writers(others)
    monitor_callbacks.check_monitors(monitors, model.metric_directions, spec)
    optimizer = model.optimizer
    declared = monitor_callbacks.declare_callbacks(monitors, getattr(optimizer, "inner_optimizer", optimizer))
    monitor_callbacks.refuse_conflicting_rates(others, declared)
    if declared and spec.evaluation.max_workers:
        raise BadInputError(
            f"evaluation.max_workers is {spec.evaluation.max_workers}, but {type(monitors[0]).__name__} decides by "
            "evaluations: training must pause for them, so that the decision applies from the next step on",
            hint="remove evaluation.max_workers, or remove the callback",
        )
    writers = [each for each in others if isinstance(each, keras.callbacks.ModelCheckpoint)]
    files, epoch_loss = tuple(declare_model_file(each) for each in writers), EpochLoss()
    schedulers = [each for each in others if type(each) is keras.callbacks.LearningRateScheduler]
    owners = [kind.__name__ for kind in (ReduceLROnPlateau,) if any(isinstance(each, kind) for each in declared)]
    owners += ["LearningRateScheduler"] if schedulers else []
    if not model.uses_own_optimizer:
        monitor_callbacks.refuse_unused_rates(callbacks)
    own = [each for each in others if each not in schedulers and each not in writers]
    if files:
        own.append(epoch_loss)
    if own:
        rank_callbacks: RankCallbacks | NoRankCallbacks = RankCallbacks(
            own, model, worker_index=worker_index, params=make_params(), rate_owner=" and ".join(owners)
        )
    else:
        rank_callbacks = NO_CALLBACKS
    if not schedulers:
        return SharedCallbacks(declared, files, own=rank_callbacks, epoch_loss=epoch_loss)
    rates = _ScheduledRates(schedulers, model, module.zoo)
    # An error of the schedule ends the job before its first step.
    rates.rate_of(0)
    return SharedCallbacks(declared, files, rates.rate_of, rank_callbacks, epoch_loss)


def _refuse_writers(callbacks: Sequence[Any]) -> None:
    """Refuse callbacks that write or swap the weights: all ranks have the same ones.

    Raises:
        BadInputError: it is one of them, or of a subclass.
    """
    for callback in callbacks:
        for name, instead in _REFUSED.items():
            if isinstance(callback, getattr(keras.callbacks, name, ())):
                kind = type(callback)
                shown = kind.__name__ if kind.__name__ == name else f"{kind.__name__} (a keras.callbacks.{name})"
                raise BadInputError(
                    f"the callback {shown} is not supported under strategy AllReduce: every worker would run it",
                    where="" if is_keras_class(kind) else source_file(kind),
                    hint=f"{instead}. {_SUPPORTED} work",
                )


class _ScheduledRates:
    """The rates that ``LearningRateScheduler`` sets, by epoch.

    A schedule may depend on the last rate. So the rates of all epochs are computed in turn from the optimizer's initial
    rate, also on a worker that joins later. They do not depend on the state of the worker, so none is lost or set
    twice when the world changes.
    """

    def __init__(self, schedulers: Sequence[Any], model: ReplicaState, zoo: Path) -> None:
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
