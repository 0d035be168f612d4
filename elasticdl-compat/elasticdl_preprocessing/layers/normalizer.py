"""Scales numbers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.preprocessing_layer import PreprocessingLayer, map_values, register


@register
class Normalizer(PreprocessingLayer):
    """``(x - subtractor) / divisor``, as float32.

    Args:
        subtractor: such as the minimum or the mean of the feature.
        divisor: such as its range or its standard deviation.
        **options: arguments of every Keras layer.

    Raises:
        ValueError: the divisor is 0.
    """

    def __init__(self, subtractor: float, divisor: float, **options: Any) -> None:
        super().__init__(**options)
        if divisor == 0:
            raise ValueError("the divisor must not be 0")
        self.subtractor = subtractor
        self.divisor = divisor

    def call(self, inputs: Any) -> Any:
        """The scaled numbers."""
        return map_values(lambda values: (tf.cast(values, tf.float32) - self.subtractor) / self.divisor, inputs)

    def get_config(self) -> dict[str, Any]:
        """All arguments of the constructor."""
        return {**super().get_config(), "subtractor": self.subtractor, "divisor": self.divisor}
