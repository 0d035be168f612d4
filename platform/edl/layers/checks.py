"""Checks of an Embedding's ids and weights: at once if shapes are known, otherwise at run time."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def check_rank(layer_name: str, ids: Any) -> None:
    """Refuse ragged and sparse ids that are not [records, columns].

    Args:
        layer_name: the layer, for messages; without quotes, which TensorFlow would escape.
        ids: a tensor, or a KerasTensor.
    """
    kind = _tensor_kind(ids)
    if kind == "dense" or (len(ids.shape) == 2 and getattr(ids, "ragged_rank", None) in (None, 1)):
        return
    remedy = ": reshape them with tf.sparse.reshape, or look up each column by itself" if kind == "sparse" else ""
    raise ValueError(
        f"{layer_name}: a combiner takes {kind} ids of shape [records, columns], not {tuple(ids.shape)}{remedy}"
    )


def align_weights(layer_name: str, ids: Any, weights: Any) -> Any:
    """The weight of each id, in the memory order of ids; refuses weights in a different form."""
    if not isinstance(weights, tf.SparseTensor | tf.RaggedTensor):
        weights = tf.convert_to_tensor(weights)
    kinds = _tensor_kind(ids), _tensor_kind(weights)
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"{layer_name}: the ids are {kinds[0]} and their weights are {kinds[1]}; give weights in "
            "the form of the ids"
        )
    if kinds[0] == "sparse":
        message = f"{layer_name}: weights and ids have different indices: give both the same indices"
        return _values_if_equal(ids.indices, weights.indices, message, weights.values)
    if kinds[0] == "ragged":
        if weights.ragged_rank != 1 or weights.flat_values.shape.rank not in (None, 1):
            raise ValueError(
                f"{layer_name}: the weights of ragged ids must be ragged with rank 1, like the ids, not {weights.shape}"
            )
        message = f"{layer_name}: weights and ids differ in number in some record: give both the same row_splits"
        return _values_if_equal(ids.row_splits, weights.row_splits, message, weights.flat_values)
    message = f"{layer_name}: the weights have another shape than the ids: give one weight for each id"
    if not ids.shape.is_compatible_with(weights.shape):
        raise ValueError(f"{message}; {tuple(ids.shape)} and {tuple(weights.shape)}")
    if ids.shape.is_fully_defined() and weights.shape.is_fully_defined():
        return weights
    with _after_assertions(tf.debugging.assert_equal(tf.shape(ids), tf.shape(weights), message)):
        return tf.identity(weights)


def check_ids_in_table(ids: Any, rows: int, table: str) -> Any:
    """The ids, after asserting that all are from 0 to rows - 1.

    Without the check, Keras would count negative ids from the end of the table, and ids beyond it would give rows of
    zeros on a GPU, as ``tf.gather`` does.

    Args:
        ids: dense ids.
        rows: number of rows of the table.
        table: name and shape of the table, for messages.
    """
    ids = ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int64)
    message = f"an id is outside of {table}, whose ids are 0 to {rows - 1}"
    # for an empty tensor, minimum and maximum are the limits of the type, which pass both assertions
    lowest, highest = (tf.cast(of(ids), tf.int64) for of in (tf.reduce_min, tf.reduce_max))
    not_negative = tf.debugging.assert_non_negative(lowest, message)
    not_past_end = tf.debugging.assert_less(highest, tf.constant(rows, tf.int64), message)
    with _after_assertions(not_negative, not_past_end):
        return tf.identity(ids)


def _tensor_kind(tensor: Any) -> str:
    """The kind of a tensor or KerasTensor, which may represent a sparse or ragged tensor without showing it."""
    if isinstance(tensor, tf.SparseTensor) or getattr(tensor, "sparse", False):
        return "sparse"
    return "ragged" if isinstance(tensor, tf.RaggedTensor) or getattr(tensor, "ragged", False) else "dense"


def _values_if_equal(ids: Any, weights: Any, message: str, values: Any) -> Any:
    """The values, after asserting that ids and weights have the same layout."""
    if ids is weights:
        return values
    ids, weights = tf.cast(ids, tf.int64), tf.cast(weights, tf.int64)
    with _after_assertions(tf.debugging.assert_equal(tf.shape(ids), tf.shape(weights), message)):
        same_elements = tf.debugging.assert_equal(ids, weights, message)
    with _after_assertions(same_elements):
        return tf.identity(values)


def _after_assertions(*assertions: Any) -> Any:
    """A context whose operations wait for assertions. An assertion that was evaluated eagerly is None."""
    return tf.control_dependencies([each for each in assertions if each is not None])
