"""Translates a Keras optimizer into the update rule that parameter servers apply.

Unsupported optimizers are refused before the first step.

The PS hold the slot variables and apply the rules of ``edl.numerics.optimizer_spec``. Learning-rate
schedules and clipping stay with the worker: each push carries its learning rate, and the worker
clips gradients before it pushes them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl.api.errors import BadInputError
from edl.keras.group_ftrl import GroupFtrl
from edl.keras.user_code import source_file, user_code
from edl.numerics.optimizer_spec import OPTIMIZER_DEFINITIONS, OptimizerSpec

# --------------------------------------------------------------------------------------------------
# Gradient clipping as in Keras' optimizers. Each worker clips its own gradients before it pushes
# them.


@dataclass(frozen=True, slots=True)
class GradientClipping:
    """How gradients are clipped before they are pushed; at most one limit is set, as in Keras.

    Attributes:
        norm: each variable's gradient is scaled down to this L2 norm.
        value: each element is clipped to [-value, value].
        global_norm: all gradients together are scaled down to this L2 norm.
    """

    norm: float | None = None
    value: float | None = None
    global_norm: float | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> GradientClipping | None:
        """The clipping of an optimizer's configuration. As in Keras, a limit <= 0 does not clip."""
        limits = [config[name] for name in ("clipnorm", "clipvalue", "global_clipnorm")]
        clipping = cls(*(float(limit) if limit and limit > 0 else None for limit in limits))
        return None if clipping == cls() else clipping

    def __call__(self, gradients: Sequence[NDArray[np.float32]]) -> None:
        """Clip in place, as Keras does.

        There is one array per trained variable and one per PS-backed table, with the gradients of
        duplicate rows summed. NaN stays NaN under every limit. An infinite element becomes NaN
        under a norm, and the limit under ``value``.
        """
        if self.norm is not None:
            for gradient in gradients:
                _scale_down(gradient, _l2_norm(gradient), self.norm)
        elif self.global_norm is not None:
            total = float(np.sqrt(sum(_l2_norm(gradient) ** 2 for gradient in gradients)))
            for gradient in gradients:
                _scale_down(gradient, total, self.global_norm)
        elif self.value is not None:
            for gradient in gradients:
                np.clip(gradient, -self.value, self.value, out=gradient)


def _l2_norm(gradient: NDArray[np.float32]) -> float:
    flat = gradient.ravel()
    return float(np.sqrt(np.dot(flat, flat)))


def _scale_down(gradient: NDArray[np.float32], norm: float, limit: float) -> None:
    if norm > limit:
        # Infinity times zero gives NaN, which the training loop detects and reports.
        with np.errstate(invalid="ignore"):
            gradient *= np.float32(limit / norm)


# --------------------------------------------------------------------------------------------------
# The learning rate of a step, from the user's optimizer at that moment.


_LOG = logging.getLogger(__name__)


class LearningRate:
    """The learning rate at a global step: from a schedule, or from the optimizer's variable or callable.

    It reads the optimizer at every step, because a callback may assign another number or schedule
    at any time.

    Args:
        optimizer: a Keras optimizer.
        zoo: the model zoo. Traceback frames of files below it count as the user's.
    """

    def __init__(self, optimizer: Any, zoo: Path = Path()) -> None:
        self._optimizer = optimizer
        self._zoo = zoo
        self._schedule: Any = None
        self._rate_at_step: Callable[[int], float] = lambda step: 0.0

    def __call__(self, step: int) -> float:
        """The rate at ``step``, counted from 0 as Keras' ``optimizer.iterations``.

        Raises:
            UserCodeError: the user's schedule or function raised.
            BadInputError: the rate is NaN or infinite.
        """
        with user_code(self._zoo, "the learning rate"):
            rate = self._compute_rate(step)
        if not math.isfinite(rate):
            raise BadInputError(
                f"the learning rate of step {step} is {rate}",
                hint="look at the schedule that optimizer() gives, and at callbacks that assign learning_rate",
            )
        return rate

    def _compute_rate(self, step: int) -> float:
        # The public property `learning_rate` hides a schedule: it returns the schedule's value at
        # the optimizer's own `iterations` instead.
        rate_or_schedule = self._optimizer._learning_rate
        if not isinstance(rate_or_schedule, keras.optimizers.schedules.LearningRateSchedule):
            return float(self._optimizer.learning_rate)
        if rate_or_schedule is not self._schedule:
            self._schedule, self._rate_at_step = rate_or_schedule, _trace_schedule(rate_or_schedule)
        return self._rate_at_step(step)


