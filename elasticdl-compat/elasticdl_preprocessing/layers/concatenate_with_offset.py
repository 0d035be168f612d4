"""Concatenates ids of several features into one range of ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.preprocessing_layer import PreprocessingLayer, map_values, register


@register
class ConcatenateWithOffset(PreprocessingLayer):
    """Adds an offset to each tensor of a list, then concatenates them, so that features share one Embedding.

    Args:
        offsets: a number for each tensor; None: nothing is added.
        axis: the axis along which the tensors are concatenated.
        **options: arguments of every Keras layer.

    Call it with a list of tensors of one kind: all dense, all sparse or all ragged.

    Raises:
        ValueError: there are not as many tensors as offsets, or they are of several kinds.
    """

    def __init__(self, offsets: Sequence[float] | None, axis: int = -1, **options: Any) -> None:
        super().__init__(**options)
        self.offsets = None if offsets is None else list(offsets)
        self.axis = axis

    def call(self, inputs: Any) -> Any:
        """The concatenated tensor."""
        tensors = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if self.offsets is not None:
            if len(self.offsets) != len(tensors):
                raise ValueError(
                    f"{self.name}: {len(tensors)} tensors and {len(self.offsets)} offsets; give one offset for each"
                )
            tensors = [_add(tensor, offset) for tensor, offset in zip(tensors, self.offsets, strict=True)]
        sparse = [isinstance(tensor, tf.SparseTensor) for tensor in tensors]
        if all(sparse):
            return tf.sparse.concat(self.axis, tensors)
        if any(sparse):
            raise ValueError(f"{self.name}: some tensors are sparse and some are not; give all of them to ToSparse")
        return tf.concat(tensors, self.axis)

    def get_config(self) -> dict[str, Any]:
        """All arguments of the constructor."""
        offsets = None if self.offsets is None else list(self.offsets)
        return {**super().get_config(), "offsets": offsets, "axis": self.axis}


def _add(tensor: Any, offset: float) -> Any:
    return map_values(lambda values: values + tf.cast(offset, values.dtype), tensor)
