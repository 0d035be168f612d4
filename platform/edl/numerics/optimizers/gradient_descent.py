"""Steps along the gradient, along a running mean of it, or along its signs: SGD, Momentum and Lion."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers.adam import one_minus_float32
from edl.numerics.optimizers.update_rule import Floats, ParameterUpdate, ScratchArrays, UpdateRule


def sgd(optimizer: OptimizerSpec) -> UpdateRule:
    """``w -= lr * g``."""
    return _sgd


def momentum(optimizer: OptimizerSpec) -> UpdateRule:
    """``m = momentum * m - lr * g``, then ``w += m``; with ``nesterov`` ``w += momentum * m - lr * g``."""
    return partial(_momentum, optimizer.number("momentum"), optimizer.get_flag("nesterov"))


def lion(optimizer: OptimizerSpec) -> UpdateRule:
    """``w -= lr * sign(beta_1 * m + (1 - beta_1) * g)``, then ``m = beta_2 * m + (1 - beta_2) * g``."""
    return partial(_lion, optimizer.number("beta_1"), optimizer.number("beta_2"))


def _sgd(values: Floats, slots: Sequence[Floats], update: ParameterUpdate, scratch: ScratchArrays) -> None:
    np.multiply(update.gradient, update.learning_rate, out=scratch.first)
    np.subtract(values, scratch.first, out=values)


def _momentum(
    factor: float,
    nesterov: bool,
    values: Floats,
    slots: Sequence[Floats],
    update: ParameterUpdate,
    scratch: ScratchArrays,
) -> None:
    (velocity,) = slots
    step = scratch.first
    np.multiply(update.gradient, update.learning_rate, out=step)
    np.multiply(velocity, factor, out=velocity)
    np.subtract(velocity, step, out=velocity)
    if not nesterov:
        np.add(values, velocity, out=values)
        return
    np.multiply(velocity, factor, out=scratch.second)
    np.subtract(scratch.second, step, out=step)
    np.add(values, step, out=values)


def _lion(
    beta_1: float,
    beta_2: float,
    values: Floats,
    slots: Sequence[Floats],
    update: ParameterUpdate,
    scratch: ScratchArrays,
) -> None:
    (mean,) = slots
    step, share = scratch.first, scratch.second
    np.multiply(mean, beta_1, out=step)
    np.multiply(update.gradient, one_minus_float32(beta_1), out=share)
    np.add(step, share, out=step)
    np.sign(step, out=step)
    np.multiply(step, update.learning_rate, out=step)
    np.subtract(values, step, out=values)
    np.multiply(mean, beta_2, out=mean)
    np.multiply(update.gradient, one_minus_float32(beta_2), out=share)
    np.add(mean, share, out=mean)
