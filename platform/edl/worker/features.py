"""What a model takes, without values: types and shapes, for any number of records."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from edl.core.errors import BadInputError
from edl.worker.traced import any_count


def feature_spec(model: Any, sample: Any) -> Any:
    """Nested TensorSpecs of a model's features.

    Args:
        model: built.
        sample: features of a minibatch; None for a model of which Keras knows the inputs.

    Raises:
        BadInputError: nothing says what the model takes.
    """
    if sample is not None:
        return tf.nest.map_structure(any_count, sample)
    graph = getattr(model, "_functional", model)  # a Sequential has its graph in there
    if getattr(graph, "_inputs_struct", None) is None:
        raise BadInputError("the model does not say what features it takes, and there are none to look at")
    return tf.nest.map_structure(_of_input, graph._inputs_struct)


def _of_input(given: Any) -> Any:
    shape = [None, *given.shape[1:]]
    if given.ragged:
        return tf.RaggedTensorSpec(shape, given.dtype, given.ragged_rank or 1)
    if given.sparse:
        return tf.SparseTensorSpec(shape, given.dtype)
    return tf.TensorSpec(shape, given.dtype)
