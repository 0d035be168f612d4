"""Keras' initializers as what ``edl.numerics.initializers`` can compute for single rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from edl.numerics.initializers import variance_scaling

_VARIANCE_SCALING_CLASSES = {
    getattr(keras.initializers, name)
    for name in (
        "VarianceScaling",
        "GlorotUniform",
        "GlorotNormal",
        "HeUniform",
        "HeNormal",
        "LecunUniform",
        "LecunNormal",
    )
}
"""Those whose spread depends on the table's shape."""


def to_row_initializer(initializer: Any, shape: tuple[int, int]) -> dict[str, Any] | None:
    """The JSON of a Keras initializer; None if its values cannot be computed row by row.

    Args:
        initializer: of an Embedding. Its seed does not count: a table's values follow from the job's seed.
        shape: of the table: rows and columns; 0 rows where the vocabulary has no bound.
    """
    known = keras.initializers
    if type(initializer) is known.RandomUniform:
        return {"name": "uniform", "minval": float(initializer.minval), "maxval": float(initializer.maxval)}
    if type(initializer) is known.RandomNormal:
        return {"name": "normal", "mean": float(initializer.mean), "stddev": float(initializer.stddev)}
    if type(initializer) is known.TruncatedNormal:
        return {"name": "truncated_normal", "mean": float(initializer.mean), "stddev": float(initializer.stddev)}
    if type(initializer) in _VARIANCE_SCALING_CLASSES and shape[0]:
        return variance_scaling(
            shape,
            scale=float(initializer.scale),
            mode=initializer.mode,
            distribution=initializer.distribution,
            input_axes=initializer.input_axes,
            output_axes=initializer.output_axes,
        )
    if type(initializer) is known.Zeros:
        return {"name": "zeros"}
    if type(initializer) is known.Ones:
        return {"name": "constant", "value": 1.0}
    if type(initializer) is known.Constant and np.ndim(initializer.value) == 0:
        return {"name": "constant", "value": float(initializer.value)}
    return None


def initializer_mean(initializer: Mapping[str, Any]) -> float:
    """The mean of the values that an initializer gives, of which the ones that are drawn are symmetric around it."""
    if "minval" in initializer:
        return (float(initializer["minval"]) + float(initializer["maxval"])) / 2
    return float(initializer.get("mean", initializer.get("value", 0.0)))
