"""Whether two models predict the same of the same features."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

_FLOAT32_TOLERANCE, _HALF_PRECISION_TOLERANCE = 1e-4, 0.1
"""How far outputs may be apart, as part of the largest one, when the same numbers are summed in another order: in
float32, and where a layer computes with half of its digits."""

KerasModel = Any


def trace_prediction(model: KerasModel, features: Any) -> Any:
    """A model as a ``tf.function`` of its features.

    Args:
        model: built.
        features: nested TensorSpecs (or specs of ragged and sparse tensors).
    """
    return tf.function(lambda given: model(given, training=False), input_signature=[features], autograph=False)


def output_tolerance(model: KerasModel) -> float:
    """How far the outputs of a model may be from its own with sums in another order, as part of the largest one."""
    kinds = {layer.compute_dtype for layer in model._flatten_layers()}
    return _HALF_PRECISION_TOLERANCE if kinds & {"float16", "bfloat16"} else _FLOAT32_TOLERANCE


def outputs_match(expected: Any, found: Any, within: float) -> bool:
    """Whether nested outputs have the same values.

    Args:
        expected: nested tensors, ragged or sparse ones too.
        found: the same of the other model.
        within: largest difference of floats, as part of the largest value of an output.
    """
    one, other = (tf.nest.flatten(each, expand_composites=True) for each in (expected, found))
    return len(one) == len(other) and all(_tensors_match(*pair, within) for pair in zip(one, other, strict=True))


def _tensors_match(one: Any, other: Any, within: float) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if not one.dtype.is_floating:
        return bool(np.array_equal(one.numpy(), other.numpy()))
    values, others = (tf.cast(each, tf.float64).numpy() for each in (one, other))
    largest = np.max(np.abs(values), initial=0.0, where=np.isfinite(values))
    return bool(np.allclose(values, others, rtol=0.0, atol=within * largest, equal_nan=True))
