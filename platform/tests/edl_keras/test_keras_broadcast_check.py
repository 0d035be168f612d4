"""One label a record and one prediction a record that meet as (n, n) are refused before the first step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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
from support.text_keys import missing_keys  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.keras.model_contract import ModelModule  # noqa: E402
from edl.keras.network import KerasNetwork  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402

FEATURES = np.random.default_rng(0).random((4, 2), np.float32)
FLAT, COLUMN = np.zeros(4, np.float32), np.zeros((4, 1), np.float32)

Step = Callable[[Any], Any]


def square(labels: Any, predictions: Any) -> Any:
    return tf.square(labels - predictions)


def dense() -> Any:
    return keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])


def squeezed() -> Any:
    return keras.Sequential([keras.Input([2]), keras.layers.Dense(1), keras.layers.Reshape([])])


def sequence() -> Any:
    return keras.Sequential([keras.Input([2]), keras.layers.Dense(3)])


def named() -> Any:
    inputs = keras.Input([2])
    return keras.Model(inputs, {"price": keras.layers.Dense(1)(inputs), "sold": keras.layers.Dense(1)(inputs)})


def of_names(labels: Any, predictions: Any) -> Any:
    return square(labels["price"], predictions["price"]) + square(labels["sold"], predictions["sold"])


def module_of(model: Any, loss: Any = square, metrics: Any = dict) -> ModelModule:
    return ModelModule(
        zoo=Path(__file__).parent,
        make_model=model,
        loss=loss,
        optimizer=lambda: keras.optimizers.SGD(0.1),
        eval_metrics_fn=metrics,
        feed=lambda dataset, mode, metadata: dataset,
    )


def served(module: ModelModule) -> tuple[Step, Step]:
    network = KerasNetwork.build(
        module, seed=7, embedding_threshold=1 << 40, ps_of_variable=lambda _: 0, ps_count=1, sample=FEATURES
    )
    slab = network.initial_values()
    return (
        lambda labels: network.train(slab, {}, FEATURES, labels).loss,
        lambda labels: network.evaluate(slab, {}, FEATURES, labels),
    )


def alone(module: ModelModule) -> tuple[Step, Step]:
    model = ModelReplica(module, seed=7, rank_seed=None, sample=FEATURES)
    features = tf.constant(FEATURES)
    return (
        lambda labels: model.take_step(features, tf.nest.map_structure(tf.constant, labels)).loss,
        lambda labels: model.evaluate(features, tf.nest.map_structure(tf.constant, labels)),
    )


@pytest.fixture(params=[served, repetition(alone)])
def steps(request: pytest.FixtureRequest) -> Callable[[ModelModule], tuple[Step, Step]]:
    return request.param  # type: ignore[no-any-return]


@pytest.mark.parametrize("step", [0, 1], ids=["train", "evaluate"])
@pytest.mark.parametrize(
    ("model", "labels", "said"),
    [
        (dense, FLAT, ("labels", "(n,)", "predictions (n, 1)")),
        (squeezed, COLUMN, ("labels", "(n, 1)", "predictions (n,)")),
    ],
)
def test_each_label_with_every_prediction_is_refused(
    steps: Any, step: int, model: Any, labels: Any, said: tuple[str, ...]
) -> None:
    with pytest.raises(BadInputError) as caught:
        steps(module_of(model))[step](labels)
    assert not missing_keys(caught.value.message, "loss()", "(n, n)", *said)
    assert caught.value.where == __file__
    assert "tf.reshape(labels, tf.shape(predictions))" in str(caught.value.hint)


@pytest.mark.parametrize("step", [0, 1], ids=["train", "evaluate"])
@pytest.mark.parametrize(
    "loss",
    [
        lambda labels, predictions: tf.reduce_mean(tf.square(labels - predictions)),
        lambda labels, predictions: tf.reduce_mean(tf.abs(predictions - tf.cast(labels, tf.float32))),
        lambda labels, predictions: tf.reduce_sum(tf.math.squared_difference(labels, predictions)) / 4.0,
        lambda labels, predictions: tf.reduce_mean(
            keras.ops.where(labels > 0.5, -keras.ops.log(predictions), -keras.ops.log(1 - predictions))
        ),
        tf.function(lambda labels, predictions: tf.reduce_mean(tf.square(labels - predictions))),
    ],
)
def test_a_loss_that_averages_by_itself_is_refused_as_well(steps: Any, step: int, loss: Any) -> None:
    with pytest.raises(BadInputError, match=r"loss\(\).*\(n, n\)"):
        steps(module_of(dense, loss))[step](FLAT)


class AveragingLoss(keras.losses.Loss):  # type: ignore[misc]
    def call(self, labels: Any, predictions: Any) -> Any:
        return tf.reduce_mean(square(labels, predictions))


class ByRecord(keras.losses.Loss):  # type: ignore[misc]
    def call(self, labels: Any, predictions: Any) -> Any:
        return square(labels, predictions)


class SqueezingLoss(keras.losses.Loss):  # type: ignore[misc]
    def call(self, labels: Any, predictions: Any) -> Any:
        return tf.reduce_mean(square(labels[:, None], predictions))


@pytest.mark.parametrize("step", [0, 1], ids=["train", "evaluate"])
@pytest.mark.parametrize("loss", [AveragingLoss(), ByRecord()], ids=["Averaging", "ByRecord"])
@pytest.mark.parametrize(
    ("model", "wrapped", "labels", "of"),
    [
        (dense, lambda loss: loss, FLAT, ""),
        (squeezed, lambda loss: loss, COLUMN, ""),
        (dense, lambda loss: [loss], FLAT, ""),
        (
            named,
            lambda loss: {"price": keras.losses.MeanSquaredError(), "sold": loss},
            {"price": FLAT, "sold": FLAT},
            " of 'sold'",
        ),
    ],
    ids=["(n,)", "(n, 1)", "list", "dict"],
)
@pytest.mark.first_cases(6)
def test_a_loss_class_of_the_users_is_held_to_it_too(
    steps: Any, step: int, loss: Any, model: Any, wrapped: Any, labels: Any, of: str
) -> None:
    with pytest.raises(BadInputError) as caught:
        steps(module_of(model, wrapped(loss)))[step](labels)
    expected = f"the loss {type(loss).__name__}{of} compares each label with every prediction, (n, n) values"
    assert caught.value.message.startswith(expected)
    assert caught.value.where == __file__


def test_one_output_of_several_is_enough(steps: Any) -> None:
    def mixed() -> Any:
        inputs = keras.Input([2])
        return keras.Model(inputs, {"price": keras.layers.Dense(1)(inputs), "kind": keras.layers.Dense(3)(inputs)})

    def loss(labels: Any, predictions: Any) -> Any:
        kinds = keras.losses.sparse_categorical_crossentropy(labels["kind"], predictions["kind"], from_logits=True)
        return tf.reduce_mean(kinds) + tf.reduce_mean(square(labels["price"], predictions["price"]))

    train, _ = steps(module_of(mixed, loss))
    with pytest.raises(BadInputError, match="before it averages them"):
        train({"price": FLAT, "kind": np.zeros(4, np.int64)})


def test_a_loss_that_gives_a_value_for_each_output_or_weighs_records_itself_is_held_to_it_too(steps: Any) -> None:
    def by_name(labels: Any, predictions: Any) -> Any:
        return {name: tf.reduce_mean(square(labels[name], predictions[name])) for name in labels}

    train, _ = steps(module_of(named, by_name))
    with pytest.raises(BadInputError, match="before it averages them"):
        train({"price": FLAT, "sold": FLAT})

    def weighted(labels: Any, predictions: Any, weights: Any) -> Any:
        return tf.reduce_mean(square(labels[:, None], predictions) * weights)

    network = KerasNetwork.build(
        module_of(dense, weighted),
        seed=7,
        embedding_threshold=1 << 40,
        ps_of_variable=lambda _: 0,
        ps_count=1,
        sample=FEATURES,
    )
    with pytest.raises(BadInputError, match="before it averages them"):
        network.train(network.initial_values(), {}, FEATURES, FLAT, np.ones(4, np.float32))


def pairs(labels: Any, predictions: Any) -> Any:
    """A ranking loss: every record with every other one, on purpose."""
    scores = predictions[:, 0]
    better = tf.cast(labels[:, None] > labels[None, :], tf.float32)
    return tf.reduce_mean(better * tf.nn.softplus(scores[None, :] - scores[:, None]))


def test_labels_and_predictions_by_name_are_looked_at_too(steps: Any) -> None:
    train, _ = steps(module_of(named, of_names))
    with pytest.raises(BadInputError, match=r"labels.*\(n,\).*predictions \(n, 1\)"):
        train({"price": FLAT, "sold": FLAT})


@pytest.mark.parametrize(
    ("model", "loss", "labels"),
    [
        (dense, square, COLUMN),
        (squeezed, square, FLAT),
        (sequence, square, np.zeros((4, 3), np.float32)),
        (dense, keras.losses.mean_squared_error, FLAT),
        (dense, keras.losses.MeanSquaredError(), FLAT),
        (dense, {"dense": keras.losses.BinaryCrossentropy(from_logits=True)}, FLAT),
        (dense, [keras.losses.Huber(reduction="sum")], FLAT),
        (dense, SqueezingLoss(), FLAT),
        (dense, AveragingLoss(), COLUMN),
        (dense, lambda labels, predictions: square(labels[:, None], predictions), FLAT),
        # As many values a record as there are records
        (dense, lambda labels, predictions: tf.stack([predictions[:, 0] - labels] * 4, axis=1), FLAT),
        (dense, lambda labels, predictions: 0.0 * tf.reduce_sum(predictions), FLAT),
        (dense, lambda labels, predictions: tf.reduce_mean(square(labels[:, None], predictions)), FLAT),
        (dense, lambda labels, predictions: tf.reduce_mean(square(labels, tf.squeeze(predictions, 1))), FLAT),
        (dense, pairs, FLAT),
    ],
)
@pytest.mark.first_cases(6)
def test_other_losses_are_none_of_its_business(steps: Any, model: Any, loss: Any, labels: Any) -> None:
    train, evaluate = steps(module_of(model, loss))
    assert np.isfinite(train(labels))
    evaluate(labels)


def test_each_of_a_sequences_values_counts_as_before(steps: Any) -> None:
    """As (n, time) all are averaged."""
    labels = np.arange(12, dtype=np.float32).reshape(4, 3)
    (per_value, _), (averaged, _) = (
        steps(module_of(sequence, loss)) for loss in (square, lambda a, b: tf.reduce_mean(square(a, b)))
    )
    assert per_value(labels) == pytest.approx(averaged(labels))


def test_a_metric_that_is_a_function_is_held_to_the_same(steps: Any) -> None:
    module = module_of(dense, keras.losses.mean_squared_error, lambda: {"error": square})
    with pytest.raises(BadInputError, match=r"the metric 'error' .*shape \(n, n\)"):
        steps(module)[1](FLAT)
