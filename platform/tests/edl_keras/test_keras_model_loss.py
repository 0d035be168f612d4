"""Losses, weights, optimizers and metrics as Keras' compile and fit take them: the same numbers as keras.fit."""

from __future__ import annotations

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

from edl.api.errors import BadInputError  # noqa: E402
from edl.api.job_spec import ModelSpec  # noqa: E402
from edl.core import evaluation  # noqa: E402
from edl.keras import model_contract  # noqa: E402
from edl.keras.model_loss import ModelLoss  # noqa: E402
from edl.keras.network import KerasNetwork  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402
from edl.worker.feed_pipeline import FeedError, FeedFunction  # noqa: E402

RNG = np.random.default_rng(3)
N, BATCH = 40, 16
"""The last minibatch is smaller."""
X = RNG.normal(size=(N, 4)).astype(np.float32)
NUMBERS = (X @ RNG.normal(size=(4, 1))).astype(np.float32)
CLASSES = RNG.integers(0, 3, N)
ONE_HOT = np.eye(3, dtype=np.float32)[CLASSES]
WEIGHTS = RNG.uniform(0.1, 3.0, N).astype(np.float32)
TWO = {"number": NUMBERS, "kind": CLASSES}
TWO_WEIGHTS = {"number": WEIGHTS, "kind": WEIGHTS[::-1].copy()}

HEAD = """
import keras, tensorflow as tf

def feed(dataset, mode, metadata):
    return dataset

def eval_metrics_fn():
    return {}

def optimizer():
    return keras.optimizers.SGD(0.05)
"""
ONE = """
def custom_model():
    return keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])
"""
THREE_CLASSES = """
def custom_model():
    return keras.Sequential([keras.Input([4]), keras.layers.Dense(3, activation="softmax")])
"""
TWO_OUTPUTS = """
def custom_model():
    x = keras.Input([4])
    hidden = keras.layers.Dense(5, activation="tanh", kernel_regularizer="l2")(x)
    number = keras.layers.Dense(1, name="number")(hidden)
    kind = keras.layers.Dense(3, activation="softmax", name="kind")(hidden)
    return keras.Model(x, {})
"""
AS_DICT = TWO_OUTPUTS.replace("{}", '{"number": number, "kind": kind}')
AS_LIST = TWO_OUTPUTS.replace("{}", "[number, kind]")


def load(folder: Path, text: str) -> Any:
    (folder / "zoo").mkdir(exist_ok=True)
    (folder / "zoo" / "asked.py").write_text(HEAD + text)
    choice = ModelSpec(zoo=str(folder / "zoo"), definition="asked.custom_model", params={})
    return model_contract.load_model_module(choice)  # type: ignore[arg-type]


def batches(*parts: Any) -> list[Any]:
    places = [slice(at, at + BATCH) for at in range(0, N, BATCH)]
    return [tf.nest.map_structure(lambda array, at=at: tf.constant(array[at]), parts) for at in places]


def by_edl(module: Any, labels: Any, weights: Any, epochs: int = 2) -> tuple[list[Any], dict[str, float]]:
    """Trained under Local, from seed 0."""
    model = ModelReplica(module, seed=0, rank_seed=None, sample=X[:1])
    parts = (X, labels) if weights is None else (X, labels, weights)
    for _ in range(epochs):
        for batch in batches(*parts):
            assert model.take_step(*batch).is_finite
    for batch in batches(*parts):
        model.evaluate(*batch)
    values = model.metric_values(evaluation.merge_metric_states({}, model.metric_states()))
    return [np.asarray(v) for v in model.model.weights], values


def by_keras(
    module: Any, labels: Any, weights: Any, *, class_weight: Any = None, epochs: int = 2, **compiled: Any
) -> tuple[list[Any], dict[str, float]]:
    model = ModelReplica(module, seed=0, rank_seed=None, sample=X[:1]).model
    # A dozen steps: to trace them would take longer than to make them.
    model.compile(optimizer=keras.optimizers.SGD(0.05), run_eagerly=True, **compiled)
    parts = (X, labels) if weights is None else (X, labels, weights)
    data = tf.data.Dataset.from_tensor_slices(parts).batch(BATCH)
    model.fit(data, epochs=epochs, shuffle=False, verbose=0, class_weight=class_weight)
    metrics = model.evaluate(data, verbose=0, return_dict=True)
    return [np.asarray(v) for v in model.weights], {name: float(value) for name, value in metrics.items()}


