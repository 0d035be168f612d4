"""Every metric of Keras, its states added up over two workers, has the value that Keras gives for all records at once.

The worker that turns the sum into values is a third one, which has evaluated nothing: some metrics have their variables
only from the first records that they see.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.repetition import repetition

pytestmark = pytest.mark.tensorflow

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.core import evaluation  # noqa: E402
from edl.keras.evaluation_metrics import EvaluationMetrics  # noqa: E402

RECORDS, CLASSES = 24, 3
WITHOUT_ARGUMENTS = {"Metric", "Mean", "Sum"}
"""Not metrics of labels and predictions."""

RANDOM = np.random.default_rng(5)
CLASS = RANDOM.integers(0, CLASSES, RECORDS)
CLASS[:CLASSES] = range(CLASSES)  # each class is in both halves
CLASS[-CLASSES:] = range(CLASSES)
ONE_HOT = np.eye(CLASSES, dtype=np.float32)[CLASS]
SCORES = RANDOM.uniform(0.05, 1.0, (RECORDS, CLASSES)).astype(np.float32)
PROBABILITIES = SCORES / SCORES.sum(axis=1, keepdims=True)
WEIGHTS = RANDOM.uniform(0.5, 2.0, RECORDS).astype(np.float32)

BINARY = CLASS[:, None].astype(np.float32) // 2, SCORES[:, :1]
CATEGORICAL = ONE_HOT, PROBABILITIES
SPARSE = CLASS, PROBABILITIES
NUMBERS = SCORES[:, ::-1] + ONE_HOT, SCORES
CLASSES_FOUND = CLASS, PROBABILITIES.argmax(axis=1)
Data = tuple[Any, Any]

m = keras.metrics
CASES: dict[str, tuple[Callable[[], Any], Data]] = {
    "AUC": (m.AUC, BINARY),
    "AUC, PR": (lambda: m.AUC(curve="PR", num_thresholds=20), BINARY),
    "AUC, multi_label": (lambda: m.AUC(multi_label=True), CATEGORICAL),
    "AUC, multi_label, num_labels": (lambda: m.AUC(multi_label=True, num_labels=CLASSES), CATEGORICAL),
    "AUC, multi_label, weights": (lambda: m.AUC(multi_label=True, label_weights=[0.2, 0.3, 0.5]), CATEGORICAL),
    "Accuracy": (m.Accuracy, CLASSES_FOUND),
    "BinaryAccuracy": (m.BinaryAccuracy, BINARY),
    "BinaryCrossentropy": (m.BinaryCrossentropy, BINARY),
    "BinaryIoU": (m.BinaryIoU, BINARY),
    "CategoricalAccuracy": (m.CategoricalAccuracy, CATEGORICAL),
    "CategoricalCrossentropy": (m.CategoricalCrossentropy, CATEGORICAL),
    "CategoricalHinge": (m.CategoricalHinge, CATEGORICAL),
    "ConcordanceCorrelation": (m.ConcordanceCorrelation, NUMBERS),
    "CosineSimilarity": (m.CosineSimilarity, NUMBERS),
    "F1Score": (m.F1Score, CATEGORICAL),
    "F1Score, macro": (lambda: m.F1Score(average="macro"), CATEGORICAL),
    "F1Score, micro": (lambda: m.F1Score(average="micro"), CATEGORICAL),
    "F1Score, weighted": (lambda: m.F1Score(average="weighted", threshold=0.3), CATEGORICAL),
    "F1Score, one class": (lambda: m.F1Score(average="macro", threshold=0.5), BINARY),
    "FBetaScore": (lambda: m.FBetaScore(beta=2.0), CATEGORICAL),
    "FalseNegatives": (m.FalseNegatives, BINARY),
    "FalsePositives": (m.FalsePositives, BINARY),
    "Hinge": (m.Hinge, BINARY),
    "IoU": (lambda: m.IoU(CLASSES, [0, 2]), CLASSES_FOUND),
    "KLDivergence": (m.KLDivergence, CATEGORICAL),
    "LogCoshError": (m.LogCoshError, NUMBERS),
    "MeanAbsoluteError": (m.MeanAbsoluteError, NUMBERS),
    "MeanAbsolutePercentageError": (m.MeanAbsolutePercentageError, NUMBERS),
    "MeanIoU": (lambda: m.MeanIoU(CLASSES), CLASSES_FOUND),
    "MeanMetricWrapper": (lambda: m.MeanMetricWrapper(lambda labels, found: tf.abs(labels - found)), NUMBERS),
    "MeanSquaredError": (m.MeanSquaredError, NUMBERS),
    "MeanSquaredLogarithmicError": (m.MeanSquaredLogarithmicError, NUMBERS),
    "OneHotIoU": (lambda: m.OneHotIoU(CLASSES, [0, 1]), CATEGORICAL),
    "OneHotMeanIoU": (lambda: m.OneHotMeanIoU(CLASSES), CATEGORICAL),
    "PearsonCorrelation": (m.PearsonCorrelation, NUMBERS),
    "Poisson": (m.Poisson, NUMBERS),
    "Precision": (m.Precision, BINARY),
    "Precision, thresholds": (lambda: m.Precision(thresholds=[0.2, 0.8]), BINARY),
    "PrecisionAtRecall": (lambda: m.PrecisionAtRecall(0.5), BINARY),
    "R2Score": (m.R2Score, NUMBERS),
    "R2Score, by class": (lambda: m.R2Score(class_aggregation=None), NUMBERS),
    "R2Score, adjusted": (lambda: m.R2Score(class_aggregation="variance_weighted_average", num_regressors=2), NUMBERS),
    "R2Score, one number": (m.R2Score, (NUMBERS[0][:, 0], NUMBERS[1][:, :1])),
    "Recall": (lambda: m.Recall(class_id=1, top_k=2), CATEGORICAL),
    "RecallAtPrecision": (lambda: m.RecallAtPrecision(0.3), BINARY),
    "RootMeanSquaredError": (m.RootMeanSquaredError, NUMBERS),
    "SensitivityAtSpecificity": (lambda: m.SensitivityAtSpecificity(0.5), BINARY),
    "SparseCategoricalAccuracy": (m.SparseCategoricalAccuracy, SPARSE),
    "SparseCategoricalCrossentropy": (m.SparseCategoricalCrossentropy, SPARSE),
    "SparseTopKCategoricalAccuracy": (lambda: m.SparseTopKCategoricalAccuracy(2), SPARSE),
    "SpecificityAtSensitivity": (lambda: m.SpecificityAtSensitivity(0.5), BINARY),
    "SquaredHinge": (m.SquaredHinge, BINARY),
    "TopKCategoricalAccuracy": (lambda: m.TopKCategoricalAccuracy(2), CATEGORICAL),
    "TrueNegatives": (m.TrueNegatives, BINARY),
    "TruePositives": (m.TruePositives, BINARY),
}


def test_each_metric_of_keras_has_a_case() -> None:
    known = {name for name, value in vars(keras.metrics).items() if isinstance(value, type)}
    assert known - {name.partition(",")[0] for name in CASES} == WITHOUT_ARGUMENTS


class EvaluatingWorker:
    """Evaluates as a worker does: it tries metrics on the first minibatch, and updates them in a graph."""

    def __init__(self, metric: Callable[[], Any], *, weighted: bool = False) -> None:
        none, mine = (lambda: {}), (lambda: {"mine": metric()})
        module = SimpleNamespace(
            zoo=Path(__file__).parent,
            eval_metrics_fn=none if weighted else mine,
            weighted_metrics_fn=mine if weighted else None,
        )
        self.metrics = EvaluationMetrics.from_module(module)  # type: ignore[arg-type]

    def evaluate(self, labels: Any, predictions: Any, weights: Any = None) -> dict[str, Any]:
        tensors = [None if each is None else tf.constant(each) for each in (labels, predictions, weights)]
        self.metrics.verify_states_add_up(*tensors)
        spec = [None if each is None else tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in tensors]
        update = tf.function(self._update, autograph=False).get_concrete_function(*spec)
        self.metrics.reset()
        update(*(each for each in tensors if each is not None))
        return self.states()

    def states(self) -> dict[str, Any]:
        states: dict[str, Any] = json.loads(json.dumps(self.metrics.collect_states()))
        return states

    def values(self, *parts: dict[str, Any]) -> dict[str, float]:
        total: dict[str, Any] = {}
        for part in parts:
            total = evaluation.merge_metric_states(total, part)
        values = self.metrics.compute_values(json.loads(json.dumps(total)))
        return {name: value for name, value in values.items() if name != "loss"}

    def _update(self, labels: Any, predictions: Any, weights: Any = None) -> None:
        self.metrics.update(tf.constant(0.5), labels, predictions, weights)


def values_of_keras(metric: Any, labels: Any, predictions: Any, weights: Any = None) -> dict[str, float]:
    if weights is None:
        metric.update_state(labels, predictions)
    else:
        metric.update_state(labels, predictions, sample_weight=weights)
    result = np.asarray(metric.result(), np.float64)
    return {"mine": float(result)} if not result.ndim else {f"mine_{at}": float(each) for at, each in enumerate(result)}


SEVERAL = {"F1Score, macro", "F1Score, micro", "R2Score, adjusted", "R2Score, one number"}


def once_a_class(case: str) -> Any:
    """A case as a parameter; an AUC for each label takes a second or two, and many classes have the same states."""
    return repetition(case) if "multi_label" in case or case in SEVERAL or is_like_another(case) else case


LIKE_ANOTHER = {
    "FalseNegatives",
    "FalsePositives",
    "TrueNegatives",
    "PrecisionAtRecall",
    "RecallAtPrecision",
    "SpecificityAtSensitivity",
    "OneHotIoU",
    "OneHotMeanIoU",
    "MeanIoU",
}
"""Classes with the states of another one that has a case of its own: TruePositives, SensitivityAtSpecificity, IoU."""
MEANS = ("MeanAbsoluteError", "SparseCategoricalAccuracy", "CosineSimilarity", "MeanMetricWrapper")
"""Of the classes that are the mean of a function, those in `make test`."""


def is_like_another(case: str) -> bool:
    kind = getattr(m, case.partition(",")[0])
    return case in LIKE_ANOTHER or (issubclass(kind, m.MeanMetricWrapper) and case not in MEANS)


OTHERS = ["F1Score", "R2Score", repetition("AUC, multi_label"), "MeanSquaredError"]


@pytest.mark.parametrize("case", [once_a_class(case) for case in CASES])
@pytest.mark.first_cases(5)
def test_two_halves_give_the_value_of_keras(case: str) -> None:
    metric, (labels, predictions) = CASES[case]
    half = RECORDS // 2
    parts = [
        EvaluatingWorker(metric).evaluate(labels[part], predictions[part]) for part in (slice(half), slice(half, None))
    ]
    expected = values_of_keras(metric(), labels, predictions)
    assert EvaluatingWorker(metric).values(*parts) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.first_cases(1)
def test_so_it_is_with_sample_weights(case: str) -> None:
    metric, (labels, predictions) = CASES[case]
    parts = [
        EvaluatingWorker(metric, weighted=True).evaluate(labels[part], predictions[part], WEIGHTS[part])
        for part in (slice(9), slice(9, None))
    ]
    expected = values_of_keras(metric(), labels, predictions, WEIGHTS)
    assert EvaluatingWorker(metric, weighted=True).values(*parts) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("case", OTHERS)
def test_a_range_without_records_adds_nothing(case: str) -> None:
    """A worker whose first range has records that ``feed`` filters away has metrics without a shape."""
    metric, (labels, predictions) = CASES[case]
    full, empty = EvaluatingWorker(metric).evaluate(labels, predictions), EvaluatingWorker(metric).states()
    expected = values_of_keras(metric(), labels, predictions)
    for parts in ((full, empty), (empty, full), (empty, empty, full)):
        assert EvaluatingWorker(metric).values(*parts) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_metric_of_the_users_own_may_get_its_shape_late_and_merge_by_itself() -> None:
    class HighestPrediction(keras.metrics.Metric):  # type: ignore[misc]
        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            if not self.variables:
                self.highest = self.add_variable((y_pred.shape[-1],), "zeros", name="highest")
            self.highest.assign(tf.maximum(self.highest.value, tf.reduce_max(y_pred, 0)))

        def merge_state(self, states: Any) -> None:
            self.highest.assign(np.max([state[0] for state in states], axis=0))

        def result(self) -> Any:
            return self.highest.value

        def reset_state(self) -> None:
            for variable in self.variables:
                variable.assign(tf.zeros(variable.shape))

    labels, predictions = CATEGORICAL
    parts = [
        EvaluatingWorker(HighestPrediction).evaluate(labels[part], predictions[part])
        for part in (slice(9), slice(9, None))
    ]
    expected = {f"mine_{at}": float(each) for at, each in enumerate(predictions.max(axis=0))}
    assert EvaluatingWorker(HighestPrediction).values(*parts) == pytest.approx(expected)


def test_states_that_are_not_those_of_a_metric_are_told_with_its_name() -> None:
    other = EvaluatingWorker(m.F1Score).evaluate(*CATEGORICAL)
    with pytest.raises(BadInputError, match=r"the metric 'mine' \(MeanSquaredError\) has 2 variables.*4 states"):
        EvaluatingWorker(m.MeanSquaredError).values(other)
