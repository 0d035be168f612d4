"""LAMB: Adam's step, scaled to the norm of the variable.

This is the only rule that is not elementwise: it treats the given arrays as one variable. In the
slab that is a dense variable. In a table it is the set of rows that a push names.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers.adam import bias_correction, update_moments
from edl.numerics.optimizers.update_rule import Floats, ParameterUpdate, ScratchArrays, UpdateRule


def lamb(optimizer: OptimizerSpec) -> UpdateRule:
    """``w -= lr * |w| / |u| * u``, where ``u`` is Adam's step with both moments corrected."""
    return partial(
        _lamb, optimizer.get_number("beta_1"), optimizer.get_number("beta_2"), optimizer.get_number("epsilon")
    )


def _lamb(
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
    update_moments(m, v, update.gradient, (1 - beta_1, 1 - beta_2), change)
    np.divide(v, bias_correction(beta_2, update.update_number), out=root)
    np.sqrt(root, out=root)
    np.add(root, epsilon, out=root)
    np.divide(m, bias_correction(beta_1, update.update_number), out=change)
    np.divide(change, root, out=change)
    np.multiply(change, update.learning_rate * _trust_ratio(values, change), out=change)
    np.subtract(values, change, out=values)


def _trust_ratio(values: Floats, change: Floats) -> float:
    """The norm of the values divided by that of the step; 1 if either is 0."""
    length, step_length = _euclidean_norm(values), _euclidean_norm(change)
    return length / step_length if length > 0 and step_length > 0 else 1.0


def _euclidean_norm(array: Floats) -> float:
    flat = array.ravel()
    return float(np.sqrt(np.dot(flat, flat)))
