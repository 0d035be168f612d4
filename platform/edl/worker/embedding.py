"""Embedding layers whose rows live on the parameter servers.

A top-level ``keras.layers.Embedding`` of a functional or Sequential model above the job's threshold is replaced by
a layer that looks up the few rows that were pulled for a minibatch. The user's model code does not change. Every other
case stays dense, with a line in the log that says why.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.core.partition import mix
from edl.worker.lean_tables import fill, is_lean

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableSpec:
    """A served table.

    Attributes:
        name: the path of the Embedding's variable.
        rows: number of ids.
        dim: length of a row.
        initializer: as in ``edl.spec.initializer``.
        seed: of the initial values.
    """

    name: str
    rows: int
    dim: int
    initializer: Mapping[str, Any]
    seed: int


class ServedEmbedding(keras.layers.Layer):  # type: ignore[misc]
    """An Embedding without a variable: it looks ids up among the rows that it is lent.

    Outside of :meth:`lend` and :meth:`record` it gives zeros, which is what building a model needs.
    """

    def __init__(self, table: TableSpec, *, mask_zero: bool, name: str, dtype: Any) -> None:
        super().__init__(name=name, dtype=dtype)
        self.table = table
        self.supports_masking = mask_zero
        self._mask_zero = mask_zero
        self._lent: tuple[Any, Any] | None = None
        self._recorded: list[Any] | None = None
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Rows of ids; shape ``[*ids, dim]``."""
        ids = tf.cast(inputs, tf.int64)
        if self._lent is not None:
            known, values = self._lent
            rows = tf.gather(values, tf.searchsorted(known, tf.reshape(ids, [-1])))
        else:
            if self._recorded is not None:
                self._recorded.append(tf.reshape(ids, [-1]))
            rows = tf.zeros([tf.size(ids), self.table.dim])
        shaped = tf.reshape(rows, tf.concat([tf.shape(ids), [self.table.dim]], 0))
        shaped.set_shape([*ids.shape, self.table.dim])
        return tf.cast(shaped, self.compute_dtype)

    def compute_output_spec(self, inputs: Any) -> Any:
        """Shape and type of the output, without running anything."""
        return keras.KerasTensor((*inputs.shape, self.table.dim), dtype=self.compute_dtype)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """As keras.layers.Embedding: id 0 is padding under ``mask_zero``."""
        return keras.ops.not_equal(inputs, 0) if self._mask_zero else None

    @contextmanager
    def lend(self, ids: Any, values: Any) -> Iterator[None]:
        """While a graph is traced: look up in ``values`` [n, dim], the rows of the sorted ``ids`` [n]."""
        self._lent = (ids, values)
        try:
            yield
        finally:
            self._lent = None

    @contextmanager
    def record(self) -> Iterator[list[Any]]:
        """While a graph is traced: collect the flat ids of each call."""
        self._recorded = []
        try:
            yield self._recorded
        finally:
            self._recorded = None


def serve(model: Any, threshold: int, seed: int) -> tuple[Any, tuple[ServedEmbedding, ...]]:
    """The model with its large Embeddings served; the model itself when there are none.

    Args:
        model: as the user made it, built; its large tables may lack values (``lean_tables``) and have them afterwards
            if they stay dense.
        threshold: bytes of a table from which on it is served.
        seed: the job's; each table's seed is made of it and the table's name.
    """
    top_level = set(map(id, model.layers)) if _is_graph(model) else set()
    chosen = {}
    for layer in _embeddings(model):
        if 4 * layer.input_dim * layer.output_dim < threshold:
            continue
        reason = None if id(layer) in top_level else "it is not at the top level of a functional or Sequential model"
        reason = reason or _why_dense(layer)
        if reason is None:
            chosen[id(layer)] = layer
        else:
            _log_dense(layer, reason)
    replaced, served = _replaced(model, chosen, seed)
    for layer in _embeddings(replaced):
        fill(layer)
    return replaced, served


def _replaced(model: Any, chosen: Mapping[int, Any], seed: int) -> tuple[Any, tuple[ServedEmbedding, ...]]:
    if not chosen:
        return model, ()
    served = {key: _replacement(layer, seed) for key, layer in chosen.items()}
    replaced = keras.models.clone_model(model, clone_function=lambda layer: served.get(id(layer), layer))
    computed = _with_computed_ids(replaced, served)
    if not computed:
        return replaced, tuple(served.values())
    for key in computed:
        _log_dense(chosen[key], "its ids depend on variables of the model")
    return _replaced(model, {key: layer for key, layer in chosen.items() if key not in computed}, seed)


