"""Models of Keras 2 train as tf_keras trains them, and what has no counterpart in Keras 3 is refused by name."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
import tf_keras  # noqa: E402
from support.repetition import repetition  # noqa: E402
from support.text_keys import missing_keys  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.api.job_spec import ModelSpec  # noqa: E402
from edl.jobfile.keras_version import LEGACY_VARIABLE  # noqa: E402
from edl.keras import keras2_models, model_export  # noqa: E402
from edl.keras.evaluated_copy import copy_values  # noqa: E402
from edl.keras.model_contract import ModelModule, load_model_module  # noqa: E402
from edl.keras.network import KerasNetwork  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402

REST = """
import numpy as np, tensorflow as tf, tf_keras
from tf_keras import layers
def loss(labels, predictions):
    return tf.reduce_mean(tf_keras.losses.mean_squared_error(labels, predictions))
def optimizer(): return tf_keras.optimizers.Adam(0.01)
def feed(dataset, mode, metadata): return dataset
def eval_metrics_fn(): return {"mae": tf_keras.metrics.MeanAbsoluteError(), "near": lambda y, p: abs(y - p) < 0.5}
"""
FUNCTIONAL = """
def custom_model():
    given = layers.Input((4,), name="x")
    x = layers.Dense(8, activation="relu", kernel_regularizer=tf_keras.regularizers.l2(0.01))(given)
    x = layers.BatchNormalization()(x)
    x = tf.concat([x, tf.square(x)], axis=1)
    return tf_keras.Model(given, layers.Dense(1)(x))
"""
SEQUENTIAL = """
def custom_model():
    return tf_keras.Sequential([layers.Dense(8, activation="tanh"), layers.LayerNormalization(), layers.Dense(1)])
"""
SUBCLASS = """
class custom_model(tf_keras.Model):
    def __init__(self):
        super().__init__()
        # A bias before a normalization has no gradient but noise, which Adam makes large.
        self.first, self.norm = layers.Dense(8, use_bias=False), layers.BatchNormalization(momentum=0.5)
        self.head = layers.Dense(1)
        self.frozen = layers.Dense(8, trainable=False)
    def call(self, x, training=False):
        return self.head(self.norm(self.first(x) + self.frozen(x), training=training))
"""
COLUMNS = """
def custom_model():
    inputs = {name: layers.Input((1,), name=name) for name in ("a", "b")}
    columns = [tf.feature_column.numeric_column("a"),
        tf.feature_column.indicator_column(tf.feature_column.bucketized_column(
            tf.feature_column.numeric_column("b"), boundaries=[0.0, 0.5]))]
    return tf_keras.Model(inputs, layers.Dense(1)(layers.DenseFeatures(columns)(inputs)))
"""
MASKED = """
def custom_model():
    given = layers.Input((5,), dtype="int64")
    x = layers.GRU(4, unroll=True)(layers.Embedding(7, 3, mask_zero=True)(given))  # a loop takes seconds to trace
    return tf_keras.Model(given, layers.Dense(1)(x))
"""
EDL_LAYER = """
from edl.layers import Embedding
from edl.layers.keras2_embedding import make_keras2_embedding
def custom_model():
    given = layers.Input((5,), dtype="int64")
    rows = make_keras2_embedding(Embedding(3, 7, name="rows", mask_zero=True))(given)
    return tf_keras.Model(given, layers.Dense(1)(tf.reduce_sum(rows, axis=1)))
"""
MODELS = {
    "functional": FUNCTIONAL,
    "sequential": SEQUENTIAL,
    "subclass": SUBCLASS,
    "columns": COLUMNS,
    "masked": MASKED,
}


def kinds(*in_make_test: str) -> list[Any]:
    """All models; tracing takes a second or, of loops, several: in `make test` each is made once or twice."""
    return [each if each in in_make_test else repetition(each) for each in MODELS]


RECORDS, BATCH, SEED = 48, 8, 3


@pytest.fixture(autouse=True)
def keras2(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(LEGACY_VARIABLE, "1")
    yield
    tf_keras.backend.clear_session()


def load(folder: Path, source: str, *, name: str = "zoo") -> ModelModule:
    zoo = folder / name
    zoo.mkdir(exist_ok=True)
    (zoo / "own.py").write_text(REST + source, encoding="utf-8")
    return load_model_module(ModelSpec("own.custom_model", str(zoo), keras=2))


def draw_records(kind: str) -> tuple[Any, Any]:
    draw = np.random.default_rng(1)
    labels = draw.normal(size=(RECORDS, 1)).astype(np.float32)
    if kind == "masked":
        return draw.integers(0, 7, (RECORDS, 5)), labels
    if kind == "columns":
        return {name: draw.normal(size=(RECORDS, 1)).astype(np.float32) for name in "ab"}, labels
    return draw.normal(size=(RECORDS, 4)).astype(np.float32), labels


def cut(features: Any, part: slice) -> Any:
    return tf.nest.map_structure(lambda leaf: leaf[part], features)


def batches(kind: str) -> Iterator[tuple[Any, Any]]:
    features, labels = draw_records(kind)
    for start in range(0, RECORDS, BATCH):
        part = slice(start, start + BATCH)
        yield cut(features, part), labels[part]


def train_plain(module: ModelModule, kind: str, values: Any) -> Any:
    """Train the user's model with tf_keras alone, from the same values."""
    features, _ = draw_records(kind)
    model = module.make_model().legacy
    model(cut(features, slice(0, 2)), training=False)
    for variable, value in zip((*model.trainable_variables, *model.non_trainable_variables), values, strict=True):
        variable.assign(value)
    optimizer = tf_keras.optimizers.Adam(0.01)
    for batch_features, labels in batches(kind):
        with tf.GradientTape() as tape:
            predictions = model(batch_features, training=True)
            loss = tf.reduce_mean(tf_keras.losses.mean_squared_error(labels, predictions)) + sum(model.losses)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
    return model


