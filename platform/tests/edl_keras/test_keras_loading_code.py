"""An exported file with classes of the user's own says what loads it, and that loads it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
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
from support.text_keys import missing_keys  # noqa: E402

from edl.jobfile.zoo_lookup import find_model_function  # noqa: E402
from edl.keras.model_export import format_loading_code, warn_about_keras_file  # noqa: E402
from edl.keras.zoo_import import import_zoo_module  # noqa: E402

MODULE = """
import keras
import tensorflow as tf

class Double(keras.layers.Layer):
    def call(self, x):
        return x * 2.0

def halve(x):
    return x / 2.0

@keras.saving.register_keras_serializable("mine")
class Known(Double):
    pass

class Own(keras.Model):
    def __init__(self, **more):
        super().__init__(**more)
        self.head = keras.layers.Dense(1)

    def call(self, x):
        return self.head(x)

class TwoHeads(Own):
    def __init__(self, **more):
        super().__init__(**more)
        self.other_head = keras.layers.Dense(2, name="other_head")

    def train_step(self, data):
        raise NotImplementedError("it uses both heads")

class Strict(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = keras.layers.Dense(1)

    def call(self, x):
        return self.head(x)

class Configured(Strict):
    def get_config(self):
        return {}

class Made(Strict):
    @classmethod
    def from_config(cls, config):
        return cls()

class StrictLayer(keras.layers.Layer):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}

    def call(self, x):
        return x * self.factor

class Refusing(Double):
    @classmethod
    def from_config(cls, config):
        raise KeyError("no factor")

class Bag(keras.layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(10, 4), name="table")

    def call(self, x):
        return tf.reduce_sum(tf.ragged.map_flat_values(lambda ids: tf.gather(self.table, ids), x), 1)

class Unbuilt(keras.Model):
    def __init__(self, **more):
        super().__init__(**more)
        self.bag, self.head = Bag(name="bag"), keras.layers.Dense(1, name="head")

    def call(self, x):
        return self.head(self.bag(x))

class Silent(Double):
    def get_config(self):
        raise NotImplementedError("no config")