class JobLearningRate:
    """The learning rate that a callback of the job has set, or else the optimizer's own rate.

    Every change is assigned to the optimizer, as a Keras callback would do.

    Args:
        optimizer: the Keras optimizer that the worker's callbacks see.
        own_rate: returns the optimizer's rate at a step.
        decided_rate: returns the rate that was set for all workers; None if none was set.
    """

    def __init__(
        self, optimizer: Any, own_rate: Callable[[int], float], decided_rate: Callable[[], float | None]
    ) -> None:
        self._optimizer = optimizer
        self._own_rate = own_rate
        self._decided_rate = decided_rate
        self._assigned_rate: float | None = None
        self._original_rate: float | None = None

    def __call__(self, step: int) -> float:
        """The rate at ``step``; see :class:`LearningRate`."""
        decided_rate = self._decided_rate()
        if decided_rate != self._assigned_rate:
            if self._original_rate is None:
                self._original_rate = float(self._optimizer.learning_rate)
            self._optimizer.learning_rate = self._original_rate if decided_rate is None else decided_rate
            self._assigned_rate = decided_rate
            _LOG.info("the learning rate is %.6g from step %d on", float(self._optimizer.learning_rate), step)
        return self._own_rate(step)


def _trace_schedule(schedule: Any) -> Callable[[int], float]:
    """Trace a schedule once as a function: an eager schedule costs up to a millisecond per step.

    A schedule that branches with Python's ``if``, or computes with ``math``, cannot be traced.
    """
    function = tf.function(
        lambda step: tf.cast(schedule(step), tf.float32),
        input_signature=[tf.TensorSpec([], tf.int64)],
        autograph=False,
    )
    try:
        function.get_concrete_function()
    except (TypeError, NotImplementedError) as error:
        # TensorFlow and NumPy raise these for a tensor that has no value yet.
        _LOG.info("the learning rate's schedule is called at every step, because it cannot be traced: %s", error)
        return lambda step: float(schedule(tf.constant(step, tf.int64)))
    return lambda step: float(function(tf.constant(step, tf.int64)))


_RULE_BY_CLASS: Mapping[str, str] = {
    "SGD": "momentum",
    "Adagrad": "adagrad",
    "Adam": "adam",
    "AdamW": "adam",
    "RMSprop": "rmsprop",
    "Adadelta": "adadelta",
    "Adamax": "adamax",
    "Nadam": "nadam",
    "Lion": "lion",
    "Ftrl": "ftrl",
    "GroupFtrl": "ftrl",
    "Lamb": "lamb",
}
"""The parameter servers' update rule by optimizer class, of Keras and of EDL (GroupFtrl)."""
_KERAS_CLASSES = tuple(name for name in _RULE_BY_CLASS if name != "GroupFtrl")
_ALTERNATIVES: Mapping[str, str] = {
    "Adafactor": "use Adagrad or Adam: parameter servers hold the slot variables, which need no memory of workers",
    "LossScaleOptimizer": "return its inner optimizer, and use the policy mixed_bfloat16, which needs no loss scaling; "
    "or use strategy AllReduce or Local",
    "MultiOptimizer": "use one optimizer for all variables",
    "Muon": "use AdamW: Muon orthogonalizes whole matrices",
    "ScheduleFreeAdamW": "use AdamW with a learning-rate schedule",
    "use_ema": "remove it, and average the weights of the newest checkpoints",
    "gradient_accumulation_steps": "remove it, and raise train.minibatch_size",
    "loss_scale_factor": "remove it, and use the policy mixed_bfloat16, which needs no loss scaling",
}
"""Suggestions in place of an unsupported class or argument."""
# The worker computes the rate and clips, so the PS need none of these.
_WORKER_ARGUMENTS = frozenset({"name", "learning_rate", "clipnorm", "clipvalue", "global_clipnorm"})
_IGNORED_ARGUMENTS = frozenset({"ema_momentum", "ema_overwrite_frequency"})
"""Have no effect unless ``use_ema`` is set, and ``use_ema`` is refused."""


@dataclass(frozen=True)
class TranslatedOptimizer:
    """An optimizer, split between PS and worker.

    Attributes:
        spec: the update rule that the PS apply.
        learning_rate: the rate by global step, counted from 0 as Keras' ``optimizer.iterations``.
        clip: clips gradients in place; None when the optimizer does not clip. The caller is
            ``KerasNetwork.train``.
    """

    spec: OptimizerSpec
    learning_rate: Callable[[int], float]
    clip: GradientClipping | None

    def zero_gradient_update(self, name: str) -> str | None:
        """The hyperparameter that changes a variable or table even if its gradient is zero.

        None if no hyperparameter does.
        """
        # FTRL computes a value anew from its accumulators at each update, so it changes without
        # any hyperparameter.
        if self.spec.name == "ftrl":
            return "Ftrl"
        return "weight_decay" if self.spec.weight_decay_for(name) else None


def translate_optimizer(
    optimizer: Any, keras_names: Mapping[str, str] = MappingProxyType({}), zoo: Path = Path()
) -> TranslatedOptimizer:
    """Split a Keras optimizer between PS and worker.

    Args:
        optimizer: the object that the user's ``optimizer()`` returned.
        keras_names: Keras' name by EDL's name, for each trained variable and PS-backed table
            (``keras_variable_name``). ``exclude_from_weight_decay`` matches Keras' names.
        zoo: the model zoo, which holds the code of the user's own schedules.

    Raises:
        BadInputError: the PS cannot reproduce the class or an argument. The message names it.
    """
    kind = _supported_class_name(optimizer)
    config = _optimizer_config(optimizer, zoo)
    _refuse_arguments(kind, config)
    spec = _make_spec(kind, config)
    if spec.get_number("weight_decay"):
        spec = OptimizerSpec(spec.name, spec.hyperparameters, _undecayed_names(optimizer, keras_names))
    return TranslatedOptimizer(spec, LearningRate(optimizer, zoo), GradientClipping.from_config(config))


