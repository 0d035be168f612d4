"""Text to numbers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.preprocessing_layer import PreprocessingLayer, map_values, register

_PARSED = (tf.float32, tf.float64, tf.int32, tf.int64)
"""The types that TensorFlow parses text to."""


@register
class ToNumber(PreprocessingLayer):
    """Text or numbers as numbers of a type.

    Args:
        out_type: the TensorFlow type of the numbers, or its name.
        default_value: the number for empty text.
        **options: arguments of every Keras layer.

    Raises:
        ValueError: ``out_type`` is not a type of numbers.
    """

    def __init__(self, out_type: Any, default_value: float, **options: Any) -> None:
        super().__init__(**options)
        self.out_type = tf.as_dtype(out_type)
        if not (self.out_type.is_integer or self.out_type.is_floating):
            raise ValueError(f"{self.out_type.name} is not a type of numbers")
        self.default_value = default_value

    def call(self, inputs: Any) -> Any:
        """The numbers."""
        return map_values(self._convert, inputs)

    def _convert(self, values: Any) -> Any:
        if values.dtype != tf.string:
            return tf.cast(values, self.out_type)
        widest = tf.int64 if self.out_type.is_integer else tf.float64
        parsed = self.out_type if self.out_type in _PARSED else widest
        empty = tf.equal(values, "")
        numbers = tf.strings.to_number(tf.where(empty, "0", values), parsed)
        return tf.cast(tf.where(empty, tf.cast(self.default_value, parsed), numbers), self.out_type)

    def get_config(self) -> dict[str, Any]:
        """All arguments of the constructor."""
        return {**super().get_config(), "out_type": self.out_type.name, "default_value": self.default_value}
