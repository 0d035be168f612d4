"""Text or integers to a number of buckets, by their hash."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.preprocessing_layer import PreprocessingLayer, map_values, register


@register
class Hashing(PreprocessingLayer):
    """``hash(text) % num_bins`` (int64). Integers are hashed as their decimal text. The hash is that of Keras' Hashing.

    Args:
        num_bins: the number of buckets.
        **options: arguments of every Keras layer.

    Raises:
        ValueError: ``num_bins`` is not positive.
    """

    def __init__(self, num_bins: int, **options: Any) -> None:
        if num_bins is None or num_bins <= 0:
            raise ValueError(f"num_bins must be positive, not {num_bins}")
        super().__init__(**options)
        self.num_bins = num_bins

    def call(self, inputs: Any) -> Any:
        """The buckets."""

        def hash_values(values: Any) -> Any:
            text = tf.as_string(values) if values.dtype.is_integer else values
            return tf.strings.to_hash_bucket_fast(text, self.num_bins)

        return map_values(hash_values, inputs)

    def get_config(self) -> dict[str, Any]:
        """All arguments of the constructor."""
        return {**super().get_config(), "num_bins": self.num_bins}
