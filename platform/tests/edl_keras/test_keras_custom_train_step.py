"""A ``train_step`` of the user's own under AllReduce: several ranks do what Keras does with the union."""

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

from edl.api.errors import BadInputError  # noqa: E402
from edl.api.job_spec import ModelSpec  # noqa: E402
from edl.keras.model_contract import load_model_module  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402
from edl.keras.replica_choice import build_only_replica, build_replica  # noqa: E402
from edl.keras.replica_state import ReplicaStep  # noqa: E402

SOURCE = """
import keras, tensorflow as tf

class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(4, activation="tanh")
        self.norm = keras.layers.BatchNormalization(momentum=0.5)
        self.head = keras.layers.Dense(1)
        self.other = keras.optimizers.SGD(0.1)
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, name="steps")

    def build(self, shape):
        self.hidden.build(shape)
        for layer in (self.norm, self.head):
            layer.build((None, 4))
        self.built = True

    def call(self, x, training=False):
        return self.head(self.norm(self.hidden(x), training=training))

    def train_step(self, data):
STEP

def custom_model():
    model = Own()
    model.build((None, 3))
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    return model

def feed(dataset, mode, metadata):
    return dataset
"""
USUAL = """
x, y, *weights = data
with tf.GradientTape() as tape:
    predictions = self(x, training=True)
    loss = self.compute_loss(x, y, predictions, *weights) + 0.1 * tf.reduce_mean(tf.abs(predictions))
gradients = tape.gradient(loss, self.trainable_variables)
gradients = [None if g is None else 0.5 * g for g in gradients]
APPLY
for metric in self.metrics:
    metric.update_state(loss) if metric.name == "loss" else metric.update_state(y, predictions)
return {metric.name: metric.result() for metric in self.metrics}
"""
APPLY_GRADIENTS = "self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))"
APPLY = "self.optimizer.apply(gradients, self.trainable_variables)"


def write(folder: Path, step: str) -> None:
    folder.mkdir(exist_ok=True)
    body = "".join(f"        {line}\n" for line in step.strip().splitlines())
    (folder / "own.py").write_text(SOURCE.replace("STEP\n", body))


def make_ranks(folder: Path, step: str, count: int = 1) -> list[ModelReplica]:
    write(folder, step)
    choice = ModelSpec(zoo=str(folder), definition="own.custom_model", params={})
    module = load_model_module(choice, may_have_train_step=True)
    return [ModelReplica(module, seed=4, rank_seed=rank, sample=np.zeros((1, 3), np.float32)) for rank in range(count)]


def make_data(records: int) -> tuple[Any, Any]:
    random = np.random.default_rng(11)
    x = random.normal(size=(records, 3)).astype(np.float32)
    return x, x[:, :1] * x[:, 1:2]


def train_together(ranks: list[ModelReplica], x: Any, y: Any) -> list[ReplicaStep]:
    """One step: each rank has its part of the records."""
    parts = np.array_split(np.arange(len(x)), len(ranks))
    steps = [rank.compute(x[part], y[part]) for rank, part in zip(ranks, parts, strict=True)]
    assert all(step.is_finite for step in steps)
    for buffers in zip(*(rank.buffers for rank in ranks), strict=True):
        total = np.sum(buffers, axis=0)
        for buffer in buffers:
            buffer[:] = total
    for rank in ranks:
        rank.apply(sum(step.weight for step in steps))
    return steps


@pytest.mark.parametrize(
    ("apply", "count"), [(APPLY_GRADIENTS, 2), (APPLY, 1), repetition(APPLY_GRADIENTS, 1), repetition(APPLY, 3)]
)
@pytest.mark.first_cases(1)
def test_ranks_train_as_keras_does_with_the_union(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apply: str, count: int
) -> None:
    if count > 1:
        # Each rank normalizes with the statistics of its own records.
        per_record = SOURCE.replace("BatchNormalization(momentum=0.5)", "LayerNormalization()")
        monkeypatch.setitem(globals(), "SOURCE", per_record.replace(", training=training))", "))"))
    ranks = make_ranks(tmp_path, USUAL.replace("APPLY", apply), count)
    scope: dict[str, Any] = {}
    exec((tmp_path / "own.py").read_text(), scope)
    plain = scope["custom_model"]()
    plain.set_weights(ranks[0].model.get_weights())
    plain.run_eagerly = True  # to trace its few steps would take longer than to make them
    x, y = make_data(50)
    for _ in range(6):
        steps = train_together(ranks, x, y)
        loss = sum(step.loss * step.weight for step in steps) / sum(step.weight for step in steps)
        plain.reset_metrics()
        # That of the step, which adds a term to that of compute_loss().
        assert loss == pytest.approx(float(plain.train_on_batch(x, y, return_dict=True)["loss"]), rel=1e-4)
    for rank in ranks:
        for mine, theirs in zip(rank.model.get_weights(), plain.get_weights(), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)
    assert len({rank.digest() for rank in ranks}) == 1
    assert int(ranks[0].optimizer.iterations) == 6


