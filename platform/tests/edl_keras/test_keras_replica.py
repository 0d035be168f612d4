"""Strategy AllReduce: the summed minibatches of several ranks train as one process of Keras on their union."""

from __future__ import annotations

import logging
from collections.abc import Callable
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
    compute,
    linear,
    minibatches,
    module,
    perceptron,
    random_sizes,
    reduce_and_apply,
    sequences,
    several_optimizers,
    split,
    squared_error,
    step,
    summed_error,
    tagger,
)

from edl.api.errors import BadInputError  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402
from edl.keras.replica_state import ReplicaStep  # noqa: E402
from edl.worker.allreduce.step_message import StepMessage, StepOutcome  # noqa: E402

WORLDS = [3, *(pytest.param(ranks, marks=pytest.mark.repetition) for ranks in (1, 2, 4))]


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float64", 1e-9), pytest.param("float32", 1e-4, marks=pytest.mark.repetition)]
)
@pytest.mark.parametrize(
    "optimizer",
    ["Adam", *repetitions(("Momentum", "SGD", "AdamW"))],
)
def test_hundred_steps_equal_one_process(optimizer: str, dtype: str, tolerance: float, ranks: int) -> None:
    replicas = build(module(lambda: perceptron(dtype), optimizer=OPTIMIZERS[optimizer]), ranks)
    (buffer,) = replicas[0].buffers
    assert (buffer.dtype, buffer.ndim) == (dtype, 1)
    assert buffer.flags.c_contiguous
    plain, generator = PlainKeras(replicas[0], many_steps=True), np.random.default_rng(1)
    empty = 0
    for minibatch in minibatches(100, dtype=dtype):
        sizes = random_sizes(generator, 12, ranks)
        empty += sizes.count(0)
        results = step(replicas, split(minibatch, sizes))
        loss = float(plain.step(*minibatch))
        assert [result.weight for result in results] == [size for size in sizes if size]
        assert all(result.is_finite and not result.nonfinite_name for result in results)
        assert sum(r.loss * r.weight for r in results) / 12 == pytest.approx(loss, rel=1e-3)
    assert empty or ranks < 3
    assert_equal_states(replicas)
    assert_close(replicas[0], plain, tolerance)


@pytest.mark.parametrize(
    "loss",
    [
        summed_error,
        repetition(keras.losses.MeanSquaredError(reduction="sum")),
        repetition(lambda labels, predictions: {"out": summed_error(labels, predictions)}),
    ],
    ids=["function", "Keras", "mapping"],
)
def test_summed_losses_are_added_and_regularizers_count_once(loss: Any) -> None:
    def named() -> Any:
        out = keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L1L2(0.1, 0.2), name="out")
        inputs = keras.Input((3,))
        return keras.Model(inputs, out(inputs))

    replicas = build(module(named, loss, lambda: keras.optimizers.SGD(0.005)), 3)
    plain, generator = PlainKeras(replicas[0], summed_error), np.random.default_rng(2)
    for minibatch in minibatches(8):
        results = step(replicas, split(minibatch, random_sizes(generator, 12, 3)))
        assert all(result.weight == 1 for result in results)
        messages = [
            StepMessage((), True, each.weight, each.loss, common_loss=each.common_loss).encode() for each in results
        ]
        assert StepOutcome.from_messages(messages).loss == pytest.approx(float(plain.step(*minibatch)), rel=1e-5)
    assert_equal_states(replicas)
    assert_close(replicas[0], plain, 1e-5)


