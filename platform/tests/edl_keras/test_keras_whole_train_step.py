"""Steps of the user's that several ranks cannot take apart: the only rank of strategy Local makes them as ``fit``."""

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

from edl.api.errors import BadInputError  # noqa: E402
from edl.api.job_spec import ModelSpec  # noqa: E402
from edl.keras.model_contract import load_model_module  # noqa: E402
from edl.keras.replica_choice import build_only_replica, build_replica  # noqa: E402
from edl.keras.several_updates_train_step import SeveralUpdatesReplica  # noqa: E402
from edl.keras.whole_train_step import WholeStepReplica  # noqa: E402

SOURCE = """
import keras, tensorflow as tf

class Own(keras.Model):
    def __init__(self):
        super().__init__()
        def make_encoder():
            layers = [keras.layers.Dense(4, activation="tanh"), keras.layers.BatchNormalization(momentum=0.5)]
            return keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dropout(0.2)])
        self.encoder, self.slow = make_encoder(), make_encoder()
        self.slow.set_weights(self.encoder.get_weights())
        self.head = keras.layers.Dense(1)
        self.head.build((None, 4))
        self.queue = tf.Variable(tf.zeros((8, 4)), trainable=False)
        self.steps = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="steps")
        self.sums = [self.add_weight(shape=v.shape, initializer="zeros", trainable=False) for v in self.fast]
        self.other = keras.optimizers.SGD(0.02, momentum=0.5)
        self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)

    @property
    def fast(self):
        return self.encoder.trainable_weights + self.head.trainable_weights

    def call(self, x, training=False):
        return self.head(self.encoder(x, training=training))

    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        return loss, tape.gradient(loss, self.fast)

    def train_step(self, data):
STEP

def custom_model():
    model = Own()
    model.compile(keras.optimizers.Adam(0.05), "mse", jit_compile=False)
    return model

def feed(dataset, mode, metadata):
    return dataset
"""
BODIES = {
    "a momentum encoder": """
x, y = data
with tf.GradientTape() as tape:
    far = self.slow(x, training=True)
    near = self.encoder(x, training=True)
    loss = tf.reduce_mean(tf.square(near - far)) + self.compute_loss(x, y, self.head(near))
self.optimizer.apply_gradients(zip(tape.gradient(loss, self.fast), self.fast))
for slow, fast in zip(self.slow.weights, self.encoder.weights):
    slow.assign(0.9 * slow + 0.1 * fast)
return {"loss": loss}
""",
    "two gradients with a perturbation": """
x, y = data
_, gradients = self.gradients(x, y)
scale = 0.05 / (tf.linalg.global_norm(gradients) + 1e-12)
for variable, gradient in zip(self.fast, gradients):
    variable.assign_add(scale * gradient)
loss, sharp = self.gradients(x, y)
for variable, gradient in zip(self.fast, gradients):
    variable.assign_sub(scale * gradient)
self.optimizer.apply_gradients(zip(sharp, self.fast))
return {"loss": loss}
""",
    "two updates and a loss behind them": """
x, y = data
loss, gradients = self.gradients(x, y)
self.optimizer.apply_gradients(zip(gradients, self.fast))
loss, gradients = self.gradients(x, y)
self.other.apply_gradients(zip(gradients, self.fast))
return {"loss": tf.reduce_mean(tf.square(self(x, training=True) - y))}
""",
    "an update in a condition": """
x, y = data
loss, gradients = self.gradients(x, y)
for total, gradient in zip(self.sums, gradients):
    total.assign_add(gradient)
self.steps.assign_add(1)
def update():
    self.optimizer.apply_gradients([(total / 2.0, variable) for total, variable in zip(self.sums, self.fast)])
    for total in self.sums:
        total.assign(tf.zeros_like(total))
    return True
tf.cond(self.steps % 2 == 0, update, lambda: False)
return {"loss": loss}
""",
    "a queue beside the weights": """
x, y = data
near = self.encoder(x)
loss, gradients = self.gradients(x, y)
with tf.GradientTape() as tape:
    loss = self.compute_loss(x, y, self(x, training=True)) + tf.reduce_mean(self.queue * self.encoder(x))
self.optimizer.apply_gradients(zip(tape.gradient(loss, self.fast), self.fast))
self.queue.assign(tf.concat([near, self.queue], 0)[:8])
return {"loss": loss}
""",
    "no optimizer": """
x, y = data
loss, gradients = self.gradients(x, y)
for variable, gradient in zip(self.fast, gradients):
    variable.assign_sub(0.1 * gradient)
return {"loss": loss}
""",
    "a traced function": """
@tf.function
def run(x, y):
    loss, gradients = self.gradients(x, y)
    self.optimizer.apply_gradients(zip(gradients, self.fast))
    return loss
return {"loss": run(*data)}
""",
}
TRACED = """
        return self.traced_step(*data)

    @tf.function
    def traced_step(self, x, y):
        loss, gradients = self.gradients(x, y)
        self.optimizer.apply_gradients(zip(gradients, self.fast))
        return {"loss": loss}
"""
RECORDS, STEPS = 8, 4
X = np.random.default_rng(3).normal(size=(RECORDS * STEPS, 3)).astype(np.float32)
Y = X[:, :1] * X[:, 1:2]


def batch(step: int) -> tuple[Any, Any]:
    part = slice(step * RECORDS, (step + 1) * RECORDS)
    return X[part], Y[part]


