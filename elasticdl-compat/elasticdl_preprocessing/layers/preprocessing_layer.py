"""The base class of the layers, which have no weights and take dense, sparse and ragged tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

register = tf.keras.utils.register_keras_serializable(package="elasticdl_preprocessing")
"""Decorator of layers: a saved model finds them by name."""


class PreprocessingLayer(tf.keras.layers.Layer):  # type: ignore[misc]
    """A layer without weights.

    Args:
        **options: arguments of every Keras layer, such as ``name``.
    """

    def __init__(self, **options: Any) -> None:
        # Features keep their type: a float64 would be rounded before it is compared with a boundary.
        super().__init__(autocast=False, **options)
        self._supports_ragged_inputs = True  # tf_keras asks
        self.supports_jit = False  # XLA has neither text nor sparse tensors


def map_values(function: Callable[[Any], Any], inputs: Any) -> Any:
    """A tensor of the same kind and shape whose values are ``function`` of the values."""
    if isinstance(inputs, tf.SparseTensor):
        mapped = tf.SparseTensor(inputs.indices, function(inputs.values), inputs.dense_shape)
        mapped.set_shape(inputs.shape)  # dense_shape alone does not say what is known of it
        return mapped
    if isinstance(inputs, tf.RaggedTensor):
        return inputs.with_flat_values(function(inputs.flat_values))
    return function(tf.convert_to_tensor(inputs))


def missing_value(ignore_value: Any, dtype: Any) -> Any:
    """What stands for a missing value: the given one, or '' for text, -1 for integers; None for floats."""
    if ignore_value is not None:
        return tf.cast(ignore_value, dtype)
    if dtype == tf.string:
        return tf.constant("")
    return tf.constant(-1, dtype) if dtype.is_integer else None