TRACKED = """
x, y = data
with tf.GradientTape() as tape:
    loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
self.seen.update_state(loss)
return {"loss": self.seen.result()}
"""


def test_a_loss_that_a_metric_returns_is_that_of_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one that is not finite would stay in the metric, and no step after it would be applied."""
    metric_line = "self.seen = keras.metrics.Mean(name='loss')"
    monkeypatch.setitem(globals(), "SOURCE", SOURCE.replace("self.steps =", f"{metric_line}\n        self.steps ="))
    (rank,) = make_ranks(tmp_path, TRACKED)
    x, y = make_data(8)
    before = rank.take_step(x, y)
    assert not rank.take_step(x, y * np.nan).is_finite
    after = [rank.take_step(x, y) for _ in range(2)]
    assert all(step.is_finite for step in after)
    assert after[1].loss < after[0].loss < before.loss
    fresh = make_ranks(tmp_path, TRACKED)[0]
    assert [fresh.take_step(x, y).loss for _ in range(3)] == [before.loss, *(step.loss for step in after)]


PROJECTED = """
x, y, *_ = data
with tf.GradientTape() as tape:
    one, other = (self.projected(self.hidden(each), training=True) for each in (x, x + 0.1))
    loss = tf.reduce_mean(tf.square(one - other)) + tf.reduce_mean(tf.square(self(x, training=True) - one - y))
self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
return {"loss": loss}
"""


def test_layers_that_only_the_step_calls_have_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contrastive models have a projection that ``call`` leaves out."""
    layer = "self.projected = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(momentum=0.5)])"
    source = SOURCE.replace("self.steps =", f"{layer}\n        self.steps =")
    monkeypatch.setitem(globals(), "SOURCE", source)
    write(tmp_path, PROJECTED)
    x, y = make_data(12)
    choice = ModelSpec(zoo=str(tmp_path), definition="own.custom_model", params={})
    module = load_model_module(choice, may_have_train_step=True)
    built: list[Any] = [build_only_replica(module, seed=4, sample=x, first=(x, y, None))]
    built += [build_replica(module, seed=4, rank_seed=rank, sample=x, first=(x, y, None)) for rank in (0, 1)]
    ranks = [each for each in built if isinstance(each, ModelReplica)]
    assert len(ranks) == len(built)
    scope: dict[str, Any] = {}
    exec((tmp_path / "own.py").read_text(), scope)
    plain = scope["custom_model"]()
    plain.set_weights(ranks[0].model.get_weights())
    plain.run_eagerly = True
    old = ranks[0].state_arrays()
    assert not ranks[0].take_step(x, y * np.nan).is_finite
    for name, values in ranks[0].state_arrays().items():
        np.testing.assert_array_equal(values, old[name], err_msg=name)
    for _ in range(3):
        ranks[0].take_step(x, y)
        # The same records on both: their means are those of the union.
        train_together(ranks[1:], np.concatenate([x, x]), np.concatenate([y, y]))
        plain.train_on_batch(x, y)
    for rank in ranks:
        for mine, theirs in zip(rank.model.get_weights(), plain.get_weights(), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)


LOOK_UP = """
words = tf.where(x[:, :1] > 0, "up", "down")
found = tf.cast(self.lookup(words), tf.float32) + tf.map_fn(
    lambda word: tf.cast(self.lookup(word), tf.float32), words, fn_output_signature=tf.float32)
y = y + found
"""


