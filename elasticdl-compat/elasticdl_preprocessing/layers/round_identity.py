"""Numbers to the nearest integer."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.preprocessing_layer import PreprocessingLayer, map_values, register


@register
class RoundIdentity(PreprocessingLayer):
    """The nearest integer (int64), within a range. ElasticDL's documents give the range in one of two ways.

    Args:
        num_buckets: integers from 0 to ``num_buckets - 1``; a number beyond gives the default value.
        default_value: for numbers out of the range.
        max_value: instead of ``num_buckets``: integers from 0 to this one, which larger numbers give, too.
        **options: arguments of every Keras layer.

    Raises:
        ValueError: none of the two is given, or both are.
    """

    def __init__(
        self,
        num_buckets: int | None = None,
        default_value: int = 0,
        max_value: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if (num_buckets is None) == (max_value is None):
            raise ValueError("give one of num_buckets and max_value")
        self.num_buckets = num_buckets
        self.default_value = default_value
        self.max_value = max_value

    def call(self, inputs: Any) -> Any:
        """The integers."""

        def round_values(values: Any) -> Any:
            if self.max_value is None:
                return round_within(values, self.num_buckets, self.default_value)
            limited = tf.minimum(values, tf.cast(self.max_value, values.dtype))
            return round_within(limited, self.max_value + 1, self.default_value)

        return map_values(round_values, inputs)

    def get_config(self) -> dict[str, Any]:
        """All arguments of the constructor."""
        return {
            **super().get_config(),
            "num_buckets": self.num_buckets,
            "default_value": self.default_value,
            "max_value": self.max_value,
        }


def round_within(values: Any, count: Any, default_value: int) -> Any:
    """The nearest integers if they are from 0 to ``count - 1``, otherwise the default value."""
    rounded = tf.round(values)
    # Compared before the cast, which has no result for infinities and NaN.
    valid = tf.logical_and(rounded >= 0, rounded < tf.cast(count, rounded.dtype))
    integers = tf.cast(tf.where(valid, rounded, tf.zeros_like(rounded)), tf.int64)
    return tf.where(valid, integers, tf.cast(default_value, tf.int64))
