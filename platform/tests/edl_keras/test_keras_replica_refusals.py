"""What several ranks cannot train is refused or warned of by name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

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
    generator,
    linear,
    minibatches,
    module,
    sequences,
    several_optimizers,
    split,
    squared_error,
    step,
    summed_error,
    tagger,
)

from edl.api.errors import BadInputError  # noqa: E402


def test_a_gradient_that_is_not_finite_is_named() -> None:
    replicas = build(module(), 2)
    before = replicas[0].digest()
    ((x, y),) = minibatches(1)
    y = y.copy()
    y[3] = np.nan
    results = compute(replicas, split((x, y), [6, 6]))
    assert [result.is_finite for result in results] == [False, True]
    assert results[0].nonfinite_name == replicas[0].model.trainable_variables[0].path
    assert results[1].nonfinite_name == ""
    assert replicas[0].digest() == before


def test_one_infinite_value_at_the_end_of_a_large_gradient_is_noticed() -> None:
    def wide() -> Any:
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(70_000, use_bias=False)])

    (replica,) = build(module(wide), 1)
    ((x, _),) = minibatches(1)
    y = np.zeros((12, 70_000), np.float32)
    assert replica.compute(x, y).is_finite
    y[:, -1] = np.inf
    result = replica.compute(x, y)
    assert not result.is_finite
    assert result.nonfinite_name == replica.model.trainable_variables[0].path


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_a_variable_without_a_gradient_keeps_its_value_on_all_ranks() -> None:
    def unused() -> Any:
        inputs = keras.Input((3,))
        first, second = (keras.layers.Dense(1, name=name)(inputs) for name in ("used", "unused"))
        return keras.Model(inputs, [first, second])

    user = module(unused, lambda labels, found: squared_error(labels, found[0]), OPTIMIZERS["AdamW"])
    replicas = build(user, 3)
    before = [np.asarray(weight) for weight in replicas[0].model.get_layer("unused").weights]
    for minibatch in minibatches(2):
        step(replicas, split(minibatch, [5, 0, 7]))
    for value, expected in zip(replicas[0].model.get_layer("unused").weights, before, strict=True):
        np.testing.assert_array_equal(value, expected)
    assert_equal_states(replicas)


def test_an_integer_that_training_changes_is_refused_by_name() -> None:
    class Counter(keras.layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.seen = self.add_weight((), "zeros", "int32", trainable=False, name="seen")

        def call(self, inputs: Any, training: bool = False) -> Any:
            if training:
                self.seen.assign_add(1)
            return inputs

    with pytest.raises(BadInputError, match=r"counter_layer/seen.*int32"):
        build(
            module(lambda: keras.Sequential([keras.Input((3,)), Counter(name="counter_layer"), keras.layers.Dense(1)])),
            1,
        )


class Late(keras.Model):  # type: ignore[misc]
    """Builds a layer when a condition in Python first holds."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        super().__init__()
        self.first, self.second = keras.layers.Dense(1), keras.layers.Dense(1, name="late")
        self.condition = condition

    def build(self, shape: Any) -> None:
        self.first.build(shape)

    def call(self, inputs: Any, training: bool = False) -> Any:
        outputs = self.first(inputs)
        return outputs + self.second(inputs) if training and self.condition() else outputs


def test_a_variable_made_by_the_first_training_step_is_refused_by_name() -> None:
    with pytest.raises(BadInputError, match="late/kernel"):
        build(module(lambda: Late(lambda: True)), 1, sample=np.zeros((2, 3), np.float32))


def test_a_variable_made_by_a_later_step_is_refused_by_name() -> None:
    conditions = iter([False, True])
    (replica,) = build(module(lambda: Late(lambda: next(conditions, True))), 1, sample=np.zeros((2, 3), np.float32))
    with pytest.raises(BadInputError, match="late/kernel"):
        replica.compute(*minibatches(1)[0], None)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: keras.layers.BatchNormalization(synchronized=True, name="both"), "'both'.*synchronized"),
        (lambda: keras.layers.LSTM(2, stateful=True, name="memory"), "'memory'.*stateful"),
    ],
    ids=["synchronized", "stateful"],
)
def test_layers_that_several_ranks_cannot_train_are_refused_by_name(layer: Callable[[], Any], message: str) -> None:
    def make() -> Any:
        layers = [keras.Input((4, 3), batch_size=5), layer(), keras.layers.Flatten(), keras.layers.Dense(1)]
        return keras.Sequential(layers)

    with pytest.raises(BadInputError, match=message):
        build(module(make), 1)


