"""Embedding layers whose rows live on the parameter servers.

An Embedding of at least ``ps.embedding_threshold`` bytes never gets a table. When Keras builds it, it becomes a
:class:`PsEmbedding`, which looks up the rows that the worker pulled for a minibatch. The layer remains the same object
in the user's model, so this works for functional, Sequential, subclassed and nested models. An Embedding that the PS
cannot store is refused with the reason, because a table of that size in every worker must be the user's own choice.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from edl.api.errors import BadInputError
from edl.api.tables import TableSpec
from edl.core.partition import splitmix64
from edl.keras import row_binding
from edl.keras.row_binding import table_bytes, unsupported_embedding_error
from edl.numerics.initializers import variance_scaling

# --------------------------------------------------------------------------------------------------
# Keras' initializers in the form that ``edl.numerics.initializers`` can compute row by row.


_VARIANCE_SCALING_CLASSES = {
    getattr(keras.initializers, name)
    for name in (
        "VarianceScaling",
        "GlorotUniform",
        "GlorotNormal",
        "HeUniform",
        "HeNormal",
        "LecunUniform",
        "LecunNormal",
    )
}
"""Initializers whose spread depends on the table's shape."""


def to_row_initializer(initializer: Any, shape: tuple[int, int]) -> dict[str, Any] | None:
    """Convert a Keras initializer to JSON; None if its values cannot be computed row by row.

    Args:
        initializer: an Embedding's initializer. Its seed is ignored: a table's values follow from the job's seed.
        shape: rows and columns of the table; 0 rows if the vocabulary has no bound.
    """
    initializers = keras.initializers
    if type(initializer) is initializers.RandomUniform:
        return {"name": "uniform", "minval": float(initializer.minval), "maxval": float(initializer.maxval)}
    if type(initializer) is initializers.RandomNormal:
        return {"name": "normal", "mean": float(initializer.mean), "stddev": float(initializer.stddev)}
    if type(initializer) is initializers.TruncatedNormal:
        return {"name": "truncated_normal", "mean": float(initializer.mean), "stddev": float(initializer.stddev)}
    if type(initializer) in _VARIANCE_SCALING_CLASSES and shape[0]:
        return variance_scaling(
            shape,
            scale=float(initializer.scale),
            mode=initializer.mode,
            distribution=initializer.distribution,
            input_axes=initializer.input_axes,
            output_axes=initializer.output_axes,
        )
    if type(initializer) is initializers.Zeros:
        return {"name": "zeros"}
    if type(initializer) is initializers.Ones:
        return {"name": "constant", "value": 1.0}
    if type(initializer) is initializers.Constant and np.ndim(initializer.value) == 0:
        return {"name": "constant", "value": float(initializer.value)}
    return None


def initializer_mean(initializer: Mapping[str, Any]) -> float:
    """The mean of an initializer's values; random initializers are symmetric around it."""
    if "minval" in initializer:
        return (float(initializer["minval"]) + float(initializer["maxval"])) / 2
    return float(initializer.get("mean", initializer.get("value", 0.0)))


_MAX_EXACT_INTEGER = {"float16": 1 << 11, "bfloat16": 1 << 8, "float32": 1 << 24, "float64": 1 << 53}
"""The largest integer up to which each type represents every integer exactly."""


class PsEmbedding(keras.layers.Embedding):  # type: ignore[misc]
    """An Embedding without a table. ``convert_to_ps_embedding`` converts an Embedding to it.

    A user's subclass of Embedding precedes this class in the method resolution order: its own ``call`` runs unchanged,
    and its ``super().call()`` is the ``call`` of this class.
    """

    served_table: TableSpec

    def call(self, inputs: Any) -> Any:
        """The rows of the ids, of shape ``[*ids.shape, dim]``."""
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self.call(inputs.flat_values))
        # As in Keras: missing entries are id 0.
        if isinstance(inputs, tf.SparseTensor):
            inputs = tf.sparse.to_dense(inputs)
        self._check_id_dtype(inputs)
        ids = tf.cast(inputs, tf.int64)
        rows = row_binding.look_up_rows(self, tf.reshape(ids, [-1]))
        shaped = tf.reshape(rows, tf.concat([tf.shape(ids), [self.output_dim]], 0))
        shaped.set_shape([*ids.shape, self.output_dim])
        return tf.cast(shaped, self.compute_dtype)

    def _check_id_dtype(self, ids: Any) -> None:
        kind = getattr(ids.dtype, "name", ids.dtype)
        max_exact = _MAX_EXACT_INTEGER.get(kind)
        if max_exact is not None and not 0 < self.served_table.rows <= max_exact + 1:
            raise unsupported_embedding_error(
                self,
                f"its ids have the type {kind}, which is exact only up to {max_exact:,}: larger ids would be changed",
                'declare the input as int64: keras.Input(..., dtype="int64"), and yield int64 in feed',
            )

    @property
    def embeddings(self) -> NoReturn:
        """The table, which no worker has.

        Raises:
            UnsupportedEmbeddingError: always.
        """
        raise unsupported_embedding_error(
            self, "the model's code uses the table as a whole (`embeddings`), not rows of ids"
        )

    _embeddings = embeddings

    def set_weights(self, weights: Any) -> NoReturn:
        """Refuse to set the table's values."""
        raise unsupported_embedding_error(self, "the model's code sets its values")

    def load_own_variables(self, store: Any) -> NoReturn:
        self.set_weights(store)

    def enable_lora(self, *arguments: Any, **options: Any) -> NoReturn:
        raise unsupported_embedding_error(self, "it has lora_rank")


