"""Constraints of variables: strategy Local applies them as ``keras.fit``, parameter servers apply none."""

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

from edl.api.errors import BadInputError  # noqa: E402
from edl.api.job_spec import ModelSpec  # noqa: E402
from edl.keras import model_export  # noqa: E402
from edl.keras.model_contract import load_model_module  # noqa: E402
from edl.keras.network import KerasNetwork  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402

MODEL = """
import keras, tensorflow as tf

def custom_model():
    return keras.Sequential([
        keras.Input((1,)),
        keras.layers.Embedding(9, 4, embeddings_constraint=keras.constraints.UnitNorm(axis=1)),
        keras.layers.Flatten(),
        keras.layers.Dense(4, kernel_constraint=keras.constraints.MaxNorm(0.4), name="bounded"),
        keras.layers.Dense(1, kernel_constraint="non_neg", bias_constraint="non_neg"),
    ])

def feed(dataset, mode, metadata):
    return dataset

def eval_metrics_fn():
    return {}

def optimizer():
    return keras.optimizers.Adam(0.05)

loss = "mse"
"""
FEATURES = np.arange(9)[:, None]
LABELS = -np.linspace(0.0, 2.0, 9, dtype=np.float32)[:, None]


@pytest.fixture
def user_model(tmp_path: Path) -> Any:
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    (zoo / "bounded.py").write_text(MODEL, encoding="utf-8")
    return load_model_module(ModelSpec(zoo=str(zoo), definition="bounded.custom_model", params={}))


def test_local_applies_them_as_keras_fit(user_model: Any) -> None:
    mine = ModelReplica(user_model, seed=1, rank_seed=None, sample=FEATURES)
    other = user_model.make_model()
    other.set_weights(mine.model.get_weights())
    other.compile(optimizer=user_model.optimizer(), loss="mse", run_eagerly=True)
    for _ in range(12):
        mine.take_step(FEATURES, LABELS)
    other.fit(FEATURES, LABELS, batch_size=len(LABELS), epochs=12, verbose=0)
    for weight, expected in zip(mine.model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-5, atol=1e-6)
    norms = np.linalg.norm(mine.model.get_layer("bounded").kernel.numpy(), axis=0)
    assert norms.max() == pytest.approx(0.4, abs=1e-5)  # the bound is reached


def test_local_exports_such_a_model(user_model: Any, tmp_path: Path) -> None:
    mine = ModelReplica(user_model, seed=1, rank_seed=None, sample=FEATURES)
    mine.take_step(FEATURES, LABELS)
    model_export.export_model(
        mine.exportable(), mine.variables.read_values(), {}, tmp_path / "model.keras", tmp_path / "saved"
    )
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(FEATURES), mine.model(FEATURES), rtol=1e-6)


def test_parameter_servers_apply_none_and_say_where_they_are_applied(user_model: Any) -> None:
    with pytest.raises(BadInputError, match=r"UnitNorm of '.*' .*parameter servers") as caught:
        KerasNetwork.build(
            user_model, seed=1, embedding_threshold=1 << 20, ps_of_variable=lambda name: 0, ps_count=1, sample=FEATURES
        )
    assert "strategy: {name: Local}" in str(caught.value.hint)
