"""A Keras optimizer as what parameter servers apply; what they cannot apply is refused by name before the first step.

The PS hold slot variables and apply SGD, Momentum, Adagrad and Adam. Learning-rate schedules and clipping stay with
the worker: the rate travels with each push, gradients arrive clipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl.core.errors import BadInputError
from edl.spec.optimizer import OptimizerSpec

_HYPERPARAMETERS: Mapping[str, tuple[str, ...]] = {
    "SGD": ("momentum", "nesterov"),
    "Adagrad": ("initial_accumulator_value", "epsilon"),
    "Adam": ("beta_1", "beta_2", "epsilon"),
}
_WITH_THE_WORKER = frozenset({"name", "learning_rate", "clipnorm", "clipvalue", "global_clipnorm"})
_HARMLESS = frozenset({"ema_momentum", "ema_overwrite_frequency"})
"""Without effect unless ``use_ema``, which is refused."""


@dataclass(frozen=True, slots=True)
class Clipping:
    """How gradients are clipped before they are pushed; at most one of the three is set, as in Keras.

    Attributes:
        norm: each variable's gradient is scaled down to this L2 norm.
        value: each element is cut to [-value, value].
        global_norm: all gradients together are scaled down to this L2 norm.
    """

    norm: float | None = None
    value: float | None = None
    global_norm: float | None = None

    def __call__(self, gradients: Sequence[NDArray[np.float32]]) -> None:
        """Clip in place: one array for each trained variable and each served table (rows with duplicates summed)."""
        if self.norm is not None:
            for gradient in gradients:
                _scale_down(gradient, _norm(gradient), self.norm)
        elif self.global_norm is not None:
            total = float(np.sqrt(sum(_norm(gradient) ** 2 for gradient in gradients)))
            for gradient in gradients:
                _scale_down(gradient, total, self.global_norm)
        elif self.value is not None:
            for gradient in gradients:
                np.clip(gradient, -self.value, self.value, out=gradient)


@dataclass(frozen=True)
class Reproduced:
    """An optimizer, divided between PS and worker.

    Attributes:
        spec: what the PS apply.
        learning_rate: of a global step, counted from 0 as Keras' ``optimizer.iterations``.
        clip: applied to gradients in place; None when the optimizer does not clip. ``Network.train`` does it.
    """

    spec: OptimizerSpec
    learning_rate: Callable[[int], float]
    clip: Clipping | None


def reproduce(optimizer: Any) -> Reproduced:
    """Divide a Keras optimizer between PS and worker.

    Raises:
        BadInputError: of another class, or with an argument that the PS cannot reproduce; both are named.
    """
    import keras

    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise BadInputError(
            f"optimizer() returned {type(optimizer).__name__}, expected a Keras optimizer", hint=_supported()
        )
    kind = type(optimizer).__name__
    if kind not in _HYPERPARAMETERS or type(optimizer) is not getattr(keras.optimizers, kind):
        raise BadInputError(
            f"the optimizer class {kind} cannot be reproduced by the parameter servers", hint=_supported()
        )
    config = optimizer.get_config()
    _refuse_arguments(kind, config)
    clip = Clipping(config["clipnorm"], config["clipvalue"], config["global_clipnorm"])
    return Reproduced(_spec(kind, config), learning_rate(optimizer), None if clip == Clipping() else clip)


def learning_rate(optimizer: Any) -> Callable[[int], float]:
    """The rate at a global step: of a schedule, or the optimizer's variable or callable as it is now."""
    import keras
    import tensorflow as tf

    given = optimizer._learning_rate
    if isinstance(given, keras.optimizers.schedules.LearningRateSchedule):
        schedule = tf.function(
            lambda step: tf.cast(given(step), tf.float32),
            input_signature=[tf.TensorSpec([], tf.int64)],
            autograph=False,
        )
        return lambda step: float(schedule(tf.constant(step, tf.int64)))
    # A callback may assign the variable, hence read at each step
    return lambda step: float(optimizer.learning_rate)


def _refuse_arguments(kind: str, config: Mapping[str, Any]) -> None:
    known = {*_HYPERPARAMETERS[kind], *_WITH_THE_WORKER, *_HARMLESS}
    for name, value in config.items():
        if name not in known and value not in (None, False):
            raise BadInputError(
                f"{name}={value!r} of the optimizer {kind} cannot be reproduced by the parameter servers",
                hint=f"leave {name} out",
            )


def _spec(kind: str, config: Mapping[str, Any]) -> OptimizerSpec:
    values = {name: config[name] for name in _HYPERPARAMETERS[kind]}
    if kind == "SGD":
        return OptimizerSpec("momentum", values) if values["momentum"] else OptimizerSpec("sgd")
    return OptimizerSpec(kind.lower(), values)


def _supported() -> str:
    return f"use keras.optimizers.{', '.join(_HYPERPARAMETERS)}"


def _norm(gradient: NDArray[np.float32]) -> float:
    flat = gradient.ravel()
    return float(np.sqrt(np.dot(flat, flat)))


def _scale_down(gradient: NDArray[np.float32], norm: float, limit: float) -> None:
    if norm > limit:
        gradient *= np.float32(limit / norm)