def test_a_summed_loss_of_whole_numbers_is_exact_in_any_order() -> None:
    replicas = build(module(linear, summed_error, lambda: keras.optimizers.SGD(2.0**-5)), 3)
    kernel, bias = np.zeros((3, 1)), np.zeros(1)
    generator = np.random.default_rng(3)
    for _ in range(3):
        x = generator.integers(-2, 3, (12, 3)).astype(np.float32)
        y = generator.integers(-4, 5, (12, 1)).astype(np.float32)
        step(replicas, split((x, y), [5, 0, 7]))
        error = x @ kernel + bias - y
        kernel, bias = kernel - 2.0**-4 * x.T @ error, bias - 2.0**-4 * error.sum(0)
    for replica in replicas:
        np.testing.assert_array_equal(replica.model.get_weights()[0], kernel.astype(np.float32))
        np.testing.assert_array_equal(replica.model.get_weights()[1], bias.astype(np.float32))


def test_a_summed_loss_that_is_zero_at_first_is_a_sum_from_the_first_step() -> None:
    """A model that starts with zeros predicts zeros, and the loss of its first minibatch cannot tell what it is."""

    def zeros() -> Any:
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])

    def linear_loss(labels: Any, predictions: Any) -> Any:
        return -tf.reduce_sum(labels * predictions)

    replicas = build(module(zeros, linear_loss, lambda: keras.optimizers.SGD(0.5)), 2)
    x, y = np.ones((12, 3), np.float32), np.ones((12, 1), np.float32)
    results = step(replicas, split((x, y), [4, 8]))
    assert [result.weight for result in results] == [1, 1]
    for replica in replicas:
        np.testing.assert_array_equal(replica.model.get_weights()[0], np.full((3, 1), 6, np.float32))


@pytest.mark.parametrize(
    ("optimizer", "scaled"),
    [
        repetition(lambda: keras.optimizers.SGD(0.1, momentum=0.9), lambda: keras.optimizers.SGD(0.25, momentum=0.9)),
        repetition(lambda: keras.optimizers.AdamW(0.01), lambda: keras.optimizers.AdamW(0.025)),
        (
            lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
            lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.25, 2, 0.5)),
        ),
        repetition(
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)),
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.25)),
        ),
        (lambda: several_optimizers(0.02), lambda: several_optimizers(0.05)),
    ],
    ids=["Momentum", "AdamW", "schedule", "loss scale", "several"],
)
@pytest.mark.first_cases(1)
def test_a_scaled_learning_rate_is_seen_by_the_update_only(optimizer: Any, scaled: Any) -> None:
    (replica,), (other,) = build(module(optimizer=optimizer), 1), build(module(optimizer=scaled), 1)
    before = rate_of(replica.optimizer)
    for minibatch in minibatches(5):
        for each, factor in ((replica, 2.5), (other, None)):
            each.apply(each.compute(*minibatch).weight, factor)
    for mine, theirs in zip(replica.model.get_weights(), other.model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)
    has_schedule = not isinstance(replica.optimizer, keras.optimizers.MultiOptimizer) and isinstance(
        replica.optimizer.learning_rate, tf.Tensor
    )
    assert rate_of(replica.optimizer) == pytest.approx(before / 2**2.5 if has_schedule else before)


def rate_of(optimizer: Any) -> float:
    first = optimizer.optimizers[0] if isinstance(optimizer, keras.optimizers.MultiOptimizer) else optimizer
    return float(first.learning_rate)


def normalized_error(labels: Any, predictions: Any, sample_weights: Any) -> Any:
    weights = tf.reshape(sample_weights, [-1, 1])
    return tf.reduce_sum(weights * tf.square(labels - predictions)) / tf.reduce_sum(weights)


