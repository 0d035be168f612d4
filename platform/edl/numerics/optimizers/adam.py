"""Adam with AMSGrad, Adamax and Nadam.

They step along the first moment, divided by the root of the second or, in Adamax, by the largest
gradient.
AdamW is Adam with weight decay. Bias corrections count the pushes of the whole PS, also for a row
that is updated for the first time. They are computed in float32, as in Keras: 1 - 0.999 differs by
1e-5 between float32 and float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers.update_rule import Floats, ParameterUpdate, ScratchArrays, UpdateRule


def adam(optimizer: OptimizerSpec) -> UpdateRule:
    """Moments ``m`` and ``v``; then ``w -= alpha * m / (sqrt(v) + epsilon)``.

    ``alpha`` is the rate with both bias corrections. With ``amsgrad``, the largest ``v`` so far
    replaces ``v``.
    """
    return partial(
        _adam, optimizer.get_number("beta_1"), optimizer.get_number("beta_2"), optimizer.get_number("epsilon")
    )


def adamax(optimizer: OptimizerSpec) -> UpdateRule:
    """Adam with the largest gradient so far in place of the root of the second moment.

    The largest gradient decays by ``beta_2`` at each step.
    """
    return partial(
        _adamax, optimizer.get_number("beta_1"), optimizer.get_number("beta_2"), optimizer.get_number("epsilon")
    )


def nadam(optimizer: OptimizerSpec) -> UpdateRule:
    """Adam with Nesterov's momentum.

    Its factor warms up: ``u(t) = beta_1 * (1 - 0.5 * 0.96 ** t)``.
    """
    return partial(
        _nadam, optimizer.get_number("beta_1"), optimizer.get_number("beta_2"), optimizer.get_number("epsilon")
    )


def update_mean(mean: Floats, sample: Floats, weight: float, scratch: Floats) -> None:
    """``mean += (sample - mean) * weight``, in place; ``scratch`` may be ``sample``."""
    np.subtract(sample, mean, out=scratch)
    np.multiply(scratch, weight, out=scratch)
    np.add(mean, scratch, out=mean)


def update_moments(m: Floats, v: Floats, gradient: Floats, weights: tuple[float, float], scratch: Floats) -> None:
    """Update both moments in place; ``weights`` are 1 - beta_1 and 1 - beta_2."""
    update_mean(m, gradient, weights[0], scratch)
    np.multiply(gradient, gradient, out=scratch)
    update_mean(v, scratch, weights[1], scratch)


def bias_correction(beta: float, step: int) -> np.float32:
    """The divisor of the mean of ``step`` samples that started at zero: ``1 - beta ** step``."""
    return np.float32(1) - np.float32(np.power(np.float32(beta), np.float32(step)))


def corrected_rate(beta_1: float, beta_2: float, rate: float, step: int) -> np.float32:
    """The learning rate with both bias corrections."""
    return np.float32(np.float32(rate) * np.sqrt(bias_correction(beta_2, step)) / bias_correction(beta_1, step))


def first_moment_rate(beta_1: float, rate: float, step: int) -> np.float32:
    """The learning rate with the first moment's bias correction."""
    return np.float32(np.float32(rate) / bias_correction(beta_1, step))


def one_minus_float32(beta: float) -> float:
    """1 - beta in float32, as Keras computes it in Nadam and Lion. Adam in Keras uses float64."""
    return float(np.float32(1) - np.float32(beta))


def nadam_factors(beta_1: float, step: int) -> tuple[float, float]:
    """The factors of the first moment and of the gradient in Nadam's step."""
    now, ahead = _momentum_at_step(beta_1, step), _momentum_at_step(beta_1, step + 1)
    product = momentum_product(beta_1, step)
    return ahead / (1 - product * ahead), (1 - now) / (1 - product)


def _adam(
    beta_1: float,
    beta_2: float,
    epsilon: float,
    values: Floats,
    slots: Sequence[Floats],
    update: ParameterUpdate,
    scratch: ScratchArrays,
) -> None:
    # The third slot exists with amsgrad only.
    m, v, *largest = slots
    change, root = scratch.first, scratch.second
    update_moments(m, v, update.gradient, (1 - beta_1, 1 - beta_2), change)
    if largest:
        np.maximum(largest[0], v, out=largest[0])
    np.sqrt(largest[0] if largest else v, out=root)
    np.add(root, epsilon, out=root)
    np.multiply(m, corrected_rate(beta_1, beta_2, update.learning_rate, update.update_number), out=change)
    np.divide(change, root, out=change)
    np.subtract(values, change, out=values)


def _adamax(
    beta_1: float,
    beta_2: float,
    epsilon: float,
    values: Floats,
    slots: Sequence[Floats],
    update: ParameterUpdate,
    scratch: ScratchArrays,
) -> None:
    m, norm = slots
    change, largest = scratch.first, scratch.second
    update_mean(m, update.gradient, 1 - beta_1, change)
    np.abs(update.gradient, out=largest)
    np.multiply(norm, beta_2, out=norm)
    np.maximum(norm, largest, out=norm)
    np.add(norm, epsilon, out=largest)
    np.multiply(m, first_moment_rate(beta_1, update.learning_rate, update.update_number), out=change)
    np.divide(change, largest, out=change)
    np.subtract(values, change, out=values)


def _nadam(
    beta_1: float,
    beta_2: float,
    epsilon: float,
    values: Floats,
    slots: Sequence[Floats],
    update: ParameterUpdate,
    scratch: ScratchArrays,
) -> None:
    m, v = slots
    change, root = scratch.first, scratch.second
    update_moments(m, v, update.gradient, (one_minus_float32(beta_1), one_minus_float32(beta_2)), change)
    of_moment, of_gradient = nadam_factors(beta_1, update.update_number)
    np.multiply(m, of_moment, out=change)
    np.multiply(update.gradient, of_gradient, out=root)
    np.add(change, root, out=change)
    np.multiply(change, update.learning_rate, out=change)
    np.divide(v, bias_correction(beta_2, update.update_number), out=root)
    np.sqrt(root, out=root)
    np.add(root, epsilon, out=root)
    np.divide(change, root, out=change)
    np.subtract(values, change, out=values)


def _momentum_at_step(beta_1: float, step: int) -> float:
    """Nadam's momentum at a step."""
    return float(beta_1 * (1 - 0.5 * 0.96**step))


_WARMUP_PRODUCTS = np.cumprod(1 - 0.5 * 0.96 ** np.arange(1, 1001))
"""Cached products of the warm-up factors.

After 1000 steps every further factor is 1 to the last bit of a float64.
"""


def momentum_product(beta_1: float, step: int) -> float:
    """The product of Nadam's momentum at all steps up to this one.

    Keras keeps it in a variable. Here it is a function of the step, so a checkpoint needs no slot
    for it.
    """
    return float(beta_1**step * _WARMUP_PRODUCTS[min(step, len(_WARMUP_PRODUCTS)) - 1])
