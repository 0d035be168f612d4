"""Ids that no Embedding can look up, and what people are told about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras'
    pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning"),
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from edl.core.errors import BadInputError  # noqa: E402
from edl.worker.contract import ModelModule  # noqa: E402
from edl.worker.leases import Leased  # noqa: E402
from edl.worker.network import Network  # noqa: E402
from edl.worker.records import of_records  # noqa: E402
from edl.worker.slab import Rows  # noqa: E402
from edl.worker.user_code import ModuleError  # noqa: E402

SERVED, DENSE = 1, 1 << 40


def network(dtype: str, threshold: int) -> Network:
    def model() -> Any:
        inputs = keras.Input([2], dtype=dtype)
        rows = keras.layers.Embedding(50, 3, name="emb")(inputs)
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))

    module = ModelModule(
        zoo=Path(__file__).parent,
        model=model,
        loss=lambda labels, predictions: tf.reduce_mean(tf.square(labels - predictions)),
        optimizer=lambda: keras.optimizers.SGD(0.1),
        eval_metrics_fn=dict,
        feed=lambda dataset, mode, metadata: dataset,
    )
    return Network.build(module, seed=1, embedding_threshold=threshold, part=lambda name: 0, parts=1)


def step(built: Network, ids: Any) -> float:
    features = tf.constant(ids)
    rows = {name: Rows(wanted, np.zeros((len(wanted), 3), np.float32)) for name, wanted in built.ids(features).items()}
    return built.train(built.initial(), rows, features, np.ones((1, 1), np.float32)).loss


@pytest.mark.parametrize(
    ("dtype", "ids", "named"),
    [
        ("int32", [1, 50], "50"),
        ("int64", [1, -1], "-1"),
        ("int64", [2**31, 1], str(2**31)),
        ("int64", [2**62, 1], str(2**62)),
        ("uint64", [2**63 + 5, 1], str(5 - 2**63)),
        ("float32", [1.0, 3e9], "3000000000"),
        ("float32", [1.0, float("nan")], str(-(2**63))),
    ],
)
def test_ids_of_a_served_table_are_named_with_its_shape_and_a_remedy(dtype: str, ids: Any, named: str) -> None:
    built = network(dtype, SERVED)
    with pytest.raises(BadInputError) as caught:
        step(built, np.array([ids], dtype))
    assert (
        caught.value.message
        == f"id {named} is outside of the embedding 'emb/embeddings' (50 x 3), whose ids are 0 to 49"
    )
    assert "input_dim" in str(caught.value.hint)
    assert np.isfinite(step(built, np.array([[0, 49]], dtype))), "and goes on"


def test_ids_of_a_dense_table_are_told_with_a_remedy() -> None:
    with pytest.raises(ModuleError, match="is not in") as caught:
        step(network("int32", DENSE), np.array([[1, 50]], np.int32))
    assert "it has 50 rows and was given the id 50: raise its input_dim" in str(caught.value.hint)


@pytest.mark.parametrize("threshold", [SERVED, DENSE])
def test_strings_need_a_vocabulary(threshold: int) -> None:
    with pytest.raises(ModuleError, match="Cast string to") as caught:
        step(network("string", threshold), np.array([["a", "b"]]))
    assert "StringLookup" in str(caught.value.hint)


def test_floats_are_cut_to_whole_numbers_as_in_keras() -> None:
    assert network("float32", SERVED).ids(tf.constant([[1.9, 7.0]]))["emb/embeddings"].tolist() == [1, 7]


def test_the_records_are_named() -> None:
    task = Leased(1, "training", "part-0.recordio", 64, 100, minibatch=32)
    with pytest.raises(BadInputError, match=r"part-0\.recordio, records 96 to 99: id 50 is"), of_records(task, 1):
        raise BadInputError("id 50 is outside")
    with pytest.raises(BadInputError, match=r"^model\.py:3: no"), of_records(task, 1):
        raise BadInputError("no", where="model.py:3")
