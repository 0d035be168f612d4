"""A ``train_step`` whose gradients several workers cannot average: sums are refused, the rest is warned of."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

import tensorflow as tf  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.api.job_spec import ModelSpec  # noqa: E402
from edl.keras.model_contract import load_model_module  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402
from edl.keras.replica_choice import build_replica  # noqa: E402
from edl.keras.several_updates_train_step import SeveralUpdatesReplica  # noqa: E402
from edl.keras.step_additivity import check_added_losses, check_step_gradients  # noqa: E402

SOURCE = """
import keras, tensorflow as tf

class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.norm = keras.layers.BatchNormalization()
        self.head = keras.layers.Dense(2)
        self.other = keras.optimizers.SGD(0.1)

    def build(self, shape):
        self.norm.build(shape)
        self.head.build(shape)
        self.built = True

    def call(self, x, training=False):
        if isinstance(x, tf.RaggedTensor):
            x = x.to_tensor(shape=(None, 3))
        return self.head(x if isinstance(x, tf.SparseTensor) else CALLED)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            p = self(x, training=True)
            loss = LOSS
        weights = self.trainable_weights
        gradients = tape.gradient(loss, weights)
        UPDATE
        for metric in self.metrics:
            metric.update_state(loss) if metric.name == "loss" else metric.update_state(y, p)
        return {"loss": loss}

def custom_model():
    model = Own()
    model.build((None, 3))
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    return model

def feed(dataset, mode, metadata):
    return dataset
"""
MEAN = "tf.reduce_mean((p - y) ** 2)"
SUM = "tf.reduce_sum((p - y) ** 2)"
APPLY = "self.optimizer.apply_gradients(zip(gradients, weights))"
TWICE = f"{APPLY}; self.other.apply_gradients(zip(gradients, weights))"


NORMALIZED = "self.norm(x, training=training)"


def make_replica(
    folder: Path, loss: str, update: str, called: str = "x", convert: Callable[[Any], Any] = np.asarray
) -> tuple[Any, Any, Any]:
    (folder / "own.py").write_text(SOURCE.replace("LOSS", loss).replace("UPDATE", update).replace("CALLED", called))
    choice = ModelSpec(zoo=str(folder), definition="own.custom_model", params={})
    module = load_model_module(choice, may_have_train_step=True)
    random = np.random.default_rng(3)
    x = convert(random.normal(size=(9, 3)).astype(np.float32))
    y = random.normal(size=(9, 2)).astype(np.float32)
    return build_replica(module, seed=1, rank_seed=0, sample=x, first=(x, y, None)), x, y


def test_statistics_of_a_minibatch_are_no_reason_for_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A half that is there twice has its own statistics."""
    replica, x, y = make_replica(tmp_path, MEAN, APPLY, NORMALIZED)
    check_step_gradients(replica, x, y)
    assert not caplog.messages


@pytest.mark.parametrize(
    "convert", [tf.RaggedTensor.from_tensor, tf.sparse.from_dense, tf.constant], ids=["ragged", "sparse", "dense"]
)
@pytest.mark.first_cases(1)
def test_features_of_every_kind_can_be_checked(tmp_path: Path, convert: Callable[[Any], Any]) -> None:
    """A sparse minibatch cannot be cut; what can be found otherwise is."""
    replica, x, y = make_replica(tmp_path, SUM, APPLY, convert=convert)
    with nullcontext() if isinstance(x, tf.SparseTensor) else pytest.raises(BadInputError, match="sums"):
        check_step_gradients(replica, x, y)


@pytest.mark.parametrize(
    ("loss", "update", "kind"),
    [
        (MEAN, APPLY, ModelReplica),
        ("self.compute_loss(x, y, p)", APPLY, ModelReplica),
        (MEAN, TWICE, SeveralUpdatesReplica),
        # What differs from call to call tells nothing.
        (f"{MEAN} * tf.random.uniform([])", APPLY, ModelReplica),
    ],
    ids=["mean", "compute_loss", "two updates", "random"],
)
@pytest.mark.first_cases(2)
def test_gradients_of_a_mean_are_accepted_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loss: str, update: str, kind: type
) -> None:
    """The metrics are those of Keras' guide: their variables are made in the first trace, which is repeated."""
    replica, x, y = make_replica(tmp_path, loss, update)
    assert type(replica) is kind
    before = replica.state_arrays()
    check_step_gradients(replica, x, y)
    assert not caplog.messages
    assert all(np.array_equal(value, before[name]) for name, value in replica.state_arrays().items())


