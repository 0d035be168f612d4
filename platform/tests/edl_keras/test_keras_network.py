"""The user's model over flat arrays gives what plain Keras gives."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras'
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from edl.api.errors import BadInputError, StorageError  # noqa: E402
from edl.api.job_spec import ModelSpec  # noqa: E402
from edl.keras import model_export  # noqa: E402
from edl.keras.model_contract import ModelModule, load_model_module  # noqa: E402
from edl.keras.network import KerasNetwork  # noqa: E402
from edl.keras.user_code import UserCodeError  # noqa: E402
from edl.numerics.initializers import initial_rows  # noqa: E402
from edl.numerics.parameter_store import RowBatch  # noqa: E402

ZOO = Path(__file__).parents[3] / "model_zoo"
RNG = np.random.default_rng(0)
IMAGES = RNG.random((12, 784), np.float32)
LABELS = RNG.integers(0, 10, 12)
MNIST = ("mnist.mlp.custom_model", "mnist.mnist_functional_api.custom_model", "mnist.mnist_subclass.CustomModel")


def zoo_module(definition: str, **params: Any) -> ModelModule:
    return load_model_module(ModelSpec(zoo=str(ZOO), definition=definition, params=params))


def module_of(model: Any, optimizer: Any = None, metrics: Any = None, loss: Any = None) -> ModelModule:
    """A module of functions, without a file."""
    return ModelModule(
        zoo=Path(__file__).parent,
        make_model=model,
        loss=loss or (lambda labels, predictions: tf.reduce_mean(tf.square(labels - predictions))),
        optimizer=optimizer or (lambda: keras.optimizers.SGD(0.1)),
        eval_metrics_fn=metrics or dict,
        feed=lambda dataset, mode, metadata: dataset,
    )


def build(module: ModelModule, sample: Any = None, threshold: int = 1 << 40, parts: int = 1) -> KerasNetwork:
    return KerasNetwork.build(
        module,
        seed=7,
        embedding_threshold=threshold,
        ps_of_variable=lambda name: sum(name.encode()) % parts,
        ps_count=parts,
        sample=sample,
    )


def by_name(network: KerasNetwork, slab: Any) -> dict[str, Any]:
    return {spec.name: slab[place] for spec, place in zip(network.variables, network.offsets, strict=True)}


# ---------------------------------------------------------------- the slab


@pytest.mark.parametrize("definition", MNIST)
def test_slab_order_is_by_part_then_trained_before_statistics_and_names_are_stable(definition: str) -> None:
    module = zoo_module(definition)
    one_part, three_parts = build(module, IMAGES), build(module, IMAGES, parts=3)
    assert {spec.name for spec in one_part.variables} == {spec.name for spec in three_parts.variables}
    assert one_part.fingerprint == three_parts.fingerprint
    np.testing.assert_array_equal(np.sort(one_part.initial_values()), np.sort(three_parts.initial_values()))
    for part, place in enumerate(three_parts.ps_slices):
        owned = [
            s
            for s, at in zip(three_parts.variables, three_parts.offsets, strict=True)
            if place.start <= at.start < place.stop
        ]
        assert all(sum(spec.name.encode()) % 3 == part for spec in owned)
        assert [spec.statistic for spec in owned] == sorted(spec.statistic for spec in owned)


# ---------------------------------------------------------------- one step


@pytest.mark.parametrize("definition", MNIST)
@pytest.mark.first_cases(1)
def test_a_step_has_the_gradients_and_statistics_of_plain_keras(definition: str) -> None:
    module = zoo_module(definition, **({} if "mlp" in definition else {"dropout": 0.0}))
    network = build(module, IMAGES, parts=2)
    step = network.train(network.initial_values(), {}, IMAGES, LABELS)

    plain = model_export.build_export_model(network, network.initial_values(), {})
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(module.loss(LABELS, plain(IMAGES, training=True)))
        loss = tf.add_n([loss, *plain.losses])
    expected = {
        v.path: g.numpy().ravel()
        for v, g in zip(plain.trainable_weights, tape.gradient(loss, plain.trainable_weights), strict=True)
    }
    before = by_name(network, network.initial_values())
    for weight in plain.non_trainable_weights:
        expected[weight.path] = np.asarray(weight).ravel() - before[weight.path]

    assert step.loss == pytest.approx(float(loss), rel=1e-5)
    gradients = by_name(network, step.flat_gradients)
    assert gradients.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(gradients[name], values, rtol=1e-4, atol=1e-6, err_msg=name)


def test_the_last_smaller_minibatch_is_not_traced_again() -> None:
    network = build(zoo_module(MNIST[0]), IMAGES)
    for count in (12, 12, 5, 1, 3):
        network.train(network.initial_values(), {}, tf.constant(IMAGES[:count]), tf.constant(LABELS[:count]))
    assert network.trace_count <= 2


def test_dropout_differs_from_step_to_step_and_is_off_in_evaluation() -> None:
    network = build(zoo_module(MNIST[1], dropout=0.5), IMAGES)
    losses = {network.train(network.initial_values(), {}, IMAGES, LABELS).loss for _ in range(3)}
    assert len(losses) == 3
    first, second = (network.predict(network.initial_values(), {}, IMAGES) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_workers_draw_other_random_numbers_and_begin_with_equal_values() -> None:
    module = zoo_module("mnist.mnist_functional_api.custom_model")

    def steps(worker: int) -> tuple[Any, list[float]]:
        network = KerasNetwork.build(
            module,
            seed=7,
            embedding_threshold=1 << 40,
            ps_of_variable=lambda name: 0,
            ps_count=1,
            sample=IMAGES,
            worker_index=worker,
        )
        return network.initial_values(), [
            network.train(network.initial_values(), {}, IMAGES, LABELS).loss for _ in range(3)
        ]

    (values, losses), (others, other_losses), (again, losses_again) = steps(0), steps(1), steps(0)
    np.testing.assert_array_equal(values, others)
    assert not set(losses) & set(other_losses)
    assert losses == losses_again
    np.testing.assert_array_equal(values, again)


@pytest.mark.parametrize(("threshold", "made"), [(8000, 0), (1 << 40, 1)])
def test_a_served_table_gets_no_values(monkeypatch: pytest.MonkeyPatch, threshold: int, made: int) -> None:
    filled: list[Any] = []

    class CountedInitializer(keras.initializers.RandomUniform):  # type: ignore[misc]
        def __call__(self, shape: Any, dtype: Any = None, **options: Any) -> Any:
            filled.append(shape)
            return super().__call__(shape, dtype, **options)

    monkeypatch.setattr(keras.initializers, "RandomUniform", CountedInitializer)

    def model() -> Any:
        initializer = keras.initializers.RandomUniform()
        ids = keras.Input((2,), dtype="int32")
        x = keras.layers.Embedding(1000, 2, embeddings_initializer=initializer, name="large")(ids)
        return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(x)))

    network = build(module_of(model), np.zeros((1, 2), np.int32), threshold)
    assert [table.name for table in network.tables] == ["large/embeddings"] * (1 - made)
    assert filled == [(1000, 2)] * made


def test_frozen_layers_have_an_owner_and_do_not_move() -> None:
    def model() -> Any:
        frozen = keras.layers.Dense(3, trainable=False)
        return keras.Sequential([keras.Input([4]), frozen, keras.layers.Dense(1)])

    network = build(module_of(model))
    step = network.train(network.initial_values(), {}, IMAGES[:, :4], IMAGES[:, :1])
    frozen = [spec.name for spec in network.variables if spec.statistic]
    assert len(frozen) == 2
    assert all(not by_name(network, step.flat_gradients)[name].any() for name in frozen)


def test_nested_models_several_inputs_and_outputs() -> None:
    def model() -> Any:
        inner = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
        a, b = keras.Input([4], name="a"), keras.Input([4], name="b")
        return keras.Model({"a": a, "b": b}, {"sum": inner(a) + inner(b), "one": keras.layers.Dense(1)(inner(a))})

    def loss(labels: Any, predictions: Any) -> Any:
        return tf.reduce_mean(tf.square(predictions["sum"])) + tf.reduce_mean(tf.square(predictions["one"] - labels))

    metrics = {"one": {"mae": keras.metrics.MeanAbsoluteError}}
    network = build(
        module_of(model, loss=loss, metrics=lambda: {k: {n: m() for n, m in v.items()} for k, v in metrics.items()})
    )
    features = {"a": IMAGES[:, :4], "b": IMAGES[:, 4:8]}
    assert np.isfinite(network.train(network.initial_values(), {}, features, IMAGES[:, :1]).flat_gradients).all()
    predictions = network.predict(network.initial_values(), {}, features)
    assert predictions["sum"].shape == (12, 3)
    network.evaluate(network.initial_values(), {}, features, IMAGES[:, :1])
    values = network.metric_values(network.metric_states())
    assert values["one_mae"] == pytest.approx(float(np.abs(predictions["one"] - IMAGES[:, :1]).mean()), rel=1e-5)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: keras.Sequential([keras.Input([4]), keras.layers.Dense(1, dtype="float64")]), "float64"),
        (lambda: keras.Sequential([keras.Input([4]), keras.layers.Dense(1, kernel_constraint="non_neg")]), "NonNeg"),
        (lambda: keras.Sequential([keras.Input([4]), keras.layers.Flatten()]), "no trained variable"),
        (lambda: keras.Sequential([keras.layers.Dense(1)]), "first call"),
    ],
)
def test_models_that_cannot_be_trained_are_refused(model: Any, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        build(module_of(model))


def test_clipping_is_that_of_keras() -> None:
    for argument in ({"clipnorm": 0.01}, {"clipvalue": 0.001}, {"global_clipnorm": 0.01}):
        plain, clipped = (
            build(module_of(_dense, lambda options=options: keras.optimizers.SGD(0.1, **options)))
            for options in ({}, argument)
        )
        raw = plain.train(plain.initial_values(), {}, IMAGES[:, :4], IMAGES[:, :3])
        clipped_step = clipped.train(clipped.initial_values(), {}, IMAGES[:, :4], IMAGES[:, :3])
        gradients = [tf.constant(g) for g in by_name(plain, raw.flat_gradients).values()]
        expected = clipped.keras_optimizer._clip_gradients(gradients)
        for gradient, want in zip(by_name(clipped, clipped_step.flat_gradients).values(), expected, strict=True):
            np.testing.assert_allclose(gradient, want, rtol=1e-5, atol=1e-8)


def _dense() -> Any:
    return keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])


def test_what_the_users_model_raises_names_their_file() -> None:
    class RaisingModel(keras.Model):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            raise ZeroDivisionError("on purpose")

    with pytest.raises(UserCodeError, match="on purpose") as caught:
        build(module_of(RaisingModel), IMAGES)
    assert caught.value.where is not None
    assert caught.value.where.startswith(__file__)
    assert "your code" in caught.value.detail


# ---------------------------------------------------------------- served embeddings


@pytest.fixture
def ratings() -> tuple[KerasNetwork, dict[str, Any], Any]:
    module = zoo_module("recommender.ratings.custom_model", users=5000, items=10, dim=4)
    network = build(module, threshold=5000 * 4 * 4)
    features = {"user": np.array([7, 3, 7, 4999]), "item": np.array([1, 2, 3, 1])}
    return network, features, np.array([1.0, 0.0, 1.0, 0.0], np.float32)


def rows_for(network: KerasNetwork, features: Any) -> dict[str, RowBatch]:
    unique_ids = network.unique_ids(features)
    return {
        t.name: RowBatch(unique_ids[t.name], initial_rows(t.initializer, t.seed, unique_ids[t.name], t.dim))
        for t in network.tables
    }


def test_rows_have_the_gradient_of_the_full_table(ratings: Any) -> None:
    network, features, labels = ratings
    rows = rows_for(network, features)
    (table,) = network.tables
    assert (table.name, table.rows, table.dim) == ("users/embeddings", 5000, 4)
    assert sorted(rows[table.name].ids) == [3, 7, 4999]
    step = network.train(network.initial_values(), rows, features, labels)

    plain = model_export.build_export_model(network, network.initial_values(), {table.name: []})
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(network.module.loss(labels, plain(features, training=True)))
    full = tf.convert_to_tensor(tape.gradient(loss, plain.get_layer("users").embeddings.value)).numpy()
    assert step.loss == pytest.approx(float(loss), rel=1e-5)
    np.testing.assert_allclose(step.row_gradients[table.name], full[rows[table.name].ids], rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(network.predict(network.initial_values(), rows, features), plain(features), rtol=1e-5)


# ---------------------------------------------------------------- evaluation


def test_metric_states_of_parts_add_up_to_those_of_plain_keras() -> None:
    from edl.core.evaluation import merge_metric_states

    module = zoo_module(MNIST[1])
    network = build(module, IMAGES)
    slab, merged = network.initial_values(), {}
    for place in (slice(0, 5), slice(5, 6), slice(6, 12)):
        network.reset_metrics()
        network.evaluate(slab, {}, IMAGES[place], LABELS[place])
        merged = merge_metric_states(merged, network.metric_states())
    plain = model_export.build_export_model(network, slab, {})
    accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
    plain.compile(loss=module.loss, metrics=[accuracy], run_eagerly=True)
    expected = plain.evaluate(IMAGES, LABELS, verbose=0, return_dict=True)
    metric_values = network.metric_values(merged)
    assert metric_values["accuracy"] == pytest.approx(expected["accuracy"])
    assert metric_values["loss"] == pytest.approx(expected["loss"], rel=1e-5)


class _MaxPrediction(keras.metrics.Metric):  # type: ignore[misc]
    """The largest prediction: states do not add up."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.largest = self.add_variable((), "zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.largest.assign(tf.maximum(self.largest.value, tf.reduce_max(tf.abs(y_pred))))

    def result(self) -> Any:
        return self.largest.value


