"""Replaces EDL's layers by Keras layers, so that Keras alone can load a ``.keras`` file.

An ``edl.layers.Embedding`` on dense ids is replaced by an ``IntegerLookup`` (for ids without a bound), a Keras
``Embedding``, and operations for the combiner. Keras has no layers for sparse and ragged ids, and cannot exchange
layers in subclassed models; loading such a file needs ``import edl.layers``.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from edl.layers import Embedding

# --------------------------------------------------------------------------------------------------
# Comparison of two models' predictions.


_FLOAT32_TOLERANCE, _HALF_PRECISION_TOLERANCE = 1e-4, 0.1
"""The largest difference, as a fraction of the largest output, that summation in another order explains: in float32,
and in models with float16 or bfloat16 layers."""


def trace_prediction(model: KerasModel, features: Any) -> Any:
    """A ``tf.function`` that computes a model's predictions.

    Args:
        model: a built model.
        features: nested TensorSpecs (or specs of ragged and sparse tensors).
    """
    return tf.function(lambda given: model(given, training=False), input_signature=[features], autograph=False)


def output_tolerance(model: KerasModel) -> float:
    """The tolerance for comparing the outputs of two models, as a fraction of the largest output."""
    kinds = {layer.compute_dtype for layer in model._flatten_layers()}
    return _HALF_PRECISION_TOLERANCE if kinds & {"float16", "bfloat16"} else _FLOAT32_TOLERANCE


def outputs_match(expected: Any, actual: Any, tolerance: float) -> bool:
    """Whether nested outputs have the same values.

    Args:
        expected: nested tensors; they may be ragged or sparse.
        actual: the outputs of the other model.
        tolerance: the largest allowed difference of floats, as a fraction of an output's largest value.
    """
    one, other = (tf.nest.flatten(each, expand_composites=True) for each in (expected, actual))
    return len(one) == len(other) and all(_tensors_match(*pair, tolerance) for pair in zip(one, other, strict=True))


def _tensors_match(first: Any, second: Any, tolerance: float) -> bool:
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if not first.dtype.is_floating:
        return bool(np.array_equal(first.numpy(), second.numpy()))
    values, others = (tf.cast(each, tf.float64).numpy() for each in (first, second))
    largest = np.max(np.abs(values), initial=0.0, where=np.isfinite(values))
    return bool(np.allclose(values, others, rtol=0.0, atol=tolerance * largest, equal_nan=True))


_LOG = logging.getLogger(__name__)

KerasModel = Any


def replace_edl_layers(model: KerasModel, features: Any, sample: Any) -> KerasModel:
    """A model with the same predictions and Keras layers instead of EDL's; ``model`` itself if that is impossible.

    Both models share their other layers.

    Args:
        model: a built model with the exported values.
        features: nested TensorSpecs (or specs of ragged and sparse tensors).
        sample: features for comparing the predictions of both models; None: they are not compared.
    """
    edl_layers = [layer for layer in model._flatten_layers() if type(layer) is Embedding]
    if not edl_layers or not _is_clonable(model) or not all(map(_is_replaceable, edl_layers)):
        return model
    predict = trace_prediction(model, features)
    if not _all_ids_dense(edl_layers, predict):
        return model
    replacements = {id(layer): _replacement_layer(layer) for layer in edl_layers}
    keras_only_model = keras.models.clone_model(
        model, clone_function=lambda layer: replacements.get(id(layer), layer), call_function=None, recursive=True
    )
    if sample is None or outputs_match(
        predict(sample), trace_prediction(keras_only_model, features)(sample), output_tolerance(model)
    ):
        return keras_only_model
    _LOG.warning("the .keras file keeps layers of edl.layers: with Keras layers the model's predictions would differ")
    return model


def needs_edl_layers(model: KerasModel) -> bool:
    """Whether loading the model's file requires ``import edl.layers``."""
    return any(isinstance(layer, Embedding) for layer in model._flatten_layers())


