"""``serving_model`` of a module: the model that is exported, made of the trained one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.api.job_spec import ModelSpec  # noqa: E402
from edl.jobfile.zoo_lookup import find_misnamed  # noqa: E402
from edl.keras import model_building, model_export  # noqa: E402
from edl.keras.model_contract import load_model_module  # noqa: E402
from edl.keras.network import KerasNetwork  # noqa: E402

MODEL = """
import keras

def custom_model():
    given = {"both": keras.Input([2], name="both")}
    return keras.Model(given, keras.layers.Dense(1, name="sum")(given["both"]))

def serving_model(model):
    given = {name: keras.Input([1], name=name) for name in ("first", "second")}
    return keras.Model(given, model({"both": keras.layers.Concatenate()([given["first"], given["second"]])}))

def feed(dataset, mode, metadata):
    return dataset

def eval_metrics_fn():
    return {}

optimizer, loss = "adam", "mse"
"""
BOTH = np.array([[1.0, 2.0], [3.0, 5.0]], np.float32)
COLUMNS = {"first": BOTH[:, :1], "second": BOTH[:, 1:]}
VALUES = np.array([10.0, 1.0, 0.5], np.float32)


def load(folder: Path, text: str = MODEL) -> Any:
    (folder / "own.py").write_text(text, encoding="utf-8")
    return load_model_module(ModelSpec(zoo=str(folder), definition="own.custom_model", params={}))


def build(module: Any) -> KerasNetwork:
    return KerasNetwork.build(
        module, seed=1, embedding_threshold=1 << 20, ps_of_variable=lambda name: 0, ps_count=1, sample={"both": BOTH}
    )


def flat_values(network: KerasNetwork) -> Any:
    """10 for the first column, 1 for the second, 0.5 for the bias, in the network's order."""
    parts = {(2, 1): VALUES[:2], (1,): VALUES[2:]}
    return np.concatenate([parts[tuple(each.shape)] for each in network.variables])


def test_the_export_is_the_serving_model_and_its_weights_load_into_the_trained_one(tmp_path: Path) -> None:
    network = build(load(tmp_path))
    values = flat_values(network)
    expected = [[12.5], [35.5]]
    np.testing.assert_allclose(network.predict(values, {}, {"both": BOTH}), expected)
    exported = model_export.export_model(network, values, {}, tmp_path / "model.keras", tmp_path / "saved")
    assert exported["loading"] == ""
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(COLUMNS), expected)
    serve = tf.saved_model.load(tmp_path / "saved").signatures["serving_default"]
    (served,) = serve(**{name: tf.constant(column) for name, column in COLUMNS.items()}).values()
    np.testing.assert_allclose(served, expected)
    np.testing.assert_array_equal(network.load_weights_file(tmp_path / "model.keras"), values)


def test_a_file_of_the_trained_model_itself_loads_too(tmp_path: Path) -> None:
    network = build(load(tmp_path))
    values = flat_values(network)
    model_export.export_keras_file(network, values, {}, tmp_path / "best.keras", weights_only=False)
    assert set(keras.models.load_model(tmp_path / "best.keras").input) == {"both"}
    np.testing.assert_array_equal(network.load_weights_file(tmp_path / "best.keras"), values)


def test_weights_load_without_building_the_serving_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with thousands of inputs takes minutes."""
    network = build(load(tmp_path))
    values = flat_values(network)
    model_export.export_model(network, values, {}, tmp_path / "model.keras", tmp_path / "saved")
    monkeypatch.setattr(model_building, "make_serving_model", lambda *_: pytest.fail("the serving model was built"))
    np.testing.assert_array_equal(network.load_weights_file(tmp_path / "model.keras"), values)


TWO_MODELS = """
def serving_model(model):
    given = {name: keras.Input([1], name=name) for name in ("first", "second")}
    both = keras.layers.Concatenate()([given["first"], given["second"]])
    twice = keras.Input([2])
    first = keras.Model(twice, keras.layers.Dense(1, kernel_initializer="ones")(twice))
    return keras.Model(given, [model({"both": both * keras.ops.sign(first(both))})])
"""


def test_of_two_models_in_the_serving_model_the_trained_one_gets_its_weights(tmp_path: Path) -> None:
    begin, end = MODEL.index("def serving_model"), MODEL.index("def feed")
    network = build(load(tmp_path, MODEL[:begin] + TWO_MODELS + MODEL[end:]))
    values = flat_values(network)
    model_export.export_model(network, values, {}, tmp_path / "model.keras", tmp_path / "saved")
    np.testing.assert_array_equal(network.load_weights_file(tmp_path / "model.keras"), values)


def test_what_is_no_model_is_refused_at_the_export(tmp_path: Path) -> None:
    network = build(
        load(tmp_path, MODEL.replace("    return keras.Model(given, model({", "    return (given, model({"))
    )
    with pytest.raises(BadInputError, match=r"serving_model\(\) returned tuple, expected a keras.Model"):
        model_export.export_model(network, flat_values(network), {}, tmp_path / "model.keras", tmp_path / "saved")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (MODEL.replace("def serving_model(model)", "def serving_model()"), r"called as serving_model\(model\)"),
        (MODEL.replace("def serving_model(model)", "def serving_modell(model)"), "which nothing uses"),
    ],
)
def test_wrong_arguments_and_misspelt_names_are_refused_before_training(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        load(tmp_path, text)


def test_the_name_is_known(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(MODEL, encoding="utf-8")
    assert not list(find_misnamed(tmp_path / "own.py", "custom_model"))