def keras_variable_name(variable: Any) -> str:
    """The name that ``var_names`` is matched against: TensorFlow's, such as ``head/bias:0``."""
    return str(variable.value.name)


def refuse_partitioned_lamb(optimizer: OptimizerSpec, tables: Sequence[str], ps_count: int) -> None:
    """Refuse LAMB for PS-backed tables on several PS.

    LAMB needs the norm of the whole variable, and no PS has all rows of a table.

    Raises:
        BadInputError: the optimizer is LAMB and several PS share a table.
    """
    if optimizer.name == "lamb" and tables and ps_count > 1:
        raise BadInputError(
            f"the optimizer Lamb cannot be reproduced for the table '{tables[0]}': it needs the norm of the whole "
            f"table, and {ps_count} parameter servers share its rows",
            hint="use Adam or AdamW, or ps: {count: 1}, or raise ps.embedding_threshold until the table is dense",
        )


def _supported_class_name(optimizer: Any) -> str:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise BadInputError(
            f"optimizer() returned {type(optimizer).__name__}, expected a Keras optimizer", hint=_supported_hint()
        )
    kind = type(optimizer).__name__
    # The class itself, not a subclass of the same name: the PS would not run its changed update.
    if kind not in _RULE_BY_CLASS or type(optimizer) is not getattr(keras.optimizers, kind, GroupFtrl):
        raise BadInputError(
            f"the optimizer class {kind} cannot be reproduced by the parameter servers",
            hint=_ALTERNATIVES.get(kind) or _base_class_hint(type(optimizer)) or _supported_hint(),
        )
    return kind


def _optimizer_config(optimizer: Any, zoo: Path) -> Mapping[str, Any]:
    """The optimizer's configuration, including its schedule."""
    # The base class's get_config() raises NotImplementedError, and the optimizer's calls it. The
    # error here names the class that the user has to complete.
    schedule, base = optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule
    if isinstance(schedule, base) and type(schedule).get_config is base.get_config:
        kind = type(schedule).__name__
        raise BadInputError(
            f"the learning-rate schedule {kind} has no get_config(), which that of the optimizer calls",
            where=source_file(type(schedule)),
            hint=f"add get_config(self) to {kind}; it returns the arguments of its __init__ by name, or {{}}",
        )
    with user_code(zoo, "get_config() of the optimizer"):
        config: Mapping[str, Any] = optimizer.get_config()
    return config


def _refuse_arguments(kind: str, config: Mapping[str, Any]) -> None:
    known = {*OPTIMIZER_DEFINITIONS[_RULE_BY_CLASS[kind]].parameters, *_WORKER_ARGUMENTS, *_IGNORED_ARGUMENTS}
    for name, value in config.items():
        if name not in known and value not in (None, False):
            raise BadInputError(
                f"{name}={value!r} of the optimizer {kind} cannot be reproduced by the parameter servers",
                hint=_ALTERNATIVES.get(name, f"remove {name}"),
            )


def _make_spec(kind: str, config: Mapping[str, Any]) -> OptimizerSpec:
    values = {name: config[name] for name in OPTIMIZER_DEFINITIONS[_RULE_BY_CLASS[kind]].parameters if name in config}
    values["weight_decay"] = values["weight_decay"] or 0.0
    if kind == "SGD" and not values["momentum"]:
        return OptimizerSpec("sgd", {"weight_decay": values["weight_decay"]})
    return OptimizerSpec(_RULE_BY_CLASS[kind], values)


def _undecayed_names(optimizer: Any, names: Mapping[str, str]) -> tuple[str, ...]:
    """The variables that ``exclude_from_weight_decay`` excludes, by EDL's names."""
    # Keras keeps var_list as id() of variable objects, which say nothing about EDL's variables.
    if getattr(optimizer, "_exclude_from_weight_decay", None):
        raise BadInputError(
            "exclude_from_weight_decay(var_list=...) cannot be reproduced: optimizer() creates the optimizer without "
            "the model",
            hint="give the variables by name: exclude_from_weight_decay(var_names=[...])",
        )
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    return tuple(name for name, in_keras in names.items() if pattern and pattern.search(in_keras))


def _base_class_hint(kind: type) -> str | None:
    """Suggest the base class of a subclass if the PS support it.

    What the subclass changes cannot be known.
    """
    base = next((base.__name__ for base in kind.__mro__[1:] if base.__name__ in _KERAS_CLASSES), None)
    return (
        f"use keras.optimizers.{base} itself: the parameter servers do not run the update of a subclass"
        if base
        else None
    )


def _supported_hint() -> str:
    return f"use keras.optimizers.{', '.join(_KERAS_CLASSES)}"
