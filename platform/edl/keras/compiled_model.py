"""A model that the user's function has compiled: its loss, optimizer and metrics.

Then the module needs no ``loss``, ``optimizer`` and ``eval_metrics_fn``: the arguments of ``compile()`` take their
place. They are checked with one model that is built for this purpose, because the contract wants them before a model.
Every other model keeps its own ones, which may refer to its layers. EDL's steps call the model and none of Keras'
training methods, so every model is made as if it were not compiled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from edl.api.errors import BadInputError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompileArguments:
    """What the user passed to ``compile()``; ``optimizer`` as Keras wraps it for mixed precision."""

    optimizer: Any
    loss: Any
    loss_weights: Any
    metrics: Any
    weighted_metrics: Any

    def make_metrics(self) -> Any:
        """New metrics as ``eval_metrics_fn`` returns them: several are made for each evaluation."""
        return _renew(self.metrics) if self.metrics is not None else {}

    @property
    def weighted_metrics_function(self) -> Callable[[], Any] | None:
        """What ``weighted_metrics_fn`` is in a module."""
        return None if self.weighted_metrics is None else lambda: _renew(self.weighted_metrics)


def _refuse_evaluation(labels: Any, predictions: Any) -> Any:
    raise BadInputError(
        "the model is compiled without a loss, so it cannot be evaluated", hint="pass loss to compile()"
    )


def read_compile_arguments(model: Any, made_by: str, where: str, *, needs_loss: bool = True) -> CompileArguments:
    """The arguments of a compiled model.

    Args:
        model: the value that the user's function returned.
        made_by: that function, as messages name it.
        where: its file.
        needs_loss: whether ``compile()`` must have got a loss.

    Raises:
        BadInputError: an argument is missing, or cannot have its effect; the error names it.
    """
    config: Mapping[str, Any] = model._compile_config.config
    if config["loss"] is None and needs_loss:
        raise BadInputError(
            f"the model that {made_by} returned is compiled without a loss",
            where=where,
            hint="pass loss to compile(), or define loss(labels, predictions) and optimizer() and remove compile(); "
            "a model with a train_step() of its own needs one for evaluations only",
        )
    # Attributes, not the arguments: they may be set after compile().
    if model.run_eagerly:
        raise BadInputError(
            f"the model that {made_by} returned is compiled with run_eagerly=True, but EDL traces its steps",
            where=where,
            hint="remove it; print with tf.print(), or use breakpoint() in eager code",
        )
    for name, usual in (("steps_per_execution", 1), ("jit_compile", False)):
        if (value := getattr(model, name)) != usual:
            _LOG.warning(
                "compile(%s=%r) of %s has no effect: EDL runs its own steps, with the same result",
                name,
                value,
                made_by,
            )
    return _arguments_of(model)


def _arguments_of(model: Any) -> CompileArguments:
    config: Mapping[str, Any] = model._compile_config.config
    return CompileArguments(
        model.optimizer,
        config["loss"] or _refuse_evaluation,
        config["loss_weights"],
        _lists_of_metrics(model, config["metrics"]),
        _lists_of_metrics(model, config["weighted_metrics"]),
    )


def _lists_of_metrics(model: Any, metrics: Any) -> Any:
    """The metrics of ``compile()`` in lists, as ``eval_metrics_fn`` may return them.

    There a dictionary may have metrics by their names. That of ``compile()`` has one metric or several by output, and
    the list of a model with several outputs has one or several for each.
    """
    outputs = getattr(getattr(model, "_functional", model), "output_names", None) or ()
    if isinstance(metrics, Mapping):
        by_output = {name: _as_list(each) for name, each in metrics.items()}
        return [each for one in by_output.values() for each in one] if len(outputs) == 1 else by_output
    if isinstance(metrics, list | tuple) and len(metrics) == len(outputs) > 1:
        return [_as_list(each) for each in metrics]
    return metrics


def _as_list(metrics: Any) -> list[Any]:
    return list(metrics) if isinstance(metrics, list | tuple) else [] if metrics is None else [metrics]


_COMPILE_ATTRIBUTES = ("_compile_config", "_compile_loss", "_compile_metrics", "_loss_tracker")
_KEPT = "_edl_compile_attributes"
_ARGUMENTS = "_edl_compile_arguments"


def remove_compile(model: Any) -> None:
    """Make a model as if it were not compiled; its layers and weights stay, and it keeps its arguments."""
    if not model.compiled:
        return
    vars(model)[_ARGUMENTS] = _arguments_of(model)
    # Not with setattr: Keras would track the metrics as those of a layer.
    vars(model)[_KEPT] = {name: getattr(model, name) for name in _COMPILE_ATTRIBUTES}
    vars(model).update(dict.fromkeys(_COMPILE_ATTRIBUTES), compiled=False, optimizer=None)


def kept_arguments(model: Any) -> CompileArguments | None:
    """The arguments of ``compile()`` of a model of which :func:`remove_compile` made an uncompiled one."""
    arguments: CompileArguments | None = vars(model).get(_ARGUMENTS)
    return arguments


def restore_compile(model: Any) -> None:
    """Undo ``remove_compile``, except for the optimizer, for a ``train_step`` that uses the loss and the metrics."""
    arguments = vars(model).get(_KEPT)
    if arguments is not None:
        vars(model).update(arguments, compiled=True)


def _renew(metrics: Any) -> Any:
    if isinstance(metrics, Mapping):
        return {name: _renew(each) for name, each in metrics.items()}
    if isinstance(metrics, list | tuple):
        return [_renew(each) for each in metrics]
    if not isinstance(metrics, keras.metrics.Metric):
        return metrics
    try:
        return type(metrics).from_config(metrics.get_config())
    except Exception as error:
        raise BadInputError(
            f"the metric '{metrics.name}' ({type(metrics).__name__}) of compile() cannot be made again from its "
            f"get_config(): {error}",
            hint="define get_config() in it, or return it from eval_metrics_fn() and remove compile()",
        ) from error