def test_a_summed_loss_with_a_layers_own_loss_is_refused() -> None:
    def active() -> Any:
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activity_regularizer="l2")])

    (replica,) = build(module(active, summed_error), 1)
    with pytest.raises(BadInputError, match="add_loss"):
        replica.compute(*minibatches(1)[0], None)
    (replica,) = build(module(active), 1)
    assert step([replica], minibatches(1))[0].is_finite


def test_outputs_with_different_reductions_are_refused_by_name() -> None:
    def two() -> Any:
        inputs = keras.Input((3,))
        return keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")})

    losses = {"a": "mse", "b": keras.losses.MeanSquaredError(reduction="sum")}
    with pytest.raises(BadInputError, match=r"loss\['a'\].*loss\['b'\]"):
        build(module(two, losses), 1)


def test_ranks_that_disagree_about_the_loss_stop() -> None:
    replicas = [
        *build(module(loss=squared_error), 1),
        *build(module(loss=summed_error), 1),
    ]
    with pytest.raises(BadInputError, match="one rank"):
        step(replicas, split(minibatches(1)[0], [6, 6]))


def test_a_minibatch_without_a_loss_does_not_decide_what_the_loss_is() -> None:
    replicas = build(module(linear, summed_error, lambda: keras.optimizers.SGD(0.01)), 2)
    plain = PlainKeras(replicas[0], summed_error)
    (x, y), *others = minibatches(4)
    y = np.concatenate([np.zeros((6, 1), np.float32), y[6:]])
    for minibatch in [(x, y), *others]:
        step(replicas, split(minibatch, [6, 6]))
        plain.step(*minibatch)
    assert_close(replicas[0], plain, 1e-5)


def test_a_loss_that_compares_records_is_averaged_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def spread(labels: Any, predictions: Any) -> Any:
        return tf.math.reduce_logsumexp(tf.square(labels - predictions))

    replicas = build(module(loss=spread), 2)
    with caplog.at_level(logging.WARNING):
        results = step(replicas, split(minibatches(1)[0], [4, 8]))
    assert [result.weight for result in results] == [4, 8]
    assert "neither" in caplog.text
    assert_equal_states(replicas)


def own_dice(labels: Any, predictions: Any) -> Any:
    return 1 - 2 * tf.reduce_sum(labels * predictions) / (tf.reduce_sum(labels) + tf.reduce_sum(predictions))


class OwnDice(keras.losses.Loss):  # type: ignore[misc]
    def call(self, labels: Any, predictions: Any) -> Any:
        return own_dice(labels, predictions)


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        (own_dice, "not the mean of the losses of its records"),
        (OwnDice(), "not the mean of the losses of its records"),
        (keras.losses.Dice(), "loss is Dice"),
        ({"out": keras.losses.Tversky()}, r"loss['out'] is Tversky"),
        ("dice", "loss is"),
        (squared_error, ""),
        (keras.losses.Dice(axis=(1,)), ""),
    ],
    ids=["function", "class", "Dice", "Tversky", "name", "mean", "Dice by record"],
)
@pytest.mark.first_cases(3)
def test_a_loss_of_the_whole_minibatch_is_named(caplog: pytest.LogCaptureFixture, loss: Any, named: str) -> None:
    def make() -> Any:
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid", name="out")])

    ((x, y),) = minibatches(1)
    with caplog.at_level(logging.WARNING):
        step(build(module(make, loss), 1), [(x, np.abs(y))])
    assert named in caplog.text if named else not caplog.text


