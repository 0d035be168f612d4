"""A model that the user's function compiles: ``compile()`` takes the place of the module's functions."""

from __future__ import annotations

import logging
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import numpy as np
import pytest
from support.repetition import repetition

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

import keras  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.api.job_spec import ModelSpec  # noqa: E402
from edl.core.evaluation import merge_metric_states  # noqa: E402
from edl.keras.evaluated_copy import copy_values  # noqa: E402
from edl.keras.model_contract import ModelModule, load_model_module  # noqa: E402
from edl.keras.network import KerasNetwork  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402

SOURCE = """
import keras, tensorflow as tf

class Scale(keras.metrics.Metric):
    def __init__(self, factor, name="scale"):
        super().__init__(name=name)
        self.factor = factor
        self.total = self.add_weight(name="total", initializer="zeros")
    def update_state(self, labels, predictions, sample_weight=None):
        self.total.assign_add(self.factor * tf.reduce_sum(tf.cast(predictions, tf.float32)))
    def result(self):
        return self.total
    def get_config(self):
        return {"name": self.name, "factor": self.factor}

def custom_model():
    x = keras.Input((3,))
    hidden = keras.layers.Dense(4, activation="tanh")(x)
    outputs = {"number": keras.layers.Dense(1)(hidden), "kind": keras.layers.Dense(2, activation="softmax")(hidden)}
    model = keras.Model(x, outputs)
    model.compile(ARGUMENTS)
    return model

def feed(dataset, mode, metadata):
    return dataset
"""
ARGUMENTS = """
        keras.optimizers.Adam(0.05),
        loss={"number": "mse", "kind": "sparse_categorical_crossentropy"},
        loss_weights={"number": 0.5, "kind": 1.5},
        metrics={"number": ["mae"], "kind": ["accuracy"]},
        weighted_metrics={"number": ["mse"]},
"""


def load(folder: Path, source: str = SOURCE, arguments: str = ARGUMENTS) -> ModelModule:
    (folder / "compiled.py").write_text(source.replace("ARGUMENTS", arguments))
    return load_model_module(ModelSpec(zoo=str(folder), definition="compiled.custom_model", params={}))


def make_data(records: int = 48) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    random = np.random.default_rng(3)
    x = random.normal(size=(records, 3)).astype(np.float32)
    labels = {"number": x[:, :1] - x[:, 1:2], "kind": (x[:, 2] > 0).astype(np.int64)}
    weights = random.uniform(0.5, 2.0, records).astype(np.float32)
    return x, labels, {"number": weights, "kind": weights}


def metric_values(replica: ModelReplica) -> dict[str, float]:
    return replica.metric_values(merge_metric_states({}, replica.metric_states()))


