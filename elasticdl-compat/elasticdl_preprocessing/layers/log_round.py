"""Numbers to their rounded logarithm."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.preprocessing_layer import PreprocessingLayer, map_values, register
from elasticdl_preprocessing.layers.round_identity import round_within


@register
class LogRound(PreprocessingLayer):
    """``round(log(x))`` (int64) if that is from 0 to ``num_bins - 1``, otherwise the default value.

    Args:
        num_bins: the number of possible values.
        default_value: for all other results, such as those of numbers that are not positive.
        base: base of the logarithm; None: the natural one.
        **options: arguments of every Keras layer.
    """

    def __init__(self, num_bins: int, default_value: int = 0, base: float | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.num_bins = num_bins
        self.default_value = default_value
        self.base = base

    def call(self, inputs: Any) -> Any:
        """The rounded logarithms."""
        divisor = 1.0 if self.base is None else math.log(self.base)

        def log_round(values: Any) -> Any:
            logarithms = tf.math.log(tf.cast(values, tf.float64)) / divisor
            return round_within(logarithms, self.num_bins, self.default_value)

        return map_values(log_round, inputs)

    def get_config(self) -> dict[str, Any]:
        """All arguments of the constructor."""
        return {
            **super().get_config(),
            "num_bins": self.num_bins,
            "default_value": self.default_value,
            "base": self.base,
        }
