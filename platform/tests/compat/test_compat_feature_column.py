"""Feature columns: the documented example of the concatenated column, and columns over it."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.tensorflow

import tensorflow as tf  # noqa: E402
from tensorflow.python.feature_column.serialization import (  # noqa: E402
    deserialize_feature_column,
    serialize_feature_column,
)

from elasticdl.python.elasticdl.feature_column import feature_column as edl_columns  # noqa: E402
from elasticdl_preprocessing.feature_column import feature_column  # noqa: E402

WORK_CLASSES = [
    "Private",
    "Self-emp-not-inc",
    "Self-emp-inc",
    "Federal-gov",
    "Local-gov",
    "State-gov",
    "Without-pay",
    "Never-worked",
]


def identity_and_vocabulary() -> list[Any]:
    return [
        tf.feature_column.categorical_column_with_identity("id", num_buckets=32),
        tf.feature_column.categorical_column_with_vocabulary_list("work_class", vocabulary_list=WORK_CLASSES),
    ]


def ids_of(column: Any, features: dict[str, Any]) -> dict[tuple[int, ...], int]:
    cache = tf.__internal__.feature_column.FeatureTransformationCache(features)
    tensor = column.get_sparse_tensors(cache, None).id_tensor
    return dict(zip(map(tuple, tensor.indices.numpy().tolist()), tensor.values.numpy().tolist(), strict=True))


def test_the_documented_example() -> None:
    column = feature_column.concatenated_categorical_column(identity_and_vocabulary())
    features = {
        "id": tf.constant([[1], [-1], [8]]),
        "work_class": tf.constant([[""], ["Private"], ["Self-emp-inc"]]),
    }
    assert ids_of(column, features) == {(0, 0): 1, (1, 1): 32, (2, 0): 8, (2, 1): 34}
    assert column.num_buckets == 40
    assert column.name == "id_C_work_class"


def test_buckets_of_numbers_are_concatenated() -> None:
    age = tf.feature_column.bucketized_column(tf.feature_column.numeric_column("age"), boundaries=[18, 40])
    town = tf.feature_column.categorical_column_with_hash_bucket("town", hash_bucket_size=4)
    column = feature_column.concatenated_categorical_column([age, town])
    ids = ids_of(column, {"age": tf.constant([[20.0]]), "town": tf.constant([["Ulm"]])})
    assert ids[0, 0] == 1
    assert 3 <= ids[0, 1] < 7
    assert set(column.parse_example_spec) == {"age", "town"}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (None, "must be a list"),
        ((), "must be a list"),
        ([], "empty"),
        ([1], "not a categorical column: 1"),
        (["age"], "not a categorical column: 'age'"),
    ],
)
def test_what_is_no_list_of_categorical_columns_is_refused(columns: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        feature_column.concatenated_categorical_column(columns)


def test_weights_are_not_lost_silently() -> None:
    weighted = tf.feature_column.weighted_categorical_column(identity_and_vocabulary()[0], "weight")
    column = feature_column.concatenated_categorical_column([weighted])
    with pytest.raises(ValueError, match="weights"):
        ids_of(column, {"id": tf.constant([[1]]), "weight": tf.constant([[0.5]])})


def test_an_embedding_column_takes_it_and_is_saved_with_it() -> None:
    column = feature_column.concatenated_categorical_column(identity_and_vocabulary())
    embedding = edl_columns.embedding_column(column, dimension=4, combiner="sum")
    assert (embedding.dimension, embedding.combiner, embedding.name) == (4, "sum", "id_C_work_class_embedding")
    assert deserialize_feature_column(serialize_feature_column(column)) == column
    with pytest.raises(ValueError, match="dimension"):
        edl_columns.embedding_column(column, dimension=0)
