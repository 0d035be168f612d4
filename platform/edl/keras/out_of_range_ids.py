"""Ids that no Embedding has: which table, which id, what to do; the same for tables that are served and for dense ones.

Keras looks negative ids of a dense table up from its end, and a GPU has rows of zeros for ids past it. So a step looks
at the ids of dense tables itself. Where a model looks rows up without Keras' layer, TensorFlow says only how many rows
there are, and in which operation.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from edl.api.errors import BadInputError
from edl.layers import Embedding as EdlEmbedding
from edl.layers.checks import check_ids_in_table

_GATHER_ERROR = re.compile(r"indices\[[\d,]*\] = (?P<id>-?\d+) is not in \[0, (?P<rows>\d+)\)")
_NODE_NAME = re.compile(r"\{\{node (?P<scopes>[^}]+)\}\}")
_ASSERTION_ERROR = re.compile(
    r"an id is outside of the Embedding (?P<layer>\S+) \((?P<rows>\d+) x (?P<dim>\d+)\)"
    r".*\[x \([^)]*\) = \] \[(?P<id>-?\d+)\]"
)
"""What ``check_ids_in_table`` raises."""


def id_out_of_range_error(wrong: int, rows: int, dims: Mapping[str, int]) -> BadInputError:
    """The error for an id.

    Args:
        wrong: the id.
        rows: of the table that was meant.
        dims: length of a row by name of the table: of the one that was meant, or of all that it may have been.
    """
    named = " or ".join(f"'{name}' ({rows} x {dim})" for name, dim in dims.items())
    return BadInputError(
        f"id {wrong} is outside of the embedding {named}, whose ids are 0 to {rows - 1}",
        hint="raise the Embedding's input_dim, or map ids into that range: in feed, or by a layer such as Hashing",
    )


@contextmanager
def explain_dense_id_errors(model: Any) -> Iterator[None]:
    """Say of an id that a dense Embedding of the model does not have which Embedding it is.

    Raises:
        BadInputError: in place of TensorFlow's error, where it is one of an Embedding.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        told = _error_from_assertion(str(error)) or _error_from_gather(str(error), model)
        if told is None:
            raise
        raise told from error


@contextmanager
def assert_dense_ids_in_range() -> Iterator[None]:
    """Dense Embeddings of Keras that are called in here, while a step is traced, refuse ids that they do not have.

    The step asserts it then, and :func:`explain_dense_id_errors` says which Embedding it was. Steps are traced one at
    a time.
    """
    call = keras.layers.Embedding.call

    @functools.wraps(call)
    def call_within_table(layer: Any, inputs: Any) -> Any:
        if not isinstance(layer, EdlEmbedding):  # which asserts it wherever it is called
            inputs = _assert_ids_in_table(layer, inputs)
        return call(layer, inputs)

    keras.layers.Embedding.call = call_within_table
    try:
        yield
    finally:
        keras.layers.Embedding.call = call


def _assert_ids_in_table(layer: Any, ids: Any) -> Any:
    table = f"the Embedding {layer.path} ({layer.input_dim} x {layer.output_dim})"
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(check_ids_in_table(ids.flat_values, layer.input_dim, table))
    if isinstance(ids, tf.SparseTensor):
        return tf.SparseTensor(ids.indices, check_ids_in_table(ids.values, layer.input_dim, table), ids.dense_shape)
    return check_ids_in_table(tf.convert_to_tensor(ids), layer.input_dim, table)


def _error_from_assertion(text: str) -> BadInputError | None:
    found = _ASSERTION_ERROR.search(text)
    if found is None:
        return None
    return id_out_of_range_error(
        int(found["id"]), int(found["rows"]), {f"{found['layer']}/embeddings": int(found["dim"])}
    )


def _error_from_gather(text: str, model: Any) -> BadInputError | None:
    found, node = _GATHER_ERROR.search(text), _NODE_NAME.search(text)
    if found is None or node is None:
        return None
    wrong, rows = int(found["id"]), int(found["rows"])
    scopes = node["scopes"].split("/")
    dims = {
        layer.embeddings.path: layer.output_dim
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.Embedding)
        and layer.input_dim == rows
        and _is_operation_of_layer(layer, scopes)
    }
    # Keras looks negative ids up from the table's end
    return id_out_of_range_error(wrong - rows if wrong < 0 else wrong, rows, dims) if dims else None


def _is_operation_of_layer(layer: Any, scopes: Sequence[str]) -> bool:
    """Whether an operation was made by a layer; TensorFlow numbers scopes of one name."""
    return any(re.fullmatch(rf"{re.escape(layer.name)}(_\d+)?", scope) for scope in scopes)
