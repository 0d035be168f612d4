"""Monitor callbacks, which decide by evaluations: found in the user's list, checked, and declared to the master.

``EarlyStopping``, ``ReduceLROnPlateau`` and ``ModelCheckpoint(save_best_only=True)`` need the values of an evaluation,
and so does ``ModelCheckpoint`` with such values in the names of its files.
Under strategy Local the training process has them, and Keras' own code decides. Under ParameterServer and under
AllReduce the master decides for all workers (``edl.core.callback_decisions``), from the declarations made here; what
else AllReduce checks is in ``edl.keras.all_reduce_callbacks``. The master cannot run the code of a subclass, so
subclasses are refused. Under all three strategies an evaluation takes the place of an epoch of ``keras.Model.fit``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.core.callback_decisions import (
    BestCheckpoint,
    CallbackSpec,
    EarlyStopping,
    ReduceLROnPlateau,
    explain_missing_monitor,
)
from edl.keras.model_checkpoint_callback import check_file_name, names_evaluation

MetricDirections = Mapping[str, str | None]
"""By metric of the evaluation: whether ``up`` or ``down`` is better, or None if unknown."""


def is_monitor(callback: Any) -> bool:
    """Whether a callback is a monitor callback; subclasses count too."""
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return bool(callback.save_best_only) or names_evaluation(callback)
    return isinstance(callback, keras.callbacks.EarlyStopping | keras.callbacks.ReduceLROnPlateau)


def check_monitors(monitors: Sequence[Any], directions: MetricDirections, spec: JobSpec) -> None:
    """Refuse callbacks that could never decide; replace the mode ``auto`` by the mode of the metric.

    Args:
        monitors: the callbacks of the user's list for which ``is_monitor`` is true.
        directions: the directions of the job's metrics, including the loss.
        spec: the job.

    Raises:
        BadInputError: the job has no evaluations, the metric does not exist, or its direction is unknown.
    """
    for callback in monitors:
        callback_text = f"the callback {type(callback).__name__}"
        if not spec.data.validation:
            raise BadInputError(
                f"{callback_text} decides by evaluations, but the job has no records to evaluate on",
                hint="set data.validation, or remove the callback",
            )
        # ModelCheckpoint is useful with a single evaluation at the end; the others can change
        # nothing then.
        if spec.train.evaluation_steps is None and not isinstance(callback, keras.callbacks.ModelCheckpoint):
            raise BadInputError(
                f"{callback_text} decides by evaluations, but the only evaluation is at the end",
                hint="set train.evaluation_steps, for example to the steps of an epoch: the training records divided "
                "by train.minibatch_size. patience counts evaluations",
            )
        _check_model_checkpoint(callback, callback_text, directions, spec)
        if names_evaluation(callback):
            # Every evaluation is written, so the monitored metric is not compared.
            callback.mode = "min"
            continue
        metric = _monitored_metric(callback, callback_text, directions)
        if callback.mode == "auto":
            callback.mode = _resolve_mode(callback, callback_text, directions.get(metric), metric)


def _check_model_checkpoint(callback: Any, callback_text: str, directions: MetricDirections, spec: JobSpec) -> None:
    """Refuse arguments of ``ModelCheckpoint`` that cannot work."""
    if not isinstance(callback, keras.callbacks.ModelCheckpoint):
        return
    if names_evaluation(callback):
        if spec.strategy.name == "ParameterServer":
            raise BadInputError(f"{callback_text} cannot be used: {_INITIAL_WEIGHTS}", hint=_CHECKPOINT_REMEDY)
        if callback.save_freq != "epoch":
            raise BadInputError(
                f"save_freq={callback.save_freq!r} of {callback_text} cannot be used with values of an evaluation in "
                f"the filepath '{callback.filepath}'",
                hint="remove save_freq, or use only {epoch}, {batch} and {loss} in the filepath",
            )
    # Under strategy Local Keras' own code writes the file.
    if spec.strategy.name != "Local":
        known = ["epoch", *(f"val_{name}" for name in directions)]
        # A metric with several values has the names NAME_....
        check_file_name(callback, known, lambda field: any(field.startswith(f"{each}_") for each in known[1:]))


def _monitored_metric(callback: Any, callback_text: str, directions: MetricDirections) -> str:
    """The metric's name without ``val_``. A metric with several values has the names ``NAME_...``."""
    monitor = str(callback.monitor)
    metric = monitor.removeprefix("val_")
    known_metrics = ", ".join(f"val_{name}" for name in directions)
    if metric == monitor:
        raise BadInputError(
            f"{callback_text} monitors '{monitor}', a value of training, but it decides by values of evaluations",
            hint=f"did you mean val_{metric}?" if metric in directions else f"monitor one of {known_metrics}",
        )
    if metric not in directions and not any(metric.startswith(f"{name}_") for name in directions):
        raise BadInputError(f"{callback_text} monitors '{monitor}', but the evaluation has only {known_metrics}")
    return metric


