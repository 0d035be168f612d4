"""An Embedding for multi-valued features and unbounded ids."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from edl.layers.checks import align_weights, check_ids_in_table, check_rank
from edl.layers.combiners import COMBINERS, combine_rows, make_segment_sum, sum_columns
from edl.layers.known_rows import constant_initializer, initial_known_rows, row_positions


@keras.saving.register_keras_serializable(package="edl")
class Embedding(keras.layers.Embedding):  # type: ignore[misc]
    """``keras.layers.Embedding`` with combiners, sparse and ragged inputs, weights, and tables without a fixed size.

    Like the layer of Keras, it is a dense variable below ``ps.embedding_threshold``, and is on the parameter servers
    above it.

    Args:
        output_dim: length of a row.
        input_dim: number of ids, which are 0 to input_dim - 1. None: every int64 is an id. The rows that are trained
            are then on the parameter servers, whatever the threshold.
        combiner: ``sum``, ``mean`` or ``sqrtn`` makes one row from all ids of a record, which are the last dimension.
            None: every id gives a row. See ``edl.layers.combiners``.
        known: set in files only: number of ids that the file contains for a table without a fixed size.
        mask_zero: id 0 is padding. Combiners leave it out; without a combiner, it is masked as in Keras.
        **options: other arguments of ``keras.layers.Embedding``.

    Call it with ids (dense ``[..., columns]``, ragged or sparse ``[records, columns]``) and, with a combiner, optional
    weights. Weights have the form of the ids: the same shape, row_splits or indices. A missing entry of a sparse tensor
    is not an id.

    Raises:
        ValueError: arguments or inputs that contradict each other.
        tf.errors.InvalidArgumentError: the same for inputs whose shapes are known only at run time, and ids outside of
            the table.
    """

    served_table: Any = None
    """Set if the rows are on parameter servers; the code that fetches the rows then checks the ids."""

    def __init__(
        self,
        output_dim: int,
        input_dim: int | None = None,
        *,
        combiner: str | None = None,
        mask_zero: bool = False,
        known: int | None = None,
        **options: Any,
    ) -> None:
        if combiner is not None and combiner not in COMBINERS:
            raise ValueError(f"combiner must be one of {', '.join(COMBINERS)} or None, not {combiner!r}")
        super().__init__(input_dim or 1, output_dim, mask_zero=mask_zero, **options)
        # Keras requires a number: 1 was passed above if there is none
        self.input_dim = input_dim
        self.combiner = combiner
        self.known = known
        self.ids: Any = None

    def build(self, input_shape: Any = None) -> None:
        """Create the table. For a table without a fixed size, create only the rows of an export."""
        if self.built:
            return
        known_table = initial_known_rows(self.path, self.known, self.output_dim) if self.input_dim is None else None
        if known_table is None:
            super().build(input_shape)  # a worker intercepts this for tables on parameter servers
            return
        self.ids = self.add_weight(
            shape=known_table.ids.shape,
            initializer=constant_initializer(known_table.ids),
            dtype="int64",
            trainable=False,
            name="ids",
        )
        self._embeddings = self.add_weight(
            shape=known_table.rows.shape, initializer=constant_initializer(known_table.rows), name="embeddings"
        )

    def add_weight(self, shape: Any = None, **options: Any) -> Any:
        """As in Keras, but refuses a table without a fixed size, which has no variable."""
        if None in (shape or ()):
            raise ValueError(
                f"the Embedding '{self.path}' has no input_dim: its rows are on parameter servers, so only an "
                "EDL job with strategy ParameterServer can train it; set input_dim to train it otherwise"
            )
        return super().add_weight(shape=shape, **options)

    def call(self, inputs: Any, weights: Any = None) -> Any:
        """The rows of ids, or one combined row per record."""
        if weights is not None and self.combiner is None:
            raise ValueError("weights need a combiner: set combiner to sum, mean or sqrtn")
        if self.combiner is not None:
            check_rank(self._display_name, inputs)
            weights = None if weights is None else align_weights(self._display_name, inputs, weights)
        if isinstance(inputs, tf.SparseTensor):
            return self._call_sparse(inputs, weights)
        if isinstance(inputs, tf.RaggedTensor):
            return self._call_ragged(inputs, weights)
        rows = self._look_up_rows(inputs)
        return rows if self.combiner is None else self._combine_rows(inputs, rows, weights, sum_columns)

    def _call_sparse(self, ids: Any, weights: Any) -> Any:
        if self.combiner is None:
            raise ValueError("sparse ids need a combiner, because a missing entry has no row")
        total = make_segment_sum(ids.indices[:, 0], ids.dense_shape[0])
        return self._combine_rows(ids.values, self._look_up_rows(ids.values), weights, total)

    def _call_ragged(self, ids: Any, weights: Any) -> Any:
        rows = self._look_up_rows(ids.flat_values)
        if self.combiner is None:
            return ids.with_flat_values(rows)
        return self._combine_rows(ids.flat_values, rows, weights, make_segment_sum(ids.value_rowids(), ids.nrows()))

    def _look_up_rows(self, ids: Any) -> Any:
        if self.ids is not None:
            ids = row_positions(self.ids, ids)
        elif self.input_dim is not None and self.served_table is None:
            table = f"{self._display_name} ({self.input_dim} x {self.output_dim})"
            ids = check_ids_in_table(tf.convert_to_tensor(ids), self.input_dim, table)
        return super().call(ids)

    @property
    def _display_name(self) -> str:
        return f"the Embedding {self.path}"

    def _combine_rows(self, ids: Any, rows: Any, weights: Any, sum_rows: Any) -> Any:
        weights = tf.ones_like(ids, rows.dtype) if weights is None else tf.cast(weights, rows.dtype)
        # a weight of zero leaves the row out of sum, mean and sqrtn alike
        if self.mask_zero:
            weights = tf.where(tf.equal(ids, 0), tf.zeros_like(weights), weights)
        return combine_rows(str(self.combiner), rows, weights, sum_rows)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """As in Keras without a combiner. With a combiner there is nothing to mask."""
        return None if self.combiner else super().compute_mask(inputs, mask)

    def compute_output_spec(self, inputs: Any, weights: Any = None) -> Any:
        """The shape and type of the output, without running the layer."""
        if self.combiner is None:
            return super().compute_output_spec(inputs)
        check_rank(self._display_name, inputs)
        return keras.KerasTensor((*inputs.shape[:-1], self.output_dim), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """All arguments of the constructor."""
        known = {} if self.ids is None else {"known": self.ids.shape[0]}
        return {**super().get_config(), "combiner": self.combiner, **known}

    @property
    def variable_serialization_spec(self) -> Any:
        """As in Keras: the variables of a file, in order, by quantization mode."""
        spec = super().variable_serialization_spec
        # None is the mode without quantization
        return spec if self.ids is None else {**spec, None: ["embeddings", "ids"]}