def twins(model: Any) -> list[Any]:
    return [twin for twin, _ in model._pairs()]


def assert_equal_weights(model: Any, plain: Any) -> None:
    expected = (*plain.trainable_variables, *plain.non_trainable_variables)
    for twin, variable in zip(twins(model), expected, strict=True):
        np.testing.assert_allclose(twin.numpy(), variable.numpy(), rtol=2e-5, atol=2e-6, err_msg=variable.name)


@pytest.mark.parametrize("kind", kinds("masked"))
def test_local_trains_as_keras_2(tmp_path: Path, kind: str) -> None:
    module = load(tmp_path, MODELS[kind])
    features, _ = draw_records(kind)
    local = ModelReplica(module, seed=SEED, rank_seed=None, sample=cut(features, slice(0, 2)))
    values = [twin.numpy() for twin in twins(local.model)]
    for batch_features, labels in batches(kind):
        local.take_step(batch_features, labels)
    assert_equal_weights(local.model, train_plain(module, kind, values))


@pytest.mark.parametrize("kind", kinds("sequential"))
def test_two_ranks_train_as_keras_2_on_their_union(tmp_path: Path, kind: str) -> None:
    """But for BatchNormalization, which normalizes each rank's part by its own statistics."""
    module = load(
        tmp_path, MODELS[kind].replace("BatchNormalization", "LayerNormalization").replace("momentum=0.5", "")
    )
    features, _ = draw_records(kind)
    ranks = [ModelReplica(module, seed=SEED, rank_seed=rank, sample=cut(features, slice(0, 2))) for rank in range(2)]
    values = [twin.numpy() for twin in twins(ranks[0].model)]
    for batch_features, labels in batches(kind):
        total = 0.0
        for rank, part in zip(ranks, (slice(0, 3), slice(3, BATCH)), strict=True):
            total += rank.compute(cut(batch_features, part), labels[part]).weight
        for summed in zip(*(rank.buffers for rank in ranks), strict=True):
            total_buffer = sum(buffer.copy() for buffer in summed)
            for buffer in summed:
                buffer[:] = total_buffer
        for rank in ranks:
            rank.apply(total, None)
    for rank in ranks:
        assert_equal_weights(rank.model, train_plain(module, kind, values))


@pytest.mark.parametrize("kind", kinds("columns"))
def test_gradients_for_parameter_servers_are_those_of_keras_2(tmp_path: Path, kind: str) -> None:
    module = load(tmp_path, MODELS[kind])
    features, labels = next(batches(kind))
    network = KerasNetwork.build(
        module, seed=SEED, embedding_threshold=1 << 20, ps_of_variable=lambda name: 0, ps_count=1, sample=features
    )
    values = [twin.numpy() for twin in twins(network.model)]
    step = network.train(network.initial_values(), {}, features, labels)
    keras2_models.reset_names_and_seed(SEED)
    model = module.make_model().legacy
    model(features, training=False)
    for variable, value in zip((*model.trainable_variables, *model.non_trainable_variables), values, strict=True):
        variable.assign(value)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf_keras.losses.mean_squared_error(labels, model(features, training=True)))
        loss += sum(model.losses)
    assert step.loss == pytest.approx(float(loss), rel=1e-5)
    trained = {spec.name.rpartition("/")[2]: at for spec, at in zip(network.variables, network.offsets, strict=True)}
    for variable, gradient in zip(
        model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True
    ):
        place = trained[variable.name.split(":")[0].replace("/", ".")]
        expected = tf.convert_to_tensor(gradient).numpy().ravel()
        np.testing.assert_allclose(step.flat_gradients[place], expected, rtol=1e-4, atol=1e-6)
    network.evaluate(network.initial_values(), {}, features, labels)
    assert network.metric_values(network.metric_states()).keys() >= {"mae", "near"}