def assert_same(folder: Path, text: str, labels: Any, weights: Any = None, **keras_does: Any) -> dict[str, float]:
    """EDL's weights and all its metrics are those of keras.fit; returns the metrics."""
    module = load(folder, text)
    edl_weights, metrics = by_edl(module, labels, weights)
    expected, of_keras = by_keras(module, labels, weights, **keras_does)
    for mine, theirs in zip(edl_weights, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=1e-6)
    for name, value in metrics.items():
        assert value == pytest.approx(of_keras[name], rel=1e-4), name
    return metrics


SQUARED = "\ndef loss(labels, predictions):\n    return tf.square(labels - predictions)\n"


LOSS_FORMS = {"function": SQUARED, "name": 'loss = "mse"\n', "object": "loss = keras.losses.MeanSquaredError()\n"}
WEIGHT_FORMS = {"none": None, "(n,)": WEIGHTS, "(n,1)": WEIGHTS[:, None]}


def _weighed(loss: str, weights: str) -> Any:
    """Without weights, weights for a function and for an object of Keras; the others repeat that."""
    few = (("function", "none"), ("function", "(n,)"), ("object", "(n,)"))
    marks = [] if (loss, weights) in few else [pytest.mark.repetition]
    return pytest.param(LOSS_FORMS[loss], WEIGHT_FORMS[weights], id=f"{loss}-{weights}", marks=marks)


@pytest.mark.parametrize(("loss", "weights"), [_weighed(loss, form) for loss in LOSS_FORMS for form in WEIGHT_FORMS])
@pytest.mark.first_cases(1)
def test_sample_weights_weigh_a_loss_as_in_keras(loss: str, weights: Any, tmp_path: Path) -> None:
    assert_same(tmp_path, ONE + loss, NUMBERS, weights, loss="mse")


OWN_LOSS = """
class Squared(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return tf.reduce_REDUCE(tf.square(y_true - y_pred)AXIS)

loss = Squared(reduction=None)
"""


@pytest.mark.parametrize(
    "loss",
    [
        "loss = keras.losses.MeanSquaredError(reduction=None)\n",
        repetition('loss = {"dense": keras.losses.Huber(reduction="none")}\n'),
        OWN_LOSS.replace("REDUCE", "sum").replace("AXIS", ", -1"),
    ],
    ids=["Keras", "by output", "own"],
)
def test_a_loss_without_reduction_is_refused_by_name(loss: str, tmp_path: Path) -> None:
    """Keras trains the sum of its values."""
    module = load(tmp_path, ONE.replace("Dense(1)", 'Dense(1, name="dense")') + loss)
    objective = ModelLoss(module, ("dense",))
    with pytest.raises(BadInputError, match=r"reduction=(None|'none')") as caught:
        objective(NUMBERS, tf.zeros([N, 1]), None, [], training=True)
    assert "reduction='sum'" in str(caught.value.hint)
    with pytest.raises(BadInputError, match="gives a value per record"):
        by_edl(module, NUMBERS, None)


def test_a_loss_without_reduction_may_give_one_number(tmp_path: Path) -> None:
    loss = OWN_LOSS.replace("REDUCE", "mean").replace("AXIS", "")
    assert_same(tmp_path, ONE + loss, NUMBERS, loss="mse")


def test_a_loss_that_takes_the_weights_gets_them(tmp_path: Path) -> None:
    text = """
def loss(labels, predictions, sample_weights=None):
    weights = 1.0 if sample_weights is None else sample_weights[:, None]
    return tf.reduce_mean(weights * tf.square(labels - predictions))
"""
    assert_same(tmp_path, ONE + text, NUMBERS, WEIGHTS, loss="mse")


