"""Rows of the ids of a record, combined into one."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from elasticdl_preprocessing.layers.preprocessing_layer import register

_SEGMENT_COMBINERS = {
    "sum": tf.math.unsorted_segment_sum,
    "mean": tf.math.unsorted_segment_mean,
    "sqrtn": tf.math.unsorted_segment_sqrt_n,
}


@register
class SparseEmbedding(tf.keras.layers.Embedding):  # type: ignore[misc]
    """One row for each record: the combined rows of its ids. A record without ids gives zeros.

    It is a Keras Embedding, so a large table is on the parameter servers of a job.

    Args:
        input_dim: number of ids, which are 0 to ``input_dim - 1``. Negative ids are left out.
        output_dim: length of a row.
        embeddings_initializer: initializer of the table.
        combiner: ``sum``, ``mean`` or ``sqrtn``.
        **options: other arguments of ``keras.layers.Embedding``.

    Call it with sparse ids ``[records, columns]``; ragged and dense ones work as well.

    Raises:
        ValueError: there is no such combiner, or the ids have another rank.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        combiner: str = "mean",
        **options: Any,
    ) -> None:
        if combiner not in _SEGMENT_COMBINERS:
            raise ValueError(f"combiner must be {', '.join(_SEGMENT_COMBINERS)}, not {combiner!r}")
        super().__init__(input_dim, output_dim, embeddings_initializer=embeddings_initializer, **options)
        self.combiner = combiner
        self._supports_ragged_inputs = True  # tf_keras asks
        self.supports_jit = False  # XLA has neither text nor sparse tensors

    def call(self, inputs: Any) -> Any:
        """The rows ``[records, output_dim]``."""
        if inputs.shape.rank not in (None, 2):
            raise ValueError(f"{self.name}: ids must be [records, columns], not {tuple(inputs.shape)}")
        ids, records, count = _present_ids(inputs)
        combined = _SEGMENT_COMBINERS[self.combiner](super().call(ids), records, count)
        combined.set_shape([inputs.shape[0], self.output_dim])
        return combined

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Nothing to mask: there is one row for each record."""
        return None

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the output."""
        return (input_shape[0], self.output_dim)

    def compute_output_spec(self, inputs: Any) -> Any:
        """The output of a symbolic call: dense, whatever the ids are."""
        return tf.keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """All arguments of the constructor."""
        return {**super().get_config(), "combiner": self.combiner}


def _present_ids(inputs: Any) -> tuple[Any, Any, Any]:
    """The ids that are not negative, the record of each, and the number of records."""
    if isinstance(inputs, tf.RaggedTensor):
        ids, records, count = inputs.flat_values, inputs.value_rowids(), inputs.nrows()
    elif isinstance(inputs, tf.SparseTensor):
        ids, records, count = inputs.values, inputs.indices[:, 0], inputs.dense_shape[0]
    else:
        count, columns = tf.unstack(tf.shape(inputs, out_type=tf.int64))
        ids, records = tf.reshape(inputs, [-1]), tf.repeat(tf.range(count), columns)
    ids = tf.cast(ids, tf.int64)
    present = ids >= 0
    return tf.boolean_mask(ids, present), tf.boolean_mask(records, present), count
