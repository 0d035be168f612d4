"""A function of minibatches that is traced once for any number of records and called without TensorFlow's
dispatch.

``tf.function`` compares every argument with the signatures of earlier traces, about 0.2 ms a call: a quarter of a small
model's step. Here the types and shapes of the arguments without their first dimension pick the trace, which is called
with flat tensors. Arrays of aligned memory (``aligned``) become tensors without a copy.

Several threads may call functions of one model: while one is traced, layers of the model remember what for, so that
only one is traced at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl.numerics.aligned_memory import is_aligned

_TENSOR_TYPES = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)
_TRACING_LOCK = threading.Lock()
"""Keras marks layers while they are being called, so two threads cannot trace one model at a time."""


class TracedFunction:
    """A traced function. See the module's docstring.

    Args:
        function: of nested tensors or arrays, records first; runs as a graph. Arrays are not to be written to while
            anybody holds them: what it gives or keeps may be in their memory.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._tf_function = tf.function(function, autograph=False, reduce_retracing=True)
        self._traces: dict[Any, Callable[..., Any]] = {}

    @property
    def trace_count(self) -> int:
        """The number of traces."""
        return int(self._tf_function.experimental_get_tracing_count())

    def __call__(self, *arguments: Any) -> Any:
        """Call the function; traces it for new types and shapes."""
        trace, leaves = self.find_trace(*arguments)
        flat = tf.nest.flatten(leaves, expand_composites=True)
        # The part of a tf.function call that follows the comparison of signatures.
        return trace._call_flat(flat, trace.captured_inputs)

    def find_trace(self, *arguments: Any) -> tuple[Any, list[Any]]:
        """Find or make the trace for these types and shapes; also returns the arguments' leaves as tensors."""
        leaves = [_to_tensor(leaf) for leaf in tf.nest.flatten(arguments)]
        key = tuple(_signature_key(leaf) for leaf in leaves)
        trace = self._traces.get(key)
        if trace is None:
            packed = tf.nest.pack_sequence_as(arguments, leaves)
            with _TRACING_LOCK:
                trace = self._tf_function.get_concrete_function(*tf.nest.map_structure(spec_for_any_count, packed))
            self._traces[key] = trace
        return trace, leaves


def as_array(tensor: Any) -> NDArray[Any]:
    """A tensor's values as an array: a read-only view of its memory."""
    return np.asarray(memoryview(tensor))


def spec_for_any_count(value: Any) -> Any:
    """The TensorSpec with an unknown number of records; also for ragged and sparse tensors."""
    shape = [None, *value.shape[1:]] if len(value.shape) else []
    if isinstance(value, tf.RaggedTensor):
        return tf.RaggedTensorSpec(shape, value.dtype, value.ragged_rank, value.row_splits.dtype)
    if isinstance(value, tf.SparseTensor):
        return tf.SparseTensorSpec(shape, value.dtype)
    return tf.TensorSpec(shape, value.dtype)


def _to_tensor(leaf: Any) -> Any:
    if isinstance(leaf, _TENSOR_TYPES):
        return leaf
    if isinstance(leaf, np.ndarray) and is_aligned(leaf):
        return tf.experimental.dlpack.from_dlpack(leaf.__dlpack__())
    return tf.convert_to_tensor(leaf)


def _signature_key(tensor: Any) -> Any:
    return (tensor.dtype, *tensor.shape.as_list()[1:]) if isinstance(tensor, tf.Tensor) else spec_for_any_count(tensor)


# --------------------------------------------------------------------------------------------------
# Analysis of a graph's dependencies; nothing is run.


_ALL_INPUTS = slice(None)
_VALUE_INPUTS = {
    **dict.fromkeys(["Cast", "Identity", "Reshape", "ExpandDims", "Squeeze", "Transpose", "Slice"], slice(1)),
    **dict.fromkeys(["StridedSlice", "Unpack", "SplitV", "GatherV2", "GatherNd", "Tile", "BroadcastTo"], slice(1)),
    **dict.fromkeys(["ReverseV2", "Roll", "Pad", "PadV2"], slice(1)),
    **dict.fromkeys(["IdentityN", "Pack", "ConcatV2"], _ALL_INPUTS),
    "Split": slice(1, 2),
    "SelectV2": slice(1, 3),
    "SparseToDense": slice(2, 3),
    "RaggedTensorToTensor": slice(1, 2),
}
"""Operations that pass values on unchanged or in another type, with the inputs that carry the values."""
_SELECTING_OPERATIONS = frozenset({"GatherV2", "GatherNd", "SelectV2"})
"""Those of them whose other inputs are more than shapes and indices: they may be ids."""


def iter_dependencies(
    tensor: Any, inputs_of: Callable[[Any], Sequence[Any]] = lambda operation: operation.inputs
) -> Iterator[Any]:
    """All operations that the tensor depends on.

    Args:
        tensor: of a graph.
        inputs_of: those inputs of an operation that count.
    """
    left, seen = [tensor.op], set()
    while left:
        operation = left.pop()
        if operation not in seen:
            seen.add(operation)
            yield operation
            left += [value.op for value in inputs_of(operation) if value.dtype != tf.resource]


def find_narrowing_cast(tensor: Any) -> tuple[str, str] | None:
    """Find a narrowing cast of integers between the graph's inputs and the tensor: returns both types.

    What is computed before it is cut counts as fit for it: a remainder, the number of a bucket.
    """
    captured = {id(inner.op) for _, inner in tensor.graph.captures}
    for operation in iter_dependencies(tensor, _influencing_inputs):
        if operation.type != "Cast" or not operation.outputs[0].dtype.is_integer:
            continue
        for given in iter_dependencies(operation.inputs[0], _value_inputs):
            if given.type != "Placeholder" or id(given) in captured:
                continue
            before, after = given.outputs[0].dtype, operation.outputs[0].dtype
            if before.is_integer and before.size > after.size:
                return before.name, after.name
    return None


def _value_inputs(operation: Any) -> Sequence[Any]:
    """The inputs whose values an operation passes on unchanged."""
    return tuple(operation.inputs[_VALUE_INPUTS.get(operation.type, slice(0))])


def _influencing_inputs(operation: Any) -> Sequence[Any]:
    """The inputs that an operation's values depend on; casting shapes is harmless."""
    keeps = operation.type in _VALUE_INPUTS and operation.type not in _SELECTING_OPERATIONS
    return _value_inputs(operation) if keeps else operation.inputs
