"""Combiners: sum, mean and sqrtn of the rows of a record, with weights, as in
``tf.nn.embedding_lookup_sparse``.

With rows r and weights w (by default 1): ``sum`` is the sum of w r, ``mean`` is that divided by the sum of w, ``sqrtn``
is that divided by the root of the sum of w squared. A record without rows gives zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

COMBINERS = ("sum", "mean", "sqrtn")

RecordSum = Callable[[Any], Any]


def combine_rows(combiner: str, rows: Any, weights: Any, sum_rows: RecordSum) -> Any:
    """Combine the rows of each record into one.

    Args:
        combiner: one of :data:`COMBINERS`.
        rows: ``[..., dim]``.
        weights: weights of the rows, ``[...]``; a row with weight zero is left out.
        sum_rows: sums the rows of each record.
    """
    weights = tf.cast(weights, rows.dtype)[..., None]
    summed = sum_rows(rows * weights)
    if combiner == "sum":
        return summed
    divisor = sum_rows(weights) if combiner == "mean" else tf.sqrt(sum_rows(tf.square(weights)))
    # a record without rows has the divisor 0, and must give zeros
    return tf.math.divide_no_nan(summed, divisor)


def make_segment_sum(records: Any, count: Any) -> RecordSum:
    """A function that sums entries by record. ``records`` [entries] has the record of each; there are ``count``."""
    return lambda values: tf.math.unsorted_segment_sum(values, records, count)


def sum_columns(values: Any) -> Any:
    """Sum over the columns of dense records: over the second last axis of ``[..., columns, dim]``."""
    return tf.reduce_sum(values, -2)