@pytest.mark.parametrize(
    ("loss", "by_sum_of_weights"),
    [
        (squared_error, False),
        repetition(keras.losses.MeanSquaredError(), False),
        repetition(keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"), True),
        (normalized_error, True),
    ],
    ids=["function", "Keras", "mean_with_sample_weight", "function that divides by the weights"],
)
@pytest.mark.first_cases(1)
def test_sample_weights_count_as_in_one_process(
    caplog: pytest.LogCaptureFixture, loss: Any, by_sum_of_weights: bool
) -> None:
    def union_loss(labels: Any, predictions: Any, weights: Any) -> Any:
        weighted = tf.reshape(weights, [-1, 1]) * tf.square(labels - predictions)
        return tf.reduce_sum(weighted) / tf.reduce_sum(weights) if by_sum_of_weights else tf.reduce_mean(weighted)

    replicas = build(module(loss=loss), 3)
    plain, generator = PlainKeras(replicas[0], union_loss), np.random.default_rng(4)
    for x, y in minibatches(8):
        minibatch = (x, y, generator.integers(0, 4, 12).astype(np.float32))
        sizes = [7, 0, 5]
        results = step(replicas, split(minibatch, sizes))
        expected = [float(minibatch[2][:7].sum()), float(minibatch[2][7:].sum())] if by_sum_of_weights else [7, 5]
        assert [result.weight for result in results] == expected
        plain.step(*minibatch)
    assert not caplog.text
    assert_equal_states(replicas)
    # A bias is nearly 0 at the end: what a processor rounds otherwise is 4e-5 of it.
    assert_close(replicas[0], plain, 1e-4)


@pytest.mark.parametrize(
    ("weighted", "reduction"),
    [
        (False, "sum_over_batch_size"),
        (True, "mean_with_sample_weight"),
        repetition(False, "sum"),
        repetition(True, "sum_over_batch_size"),
        repetition(False, "mean_with_sample_weight"),
        repetition(True, "sum"),
    ],
)
@pytest.mark.first_cases(1)
def test_a_masked_loss_of_unequal_lengths_equals_one_process(reduction: str, weighted: bool) -> None:
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    rate = 0.002 if reduction == "sum" else 0.05
    replicas = build(module(tagger, loss, lambda: keras.optimizers.SGD(rate)), 3)
    plain = PlainKeras(replicas[0], loss)
    for minibatch in sequences(8):
        union = minibatch if weighted else minibatch[:2]
        step(replicas, split(union, [7, 0, 5]))
        plain.step(*union)
    assert_equal_states(replicas)
    assert_close(replicas[0], plain, 1e-5)


def classifier(*, is_masked: bool) -> Any:
    """A class for each step of a sequence; if it is masked, id 0 is padding."""
    ids = keras.Input((6,), dtype="int32")
    vectors = keras.layers.Embedding(9, 3, mask_zero=is_masked)(ids)
    return keras.Model(ids, keras.layers.Dense(4, activation="softmax")(vectors))


@pytest.mark.parametrize("is_masked", [False, True], ids=["labels", "labels and predictions"])
@pytest.mark.parametrize(
    ("weighted", "reduction"),
    [
        (False, "sum_over_batch_size"),
        (True, "mean_with_sample_weight"),
        repetition(False, "sum"),
        repetition(True, "sum_over_batch_size"),
        repetition(False, "mean_with_sample_weight"),
    ],
)
@pytest.mark.first_cases(2)
def test_a_loss_that_ignores_a_class_equals_one_process(reduction: str, weighted: bool, is_masked: bool) -> None:
    """Most labels of the first rank are of the class that is ignored."""
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=255, reduction=reduction)
    rate = 0.01 if reduction == "sum" else 0.5
    replicas = build(module(lambda: classifier(is_masked=is_masked), loss, lambda: keras.optimizers.SGD(rate)), 3)
    plain, generator = PlainKeras(replicas[0], loss), np.random.default_rng(8)
    for ids, _, weights in sequences(8):
        labels = generator.integers(0, 4, (12, 6))
        labels[:7] = np.where(generator.random((7, 6)) < 0.8, 255, labels[:7])
        union = (ids, labels, weights) if weighted else (ids, labels)
        step(replicas, split(union, [7, 0, 5]))
        plain.step(*union)
    assert_equal_states(replicas)
    assert_close(replicas[0], plain, 1e-4)


