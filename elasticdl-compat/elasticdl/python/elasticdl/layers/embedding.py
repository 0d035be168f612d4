"""The layer Embedding, whose rows are on the parameter servers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from edl.layers import Embedding as _EdlEmbedding
from edl.layers.keras2_embedding import make_keras2_embedding
from elasticdl_compat.missing_names import explain_missing_names


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

    In a model of Keras 2 it is a layer of Keras 2 around it.

    Args:
        output_dim: length of a row.
        input_dim: number of ids; None or 0: every int64 is an id.
        embeddings_initializer: initializer of the rows.
        mask_zero: id 0 is padding.
        input_length: not needed, because Keras knows the shape of the input.
        combiner: ``sum``, ``mean`` or ``sqrtn`` makes one row of the ids of a record; needed for sparse ids.
        **options: other arguments of the layer, such as ``name``.
    """
    del input_length
    layer = _EdlEmbedding(
        output_dim,
        input_dim or None,
        embeddings_initializer=embeddings_initializer,
        mask_zero=mask_zero,
        combiner=combiner,
        **options,
    )
    return make_keras2_embedding(layer) if tf.keras.Model.__module__.startswith("tf_keras") else layer


__getattr__ = explain_missing_names(__name__)