@pytest.mark.parametrize("rank_seed", [None, 0])
@pytest.mark.first_cases(1)
def test_it_trains_and_evaluates_as_keras_does(rank_seed: int | None, tmp_path: Path) -> None:
    trained = ModelReplica(load(tmp_path), seed=5, rank_seed=rank_seed, sample=None)
    scope: dict[str, Any] = {}
    exec(SOURCE.replace("ARGUMENTS", ARGUMENTS), scope)
    plain = scope["custom_model"]()
    plain.set_weights(trained.model.get_weights())
    plain.run_eagerly = True  # to trace its few steps would take longer than to make them
    x, labels, weights = make_data()
    for _ in range(5):
        trained.take_step(x, labels, weights)
        plain.train_on_batch(x, labels, weights)
    for mine, theirs in zip(trained.model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
    trained.evaluate(x, labels, weights)
    values = metric_values(trained)
    expected = plain.evaluate(x, labels, sample_weight=weights, batch_size=48, verbose=0, return_dict=True)
    assert values["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    for name in ("number_mae", "kind_accuracy", "number_mse"):
        metric_value = next(value for key, value in values.items() if key.replace("/", "_") == name)
        assert metric_value == pytest.approx(expected[name], rel=1e-5), name
    assert not trained.model.compiled


ONE_OUTPUT = """
    x = keras.Input((3,))
    model = keras.Model(x, keras.layers.Dense(1, name="number")(x))
    model.compile("sgd", "mse", metrics={"number": "mae"}, weighted_metrics={"number": ["mse"]})
    return model
"""
LISTED_OUTPUTS = """
    x = keras.Input((3,))
    outputs = [keras.layers.Dense(1, name="number")(x), keras.layers.Dense(2, activation="softmax", name="kind")(x)]
    model = keras.Model(x, outputs)
    model.compile("sgd", ["mse", "sparse_categorical_crossentropy"], METRICS)
    return model
"""
NAMED_OUTPUTS = LISTED_OUTPUTS.replace("Model(x, outputs", "Model(x, dict(zip(['number', 'kind'], outputs))").replace(
    '["mse", "sparse_categorical_crossentropy"]', '{"number": "mse", "kind": "sparse_categorical_crossentropy"}'
)


@pytest.mark.parametrize(
    "body",
    [
        ONE_OUTPUT,
        LISTED_OUTPUTS.replace("METRICS", 'metrics={"number": "mae", "kind": "accuracy"}'),
        LISTED_OUTPUTS.replace("METRICS", 'metrics=["mae", ["accuracy"]]'),
        NAMED_OUTPUTS.replace("METRICS", 'metrics={"number": keras.metrics.MeanAbsoluteError(), "kind": ["accuracy"]}'),
    ],
    ids=["one output", "listed outputs", "list of metrics", "named outputs"],
)
@pytest.mark.first_cases(2)
def test_metrics_have_the_names_and_values_of_keras(tmp_path: Path, body: str) -> None:
    """A metric of an output need not be in a list."""
    source = f"import keras\n\ndef custom_model():{body}\ndef feed(dataset, mode, metadata):\n    return dataset\n"
    trained = ModelReplica(load(tmp_path, source), seed=5, rank_seed=None, sample=None)
    scope: dict[str, Any] = {}
    exec(source, scope)
    plain = scope["custom_model"]()
    plain.set_weights(trained.model.get_weights())
    plain.run_eagerly = True
    x, labels, _ = make_data()
    output_labels: Any = labels["number"] if body is ONE_OUTPUT else labels
    if "outputs)" in body and "zip" not in body:
        output_labels = [labels["number"], labels["kind"]]
    trained.evaluate(x, output_labels)
    values = {name.replace("/", "_"): value for name, value in metric_values(trained).items()}
    expected = plain.evaluate(x, output_labels, batch_size=48, verbose=0, return_dict=True)
    metrics = {name: value for name, value in expected.items() if not name.endswith("loss")}
    assert {name: values.get(name) for name in metrics} == pytest.approx(metrics, rel=1e-5)
    assert len(values) == len(metrics) + 1


def test_parameter_servers_get_its_optimizer_and_loss(tmp_path: Path) -> None:
    network = KerasNetwork.build(
        load(tmp_path), seed=1, embedding_threshold=0, ps_of_variable=lambda name: 0, ps_count=1
    )
    assert network.optimizer.spec.name == "adam"
    x, labels, weights = make_data()
    result = network.train(network.initial_values(), {}, x, labels, weights)
    assert np.isfinite(result.loss)


def test_every_evaluation_has_metrics_of_its_own(tmp_path: Path) -> None:
    module = load(tmp_path, arguments="'sgd', {'number': 'mse'}, metrics={'number': [Scale(2.0)]}")
    model = ModelReplica(module, seed=1, rank_seed=None, sample=None)
    x, labels, _ = make_data()
    evaluations = []
    for _ in range(2):
        model.reset_metrics()
        model.evaluate(x, labels)
        evaluations.append(metric_values(model))
    assert evaluations[0] == evaluations[1]
    assert any("scale" in name for name in evaluations[0])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("'adam', metrics=['mae']", "without a loss"),
        ("'adam', 'mse', run_eagerly=True", "run_eagerly"),
    ],
)
def test_what_cannot_have_its_effect_is_refused_by_name(tmp_path: Path, arguments: str, named: str) -> None:
    with pytest.raises(BadInputError, match=named) as refused:
        load(tmp_path, arguments=arguments)
    assert "custom_model()" in str(refused.value)
    assert refused.value.hint