@pytest.mark.repetition
def test_outputs_with_different_masks_are_averaged_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    (replica,) = build(module(lambda: tagger(2), ["mse", "mse"]), 1)
    ((ids, labels, _),) = sequences(1)
    with caplog.at_level(logging.WARNING):
        (result,) = step([replica], [(ids, (labels, labels))])
    assert result.weight == 12
    assert any("different masks" in message for message in caplog.messages)


def test_weights_that_are_all_zero_change_nothing() -> None:
    replicas = build(module(linear, keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")), 2)
    before = replicas[0].model.get_weights()
    ((x, y),) = minibatches(1)
    step(replicas, split((x, y, np.zeros(12, np.float32)), [6, 6]))
    for weight, expected in zip(replicas[0].model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_weights_that_are_all_zero_leave_the_regularizers(caplog: pytest.LogCaptureFixture) -> None:
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    replicas = build(module(loss=loss), 2)
    plain = PlainKeras(replicas[0], loss)
    ((x, y),) = minibatches(1)
    nothing = (x, y, np.zeros(12, np.float32))
    step(replicas, split(nothing, [6, 6]))
    plain.step(*nothing)
    assert_equal_states(replicas)
    assert_close(replicas[0], plain, 1e-6)
    assert not caplog.text


def active() -> Any:
    """A layer adds a mean over records to the loss."""
    hidden = keras.layers.Dense(3, activity_regularizer=keras.regularizers.L2(0.1), kernel_regularizer="l2")
    return keras.Sequential([keras.Input((3,)), hidden, keras.layers.Dense(1)])


@pytest.mark.parametrize(
    ("reduction", "warns"), [("mean_with_sample_weight", True), repetition("sum_over_batch_size", False)]
)
def test_a_loss_that_a_layer_adds_warns_if_minibatches_do_not_count_by_records(
    caplog: pytest.LogCaptureFixture, reduction: str, warns: bool
) -> None:
    (replica,) = build(module(active, keras.losses.MeanSquaredError(reduction=reduction)), 1)
    ((x, y),) = minibatches(1)
    with caplog.at_level(logging.WARNING):
        step([replica], [(x, y, np.arange(12, dtype=np.float32))])
    assert any("a layer adds a loss of its own" in message for message in caplog.messages) == warns


def test_class_weights_count_as_in_one_process() -> None:
    user = module(
        lambda: keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")]),
        keras.losses.BinaryCrossentropy(reduction="mean_with_sample_weight"),
        class_weight={0: 1.0, 1: 3.0},
    )
    replicas = build(user, 2)
    plain = PlainKeras(
        replicas[0],
        lambda labels, found: keras.losses.BinaryCrossentropy(reduction="mean_with_sample_weight")(
            labels, found, 1 + 2 * labels[:, 0]
        ),
    )
    for x, y in minibatches(8):
        minibatch = (x, (y > 0).astype(np.float32))
        step(replicas, split(minibatch, [4, 8]))
        plain.step(*minibatch)
    assert_close(replicas[0], plain, 1e-5)


@pytest.mark.parametrize("optimizer", [repetition("SGD"), "Adam"])
def test_embeddings_are_trained_by_their_dense_sum(optimizer: str) -> None:
    def embedding() -> Any:
        layers = [keras.Input((4,), dtype="int32"), keras.layers.Embedding(9, 2), keras.layers.Flatten()]
        return keras.Sequential([*layers, keras.layers.Dense(1)])

    replicas = build(module(embedding, optimizer=OPTIMIZERS[optimizer]), 3)
    plain, generator = PlainKeras(replicas[0]), np.random.default_rng(5)
    for _ in range(8):
        x = generator.integers(0, 9, (12, 4)).astype(np.int32)
        y = x[:, :1].astype(np.float32)
        step(replicas, split((x, y), random_sizes(generator, 12, 3)))
        plain.step(x, y)
    assert_equal_states(replicas)
    assert_close(replicas[0], plain, 1e-4)


def test_tables_above_the_limit_are_refused_before_a_step() -> None:
    """Two tables of 72 and 48 bytes: the limit holds for their sum, and the larger one is named."""

    def embeddings() -> Any:
        ids = keras.Input((4,), dtype="int32")
        tables = [keras.layers.Embedding(rows, 2, name=name) for rows, name in ((9, "items"), (6, "users"))]
        vectors = keras.layers.Concatenate()([keras.layers.Flatten()(table(ids)) for table in tables])
        return keras.Model(ids, keras.layers.Dense(50)(vectors))

    def compute_with_limit(limit: int) -> ReplicaStep:
        user = module(embeddings)
        replica = ModelReplica(user, seed=3, rank_seed=0, sample=None, max_dense_gradient=limit)
        return replica.compute(np.zeros((2, 4), np.int32), np.zeros((2, 1), np.float32))

    with pytest.raises(BadInputError) as refused:
        compute_with_limit(119)
    assert "120 bytes in each step, 72 bytes of them for the variable 'items/embeddings' (9, 2)" in str(refused.value)
    assert "ParameterServer" in (refused.value.hint or "")
    assert compute_with_limit(120).is_finite, (
        "the kernel of the dense layer is larger, but its gradient is dense anyway"
    )


class CustomOptimizer(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Counts steps of each variable, in an integer variable."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        self.counter = self.add_variable((), initializer="zeros", dtype="int64", name="counter")

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.assign_add(self.counter, keras.ops.ones((), "int64"))
        scaled = gradient / keras.ops.cast(self.counter, gradient.dtype)
        self.assign_sub(variable, keras.ops.cast(learning_rate, variable.dtype) * scaled)


OTHER_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "use_ema": lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4),
    "accumulation": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=3),
    "loss_scale_factor": lambda: keras.optimizers.SGD(0.05, loss_scale_factor=1024.0),
    "clipping": lambda: keras.optimizers.SGD(0.05, global_clipnorm=0.1),
    "dynamic": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.05, momentum=0.9), initial_scale=4096.0, dynamic_growth_steps=3
    ),
    "custom": lambda: CustomOptimizer(0.05),
    "several": lambda: several_optimizers(0.05),
}


