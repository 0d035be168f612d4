"""Feature columns for models of Keras 2, whose layer ``DenseFeatures`` takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from elasticdl_compat.missing_names import explain_missing_names


def embedding_column(
    categorical_column: Any,
    dimension: int,
    combiner: str = "mean",
    initializer: Callable[..., Any] | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> Any:
    """TensorFlow's embedding column of a categorical column.

    Args:
        categorical_column: the column whose ids are looked up.
        dimension: length of a row.
        combiner: ``mean``, ``sqrtn`` or ``sum`` of the rows of a record.
        initializer: initializer of the table; None: truncated normal with a deviation of ``1 / sqrt(dimension)``.
        max_norm: rows are scaled down to this norm.
        trainable: whether the table is trained.

    Raises:
        ValueError: the dimension is not positive, or the initializer cannot be called.
    """
    return tf.feature_column.embedding_column(
        categorical_column,
        dimension,
        combiner=combiner,
        initializer=initializer,
        max_norm=max_norm,
        trainable=trainable,
    )


__getattr__ = explain_missing_names(__name__)
