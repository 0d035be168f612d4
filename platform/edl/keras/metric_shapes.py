"""Metrics that have their variables, or the shapes of these, only from the first records that they see.

``F1Score``, ``R2Score`` and ``AUC(multi_label=True)`` of Keras are of that kind. The worker that turns added states
into values may have evaluated nothing: the types and shapes of what such a metric was given travel with its states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

MetricInputs = tuple[Any, ...]
"""Labels, predictions and, where they count, sample weights."""


def variable_shapes(metric: Any) -> list[tuple[int, ...]]:
    """The shapes of a metric's variables."""
    return [tuple(variable.shape) for variable in metric.variables]


def update_metric(metric: Any, given: MetricInputs) -> None:
    """Take records in; sample weights are passed on where there are any."""
    labels, predictions, *weights = given
    if weights:
        metric.update_state(labels, predictions, sample_weight=weights[0])
    else:
        metric.update_state(labels, predictions)


def describe_inputs(given: MetricInputs) -> list[Any] | None:
    """JSON: type and shape of each tensor, of any number of records; None where one is no plain tensor."""
    found = []
    for each in given:
        if isinstance(each, dict | list | tuple | tf.RaggedTensor | tf.SparseTensor):
            return None
        tensor = tf.convert_to_tensor(each)
        found.append([tensor.dtype.name, None if tensor.shape.rank is None else [None, *tensor.shape.as_list()[1:]]])
    return found


def create_variables(metric: Any, description: Sequence[Any]) -> None:
    """Make the variables of a new metric as such records would; none are needed, for it is traced and not run."""
    specs = tuple(tf.TensorSpec(shape, dtype) for dtype, shape in description)
    tf.function(lambda *given: update_metric(metric, given), autograph=False).get_concrete_function(*specs)
    metric.reset_state()
