"""A model that begins with the weights of another job has all of them, as with ``keras.Model.load_weights``."""

from __future__ import annotations

from functools import partial
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
from edl.keras.model_building import is_seed_state  # noqa: E402
from edl.keras.model_contract import ModelModule, load_model_module  # noqa: E402
from edl.keras.replica_choice import build_only_replica, build_replica  # noqa: E402
from edl.storage.initial_weights import InitialWeights  # noqa: E402
from edl.storage.safetensors_writer import write_array_file  # noqa: E402
from edl.worker.initial_weights_loading import _convert_keras_file, assign_initial_weights  # noqa: E402

MODEL = """
import keras, tensorflow as tf

class Counter(keras.layers.Layer):
    def build(self, shape):
        self.calls = self.add_weight(shape=SHAPE, initializer="zeros", dtype=DTYPE, trainable=False, name="calls")

    def call(self, x):
        return x

def custom_model():
    x = keras.Input((3,))
    hidden = keras.layers.Dropout(0.1)(x) if FRONT else x
    hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(4)(hidden))
    hidden = keras.layers.BatchNormalization(dtype="float64", scale=False, center=False)(hidden)
    return keras.Model(x, keras.layers.Dense(1)(Counter()(hidden)))

def loss(labels, predictions):
    return tf.square(labels - predictions)

def optimizer():
    return keras.optimizers.SGD(0.01)

def feed(dataset, mode, metadata):
    return dataset
"""
X = np.random.default_rng(3).normal(size=(8, 3)).astype(np.float32)


def load(
    folder: Path, name: str = "own", *, shape: str = "()", dtype: str = "int32", front: bool = False
) -> ModelModule:
    """The model's module.

    Args:
        folder: where it is written.
        name: its name.
        shape, dtype: those of its counter.
        front: whether a layer with random numbers is in front of the others.
    """
    (folder / f"{name}.py").write_text(f"SHAPE, DTYPE, FRONT = {shape}, {dtype!r}, {front}\n{MODEL}")
    choice = ModelSpec(zoo=str(folder), definition=f"{name}.custom_model", params={})
    return load_model_module(choice, needs_metrics=False, may_have_train_step=True)


def build(module: ModelModule, *, rank_seed: int | None = None, seed: int = 4, initial: Any = None) -> Any:
    first = (X, X[:, :1], None)
    begin = partial(assign_initial_weights, initial=initial)
    if rank_seed is None:
        return build_only_replica(module, seed=seed, sample=X, first=first, begin=begin)
    return build_replica(
        module, seed=seed, rank_seed=rank_seed, sample=X, first=first, max_dense_gradient=1 << 20, begin=begin
    )


def build_trained(module: ModelModule) -> Any:
    """A replica whose variables all have other values than new ones."""
    trained = build(module)
    for number, variable in enumerate(trained.model.variables, 1):
        # Not a float32.
        variable.assign(np.asarray(np.full(variable.shape, number + 1e-9), variable.dtype))
    return trained


def assert_same_weights(found: Any, trained: Any) -> None:
    """Compare all variables but the states of random generators."""
    own, others = ([v for v in each.model.variables if not is_seed_state(v)] for each in (found, trained))
    for mine, theirs in zip(own, others, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs), err_msg=theirs.path)


@pytest.mark.parametrize("rank_seed", [None, 5])
def test_counters_and_statistics_in_float64_are_those_of_a_checkpoint(tmp_path: Path, rank_seed: int | None) -> None:
    trained = build_trained(load(tmp_path))
    path = tmp_path / "shard.safetensors"
    write_array_file(path, trained.state_arrays(), {})
    initialized = build(load(tmp_path), rank_seed=rank_seed, seed=9, initial=InitialWeights.open(path))
    assert_same_weights(initialized, trained)
    seeds = [np.asarray(v).tolist() for v in initialized.model.variables if is_seed_state(v)]
    expected = build(load(tmp_path), rank_seed=rank_seed, seed=9)
    assert seeds == [np.asarray(v).tolist() for v in expected.model.variables if is_seed_state(v)]


def test_counters_and_statistics_in_float64_are_those_of_a_keras_file(tmp_path: Path) -> None:
    module = load(tmp_path)
    trained = build_trained(module)
    trained.model.save(tmp_path / "model.keras")
    converted = tmp_path / "held" / "model.safetensors"
    _convert_keras_file(tmp_path / "model.keras", converted, module, 1, X)
    assert_same_weights(build(module, initial=InitialWeights.open(converted)), trained)


def test_weights_of_parameter_servers_have_no_counters(tmp_path: Path) -> None:
    trained, path = build_trained(load(tmp_path)), tmp_path / "shard.safetensors"
    write_array_file(path, {n: v for n, v in trained.state_arrays().items() if n.startswith("dense/")}, {})
    initialized = build(load(tmp_path), initial=InitialWeights.open(path))
    np.testing.assert_array_equal(initialized.model.weights[0], trained.model.weights[0])
    assert [int(v) for v in initialized.model.weights if v.dtype == "int32"] == [0]


@pytest.mark.parametrize("front", [False, True])
@pytest.mark.parametrize("rank_seed", [None, 5])
def test_a_layer_with_random_numbers_may_come_or_go(tmp_path: Path, rank_seed: int | None, front: bool) -> None:
    path = tmp_path / "shard.safetensors"
    trained = build_trained(load(tmp_path, front=not front))
    write_array_file(path, trained.state_arrays(), {})
    initialized = build(load(tmp_path, "changed", front=front), rank_seed=rank_seed, initial=InitialWeights.open(path))
    assert_same_weights(initialized, trained)


@pytest.mark.parametrize("dtype", ["int64", "uint32"])
def test_a_counter_that_looks_like_a_random_generator_is_loaded_into_the_same_model(tmp_path: Path, dtype: str) -> None:
    module, path = load(tmp_path, shape="(2,)", dtype=dtype), tmp_path / "shard.safetensors"
    trained = build_trained(module)
    write_array_file(path, trained.state_arrays(), {})
    assert_same_weights(build(module, initial=InitialWeights.open(path)), trained)


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"shape": "(2,)"}, r"calls' is int32 \[2\] in the model, and int32 \[\] there"),
        ({"dtype": "int16"}, r"calls' is int16 \[\] in the model, and int32 \[\] there"),
    ],
)
def test_a_counter_of_another_shape_or_type_belongs_to_another_model(
    tmp_path: Path, changed: dict[str, Any], difference: str
) -> None:
    path = tmp_path / "shard.safetensors"
    write_array_file(path, build_trained(load(tmp_path)).state_arrays(), {})
    with pytest.raises(BadInputError, match=difference):
        build(load(tmp_path, "other", **changed), initial=InitialWeights.open(path))


def test_a_counter_that_one_of_both_lacks_is_named(tmp_path: Path) -> None:
    path = tmp_path / "shard.safetensors"
    arrays = build_trained(load(tmp_path)).state_arrays()
    write_array_file(path, arrays | {"state/99": np.array(3, np.int16)}, {})
    with pytest.raises(BadInputError, match=r"'state/99' int16 \[\] is there, and not in the model"):
        build(load(tmp_path), initial=InitialWeights.open(path))
    counter = next(n for n, v in arrays.items() if n.startswith("state/") and v.dtype == "int32")
    write_array_file(path, {n: v for n, v in arrays.items() if n != counter}, {})
    with pytest.raises(BadInputError, match=r"calls' is int32 \[\] in the model, and missing there"):
        build(load(tmp_path), initial=InitialWeights.open(path))
