"""FTRL (follow the regularized leader).

McMahan et al., *Ad Click Prediction: a View from the Trenches*, 2013. L1 regularization makes
single values exactly zero, and the group lasso whole rows of embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers.update_rule import Floats, ParameterUpdate, ScratchArrays, UpdateRule
from edl.numerics.portable_math import power as power_of

SQUARE_ROOT_POWER = 0.5
"""The default power: a square root."""
# Number of dimensions of an array of rows.
_ROW_DIMENSIONS = 2


@dataclass(frozen=True, slots=True)
class FtrlStrengths:
    """The regularization strengths, named as in Keras' Ftrl, and the power of the rate's decay.

    Keras has the power with the opposite sign.
    """

    power: float
    l1: float
    l2: float
    shrinkage: float
    beta: float
    group_lasso: float

    @classmethod
    def from_optimizer(cls, optimizer: OptimizerSpec) -> FtrlStrengths:
        """The strengths from FTRL's hyperparameters."""
        return cls(
            power=-optimizer.get_number("learning_rate_power"),
            l1=optimizer.get_number("l1_regularization_strength"),
            l2=optimizer.get_number("l2_regularization_strength"),
            shrinkage=optimizer.get_number("l2_shrinkage_regularization_strength"),
            beta=optimizer.get_number("beta"),
            group_lasso=optimizer.get_number("group_lasso_regularization_strength"),
        )

    def added_curvature(self, rate: float) -> float:
        """The curvature added to that of the gradients."""
        return 2 * self.l2 + self.beta / rate

    def lasso_limit(self, dim: int) -> np.float32:
        """The norm of ``clip(z) - z`` below which the group lasso makes a row of this width zero."""
        return np.float32(self.group_lasso * np.sqrt(dim))


def ftrl(optimizer: OptimizerSpec) -> UpdateRule:
    """FTRL, where ``a`` is the sum of squared gradients and ``s = (a_new^p - a_old^p) / lr``.

    ``z += g + 2 * shrinkage * w - s * w``, then
    ``w = (clip(z, -l1, l1) - z) / (a_new^p / lr + 2 * l2 + beta / lr)``.
    """
    return partial(_ftrl, FtrlStrengths.from_optimizer(optimizer))


def uses_row_groups(optimizer: OptimizerSpec) -> bool:
    """Whether the rule needs embedding rows as ``[n, dim]``."""
    return optimizer.name == "ftrl" and optimizer.get_number("group_lasso_regularization_strength") > 0


def _ftrl(
    strengths: FtrlStrengths, values: Floats, slots: Sequence[Floats], update: ParameterUpdate, scratch: ScratchArrays
) -> None:
    rate = update.learning_rate
    if np.float32(rate) == 0:
        # Keras divides by zero here; with a rate of 0 nothing moves.
        return
    accumulator, linear = slots
    before, after = scratch.first, scratch.second
    power = _power_function(strengths.power)
    power(accumulator, before)
    np.multiply(update.gradient, update.gradient, out=after)
    np.add(accumulator, after, out=accumulator)
    power(accumulator, after)
    np.subtract(after, before, out=before)
    np.divide(before, rate, out=before)
    np.subtract(before, 2 * strengths.shrinkage, out=before)
    np.multiply(before, values, out=before)
    np.add(linear, update.gradient, out=linear)
    np.subtract(linear, before, out=linear)
    np.divide(after, rate, out=after)
    np.add(after, strengths.added_curvature(rate), out=after)
    np.clip(linear, -strengths.l1, strengths.l1, out=before)
    np.subtract(before, linear, out=before)
    # Where the curvature is 0, all gradients so far were zero and there is no regularization. Such
    # values stay as they are.
    np.divide(before, after, out=values, where=after > 0)
    if strengths.group_lasso and values.ndim == _ROW_DIMENSIONS:
        np.multiply(values, _lasso_factors(before, strengths.lasso_limit(values.shape[1])), out=values)


def _lasso_factors(pull: Floats, limit: np.float32) -> Floats:
    """The factor by which the group lasso shrinks each row.

    It is 0 where ``|clip(z) - z|`` is below the limit.
    The result must have the same bits as the native kernel. Squares of float32 are exact in
    float64, and a cumulative sum adds from the first to the last. Other sums of NumPy add in an
    order that depends on the processor's vectors.
    """
    squares = np.square(pull, dtype=np.float64)
    lengths = np.sqrt(np.cumsum(squares, axis=1)[:, -1]).astype(np.float32)
    factors: Floats = 1 - limit / np.maximum(lengths, limit)
    return factors[:, np.newaxis]


def _power_function(exponent: float) -> Callable[[Floats, Floats], object]:
    """``out = base ** exponent`` for non-negative bases."""
    # IEEE 754 rounds a square root exactly. Other powers need portable_math for equal bits
    # everywhere.
    if exponent == SQUARE_ROOT_POWER:
        return lambda base, out: np.sqrt(base, out=out)
    return lambda base, out: np.copyto(out, power_of(base, float(np.float32(exponent))))
