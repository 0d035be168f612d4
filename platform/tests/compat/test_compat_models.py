"""Models with preprocessing layers: functional ones over sparse text, saved, exported, and with their table on PS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras'
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from elasticdl_preprocessing.layers import SparseEmbedding  # noqa: E402
from elasticdl_preprocessing.layers.concatenate_with_offset import ConcatenateWithOffset  # noqa: E402
from elasticdl_preprocessing.layers.discretization import Discretization  # noqa: E402
from elasticdl_preprocessing.layers.hashing import Hashing  # noqa: E402
from elasticdl_preprocessing.layers.index_lookup import IndexLookup  # noqa: E402
from elasticdl_preprocessing.layers.log_round import LogRound  # noqa: E402
from elasticdl_preprocessing.layers.normalizer import Normalizer  # noqa: E402
from elasticdl_preprocessing.layers.round_identity import RoundIdentity  # noqa: E402
from elasticdl_preprocessing.layers.to_number import ToNumber  # noqa: E402
from elasticdl_preprocessing.layers.to_ragged import ToRagged  # noqa: E402
from elasticdl_preprocessing.layers.to_sparse import ToSparse  # noqa: E402


def features() -> dict[str, Any]:
    return {
        "job": tf.constant([["clerk"], [""], ["smith"]]),
        "town": tf.constant([["Ulm"], ["Bonn"], ["?"]]),
        "age": tf.constant([[17.0], [44.0], [0.0]]),
    }


def inputs() -> dict[str, Any]:
    types = {"job": "string", "town": "string", "age": "float32"}
    return {name: keras.Input((1,), name=name, dtype=dtype) for name, dtype in types.items()}


def wide_and_deep() -> Any:
    """Text and a number as sparse ids of one table each for the wide and the deep part."""
    model_inputs = inputs()
    lookup, hashing, bins = IndexLookup(["Ulm", "Bonn"]), Hashing(16), Discretization([18.0, 40.0])
    ids = ConcatenateWithOffset([0, lookup.vocab_size(), lookup.vocab_size() + 16])(
        [
            lookup(ToSparse()(model_inputs["town"])),
            hashing(ToSparse()(model_inputs["job"])),
            bins(ToSparse()(model_inputs["age"])),
        ]
    )
    count = lookup.vocab_size() + 16 + bins.num_bins()
    wide = SparseEmbedding(count, 1, combiner="sum", name="wide")(ids)
    deep = SparseEmbedding(count, 4, name="deep")(ids)
    deep = keras.layers.Dense(4, activation="relu")(deep)
    return keras.Model(model_inputs, keras.layers.Dense(1)(ConcatenateWithOffset(None)([wide, deep])))


def test_a_functional_model_over_sparse_text_trains() -> None:
    model = wide_and_deep()
    model.compile("adam", "mse")
    data = tf.data.Dataset.from_tensors((features(), tf.constant([[1.0], [0.0], [1.0]])))
    losses = model.fit(data, epochs=30, shuffle=False, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert model(features()).shape == (3, 1)


def test_symbolic_outputs_have_shapes_and_types() -> None:
    model_inputs = inputs()
    ids = Hashing(16)(ToSparse()(model_inputs["job"]))
    assert (ids.shape, ids.dtype, ids.sparse) == ((None, 1), "int64", True)
    assert SparseEmbedding(16, 3)(ids).shape == (None, 3)
    assert Normalizer(0.0, 1.0)(model_inputs["age"]).shape == (None, 1)


def test_ragged_ids_of_a_functional_model_are_combined() -> None:
    model_inputs = keras.Input((1,), dtype="string")
    model = keras.Model(model_inputs, SparseEmbedding(9, 2, combiner="sum")(Hashing(9)(ToRagged()(model_inputs))))
    assert model(tf.constant([["a,b,c"], [""]])).shape == (2, 2)
    np.testing.assert_array_equal(model(tf.constant([[""]])), np.zeros((1, 2)))


def test_a_saved_model_predicts_the_same(tmp_path: Path) -> None:
    model = wide_and_deep()
    expected = model(features())
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(features()), expected, rtol=1e-6)


def test_an_exported_model_predicts_the_same(tmp_path: Path) -> None:
    model = wide_and_deep()
    expected = model(features())
    model.export(tmp_path, verbose=False)
    loaded = tf.saved_model.load(str(tmp_path))
    served = loaded.serve(features())
    np.testing.assert_allclose(served, expected, rtol=1e-6)


def test_layers_are_made_again_from_their_config() -> None:
    layers = [
        ConcatenateWithOffset([0, 3], axis=1, name="concat"),
        Discretization([1.0, 2.0]),
        Hashing(7),
        IndexLookup(["a", "b"], num_oov_tokens=2),
        LogRound(8, default_value=1, base=2),
        Normalizer(1.0, 2.0),
        RoundIdentity(max_value=9),
        SparseEmbedding(9, 2, combiner="sqrtn"),
        ToNumber(tf.int32, -1),
        ToRagged(sep=";", ignore_value="x"),
        ToSparse(ignore_value=0),
    ]
    for layer in layers:
        config = layer.get_config()
        again = type(layer).from_config(config)
        assert again.get_config() == config, type(layer).__name__
        assert keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer)).name == layer.name


def test_a_subclassed_model_calls_the_layers() -> None:
    class Wide(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.to_sparse, self.lookup, self.table = ToSparse(), IndexLookup(["Ulm", "Bonn"]), SparseEmbedding(3, 1)

        def call(self, features: Any) -> Any:
            return self.table(self.lookup(self.to_sparse(features["town"])))

    model = Wide()
    assert model(features()).shape == (3, 1)
    table = np.asarray(model.table.embeddings)
    np.testing.assert_allclose(model(features()), table[[0, 1, 2]], rtol=1e-6)


def test_layers_work_in_a_dataset() -> None:
    lookup = IndexLookup(["Ulm", "Bonn"])
    dataset = tf.data.Dataset.from_tensor_slices(features()["town"]).batch(3).map(lookup)
    assert next(iter(dataset)).numpy().tolist() == [[0], [1], [2]]
