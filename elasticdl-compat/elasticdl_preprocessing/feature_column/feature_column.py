"""A categorical column of several others, so that they share one Embedding."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import tensorflow as tf

# TensorFlow has no public name of this base class, by which its embedding columns know a categorical column.
from tensorflow.python.feature_column.feature_column_v2 import CategoricalColumn
from tensorflow.python.feature_column.serialization import (
    deserialize_feature_column,
    register_feature_column,
    serialize_feature_column,
)

from elasticdl_compat.missing_names import explain_missing_names


def concatenated_categorical_column(categorical_columns: list[Any]) -> ConcatenatedCategoricalColumn:
    """A categorical column with the ids of several others, each in a range of its own.

    Ids of the first column are 0 to ``num_buckets - 1``, those of the second follow, and so on. An embedding column
    over it needs one table instead of one for each.

    Args:
        categorical_columns: a list of categorical columns.

    Raises:
        ValueError: it is not a list, is empty, or has something else in it.
    """
    if not isinstance(categorical_columns, list):
        raise ValueError(f"categorical_columns must be a list, not {type(categorical_columns).__name__}")  # noqa: TRY004
    if not categorical_columns:
        raise ValueError("categorical_columns is empty")
    for column in categorical_columns:
        if not isinstance(column, CategoricalColumn):
            raise ValueError(f"not a categorical column: {column!r}")  # noqa: TRY004
    return ConcatenatedCategoricalColumn(tuple(categorical_columns))


@register_feature_column
@dataclass(frozen=True)
class ConcatenatedCategoricalColumn(CategoricalColumn):  # type: ignore[misc]
    """What :func:`concatenated_categorical_column` returns."""

    categorical_columns: tuple[Any, ...]

    @property
    def name(self) -> str:
        """The names of the columns, in alphabetical order."""
        return "_C_".join(sorted(column.name for column in self.categorical_columns))

    @property
    def num_buckets(self) -> int:
        """Number of ids of all columns."""
        return sum(column.num_buckets for column in self.categorical_columns)

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        """How to parse the features of all columns from a ``tf.train.Example``."""
        return {name: spec for column in self.categorical_columns for name, spec in column.parse_example_spec.items()}

    @property
    def parents(self) -> list[Any]:
        """The columns."""
        return list(self.categorical_columns)

    @property
    def _is_v2_column(self) -> bool:
        return all(column._is_v2_column for column in self.categorical_columns)

    def create_state(self, state_manager: Any) -> None:
        """Create what the columns need, such as lookup tables."""
        for column in self.categorical_columns:
            column.create_state(state_manager)

    def transform_feature(self, transformation_cache: Any, state_manager: Any) -> Any:
        """The ids of all columns as one sparse tensor, side by side."""
        offsets = accumulate((column.num_buckets for column in self.categorical_columns), initial=0)
        parts = []
        for column, offset in zip(self.categorical_columns, offsets, strict=False):
            ids, weights = column.get_sparse_tensors(transformation_cache, state_manager)
            if weights is not None:
                raise ValueError(f"the column {column.name} has weights, which a concatenated column cannot keep")
            parts.append(tf.SparseTensor(ids.indices, tf.cast(ids.values, tf.int64) + offset, ids.dense_shape))
        return tf.sparse.concat(-1, parts)

    def get_sparse_tensors(self, transformation_cache: Any, state_manager: Any) -> Any:
        """The ids, without weights."""
        return CategoricalColumn.IdWeightPair(transformation_cache.get(self, state_manager), None)

    def get_config(self) -> dict[str, Any]:
        """The columns as values that TensorFlow can save."""
        return {"categorical_columns": tuple(serialize_feature_column(column) for column in self.categorical_columns)}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: Any = None, columns_by_name: Any = None
    ) -> ConcatenatedCategoricalColumn:
        """The column of a saved config."""
        saved = config["categorical_columns"]
        return cls(tuple(deserialize_feature_column(each, custom_objects, columns_by_name) for each in saved))


__getattr__ = explain_missing_names(__name__)