def convert_to_ps_embedding(layer: Any, seed: int) -> None:
    """Convert an Embedding that is about to be built to a PS-backed layer.

    Raises:
        UnsupportedEmbeddingError: the PS cannot store it; the error has the reason.
    """
    unsupported = _unsupported_reason(layer)
    if unsupported is not None:
        raise unsupported_embedding_error(layer, *unsupported)
    # This creates a variable without rows, because only Keras knows the name that the table would
    # have.
    variable = layer.add_weight(shape=(0, layer.output_dim), initializer="zeros", name="embeddings")
    layer._untrack_variable(variable)
    # Bypass Keras, which would track variables and layers in assigned attributes.
    object.__setattr__(layer, "served_table", _table_spec(layer, variable.path, seed))
    kind: Any = type(layer)
    object.__setattr__(layer, "__class__", _ps_embedding_class(kind))
    layer.built = True


def _table_spec(layer: Any, name: str, seed: int) -> TableSpec:
    shape = (layer.input_dim or 0, layer.output_dim)
    initializer = to_row_initializer(layer.embeddings_initializer, shape)
    assert initializer is not None
    return TableSpec(name, *shape, initializer, _table_seed(seed, name))


@functools.cache
def _ps_embedding_class(kind: type) -> type:
    if issubclass(kind, PsEmbedding):
        return kind
    bases = (PsEmbedding,) if kind is keras.layers.Embedding else (kind, PsEmbedding)
    return type(kind.__name__, bases, {"__module__": kind.__module__, "__doc__": kind.__doc__})


def find_ps_embeddings(model: Any, threshold: float) -> tuple[PsEmbedding, ...]:
    """The PS-backed layers of a model that was built under ``converting_large_embeddings``.

    Args:
        model: a built model.
        threshold: the size in bytes from which a table must be stored on the PS.

    Raises:
        UnsupportedEmbeddingError: an Embedding of that size was not converted, or is not trainable.
        BadInputError: two tables have the same name.
    """
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.Embedding)]
    for layer in layers:
        if not isinstance(layer, PsEmbedding) and layer.built and table_bytes(layer) >= threshold:
            raise unsupported_embedding_error(
                layer, "its table was created outside of the model function, or by its own build()"
            )
        if isinstance(layer, PsEmbedding) and not layer.trainable:
            raise unsupported_embedding_error(layer, "it is not trainable")
    ps_embeddings = tuple(layer for layer in layers if isinstance(layer, PsEmbedding))
    _check_unique_names([layer.served_table.name for layer in ps_embeddings], [weight.path for weight in model.weights])
    return ps_embeddings


def _check_unique_names(tables: list[str], variables: list[str]) -> None:
    for at, name in enumerate(tables):
        if name in tables[:at] or name in variables:
            raise BadInputError(
                f"the table '{name}' of an Embedding has the name of another variable",
                hint="give the Embedding a unique name: Embedding(..., name=...)",
            )


def _unsupported_reason(layer: Any) -> tuple[str, ...] | None:
    """Why an Embedding cannot be PS-backed, and the remedy if a dense table would be refused as well.

    None if it can.
    """
    if layer.embeddings_constraint is not None:
        return (
            "it has embeddings_constraint, but the parameter servers get only the rows of a minibatch",
            "remove the constraint, which a dense table cannot have either; activity_regularizer penalizes the rows "
            "that are looked up",
        )
    for name in ("embeddings_regularizer", "quantization_config", "lora_rank"):
        if getattr(layer, name, None) is not None:
            return (f"it has {name}, but the parameter servers get only the rows of a minibatch",)
    if layer.quantization_mode:
        return ("it is quantized",)
    if layer.variable_dtype != "float32":
        return (
            f"its table is {layer.variable_dtype}, not float32",
            "remove its dtype, because EDL trains only float32 variables, dense tables too; for mixed precision use "
            "the policy mixed_bfloat16: its variables stay float32",
        )
    if to_row_initializer(layer.embeddings_initializer, (layer.input_dim or 0, layer.output_dim)) is None:
        return (f"its initializer {type(layer.embeddings_initializer).__name__} cannot be computed row by row",)
    return None


def _table_seed(seed: int, name: str) -> int:
    value = splitmix64(seed)
    for byte in name.encode():
        value = splitmix64(value ^ byte)
    # The Declare message holds it as int64.
    return int(value >> 1)


# --------------------------------------------------------------------------------------------------
# Building large Embeddings without their tables. A PS-backed table may exceed a worker's memory,
# and a worker never reads it. So Embeddings above the threshold that are built in this context are
# converted before Keras creates their variables.


@contextmanager
def converting_large_embeddings(threshold: float, seed: int) -> Iterator[None]:
    """Convert large Embeddings while models are built in this context.

    Args:
        threshold: the size in bytes from which a table is stored on the PS.
        seed: the job's seed; each table's seed is computed from it and the table's name.
    """
    build = keras.layers.Embedding.build

    @functools.wraps(build)
    def build_or_convert(layer: Any, input_shape: Any = None) -> None:
        if table_bytes(layer) < threshold:
            build(layer, input_shape)
        elif not layer.built:
            convert_to_ps_embedding(layer, seed)

    keras.layers.Embedding.build = build_or_convert
    try:
        yield
    finally:
        keras.layers.Embedding.build = build