@pytest.mark.repetition
def test_a_step_may_look_words_up_in_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lookup = "self.lookup = keras.layers.StringLookup(vocabulary=['up', 'down'])"
    monkeypatch.setitem(globals(), "SOURCE", SOURCE.replace("self.steps =", f"{lookup}\n        self.steps ="))
    step = USUAL.replace("APPLY", APPLY).replace("\nwith", f"{LOOK_UP}with")
    ranks = make_ranks(tmp_path, step, 2)
    train_together(ranks, *make_data(20))
    assert ranks[0].digest() == ranks[1].digest()


def test_a_step_may_not_change_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = "self.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)"
    monkeypatch.setitem(globals(), "SOURCE", SOURCE.replace("self.steps =", f"{table}\n        self.steps ="))
    insert = "self.table.insert(tf.constant(['a']), tf.constant([1], tf.int64))"
    step = USUAL.replace("APPLY", APPLY).replace("\nwith", f"\n{insert}\nwith")
    with pytest.raises(BadInputError, match=r"LookupTableInsertV2.*may write a variable or a table"):
        make_ranks(tmp_path, step)[0].compute(*make_data(8))


def test_a_step_that_was_not_applied_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    (rank,) = make_ranks(tmp_path, USUAL.replace("APPLY", APPLY_GRADIENTS))
    before = rank.digest()
    rank.compute(*make_data(8))
    assert rank.digest() == before


def test_a_loss_that_is_not_finite_is_noticed(tmp_path: Path) -> None:
    (rank,) = make_ranks(tmp_path, USUAL.replace("APPLY", APPLY_GRADIENTS))
    x, y = make_data(8)
    y[3] = np.nan
    step = rank.compute(x, y)
    assert not step.is_finite
    assert not np.isfinite(step.loss)


MORE = "\n".join((APPLY_GRADIENTS, "{}"))


@pytest.mark.parametrize(
    ("apply", "named"),
    [
        ("pass", "does not apply gradients"),
        (MORE.format(APPLY_GRADIENTS), "applies 2 updates"),
        (MORE.format("self.steps.assign_add(1.0)"), "steps"),
        (MORE.format("self.head.kernel.assign(self.head.kernel * 0.9)"), "kernel"),
        (MORE.format("self(x, training=True)"), "moving_mean' after its update"),
        ("self.other.apply(gradients, self.trainable_variables)", "writes the variable .*kernel. by itself"),
        (MORE.format("self.other.apply(gradients, self.trainable_variables)"), "kernel|learning_rate|iteration"),
        ("self.optimizer.apply_gradients([(gradients[0], self.steps)])", "steps"),
    ],
)
@pytest.mark.first_cases(3)
def test_what_several_ranks_cannot_combine_is_refused_by_name(tmp_path: Path, apply: str, named: str) -> None:
    (rank,) = make_ranks(tmp_path, USUAL.replace("APPLY", apply))
    with pytest.raises(BadInputError, match=named) as refused:
        rank.compute(*make_data(8))
    assert "train_step() of the model (Own)" in str(refused.value)
    assert refused.value.where.endswith("own.py")


def test_a_step_without_a_loss_is_refused(tmp_path: Path) -> None:
    step = """
x, y = data
with tf.GradientTape() as tape:
    loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
return {}
"""
    (rank,) = make_ranks(tmp_path, step)
    with pytest.raises(BadInputError, match="'loss'"):
        rank.compute(*make_data(8))
    (named,) = make_ranks(tmp_path / "named", step.replace("return {}", "return {'loss': loss}"))
    assert named.compute(*make_data(8)).loss > 0


def test_other_strategies_refuse_it_and_say_which_one_does_not(tmp_path: Path) -> None:
    write(tmp_path, USUAL.replace("APPLY", APPLY_GRADIENTS))
    choice = ModelSpec(zoo=str(tmp_path), definition="own.custom_model", params={})
    with pytest.raises(BadInputError, match="train_step") as refused:
        load_model_module(choice)
    assert "AllReduce" in (refused.value.hint or "")


