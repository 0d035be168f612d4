"""The only rank of strategy Local: it trains what several ranks cannot combine, and undoes what is not finite."""

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
from support.gan_model import ADVERSARIAL, PERSISTENT, make_records, train_plainly, write_gan  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.api.job_spec import ModelSpec  # noqa: E402
from edl.core.evaluation import merge_metric_states  # noqa: E402
from edl.keras.model_contract import ModelModule, load_model_module  # noqa: E402
from edl.keras.model_export import build_export_model  # noqa: E402
from edl.keras.replica_choice import build_only_replica, build_replica  # noqa: E402
from edl.keras.whole_train_step import WholeStepReplica  # noqa: E402

RECORDS = 24


def load(folder: Path, name: str, *, needs_metrics: bool = False) -> ModelModule:
    choice = ModelSpec(zoo=str(folder), definition=f"{name}.custom_model", params={})
    return load_model_module(choice, needs_metrics=needs_metrics, may_have_train_step=True)


def build(
    folder: Path,
    name: str,
    data: tuple[Any, Any],
    rank_seed: int | None = None,
    seed: int = 4,
    *,
    needs_metrics: bool = False,
) -> Any:
    """A replica; by default that of the only rank."""
    module = load(folder, name, needs_metrics=needs_metrics)
    if rank_seed is None:
        return build_only_replica(module, seed=seed, sample=data[0], first=(*data, None))
    # As a job with one embedding row in a step.
    return build_replica(
        module, seed=seed, rank_seed=rank_seed, sample=data[0], first=(*data, None), max_dense_gradient=16
    )


def assert_same(found: Any, expected: Any) -> None:
    """All variables are equal to the bit, with the states of random generators."""
    mine, theirs = found.state_arrays(), expected.state_arrays()
    assert mine.keys() == theirs.keys()
    for name, values in theirs.items():
        np.testing.assert_array_equal(mine[name], values, err_msg=name)


# --------------------------------------------------------------------------------------------------
# What several ranks cannot combine.

MODEL = """
import keras, tensorflow as tf

class Layer(keras.layers.Layer):
    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", dtype="TYPE", trainable=False, name="calls")

    def call(self, x):
        BODY
        return x

def custom_model():
    x = keras.Input((3,))
    hidden = FIRST
    return keras.Model(x, keras.layers.Dense(1)(Layer()(hidden)))

outside = tf.Variable(0.0)

def loss(labels, predictions):
    LOSS

def optimizer():
    return keras.optimizers.SGD(0.01)

def feed(dataset, mode, metadata):
    return dataset
"""
USUAL = {
    "TYPE": "float32",
    "BODY": "pass",
    "FIRST": "keras.layers.Dense(4)(x)",
    "LOSS": "return tf.square(labels - predictions)",
}
CASES = {
    "an integer": {"TYPE": "int32", "BODY": "self.calls.assign(self.calls + 1)"},
    "a variable outside": {"BODY": "outside.assign_add(1.0)"},
    "a loss that counts": {"LOSS": "outside.assign_add(1.0); return tf.square(labels - predictions)"},
    "a summed loss": {
        "LOSS": "return tf.reduce_sum(tf.square(labels - predictions))",
        "BODY": "self.add_loss(tf.reduce_sum(x))",
    },
    "synchronized": {"FIRST": "keras.layers.BatchNormalization(synchronized=True)(x)"},
    "a large gradient": {
        "FIRST": 'keras.layers.Flatten()(keras.layers.Embedding(9, 4)(keras.ops.cast(keras.ops.abs(x), "int32")))'
    },
}
X = np.random.default_rng(3).normal(size=(8, 3)).astype(np.float32)
DATA = X, X[:, :1]


def write_model(folder: Path, changes: dict[str, str]) -> None:
    source = MODEL
    for key, text in (USUAL | changes).items():
        source = source.replace(key, text)
    (folder / "own.py").write_text(source)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.first_cases(3)
def test_what_several_ranks_cannot_combine_one_rank_trains(tmp_path: Path, case: str) -> None:
    write_model(tmp_path, CASES[case])
    with pytest.raises(BadInputError) as refused:
        build(tmp_path, "own", DATA, rank_seed=0).take_step(*DATA)
    if case == "an integer":
        assert "{name: Local}" in str(refused.value)
    only = build(tmp_path, "own", DATA)
    losses = [only.take_step(*DATA) for _ in range(3)]
    assert all(step.is_finite for step in losses)
    assert len({step.loss for step in losses}) == 3


STATES = {
    "a counter": {"TYPE": "int32", "BODY": "self.calls.assign(self.calls + 1)"},
    "statistics of another type": {"FIRST": 'keras.layers.BatchNormalization(dtype="float64", trainable=False)(x)'},
    "a model in float64": {
        "FIRST": 'keras.layers.BatchNormalization(dtype="float64")(keras.layers.Dense(4, dtype="float64")(x))'
    },
    "a moving mean in float64": {"TYPE": "float64", "BODY": "self.calls.assign(0.5 * self.calls + 0.5)"},
}


