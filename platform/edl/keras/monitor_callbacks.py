"""Keras' callbacks that decide by evaluations: found in the user's list, checked, and declared to the master.

``EarlyStopping``, ``ReduceLROnPlateau`` and ``ModelCheckpoint(save_best_only=True)`` want the values of an evaluation.
Under strategy Local the process that trains has them, and Keras' own code decides. Where parameter servers hold the
weights the master decides for all workers (``edl.core.evaluation``), from what is declared here; the code of
a subclass cannot run there, so it is refused. In either case an evaluation is to them what an epoch is to
``keras.fit``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.core.evaluation import BestCheckpoint, CallbackSpec, EarlyStopping, ReduceLROnPlateau

MetricDirections = Mapping[str, str | None]
"""By metric of the evaluation: whether ``up`` or ``down`` is better; None: not declared."""


def is_monitor(callback: Any) -> bool:
    """Whether a callback decides by the values of evaluations; subclasses count as what they extend."""
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return bool(callback.save_best_only)
    return isinstance(callback, keras.callbacks.EarlyStopping | keras.callbacks.ReduceLROnPlateau)


def check_monitors(monitors: Sequence[Any], directions: MetricDirections, spec: JobSpec) -> None:
    """Refuse callbacks that could never decide; give those of mode ``auto`` the mode that their metric says.

    Args:
        monitors: of the user's list, those of which ``is_monitor`` is true.
        directions: of the job's metrics, the loss included.
        spec: the job.

    Raises:
        BadInputError: there is nothing to evaluate on, no such metric, or nothing says which values are better.
    """
    for callback in monitors:
        callback_text = f"the callback {type(callback).__name__}"
        if not spec.data.validation:
            raise BadInputError(
                f"{callback_text} decides by evaluations, and there are no records to evaluate on",
                hint="set data.validation, or leave the callback out",
            )
        if spec.train.evaluation_steps is None and not isinstance(callback, keras.callbacks.ModelCheckpoint):
            raise BadInputError(
                f"{callback_text} decides by evaluations, and the only one is at the end",
                hint="set train.evaluation_steps, for example to the steps of an epoch: the training records divided "
                "by train.minibatch_size. patience counts evaluations",
            )
        metric = _monitored_metric(callback, callback_text, directions)
        if callback.mode == "auto":
            callback.mode = _resolve_mode(callback, callback_text, directions.get(metric), metric)


def _monitored_metric(callback: Any, callback_text: str, directions: MetricDirections) -> str:
    """The metric's name without ``val_``; values of one metric with several are called ``NAME_...``."""
    monitor = str(callback.monitor)
    metric = monitor.removeprefix("val_")
    known_metrics = ", ".join(f"val_{name}" for name in directions)
    if metric == monitor:
        raise BadInputError(
            f"{callback_text} monitors '{monitor}', a value of training: it decides by those of evaluations",
            hint=f"monitor one of {known_metrics}",
        )
    if metric not in directions and not any(metric.startswith(f"{name}_") for name in directions):
        raise BadInputError(f"{callback_text} monitors '{monitor}', and an evaluation gives {known_metrics}")
    return metric


def _resolve_mode(callback: Any, callback_text: str, direction: str | None, metric: str) -> str:
    if metric == "loss":
        return "min"
    if direction is None:
        raise BadInputError(
            f"{callback_text} monitors 'val_{metric}', and nothing says whether more of it is better",
            hint="give it mode='max' or mode='min'",
        )
    return "max" if direction == "up" else "min"


def declare_callbacks(monitors: Sequence[Any], optimizer: Any) -> tuple[CallbackSpec, ...]:
    """What the master is to decide, of callbacks that were checked.

    Args:
        monitors: Keras' callbacks.
        optimizer: the job's, with the rate that ``optimizer()`` gave it.

    Raises:
        BadInputError: a subclass, whose code the master cannot run; or an optimizer whose rate is not to be set.
    """
    return tuple(_declare_callback(callback, optimizer) for callback in monitors)