@pytest.mark.parametrize(
    ("update", "called"),
    [(APPLY, "x"), (TWICE, "x"), (APPLY, NORMALIZED)],
    ids=["one update", "two updates", "statistics"],
)
@pytest.mark.first_cases(1)
def test_gradients_of_a_sum_are_refused(tmp_path: Path, update: str, called: str) -> None:
    replica, x, y = make_replica(tmp_path, SUM, update, called)
    with pytest.raises(BadInputError, match="sums over the records") as refused:
        check_step_gradients(replica, x, y)
    assert refused.value.where.endswith("own.py")


@pytest.mark.parametrize(
    ("loss", "update"),
    [
        ("tf.reduce_mean((p - tf.reduce_mean(p, 0) - y) ** 2)", APPLY),
        (MEAN, f"gradients, _ = tf.clip_by_global_norm(gradients, 0.01); {APPLY}"),
    ],
    ids=["compared records", "clipped"],
)
@pytest.mark.first_cases(1)
def test_gradients_that_depend_on_the_other_records_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loss: str, update: str
) -> None:
    replica, x, y = make_replica(tmp_path, loss, update)
    check_step_gradients(replica, x, y)
    (message,) = caplog.messages
    assert "train_step()" in message


CLIP = "gradients, _ = tf.clip_by_global_norm(gradients, 0.01)"


@pytest.mark.parametrize(
    "update",
    [
        f"{CLIP}; {APPLY}",
        f"{CLIP}; {TWICE}",
        f"gradients = [tf.clip_by_value(each, -0.01, 0.01) for each in gradients]; {APPLY}",
        f"gradients = [each / tf.norm(each) for each in gradients]; {APPLY}",
    ],
    ids=["clipped", "two updates", "clipped by value", "normalized"],
)
@pytest.mark.first_cases(1)
def test_clipped_gradients_of_a_model_with_statistics_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, update: str
) -> None:
    """Its halves are the same records, and have the same gradient, unless their labels differ."""
    replica, x, y = make_replica(tmp_path, MEAN, update, NORMALIZED)
    before = replica.state_arrays()
    check_step_gradients(replica, x, y)
    (message,) = caplog.messages
    assert "clips or normalizes gradients" in message
    assert all(np.array_equal(value, before[name]) for name, value in replica.state_arrays().items())


@pytest.mark.parametrize(
    ("loss", "update"),
    [
        # As in a GAN: the labels are records, and have statistics of their own.
        ("tf.reduce_mean((p - self.head(self.norm(tf.concat([y, y[:, :1]], 1), training=True))) ** 2)", APPLY),
        # Labels that belong to the features.
        (MEAN, f"tf.debugging.assert_near(y[:, 0], x[:, 0] + 1); {APPLY}"),
    ],
    ids=["labels with statistics", "labels that fit their features only"],
)
@pytest.mark.first_cases(1)
def test_labels_are_not_exchanged_where_that_tells_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loss: str, update: str
) -> None:
    replica, x, y = make_replica(tmp_path, loss, update, NORMALIZED)
    y = np.stack([x[:, 0] + 1, y[:, 1]], 1)
    before = replica.state_arrays()
    check_step_gradients(replica, x, y)
    assert not caplog.messages
    assert all(np.array_equal(value, before[name]) for name, value in replica.state_arrays().items())


@pytest.mark.parametrize("called", ["x", NORMALIZED], ids=["plain", "statistics"])
@pytest.mark.first_cases(1)
def test_a_sum_beside_a_mean_is_warned_of_by_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, called: str
) -> None:
    replica, x, y = make_replica(tmp_path, f"{MEAN} + 0.01 * tf.reduce_sum(p ** 2)", APPLY, called)
    check_step_gradients(replica, x, y)
    (message,) = caplog.messages
    assert "adds a sum over the records to a mean" in message