def test_a_loss_that_is_one_number_cannot_be_weighed(tmp_path: Path) -> None:
    text = "\ndef loss(labels, predictions):\n    return tf.reduce_mean(tf.square(labels - predictions))\n"
    module = load(tmp_path, ONE + text)
    by_edl(module, NUMBERS, None)
    with pytest.raises(BadInputError, match="one number for all records") as caught:
        by_edl(module, NUMBERS, WEIGHTS)
    assert "sample_weights" in str(caught.value.hint)


@pytest.mark.parametrize("labels", [CLASSES, repetition(CLASSES[:, None]), ONE_HOT], ids=["(n,)", "(n,1)", "one-hot"])
@pytest.mark.first_cases(1)
def test_class_weights_count_in_training_only(labels: Any, tmp_path: Path) -> None:
    name = "categorical_crossentropy" if labels is ONE_HOT else "sparse_categorical_crossentropy"
    text = f'{THREE_CLASSES}\nloss = "{name}"\nclass_weight = {{0: 3.0, 2: 0.25}}\n'
    assert_same(tmp_path, text, labels, class_weight={0: 3.0, 1: 1.0, 2: 0.25}, loss=name)


def names() -> Any:
    return tf.constant(["setosa", "virginica", "setosa", "virginica"])


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        ('"sparse_categorical_crossentropy"', "the loss sparse_categorical_crossentropy needs numbers"),
        ('"crossentropy"', "the loss sparse_categorical_crossentropy needs numbers"),
        ("keras.losses.MeanSquaredError()", "the loss MeanSquaredError needs numbers"),
        ('{"kind": "mse"}', "the loss mse needs numbers"),
    ],
)
def test_labels_that_are_strings_are_told(loss: str, named: str, tmp_path: Path) -> None:
    outputs = ("kind",) if "kind" in loss else ()
    objective = ModelLoss(load(tmp_path, f"{THREE_CLASSES}\nloss = {loss}\n"), outputs)
    with pytest.raises(BadInputError, match="feed gives labels that are strings") as caught:
        objective(names(), tf.ones([4, 3]) / 3, None, [], training=True)
    assert named in caught.value.message
    assert caught.value.where == str(tmp_path / "zoo" / "asked.py")
    assert "StringLookup" in str(caught.value.hint)


def test_a_loss_of_ones_own_may_take_strings(tmp_path: Path) -> None:
    text = """
def loss(labels, predictions):
    return tf.where(labels == "setosa", predictions[:, 0], 0.0)
"""
    objective = ModelLoss(load(tmp_path, THREE_CLASSES + text), ())
    assert float(objective(names(), tf.ones([4, 3]), None, [], training=True)) == pytest.approx(0.5)


def test_class_weights_may_be_a_function(tmp_path: Path) -> None:
    text = THREE_CLASSES + 'loss = "crossentropy"\ndef class_weight():\n    return {1: 2.0, 2: 1.0}\n'
    assert_same(tmp_path, text, CLASSES, class_weight={1: 2.0, 2: 1.0}, loss="crossentropy")


def test_class_and_sample_weights_together_are_refused_as_in_keras(tmp_path: Path) -> None:
    module = load(tmp_path, THREE_CLASSES + 'loss = "crossentropy"\nclass_weight = {0: 2.0}\n')
    with pytest.raises(BadInputError, match="class_weight"):
        by_edl(module, CLASSES, WEIGHTS)


LOSSES = {"number": "mse", "kind": "sparse_categorical_crossentropy"}


@pytest.mark.parametrize(
    ("outputs", "weights"),
    [
        repetition(AS_DICT, None, name="dict-none"),
        pytest.param(AS_LIST, TWO_WEIGHTS, id="list-by output"),
        repetition(AS_DICT, TWO_WEIGHTS, name="dict-by output"),
        repetition(AS_LIST, None, name="list-none"),
    ],
)
def test_a_loss_for_each_output(outputs: str, weights: Any, tmp_path: Path) -> None:
    text = f'{outputs}\nloss = {LOSSES}\nloss_weights = {{"number": 0.3, "kind": 2.0}}\n'
    labels: Any = TWO
    if outputs is AS_LIST:  # what keras.fit takes there
        labels = (NUMBERS, CLASSES)
        weights = None if weights is None else (weights["number"], weights["kind"])
    assert_same(tmp_path, text, labels, weights, loss=LOSSES, loss_weights={"number": 0.3, "kind": 2.0})


