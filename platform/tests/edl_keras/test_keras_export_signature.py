"""What a served SavedModel calls its features: ``serving_default`` has plain tensors, named by the features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.repetition import repetition

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras'
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from edl_keras.embedding_harness import network_of, rows_for, write_export  # noqa: E402

from edl.keras.model_building import named_component_specs  # noqa: E402
from edl.layers import Embedding  # noqa: E402

PRICES = np.array([[1.0], [2.0], [3.0]], np.float32)


def tags_in_parts(form: str) -> tuple[Any, dict[str, Any]]:
    """Tags of three records, and the parts in which a SavedModel takes them."""
    tags = tf.ragged.constant([[3, 1], [], [2]], tf.int64)
    if form == "ragged":
        return tags, {"tags_values": tags.flat_values, "tags_row_splits": tags.row_splits}
    if form == "dense":
        return tags.to_tensor(), {"tags": tags.to_tensor()}
    sparse = tags.to_sparse()
    parts = {"indices": sparse.indices, "values": sparse.values, "dense_shape": sparse.dense_shape}
    return sparse, {f"tags_{name}": part for name, part in parts.items()}


class DictInputModel(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.tags = Embedding(2, 5, combiner="sum")
        self.head = keras.layers.Dense(1)

    def call(self, features: Any) -> Any:
        return self.head(keras.ops.concatenate([self.tags(features["tags"]), features["price"]], axis=1))


def functional(form: str) -> Any:
    columns = 2 if form == "dense" else None
    tags = keras.Input([columns], dtype="int64", name="tags", ragged=form == "ragged", sparse=form == "sparse")
    price = keras.Input([1], name="price")
    both = keras.layers.Concatenate()([Embedding(2, 5, combiner="sum")(tags), price])
    return keras.Model({"tags": tags, "price": price}, keras.layers.Dense(1)(both))


@pytest.mark.parametrize(
    ("form", "subclassed"),
    [
        pytest.param("ragged", False, id="ragged-functional"),
        pytest.param("sparse", True, id="sparse-subclassed"),
        pytest.param("dense", False, id="dense-functional"),
        repetition("ragged", True, name="ragged-subclassed"),
        repetition("sparse", False, name="sparse-functional"),
        repetition("dense", True, name="dense-subclassed"),
    ],
)
@pytest.mark.first_cases(1)
def test_features_keep_their_names(form: str, subclassed: bool, tmp_path: Path) -> None:
    tags, parts = tags_in_parts(form)
    prices = tf.constant(PRICES)
    features = {"tags": tags, "price": prices}
    network = network_of(DictInputModel if subclassed else lambda: functional(form), features)
    rows = rows_for(network, features)
    write_export(network, rows, tmp_path)
    expected = network.predict(network.initial_values(), rows, features)
    served = tf.saved_model.load(str(tmp_path / "saved_model"))
    np.testing.assert_allclose(served.serve(features), expected, rtol=1e-5)
    outputs = served.signatures["serving_default"](price=prices, **parts)
    np.testing.assert_allclose(outputs["output_0"], expected, rtol=1e-5)


class UnstackingModel(keras.Model):
    """Takes its features apart, as dense ones cannot be."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.head = keras.layers.Dense(1)

    def call(self, features: Any) -> Any:
        tags = features["tags"]
        values = tags.values if self.form == "sparse" else tags.flat_values
        rows = tags.indices[:, 0] if self.form == "sparse" else tags.value_rowids()
        return self.head(tf.math.unsorted_segment_sum(tf.one_hot(values, 5), rows, len(PRICES)))


@pytest.mark.parametrize("form", ["sparse", "ragged"])
@pytest.mark.first_cases(1)
def test_a_model_is_traced_with_its_own_features_only(form: str, tmp_path: Path) -> None:
    tags, parts = tags_in_parts(form)
    network = network_of(lambda: UnstackingModel(form), {"tags": tags})
    write_export(network, {}, tmp_path)
    expected = network.predict(network.initial_values(), {}, {"tags": tags})
    served = tf.saved_model.load(str(tmp_path / "saved_model"))
    np.testing.assert_allclose(served.signatures["serving_default"](**parts)["output_0"], expected, rtol=1e-5)


def test_a_ragged_feature_of_two_ranks() -> None:
    parts = named_component_specs({"words": tf.RaggedTensorSpec([None, None, None], tf.int64, 2)})
    assert parts is not None
    assert [part.name for part in parts] == ["words_values", "words_row_splits_0", "words_row_splits_1"]


@pytest.mark.parametrize(
    "features",
    [
        tf.RaggedTensorSpec([None, None], tf.int64, 1),
        [tf.TensorSpec([None]), tf.TensorSpec([None])],
        {"user": {"tags": tf.TensorSpec([None])}},
        {"number of clicks": tf.TensorSpec([None])},
        {"class": tf.TensorSpec([None])},
        {"tags": tf.RaggedTensorSpec([None, None], tf.int64, 1), "tags_values": tf.TensorSpec([None])},
    ],
    ids=["no mapping", "a list", "nested", "no identifier", "a keyword", "twice the same"],
)
def test_features_without_usable_names(features: Any) -> None:
    assert named_component_specs(features) is None


def test_a_feature_named_like_a_keyword_is_exported(tmp_path: Path) -> None:
    class ClassModel(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.head = keras.layers.Dense(1)

        def call(self, features: Any) -> Any:
            return self.head(features["class"])

    features = {"class": tf.constant([[1.0], [2.0]])}
    network = network_of(ClassModel, features)
    write_export(network, {}, tmp_path)
    expected = network.predict(network.initial_values(), {}, features)
    served = tf.saved_model.load(str(tmp_path / "saved_model"))
    np.testing.assert_allclose(served.serve(features), expected, rtol=1e-5)