class _MergingMax(_MaxPrediction):
    def merge_state(self, states: Any) -> None:
        self.largest.assign(max(float(state[0]) for state in states))


def test_a_metric_that_does_not_add_up_is_refused_by_name() -> None:
    network = build(module_of(_dense, metrics=lambda: {"largest": _MaxPrediction()}))
    with pytest.raises(BadInputError, match="'largest' \\(_MaxPrediction\\)"):
        network.evaluate(network.initial_values(), {}, IMAGES[:, :4], IMAGES[:, :3])


def test_a_metric_may_merge_its_own_states_and_a_function_is_averaged_over_records() -> None:
    from edl.core.evaluation import merge_metric_states

    def mean_error(labels: Any, predictions: Any) -> Any:
        return tf.reduce_mean(tf.abs(labels - predictions))

    network = build(module_of(_dense, metrics=lambda: {"largest": _MergingMax(), "error": mean_error}))
    merged: dict[str, Any] = {}
    for place in (slice(0, 9), slice(9, 12)):
        network.reset_metrics()
        network.evaluate(network.initial_values(), {}, IMAGES[place, :4], IMAGES[place, :3])
        merged = merge_metric_states(merged, network.metric_states())
    predictions = network.predict(network.initial_values(), {}, IMAGES[:, :4])
    metric_values = network.metric_values(merged)
    assert metric_values["largest"] == pytest.approx(float(np.abs(predictions).max()), rel=1e-6)
    assert metric_values["error"] == pytest.approx(float(np.abs(predictions - IMAGES[:, :3]).mean()), rel=1e-5)