def load(folder: Path, body: str) -> Any:
    lines = (
        body if body.startswith("\n        ") else "".join(f"        {line}\n" for line in body.strip().splitlines())
    )
    (folder / "own.py").write_text(SOURCE.replace("STEP\n", lines))
    choice = ModelSpec(zoo=str(folder), definition="own.custom_model", params={})
    return load_model_module(choice, needs_metrics=False, may_have_train_step=True)


def build(folder: Path, body: str, seed: int = 0) -> Any:
    return build_only_replica(load(folder, body), seed=seed, sample=X[:1], first=(*batch(0), None))


def fit(folder: Path) -> tuple[Any, list[float]]:
    scope: dict[str, Any] = {}
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    exec((folder / "own.py").read_text(), scope)
    model = scope["custom_model"]()
    losses: list[float] = []
    log = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: losses.append(logs["loss"]))
    model.fit(X, Y, batch_size=RECORDS, epochs=2, shuffle=False, verbose=0, callbacks=[log])
    return model, losses


def check(folder: Path, body: str) -> None:
    only = build(folder, body)
    assert isinstance(only, WholeStepReplica)
    losses = [only.take_step(*batch(step % STEPS)).loss for step in range(2 * STEPS)]
    plain, expected = fit(folder)
    np.testing.assert_allclose(losses, expected, rtol=2e-4)
    for mine, theirs in zip(only.model.variables, plain.variables, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=2e-4, atol=2e-5, err_msg=mine.path)
    np.testing.assert_allclose(only.model.queue.numpy(), plain.queue.numpy(), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    "case",
    [
        "a momentum encoder",
        "two gradients with a perturbation",
        *map(repetition, [name for name in BODIES if "momentum" not in name and "perturbation" not in name]),
    ],
)
def test_the_only_rank_makes_the_step_of_fit(tmp_path: Path, case: str) -> None:
    check(tmp_path, BODIES[case])


def test_a_traced_function_that_found_the_updates_is_traced_again_with_them(tmp_path: Path) -> None:
    check(tmp_path, TRACED)


@pytest.mark.parametrize("case", ["a momentum encoder", *map(repetition, ["an update in a condition", "no optimizer"])])
def test_a_step_that_is_not_finite_leaves_no_trace(tmp_path: Path, case: str) -> None:
    only, other = build(tmp_path, BODIES[case]), build(tmp_path, BODIES[case])
    for each in (only, other):
        each.take_step(*batch(0))
    step = only.take_step(X[:RECORDS], Y[:RECORDS] * np.nan)
    assert not step.is_finite
    assert step.nonfinite_name
    for each in (only, other):
        assert each.take_step(*batch(1)).is_finite
    np.testing.assert_equal(only.state_arrays(), other.state_arrays())


@pytest.mark.parametrize(
    "case",
    ["a queue beside the weights", repetition("a momentum encoder"), repetition("two updates and a loss behind them")],
)
def test_a_run_goes_on_from_its_state_to_the_bit(tmp_path: Path, case: str) -> None:
    uninterrupted, resumed = build(tmp_path, BODIES[case]), build(tmp_path, BODIES[case], seed=9)
    uninterrupted.take_step(*batch(0))
    resumed.load_state(uninterrupted.state_arrays())
    for each in (uninterrupted, resumed):
        each.take_step(*batch(1))
    np.testing.assert_equal(resumed.state_arrays(), uninterrupted.state_arrays())
    assert ("carried/0" in uninterrupted.state_arrays()) == ("queue" in case)


@pytest.mark.parametrize(
    "case", ["two gradients with a perturbation", *map(repetition, [name for name in BODIES if "two" not in name])]
)
def test_several_ranks_refuse_it_and_name_the_strategy_that_trains_it(tmp_path: Path, case: str) -> None:
    module = load(tmp_path, BODIES[case])
    with pytest.raises(BadInputError) as refused:
        build_replica(module, seed=0, rank_seed=0, sample=X[:1], first=(*batch(0), None)).take_step(*batch(0))
    assert "train_step()" in refused.value.message
    assert "strategy: {name: Local}" in str(refused.value.hint)


TWO_UPDATES = """
x, y = data
loss, gradients = self.gradients(x, y)
self.optimizer.apply_gradients(zip(gradients, self.fast))
loss, gradients = self.gradients(x, y)
self.other.apply_gradients(zip(gradients, self.fast))
return {"loss": loss}
"""


def test_several_ranks_take_a_step_apart_whose_updates_each_have_a_loss_of_compile(tmp_path: Path) -> None:
    """The loss of the first update is of another graph than that of the second one."""
    module = load(tmp_path, TWO_UPDATES)
    rank = build_replica(module, seed=0, rank_seed=0, sample=X[:1], first=(*batch(0), None))
    assert isinstance(rank, SeveralUpdatesReplica)
    assert rank.take_step(*batch(0)).is_finite
    assert [int(each.optimizer.iterations) for each in rank.updates] == [1, 1]


def test_what_no_checkpoint_would_have_is_refused_by_name(tmp_path: Path) -> None:
    body = BODIES["no optimizer"].replace(
        "return {", "self.table.insert(tf.constant([1], tf.int64), tf.constant([2], tf.int64))\nreturn {"
    )
    with pytest.raises(BadInputError, match="which may write a variable or a table"):
        build(tmp_path, body)