def test_a_function_may_give_a_loss_by_output(tmp_path: Path) -> None:
    text = f"""{AS_DICT}
loss_weights = {{"kind": 2.0}}
def loss(labels, predictions):
    return {{
        "number": tf.square(labels["number"] - predictions["number"]),
        "kind": keras.losses.sparse_categorical_crossentropy(labels["kind"], predictions["kind"]),
    }}
"""
    assert_same(tmp_path, text, TWO, TWO_WEIGHTS, loss=LOSSES, loss_weights={"number": 1.0, "kind": 2.0})


def test_labels_of_one_dimension_less_are_squeezed_as_in_keras(tmp_path: Path) -> None:
    text = ONE + 'loss = {"dense": lambda labels, predictions: tf.square(labels - predictions)}\n'
    text = text.replace("Dense(1)", 'Dense(1, name="dense")')
    assert_same(tmp_path, text, NUMBERS[:, 0], WEIGHTS, loss="mse")


METRICS = """
def eval_metrics_fn():
    return ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")]

def weighted_metrics_fn():
    return ["accuracy", keras.metrics.SparseCategoricalCrossentropy(name="ce")]
"""


def test_metrics_as_a_list_and_weighted_ones(tmp_path: Path) -> None:
    text = THREE_CLASSES + 'loss = "sparse_categorical_crossentropy"\n' + METRICS
    metrics = assert_same(
        tmp_path,
        text,
        CLASSES,
        WEIGHTS,
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")],
        weighted_metrics=["accuracy", keras.metrics.SparseCategoricalCrossentropy(name="ce")],
    )
    assert set(metrics) == {"loss", "accuracy", "top2", "weighted_accuracy", "ce"}


@pytest.mark.parametrize("outputs", [AS_DICT, repetition(AS_LIST)], ids=["dict", "list"])
def test_metrics_by_output(outputs: str, tmp_path: Path) -> None:
    text = (
        f"{outputs}\nloss = {LOSSES}\n"
        + '\ndef eval_metrics_fn():\n    return {"kind": ["accuracy"], "number": ["mae"]}\n'
    )
    labels: Any = TWO if outputs is AS_DICT else (NUMBERS, CLASSES)
    metrics = {"kind": ["accuracy"], "number": ["mae"]}
    metric_values = assert_same(tmp_path, text, labels, loss=LOSSES, metrics=metrics)
    assert set(metric_values) == {"loss", "kind_accuracy", "number_mae"}


def test_a_list_of_metrics_does_not_say_of_which_output(tmp_path: Path) -> None:
    module = load(tmp_path, f'{AS_DICT}\nloss = {LOSSES}\ndef eval_metrics_fn():\n    return ["accuracy"]\n')
    with pytest.raises(BadInputError, match=r"number, kind|kind, number") as caught:
        by_edl(module, TWO, None)
    assert "by output" in str(caught.value.hint)