def test_what_has_no_effect_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load(tmp_path, arguments="'adam', {'number': 'mse'}, steps_per_execution=8, jit_compile=True")
    assert "steps_per_execution=8" in caplog.text
    assert "jit_compile=True" in caplog.text


def test_a_metric_that_cannot_be_made_again_is_named(tmp_path: Path) -> None:
    source = SOURCE.replace(
        """    def get_config(self):
        return {"name": self.name, "factor": self.factor}
""",
        "",
    )
    module = load(tmp_path, source, "'sgd', {'number': 'mse'}, metrics={'number': [Scale(2.0)]}")
    with pytest.raises(BadInputError, match=r"scale.*get_config"):
        ModelReplica(module, seed=1, rank_seed=None, sample=None)


def test_a_module_that_defines_the_same_is_refused_and_told_what_to_remove(tmp_path: Path) -> None:
    rest = "def loss(labels, predictions):\n    return labels\noptimizer = 'sgd'\neval_metrics_fn = dict\n"
    module = load(tmp_path, SOURCE + rest)
    with pytest.raises(BadInputError, match="compiled") as refused:
        module.make_model()
    assert "remove loss(), optimizer()" in (refused.value.hint or "")


def test_without_compile_the_missing_function_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"loss\(labels, predictions\)"):
        load(tmp_path, SOURCE.replace("    model.compile(ARGUMENTS)\n", ""))


def test_the_optimizer_may_have_a_schedule_of_its_own(tmp_path: Path) -> None:
    schedule = "keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5)), {'number': 'mse'}"
    module = load(tmp_path, arguments=schedule)
    first, second = module.optimizer(), module.optimizer()
    assert first is not second
    assert isinstance(second._learning_rate, keras.optimizers.schedules.ExponentialDecay)


MASKED = """
import keras, tensorflow as tf

def squared(labels, predictions):
    return tf.square(labels - predictions)

def custom_model():
    ids = keras.Input((4,), dtype="int32")
    vectors = keras.layers.Embedding(9, 3, mask_zero=True)(ids)
    model = keras.Model(ids, [keras.layers.Dense(1)(vectors), keras.layers.Dense(1)(vectors)])
    model.compile(keras.optimizers.SGD(0.1), squared)
    return model

def feed(dataset, mode, metadata):
    return dataset
"""


@pytest.mark.parametrize("rank_seed", [repetition(None), 0])
def test_a_function_gets_each_output_with_its_mask_as_in_keras(rank_seed: int | None, tmp_path: Path) -> None:
    mine = ModelReplica(load(tmp_path, MASKED), seed=1, rank_seed=rank_seed, sample=None)
    generator = np.random.default_rng(2)
    ids = generator.integers(1, 9, (6, 4)).astype(np.int32) * (np.arange(4) < np.arange(6)[:, None])
    labels = generator.normal(size=(6, 4, 1)).astype(np.float32)
    namespace: dict[str, Any] = {}
    exec(compile(MASKED, "masked", "exec"), namespace)
    plain = namespace["custom_model"]()
    plain.set_weights(mine.model.get_weights())
    plain.run_eagerly = True  # to trace its few steps would take longer than to make them
    for _ in range(5):
        plain.train_on_batch(ids, [labels, 2 * labels])
        mine.take_step(ids, (labels, 2 * labels))
    for weight, other in zip(mine.model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-5, atol=1e-6)


def test_a_function_of_all_outputs_that_ignores_a_mask_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = MASKED.replace("    model.compile(keras.optimizers.SGD(0.1), squared)\n", "")
    source += "\nloss = lambda labels, found: squared(labels[0], found[0]) + squared(labels[1], found[1])\n"
    source += "optimizer = 'sgd'\neval_metrics_fn = dict\n"
    model = ModelReplica(load(tmp_path, source), seed=1, rank_seed=None, sample=None)
    zeros = np.zeros((2, 4, 1), np.float32)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            model.take_step(np.ones((2, 4), np.int32), (zeros, zeros))
    assert sum("have a mask" in message for message in caplog.messages) == 1


# --------------------------------------------------------------------------------------------------
# Models that are called, or whose arguments refer to themselves, in ways that only ``fit`` knows.

