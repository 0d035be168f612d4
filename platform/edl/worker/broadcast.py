"""A loss of one label and one prediction a record that compares each label with every prediction.

Labels ``(n,)`` and predictions ``(n, 1)``, which is what ``Dense(1)`` gives, are broadcast by TensorFlow: their
difference is ``(n, n)``. Its mean is a number like any other, and it falls, but it has little to do with the records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from edl.core.errors import BadInputError
from edl.worker.traced import any_count
from edl.worker.user_code import defined_in


def refuse_broadcast(what: str, function: Callable[..., Any], labels: Any, predictions: Any, found: Any) -> None:
    """Refuse what is ``(n, n)`` because labels and predictions are ``(n,)`` and ``(n, 1)``, or the other way round.

    Looks at shapes alone, so that nothing of it is left in a traced step.

    Args:
        what: what people call the function.
        function: of labels and predictions; the user's.
        labels: as ``feed`` gave them.
        predictions: as the model gave them.
        found: what the function made of both.

    Raises:
        BadInputError: it is; says which shapes there are.
    """
    shapes = [_shape(leaf) for leaf in tf.nest.flatten((labels, predictions))]
    if {*shapes} != {"(n,)", "(n, 1)"} or not _is_square(found):
        return
    if found.shape[0] is not None and not _is_square(_for_any_count(function, labels, predictions)):
        return  # it has as many values a record as there happen to be records
    raise BadInputError(
        f"{what} gives the shape (n, n) for n records: labels have the shape {_shapes(labels)} and predictions "
        f"{_shapes(predictions)}",
        where=defined_in(function),
        hint="give both the same shape, as tf.reshape(labels, tf.shape(predictions)) does, or return one value a "
        "record",
    )


def _is_square(found: Any) -> bool:
    shape = found.shape if isinstance(found, tf.Tensor) else tf.TensorShape([])
    return shape.rank is not None and shape.rank > 1 and shape[0] == shape[1] != 1


def _for_any_count(function: Callable[..., Any], labels: Any, predictions: Any) -> Any:
    given = tf.nest.map_structure(any_count, (labels, predictions))
    (found,) = tf.function(function, autograph=False).get_concrete_function(*given).outputs
    return found


def _shapes(structure: Any) -> str:
    return ", ".join(dict.fromkeys(_shape(leaf) for leaf in tf.nest.flatten(structure)))


def _shape(leaf: Any) -> str:
    """In people's words if it holds one value a record."""
    rank = leaf.shape.rank if isinstance(leaf, tf.Tensor) else None
    if rank == 1:
        return "(n,)"
    return "(n, 1)" if rank == 2 and leaf.shape[1] == 1 else "another"
