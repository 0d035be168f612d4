"""The state of a rank: equal on all of them, in checkpoints, in digests and in evaluations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.repetition import repetition, repetitions

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from edl_keras.replica_harness import (  # noqa: E402
    OPTIMIZERS,
    PlainKeras,
    assert_close,
    assert_equal_states,
    build,
    minibatches,
    module,
    noisy,
    normalized,
    seed_values,
    split,
    step,
    summed_error,
)

from edl.api.errors import BadInputError  # noqa: E402
from edl.core.evaluation import merge_metric_states  # noqa: E402
from edl.keras import all_reduce_update  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402
from edl.numerics.packed_state import packed_pieces  # noqa: E402
from edl.storage.checkpoint_manifest import cut_directory  # noqa: E402
from edl.storage.checkpoint_shards import shard_path, write_shard  # noqa: E402
from edl.storage.safetensors_writer import read_array_file  # noqa: E402


@pytest.mark.repetition
def test_a_rank_that_only_follows_has_the_same_state() -> None:
    replicas = build(module(noisy, summed_error, OPTIMIZERS["AdamW"]), 3)
    for minibatch in minibatches(5):
        step(replicas, [*split(minibatch, [7, 5]), None])
    assert_equal_states(replicas)


def test_arrays_have_the_names_of_strategy_local() -> None:
    user = module(noisy, optimizer=OPTIMIZERS["Adam"])
    local = ModelReplica(user, seed=3, rank_seed=None, sample=None)
    (replica,) = build(user, 1)
    mine, other = replica.state_arrays(), local.state_arrays()
    left = {name for name in other if name not in mine}
    assert all(name.startswith("state/") for name in left)
    assert len(left) == 2
    for name, array in mine.items():
        assert (array.dtype, array.shape) == (other[name].dtype, other[name].shape)
        np.testing.assert_array_equal(array, other[name], err_msg=name)


class ManyTypes(keras.layers.Layer):  # type: ignore[misc]
    def build(self, shape: Any) -> None:
        for dtype in ("bool", "int64", "uint8", "int8", "float16", "bfloat16", "float64"):
            initializer = "zeros" if dtype != "bool" else lambda shape, dtype: tf.zeros(shape, "bool")
            setattr(self, f"a_{dtype}", self.add_weight((3,), initializer, dtype, trainable=False, name=f"a_{dtype}"))

    def call(self, inputs: Any) -> Any:
        return inputs


def many_types() -> Any:
    return keras.Sequential(
        [keras.Input((3,)), ManyTypes(name="many"), keras.layers.Dense(1), keras.layers.Dropout(0.5)]
    )


@pytest.mark.parametrize("elements", [0, repetition(1 << 30)])
def test_a_state_that_is_held_does_not_change_with_the_variables(elements: int, monkeypatch: Any) -> None:
    """An update that XLA has compiled, and one op by op."""
    monkeypatch.setattr(all_reduce_update, "COMPILED_UPDATE_ELEMENTS", elements)
    (replica,) = build(module(normalized, optimizer=OPTIMIZERS["Momentum"]), 1)
    first, second, third = minibatches(3)
    step([replica], [first])
    packed, held_state = replica.pack_state().tobytes(), replica.hold_state()
    for minibatch in (second, third):
        step([replica], [minibatch])
    assert replica.pack_state().tobytes() != packed
    assert b"".join(piece.tobytes() for piece in packed_pieces(held_state)) == packed


def test_a_packed_state_is_equal_to_the_bit() -> None:
    source, target = build(module(many_types, optimizer=OPTIMIZERS["Adam"]), 2)
    layer = source.model.get_layer("many")
    layer.a_bool.assign([True, False, True])
    layer.a_int64.assign([2**62 + 1, -1, 7])
    layer.a_uint8.assign([255, 0, 3])
    layer.a_int8.assign([-128, 0, 3])
    layer.a_float16.assign(np.array([np.inf, -0.0, 6e-8], np.float16))
    layer.a_bfloat16.assign([1.5, -2.25, 1e30])
    layer.a_float64.assign(np.array([0x7FF8_0000_0000_1234, 1, 2**63], np.uint64).view(np.float64))
    step([source], minibatches(1))
    packed = source.pack_state()
    assert (packed.ndim, packed.size % 4) == (1, 0)
    packed_copy, expected = packed.copy(), source.state_arrays()
    seeds = seed_values(target)
    assert source.digest() != target.digest()
    assert source.fingerprint() == target.fingerprint()
    target.unpack_state(packed)
    assert_equal_states([source, target])
    assert seed_values(target) == seeds
    step([source, target], [None, minibatches(1)[0]])
    np.testing.assert_array_equal(packed, packed_copy)
    # Neither the packed state nor the arrays change with the model.
    assert not np.array_equal(expected["slot/0"], source.state_arrays()["slot/0"])
    target.unpack_state(np.frombuffer(packed_copy.tobytes(), np.uint8))
    for name, array in target.state_arrays().items():
        assert array.tobytes() == expected[name].tobytes(), name


def test_the_state_of_another_model_is_refused_before_anything_is_assigned() -> None:
    (mine,) = build(module(), 1)
    (other,) = build(module(optimizer=OPTIMIZERS["Adam"]), 1)
    before = mine.digest()
    with pytest.raises(BadInputError, match="optimizers differ"):
        mine.unpack_state(other.pack_state())
    assert mine.digest() == before
    assert mine.fingerprint() != other.fingerprint()


def test_the_variables_of_the_state_are_described_for_users() -> None:
    (replica,) = build(module(many_types, optimizer=OPTIMIZERS["Adam"]), 1)
    described = replica.describe_variables()
    assert described.keys() == replica.state_arrays().keys()
    assert {"bool of shape (3,)", "bfloat16 of shape (3,)", "float32 of shape (3, 1)"} <= set(described.values())


@pytest.mark.parametrize("optimizer", ["Adam", *repetitions(("AdamW", "Momentum", "SGD"))])
def test_a_checkpoint_brings_the_state_back_to_the_bit(optimizer: str, tmp_path: Path) -> None:
    source, target = build(module(many_types, optimizer=OPTIMIZERS[optimizer]), 2)
    step([source], minibatches(1))
    write_shard(cut_directory(tmp_path, 1), 0, source.state_arrays())
    arrays, _ = read_array_file(shard_path(cut_directory(tmp_path, 1), 0))
    seeds = seed_values(target)
    target.load_state(arrays)
    assert target.digest() == source.digest()
    assert seed_values(target) == seeds
    step([source, target], [None, minibatches(1)[0]])
    assert_equal_states([source, target])


@pytest.mark.parametrize(("callbacks", "rate"), [(None, 0.02), (list, 0.5)], ids=["no callbacks", "callbacks"])
def test_a_learning_rate_that_the_user_corrects_counts_unless_callbacks_may_set_it(
    callbacks: Callable[[], Any] | None, rate: float
) -> None:
    (old,) = build(module(optimizer=lambda: keras.optimizers.SGD(0.5)), 1)
    (new,) = build(module(optimizer=lambda: keras.optimizers.SGD(0.02), callbacks=callbacks), 1)
    new.load_state(old.state_arrays())
    assert float(new.optimizer.learning_rate) == pytest.approx(rate)


def test_the_checkpoint_of_another_model_is_refused_before_anything_is_assigned() -> None:
    (mine,) = build(module(), 1)
    (other,) = build(module(optimizer=OPTIMIZERS["Adam"]), 1)
    before = mine.digest()
    arrays = dict(other.state_arrays())
    with pytest.raises(BadInputError, match="another model or optimizer"):
        mine.load_state({name: array.astype("float64") for name, array in mine.state_arrays().items()})
    with pytest.raises(BadInputError, match="another model or optimizer"):
        mine.load_state({name: array for name, array in arrays.items() if not name.startswith("slot/")})
    assert mine.digest() == before


def test_a_digest_sees_a_single_bit() -> None:
    (replica,) = build(module(), 1)
    before, of_variables = replica.digest(), replica.variable_digests()
    assert 0 <= before < 2**64
    assert list(of_variables) == list(replica.state_arrays())
    kernel = replica.model.trainable_variables[0]
    values = kernel.numpy()
    values.view(np.uint32)[0, 0] ^= 1
    kernel.assign(values)
    assert replica.digest() != before
    digests = replica.variable_digests()
    assert [name for name, digest in digests.items() if digest != of_variables[name]] == [f"dense/{kernel.path}"]
    values.view(np.uint32)[0, 0] ^= 1
    kernel.assign(values)
    assert replica.digest() == before


def test_evaluations_of_several_ranks_are_merged() -> None:
    user = module(eval_metrics_fn=lambda: {"mae": keras.metrics.MeanAbsoluteError()})
    replicas = build(user, 2)
    local = ModelReplica(user, seed=3, rank_seed=None, sample=None)
    ((x, y),) = minibatches(1)
    merged: dict[str, Any] = {}
    for replica, (features, labels) in zip(replicas, split((x, y), [5, 7]), strict=True):  # type: ignore[misc]
        replica.reset_metrics()
        replica.evaluate(features, labels)
        merged = merge_metric_states(merged, replica.metric_states())
    local.evaluate(x, y)
    metric_values = replicas[0].metric_values(merged)
    expected = local.metric_values(merge_metric_states({}, local.metric_states()))
    assert metric_values.keys() == expected.keys() == {"loss", "mae"}
    assert metric_values == pytest.approx(expected, rel=1e-5)
    assert replicas[0].metric_directions == local.metric_directions
    assert [spec.name for spec in replicas[0].exportable().variables] == [spec.name for spec in local.variables.specs]


@pytest.mark.parametrize("rank_seed", [0, None])
def test_an_optimizer_that_copies_the_weights_copies_those_that_training_begins_with(rank_seed: int | None) -> None:
    """As with Keras, where ``load_weights`` comes before ``fit``."""
    user = module(optimizer=lambda: keras.optimizers.ScheduleFreeAdamW(0.05))
    (other,) = build(user, 1)
    weights = [2 * weight + 1 for weight in other.model.get_weights()]

    def begin(variables: Any) -> None:
        for variable, weight in zip(variables.weights, weights, strict=True):
            variable.assign(weight)

    replica = ModelReplica(user, seed=3, rank_seed=rank_seed, sample=None, begin=begin)
    plain = PlainKeras(replica)
    for plain_weight, weight in zip(plain.model.weights, weights, strict=True):
        np.testing.assert_array_equal(plain_weight, weight)
    for minibatch in minibatches(3):
        replica.take_step(*minibatch)
        plain.step(*minibatch)
    assert_close(replica, plain, 1e-5)
