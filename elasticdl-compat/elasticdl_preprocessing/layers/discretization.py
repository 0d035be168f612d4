"""Numbers to the index of their bin."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.preprocessing_layer import PreprocessingLayer, map_values, register


@register
class Discretization(PreprocessingLayer):
    """The index (int64) of the bin of each number. ``bins=[0, 1]`` are the bins (-inf, 0), [0, 1) and [1, inf).

    Args:
        bins: the boundaries, ascending.
        **options: arguments of every Keras layer.

    Raises:
        ValueError: the boundaries are not ascending.
    """

    def __init__(self, bins: Sequence[float], **options: Any) -> None:
        super().__init__(**options)
        self.bins = list(bins)
        if any(left > right for left, right in pairwise(self.bins)):
            raise ValueError(f"bins must be ascending, not {self.bins}")

    def num_bins(self) -> int:
        """Number of bins: the largest index plus 1."""
        return len(self.bins) + 1

    def call(self, inputs: Any) -> Any:
        """The indices."""
        boundaries = [float(boundary) for boundary in self.bins]

        def find_bins(values: Any) -> Any:
            return tf.cast(tf.raw_ops.Bucketize(input=values, boundaries=boundaries), tf.int64)

        return map_values(find_bins, inputs)

    def get_config(self) -> dict[str, Any]:
        """All arguments of the constructor."""
        return {**super().get_config(), "bins": list(self.bins)}