@pytest.mark.repetition
def test_the_optimizer_may_scale_the_loss(tmp_path: Path) -> None:
    scaled = "keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0)"
    # As the train_step of Keras does.
    step = (
        USUAL.replace("APPLY", APPLY_GRADIENTS)
        .replace("gradients = tape", "    scaled = self.optimizer.scale_loss(loss)\ngradients = tape")
        .replace("tape.gradient(loss", "tape.gradient(scaled")
    )
    results = []
    for name, optimizer in (("plain", "keras.optimizers.SGD(0.1)"), ("scaled", scaled)):
        zoo = tmp_path / name
        write(zoo, step)
        source = (zoo / "own.py").read_text()
        (zoo / "own.py").write_text(source.replace("keras.optimizers.Adam(0.05)", optimizer))
        choice = ModelSpec(zoo=str(zoo), definition="own.custom_model", params={})
        module = load_model_module(choice, may_have_train_step=True)
        rank = ModelReplica(module, seed=4, rank_seed=0, sample=np.zeros((1, 3), np.float32))
        train_together([rank], *make_data(16))
        results.append(rank.model.get_weights())
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


ASKS = """
x, y, *_ = data
with tf.GradientTape() as tape:
    loss = self.compute_loss(x, y, self(x, training=True))
    scaled = loss
    if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
        scaled = self.optimizer.scale_loss(loss)
gradients = tape.gradient(scaled, self.trainable_variables)
APPLY
return {"loss": loss}
"""
HALVING = """
class Halving(keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars):
        return super().apply_gradients([(gradient / 2, variable) for gradient, variable in grads_and_vars])

def custom_model"""
OPTIMIZERS = {
    "loss scale": ("keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))", APPLY_GRADIENTS),
    "overridden apply_gradients": ("Halving(0.1)", APPLY_GRADIENTS),
    "overridden apply_gradients, which is not called": ("Halving(0.1)", APPLY),
}


@pytest.mark.parametrize("is_only", [True, False], ids=["Local", "AllReduce"])
@pytest.mark.parametrize("case", OPTIMIZERS)
def test_the_step_has_the_optimizer_of_compile(tmp_path: Path, case: str, is_only: bool) -> None:
    """It may ask for its class, as a step for ``mixed_float16`` does, and its class may change the gradients."""
    optimizer, apply = OPTIMIZERS[case]
    write(tmp_path, ASKS.replace("APPLY", apply))
    source = (tmp_path / "own.py").read_text().replace("keras.optimizers.Adam(0.05)", optimizer)
    (tmp_path / "own.py").write_text(source.replace("\ndef custom_model", HALVING))
    module = load_model_module(
        ModelSpec(zoo=str(tmp_path), definition="own.custom_model", params={}), may_have_train_step=True
    )
    x, y = make_data(12)
    arguments: dict[str, Any] = {"seed": 4, "sample": x, "first": (x, y, None)}
    replica = build_only_replica(module, **arguments) if is_only else build_replica(module, rank_seed=0, **arguments)
    scope: dict[str, Any] = {}
    exec((tmp_path / "own.py").read_text(), scope)
    plain = scope["custom_model"]()
    plain.set_weights(replica.model.get_weights())
    plain.run_eagerly = True  # to trace its few steps would take longer than to make them
    for _ in range(3):
        assert replica.take_step(x, y).is_finite
        plain.train_on_batch(x, y)
    for mine, theirs in zip(replica.model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)


SETS_RATE = "self.optimizer.learning_rate = 0.5\n" + APPLY_GRADIENTS


def test_a_step_that_sets_the_learning_rate_is_refused_by_several_ranks(tmp_path: Path) -> None:
    (rank,) = make_ranks(tmp_path, USUAL.replace("APPLY", SETS_RATE))
    with pytest.raises(BadInputError, match=r"writes the variable '.*learning_rate' by itself"):
        rank.compute(*make_data(8))


# --------------------------------------------------------------------------------------------------
# What fit() and compile() give a train_step beside the records.

WITH_WEIGHTS = """
x, y, *weights = data
with tf.GradientTape() as tape:
    predictions = self(x, training=True)
    loss = self.compute_loss(x, y, predictions, *weights)
self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
return {"loss": loss}
"""


def make_changed_ranks(folder: Path, count: int, *changes: tuple[str, str]) -> list[ModelReplica]:
    """Ranks without BatchNormalization, whose module is changed by replacing texts."""
    source = SOURCE.replace("BatchNormalization(momentum=0.5)", "LayerNormalization()").replace(
        ", training=training))", "))"
    )
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    body = "".join(f"        {line}\n" for line in WITH_WEIGHTS.strip().splitlines())
    folder.mkdir(exist_ok=True)
    (folder / "own.py").write_text(source.replace("STEP\n", body))
    module = load_model_module(
        ModelSpec(zoo=str(folder), definition="own.custom_model", params={}),
        may_have_train_step=True,
    )
    return [ModelReplica(module, seed=4, rank_seed=rank, sample=np.zeros((1, 3), np.float32)) for rank in range(count)]