X = np.random.default_rng(8).normal(size=(12, 3)).astype(np.float32)
Y = X[:, :1] - 2 * X[:, 1:2]


def make_plainly(source: str, weights: list[Any]) -> Any:
    """The compiled model without EDL, with these weights."""
    scope: dict[str, Any] = {}
    exec(source, scope)
    plain = scope["custom_model"]()
    plain(X[:1])
    plain.set_weights(weights)
    plain.run_eagerly = True  # to trace its few steps would take longer than to make them
    return plain


def train_both(folder: Path, source: str, rank_seed: int | None) -> tuple[ModelReplica, Any]:
    """The model after three steps, with EDL and in Keras."""
    mine = ModelReplica(load(folder, source), seed=1, rank_seed=rank_seed, sample=X)
    plain = make_plainly(source, mine.model.get_weights())
    for _ in range(3):
        mine.take_step(X, Y)
        plain.train_on_batch(X, Y)
    return mine, plain


def assert_same_weights(found: Any, expected: Any) -> None:
    for weight, other in zip(found.weights, expected.weights, strict=True):
        np.testing.assert_allclose(weight.numpy(), other.numpy(), rtol=1e-5, atol=1e-6, err_msg=other.path)


WITHOUT_TRAINING = """
import keras

class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.norm = keras.layers.BatchNormalization()
        self.drop = keras.layers.Dropout(0.5)
        self.head = keras.layers.Dense(1)

    def call(self, x):
        return self.head(self.drop(self.norm(x)))

def custom_model():
    model = Own()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model

def feed(dataset, mode, metadata):
    return dataset
"""


@pytest.mark.parametrize("rank_seed", [None, 0])
def test_a_call_without_an_argument_training_is_that_of_fit(rank_seed: int | None, tmp_path: Path) -> None:
    """Keras passes no ``training`` then: Dropout does nothing, and BatchNormalization uses its moving values."""
    mine, plain = train_both(tmp_path, WITHOUT_TRAINING, rank_seed)
    assert_same_weights(mine.model, plain)


def test_with_parameter_servers_a_call_without_an_argument_training_is_that_of_fit(tmp_path: Path) -> None:
    network = KerasNetwork.build(
        load(tmp_path, WITHOUT_TRAINING),
        seed=1,
        embedding_threshold=0,
        ps_of_variable=lambda name: 0,
        ps_count=1,
        sample=X,
    )
    plain = make_plainly(WITHOUT_TRAINING, network.model.get_weights())
    step = network.train(network.initial_values(), {}, X, Y)
    plain.train_on_batch(X, Y)
    updated = {
        spec.name: network.initial_values()[at] + step.flat_gradients[at] * (1 if spec.statistic else -0.1)
        for spec, at in zip(network.variables, network.offsets, strict=True)
    }
    for weight, other in zip(network.model.weights, plain.weights, strict=True):
        np.testing.assert_allclose(updated[weight.path], np.ravel(other), rtol=1e-5, atol=1e-6, err_msg=other.path)


def make_source(body: str, outside: str = "") -> str:
    """A module whose model has two layers, and is compiled by this code."""
    return f"""
import keras, tensorflow as tf
{outside}
def custom_model():
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, activation="tanh", bias_initializer="ones"),
            keras.layers.Dense(1, bias_initializer="ones"),
        ]
    )
{indent(dedent(body), "    ")}
    return model

def feed(dataset, mode, metadata):
    return dataset
"""


PENALTY = """
def loss(labels, predictions):
    return tf.reduce_mean(tf.square(labels - predictions), -1) + 0.1 * tf.reduce_sum(tf.abs(model.layers[0].kernel))

model.compile(keras.optimizers.SGD(0.05), loss)
"""
REFERRING = {
    "a penalty in the loss": PENALTY,
    "variables without weight decay": """
optimizer = keras.optimizers.AdamW(0.01, weight_decay=5.0)
optimizer.exclude_from_weight_decay(var_list=[model.layers[0].kernel])
model.compile(optimizer, "mse")
""",
    "an optimizer by layers": """
adam, sgd, head = keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.1), model.layers[-1]
choose = lambda variable: adam if any(variable is weight for weight in head.weights) else sgd
model.compile(keras.optimizers.MultiOptimizer(choose), "mse")
""",
    "an optimizer that is built": """
optimizer = keras.optimizers.AdamW(0.01, weight_decay=5.0)
optimizer.exclude_from_weight_decay(var_names=["bias"])
optimizer.build(model.trainable_variables)
model.compile(optimizer, "mse")
""",
}


