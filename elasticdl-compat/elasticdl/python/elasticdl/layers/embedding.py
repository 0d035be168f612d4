"""The layer Embedding, whose rows are on the parameter servers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from edl.layers import Embedding as _EdlEmbedding
from elasticdl_compat.missing_names import explain_missing_names
from elasticdl_preprocessing.layers import SparseEmbedding


def Embedding(  # noqa: N802 (the name of ElasticDL's class)
    output_dim: int,
    input_dim: int | None = None,
    embeddings_initializer: Any = "uniform",
    mask_zero: bool = False,
    input_length: int | None = None,
    combiner: str | None = None,
    **options: Any,
) -> Any:
    """An ``edl.layers.Embedding``. A function, so that exported models have EDL's layer.

    In a model of Keras 2 it is a layer of Keras 2, whose table is an ordinary variable.

    Args:
        output_dim: length of a row.
        input_dim: number of ids; None or 0: every int64 is an id.
        embeddings_initializer: initializer of the rows.
        mask_zero: id 0 is padding.
        input_length: not needed, because Keras knows the shape of the input.
        combiner: ``sum``, ``mean`` or ``sqrtn`` makes one row of the ids of a record; needed for sparse ids.
        **options: other arguments of the layer, such as ``name``.

    Raises:
        ValueError: a model of Keras 2 has one without ``input_dim``.
    """
    del input_length
    if tf.keras.__version__.startswith("2."):
        return _make_keras2_layer(output_dim, input_dim, embeddings_initializer, mask_zero, combiner, options)
    return _EdlEmbedding(
        output_dim,
        input_dim or None,
        embeddings_initializer=embeddings_initializer,
        mask_zero=mask_zero,
        combiner=combiner,
        **options,
    )


def _make_keras2_layer(
    output_dim: int, input_dim: int | None, initializer: Any, mask_zero: bool, combiner: str | None, options: Any
) -> Any:
    if not input_dim:
        raise ValueError(
            "Embedding without input_dim keeps its rows on parameter servers, which needs Keras 3: give input_dim, or "
            "write the model with keras instead of tf.keras and remove model.keras: 2 and TF_USE_LEGACY_KERAS"
        )
    if combiner is not None:
        return SparseEmbedding(input_dim, output_dim, combiner=combiner, embeddings_initializer=initializer, **options)
    return tf.keras.layers.Embedding(input_dim, output_dim, initializer, mask_zero=mask_zero, **options)


__getattr__ = explain_missing_names(__name__)