@pytest.mark.parametrize("case", STATES)
def test_the_export_has_the_variables_that_are_not_float32(tmp_path: Path, case: str) -> None:
    write_model(tmp_path, STATES[case])
    only = build(tmp_path, "own", DATA)
    for _ in range(3):
        only.take_step(*DATA)
    for variable in only.variables.states.values():
        variable.assign(variable + 1)
    exported = build_export_model(only.exportable(), only.variables.read_values(), {})
    assert only.variables.states
    for mine, theirs in zip(only.model.variables, exported.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy(), err_msg=mine.path)


def test_layers_that_a_callback_froze_before_the_first_step_are_refused_by_name(tmp_path: Path) -> None:
    """``fit`` would not train them, because it makes the optimizer after ``on_train_begin``."""
    write_model(tmp_path, {})
    only = build(tmp_path, "own", DATA)
    only.model.layers[1].trainable = False
    with pytest.raises(BadInputError, match="`trainable` of the variable 'dense"):
        only.take_step(*DATA)


@pytest.mark.repetition
def test_an_integer_that_the_forward_pass_changes_is_in_checkpoints(tmp_path: Path) -> None:
    write_model(tmp_path, CASES["an integer"])
    only = build(tmp_path, "own", DATA)
    for _ in range(3):
        only.take_step(*DATA)
    again = build(tmp_path, "own", DATA)
    again.load_state(only.state_arrays())
    assert int(again.model.layers[2].calls) == 3


# --------------------------------------------------------------------------------------------------
# A train_step of the user's.

SUMMED = """
x, y = data
with tf.GradientTape() as tape:
    loss = self.compute_loss(x, y, self(x, training=True))
weights = self.trainable_weights
self.optimizer.apply(tape.gradient(loss, weights), weights)
return {"loss": loss}
"""
SUMMED_COMPILE = {
    "gan.compile(": "keras.Model.compile(gan, keras.optimizers.SGD(0.01), SUM); return gan\n    gan.compile(",
    "return [self.d_loss_metric, self.g_loss_metric]": "return []",
    "def custom_model": 'SUM = keras.losses.MeanSquaredError(reduction="sum", dtype="float64")\n\ndef custom_model',
}


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_one_update_of_a_summed_loss_is_that_of_keras(tmp_path: Path) -> None:
    write_gan(tmp_path, SUMMED, SUMMED_COMPILE)
    data = make_records(RECORDS)
    only = build(tmp_path, "gan", data, seed=0)
    assert not isinstance(only, WholeStepReplica)
    losses = [only.take_step(*data).loss for _ in range(4)]
    plain, expected = train_plainly(tmp_path, [], [data] * 4)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    for mine, theirs in zip(only.model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-14)


DROPOUT = {'"discriminator", 3, 1)': '"discriminator", 3, 1, keras.layers.Dropout(0.3, dtype="float64"))'}


@pytest.mark.parametrize("step", [ADVERSARIAL, repetition(PERSISTENT)], ids=["GAN", "one tape"])
def test_several_updates_are_those_of_keras(tmp_path: Path, step: str) -> None:
    """With Dropout, whose generator starts from the seed of the job as in Keras."""
    write_gan(tmp_path, step, DROPOUT)
    data = make_records(RECORDS)
    only = build(tmp_path, "gan", data, seed=0)
    assert isinstance(only, WholeStepReplica)
    losses = [only.take_step(*data).loss for _ in range(5)]
    plain, expected = train_plainly(tmp_path, [], [data] * 5)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    for mine, theirs in zip(only.model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-14)


# --------------------------------------------------------------------------------------------------
# A step that is not finite, and the state.

RANDOM = {"FIRST": "keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(keras.layers.Dense(4)(x)))"}


def test_a_step_that_is_not_finite_leaves_no_trace(tmp_path: Path) -> None:
    """Neither in statistics nor in the states of random generators."""
    write_model(tmp_path, RANDOM | {"TYPE": "int32", "BODY": "self.calls.assign(self.calls + 1)"})
    only, other = build(tmp_path, "own", DATA), build(tmp_path, "own", DATA)
    for bad in ((X, DATA[1] * np.nan), (X * np.inf, DATA[1])):
        step = only.take_step(*bad)
        assert not step.is_finite
        assert_same(only, other)
    for each in (only, other):
        assert each.take_step(*DATA).is_finite
    assert_same(only, other)


def test_a_second_update_that_is_not_finite_leaves_no_trace(tmp_path: Path) -> None:
    write_gan(tmp_path, ADVERSARIAL, DROPOUT)
    data = make_records(RECORDS)
    only, other = build(tmp_path, "gan", data), build(tmp_path, "gan", data)
    # Labels count in the generator's loss only.
    step = only.take_step(data[0], data[1] * np.nan)
    assert not step.is_finite
    assert "generator" in step.nonfinite_name or "to_real" in step.nonfinite_name
    assert_same(only, other)
    for each in (only, other):
        assert each.take_step(*data).is_finite
    assert_same(only, other)


