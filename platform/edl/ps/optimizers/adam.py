"""Steps along the first moment, divided by the root of the second: Adam with AMSGrad.

AdamW is Adam with weight decay. Bias corrections count the pushes of the whole PS, also for a row that is touched for
the first time; they are computed in float32, as Keras does: 1 - 0.999 differs by 1e-5 between float32 and float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from edl.ps.arrays import Floats
from edl.ps.optimizers.update import Rule, Scratch, Update
from edl.spec.optimizer import OptimizerSpec


def adam(optimizer: OptimizerSpec) -> Rule:
    """Moments ``m`` and ``v``; then ``w -= alpha * m / (sqrt(v) + epsilon)``.

    ``alpha`` is the rate with both bias corrections. Under ``amsgrad`` the root is of the largest ``v`` so far.
    """
    return partial(_adam, optimizer.number("beta_1"), optimizer.number("beta_2"), optimizer.number("epsilon"))


def move_mean(mean: Floats, sample: Floats, weight: float, scratch: Floats) -> None:
    """``mean += (sample - mean) * weight``, in place; ``scratch`` may be ``sample``."""
    np.subtract(sample, mean, out=scratch)
    np.multiply(scratch, weight, out=scratch)
    np.add(mean, scratch, out=mean)


def move_moments(m: Floats, v: Floats, gradient: Floats, weights: tuple[float, float], scratch: Floats) -> None:
    """Both moments, in place; ``weights`` are 1 - beta_1 and 1 - beta_2."""
    move_mean(m, gradient, weights[0], scratch)
    np.multiply(gradient, gradient, out=scratch)
    move_mean(v, scratch, weights[1], scratch)


def correction(beta: float, step: int) -> np.float32:
    """What the mean of ``step`` samples that began at zero is to be divided by: ``1 - beta ** step``."""
    return np.float32(1) - np.float32(np.power(np.float32(beta), np.float32(step)))


def _adam(
    beta_1: float,
    beta_2: float,
    epsilon: float,
    values: Floats,
    slots: Sequence[Floats],
    update: Update,
    scratch: Scratch,
) -> None:
    m, v, *largest = slots
    change, root = scratch.first, scratch.second
    move_moments(m, v, update.gradient, (1 - beta_1, 1 - beta_2), change)
    if largest:
        np.maximum(largest[0], v, out=largest[0])
    np.sqrt(largest[0] if largest else v, out=root)
    np.add(root, epsilon, out=root)
    rate = np.float32(update.learning_rate)
    alpha = rate * np.sqrt(correction(beta_2, update.step)) / correction(beta_1, update.step)
    np.multiply(m, alpha, out=change)
    np.divide(change, root, out=change)
    np.subtract(values, change, out=values)
