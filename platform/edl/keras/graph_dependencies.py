"""What a tensor of a graph is made of; nothing is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

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
"""Operations that take values elsewhere as they are, or in another type; and which of their inputs these are."""
_SELECTING_OPERATIONS = frozenset({"GatherV2", "GatherNd", "SelectV2"})
"""Those of them whose other inputs are more than shapes and places: they may be ids."""


def iter_dependencies(
    tensor: Any, inputs: Callable[[Any], Sequence[Any]] = lambda operation: operation.inputs
) -> Iterator[Any]:
    """All operations whose values the tensor depends on.

    Args:
        tensor: of a graph.
        inputs: those inputs of an operation that count.
    """
    left, seen = [tensor.op], set()
    while left:
        operation = left.pop()
        if operation not in seen:
            seen.add(operation)
            yield operation
            left += [value.op for value in inputs(operation) if value.dtype != tf.resource]


def find_narrowing_cast(tensor: Any) -> tuple[str, str] | None:
    """Two types of integers: what the tensor depends on is given to the graph as the first and cut to the second.

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
    """The inputs whose values an operation has as they are."""
    return tuple(operation.inputs[_VALUE_INPUTS.get(operation.type, slice(0))])


def _influencing_inputs(operation: Any) -> Sequence[Any]:
    """The inputs that an operation's values depend on; shapes are cut without harm."""
    keeps = operation.type in _VALUE_INPUTS and operation.type not in _SELECTING_OPERATIONS
    return _value_inputs(operation) if keeps else operation.inputs
