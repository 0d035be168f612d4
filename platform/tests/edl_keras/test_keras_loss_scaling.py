"""A model that computes in float16 loses small gradients where nothing scales its loss."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

import keras  # noqa: E402

from edl.api.job_spec import ModelSpec  # noqa: E402
from edl.keras.model_contract import load_model_module  # noqa: E402
from edl.keras.network import KerasNetwork  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402

MODEL = """
import keras, tensorflow as tf

def custom_model(policy="mixed_float16"):
    inner = keras.Sequential([keras.Input((2,)), keras.layers.Dense(4, dtype=policy, name="half")])
    given = keras.Input((2,))
    return keras.Model(given, keras.layers.Dense(1, dtype="float32")(inner(given)))

def feed(dataset, mode, metadata):
    return dataset

def eval_metrics_fn():
    return {}

def loss(labels, predictions):
    return LOSS * tf.square(labels - predictions)
"""
FEATURES = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
LABELS = FEATURES[:, :1]


def module(folder: Path, optimizer: str, loss: float = 1.0, **params: Any) -> Any:
    zoo = folder / "zoo"
    zoo.mkdir()
    source = f"{MODEL}\ndef optimizer():\n    return keras.optimizers.{optimizer}\n".replace("LOSS", str(loss))
    (zoo / "half.py").write_text(source, encoding="utf-8")
    return load_model_module(ModelSpec(zoo=str(zoo), definition="half.custom_model", params=params))


def served(user: Any) -> KerasNetwork:
    return KerasNetwork.build(
        user, seed=1, embedding_threshold=1 << 20, ps_of_variable=lambda name: 0, ps_count=1, sample=FEATURES
    )


def local(user: Any) -> ModelReplica:
    return ModelReplica(user, seed=1, rank_seed=None, sample=FEATURES)


@pytest.mark.parametrize("build", [served, local])
def test_that_nothing_scales_the_loss_is_told_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, build: Any
) -> None:
    with caplog.at_level(logging.WARNING):
        build(module(tmp_path, "SGD(0.1)"))
    (message,) = caplog.messages
    assert "the layer 'half' computes in float16 (policy mixed_float16)" in message
    assert "mixed_bfloat16" in message
    assert ("LossScaleOptimizer" in message) == (build is local)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("build", [served, local])
def test_of_other_policies_nothing_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, build: Any, policy: str
) -> None:
    with caplog.at_level(logging.WARNING):
        build(module(tmp_path, "SGD(0.1)", policy=policy))
    assert caplog.messages == []


SCALING = {
    "loss_scale_factor": "SGD(0.1, loss_scale_factor=1024.0)",
    "dynamic": "LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=4096.0, dynamic_growth_steps=3)",
}


@pytest.mark.parametrize("optimizer", SCALING)
@pytest.mark.first_cases(1)
def test_local_scales_the_loss_as_keras_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture, optimizer: str) -> None:
    user = module(tmp_path, SCALING[optimizer], loss=1e-4)
    with caplog.at_level(logging.WARNING):
        mine = local(user)
    assert caplog.messages == []
    keras.utils.set_random_seed(1)
    other = user.make_model()
    other.set_weights(mine.model.get_weights())
    other.compile(
        optimizer=user.optimizer(),
        loss=lambda labels, found: 1e-4 * keras.ops.square(labels - found),
        run_eagerly=True,
    )
    before = mine.model.get_weights()
    for _ in range(8):
        assert mine.take_step(FEATURES, LABELS).is_finite
        other.train_on_batch(FEATURES, LABELS)
    for weight, expected, old in zip(mine.model.get_weights(), other.get_weights(), before, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-6)
        assert not np.array_equal(weight, old)


def test_an_optimizer_that_scales_lowers_its_scale_where_gradients_overflow(tmp_path: Path) -> None:
    """Such a step is no failure: Keras' optimizer leaves the weights as they are and goes on."""
    scaling = "LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**20)"
    mine = local(module(tmp_path, scaling))
    before = mine.model.get_weights()
    step = mine.take_step(FEATURES, LABELS)
    assert step.is_finite
    assert np.isfinite(step.loss)
    assert step.loss < 100
    assert float(mine.optimizer.dynamic_scale) == 2.0**19
    for weight, old in zip(mine.model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)
    for _ in range(20):
        mine.take_step(FEATURES, LABELS)
    assert not np.array_equal(mine.model.get_weights()[0], before[0])