def refuse_missing_monitor(callback: Any, metrics: Iterable[str]) -> None:
    """Refuse a callback that monitors what an evaluation does not have.

    Raises:
        BadInputError: names the values that the evaluation has.
    """
    if isinstance(callback, keras.callbacks.ModelCheckpoint) and not callback.save_best_only:
        return
    problem = explain_missing_monitor(type(callback).__name__, str(callback.monitor).removeprefix("val_"), metrics)
    if problem:
        raise BadInputError(problem, hint="monitor one of these")


def _resolve_mode(callback: Any, callback_text: str, direction: str | None, metric: str) -> str:
    if metric == "loss":
        return "min"
    if direction is None:
        raise BadInputError(
            f"{callback_text} monitors 'val_{metric}', but it is unknown whether higher values are better",
            hint="pass mode='max' or mode='min' to the callback",
        )
    return "max" if direction == "up" else "min"


def declare_callbacks(monitors: Sequence[Any], optimizer: Any) -> tuple[CallbackSpec, ...]:
    """The declarations of monitor callbacks for the master. Call it after :func:`check_monitors`.

    Args:
        monitors: Keras' callbacks.
        optimizer: the job's optimizer with its initial rate.

    Raises:
        BadInputError: a callback is a subclass, whose code the master cannot run; or it sets the rate of an optimizer
            that has a schedule.
    """
    return tuple(_declare_callback(callback, optimizer) for callback in monitors)