def test_a_run_goes_on_from_its_state_to_the_bit(tmp_path: Path) -> None:
    write_gan(tmp_path, ADVERSARIAL, DROPOUT)
    data = make_records(RECORDS)
    uninterrupted, resumed = build(tmp_path, "gan", data), build(tmp_path, "gan", data, seed=9)
    uninterrupted.take_step(*data)
    arrays = uninterrupted.state_arrays()
    assert {name.rpartition("/")[0] for name in arrays if name.startswith("slot/")} == {
        "slot/d_optimizer",
        "slot/g_optimizer",
    }
    resumed.load_state(arrays)
    for each in (uninterrupted, resumed):
        each.take_step(*data)
    assert_same(resumed, uninterrupted)


def test_a_run_goes_to_several_ranks_and_back(tmp_path: Path) -> None:
    write_gan(tmp_path, ADVERSARIAL)
    data = make_records(RECORDS)
    only, rank = build(tmp_path, "gan", data), build(tmp_path, "gan", data, rank_seed=1)
    expected = build(tmp_path, "gan", data)
    for _ in range(3):
        expected.take_step(*data)
    only.take_step(*data)
    rank.load_state(only.state_arrays())
    rank.take_step(*data)
    only.load_state(rank.state_arrays(), by_ranks=True)
    only.take_step(*data)
    for mine, theirs in zip(only.model.get_weights(), expected.model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


def test_the_state_of_another_optimizer_is_refused_although_it_has_all_arrays(tmp_path: Path) -> None:
    write_model(tmp_path, {})
    only = build(tmp_path, "own", DATA)
    with pytest.raises(BadInputError, match="they differ in slot/9"):
        only.load_state(only.state_arrays() | {"slot/9": np.zeros(3, np.float32)})


# --------------------------------------------------------------------------------------------------
# A model that its first call builds.

SUBCLASSED = """
import keras, tensorflow as tf

class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(6, activation="tanh")
        self.generator = keras.random.SeedGenerator(11)
        self.norm = keras.layers.BatchNormalization(momentum=0.5)
        self.drop = keras.layers.Dropout(0.4)
        self.mixed = keras.Sequential([keras.layers.Dense(5), keras.layers.GaussianNoise(0.2)])
        self.recurrent = keras.layers.SimpleRNN(3, stateful=True)
        self.head = keras.layers.Dense(1)

    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="ones", trainable=False, name="calls")
        self.built = True

    def call(self, x, training=False):
        self.calls.assign(self.calls + 1.0)
        hidden = self.hidden(x)
        hidden += 0.1 * keras.random.normal((8, 6), seed=self.generator)
        hidden = self.mixed(self.drop(self.norm(hidden, training=True), training=True), training=True)
        return self.head(self.recurrent(keras.ops.expand_dims(hidden, 1)))

def custom_model():
    model = Own()
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"], jit_compile=False)
    return model

def feed(dataset, mode, metadata):
    return dataset
"""


COUNTS = """
    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="ones", trainable=False, name="calls")
        self.built = True
"""


@pytest.mark.parametrize("by_keras", [True, False], ids=["built by Keras", "built by the call alone"])
def test_a_model_that_its_first_call_builds_draws_what_it_draws_in_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_keras: bool
) -> None:
    """Random numbers, statistics, counts and the states of stateful layers begin anew after the call.

    Keras builds a model without a method ``build`` by a symbolic call before.
    """
    if by_keras:
        without = SUBCLASSED.replace(COUNTS, "").replace("self.calls.assign(self.calls + 1.0)", "")
        monkeypatch.setitem(globals(), "SUBCLASSED", without)
    (tmp_path / "own.py").write_text(SUBCLASSED)
    only = build(tmp_path, "own", DATA, seed=0)
    losses = [only.take_step(*DATA).loss for _ in range(3)]
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    scope: dict[str, Any] = {}
    exec(SUBCLASSED, scope)
    plain = scope["custom_model"]()
    expected = plain.fit(*DATA, batch_size=len(X), epochs=3, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for mine, theirs in zip(only.model.variables, plain.variables, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6, err_msg=mine.path)


@pytest.mark.repetition
def test_an_evaluation_draws_what_it_draws_in_fit(tmp_path: Path) -> None:
    """The first one calls the model once more, to see whether metrics add up."""
    (tmp_path / "own.py").write_text(SUBCLASSED)
    only = build(tmp_path, "own", DATA, seed=0, needs_metrics=True)
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    scope: dict[str, Any] = {}
    exec(SUBCLASSED, scope)
    plain = scope["custom_model"]()
    history = plain.fit(*DATA, batch_size=len(X), epochs=3, shuffle=False, verbose=0, validation_data=DATA).history
    for loss, evaluated in zip(history["loss"], history["val_loss"], strict=True):
        assert only.take_step(*DATA).loss == pytest.approx(loss, rel=1e-5)
        only.reset_metrics()
        only.evaluate(*DATA)
        values = only.metric_values(merge_metric_states({}, only.metric_states()))
        assert values["loss"] == pytest.approx(evaluated, rel=1e-5)