"""
X = np.ones((3, 2), np.float32)


@pytest.fixture
def user_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "layers_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("layers_of_mine")
    del sys.modules["layers_of_mine"]
    for registered in ("mine>Known",):
        keras.saving.get_custom_objects().pop(registered, None)


def sequential(*layers: Any) -> Any:
    return keras.Sequential([keras.Input([2]), *layers, keras.layers.Dense(1)])


MODELS = {
    "layer": lambda m: sequential(m.Double()),
    "nested": lambda m: sequential(sequential(m.Double())),
    "function": lambda m: sequential(keras.layers.Dense(2, activation=m.halve)),
    "both": lambda m: sequential(m.Double(), m.Known(), keras.layers.Dense(2, activation=m.halve)),
    "model": lambda m: m.Own(),
    "get_config": lambda m: m.Configured(),
    "from_config": lambda m: m.Made(),
    "lambda": lambda m: sequential(keras.layers.Lambda(lambda x: x + 1.0, output_shape=(2,))),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.first_cases(3)
def test_what_is_said_loads_the_file(kind: str, user_layers: Any, tmp_path: Path) -> None:
    model, path = MODELS[kind](user_layers), tmp_path / "model.keras"
    expected = model(X)
    model.save(path)
    with pytest.raises((TypeError, ValueError)):
        keras.models.load_model(path)
    loading_code = format_loading_code(model, path, tmp_path / "zoo")
    *imports, load = loading_code.split("; ")
    scope: dict[str, Any] = {}
    exec("\n".join([*imports, f"loaded = {load}"]), scope)
    np.testing.assert_allclose(scope["loaded"](X), expected)


@pytest.mark.parametrize("kind", ["Strict", "StrictLayer"])
def test_what_no_code_loads_is_told_by_what_is_missing(kind: str, user_layers: Any, tmp_path: Path) -> None:
    model = user_layers.Strict() if kind == "Strict" else sequential(user_layers.StrictLayer(2.0))
    model(X)
    path = tmp_path / "model.keras"
    model.save(path)
    with pytest.raises(TypeError):
        keras.models.load_model(path, custom_objects={kind: getattr(user_layers, kind)})
    loading_code = format_loading_code(model, path, tmp_path / "zoo")
    assert loading_code.startswith("# ")
    assert not missing_keys(loading_code, f"{kind}.__init__()", "**kwargs", "get_config()", "SavedModel")


@pytest.mark.parametrize("kind", MODELS)
def test_nothing_is_warned_of_where_the_file_can_be_loaded(
    kind: str, user_layers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = MODELS[kind](user_layers)
    model(X)
    warn_about_keras_file(model)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("StrictLayer", ["StrictLayer.__init__()"]),
        ("Refusing", ["from_config()", "'refusing'", "no factor"]),
        ("Silent", ["no .keras file", "the layer 'silent' (Silent)", "no config"]),
    ],
)
def test_a_layer_that_keras_cannot_write_or_make_again_is_named(
    kind: str, keys: list[str], user_layers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    layer = getattr(user_layers, kind)(**({"factor": 2.0} if kind == "StrictLayer" else {"name": kind.lower()}))
    model = sequential(layer)
    model(X)
    warn_about_keras_file(model)
    (message,) = caplog.messages
    assert not missing_keys(message, *keys, "SavedModel")


def test_variables_that_loading_leaves_with_new_values_are_counted(
    user_layers: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, path = user_layers.Unbuilt(), tmp_path / "model.keras"
    ids = tf.ragged.constant([[1, 2], [3]])
    expected = model(ids)
    model.save(path)
    with pytest.warns(UserWarning, match="cannot be built"):
        loaded = keras.models.load_model(path, custom_objects={"Unbuilt": user_layers.Unbuilt, "Bag": user_layers.Bag})
    lost = len(model.variables) - len(loaded.variables)
    assert lost > 0
    warn_about_keras_file(model)
    (message,) = caplog.messages
    assert format_loading_code(model, path, tmp_path / "zoo").removeprefix("# ") in message
    assert not missing_keys(message, f"{lost} of 3 variables", "head", "build()", "load_weights()", "SavedModel")
    loaded(ids)
    loaded.load_weights(path)
    np.testing.assert_allclose(loaded(ids), expected)


def test_of_a_layer_that_call_does_not_use_no_call_is_advised(
    user_layers: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, path = user_layers.TwoHeads(), tmp_path / "model.keras"
    model.other_head(X)
    model(X)
    model.save(path)
    loaded = keras.models.load_model(path, custom_objects={"TwoHeads": user_layers.TwoHeads})
    loaded(X)
    loaded.load_weights(path)
    assert len(loaded.variables) == 2, "the advice for other models does not help here"
    warn_about_keras_file(model)
    (message,) = caplog.messages
    assert not missing_keys(
        message, "2 of 4 variables", "other_head", "call() of TwoHeads does not use them", "build()"
    )
    assert "load_weights" not in message


def test_what_is_registered_needs_its_module(user_layers: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.keras"
    assert format_loading_code(sequential(user_layers.Known()), path, tmp_path / "zoo") == (
        f'import keras; import layers_of_mine; keras.models.load_model("{path}")'
    )


def test_keras_loads_its_own_by_itself(tmp_path: Path) -> None:
    model = sequential(keras.layers.Dense(2, activation="relu", kernel_regularizer="l2"), keras.layers.Dropout(0.1))
    assert format_loading_code(model, tmp_path / "model.keras", tmp_path / "zoo") == ""


@pytest.mark.repetition
def test_modules_of_a_zoo_that_import_each_other_are_found_by_what_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another process and another folder, where nothing of the zoo can be imported by itself."""
    zoo = tmp_path / "zoo_of_mine"
    zoo.mkdir()
    (zoo / "base_of_mine.py").write_text(MODULE)
    (zoo / "own_of_mine.py").write_text(
        "from base_of_mine import *\n\nclass Twice(Double):\n    pass\n\ndef custom_model(): ...\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    module = import_zoo_module(zoo, find_model_function(zoo, "own_of_mine.custom_model"))
    model, path = sequential(module.Twice(), module.Double()), tmp_path / "model.keras"
    model.save(path)
    code = f"{format_loading_code(model, path, zoo)}.summary()"
    (tmp_path / "elsewhere").mkdir()
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "elsewhere", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Twice" in done.stdout