@pytest.mark.parametrize(
    "optimizer",
    ["accumulation", "several", *repetitions(("dynamic", "custom", "use_ema", "loss_scale_factor", "clipping"))],
)
@pytest.mark.first_cases(1)
def test_every_kind_of_optimizer_equals_one_process(optimizer: str) -> None:
    replicas = build(module(optimizer=OTHER_OPTIMIZERS[optimizer]), 2)
    plain, generator = PlainKeras(replicas[0]), np.random.default_rng(6)
    for minibatch in minibatches(14):
        step(replicas, split(minibatch, random_sizes(generator, 12, 2)))
        plain.step(*minibatch)
    assert_equal_states(replicas)
    assert_close(replicas[0], plain, 1e-5)
    assert replicas[0].finalize() == (optimizer in ("use_ema", "several"))
    plain.optimizer.finalize_variable_values(plain.model.trainable_variables)
    assert_close(replicas[0], plain, 1e-5)


class HalvingOptimizer(keras.optimizers.SGD):  # type: ignore[misc]
    """Halves gradients in the method that ``fit`` calls."""

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        return super().apply_gradients([(gradient / 2, variable) for gradient, variable in grads_and_vars])


@pytest.mark.parametrize("rank_seed", [None, 0], ids=["Local", "AllReduce"])
def test_an_optimizer_that_overrides_apply_gradients_trains_as_in_fit(rank_seed: int | None) -> None:
    user = module(optimizer=lambda: HalvingOptimizer(0.05))
    replica = ModelReplica(user, seed=3, rank_seed=rank_seed, sample=None)
    plain = perceptron()
    plain.set_weights(replica.model.get_weights())
    plain.compile(HalvingOptimizer(0.05), "mse", run_eagerly=True)
    for minibatch in minibatches(3):
        replica.take_step(*minibatch)
        plain.train_on_batch(*minibatch)
    for mine, theirs in zip(replica.model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_dynamic_loss_scaling_skips_a_step_that_overflows_on_one_rank() -> None:
    scale = 2.0**20
    scaling = lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=scale)  # noqa: E731

    def half() -> Any:
        first = keras.layers.Dense(4, dtype="mixed_float16")
        return keras.Sequential([keras.Input((3,)), first, keras.layers.Dense(1, dtype="float32")])

    replicas = build(module(half, optimizer=scaling), 2)
    before = replicas[0].model.get_weights()
    ((x, y),) = minibatches(1)
    tiny = (x[6:] * 1e-6, y[6:] * 1e-6)
    results = step(replicas, [(x[:6], y[:6]), tiny])
    assert all(result.is_finite for result in results), "the optimizer sees it first"
    for replica in replicas:
        assert float(replica.optimizer.dynamic_scale) == scale / 2
        for weight, expected in zip(replica.model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(weight, expected)
    assert_equal_states(replicas)
    while float(replicas[0].optimizer.dynamic_scale) > 1000:
        step(replicas, [(x[:6], y[:6]), tiny])
        if not np.array_equal(replicas[0].model.get_weights()[0], before[0]):
            break
    assert not np.array_equal(replicas[0].model.get_weights()[0], before[0])
    assert_equal_states(replicas)


def test_mixed_types_have_a_buffer_each() -> None:
    def mixed() -> Any:
        first = keras.layers.Dense(4, dtype="float64")
        return keras.Sequential([keras.Input((3,)), first, keras.layers.Dense(1, dtype="float32")])

    replicas = build(module(mixed), 2)
    assert [buffer.dtype.name for buffer in replicas[0].buffers] == ["float32", "float64"]
    plain = PlainKeras(replicas[0])
    for minibatch in minibatches(10):
        step(replicas, split(minibatch, [5, 7]))
        plain.step(*minibatch)
    assert_equal_states(replicas)
    assert_close(replicas[0], plain, 1e-5)


@pytest.mark.parametrize("dtype", [repetition("float16"), "bfloat16"])
def test_variables_of_half_precision_are_summed_as_such(dtype: str) -> None:
    replicas = build(module(lambda: perceptron(dtype)), 2)
    assert [buffer.dtype.name for buffer in replicas[0].buffers] == [dtype, "float32"], "half cannot count records"
    before = replicas[0].state_arrays()
    for x, y in minibatches(10):
        minibatch = (tf.cast(x, dtype), tf.cast(y, dtype))
        step(replicas, [tuple(each[:5] for each in minibatch), tuple(each[5:] for each in minibatch)])
    assert_equal_states(replicas)
    assert replicas[0].state_arrays().keys() == before.keys()
    assert not np.array_equal(replicas[0].model.trainable_variables[0].numpy(), before["dense/sequential/dense/kernel"])


def test_a_sum_beyond_the_range_of_float16_is_refused_by_name_on_all_ranks() -> None:
    """Each rank's gradient is finite, and so would be their mean; without an error all variables became infinite."""

    def narrow() -> Any:
        return keras.Sequential([keras.Input((3,), dtype="float16"), keras.layers.Dense(1, dtype="float16")])

    replicas = build(module(narrow, lambda labels, predictions: labels * predictions), 2)
    before = replicas[0].pack_state()
    x, y = tf.fill([60, 3], tf.constant(600, tf.float16)), tf.ones([60, 1], tf.float16)
    results = compute(replicas, [(x, y), (x, y)])
    assert all(result.is_finite for result in results)
    with np.errstate(over="ignore"), pytest.raises(BadInputError, match=r"sequential/dense/kernel.* float16"):
        reduce_and_apply(replicas, results)
    with pytest.raises(BadInputError, match=r"sequential/dense/kernel.* float16"):
        replicas[1].apply(120.0)
    for replica in replicas:
        np.testing.assert_array_equal(replica.pack_state(), before)