def _is_clonable(model: KerasModel) -> bool:
    """Whether Keras can clone the model: Sequential or functional, not a user's subclass."""
    kind = type(model)
    return kind is keras.Sequential or (kind.__name__ == "Functional" and kind.__module__.startswith("keras."))


def _is_replaceable(layer: Any) -> bool:
    """Whether Keras layers can replace this one: it is called without weights, and masks no unbounded ids."""
    plain_calls = not any(node.arguments.kwargs for node in layer._inbound_nodes)
    masked = layer.input_dim is None and layer.mask_zero and layer.combiner is None
    return bool(layer._inbound_nodes) and plain_calls and not masked


def _all_ids_dense(layers: Sequence[Any], predict: Any) -> bool:
    """Whether EDL's layers are called only with dense ids. Traces the model to find out.

    Keras' symbolic tensors do not show it: outputs of ``StringLookup`` and ``Hashing`` for sparse inputs look dense.
    """
    dense: list[bool] = []
    call = Embedding.call

    @functools.wraps(call)
    def noted(layer: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
        if any(layer is each for each in layers):
            dense.append(isinstance(inputs, tf.Tensor))
        return call(layer, inputs, *rest, **more)

    Embedding.call = noted  # type: ignore[method-assign, assignment]
    try:
        predict.get_concrete_function()
    finally:
        Embedding.call = call  # type: ignore[method-assign]
    return all(dense)


def _replacement_layer(layer: Any) -> Any:
    if layer.input_dim is not None and layer.combiner is None:
        return _shared_embedding(layer, name=layer.name, mask_zero=layer.mask_zero)
    ids = keras.Input(_id_shape(layer), dtype="int64")
    rows = ids if layer.input_dim is not None else _known_id_lookup(np.asarray(layer.ids))(ids)
    rows_of_ids = _shared_embedding(layer)(rows)
    return keras.Model(ids, _combine_rows(layer, ids, rows_of_ids) if layer.combiner else rows_of_ids, name=layer.name)


def _id_shape(layer: Any) -> tuple[int | None, ...]:
    """The shape of a record's ids; a dimension is None if the calls of the layer differ in it."""
    shapes = [node.input_tensors[0].shape[1:] for node in layer._inbound_nodes]
    return tuple(lengths[0] if len(set(lengths)) == 1 else None for lengths in zip(*shapes, strict=True))


def _shared_embedding(layer: Any, **options: Any) -> Any:
    """A Keras Embedding that shares the layer's variable, because a copy of a large table may not fit in memory."""
    table = keras.layers.Embedding(*layer.embeddings.shape, dtype=layer.dtype_policy, **options)
    # build() calls add_weight and keeps its result: this way it gets the existing variable.
    table.add_weight = lambda **_: layer._embeddings
    table.build()
    del table.add_weight
    return table


def _known_id_lookup(known_ids: Any) -> Any:
    """A layer that maps the known ids to 1, 2, ... in ascending order, and all other ids to 0."""
    # IntegerLookup needs an id for unknown ids that is not in the vocabulary: the smallest free
    # one.
    counted = known_ids[known_ids >= 0]
    gaps = np.flatnonzero(counted != np.arange(len(counted)))
    lookup = keras.layers.IntegerLookup(mask_token=None, oov_token=int(gaps[0]) if len(gaps) else len(counted))
    lookup.set_vocabulary(known_ids)
    return lookup


def _combine_rows(layer: Any, ids: Any, rows: Any) -> Any:
    """The combiners of ``edl.layers.combiners`` as Keras operations."""
    counted = ops.not_equal(ids, 0) if layer.mask_zero else ops.ones_like(ids)
    weights = ops.expand_dims(ops.cast(counted, rows.dtype), -1)
    summed, count = ops.sum(rows * weights, -2), ops.sum(weights, -2)
    if layer.combiner == "sum":
        return summed
    return ops.divide_no_nan(summed, count if layer.combiner == "mean" else ops.sqrt(count))