def _declare_callback(callback: Any, optimizer: Any) -> CallbackSpec:
    kind = type(callback)
    of_keras = (keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau, keras.callbacks.ModelCheckpoint)
    if kind not in of_keras:
        base = next(each.__name__ for each in of_keras if isinstance(callback, each))
        raise BadInputError(
            f"the callback {kind.__name__} (a keras.callbacks.{base}) cannot be used: the master decides for all "
            "workers, and does not run the code of a subclass",
            hint=f"use keras.callbacks.{base} itself, or strategy: {{name: Local}}, which runs subclasses",
        )
    shared_arguments = (str(callback.monitor).removeprefix("val_"), callback.mode, float(callback.min_delta))
    if kind is keras.callbacks.EarlyStopping:
        return EarlyStopping(
            *shared_arguments,
            patience=int(callback.patience),
            baseline=None if callback.baseline is None else float(callback.baseline),
            restore_best_weights=bool(callback.restore_best_weights),
            start_from_epoch=int(callback.start_from_epoch),
        )
    if kind is keras.callbacks.ReduceLROnPlateau:
        if isinstance(optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            raise BadInputError(
                "the callback ReduceLROnPlateau cannot be used: the rate is a schedule's, and not to be set",
                hint="give the optimizer a number as learning_rate",
            )
        return ReduceLROnPlateau(
            *shared_arguments,
            factor=float(callback.factor),
            patience=int(callback.patience),
            cooldown=int(callback.cooldown),
            min_lr=float(callback.min_lr),
            rate=float(optimizer.learning_rate),
        )
    if callback.save_freq != "epoch":
        raise BadInputError(
            f"save_freq={callback.save_freq!r} of the callback ModelCheckpoint cannot be used with save_best_only: "
            "which model is the best is known after an evaluation",
            hint="leave save_freq out",
        )
    threshold = None if callback.best is None else float(callback.best)
    return BestCheckpoint(
        *shared_arguments,
        threshold=threshold,
        filepath=callback.filepath,
        weights_only=bool(callback.save_weights_only),
    )


def refuse_conflicting_rates(other_callbacks: Sequence[Any], declared_callbacks: Sequence[CallbackSpec]) -> None:
    """The master would lower the rate, and the worker's own callback would set it at the next epoch.

    Raises:
        BadInputError: there are both.
    """
    schedulers = [each for each in other_callbacks if isinstance(each, keras.callbacks.LearningRateScheduler)]
    if schedulers and any(isinstance(callback, ReduceLROnPlateau) for callback in declared_callbacks):
        raise BadInputError(
            "the callbacks ReduceLROnPlateau and LearningRateScheduler both set the learning rate, the one for the "
            "whole job, the other in each worker",
            hint="leave one of them out, or use strategy: {name: Local}",
        )


# --------------------------------------------------------------------------------------------------
# Callbacks of Keras that could not do their work in a job: refused by name, with what does it here.


_NO_EPOCH_EVALUATION = "an epoch does not end with an evaluation"
_INITIAL_WEIGHTS = "a worker's model keeps its initial weights, the trained ones are on the parameter servers"
_CHECKPOINT_REMEDY = (
    "use checkpoint.every_steps and checkpoint.keep, or ModelCheckpoint(save_best_only=True); the export is the "
    "trained model as a .keras file"
)
_INSPECT_REMEDY = "leave it out; `edl checkpoint inspect` says what the weights of a checkpoint look like"

_RefusalTable = Mapping[str, tuple[str, str]]
"""By class, or class and argument: why, and what to do."""

_REFUSED_EVERYWHERE: _RefusalTable = {
    "BackupAndRestore": (
        "a job resumes from EDL's checkpoints",
        "leave it out: checkpoint.every_steps says how often they are taken",
    ),
    "OrbaxCheckpoint.save_best_only": (_NO_EPOCH_EVALUATION, "use ModelCheckpoint(save_best_only=True)"),
    "SwapEMAWeights.swap_on_epoch": ("the weights that it puts in would be kept and exported", "leave it out"),
    "TerminateOnNaN": (
        "callbacks do not see steps whose loss is not finite",
        "use train.on_nan: stop, which is the default",
    ),
}
_REFUSED_WITH_PS: _RefusalTable = {
    "ModelCheckpoint": (_INITIAL_WEIGHTS, _CHECKPOINT_REMEDY),
    "OrbaxCheckpoint": (_INITIAL_WEIGHTS, _CHECKPOINT_REMEDY),
    "SwapEMAWeights": (_INITIAL_WEIGHTS, "leave it out, and average what the newest checkpoints hold"),
    "TensorBoard.embeddings_freq": (_INITIAL_WEIGHTS, _INSPECT_REMEDY),
    "TensorBoard.histogram_freq": (_INITIAL_WEIGHTS, _INSPECT_REMEDY),
}
"""Where parameter servers hold the weights."""


def refuse_unsupported_callbacks(callbacks: Iterable[Any], *, trains_locally: bool) -> None:
    """Look at each of ``callbacks``; a subclass counts as what it extends.

    Args:
        callbacks: of Keras, and the user's.
        trains_locally: whether the process that calls them trains the model itself.

    Raises:
        BadInputError: one of them could not do its work; why, and what to use instead.
    """
    import keras

    refusals = _REFUSED_EVERYWHERE if trains_locally else {**_REFUSED_WITH_PS, **_REFUSED_EVERYWHERE}
    for callback in callbacks:
        for what, (reason, instead) in refusals.items():
            base, _, argument = what.partition(".")
            if not isinstance(callback, getattr(keras.callbacks, base, ())):  # older ones do not have all of them
                continue
            given = getattr(callback, argument) if argument else True
            if given:
                callback_text = f"{argument}={given!r} of the callback" if argument else "the callback"
                raise BadInputError(
                    f"{callback_text} {_callback_name(callback, base)} cannot be used: {reason}", hint=instead
                )


def _callback_name(callback: Any, base: str) -> str:
    kind = type(callback).__name__
    return kind if kind == base else f"{kind} (a keras.callbacks.{base})"