@pytest.mark.parametrize("kind", kinds("functional", "subclass"))
@pytest.mark.first_cases(1)
def test_exports_are_the_users_model(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = load(tmp_path, MODELS[kind])
    features, _ = draw_records(kind)
    local = ModelReplica(module, seed=SEED, rank_seed=None, sample=cut(features, slice(0, 2)))
    for batch_features, labels in batches(kind):
        local.take_step(batch_features, labels)
    exported = model_export.export_model(
        local.exportable(), local.variables.read_values(), {}, tmp_path / "m.keras", tmp_path / "saved"
    )
    assert capsys.readouterr().out == ""
    part = cut(features, slice(0, 6))
    expected = local.model(part, training=False).numpy()
    saved = tf.saved_model.load(str(tmp_path / "saved"))
    served = saved.serve(tf.nest.map_structure(tf.constant, part))
    np.testing.assert_allclose(served.numpy(), expected, rtol=1e-5, atol=1e-6)
    if exported["keras"] is None:
        assert kind == "subclass", "it has no get_config()"
        return
    loaded = tf_keras.models.load_model(exported["keras"])
    np.testing.assert_allclose(loaded(part, training=False).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert not missing_keys(exported["loading"], "import tf_keras", "tf_keras.models.load_model")


def test_a_copy_is_evaluated_with_its_own_values(tmp_path: Path) -> None:
    module = load(tmp_path, FUNCTIONAL)
    batch_features, labels = next(batches("functional"))
    local = ModelReplica(module, seed=SEED, rank_seed=None, sample=batch_features)
    values, before = copy_values(local.model), local.model(batch_features, training=False).numpy()
    copy = local.make_copy_evaluator()
    copy.check(batch_features)
    local.take_step(batch_features, labels)
    after = local.model(batch_features, training=False).numpy()
    assert np.abs(after - before).max() > 1e-4
    np.testing.assert_allclose(copy._predict(values, batch_features).numpy(), before, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(local.model(batch_features, training=False).numpy(), after, rtol=1e-6)


OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adamax", "Nadam", "Adagrad", "Adadelta", "RMSprop", "Ftrl", "Adafactor", "Lion")


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.first_cases(4)
def test_optimizers_compute_the_same(name: str) -> None:
    settings = {"SGD": {"momentum": 0.9, "nesterov": True}, "RMSprop": {"centered": True, "momentum": 0.5}}
    schedule = tf_keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)
    legacy = getattr(tf_keras.optimizers, name)(learning_rate=schedule, clipnorm=1.0, **settings.get(name, {}))
    converted = keras2_models.to_keras3_optimizer(legacy)
    assert type(converted) is getattr(keras.optimizers, name)
    start = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    old, new = tf.Variable(start), keras.Variable(start)
    for step in range(5):
        gradient = tf.constant(np.sin(start * 3 + step), tf.float32)
        legacy.apply_gradients([(gradient, old)])
        converted.apply([gradient], [new])
    np.testing.assert_allclose(new.numpy(), old.numpy(), rtol=1e-4, atol=1e-6)


def test_metrics_compute_the_same() -> None:
    labels = np.array([[0.0], [1.0], [1.0], [0.0]], np.float32)
    scores = np.array([[0.2], [0.7], [0.4], [0.6]], np.float32)
    names = ("AUC", "BinaryAccuracy", "Precision", "Recall", "MeanSquaredError", "BinaryCrossentropy", "Hinge")
    legacy = {name: getattr(tf_keras.metrics, name)() for name in names}
    for name, metric in keras2_models.to_keras3_metrics(legacy).items():
        assert type(metric) is getattr(keras.metrics, name)
        metric.update_state(labels, scores)
        legacy[name].update_state(labels, scores)
        assert float(metric.result()) == pytest.approx(float(legacy[name].result()), rel=1e-5)


def test_callbacks_become_those_of_keras_3() -> None:
    class Own(tf_keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            calls.append((epoch, self.model))

    calls: list[Any] = []
    stop, rate, own = keras2_models.to_keras3_callbacks(
        [
            tf_keras.callbacks.EarlyStopping("accuracy", mode="max", patience=3, min_delta=0.1),
            tf_keras.callbacks.LearningRateScheduler(lambda epoch: 0.5),
            Own(),
        ]
    )
    assert isinstance(stop, keras.callbacks.EarlyStopping)
    assert (stop.monitor, stop.patience, abs(stop.min_delta), stop.mode) == ("accuracy", 3, 0.1, "max")
    assert rate.schedule(1) == 0.5
    own.set_model("the model")
    own.on_epoch_end(2, {})
    own.on_epoch_end(3, logs={})
    assert calls == [(2, "the model"), (3, "the model")]
    assert [name for name in vars(type(own)) if name.startswith("on_")] == ["on_epoch_end"]


REFUSED = {
    "a train_step": (
        SUBCLASS + "    def train_step(self, data): return super().train_step(data)\n",
        ("train_step", "custom_model"),
    ),
    "compiled": (
        "def custom_model():\n    model = tf_keras.Sequential([layers.Dense(1)])\n    model.compile('sgd', 'mse')\n"
        "    return model\n",
        ("compiled", "Keras 2"),
    ),
    "a model of Keras 3": (
        "import keras\ndef custom_model(): return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])\n",
        ("Keras 3", "Keras 2"),
    ),
    "a layer of Keras 3": (
        "import keras\ndef custom_model():\n    given = layers.Input((4,))\n"
        "    return tf_keras.Model(given, layers.Dense(1)(keras.layers.Dense(3, name='own')(given)))\n",
        ("'own'", "Dense", "Keras 3", "Keras 2"),
    ),
    "stateful": (
        "def custom_model():\n    given = layers.Input(batch_shape=(8, 3, 4))\n"
        "    return tf_keras.Model(given, layers.LSTM(2, stateful=True)(given))\n",
        ("stateful", "LSTM"),
    ),
    "synchronized": (
        "def custom_model():\n    return tf_keras.Sequential([layers.BatchNormalization(synchronized=True)])\n",
        ("synchronized",),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_ignored_is_refused(tmp_path: Path, name: str) -> None:
    source, keys = REFUSED[name]
    with pytest.raises(BadInputError) as refused:
        load(tmp_path, source).make_model()
    assert not missing_keys(refused.value.message, *keys)
    assert refused.value.hint


MIXED_SUBCLASS = """
import keras
class custom_model(tf_keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = keras.layers.KIND, layers.Dense(1)
    def call(self, x, training=False):
        return self.second(self.first(x))
"""


def test_a_layer_of_keras_3_in_a_subclass_is_refused_if_it_has_variables(tmp_path: Path) -> None:
    sample = np.ones((2, 4), np.float32)
    with pytest.raises(BadInputError, match="Keras 3") as refused:
        ModelReplica(
            load(tmp_path, MIXED_SUBCLASS.replace("KIND", "Dense(3)")), seed=SEED, rank_seed=None, sample=sample
        )
    assert not missing_keys(refused.value.hint or "", "tf.keras.layers.Dense")
    module = load(tmp_path, MIXED_SUBCLASS.replace("KIND", "Rescaling(2.0)"), name="other")
    assert len(ModelReplica(module, seed=SEED, rank_seed=None, sample=sample).model.trainable_variables) == 2


def test_a_model_of_keras_2_needs_the_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(tmp_path, FUNCTIONAL)
    monkeypatch.delenv(LEGACY_VARIABLE)
    with pytest.raises(BadInputError, match="Keras 2") as refused:
        load_model_module(ModelSpec("own.custom_model", str(tmp_path / "zoo"))).make_model()
    assert "model.keras: 2" in (refused.value.hint or "")
    with pytest.raises(BadInputError, match=LEGACY_VARIABLE):
        load_model_module(ModelSpec("own.custom_model", str(tmp_path / "zoo"), keras=2))


@pytest.mark.parametrize(
    ("convert", "make"),
    [
        (keras2_models.to_keras3_optimizer, type("Mine", (tf_keras.optimizers.SGD,), {})),
        (keras2_models.to_keras3_metrics, type("Mine", (tf_keras.metrics.Mean,), {})),
        (keras2_models.to_keras3_loss, type("Mine", (tf_keras.losses.MeanSquaredError,), {})),
        (
            lambda value: keras2_models.to_keras3_callbacks([value]),
            lambda: tf_keras.callbacks.BackupAndRestore("/tmp/x"),
        ),
    ],
)
def test_classes_without_a_counterpart_are_refused_by_name(convert: Any, make: Any) -> None:
    value = make()
    with pytest.raises(BadInputError, match=type(value).__name__) as refused:
        convert(value)
    assert "import keras" in (refused.value.hint or "")


def test_names_of_the_private_copy_of_keras_are_those_of_tf_keras(tmp_path: Path) -> None:
    source = FUNCTIONAL + "from tensorflow.python.keras import layers as private\n"
    source += "from tensorflow.python.keras.metrics import accuracy\nfrom tensorflow.python.keras import regularizers\n"
    source += "assert private.Dense is layers.Dense and regularizers.l2 is tf_keras.regularizers.l2\n"
    load(tmp_path, source)
    from tensorflow.python.keras import layers

    assert layers.Dense is not tf_keras.layers.Dense, "TensorFlow itself keeps its own"


def test_a_large_embedding_is_an_ordinary_variable_and_a_warning_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    module = load(tmp_path, MASKED.replace("layers.GRU(4, unroll=True)", "layers.GlobalAveragePooling1D()"))
    for threshold in (7 * 3 * 4, 7 * 3 * 4 + 1):
        KerasNetwork.build(
            module, seed=SEED, embedding_threshold=threshold, ps_of_variable=lambda name: 0, ps_count=1, sample=None
        )
    (warning,) = [record.getMessage() for record in caplog.records if "embedding" in record.getMessage()]
    assert not missing_keys(warning, "'embedding'", "ordinary variable")


def plain_step(table: Any, kernel: Any, bias: Any, ids: Any, labels: Any) -> Any:
    """The loss of EDL_LAYER as plain TensorFlow, and its gradients with respect to table, kernel and bias."""
    variables = [tf.Variable(each) for each in (table, kernel, bias)]
    with tf.GradientTape() as tape:
        rows = tf.gather(variables[0], ids)
        predictions = tf.reduce_sum(rows, axis=1) @ variables[1] + variables[2]
        loss = tf.reduce_mean(tf.square(labels - predictions))
    return float(loss), [tf.convert_to_tensor(each).numpy() for each in tape.gradient(loss, variables)]


def test_layers_of_edl_train_in_a_model_of_keras_2(tmp_path: Path) -> None:
    module = load(tmp_path, EDL_LAYER + "def optimizer(): return tf_keras.optimizers.SGD(0.1)\n")
    ids, labels = next(batches("masked"))
    local = ModelReplica(module, seed=SEED, rank_seed=None, sample=ids[:2])
    named = {
        variable.path.replace("/", ".").rpartition(".")[2]: variable for variable in local.model.trainable_variables
    }
    table, kernel, bias = named["embeddings"], named["kernel"], named["bias"]
    before = [variable.numpy() for variable in (table, kernel, bias)]
    _, gradients = plain_step(*before, ids, labels)
    local.take_step(ids, labels)
    for variable, value, gradient in zip((table, kernel, bias), before, gradients, strict=True):
        np.testing.assert_allclose(variable.numpy(), value - 0.1 * gradient, rtol=1e-5, atol=1e-6)
    exported = model_export.export_model(
        local.exportable(), local.variables.read_values(), {}, tmp_path / "m.keras", tmp_path / "saved"
    )
    assert exported["keras"] is None, "only a SavedModel"
    saved = tf.saved_model.load(str(tmp_path / "saved"))
    np.testing.assert_allclose(saved.serve(ids).numpy(), local.model(ids, training=False).numpy(), rtol=1e-5, atol=1e-6)


def test_a_subclass_with_a_layer_of_edl_is_exported_as_a_saved_model_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = """
from edl.layers import Embedding
from edl.layers.keras2_embedding import make_keras2_embedding
class custom_model(tf_keras.Model):
    def __init__(self):
        super().__init__()
        self.rows, self.head = make_keras2_embedding(Embedding(3, 7, name="rows")), layers.Dense(1)
    def call(self, ids):
        return self.head(tf.reduce_sum(self.rows(ids), axis=1))
"""
    local = ModelReplica(load(tmp_path, source), seed=SEED, rank_seed=None, sample=next(batches("masked"))[0])
    exported = model_export.export_model(
        local.exportable(), local.variables.read_values(), {}, tmp_path / "m.keras", tmp_path / "saved"
    )
    assert (exported["keras"], exported["loading"]) == (None, "")
    assert not missing_keys(caplog.text, "no .keras file", "edl.layers.Embedding can only be a SavedModel")


def test_a_long_reason_why_a_file_cannot_be_loaded_is_shortened(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = load(tmp_path, FUNCTIONAL).make_model()

    def fail(*arguments: Any, **options: Any) -> Any:
        raise ValueError("begin " + "of many frames " * 100 + "end")

    monkeypatch.setattr(tf_keras.saving, "deserialize_keras_object", fail)
    reason = keras2_models.find_unloadable_keras2(model)
    assert len(reason) < 600
    assert not missing_keys(reason, "ValueError: begin", "frames end", "The SavedModel loads without it")


@pytest.mark.parametrize("kind", ["functional", "subclass"])
def test_a_check_of_the_job_warns_of_the_keras_file_as_the_export_does(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    features, _ = draw_records(kind)
    model = ModelReplica(
        load(tmp_path, MODELS[kind]), seed=SEED, rank_seed=None, sample=cut(features, slice(0, 2))
    ).model
    model_export.warn_about_keras_file(model)
    assert caplog.messages == []
    assert keras2_models.name_class(model) == type(model.legacy).__name__


def test_the_warning_of_the_keras_file_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = """
class Scale(layers.Layer):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
    def call(self, x):
        return self.scale(x)
def custom_model():
    return tf_keras.Sequential([layers.Input((4,)), Scale(lambda x: 2 * x), layers.Dense(1)])
"""
    model = load(tmp_path, source).make_model()
    model_export.warn_about_keras_file(model)
    (message,) = caplog.messages
    assert missing_keys(message, "Keras 2 cannot describe the model", "Scale") == []
    assert "\n" not in message


UNLOADABLE = """
def custom_model():
    inputs = {"a": layers.Input((1,), name="a")}
    column = tf.feature_column.numeric_column("a", normalizer_fn=lambda x: x / 2)
    return tf_keras.Model(inputs, layers.Dense(1)(layers.DenseFeatures([column])(inputs)))
"""
TEXT_SUBCLASS = """
class custom_model(tf_keras.Model):
    def __init__(self):
        super().__init__()
        text = tf.feature_column.categorical_column_with_vocabulary_list("a", ["x", "y"])
        self.columns = layers.DenseFeatures([tf.feature_column.indicator_column(text)])
        self.head = layers.Dense(1)
    def call(self, inputs, training=False):
        return self.head(self.columns(inputs))
    def get_config(self):
        return {}
    @classmethod
    def from_config(cls, config):
        return cls()
"""


@pytest.mark.parametrize(
    ("source", "sample", "said"),
    [
        (UNLOADABLE, {"a": np.ones((2, 1), np.float32)}, "AttributeError"),
        (TEXT_SUBCLASS, {"a": np.array([["x"], ["y"]])}, "string"),
    ],
    ids=["a function of a column", "texts"],
)
@pytest.mark.first_cases(1)
def test_an_export_says_that_load_model_fails_with_the_keras_file(
    tmp_path: Path, source: str, sample: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    module = load(tmp_path, source)
    features = tf.nest.map_structure(tf.constant, sample)
    local = ModelReplica(module, seed=SEED, rank_seed=None, sample=features)
    model_export.warn_about_keras_file(local.model)
    (warning,) = [message for message in caplog.messages if "the .keras file" in message]
    exported = model_export.export_model(
        local.exportable(), local.variables.read_values(), {}, tmp_path / "m.keras", tmp_path / "saved"
    )
    assert exported["loading"].removeprefix("# ") in warning
    assert missing_keys(warning, "load_model fails", said, "load_weights()", "SavedModel") == []
    assert "\n" not in warning
    with pytest.raises(Exception, match=said if said == "string" else "NoneType"):
        tf_keras.models.load_model(exported["keras"], custom_objects={"custom_model": type(local.model.legacy)})
    again = module.make_model().legacy
    again(features)
    again.load_weights(exported["keras"])
    np.testing.assert_allclose(again(features).numpy(), local.model(features, training=False).numpy(), rtol=1e-5)


def test_the_code_that_loads_a_lambda_layer_says_that_it_may_run(tmp_path: Path) -> None:
    source = """
def custom_model():
    return tf_keras.Sequential([layers.Input((4,)), layers.Lambda(lambda x: 2 * x), layers.Dense(1)])
"""
    local = ModelReplica(load(tmp_path, source), seed=SEED, rank_seed=None, sample=np.ones((2, 4), np.float32))
    exported = model_export.export_model(
        local.exportable(), local.variables.read_values(), {}, tmp_path / "m.keras", tmp_path / "saved"
    )
    assert "safe_mode=False" in exported["loading"]
    exec(exported["loading"], {})


@pytest.mark.parametrize("input_dim", [7, None], ids=["a table", "any id"])
@pytest.mark.first_cases(1)
def test_rows_of_a_model_of_keras_2_are_on_parameter_servers(tmp_path: Path, input_dim: int | None) -> None:
    module = load(tmp_path, EDL_LAYER.replace("Embedding(3, 7,", f"Embedding(3, {input_dim},"))
    ids, labels = next(batches("masked"))
    ids = ids if input_dim else ids * 10**12
    network = KerasNetwork.build(
        module, seed=SEED, embedding_threshold=1, ps_of_variable=lambda name: 0, ps_count=1, sample=ids
    )
    (name,) = (each.name for each in network.tables)
    assert name == "rows/embeddings"
    unique = network.unique_ids(ids)[name]
    rows = np.random.default_rng(2).normal(size=(len(unique), 3)).astype(np.float32)
    flat = network.initial_values()
    step = network.train(flat, {name: (unique, rows)}, ids, labels)
    at = {spec.name.rpartition(".")[2]: place for spec, place in zip(network.variables, network.offsets, strict=True)}
    kernel, bias = flat[at["kernel"]].reshape(3, 1), flat[at["bias"]]
    place = {int(each): at for at, each in enumerate(unique)}
    positions = np.vectorize(place.__getitem__)(ids)
    loss, (table_gradient, kernel_gradient, bias_gradient) = plain_step(rows, kernel, bias, positions, labels)
    assert step.loss == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(step.row_gradients[name], table_gradient, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(step.flat_gradients[at["kernel"]], kernel_gradient.ravel(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(step.flat_gradients[at["bias"]], bias_gradient.ravel(), rtol=1e-4, atol=1e-6)
    network.evaluate(network.initial_values(), {name: (unique, rows)}, ids, labels)


LOSSES = (
    "BinaryCrossentropy",
    "BinaryFocalCrossentropy",
    "CategoricalCrossentropy",
    "CosineSimilarity",
    "Hinge",
    "Huber",
    "KLDivergence",
    "LogCosh",
    "MeanAbsoluteError",
    "MeanAbsolutePercentageError",
    "MeanSquaredError",
    "MeanSquaredLogarithmicError",
    "Poisson",
    "SparseCategoricalCrossentropy",
    "SquaredHinge",
)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_compute_the_same(name: str) -> None:
    labels = np.array([[0.0, 1.0], [1.0, 0.0]], np.float32)
    scores = np.array([[0.2, 0.8], [0.4, 0.6]], np.float32)
    if name.startswith("Sparse"):
        labels = np.array([1, 0], np.float32)
    options = {"label_smoothing": 0.1} if name in ("BinaryCrossentropy", "CategoricalCrossentropy") else {}
    legacy = getattr(tf_keras.losses, name)(**options)
    converted = keras2_models.to_keras3_loss(legacy)
    assert type(converted) is getattr(keras.losses, name)
    assert float(converted(labels, scores)) == pytest.approx(float(legacy(labels, scores)), rel=1e-5)
    by_class = keras2_models.to_keras3_loss({"out": getattr(tf_keras.losses, name)})
    assert type(by_class["out"]) is type(converted)


def test_a_metric_of_a_function_is_that_of_the_function() -> None:
    own = tf_keras.metrics.MeanMetricWrapper(lambda labels, scores: tf.abs(labels - scores), name="own")
    (converted,) = keras2_models.to_keras3_metrics([own])
    converted.update_state(np.zeros(4, np.float32), np.full(4, 0.5, np.float32))
    assert (converted.name, float(converted.result())) == ("own", 0.5)


CONSTRAINED = """
def custom_model():
    return tf_keras.Sequential([layers.Input((4,)), layers.Dense(1, kernel_constraint=tf_keras.constraints.NonNeg())])
def optimizer(): return tf_keras.optimizers.SGD(0.5)
"""


def test_constraints_are_kept(tmp_path: Path) -> None:
    module = load(tmp_path, CONSTRAINED)
    features, labels = next(batches("functional"))
    local = ModelReplica(module, seed=SEED, rank_seed=None, sample=features)
    for _ in range(3):
        local.take_step(features, labels)
    (kernel,) = (v.numpy() for v in local.model.trainable_variables if "kernel" in v.name)
    assert kernel.min() >= 0
    assert kernel.max() > 0 or (kernel == 0).all()
    with pytest.raises(BadInputError, match="NonNeg"):
        KerasNetwork.build(
            module, seed=SEED, embedding_threshold=1, ps_of_variable=lambda name: 0, ps_count=1, sample=features
        )


@pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning")
def test_a_variable_that_the_loss_does_not_use_stays(tmp_path: Path) -> None:
    source = """
class custom_model(tf_keras.Model):
    def __init__(self):
        super().__init__()
        self.used, self.unused = layers.Dense(1), layers.Dense(1)
    def call(self, x):
        self.unused(x)
        return self.used(x)
def optimizer(): return tf_keras.optimizers.AdamW(0.01, weight_decay=0.1)
"""
    module = load(tmp_path, source)
    features, labels = next(batches("functional"))
    local = ModelReplica(module, seed=SEED, rank_seed=None, sample=features)
    kernels = [v for v in local.model.trainable_variables if "kernel" in v.name]
    before = [kernel.numpy() for kernel in kernels]
    local.take_step(features, labels)
    changed = [bool(np.abs(kernel.numpy() - old).max() > 0) for kernel, old in zip(kernels, before, strict=True)]
    assert changed == [True, False], "neither trained nor decayed, as in Keras 2"


@pytest.mark.parametrize(
    ("source", "keys"),
    [
        (
            "def custom_model():\n    given = layers.Input((4,))\n    return tf_keras.Model(given, "
            "layers.SpectralNormalization(layers.Dense(3))(given))\n",
            ("SpectralNormalization", "kernel"),
        ),
        (
            FUNCTIONAL + "class Own(tf_keras.callbacks.EarlyStopping): pass\ndef callbacks(): return [Own('loss')]\n",
            ("callback", "Own"),
        ),
    ],
    ids=["written", "callback"],
)
def test_what_would_be_lost_is_refused(tmp_path: Path, source: str, keys: tuple[str, ...]) -> None:
    module = load(tmp_path, source)
    with pytest.raises(BadInputError) as refused:
        _ = module.make_model() if module.callbacks is None else module.callbacks()
    assert not missing_keys(refused.value.message, *keys)


def test_legacy_optimizers_keep_their_schedule_and_what_does_not_decay() -> None:
    schedule = tf_keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.5)
    legacy = keras2_models.to_keras3_optimizer(tf_keras.optimizers.legacy.Adam(schedule))
    with pytest.raises(BadInputError, match="function"):
        keras2_models.to_keras3_optimizer(tf_keras.optimizers.legacy.SGD(lambda: 0.1))
    assert isinstance(legacy._learning_rate, keras.optimizers.schedules.ExponentialDecay)
    decaying = tf_keras.optimizers.AdamW(0.1, weight_decay=0.1)
    decaying.exclude_from_weight_decay(var_names=["bias"])
    converted = keras2_models.to_keras3_optimizer(decaying)
    for name, decays in (("dense.bias", False), ("dense.kernel", True)):
        assert converted._use_weight_decay(keras.Variable(np.zeros(1, np.float32), name=name)) is decays
    excluded = tf_keras.optimizers.AdamW(0.1)
    excluded.exclude_from_weight_decay(var_list=[tf.Variable(0.0)])
    with pytest.raises(BadInputError, match="var_list"):
        keras2_models.to_keras3_optimizer(excluded)


def test_a_large_embedding_is_refused_under_all_reduce_as_one_of_keras_3(tmp_path: Path) -> None:
    module = load(tmp_path, MASKED.replace("layers.GRU(4, unroll=True)", "layers.GlobalAveragePooling1D()"))
    ids, labels = next(batches("masked"))
    replica = ModelReplica(module, seed=SEED, rank_seed=0, sample=ids, max_dense_gradient=8)
    with pytest.raises(BadInputError, match="max_dense_gradient"):
        replica.compute(ids, labels)


def test_models_that_share_variables_have_no_copy(tmp_path: Path) -> None:
    source = """
MODEL = tf_keras.Sequential([layers.Input((4,)), layers.Dense(1)])
def custom_model(): return MODEL
"""
    local = ModelReplica(load(tmp_path, source), seed=SEED, rank_seed=None, sample=np.zeros((2, 4), np.float32))
    with pytest.raises(BadInputError, match="shares variables"):
        local.make_copy_evaluator().check(np.zeros((2, 4), np.float32))


def test_a_missing_package_is_had_by_an_extra_or_by_arguments_that_the_image_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(BadInputError, match="tf_keras is not installed") as error:
        keras2_models.check_installation()
    dockerfile = (Path(__file__).parents[3] / "images" / "Dockerfile").read_text(encoding="utf-8")
    arguments = re.findall(r"--build-arg (\w+)=", error.value.hint or "")
    assert arguments
    assert not missing_keys(dockerfile, *(f"ARG {name}" for name in arguments))


def test_ids_are_not_found_while_a_step_is_made(tmp_path: Path) -> None:
    """Finding them calls the model, which assigns its variables."""
    for source, refused in ((EDL_LAYER, True), (FUNCTIONAL, False)):
        (tmp_path / str(refused)).mkdir()
        model = load(tmp_path / str(refused), source).make_model()
        if refused:
            with pytest.raises(BadInputError, match=r"edl\.layers") as error:
                keras2_models.refuse_overlap(model)
            assert error.value.where == "strategy.overlap"
        else:
            keras2_models.refuse_overlap(model)


def test_the_code_that_loads_a_model_imports_the_modules_that_register_its_layers(tmp_path: Path) -> None:
    source = """
@tf_keras.utils.register_keras_serializable("own")
class Discretization(layers.Layer):
    def call(self, x): return 2 * x
def custom_model():
    given = layers.Input((4,))
    return tf_keras.Model(given, layers.Dense(1)(Discretization()(given)))
"""
    local = ModelReplica(load(tmp_path, source), seed=SEED, rank_seed=None, sample=np.ones((2, 4), np.float32))
    exported = model_export.export_model(
        local.exportable(), local.variables.read_values(), {}, tmp_path / "m.keras", tmp_path / "saved"
    )
    imports = [part.strip() for part in exported["loading"].split(";") if part.strip().startswith("import ")]
    assert imports == ["import os, sys", "import tf_keras", "import zoo.own"]
    assert f'os.environ["{LEGACY_VARIABLE}"] = "1"; sys.path' in exported["loading"]
