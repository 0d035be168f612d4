"""Steps along the gradient, or along a running mean of it: SGD and Momentum."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from edl.ps.arrays import Floats
from edl.ps.optimizers.update import Rule, Scratch, Update
from edl.spec.optimizer import OptimizerSpec


def sgd(optimizer: OptimizerSpec) -> Rule:
    """``w -= lr * g``."""
    return _sgd


def momentum(optimizer: OptimizerSpec) -> Rule:
    """``m = momentum * m - lr * g``, then ``w += m``; with ``nesterov`` ``w += momentum * m - lr * g``."""
    return partial(_momentum, optimizer.number("momentum"), optimizer.flag("nesterov"))


def _sgd(values: Floats, slots: Sequence[Floats], update: Update, scratch: Scratch) -> None:
    np.multiply(update.gradient, update.learning_rate, out=scratch.first)
    np.subtract(values, scratch.first, out=values)


def _momentum(
    factor: float, nesterov: bool, values: Floats, slots: Sequence[Floats], update: Update, scratch: Scratch
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