# ---------------------------------------------------------------- export

_LOAD = dedent("""
    import sys
    sys.modules["edl"] = None  # type: ignore[assignment]
    import numpy as np, tensorflow as tf, keras
    folder, zoo, module = sys.argv[1:]
    images = np.load(folder + "/images.npy")
    if module:
        sys.path.insert(0, zoo); __import__(module)
    loaded = tf.saved_model.load(folder + "/saved_model")
    np.save(folder + "/outputs.npy", [loaded.serve(images), keras.models.load_model(folder + "/model.keras")(images)])
""")


@pytest.fixture
def export_trained(tmp_path: Path) -> Any:
    return lambda definition: _exported(definition, tmp_path)


def _exported(definition: str, folder: Path) -> tuple[KerasNetwork, Any, Any]:
    network = build(zoo_module(definition), IMAGES)
    slab = network.initial_values() + np.float32(0.01)
    exported = model_export.export_model(network, slab, {}, folder / "model.keras", folder / "saved_model")
    return network, slab, exported


@pytest.mark.repetition
@pytest.mark.parametrize(("definition", "module"), [(MNIST[1], ""), (MNIST[2], "model_zoo.mnist.mnist_subclass")])
def test_exports_load_without_edl(export_trained: Any, tmp_path: Path, definition: str, module: str) -> None:
    network, slab, exported = export_trained(definition)
    assert (exported["keras"], exported["saved_model"]) == (
        str(tmp_path / "model.keras"),
        str(tmp_path / "saved_model"),
    )
    if module:  # has a class of its own, and imports it before it loads the file
        assert exported["loading"].split("; ")[:4:3] == ["import keras", f"import {module}"], (
            "with the zoo on the path between"
        )
    else:
        assert exported["loading"] == ""
    np.save(tmp_path / "images.npy", IMAGES)
    command = [sys.executable, "-c", _LOAD, str(tmp_path), str(ZOO.parent), module]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    expected = network.predict(slab, {}, IMAGES)
    for outputs in np.load(tmp_path / "outputs.npy"):
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(network.load_weights_file(tmp_path / "model.keras"), slab)
    np.testing.assert_array_equal(network.initial_values(), build(network.module, IMAGES).initial_values())