def assert_trains_like(ranks: list[ModelReplica], folder: Path, x: Any, y: Any, weights: Any, given: bool) -> None:
    """Three steps of the ranks equal Keras' with these sample weights; ``given``: ``feed`` yields them."""
    scope: dict[str, Any] = {}
    exec((folder / "own.py").read_text(), scope)
    plain = scope["custom_model"]()
    plain.set_weights(ranks[0].model.get_weights())
    plain.run_eagerly = True  # to trace its few steps would take longer than to make them
    cuts = np.split(np.arange(len(x)), [len(x) // 3])
    for _ in range(3):
        steps = [
            rank.compute(x[cut], y[cut], weights[cut] if given else None) for rank, cut in zip(ranks, cuts, strict=True)
        ]
        for buffers in zip(*(rank.buffers for rank in ranks), strict=True):
            total = np.sum(buffers, axis=0)
            for buffer in buffers:
                buffer[:] = total
        for rank in ranks:
            rank.apply(sum(step.weight for step in steps))
        plain.train_on_batch(x, y, sample_weight=weights)
    for mine, theirs in zip(ranks[0].model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)


@pytest.mark.repetition
def test_class_weight_reaches_the_step_as_sample_weights(tmp_path: Path) -> None:
    ranks = make_changed_ranks(tmp_path, 2, ("def feed", "class_weight = {1: 6.0}\n\ndef feed"))
    x, _ = make_data(24)
    y = (x[:, :1] > 0).astype(np.float32)
    assert_trains_like(ranks, tmp_path, x, y, 1 + 5 * y[:, 0], given=False)


@pytest.mark.repetition
def test_the_step_of_a_loss_that_divides_by_the_weights_counts_by_them(tmp_path: Path) -> None:
    loss = 'keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")'
    ranks = make_changed_ranks(tmp_path, 2, ('"mse"', loss))
    x, y = make_data(24)
    weights = np.random.default_rng(0).uniform(0.1, 5, 24).astype(np.float32)
    assert_trains_like(ranks, tmp_path, x, y, weights, given=True)


def test_the_step_of_a_loss_that_ignores_a_class_counts_by_the_labels_that_it_gets(tmp_path: Path) -> None:
    """The step itself decides which labels are ignored: most of the first rank's."""
    loss = "keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=9)"
    ranks = make_changed_ranks(
        tmp_path,
        2,
        ('"mse", metrics=["mae"]', loss),
        ("self.head = keras.layers.Dense(1)", "self.head = keras.layers.Dense(3)"),
        ("train_step(self, data):\n", "train_step(self, data):\n        data = (data[0], data[1] % 10)\n"),
    )
    x, _ = make_data(24)
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 24)
    y[:8] = np.where(random.random(8) < 0.7, 19, y[:8])
    assert_trains_like(ranks, tmp_path, x, y, None, given=False)


@pytest.mark.parametrize(
    "loss",
    ['keras.losses.MeanSquaredError(reduction="sum")', "lambda y, p: tf.reduce_sum(tf.square(y - p))"],
    ids=["Keras", "function"],
)
def test_a_step_with_a_summed_loss_is_refused(tmp_path: Path, loss: str) -> None:
    (rank,) = make_changed_ranks(tmp_path, 1, ('"mse"', loss))
    with pytest.raises(BadInputError, match="sum over records"):
        rank.compute(*make_data(8))


def test_a_step_that_needs_the_loss_of_compile_is_refused_without_compile(tmp_path: Path) -> None:
    """Keras would compute the regularizers alone."""
    (rank,) = make_changed_ranks(
        tmp_path,
        1,
        ('model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])', "pass"),
        ('Dense(4, activation="tanh")', 'Dense(4, kernel_regularizer="l2")'),
        ("def feed", 'loss = "mse"\noptimizer = "sgd"\neval_metrics_fn = dict\n\ndef feed'),
    )
    with pytest.raises(BadInputError, match=r"compute_loss\(\), but the model is not compiled"):
        rank.compute(*make_data(8))
