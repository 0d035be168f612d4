"""What a model takes, without values: types and shapes, for any number of records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from edl.api.errors import BadInputError
from edl.keras.traced_function import spec_for_any_count

_ARGUMENT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
"""What TensorFlow takes as the name of a signature's argument, and gives back unchanged."""


def derive_feature_spec(model: Any, sample: Any) -> Any:
    """Nested TensorSpecs of a model's features.

    Args:
        model: built.
        sample: features of a minibatch; None for a model of which Keras knows the inputs.

    Raises:
        BadInputError: nothing says what the model takes.
    """
    if sample is not None:
        return tf.nest.map_structure(spec_for_any_count, sample)
    graph = getattr(model, "_functional", model)  # a Sequential has its graph in there
    if getattr(graph, "_inputs_struct", None) is None:
        raise BadInputError("the model does not say what features it takes, and there are none to look at")
    return tf.nest.map_structure(_input_spec, graph._inputs_struct)


def _input_spec(given: Any) -> Any:
    shape = [None, *given.shape[1:]]
    if given.ragged:
        return tf.RaggedTensorSpec(shape, given.dtype, given.ragged_rank or 1)
    if given.sparse:
        return tf.SparseTensorSpec(shape, given.dtype)
    return tf.TensorSpec(shape, given.dtype)


def named_component_specs(features: Any) -> list[tf.TensorSpec] | None:
    """The plain tensors that features consist of, in the order of ``tf.nest.flatten``, named by their features.

    A feature ``tags`` is ``tags`` where it is dense, ``tags_values`` and ``tags_row_splits`` where it is ragged, and
    ``tags_indices``, ``tags_values`` and ``tags_dense_shape`` where it is sparse.

    Args:
        features: nested TensorSpecs.

    Returns:
        None where there are no names to go by: features that are no mapping of names, names that TensorFlow would
        change, or two that become one.
    """
    if not isinstance(features, Mapping) or any(isinstance(spec, Mapping | list | tuple) for spec in features.values()):
        return None
    names = [name for key in sorted(features, key=str) for name in _component_names(str(key), features[key])]
    if not all(_ARGUMENT_NAME.fullmatch(name) for name in names) or len({name.lower() for name in names}) < len(names):
        return None
    parts = tf.nest.flatten(features, expand_composites=True)
    return [tf.TensorSpec(part.shape, part.dtype, name) for part, name in zip(parts, names, strict=True)]


def _component_names(name: str, spec: Any) -> Iterator[str]:
    if isinstance(spec, tf.SparseTensorSpec):
        yield from (f"{name}_indices", f"{name}_values", f"{name}_dense_shape")
    elif isinstance(spec, tf.RaggedTensorSpec):
        yield f"{name}_values"
        splits = f"{name}_row_splits"
        yield from [splits] if spec.ragged_rank == 1 else [f"{splits}_{rank}" for rank in range(spec.ragged_rank)]
    else:
        yield name
