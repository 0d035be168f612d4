"""Dense tensors to sparse ones without missing values."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.preprocessing_layer import PreprocessingLayer, missing_value, register


@register
class ToSparse(PreprocessingLayer):
    """A sparse tensor of the values that are not missing. A sparse tensor is returned as it is.

    Args:
        ignore_value: the value that stands for a missing one; None: '' for text, -1 for integers, 0 for floats.
        **options: arguments of every Keras layer.
    """

    def __init__(self, ignore_value: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self.ignore_value = ignore_value

    def call(self, inputs: Any) -> Any:
        """The sparse tensor, of the same shape."""
        if isinstance(inputs, tf.SparseTensor):
            return inputs
        missing = missing_value(self.ignore_value, inputs.dtype)
        missing = tf.zeros([], inputs.dtype) if missing is None else missing
        if isinstance(inputs, tf.RaggedTensor):
            sparse = inputs.to_sparse()
            return tf.sparse.retain(sparse, tf.not_equal(sparse.values, missing))
        indices = tf.where(tf.not_equal(inputs, missing))
        sparse = tf.SparseTensor(indices, tf.gather_nd(inputs, indices), tf.shape(inputs, out_type=tf.int64))
        sparse.set_shape(inputs.shape)
        return sparse

    def get_config(self) -> dict[str, Any]:
        """All arguments of the constructor."""
        return {**super().get_config(), "ignore_value": self.ignore_value}