def test_the_mask_of_predictions_does_not_decide_what_a_function_of_compile_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (replica,) = build(module(tagger, squared_error, loss_of_each_output=True), 1)
    ((ids, labels, _),) = sequences(1)
    with caplog.at_level(logging.WARNING):
        (result,) = step([replica], [(ids, np.where(ids[:, :, None] > 0, labels + 5, 0).astype(np.float32))])
    assert result.weight == np.count_nonzero(ids)
    assert not caplog.text


def test_the_averages_of_one_of_several_optimizers_are_what_is_evaluated() -> None:
    (replica,) = build(module(optimizer=lambda: several_optimizers(0.2)), 1)
    for minibatch in minibatches(3):
        step([replica], [minibatch])
    before = replica.digest()
    copied = replica.copy_final_values()
    assert replica.digest() == before
    pairs = zip(replica.model.variables, copied, strict=True)
    averaged = [variable.path for variable, copy in pairs if distance(copy, variable) > 1e-3]
    assert averaged
    assert all("bias" in path for path in averaged)


class Tracking(keras.layers.Layer):  # type: ignore[misc]
    """Keeps a moving mean, and counts records."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=shape[1:], initializer="zeros", trainable=False, name="mean")
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * tf.reduce_mean(inputs, 0))
            self.count.assign_add(tf.cast(tf.shape(inputs)[0], tf.float32))
        return inputs


def test_other_weights_that_a_step_changes_become_the_mean_of_the_ranks() -> None:
    replicas = build(module(lambda: keras.Sequential([keras.Input((3,)), Tracking(), keras.layers.Dense(1)])), 2)
    plain = PlainKeras(replicas[0])
    for minibatch in minibatches(3):
        step(replicas, split(minibatch, [4, 8]))
        plain.step(*minibatch)
    mine, other = replicas[0].model.layers[0], plain.model.layers[0]
    assert distance(mine.mean, other.mean) < 1e-5
    assert float(other.count) == 36
    assert float(mine.count) == pytest.approx(3 * (4 * 4 + 8 * 8) / 12), "the docs say so"


@cache
def calls() -> Any:
    """A variable that no model has, also where it is made inside of a graph."""
    with tf.init_scope():
        return tf.Variable(0.0, name="calls")


def annealed_error(labels: Any, predictions: Any) -> Any:
    calls().assign_add(1.0)
    return tf.minimum(1.0, calls() / 10) * tf.square(labels - predictions)


class Counted(keras.layers.Layer):  # type: ignore[misc]
    def call(self, inputs: Any) -> Any:
        calls().assign_add(1.0)
        return inputs


class Drawing(keras.layers.Layer):  # type: ignore[misc]
    """Draws from Keras' and TensorFlow's global generators."""

    def call(self, inputs: Any) -> Any:
        return (
            inputs + keras.random.normal(tf.shape(inputs), stddev=1e-6) + generator().normal(tf.shape(inputs), 0, 1e-6)
        )


@pytest.mark.parametrize("place", ["the loss", "the model"])
def test_a_variable_that_the_model_does_not_have_is_not_written(place: str) -> None:
    def counted() -> Any:
        return keras.Sequential([keras.Input((3,)), Counted(), keras.layers.Dense(1)])

    user = module(counted) if place == "the model" else module(loss=annealed_error)
    with pytest.raises(BadInputError, match=f"{place} writes the variable 'calls'"):
        step(build(user, 1), [minibatches(1)[0]])


@pytest.mark.repetition
def test_global_generators_may_draw() -> None:
    replicas = build(module(lambda: keras.Sequential([keras.Input((3,)), Drawing(), keras.layers.Dense(1)])), 2)
    assert all(result.is_finite for result in step(replicas, split(minibatches(1)[0], [4, 8])))


def test_a_step_without_records_is_no_step() -> None:
    replicas = build(module(), 2)
    with pytest.raises(ValueError, match="records"):
        step(replicas, [None, None])


def test_an_optimizer_that_makes_a_variable_late_is_refused_by_name() -> None:
    class Tardy(keras.optimizers.SGD):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            with tf.init_scope():
                self.add_variable((), name="tardy")
            super().update_step(gradient, variable, learning_rate)

    replicas = build(module(optimizer=lambda: Tardy(0.1)), 1)
    with pytest.raises(BadInputError, match="tardy"):
        step(replicas, minibatches(1))
