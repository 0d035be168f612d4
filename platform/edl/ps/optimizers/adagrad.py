"""Steps divided by the root of what the squared gradients add up to: Adagrad."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from edl.ps.arrays import Floats
from edl.ps.optimizers.update import Rule, Scratch, Update
from edl.spec.optimizer import OptimizerSpec


def adagrad(optimizer: OptimizerSpec) -> Rule:
    """``a += g²``, then ``w -= lr * g / sqrt(a + epsilon)``."""
    return partial(_adagrad, optimizer.number("epsilon"))


def _adagrad(epsilon: float, values: Floats, slots: Sequence[Floats], update: Update, scratch: Scratch) -> None:
    (accumulator,) = slots
    root, step = scratch.first, scratch.second
    np.multiply(update.gradient, update.gradient, out=root)
    np.add(accumulator, root, out=accumulator)
    np.add(accumulator, epsilon, out=root)
    np.sqrt(root, out=root)
    np.multiply(update.gradient, update.learning_rate, out=step)
    np.divide(step, root, out=step)
    np.subtract(values, step, out=values)
