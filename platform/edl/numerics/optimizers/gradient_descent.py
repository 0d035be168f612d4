"""SGD, Momentum, Lion, Adagrad, RMSprop and Adadelta."""

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
    """``m = momentum * m - lr * g``, then ``w += m``.

    With ``nesterov``, ``w += momentum * m - lr * g`` instead.
    """
    return partial(_momentum, optimizer.get_number("momentum"), optimizer.get_flag("nesterov"))


def lion(optimizer: OptimizerSpec) -> UpdateRule:
    """``w -= lr * sign(beta_1 * m + (1 - beta_1) * g)``.

    Then ``m = beta_2 * m + (1 - beta_2) * g``.
    """
    return partial(_lion, optimizer.get_number("beta_1"), optimizer.get_number("beta_2"))


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
    # Lion mixes the gradient into the step with beta_1, and into the stored mean with beta_2. So
    # the mean changes after the step was computed.
    (mean,) = slots
    step, weighted_gradient = scratch.first, scratch.second
    np.multiply(mean, beta_1, out=step)
    np.multiply(update.gradient, one_minus_float32(beta_1), out=weighted_gradient)
    np.add(step, weighted_gradient, out=step)
    np.sign(step, out=step)
    np.multiply(step, update.learning_rate, out=step)
    np.subtract(values, step, out=values)
    np.multiply(mean, beta_2, out=mean)
    np.multiply(update.gradient, one_minus_float32(beta_2), out=weighted_gradient)
    np.add(mean, weighted_gradient, out=mean)


# --------------------------------------------------------------------------------------------------
# Adagrad divides a step by the root of the sum of squared gradients. RMSprop and Adadelta divide it
# by the root of their running mean.


def adagrad(optimizer: OptimizerSpec) -> UpdateRule:
    """``a += g²``, then ``w -= lr * g / sqrt(a + epsilon)``."""
    return partial(_adagrad, optimizer.get_number("epsilon"))


def rmsprop(optimizer: OptimizerSpec) -> UpdateRule:
    """``v = rho * v + (1 - rho) * g²``, then ``w -= lr * g / sqrt(v + epsilon)``.

    ``centered`` subtracts the square of the mean gradient from ``v``. ``momentum`` accumulates the
    steps in a velocity.
    """
    momentum, centered = optimizer.get_number("momentum"), optimizer.get_flag("centered")
    return partial(_rmsprop, optimizer.get_number("rho"), optimizer.get_number("epsilon"), momentum, centered)


def adadelta(optimizer: OptimizerSpec) -> UpdateRule:
    """RMSprop whose rate is the root mean square of the steps so far, multiplied by ``lr``."""
    return partial(_adadelta, optimizer.get_number("rho"), optimizer.get_number("epsilon"))


def _adagrad(
    epsilon: float, values: Floats, slots: Sequence[Floats], update: ParameterUpdate, scratch: ScratchArrays
) -> None:
    (accumulator,) = slots
    root, step = scratch.first, scratch.second
    np.multiply(update.gradient, update.gradient, out=root)
    np.add(accumulator, root, out=accumulator)
    np.add(accumulator, epsilon, out=root)
    np.sqrt(root, out=root)
    np.multiply(update.gradient, update.learning_rate, out=step)
    np.divide(step, root, out=step)
    np.subtract(values, step, out=values)


def _rmsprop(
    rho: float,
    epsilon: float,
    momentum: float,
    centered: bool,
    values: Floats,
    slots: Sequence[Floats],
    update: ParameterUpdate,
    scratch: ScratchArrays,
) -> None:
    # ``others`` holds the momentum and the mean gradient, each only if the optimizer uses it.
    velocity, *others = slots
    root, step = scratch.first, scratch.second
    _update_mean_square(velocity, update.gradient, rho, root)
    if centered:
        _update_mean(others[-1], update.gradient, rho, root)
        np.multiply(others[-1], others[-1], out=root)
        np.subtract(velocity, root, out=root)
        np.maximum(root, 0, out=root)  # a variance; rounding must not make it negative
        np.add(root, epsilon, out=root)
    else:
        np.add(velocity, epsilon, out=root)
    np.sqrt(root, out=root)
    np.multiply(update.gradient, update.learning_rate, out=step)
    np.divide(step, root, out=step)
    if momentum:
        np.multiply(others[0], momentum, out=others[0])
        np.add(others[0], step, out=others[0])
        step = others[0]
    np.subtract(values, step, out=values)


def _adadelta(
    rho: float, epsilon: float, values: Floats, slots: Sequence[Floats], update: ParameterUpdate, scratch: ScratchArrays
) -> None:
    squares, steps = slots
    root, step = scratch.first, scratch.second
    _update_mean_square(squares, update.gradient, rho, root)
    np.add(steps, epsilon, out=step)
    np.sqrt(step, out=step)
    np.multiply(step, update.gradient, out=step)
    np.add(squares, epsilon, out=root)
    np.sqrt(root, out=root)
    np.divide(step, root, out=step)
    _update_mean_square(steps, step, rho, root)
    np.multiply(step, update.learning_rate, out=step)
    np.subtract(values, step, out=values)


def _update_mean(mean: Floats, sample: Floats, rho: float, scratch: Floats) -> None:
    """``mean = rho * mean + (1 - rho) * sample``."""
    np.multiply(sample, 1 - rho, out=scratch)
    np.multiply(mean, rho, out=mean)
    np.add(mean, scratch, out=mean)


def _update_mean_square(mean: Floats, sample: Floats, rho: float, scratch: Floats) -> None:
    """``mean = rho * mean + (1 - rho) * sample²``."""
    np.multiply(sample, sample, out=scratch)
    _update_mean(mean, scratch, rho, scratch)