def _declare_callback(callback: Any, optimizer: Any) -> CallbackSpec:
    kind = type(callback)
    # The exact class: a subclass may decide differently, and the master cannot run its code.
    of_keras = (keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau, keras.callbacks.ModelCheckpoint)
    if kind not in of_keras:
        base = next(each.__name__ for each in of_keras if isinstance(callback, each))
        raise BadInputError(
            f"the callback {kind.__name__} (a keras.callbacks.{base}) cannot be used: the master decides for all "
            "workers and does not run the code of a subclass",
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
        if isinstance(optimizer, keras.optimizers.MultiOptimizer):
            raise BadInputError(
                "the callback ReduceLROnPlateau cannot be used: a MultiOptimizer has no learning rate of its own",
                hint="use one optimizer for all variables, or schedules in its optimizers",
            )
        refuse_scheduled_rate([callback], optimizer)
        return ReduceLROnPlateau(
            *shared_arguments,
            factor=float(callback.factor),
            patience=int(callback.patience),
            cooldown=int(callback.cooldown),
            min_lr=float(callback.min_lr),
            rate=float(optimizer.learning_rate),
        )
    if names_evaluation(callback):
        path, weights_only = callback.filepath, bool(callback.save_weights_only)
        return BestCheckpoint("loss", "min", filepath=path, weights_only=weights_only, saves_every=True)
    if callback.save_freq != "epoch":
        raise BadInputError(
            f"save_freq={callback.save_freq!r} of the callback ModelCheckpoint cannot be used with save_best_only: "
            "only an evaluation shows which model is the best",
            hint="remove save_freq",
        )
    threshold = None if callback.best is None else float(callback.best)
    return BestCheckpoint(
        *shared_arguments,
        threshold=threshold,
        filepath=callback.filepath,
        weights_only=bool(callback.save_weights_only),
    )


def refuse_scheduled_rate(monitors: Iterable[Any], optimizer: Any) -> None:
    """Refuse ``ReduceLROnPlateau`` with a schedule: Keras would raise an error when it lowers the rate.

    A subclass that decides with code of its own may do something else than set the rate.

    Raises:
        BadInputError: a schedule determines the optimizer's rate.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    by_keras = keras.callbacks.ReduceLROnPlateau.on_epoch_end
    if isinstance(getattr(optimizer, "_learning_rate", None), keras.optimizers.schedules.LearningRateSchedule) and any(
        getattr(type(each), "on_epoch_end", None) is by_keras for each in monitors
    ):
        raise BadInputError(
            "the callback ReduceLROnPlateau cannot be used: a schedule determines the learning rate",
            hint="pass a number as learning_rate to the optimizer",
        )


def refuse_conflicting_rates(other_callbacks: Sequence[Any], declared_callbacks: Sequence[CallbackSpec]) -> None:
    """Refuse ``ReduceLROnPlateau`` together with ``LearningRateScheduler``.

    The master would lower the rate, and the worker's scheduler would set another rate at the next epoch.

    Raises:
        BadInputError: the job has both callbacks.
    """
    schedulers = [each for each in other_callbacks if isinstance(each, keras.callbacks.LearningRateScheduler)]
    if schedulers and any(isinstance(callback, ReduceLROnPlateau) for callback in declared_callbacks):
        raise BadInputError(
            "the callbacks ReduceLROnPlateau and LearningRateScheduler both set the learning rate: the first for the "
            "whole job, the second in each worker",
            hint="remove one of them, or use strategy: {name: Local}",
        )


# --------------------------------------------------------------------------------------------------
# Keras callbacks that cannot work in a job. They are refused by name, and the hint names a
# replacement.


_NO_EPOCH_EVALUATION = "an epoch does not end with an evaluation"
_INITIAL_WEIGHTS = "a worker's model keeps its initial weights; the trained ones are on the parameter servers"
_CHECKPOINT_REMEDY = (
    "use checkpoint.every_steps and checkpoint.keep, or ModelCheckpoint(save_best_only=True); the export writes the "
    "trained model as a .keras file"
)
_INSPECT_REMEDY = "remove it; `edl checkpoint inspect` shows statistics of a checkpoint's weights"

_RefusalTable = Mapping[str, tuple[str, str]]
"""By class, or class and argument: the reason and the hint."""

_REFUSED_EVERYWHERE: _RefusalTable = {
    "BackupAndRestore": (
        "a job resumes from EDL's checkpoints",
        "remove it; checkpoint.every_steps sets how often they are written, and `edl run --resume RUN` continues from "
        "the newest one",
    ),
    "OrbaxCheckpoint.save_best_only": (_NO_EPOCH_EVALUATION, "use ModelCheckpoint(save_best_only=True)"),
    "SwapEMAWeights.swap_on_epoch": ("the averaged weights would be kept and exported", "remove swap_on_epoch"),
    "TerminateOnNaN": (
        "callbacks do not see steps whose loss is not finite",
        "use train.on_nan: stop, which is the default",
    ),
}
_REFUSED_WITH_PS: _RefusalTable = {
    "ModelCheckpoint": (_INITIAL_WEIGHTS, _CHECKPOINT_REMEDY),
    "OrbaxCheckpoint": (_INITIAL_WEIGHTS, _CHECKPOINT_REMEDY),
    "SwapEMAWeights": (_INITIAL_WEIGHTS, "remove it, and average the weights of the newest checkpoints"),
    "TensorBoard.embeddings_freq": (_INITIAL_WEIGHTS, _INSPECT_REMEDY),
    "TensorBoard.histogram_freq": (_INITIAL_WEIGHTS, _INSPECT_REMEDY),
}
"""Further refusals in jobs with parameter servers."""


def refuse_unused_rates(callbacks: Iterable[Any]) -> None:
    """Refuse callbacks that set the rate of ``model.optimizer``, with which the model's ``train_step`` makes no update.

    Raises:
        BadInputError: names the first one.
    """
    kinds = keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau
    for name in (type(each).__name__ for each in callbacks if isinstance(each, kinds)):
        raise BadInputError(
            f"{name} sets the learning rate of the optimizer of compile(), but train_step() makes no update with it",
            hint="use it as self.optimizer, or pass a schedule of keras.optimizers.schedules to the optimizers of the "
            "model",
        )


def refuse_unsupported_callbacks(callbacks: Iterable[Any], *, trains_locally: bool) -> None:
    """Refuse callbacks that cannot work in this job; a subclass counts as its base class.

    Args:
        callbacks: callbacks of Keras and of the user.
        trains_locally: whether this process trains the model itself.

    Raises:
        BadInputError: one of the callbacks cannot work; the error has the reason and a replacement.
    """
    refusals = _REFUSED_EVERYWHERE if trains_locally else {**_REFUSED_WITH_PS, **_REFUSED_EVERYWHERE}
    for callback in callbacks:
        for what, (reason, instead) in refusals.items():
            base, _, argument = what.partition(".")
            # Older versions of Keras lack some of these classes.
            if not isinstance(callback, getattr(keras.callbacks, base, ())):
                continue
            value = getattr(callback, argument) if argument else True
            if value:
                callback_text = f"{argument}={value!r} of the callback" if argument else "the callback"
                raise BadInputError(
                    f"{callback_text} {_callback_name(callback, base)} cannot be used: {reason}", hint=instead
                )


def _callback_name(callback: Any, base: str) -> str:
    kind = type(callback).__name__
    return kind if kind == base else f"{kind} (a keras.callbacks.{base})"
