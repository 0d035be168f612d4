"""A loss of one label and one prediction a record that compares each label with every prediction.

Labels ``(n,)`` and predictions ``(n, 1)``, which is what ``Dense(1)`` gives, are broadcast by TensorFlow: their
difference is ``(n, n)``. Its mean is a number like any other, and it falls, but it has little to do with the records.
Keras' ``compile`` gives both one shape before it calls a loss. EDL cannot: a loss that does it by itself, as with
``tf.expand_dims(labels, 1)``, would then be given a shape too many, and be broadcast for that reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import tensorflow as tf

from edl.api.errors import BadInputError
from edl.keras.graph_dependencies import iter_dependencies
from edl.keras.traced_function import spec_for_any_count
from edl.keras.user_code import source_file

_PROBE_RECORD_COUNT = 7919
"""A number of records that no model has as another dimension: a prime."""


def refuse_broadcast(
    what: str,
    function: Callable[..., Any],
    labels: Any,
    predictions: Any,
    found: Any,
    weights: Any = None,
    where: str | None = None,
) -> None:
    """Refuse a function that broadcasts labels and predictions of ``(n,)`` and ``(n, 1)``, or the other way round.

    It is found by the shape ``(n, n)`` of what it gives, or by that of what it averages by itself. Looks at shapes
    alone, so that nothing of it is left in a traced step.

    Args:
        what: what people call the function.
        function: of labels and predictions, and of sample weights where there are some; the user's.
        labels: as ``feed`` gave them.
        predictions: as the model gave them.
        found: what the function made of them.
        weights: sample weights that the function was given.
        where: the user's file, for a function that does not say it itself.

    Raises:
        BadInputError: it does; says which shapes there are.
    """
    given = (labels, predictions) if weights is None else (labels, predictions, weights)
    if not _could_broadcast(
        *({_format_shape(leaf) for leaf in tf.nest.flatten(each)} for each in (labels, predictions))
    ):
        return
    if _returns_square(function, given, found):
        does = "gives the shape (n, n) for n records"
    elif _computes_square(function, given):
        does = "compares each label with every prediction, (n, n) values for n records, before it averages them"
    else:
        return
    raise BadInputError(
        f"{what} {does}: labels have the shape {_format_shapes(labels)} and predictions {_format_shapes(predictions)}",
        where=where or source_file(function),
        hint="give both the same shape, as tf.reshape(labels, tf.shape(predictions)) does, or return one value a "
        "record",
    )


def _could_broadcast(labels: set[str], predictions: set[str]) -> bool:
    """Whether some labels are one value a record, and some predictions too, in another shape."""
    return ("(n,)" in labels and "(n, 1)" in predictions) or ("(n, 1)" in labels and "(n,)" in predictions)


def _returns_square(function: Callable[..., Any], given: tuple[Any, ...], found: Any) -> bool:
    flat = {_format_shape(leaf) for leaf in tf.nest.flatten(given)}
    if flat != {"(n,)", "(n, 1)"} or not _is_square(found):
        return False
    # With a known number of records it may have as many values a record as there happen to be records
    return found.shape[0] is None or _is_square(_call_for_any_count(function, given))


def _is_square(found: Any) -> bool:
    shape = found.shape if isinstance(found, tf.Tensor) else tf.TensorShape([])
    return shape.rank is not None and shape.rank > 1 and shape[0] == shape[1] != 1


def _call_for_any_count(function: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    specs = tf.nest.map_structure(spec_for_any_count, given)
    (found,) = tf.function(function, autograph=False).get_concrete_function(*specs).outputs
    return found


def _computes_square(function: Callable[..., Any], given: tuple[Any, ...]) -> bool:
    """Whether an operation of the function takes labels and predictions as ``(n,)`` and ``(n, 1)`` and is ``(n, n)``.

    The function is traced once more, for a number of records that no other dimension has: where that number is twice
    in a shape, both are records. Losses of pairs of records make them of one rank, and so are none of this.
    """
    specs = tf.nest.map_structure(_spec_for_probe_count, given)
    if any(spec is None for spec in tf.nest.flatten(specs)):
        return False
    graph = tf.Graph()
    with graph.as_default(), _inline_tf_functions():
        places = tf.nest.map_structure(lambda spec: tf.compat.v1.placeholder(spec.dtype, spec.shape), specs)
        try:
            function(*places)
        except Exception:  # noqa: BLE001  it did not raise in the step: this trace alone is what it cannot stand
            return False
    labels, predictions, *weights = ({leaf.op for leaf in tf.nest.flatten(each)} for each in places)
    given_by_feed = labels.union(*weights)
    for operation in graph.get_operations():
        if not any(output.shape == (_PROBE_RECORD_COUNT, _PROBE_RECORD_COUNT) for output in operation.outputs):
            continue
        flat = [value for value in operation.inputs if value.shape == (_PROBE_RECORD_COUNT,)]
        column = [value for value in operation.inputs if value.shape == (_PROBE_RECORD_COUNT, 1)]
        for one, other in product(flat, column):
            made_of = set(iter_dependencies(one)), set(iter_dependencies(other))
            if any(a & given_by_feed and b & predictions for a, b in (made_of, made_of[::-1])):
                return True
    return False


@contextmanager
def _inline_tf_functions() -> Iterator[None]:
    """What a ``tf.function`` of the user's does is seen in the graph that calls it, in here."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def _spec_for_probe_count(leaf: Any) -> tf.TensorSpec | None:
    """A tensor's type and shape for ``_COUNT`` records; None for what has no shape of its own."""
    if not isinstance(leaf, tf.Tensor) or leaf.shape.rank is None:
        return None
    return tf.TensorSpec([_PROBE_RECORD_COUNT, *leaf.shape[1:]] if leaf.shape.rank else [], leaf.dtype)


def _format_shapes(structure: Any) -> str:
    return ", ".join(dict.fromkeys(_format_shape(leaf) for leaf in tf.nest.flatten(structure)))


def _format_shape(leaf: Any) -> str:
    """In people's words if it holds one value a record."""
    rank = leaf.shape.rank if isinstance(leaf, tf.Tensor) else None
    if rank == 1:
        return "(n,)"
    return "(n, 1)" if rank == 2 and leaf.shape[1] == 1 else "another"