def recorded_ids(model: Any, served: Iterable[ServedEmbedding], features: Any) -> list[Any]:
    """For a graph: the flat int64 ids that each served layer is called with; nothing else of the model is run."""
    with ExitStack() as stack:
        recorded = [stack.enter_context(layer.record()) for layer in served]
        model(features, training=False)
    return [tf.concat([tf.zeros([0], tf.int64), *calls], 0) for calls in recorded]


def _with_computed_ids(model: Any, served: Mapping[int, ServedEmbedding]) -> set[int]:
    """Which layers look up ids that the model computes with its variables: they are not known before a step."""
    inputs = tf.nest.map_structure(lambda given: tf.TensorSpec(given.shape, given.dtype), model._inputs_struct)
    function = tf.function(lambda features: recorded_ids(model, served.values(), features), autograph=False)
    outputs = function.get_concrete_function(inputs).structured_outputs
    return {key for key, ids in zip(served, outputs, strict=True) if _reads_variables(ids)}


def _reads_variables(tensor: Any) -> bool:
    seen: set[str] = set()
    left = [tensor.op]
    while left:
        operation = left.pop()
        if operation.type in ("ReadVariableOp", "ResourceGather"):
            return True
        new = [value.op for value in operation.inputs if value.op.name not in seen]
        seen.update(each.name for each in new)
        left += new
    return False


def _log_dense(layer: Any, reason: str) -> None:
    size = 4 * layer.input_dim * layer.output_dim
    _LOG.info("embedding %s (%d bytes) stays dense: %s", layer.path, size, reason)


def _is_graph(model: Any) -> bool:
    """Whether clone_model can replace layers of it: a Sequential, or a model made of inputs and outputs."""
    if isinstance(model, keras.Sequential):
        return type(model) is keras.Sequential
    return type(model).__name__ == "Functional" and type(model).__module__.startswith("keras.")


def _embeddings(model: Any) -> list[Any]:
    layers = model._flatten_layers(include_self=False)
    return [layer for layer in layers if isinstance(layer, keras.layers.Embedding)]


def _why_dense(layer: Any) -> str | None:
    """Why a top-level Embedding cannot be served; None if it can."""
    if type(layer) is not keras.layers.Embedding:
        return f"{type(layer).__name__} is not keras.layers.Embedding itself"
    for name in ("embeddings_regularizer", "activity_regularizer", "embeddings_constraint", "quantization_config"):
        if getattr(layer, name, None) is not None:
            return f"it has {name}"
    if not layer.trainable:
        return "it is not trainable"
    if getattr(layer, "lora_enabled", False) or layer.variable_dtype != "float32":
        return "its variable is not a plain float32 table"
    if _row_initializer(layer) is None:
        return f"its initializer {type(layer.embeddings_initializer).__name__} cannot be computed row by row"
    if is_lean(layer):
        return None
    table = np.asarray(layer.embeddings)
    if not np.array_equal(table, np.asarray(layer.embeddings_initializer(table.shape, dtype="float32"))):
        return "its table was given values other than those of its initializer"
    return None


def _row_initializer(layer: Any) -> dict[str, Any] | None:
    initializer = layer.embeddings_initializer
    known = keras.initializers
    if type(initializer) is known.RandomUniform:
        return {"name": "uniform", "minval": float(initializer.minval), "maxval": float(initializer.maxval)}
    if type(initializer) is known.RandomNormal:
        return {"name": "normal", "mean": float(initializer.mean), "stddev": float(initializer.stddev)}
    if type(initializer) is known.Zeros:
        return {"name": "zeros"}
    if type(initializer) is known.Ones:
        return {"name": "constant", "value": 1.0}
    if type(initializer) is known.Constant and np.ndim(initializer.value) == 0:
        return {"name": "constant", "value": float(initializer.value)}
    return None


def _replacement(layer: Any, seed: int) -> ServedEmbedding:
    initializer = _row_initializer(layer)
    assert initializer is not None
    name = layer.embeddings.path
    table = TableSpec(name, layer.input_dim, layer.output_dim, initializer, _table_seed(seed, name))
    return ServedEmbedding(table, mask_zero=layer.mask_zero, name=layer.name, dtype=layer.dtype_policy)


def _table_seed(seed: int, name: str) -> int:
    value = mix(seed)
    for byte in name.encode():
        value = mix(value ^ byte)
    return int(value >> 1)  # int64 in the Declare message