@pytest.mark.parametrize(
    "given",
    [
        "optimizer = keras.optimizers.SGD(0.05)\n",
        "def optimizer():\n    return 'sgd'\n",
        "optimizer = 'sgd'\n",
    ],
    ids=["object", "name returned", "name"],
)
@pytest.mark.first_cases(1)
def test_an_optimizer_as_keras_takes_it(given: str, tmp_path: Path) -> None:
    module = load(tmp_path, ONE + SQUARED + given)
    first, second = module.optimizer(), module.optimizer()
    assert type(first) is type(second) is keras.optimizers.SGD
    rate = 0.05 if "0.05" in given else 0.01
    assert float(first.learning_rate) == float(second.learning_rate) == pytest.approx(rate)
    by_edl(module, NUMBERS, None, epochs=1)
    by_edl(module, NUMBERS, None, epochs=1)  # another model, another optimizer


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (ONE + 'loss = "msee"\n', "no loss called 'msee'"),
        (ONE + "loss = keras.losses.MeanSquaredError\n", "is the class MeanSquaredError"),
        (ONE + SQUARED + "optimizer = 'addam'\n", "no optimizer called 'addam'"),
        (ONE + SQUARED + "def eval_metrics_fn():\n    return ['acuracy']\n", "'acuracy'"),
        (AS_DICT + 'loss = {"nomber": "mse"}\n', "'nomber'"),
        (AS_DICT + 'loss = {"number": "mse"}\nloss_weights = {"kind": 2.0}\n', "loss_weights has 'kind'"),
        (AS_DICT + 'loss = ["mse"]\n', "1 entries"),
        (ONE + SQUARED + "class_weight = {-1: 2.0}\n", "class_weight"),
        (ONE + SQUARED + 'class_weight = {"cat": 2.0}\n', "class_weight"),
    ],
)
def test_what_keras_does_not_know_is_refused_by_name(text: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as caught:
        by_edl(load(tmp_path, text), TWO if "kind" in text else NUMBERS, None, epochs=1)
    assert named in str(caught.value)
    assert "asked.py" in str(caught.value.where)


# ---------------------------------------------------------------- what workers of parameter servers compute


@pytest.mark.parametrize("weights", [repetition(None), TWO_WEIGHTS], ids=["none", "weighted"])
def test_the_gradients_of_a_worker_are_those_of_keras(weights: Any, tmp_path: Path) -> None:
    """One worker, plain SGD: each step of the slab is one of Keras' optimizer."""
    text = f"{AS_DICT}\nloss = {LOSSES}\nloss_weights = [0.3, 2.0]\n".replace(
        "[0.3, 2.0]", '{"number": 0.3, "kind": 2.0}'
    )
    metrics = "\ndef weighted_metrics_fn():\n    return {'kind': ['accuracy'], 'number': ['mae']}\n"
    module = load(tmp_path, text + metrics)
    network = KerasNetwork.build(
        module, seed=0, embedding_threshold=1 << 30, ps_of_variable=lambda name: 0, ps_count=1, sample=X[:1]
    )
    slab = network.initial_values()
    parts = (X, TWO) if weights is None else (X, TWO, weights)
    for _ in range(2):
        for batch in batches(*parts):
            slab = slab - np.float32(0.05) * network.train(slab, {}, *batch).flat_gradients
    states: dict[str, Any] = {}
    for batch in batches(*parts):  # each evaluated as if by another worker
        network.reset_metrics()
        network.evaluate(slab, {}, *batch)
        states = evaluation.merge_metric_states(states, network.metric_states())
    trained_weights = {
        spec.name: slab[place].reshape(spec.shape)
        for spec, place in zip(network.variables, network.offsets, strict=True)
    }
    compiled = {"kind": ["accuracy"], "number": ["mae"]}
    expected, of_keras = by_keras(
        module, TWO, weights, loss=LOSSES, loss_weights={"number": 0.3, "kind": 2.0}, weighted_metrics=compiled
    )
    for weight, values in zip(network.model.weights, expected, strict=True):
        np.testing.assert_allclose(trained_weights[weight.path], values, rtol=2e-5, atol=1e-6)
    for name, value in network.metric_values(states).items():
        assert value == pytest.approx(of_keras[name], rel=1e-4), name


# ---------------------------------------------------------------- what feed yields


def fed(feed: Any, mode: str = "training") -> Any:
    from edl.worker.record_stream import RecordWindow

    return FeedFunction(feed, mode, None, zoo=Path(__file__).parent).make_minibatch(0, RecordWindow((b"1", b"2", b"3")))


def parsed(record: Any) -> Any:
    return tf.strings.to_number(record)


def test_feed_may_yield_sample_weights() -> None:
    minibatch = fed(lambda dataset, mode, metadata: dataset.map(lambda r: (parsed(r), parsed(r) * 2, parsed(r) * 3)))
    np.testing.assert_array_equal(minibatch.labels, [2, 4, 6])
    np.testing.assert_array_equal(minibatch.weights, [3, 6, 9])
    assert fed(lambda dataset, mode, metadata: dataset.map(lambda r: (parsed(r), parsed(r)))).weights is None


def test_four_parts_are_none_that_training_knows() -> None:
    with pytest.raises(FeedError, match="expected") as caught:
        fed(lambda dataset, mode, metadata: dataset.map(lambda r: (r, r, r, r)))
    assert "sample weights" in str(caught.value.hint)
