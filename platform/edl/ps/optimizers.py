"""The optimizers, in place on float32 arrays, with the formulas of Keras 3.

Every rule is elementwise, so that one function serves the dense slab and the gathered rows of a table alike. Rows that
a push does not touch are left alone entirely (*lazy*): their momentum does not decay and they do not move. For SGD
and Adagrad that equals the dense update with a zero gradient; for Momentum and Adam it does not, and it is what sparse
training expects. Adam's bias correction counts the pushes of the whole PS, also for a row touched for the first time.

The hot path allocates nothing: intermediate values go to the two arrays of a Scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from edl.ps.arrays import Floats
from edl.spec.optimizer import OptimizerSpec


@dataclass(frozen=True, slots=True)
class Scratch:
    """Two arrays for intermediate values, shaped like the values that are updated."""

    first: Floats
    second: Floats

    @classmethod
    def like(cls, values: Floats) -> Scratch:
        """New arrays in the shape of ``values``."""
        return cls(np.empty_like(values), np.empty_like(values))


@dataclass(frozen=True, slots=True)
class Update:
    """One gradient and what it is applied with.

    Attributes:
        gradient: in the shape of the values, not changed.
        learning_rate: of this step.
        step: how many updates there are with this one, from 1 (Adam's bias correction).
    """

    gradient: Floats
    learning_rate: float
    step: int


Rule = Callable[[Floats, Sequence[Floats], Update, Scratch], None]
"""Updates values and their slot variables (in the order of ``OptimizerSpec.slots``) in place."""


def rule(optimizer: OptimizerSpec) -> Rule:
    """The function that applies updates of this optimizer."""
    match optimizer.name:
        case "sgd":
            return _sgd
        case "momentum":
            return partial(_momentum, optimizer.number("momentum"), optimizer.flag("nesterov"))
        case "adagrad":
            return partial(_adagrad, optimizer.number("epsilon"))
        case _:
            return partial(_adam, optimizer.number("beta_1"), optimizer.number("beta_2"), optimizer.number("epsilon"))


def _sgd(values: Floats, slots: Sequence[Floats], update: Update, scratch: Scratch) -> None:
    np.multiply(update.gradient, update.learning_rate, out=scratch.first)
    np.subtract(values, scratch.first, out=values)


def _momentum(
    momentum: float, nesterov: bool, values: Floats, slots: Sequence[Floats], update: Update, scratch: Scratch
) -> None:
    (velocity,) = slots
    step = scratch.first
    np.multiply(update.gradient, update.learning_rate, out=step)
    np.multiply(velocity, momentum, out=velocity)
    np.subtract(velocity, step, out=velocity)
    if not nesterov:
        np.add(values, velocity, out=values)
        return
    np.multiply(velocity, momentum, out=scratch.second)
    np.subtract(scratch.second, step, out=step)
    np.add(values, step, out=values)


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


def _adam(
    beta_1: float,
    beta_2: float,
    epsilon: float,
    values: Floats,
    slots: Sequence[Floats],
    update: Update,
    scratch: Scratch,
) -> None:
    m, v = slots
    change, root = scratch.first, scratch.second
    np.subtract(update.gradient, m, out=change)
    np.multiply(change, 1 - beta_1, out=change)
    np.add(m, change, out=m)
    np.multiply(update.gradient, update.gradient, out=change)
    np.subtract(change, v, out=change)
    np.multiply(change, 1 - beta_2, out=change)
    np.add(v, change, out=v)
    np.sqrt(v, out=root)
    np.add(root, epsilon, out=root)
    np.multiply(m, _bias_corrected(update.learning_rate, beta_1, beta_2, update.step), out=change)
    np.divide(change, root, out=change)
    np.subtract(values, change, out=values)


def _bias_corrected(learning_rate: float, beta_1: float, beta_2: float, step: int) -> float:
    """Adam's alpha, in float32 as Keras computes it: 1 - 0.999 differs by 1e-5 between float32 and float64."""
    one, steps = np.float32(1), np.float32(step)
    first, second = np.power(np.float32(beta_1), steps), np.power(np.float32(beta_2), steps)
    return float(np.float32(learning_rate) * np.sqrt(one - second) / (one - first))
