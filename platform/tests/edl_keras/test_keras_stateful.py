"""A layer that hands its state on to the next minibatch: strategy Local trains it, several workers cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]


from edl.api.errors import BadInputError  # noqa: E402
from edl.api.job_spec import ModelSpec  # noqa: E402
from edl.keras.model_contract import load_model_module  # noqa: E402
from edl.keras.network import KerasNetwork  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402

MODEL = """
import keras

def custom_model(kind="LSTM", stateful=True, bidirectional=False, nested=False):
    shape = (4, 3, 1) if kind == "ConvLSTM1D" else (4, 3)
    more = {"kernel_size": 1} if kind == "ConvLSTM1D" else {}
    layer = getattr(keras.layers, kind)(2, stateful=stateful, name="memory", **more)
    if bidirectional:
        layer = keras.layers.Bidirectional(layer)
    layers = [keras.Input(shape, batch_size=5), layer]
    if nested:
        layers = [keras.Input(shape, batch_size=5), keras.Sequential(layers)]
    return keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(1)])

def feed(dataset, mode, metadata):
    return dataset

def eval_metrics_fn():
    return {}

def optimizer():
    return keras.optimizers.SGD(0.1)

loss = "mse"
"""
FEATURES = np.random.default_rng(0).normal(size=(3, 5, 4, 3)).astype(np.float32)
LABELS = FEATURES[:, :, 0, :1]


def module(folder: Path, **params: Any) -> Any:
    zoo = folder / "zoo"
    zoo.mkdir()
    (zoo / "memory.py").write_text(MODEL, encoding="utf-8")
    return load_model_module(ModelSpec(zoo=str(zoo), definition="memory.custom_model", params=params))


def served(user: Any) -> KerasNetwork:
    return KerasNetwork.build(user, seed=1, embedding_threshold=1 << 20, ps_of_variable=lambda name: 0, ps_count=1)


@pytest.mark.parametrize(
    "params",
    [{}, {"kind": "GRU"}, {"kind": "ConvLSTM1D"}, {"bidirectional": True}, {"nested": True}],
    ids=["LSTM", "GRU", "ConvLSTM1D", "bidirectional", "nested"],
)
def test_parameter_servers_refuse_it_by_name(tmp_path: Path, params: dict[str, Any]) -> None:
    kind = params.get("kind", "LSTM")
    with pytest.raises(BadInputError, match=rf"the layer '\w*memory' \({kind}\) is stateful") as caught:
        served(module(tmp_path, **params))
    assert "strategy: {name: Local}" in str(caught.value.hint)


def test_without_it_they_train_the_layer(tmp_path: Path) -> None:
    assert served(module(tmp_path, stateful=False)).variables


def test_local_hands_the_state_on_as_keras_does(tmp_path: Path) -> None:
    user = module(tmp_path)
    mine = ModelReplica(user, seed=1, rank_seed=None, sample=None)
    other = user.make_model()
    other.set_weights(mine.model.get_weights())
    other.compile(optimizer=user.optimizer(), loss="mse", run_eagerly=True)
    for features, labels in zip(FEATURES, LABELS, strict=True):
        loss = mine.take_step(features, labels).loss
        assert loss == pytest.approx(float(other.train_on_batch(features, labels)), rel=1e-5)
        other.reset_metrics()
    states = zip(mine.model.get_layer("memory").states, other.get_layer("memory").states, strict=True)
    for state, expected in states:
        assert np.abs(state).max() > 0
        np.testing.assert_allclose(state, expected, rtol=1e-5)


def test_the_state_is_in_checkpoints_and_a_step_that_is_not_finite_leaves_it(tmp_path: Path) -> None:
    user = module(tmp_path)
    uninterrupted, resumed = (ModelReplica(user, seed=2, rank_seed=None, sample=FEATURES[0]) for _ in range(2))
    uninterrupted.take_step(FEATURES[0], LABELS[0])
    saved = uninterrupted.state_arrays()
    assert not uninterrupted.take_step(FEATURES[1] * np.nan, LABELS[1]).is_finite
    np.testing.assert_equal(uninterrupted.state_arrays(), saved)
    resumed.load_state(saved)
    losses = [each.take_step(FEATURES[1], LABELS[1]).loss for each in (uninterrupted, resumed)]
    assert np.isfinite(losses[0])
    assert losses[0] == losses[1]
