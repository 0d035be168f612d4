"""An adapted ``Normalization`` uses the variables that EDL assigns, as it uses those that Keras loads."""

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
import tf_keras  # noqa: E402
from edl_keras.replica_harness import build, module, step  # noqa: E402

from edl.api.job_spec import ModelSpec  # noqa: E402
from edl.jobfile.keras_version import LEGACY_VARIABLE  # noqa: E402
from edl.keras.model_contract import ModelModule, load_model_module  # noqa: E402
from edl.keras.model_export import build_export_model, export_model  # noqa: E402
from edl.keras.network import KerasNetwork  # noqa: E402

X = np.random.default_rng(3).normal(size=(12, 3)).astype(np.float32)
Y = X[:, :1]


def model_of_numbers_at(place: float | None) -> Any:
    layer = keras.layers.Normalization(name="numbers")
    if place is not None:
        layer.adapt(place + (1 + place) * X)
    rows = [keras.Input((3,)), layer, keras.layers.Dense(1, name="out", kernel_initializer="ones")]
    return keras.Sequential(rows)


def module_of(place: float | None) -> ModelModule:
    return module(lambda: model_of_numbers_at(place))


def keras_loads(into: Any, weights_of: Any, folder: Path) -> Any:
    """The predictions of a model of Keras that has loaded the weights of another one."""
    weights_of.save_weights(folder / "of.weights.h5")
    into.load_weights(folder / "of.weights.h5")
    return into(X).numpy()


def keras_expects(place: float | None, tmp_path: Path) -> Any:
    expected = keras_loads(model_of_numbers_at(place), model_of_numbers_at(4.0), tmp_path)
    assert np.abs(expected - model_of_numbers_at(place)(X)).max() > 0.1
    return expected


def network_of(place: float | None) -> KerasNetwork:
    return KerasNetwork.build(
        module_of(place), seed=3, embedding_threshold=1 << 40, ps_of_variable=lambda name: 0, ps_count=1, sample=X
    )


@pytest.mark.parametrize("place", [None, 1.0])
def test_a_rank_that_gets_the_state_of_another_one_uses_it(place: float | None, tmp_path: Path) -> None:
    expected = keras_expects(place, tmp_path)
    (late,), (other,) = build(module_of(place), 1), build(module_of(4.0), 1)
    late.evaluate(X, Y)
    step([late], [(X, Y)])  # traced
    late.unpack_state(other.pack_state())
    np.testing.assert_allclose(late._predict(X), expected, rtol=1e-5, atol=1e-6)
    losses = [step([each], [(X, Y)])[0].loss for each in (late, other)]
    assert losses[0] == losses[1]
    late.load_state(dict(zip(late.state_arrays(), other.state_arrays().values(), strict=True)))
    np.testing.assert_array_equal(late._predict(X), other._predict(X))
    # A tensor of a graph that stays in the layer cannot be used outside of it.
    np.testing.assert_array_equal(late.model(X), other.model(X))


def test_values_of_parameter_servers_are_used(tmp_path: Path) -> None:
    expected = keras_expects(1.0, tmp_path)
    network, values = network_of(1.0), network_of(4.0).initial_values()
    np.testing.assert_allclose(network.train(values, {}, X, Y).loss, np.mean(np.square(expected - Y)), rtol=1e-5)
    np.testing.assert_allclose(network.predict(values, {}, X), expected, rtol=1e-5, atol=1e-6)


def test_an_export_uses_the_trained_job_s_variables(tmp_path: Path) -> None:
    """Also if the data have changed since, from which the module adapts the layer."""
    expected = keras_expects(1.0, tmp_path)
    values = network_of(4.0).initial_values()
    np.testing.assert_allclose(build_export_model(network_of(1.0), values, {})(X), expected, rtol=1e-5, atol=1e-6)
    export_model(network_of(1.0), values, {}, tmp_path / "model.keras", tmp_path / "saved")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(X), expected, rtol=1e-5, atol=1e-6)
    served = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]
    (outputs,) = served(**{name: tf.constant(X) for name in served.structured_input_signature[1]}).values()
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


KERAS2 = """
import numpy as np, tf_keras
X = np.array({values})
def custom_model(place=0.0):
    layer = tf_keras.layers.Normalization(name="numbers")
    layer.adapt(place + (1 + place) * X)
    return tf_keras.Sequential([tf_keras.Input((3,)), layer, tf_keras.layers.Dense(1, kernel_initializer="ones")])
def loss(labels, predictions): return tf_keras.losses.mean_squared_error(labels, predictions)
def optimizer(): return tf_keras.optimizers.SGD(0.1)
def eval_metrics_fn(): return {{}}
def feed(dataset, mode, metadata): return dataset
"""


def test_a_model_of_keras_2_uses_assigned_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEGACY_VARIABLE, "1")
    (tmp_path / "two.py").write_text(KERAS2.format(values=X.tolist()))
    modules = [
        load_model_module(ModelSpec("two.custom_model", str(tmp_path), {"place": place}, keras=2))
        for place in (1.0, 4.0)
    ]
    (late,), (other,) = (build(each, 1, X) for each in modules)
    step([late], [(X, Y)])
    late.unpack_state(other.pack_state())
    expected = tf_keras.Sequential(modules[1].make_model().legacy.layers)(X)
    np.testing.assert_allclose(late._predict(X), expected, rtol=1e-5, atol=1e-6)
