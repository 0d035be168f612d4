"""A function of minibatches that is traced once for any number of records and called without TensorFlow's dispatch.

``tf.function`` compares every argument with the signatures of earlier traces. This takes about 0.2 ms per call, a
quarter of a small model's step. A ``TracedFunction`` finds the trace by the types and shapes of the arguments without
their first dimension, and calls it with flat tensors. Arrays in aligned memory (``edl.numerics.aligned_memory``) become
tensors without a copy.
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
TRACING_LOCK = threading.Lock()
"""Several threads may call functions of one model, but only one may trace: Keras marks layers that are being called."""


class TracedFunction:
    """A traced function; see the module's docstring.

    Args:
        function: a function of nested tensors or arrays whose first dimension is the records; it runs as a graph. Do
            not write to an array that was passed to it while its results are in use: they may share the memory.
        any_count: trace it for any number of records. If False, a trace is for one number, as far as
            ``tf.function(reduce_retracing=True)`` makes such traces.
    """

    def __init__(self, function: Callable[..., Any], *, any_count: bool = True) -> None:
        self._any_count = any_count
        self._tf_function = tf.function(function, autograph=False, reduce_retracing=True)
        self._traces: dict[Any, Callable[..., Any]] = {}

    @property
    def trace_count(self) -> int:
        """How often the function was traced."""
        return int(self._tf_function.experimental_get_tracing_count())

    def __call__(self, *arguments: Any) -> Any:
        """Call the function; traces it for new types and shapes."""
        trace, leaves = self.find_trace(*arguments)
        flat = tf.nest.flatten(leaves, expand_composites=True)
        # A private method of TensorFlow: the part of a tf.function call after the comparison of
        # signatures.
        return trace._call_flat(flat, trace.captured_inputs)

    def find_trace(self, *arguments: Any) -> tuple[Any, list[Any]]:
        """Find or create the trace for these types and shapes; also returns the arguments' leaves as tensors."""
        leaves = [as_tensor(leaf) for leaf in tf.nest.flatten(arguments)]
        key: Any = tuple(signature_key(leaf) for leaf in leaves)
        if not self._any_count:
            key = (key, *(tuple(leaf.shape) for leaf in leaves))
        trace = self._traces.get(key)
        if trace is None:
            packed = tf.nest.pack_sequence_as(arguments, leaves)
            specs = tf.nest.map_structure(spec_for_any_count, packed) if self._any_count else packed
            with TRACING_LOCK:
                trace = self._tf_function.get_concrete_function(*specs)
            self._traces[key] = trace
        return trace, leaves


def as_array(tensor: Any) -> NDArray[Any]:
    """A read-only array that shares the tensor's memory."""
    return np.asarray(memoryview(tensor))


def host_array(value: Any) -> NDArray[Any]:
    """The values of a tensor or variable, without a copy where TensorFlow allows it."""
    tensor = tf.convert_to_tensor(value)
    # bfloat16 has no code in Python's buffer protocol.
    array: NDArray[Any] = tensor.numpy() if tensor.dtype == tf.bfloat16 else as_array(tensor)
    return array


def read_value(variable: Any) -> Any:
    """The value of a Keras variable as a tensor, in a third of the time that ``read_value()`` takes."""
    return tf.raw_ops.ReadVariableOp(resource=variable.value.handle, dtype=variable.value.dtype)


def spec_for_any_count(value: Any) -> Any:
    """The spec of a dense, ragged or sparse tensor, with an unknown number of records."""
    shape = [None, *value.shape[1:]] if len(value.shape) else []
    if isinstance(value, tf.RaggedTensor):
        return tf.RaggedTensorSpec(shape, value.dtype, value.ragged_rank, value.row_splits.dtype)
    if isinstance(value, tf.SparseTensor):
        return tf.SparseTensorSpec(shape, value.dtype)
    return tf.TensorSpec(shape, value.dtype)


def as_tensor(leaf: Any) -> Any:
    """A tensor of these values; it shares the memory of an aligned array."""
    if isinstance(leaf, _TENSOR_TYPES):
        return leaf
    if isinstance(leaf, np.ndarray) and is_aligned(leaf):
        return tf.experimental.dlpack.from_dlpack(leaf.__dlpack__())
    return tf.convert_to_tensor(leaf)


def signature_key(tensor: Any) -> Any:
    """What a trace for this tensor depends on: its type, and its shape without the first dimension."""
    return (tensor.dtype, *tensor.shape.as_list()[1:]) if isinstance(tensor, tf.Tensor) else spec_for_any_count(tensor)


# --------------------------------------------------------------------------------------------------
# Analysis of a graph's dependencies, without running it.


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
"""Operations that do not change values except for their type, with the inputs that have the values."""
_SELECTING_OPERATIONS = frozenset({"GatherV2", "GatherNd", "SelectV2"})
"""Operations of ``_VALUE_INPUTS`` whose other inputs may be ids, not only shapes."""


def iter_dependencies(
    tensor: Any, inputs_of: Callable[[Any], Sequence[Any]] = lambda operation: operation.inputs
) -> Iterator[Any]:
    """Generate all operations that a tensor depends on.

    Args:
        tensor: a tensor of a graph.
        inputs_of: returns the inputs of an operation to follow; by default all.
    """
    left, visited = [tensor.op], set()
    while left:
        operation = left.pop()
        if operation not in visited:
            visited.add(operation)
            yield operation
            left += [value.op for value in inputs_of(operation) if value.dtype != tf.resource]


def find_narrowing_cast(tensor: Any) -> tuple[str, str] | None:
    """Find a narrowing cast of integers between the graph's inputs and the tensor; returns both types.

    A cast of a computed value (a remainder, a bucket number) is allowed: the computation is assumed to limit the value.
    """
    # Captured inputs, such as variables, are not features.
    captured = {id(inner.op) for _, inner in tensor.graph.captures}
    for operation in iter_dependencies(tensor, _influencing_inputs):
        if operation.type != "Cast" or not operation.outputs[0].dtype.is_integer:
            continue
        for source in iter_dependencies(operation.inputs[0], _value_inputs):
            if source.type != "Placeholder" or id(source) in captured:
                continue
            before, after = source.outputs[0].dtype, operation.outputs[0].dtype
            if before.is_integer and before.size > after.size:
                return before.name, after.name
    return None


def _value_inputs(operation: Any) -> Sequence[Any]:
    """The inputs whose values an operation does not change."""
    return tuple(operation.inputs[_VALUE_INPUTS.get(operation.type, slice(0))])


def _influencing_inputs(operation: Any) -> Sequence[Any]:
    """The inputs that an operation's values depend on. Shapes are not among them: a cast of a shape is harmless."""
    keeps = operation.type in _VALUE_INPUTS and operation.type not in _SELECTING_OPERATIONS
    return _value_inputs(operation) if keeps else operation.inputs
