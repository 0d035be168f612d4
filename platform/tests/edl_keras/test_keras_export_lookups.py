"""A ``.keras`` file predicts what was trained, where ids come out of layers that make ids: sparse, ragged and dense."""

from __future__ import annotations

from itertools import cycle
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
from edl_keras.embedding_harness import network_of, rows_for, write_export  # noqa: E402

from edl.keras import edl_layer_replacement  # noqa: E402
from edl.layers import Embedding  # noqa: E402
from edl.layers.combiners import COMBINERS  # noqa: E402

Layers = keras.layers


def words() -> Any:
    return tf.ragged.constant([["b", "a", "z"], [], ["c"], ["a", "a"]])


def numbers() -> Any:
    return tf.ragged.constant([[20, 10, 99], [], [30], [10, 10]], tf.int64)


LOOKUPS = {
    "StringLookup": (words, lambda: Layers.StringLookup(vocabulary=["a", "b", "c"])),
    "Hashing": (words, lambda: Layers.Hashing(4)),
    "IntegerLookup": (numbers, lambda: Layers.IntegerLookup(vocabulary=[10, 20, 30])),
}
FORMS = {
    "dense": lambda ragged: ragged.to_tensor(shape=[None, 3]),
    "ragged": lambda ragged: ragged,
    "sparse": lambda ragged: ragged.to_sparse(),
}
FEW = (("StringLookup", "ragged"),)
CASES = [
    pytest.param(lookup, form, marks=[] if (lookup, form) in FEW else pytest.mark.repetition)
    for lookup in LOOKUPS
    for form in FORMS
    if (lookup, form) != ("IntegerLookup", "sparse")  # Keras cannot do that in a graph
]


def combining(lookup: str, form: str) -> Any:
    """A model of every combiner, of a table with a bound and of one without, behind a layer that makes ids."""
    make_features, layer = LOOKUPS[lookup]
    ragged = make_features()
    columns = 3 if form == "dense" else None
    inputs = keras.Input([columns], dtype=ragged.dtype.name, sparse=form == "sparse", ragged=form == "ragged")
    ids = layer()(inputs)
    kinds = zip(COMBINERS, cycle((4, None)))
    return keras.Model(inputs, Layers.Concatenate()([Embedding(2, rows, combiner=how)(ids) for how, rows in kinds]))


@pytest.mark.parametrize(("lookup", "form"), CASES)
def test_a_file_predicts_what_was_trained(lookup: str, form: str, tmp_path: Path) -> None:
    features = FORMS[form](LOOKUPS[lookup][0]())
    network = network_of(lambda: combining(lookup, form))
    rows = rows_for(network, features)
    write_export(network, rows, tmp_path)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    expected = network.predict(network.initial_values(), rows, features)
    np.testing.assert_allclose(loaded(features), expected, rtol=1e-5, atol=1e-7)
    exchanged = not [layer for layer in loaded._flatten_layers() if isinstance(layer, Embedding)]
    assert exchanged == (form == "dense"), "Keras has layers for dense ids only"


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
@pytest.mark.first_cases(1)
def test_layers_of_keras_that_predict_otherwise_are_not_written(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The exchanged model is compared with the trained one on the sample."""
    ids = np.array([[1, 2], [3, 3]])

    def model() -> Any:
        inputs = keras.Input([2], dtype="int64")
        return keras.Model(inputs, Embedding(2, 4, combiner="sum", dtype=precision)(inputs))

    network = network_of(model, ids)
    rows = rows_for(network, ids)
    write_export(network, rows, tmp_path)
    assert ".keras file" not in caplog.text
    monkeypatch.setattr(edl_layer_replacement, "_combine_rows", lambda layer, ids, rows: rows[:, 0])
    write_export(network, rows, tmp_path)
    assert ".keras file" in caplog.text
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(ids), network.predict(network.initial_values(), rows, ids), rtol=1e-5)
