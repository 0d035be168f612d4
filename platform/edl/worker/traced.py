"""A function of minibatches, traced once for any number of records, and called without TensorFlow's dispatch.

``tf.function`` compares every argument with the signatures of earlier traces, about 0.2 ms a call: a quarter of a small
model's step. Here the types and shapes of the arguments without their first dimension pick the trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


class Traced:
    """See the module's docstring.

    Args:
        function: of nested tensors or arrays, records first; runs as a graph.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._general = tf.function(function, autograph=False, reduce_retracing=True)
        self._traces: dict[Any, Callable[..., Any]] = {}

    @property
    def count(self) -> int:
        """How often the function was traced."""
        return int(self._general.experimental_get_tracing_count())

    def __call__(self, *arguments: Any) -> Any:
        """Call it; traces when there is no trace for these types and shapes."""
        leaves = tf.nest.flatten(arguments)
        if not all(isinstance(leaf, tf.Tensor | np.ndarray) for leaf in leaves):
            return self._general(*arguments)  # sparse and ragged tensors
        tensors = [tf.convert_to_tensor(leaf) for leaf in leaves]
        key = tuple((tensor.dtype, *tensor.shape[1:]) for tensor in tensors)
        packed = tf.nest.pack_sequence_as(arguments, tensors)
        trace = self._traces.get(key)
        if trace is None:
            trace = self._traces[key] = self._general.get_concrete_function(*tf.nest.map_structure(_any_count, packed))
        return trace(*packed)


def _any_count(tensor: Any) -> Any:
    shape = [None, *tensor.shape[1:]] if tensor.shape.rank else []
    return tf.TensorSpec(shape, tensor.dtype)