def test_served_tables_are_exported_in_full(ratings: Any, tmp_path: Path) -> None:
    network, features, _ = ratings
    (table,) = network.tables
    rows = {table.name: RowBatch(np.array([3, 7]), np.ones((2, 4), np.float32))}
    stored = {table.name: [tuple(rows[table.name])]}
    model_export.export_model(
        network, network.initial_values(), stored, tmp_path / "model.keras", tmp_path / "saved_model"
    )
    loaded = keras.models.load_model(tmp_path / "model.keras")
    features = {"user": np.array([3, 7]), "item": np.array([1, 2])}
    np.testing.assert_allclose(loaded(features), network.predict(network.initial_values(), rows, features), rtol=1e-5)
    fresh = initial_rows(table.initializer, table.seed, np.array([4999]), 4)
    np.testing.assert_array_equal(np.asarray(loaded.get_layer("users").embeddings)[[4999]], fresh)


def test_a_failed_export_leaves_the_earlier_one(
    export_trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, slab, _ = export_trained(MNIST[0])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    errors = iter(
        [
            tf.errors.ResourceExhaustedError(None, None, "variables.data; No space left on device [Op:SaveV2]"),
            OSError("Can't write data (file write failed: errno = 28, error message = 'No space left on device')"),
        ]
    )

    def full(*_: Any, **__: Any) -> None:
        raise next(errors)

    for method in ("export", "save"):
        with monkeypatch.context() as patch:
            patch.setattr(keras.Model, method, full)
            patch.setattr(keras.Sequential, method, full, raising=False)
            with pytest.raises(StorageError, match="cannot export the model: No space left on device\n"):
                model_export.export_model(network, slab * 2, {}, tmp_path / "model.keras", tmp_path / "saved_model")
    assert (tmp_path / "model.keras").read_bytes() == before[tmp_path / "model.keras"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    model_export.export_model(network, slab * 2, {}, tmp_path / "model.keras", tmp_path / "saved_model")
    np.testing.assert_allclose(network.load_weights_file(tmp_path / "model.keras"), slab * 2)


def test_a_file_that_is_no_model_is_bad_input(export_trained: Any, tmp_path: Path) -> None:
    network, *_ = export_trained(MNIST[0])
    empty, junk, gone = tmp_path / "empty.keras", tmp_path / "junk.keras", tmp_path / "gone.keras"
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("metadata.json", "{}")
    junk.write_bytes(b"junk")
    for file in (empty, junk, gone):
        with pytest.raises(BadInputError, match="cannot be loaded into the model") as caught:
            network.load_weights_file(file)
        assert caught.value.where == str(file)


def test_training_goes_on_after_an_export(export_trained: Any) -> None:
    network, slab, _ = export_trained(MNIST[1])
    assert np.isfinite(network.train(slab, {}, IMAGES, LABELS).loss)