ADDING = """
import keras, tensorflow as tf

class Adding(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, x):
        self.add_loss(ADDED)
        return x

def custom_model():
    inputs = keras.Input((3,))
    hidden = keras.layers.BatchNormalization()(Adding()(inputs))
    hidden = keras.layers.Dense(4, activity_regularizer="l2", kernel_regularizer="l2")(hidden)
    hidden = keras.layers.Dropout(0.4)(hidden)
    return keras.Model(inputs, keras.layers.Dense(2)(hidden))

loss = "mse"
optimizer = "sgd"

def feed(dataset, mode, metadata):
    return dataset
"""


@pytest.mark.parametrize(
    ("added", "refused"),
    [
        ("0.1 * tf.reduce_mean(tf.square(x))", False),
        ("0.1 * tf.reduce_sum(tf.square(x))", True),
        ("tf.reduce_sum(x ** 2 + 0.1 * keras.random.normal(tf.shape(x), seed=self.seeds))", True),
        ("tf.reduce_mean(x ** 2 + 0.1 * keras.random.normal(tf.shape(x), seed=self.seeds))", False),
        ("0.0 * tf.reduce_sum(x)", False),
    ],
    ids=["mean", "sum", "random sum", "random mean", "zero"],
)
@pytest.mark.first_cases(2)
def test_a_loss_that_a_layer_adds_must_be_a_mean(tmp_path: Path, added: str, *, refused: bool) -> None:
    """Activity and kernel regularizers are means and constants; random layers do not hide a sum."""
    (tmp_path / "own.py").write_text(ADDING.replace("ADDED", added))
    module = load_model_module(ModelSpec(zoo=str(tmp_path), definition="own.custom_model"), needs_metrics=False)
    x = np.random.default_rng(3).normal(size=(40, 3)).astype(np.float32)
    replica = build_replica(module, seed=1, rank_seed=0, sample=x, first=(x, np.zeros((40, 2), np.float32), None))
    before = replica.state_arrays()
    with pytest.raises(BadInputError, match="sum over the records") if refused else nullcontext():
        check_added_losses(replica, x)
    assert all(np.array_equal(value, before[name]) for name, value in replica.state_arrays().items())


FAILING = """
import keras, tensorflow as tf

class Late(keras.layers.Layer):
    calls = 0

    def call(self, x):
        Late.calls += 1
        if Late.calls > FIRST_CALLS:
            self.add_weight(shape=(2,), name="late")
        return x

def custom_model():
    inputs = keras.Input((3,))
    return keras.Model(inputs, Late()(keras.layers.Dense(2)(LOOKUP)))

loss = "mse"
optimizer = "sgd"

def feed(dataset, mode, metadata):
    return dataset
"""


LOOKUP = "keras.layers.Flatten()(keras.layers.Embedding(5, 1, name='table')(inputs))"


@pytest.mark.parametrize(
    ("first_calls", "hidden", "value", "message"),
    [
        ("2", "inputs", 1.0, "the model raised ValueError: .*cannot add new elements of state"),
        ("99", LOOKUP, 7.0, r"id 7 is outside of the embedding 'table/embeddings' \(5 x 1\)"),
        ("99", LOOKUP, -2.0, r"id -2 is outside of the embedding 'table/embeddings' \(5 x 1\)"),
    ],
    ids=["late variable", "id behind the table", "negative id"],
)
def test_an_error_of_the_model_is_the_users(
    tmp_path: Path, first_calls: str, hidden: str, value: float, message: str
) -> None:
    """The check is the first that runs the model with records: otherwise workers crash with it, again and again."""
    (tmp_path / "own.py").write_text(FAILING.replace("FIRST_CALLS", first_calls).replace("LOOKUP", hidden))
    module = load_model_module(ModelSpec(zoo=str(tmp_path), definition="own.custom_model"), needs_metrics=False)
    x = np.full((8, 3), value, np.float32)
    replica = build_replica(module, seed=1, rank_seed=0, sample=x, first=(x, np.zeros((8, 2), np.float32), None))
    with pytest.raises(BadInputError, match=message):
        check_added_losses(replica, x)
