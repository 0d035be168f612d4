"""Whether the states of a metric add up over workers is judged by minibatches that can show it."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.text_keys import missing_keys

pytestmark = pytest.mark.tensorflow

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.keras.evaluation_metrics import EvaluationMetrics  # noqa: E402
from edl.keras.user_code import UserCodeError  # noqa: E402

LABELS = np.zeros([4, 1], np.float32)
FINE = np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)
DIVERGED = tuple(
    np.array(values, np.float32).reshape(4, 1)
    for values in ([math.nan] * 4, [1.0, math.nan, 3.0, 4.0], [1.0, 2.0, math.inf, -math.inf])
)


class LargestPrediction(keras.metrics.Metric):  # type: ignore[misc]
    """The largest prediction: states do not add up."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.largest = self.add_variable((), "zeros")
        self.seen = self.add_variable((), "zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.largest.assign(tf.maximum(self.largest.value, tf.reduce_max(y_pred)))
        self.seen.assign_add(1.0)


def metrics(metric: Any) -> EvaluationMetrics:
    return metrics_of(lambda: {"mine": metric()})


def metrics_of(eval_metrics_fn: Any) -> EvaluationMetrics:
    module = SimpleNamespace(
        zoo=Path(__file__).parent,
        eval_metrics_fn=eval_metrics_fn,
        weighted_metrics_fn=None,
        loss_of_each_output=False,
    )
    return EvaluationMetrics.from_module(module)  # type: ignore[arg-type]


@pytest.mark.parametrize("predictions", DIVERGED, ids=["all", "one", "infinite"])
def test_predictions_that_are_not_finite_say_nothing_of_a_metric(predictions: Any) -> None:
    user_metrics = metrics(keras.metrics.MeanSquaredError)
    user_metrics.verify_states_add_up(LABELS, predictions)
    assert not user_metrics.states_verified


def test_the_next_finite_minibatch_decides() -> None:
    good, bad = metrics(keras.metrics.MeanSquaredError), metrics(LargestPrediction)
    for user_metrics in (good, bad):
        user_metrics.verify_states_add_up(LABELS, DIVERGED[0])
    good.verify_states_add_up(LABELS, FINE)
    assert good.states_verified
    with pytest.raises(BadInputError, match=r"'mine' \(LargestPrediction\).*do not add up"):
        bad.verify_states_add_up(LABELS, FINE)


def test_finite_states_are_judged_beside_others_that_are_not() -> None:
    """A metric that counts wrongly is found at once."""

    class CountingError(keras.metrics.MeanSquaredError):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.updated = self.add_variable((), "zeros")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            super().update_state(y_true, y_pred)
            self.updated.assign(1.0)

    with pytest.raises(BadInputError, match="do not add up"):
        metrics(CountingError).verify_states_add_up(LABELS, DIVERGED[0])


def test_that_predictions_are_not_finite_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    user_metrics = metrics(keras.metrics.MeanSquaredError)
    with caplog.at_level(logging.WARNING):
        for predictions in DIVERGED:
            user_metrics.verify_states_add_up(LABELS, predictions)
    (message,) = caplog.messages
    assert "predictions are not finite" in message


def test_where_predictions_are_finite_the_metric_is_named(caplog: pytest.LogCaptureFixture) -> None:
    user_metrics = metrics(keras.metrics.MeanSquaredError)
    with caplog.at_level(logging.WARNING):
        user_metrics.verify_states_add_up(LABELS + math.nan, FINE)
    (message,) = caplog.messages
    assert "'mine'" in message
    assert "predictions" not in message


def test_values_of_such_states_are_not_finite_either() -> None:
    user_metrics = metrics(keras.metrics.MeanSquaredError)
    user_metrics.update(tf.constant(math.nan), LABELS, DIVERGED[0])
    assert all(math.isnan(value) for value in user_metrics.compute_values(user_metrics.collect_states()).values())


def test_the_metric_that_raises_is_named() -> None:
    class RaisingMetric(keras.metrics.Metric):  # type: ignore[misc]
        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            raise ZeroDivisionError("on purpose")

    user_metrics = metrics_of(lambda: {"price": {"good": keras.metrics.MeanSquaredError(), "wrong": RaisingMetric()}})
    with pytest.raises(UserCodeError, match="the metric 'price_wrong' raised ZeroDivisionError: on purpose") as caught:
        user_metrics.update(tf.constant(0.0), LABELS, {"price": FINE})
    assert str(caught.value.where).startswith(__file__)


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (
            lambda predictions: predictions,
            r"the metric 'mine' takes \(predictions\) and cannot be called as \(labels, predictions\): too many",
        ),
        (keras.metrics.MeanSquaredError, "the metric 'mine' is the class MeanSquaredError, expected an instance"),
    ],
)
def test_what_cannot_be_called_is_refused_before_there_are_records(metric: Any, said: str) -> None:
    with pytest.raises(BadInputError, match=said) as caught:
        metrics_of(lambda: {"mine": metric})
    assert caught.value.where == __file__


def test_functions_with_more_arguments_that_have_defaults_will_do() -> None:
    metrics_of(
        lambda: {"one": lambda labels, predictions, weight=1.0: predictions, "two": keras.losses.MeanSquaredError()}
    )


def test_metrics_of_a_list_that_keras_names_keep_their_names() -> None:
    """Keras calls the second one that a process makes ``precision_1``, and a worker makes them for each evaluation."""
    keras.utils.clear_session(free_memory=False)  # as before a model is made
    user_metrics = metrics_of(lambda: [keras.metrics.Precision(), keras.metrics.AUC(), keras.metrics.AUC(curve="PR")])
    user_metrics.verify_states_add_up(LABELS, FINE / 4)
    user_metrics.update(tf.constant(0.0), LABELS, FINE / 4)
    for _ in range(2):
        assert list(user_metrics.compute_values(user_metrics.collect_states())) == ["loss", "precision", "auc", "auc_1"]


@pytest.mark.parametrize(
    ("predictions", "keys"),
    [
        ({"rating": FINE, "liked": FINE}, ["rating, liked", "did you mean rating?"]),
        (FINE, ["one without a name"]),
    ],
)
def test_a_metric_of_an_output_that_the_model_lacks(predictions: Any, keys: list[str]) -> None:
    def eval_metrics_fn() -> Any:
        return {"ratng": [keras.metrics.MeanSquaredError("mse")]}

    with pytest.raises(BadInputError) as refused:
        metrics_of(eval_metrics_fn).update(tf.constant(1.0), LABELS, predictions)
    text = str(refused.value)
    assert not missing_keys(text, "eval_metrics_fn()", "'ratng_mse'", "'ratng'", __file__, *keys)


def test_a_metric_that_raises_is_told_with_the_shapes_that_it_received() -> None:
    user_metrics = metrics(lambda: keras.metrics.CategoricalAccuracy())
    with pytest.raises(UserCodeError) as raised:
        user_metrics.update(tf.constant(1.0), tf.zeros([4, 3]), tf.zeros([4, 2, 2]))
    assert not missing_keys(str(raised.value), "'mine'", "(4, 3)", "(4, 2, 2)")
