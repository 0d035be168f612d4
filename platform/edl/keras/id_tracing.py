"""Which ids a model looks up in its served tables, as a function of a minibatch's features.

The model is traced up to its ids. Where these are integers of the features as they came, at most in another shape, the
trace is not run: calling into TensorFlow takes ten times as long as taking them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl.keras.traced_function import TracedFunction, as_array

Ids = NDArray[np.int64]

_VALUE_PRESERVING_TYPES = frozenset({"Identity", "Reshape", "ExpandDims", "Squeeze"})
"""Operations that keep values and their order."""


class IdTracer:
    """See the module's docstring.

    Args:
        calls: of features, for each table the ids of its calls, flat int64 tensors; traced.
    """

    def __init__(self, calls: Callable[[Any], Sequence[Sequence[Any]]]) -> None:
        self._traced_ids = TracedFunction(calls)
        self._argument_indices: dict[Any, list[list[int]] | None] = {}

    def __call__(self, features: Any) -> list[Ids]:
        """For each table the ids of all calls, one behind the other, ``[lookups]``."""
        trace, leaves = self._traced_ids.find(features)
        if trace not in self._argument_indices:
            self._argument_indices[trace] = _find_argument_indices(trace)
        sources = self._argument_indices[trace]
        if sources is None:
            (given,) = tf.nest.pack_sequence_as((features,), leaves)
            return [_concatenate_ids(calls) for calls in trace(given)]
        given = tf.nest.flatten(leaves, expand_composites=True)
        return [_concatenate_ids([given[index] for index in indices]) for indices in sources]


def _concatenate_ids(calls: Sequence[Any]) -> Ids:
    flat = [as_array(ids).reshape(-1) for ids in calls]
    joined = flat[0] if len(flat) == 1 else np.concatenate([np.empty(0, np.int64), *flat])
    return np.asarray(joined, np.int64)


def _find_argument_indices(trace: Any) -> list[list[int]] | None:
    """Of each table's calls, which of the trace's arguments the ids are; None if some are computed."""
    inputs = {id(tensor): index for index, tensor in enumerate(trace.inputs)}
    calls = [[_find_argument_index(ids, inputs) for ids in table] for table in _structured_outputs(trace)]
    return None if any(index is None for table in calls for index in table) else calls  # type: ignore[return-value]


def _structured_outputs(trace: Any) -> Any:
    """The tensors that a trace gives, as it nests them."""
    return tf.nest.pack_sequence_as(trace.structured_outputs, trace.outputs)


def _find_argument_index(tensor: Any, inputs: dict[int, int]) -> int | None:
    while id(tensor) not in inputs:
        operation = tensor.op
        if operation.type not in _VALUE_PRESERVING_TYPES and not _is_widening_cast(operation):
            return None
        tensor = operation.inputs[0]
    return inputs[id(tensor)]


def _is_widening_cast(operation: Any) -> bool:
    """Whether it casts to int64 what fits there."""
    return bool(
        operation.type == "Cast"
        and operation.outputs[0].dtype == tf.int64
        and operation.inputs[0].dtype in (tf.int32, tf.int16, tf.int8, tf.uint8)
    )