@pytest.mark.parametrize("rank_seed", [None, 0])
@pytest.mark.parametrize("case", REFERRING)
def test_arguments_that_refer_to_the_model_refer_to_the_one_that_is_trained(
    rank_seed: int | None, case: str, tmp_path: Path
) -> None:
    mine, plain = train_both(tmp_path, make_source(REFERRING[case]), rank_seed)
    assert_same_weights(mine.model, plain)


METRIC = """
def size(labels, predictions):
    return tf.reduce_sum(tf.abs(model.layers[0].kernel))

model.compile(keras.optimizers.SGD(0.05), "mse", metrics=[size])
"""


def test_a_metric_that_refers_to_the_model_refers_to_the_one_that_is_trained(tmp_path: Path) -> None:
    mine, plain = train_both(tmp_path, make_source(METRIC), None)
    mine.evaluate(X, Y)
    expected = plain.evaluate(X, Y, batch_size=len(X), verbose=0, return_dict=True)
    assert metric_values(mine)["size"] == pytest.approx(expected["size"], rel=1e-5)
    copy = mine.make_copy_evaluator()
    with pytest.raises(BadInputError, match="reads the variable 'sequential/dense/kernel' itself"):
        copy.evaluate(copy_values(mine.model), X, Y)


@pytest.mark.parametrize("body", [PENALTY, METRIC], ids=["loss", "metric"])
def test_with_parameter_servers_a_loss_or_metric_that_reads_a_variable_of_the_model_is_refused_by_name(
    body: str, tmp_path: Path
) -> None:
    """In a worker, this variable keeps its initial value."""
    module = load(tmp_path, make_source(body))
    network = KerasNetwork.build(module, seed=1, embedding_threshold=0, ps_of_variable=lambda name: 0, ps_count=1)
    run = network.train if body is PENALTY else network.evaluate
    with pytest.raises(BadInputError, match="reads the variable 'sequential/dense/kernel' of the model") as refused:
        run(network.initial_values(), {}, X, Y)
    assert "regularizer" in (refused.value.hint or "")


def test_every_model_of_a_module_with_one_optimizer_has_its_exclusions_from_weight_decay(tmp_path: Path) -> None:
    outside = """
optimizer = keras.optimizers.AdamW(0.01, weight_decay=5.0)
optimizer.exclude_from_weight_decay(var_names=["bias"])
loss, eval_metrics_fn = "mse", dict
"""
    source = make_source("", outside)
    module = load(tmp_path, source)
    first, second = (ModelReplica(module, seed=1, rank_seed=None, sample=None) for _ in range(2))
    scope: dict[str, Any] = {}
    exec(source, scope)
    plain = scope["custom_model"]()
    plain.set_weights(first.model.get_weights())
    plain.compile(scope["optimizer"], "mse", run_eagerly=True)
    for _ in range(3):
        plain.train_on_batch(X, Y)
        first.take_step(X, Y)
        second.take_step(X, Y)
    assert_same_weights(first.model, plain)
    assert_same_weights(second.model, plain)


def test_an_optimizer_that_cannot_be_made_again_is_refused_by_name(tmp_path: Path) -> None:
    outside = """
optimizer = keras.optimizers.AdamW(0.01, weight_decay=5.0)
loss, eval_metrics_fn = "mse", dict
"""
    source = make_source("if not optimizer.built:\n    optimizer.exclude_from_weight_decay(model.weights)", outside)
    module = load(tmp_path, source)
    ModelReplica(module, seed=1, rank_seed=None, sample=None)
    with pytest.raises(BadInputError, match="AdamW cannot be made again") as refused:
        ModelReplica(module, seed=1, rank_seed=None, sample=None)
    assert "var_names" in (refused.value.hint or "")


