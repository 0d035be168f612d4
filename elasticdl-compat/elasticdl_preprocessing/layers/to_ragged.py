"""Dense or ragged tensors to ragged ones without missing values."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.preprocessing_layer import PreprocessingLayer, missing_value, register


@register
class ToRagged(PreprocessingLayer):
    """A ragged tensor of the values that are not missing. Text is divided at a separator first.

    Args:
        sep: the separator of values in text.
        ignore_value: the value that stands for a missing one; None: '' for text, -1 for integers, none for floats.
        **options: arguments of every Keras layer.

    Raises:
        TypeError: the input is neither a dense nor a ragged tensor.
    """

    def __init__(self, sep: str = ",", ignore_value: Any = None, **options: Any) -> None:
        super().__init__(**options)
        self.sep = sep
        self.ignore_value = ignore_value

    def call(self, inputs: Any) -> Any:
        """The ragged tensor."""
        if isinstance(inputs, tf.SparseTensor):
            raise TypeError(f"{self.name}: takes dense and ragged tensors, not sparse ones")
        ragged = inputs if isinstance(inputs, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(inputs)
        if ragged.dtype == tf.string:
            # One dimension more, for the parts of a text: they become values of the record.
            ragged = tf.strings.split(ragged, self.sep).merge_dims(-2, -1)
        missing = missing_value(self.ignore_value, ragged.dtype)
        return ragged if missing is None else tf.ragged.boolean_mask(ragged, tf.not_equal(ragged, missing))

    def get_config(self) -> dict[str, Any]:
        """All arguments of the constructor."""
        return {**super().get_config(), "sep": self.sep, "ignore_value": self.ignore_value}
