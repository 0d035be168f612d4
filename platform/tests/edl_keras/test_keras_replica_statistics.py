"""Statistics and random layers under AllReduce, and steps that were aborted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.repetition import repetition

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
    compute,
    distance,
    minibatches,
    module,
    noisy,
    normalized,
    perceptron,
    random_sizes,
    reduce_and_apply,
    seed_values,
    split,
    step,
)

from edl.keras.replica import ModelReplica  # noqa: E402


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), repetition("float32", 1e-5)])
@pytest.mark.parametrize("ranks", [repetition(2), 3])
def test_moving_values_are_those_of_the_union(dtype: str, tolerance: float, ranks: int) -> None:
    """The layer sees the records themselves, so one process computes the same moving values."""
    replicas = build(module(lambda: normalized(dtype)), ranks)
    plain, generator = PlainKeras(replicas[0]), np.random.default_rng(8)
    for x, y in minibatches(10, dtype=dtype):
        # The ranks' minibatches differ in their means, as sorted records do.
        order = np.argsort(x[:, 0])
        minibatch = ((x + 3)[order] * np.array([1, 5, 0.2], dtype), y[order])
        step(replicas, split(minibatch, random_sizes(generator, 12, ranks)))
        plain.step(*minibatch)
    assert_equal_states(replicas)
    mine, other = (each.model.layers[1] for each in (replicas[0], plain))
    assert distance(mine.moving_mean, other.moving_mean) <= tolerance
    assert distance(mine.moving_variance, other.moving_variance) <= tolerance


class Peak(keras.layers.Layer):
    """Divides by the largest value of each column that training has seen."""

    def build(self, shape: Any) -> None:
        self.largest = self.add_weight(shape=(shape[-1],), initializer="ones", trainable=False, name="largest")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(x, axis=0)))
        return x / self.largest


@pytest.mark.parametrize("rank_seed", [0, None])
def test_weights_that_a_users_layer_changes_are_named_where_several_ranks_train(
    rank_seed: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    layers = [keras.Input([3]), keras.layers.BatchNormalization(), Peak(name="peak"), keras.layers.Dense(1)]
    ModelReplica(module(lambda: keras.Sequential(layers)), seed=3, rank_seed=rank_seed, sample=None)
    messages = [message for message in caplog.messages if "forward pass changes" in message]
    assert len(messages) == (rank_seed is not None)
    for message in messages:
        assert "peak/largest:" in message


@pytest.mark.parametrize(
    "layer", [keras.layers.BatchNormalization(), keras.layers.SpectralNormalization(keras.layers.Dense(3))]
)
def test_nothing_is_warned_of_for_layers_of_keras(layer: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = keras.Sequential([keras.Input([3]), layer, keras.layers.Dense(1)])
    assert ModelReplica(module(lambda: model), seed=3, rank_seed=0, sample=None).has_statistics
    assert not [message for message in caplog.messages if "forward pass changes" in message]


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float64", 1e-12), pytest.param("float32", 1e-5, marks=pytest.mark.repetition)]
)
def test_micro_batches_of_a_rank_are_as_minibatches_of_several_ranks(dtype: str, tolerance: float) -> None:
    """Also their moving values: each micro-batch begins with the same ones."""
    user = module(lambda: normalized(dtype), optimizer=OPTIMIZERS["Momentum"])
    accumulating, replicas = build(user, 2), build(user, 4)
    for x, y in minibatches(8, dtype=dtype):
        order = np.argsort(x[:, 0])
        parts = split(((x + 3)[order], y[order]), [5, 3, 0, 4])
        results = [accumulating[0].compute(*parts[0], None), accumulating[0].compute(*parts[1], None, adds=True)]
        reduce_and_apply(accumulating, [*results, accumulating[1].compute(*parts[3], None)])
        assert [result.weight for result in results] == [5, 3]
        step(replicas, parts)
    for name, array in accumulating[0].state_arrays().items():
        assert distance(array, replicas[0].state_arrays()[name]) <= tolerance, name
    assert_equal_states(accumulating)


def test_micro_batches_of_variables_in_bfloat16_and_of_a_summed_loss_are_added() -> None:
    def wide_error(labels: Any, predictions: Any) -> Any:
        return tf.reduce_sum(tf.square(labels - tf.cast(predictions, tf.float32)))

    undivided, parts = build(module(lambda: perceptron("bfloat16"), wide_error, lambda: keras.optimizers.SGD(0.01)), 2)
    ((x, y),) = minibatches(1)
    before = undivided.state_arrays()
    reduce_and_apply([undivided], compute([undivided], [(x, y)]))
    results = [parts.compute(x[at : at + 4], y[at : at + 4], adds=at > 0) for at in (0, 4, 8)]
    reduce_and_apply([parts], results)
    for name, array in undivided.state_arrays().items():
        change = array.astype(np.float64) - before[name].astype(np.float64)
        other = parts.state_arrays()[name].astype(np.float64) - before[name].astype(np.float64)
        assert np.linalg.norm(change - other) <= 0.05 * np.linalg.norm(change), name


def test_an_abort_after_micro_batches_restores_the_random_states() -> None:
    (replica,) = build(module(noisy), 1)
    before = seed_values(replica)
    ((x, y),) = minibatches(1)
    replica.compute(x, y)
    replica.compute(x, y, adds=True)
    assert seed_values(replica) != before
    replica.restore_statistics()
    assert seed_values(replica) == before


def test_a_moving_variance_is_never_negative() -> None:
    """Equal records far from zero: their variance is the difference of large rounded numbers."""
    replicas = build(module(normalized), 2)
    ((x, y),) = minibatches(1)
    for offset in (1e5, -3e5, 7e5, -1.1e6):
        step(replicas, split((offset + np.zeros_like(x) + np.array([0, 1, 2], np.float32), y), [5, 7]))
        assert (np.asarray(replicas[0].model.layers[1].moving_variance) >= 0).all()


def test_other_statistics_become_the_mean_weighted_by_records() -> None:
    class Centre(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.last = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="last")
            self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")
            self.frozen = self.add_weight(shape=(100, 100), trainable=False, name="frozen")

        def call(self, inputs: Any, training: bool = False) -> Any:
            if training:
                self.last.assign(tf.reduce_mean(inputs, 0))
                self.count()
            return inputs + 0 * self.frozen[0, 0]

        @tf.function
        def count(self) -> None:
            for _ in tf.range(2):
                self.calls.assign_add(0.5)

    replicas = build(module(lambda: keras.Sequential([keras.Input((3,)), Centre(), keras.layers.Dense(1)])), 3)
    assert replicas[0].buffers[0].size < 100, "what does not change is not summed"
    for x, y in minibatches(3):
        step(replicas, split((x, y), [2, 0, 10]))
    layer = replicas[1].model.layers[0]
    np.testing.assert_allclose(layer.last, x.mean(0), rtol=1e-5)
    assert float(layer.calls) == 3
    assert_equal_states(replicas)


def test_a_trained_variable_that_the_forward_pass_changes_equals_one_process() -> None:
    def spectral() -> Any:
        layer = keras.layers.SpectralNormalization(keras.layers.Dense(4))
        return keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])

    replicas = build(module(spectral), 3)
    plain = PlainKeras(replicas[0])
    for minibatch in minibatches(8):
        step(replicas, split(minibatch, [5, 0, 7]))
        plain.step(*minibatch)
    assert_equal_states(replicas)
    assert_close(replicas[0], plain, 1e-4)


def test_random_layers_differ_by_rank_and_states_are_equal() -> None:
    replicas = build(module(noisy), 2)
    seeds = [seed_values(replica) for replica in replicas]
    assert len(seeds[0]) == 2
    assert len({str(seed) for each in seeds for seed in each}) == 4
    assert seed_values(ModelReplica(module(noisy), seed=3, rank_seed=1, sample=None)) == seeds[1]
    assert_equal_states(replicas)
    ((x, y),) = minibatches(1)
    compute(replicas, [(x, y), (x, y)])
    assert not np.array_equal(replicas[0].buffers[0], replicas[1].buffers[0])
    for minibatch in minibatches(5):
        step(replicas, split(minibatch, [7, 5]))
    assert_equal_states(replicas)
    assert not any(name.startswith("state/") for name in replicas[0].state_arrays())


def test_an_aborted_step_leaves_no_trace() -> None:
    replicas = build(module(noisy, optimizer=OPTIMIZERS["Adam"]), 2)
    first, second = minibatches(2)
    step(replicas, split(first, [7, 5]))
    states, seeds = [r.digest() for r in replicas], [seed_values(r) for r in replicas]
    compute(replicas, split(second, [7, 5]))
    wanted = [[buffer.copy() for buffer in replica.buffers] for replica in replicas]
    assert [seed_values(r) for r in replicas] != seeds
    for replica in replicas:
        replica.restore_statistics()
    assert [seed_values(r) for r in replicas] == seeds
    assert [r.digest() for r in replicas] == states
    compute(replicas, split(second, [7, 5]))
    for replica, buffers in zip(replicas, wanted, strict=True):
        for computed, expected in zip(replica.buffers, buffers, strict=True):
            np.testing.assert_array_equal(computed, expected)


@pytest.mark.parametrize("name", ["noisy", repetition("normalized")])
def test_an_addend_that_is_written_again_has_the_bits_of_one_that_is_computed_again(name: str) -> None:
    """Also in the steps after it: random layers draw the same, and BatchNormalization gets the same statistics."""
    make_model = {"noisy": noisy, "normalized": normalized}[name]
    rewriting_ranks, recomputing_ranks = (build(module(make_model, optimizer=OPTIMIZERS["Adam"]), 2) for _ in range(2))
    for number, minibatch in enumerate(minibatches(4)):
        parts = split(minibatch, [7, 5])
        results = compute(rewriting_ranks, parts)
        assert compute(recomputing_ranks, parts) == results
        for _ in range(number):
            for replica in (*rewriting_ranks, *recomputing_ranks):
                for buffer in replica.buffers:
                    buffer.fill(17)  # a partial sum
                replica.restore_statistics()
            for replica in rewriting_ranks:
                replica.write_again()
            assert compute(recomputing_ranks, parts) == results
        for rewriting, recomputing in zip(rewriting_ranks, recomputing_ranks, strict=True):
            assert seed_values(rewriting) == seed_values(recomputing)
            for rewritten, expected in zip(rewriting.buffers, recomputing.buffers, strict=True):
                np.testing.assert_array_equal(rewritten, expected)
        for replicas in (rewriting_ranks, recomputing_ranks):
            reduce_and_apply(replicas, results)
    assert [replica.digest() for replica in rewriting_ranks] == [replica.digest() for replica in recomputing_ranks]


def test_no_addend_is_kept_of_a_step_that_was_applied_or_had_several_minibatches() -> None:
    (replica,) = build(module(), 1)
    assert not replica.keeps_addend
    first, second = minibatches(2)
    step([replica], [first])
    assert not replica.keeps_addend
    replica.compute(*first)
    replica.compute(*second, adds=True)
    assert not replica.keeps_addend
    replica.compute(first[0] * np.inf, first[1])
    assert not replica.keeps_addend


def test_a_model_of_a_fixed_number_of_records_is_trained() -> None:
    def fixed() -> Any:
        return keras.Sequential([keras.Input((3,), batch_size=6), keras.layers.Dense(1)])

    replicas = build(module(fixed), 2)
    before = replicas[0].digest()
    step(replicas, split(minibatches(1)[0], [6, 6]))
    assert_equal_states(replicas)
    assert replicas[0].digest() != before


def test_a_step_that_was_applied_is_not_undone() -> None:
    replicas = build(module(noisy), 1)
    step(replicas, minibatches(1))
    seeds = seed_values(replicas[0])
    replicas[0].restore_statistics()
    assert seed_values(replicas[0]) == seeds