# --------------------------------------------------------------------------------------------------
# Arguments in lists, beside outputs or losses that have names.

BY_OUTPUT = LISTED_OUTPUTS.replace(
    '["mse", "sparse_categorical_crossentropy"], METRICS', "LOSS, loss_weights=[1.0, 0.2]"
)
DICT_OUTPUTS = BY_OUTPUT.replace("Model(x, outputs", "Model(x, dict(zip(['number', 'kind'], outputs))")
NAMED_LOSSES = '{"kind": "sparse_categorical_crossentropy", "number": "mse"}'
LISTED = {
    "a list of outputs, losses by name": (BY_OUTPUT, NAMED_LOSSES),
    "outputs and losses by name": (DICT_OUTPUTS, NAMED_LOSSES),
    "outputs by name, a list of losses": (DICT_OUTPUTS, '["sparse_categorical_crossentropy", "mse"]'),
}


@pytest.mark.parametrize("case", LISTED)
def test_a_list_of_loss_weights_has_the_order_of_keras(case: str, tmp_path: Path) -> None:
    """That of the outputs; of outputs in a dictionary that of their sorted names."""
    body, losses = LISTED[case]
    body = body.replace("LOSS", losses)
    source = f"import keras\n\ndef custom_model():{body}\ndef feed(dataset, mode, metadata):\n    return dataset\n"
    mine = ModelReplica(load(tmp_path, source), seed=1, rank_seed=None, sample=None)
    plain = make_plainly(source, mine.model.get_weights())
    x, labels, _ = make_data()
    output_labels: Any = labels if "zip" in body else [labels["number"], labels["kind"]]
    for _ in range(3):
        mine.take_step(x, output_labels)
        plain.train_on_batch(x, output_labels)
    assert_same_weights(mine.model, plain)


def test_labels_in_a_tuple_have_the_order_of_keras(tmp_path: Path) -> None:
    body = DICT_OUTPUTS.replace("LOSS", NAMED_LOSSES)
    source = f"import keras\n\ndef custom_model():{body}\ndef feed(dataset, mode, metadata):\n    return dataset\n"
    mine = ModelReplica(load(tmp_path, source), seed=1, rank_seed=None, sample=None)
    plain = make_plainly(source, mine.model.get_weights())
    x, labels, _ = make_data()
    for _ in range(3):
        mine.take_step(x, (labels["kind"], labels["number"]))
        plain.train_on_batch(x, (labels["kind"], labels["number"]))
    assert_same_weights(mine.model, plain)


# --------------------------------------------------------------------------------------------------
# Masks.

MASKED_METRIC = MASKED.replace("SGD(0.1), squared)", 'SGD(0.1), "mse", metrics=[[squared], ["mae"]])')


@pytest.mark.parametrize("weighted", [False, True])
def test_a_function_metric_leaves_masked_values_out_as_in_keras(tmp_path: Path, weighted: bool) -> None:
    source = MASKED_METRIC.replace("metrics=[", "weighted_metrics=[") if weighted else MASKED_METRIC
    mine = ModelReplica(load(tmp_path, source), seed=1, rank_seed=None, sample=None)
    ids = np.tril(np.full((6, 4), 3, np.int32))
    labels = np.random.default_rng(2).normal(size=(6, 4, 1)).astype(np.float32)
    scope: dict[str, Any] = {}
    exec(source, scope)
    plain = scope["custom_model"]()
    plain.set_weights(mine.model.get_weights())
    plain.run_eagerly = True
    weights = np.arange(1, 7, dtype=np.float32)[:, None] if weighted else None
    mine.evaluate(ids, (labels, 2 * labels), None if weights is None else (weights, weights))
    expected = plain.evaluate(
        ids,
        [labels, 2 * labels],
        sample_weight=None if weights is None else [weights, weights],
        batch_size=6,
        verbose=0,
        return_dict=True,
    )
    squared = next(value for name, value in expected.items() if name.endswith("squared"))
    metric_value = next(value for name, value in metric_values(mine).items() if name.endswith("squared"))
    assert metric_value == pytest.approx(squared, rel=1e-5)
