"""Clipping is Keras' clipping of the dense problem, also when a part of the model is served as rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.repetition import repetition

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras'
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from edl.keras.model_contract import ModelModule  # noqa: E402
from edl.keras.network import KerasNetwork  # noqa: E402
from edl.keras.optimizer_translation import GradientClipping  # noqa: E402
from edl.numerics.parameter_store import RowBatch  # noqa: E402

VOCABULARY, DIM = 50, 2
IDS = np.array([[3, 7, 3], [49, 3, 7], [0, 0, 1]], np.int64)
LABELS = np.array([[1.0], [-2.0], [0.5]], np.float32)
KINDS = ({"clipnorm": 0.02}, {"clipvalue": 0.003}, {"global_clipnorm": 0.02}, {"global_clipnorm": 1e6}, {})
finite = st.floats(-1e3, 1e3, width=32)


def model() -> Any:
    inputs = keras.Input([3], dtype="int64")
    rows = keras.layers.Embedding(VOCABULARY, DIM, name="emb")(inputs)
    hidden = keras.layers.Dense(4, name="hidden", activation="tanh")(keras.layers.Flatten()(rows))
    return keras.Model(inputs, keras.layers.Dense(1, name="head")(hidden))


def loss(labels: Any, predictions: Any) -> Any:
    return tf.reduce_mean(tf.square(labels - predictions))


def network(optimizer: Any, threshold: int) -> KerasNetwork:
    module = ModelModule(
        zoo=Path(__file__).parent,
        make_model=model,
        loss=loss,
        optimizer=lambda: optimizer,
        eval_metrics_fn=dict,
        feed=lambda dataset, mode, metadata: dataset,
    )
    return KerasNetwork.build(module, seed=7, embedding_threshold=threshold, ps_of_variable=lambda name: 0, ps_count=1)


def by_name(built: KerasNetwork, slab: Any) -> dict[str, Any]:
    return {spec.name: slab[place] for spec, place in zip(built.variables, built.offsets, strict=True)}


@pytest.mark.parametrize("kind", [repetition(kind) if kind in KINDS[3:] else kind for kind in KINDS], ids=str)
@pytest.mark.first_cases(1)
def test_rows_and_variables_are_clipped_together_as_the_dense_gradients_are(kind: dict[str, float]) -> None:
    """Duplicate ids are summed first: the norm of a table is that of its dense gradient."""
    dense_network, optimizer = network(keras.optimizers.SGD(0.1), 1 << 40), keras.optimizers.SGD(0.1, **kind)
    dense = by_name(dense_network, dense_network.train(dense_network.initial_values(), {}, IDS, LABELS).flat_gradients)
    names = sorted(dense)
    clipped = optimizer._clip_gradients([tf.constant(dense[name]) for name in names])
    expected = {name: np.asarray(gradient) for name, gradient in zip(names, clipped, strict=True)}

    served = network(optimizer, 1)
    (table,) = served.tables
    values = by_name(dense_network, dense_network.initial_values())
    ids = np.unique(IDS)
    rows = {table.name: RowBatch(ids, values[table.name].reshape(VOCABULARY, DIM)[ids])}
    slab = np.concatenate([values[spec.name] for spec in served.variables])
    step = served.train(slab, rows, IDS, LABELS)

    gradients = by_name(served, step.flat_gradients)
    assert {*gradients, table.name} == {*expected}
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-5, atol=1e-8, err_msg=name)
    of_rows = expected[table.name].reshape(VOCABULARY, DIM)
    np.testing.assert_allclose(step.row_gradients[table.name], of_rows[ids], rtol=1e-5, atol=1e-8)
    assert not np.delete(of_rows, ids, axis=0).any()


@given(
    st.lists(arrays.arrays(np.float32, arrays.array_shapes(max_dims=2, max_side=6), elements=finite), max_size=4),
    st.sampled_from(["clipnorm", "clipvalue", "global_clipnorm"]),
    st.floats(1e-3, 1e3),
)
def test_any_gradients_are_clipped_as_keras_clips_them(gradients: list[Any], kind: str, limit: float) -> None:
    optimizer = keras.optimizers.SGD(**{kind: limit})
    expected = [np.asarray(each) for each in optimizer._clip_gradients([tf.constant(each) for each in gradients])]
    clip = GradientClipping.from_config(optimizer.get_config())
    assert clip is not None
    clip(gradients)
    for gradient, want in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, want, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("kind", [{"norm": 1.0}, {"value": 1.0}, {"global_norm": 1.0}], ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_still_seen_after_clipping(kind: dict[str, float], bad: float) -> None:
    """Else a step that is to be refused (``train.on_nan``) would enter as zeros."""
    gradients = [np.array([bad, 1.0, 2.0], np.float32), np.ones((2, 2), np.float32)]
    GradientClipping(**kind)(gradients)
    if "value" in kind and np.isinf(bad):
        assert gradients[0][0] == np.sign(bad), "as in Keras"
    else:
        assert not all(np.isfinite(gradient).all() for gradient in gradients)
