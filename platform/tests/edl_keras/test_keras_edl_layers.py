"""EDL's Embedding on the parameter servers: combiners over every kind of input, ids without a bound, the export."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs.plain_keras import without_edl

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras'
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from edl_keras.embedding_harness import check_step, module_of, network_of, rows_for, write_export  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402
from edl.keras.row_binding import UnsupportedEmbeddingError  # noqa: E402
from edl.layers import Embedding  # noqa: E402
from edl.numerics.parameter_store import RowBatch  # noqa: E402

LABELS = np.array([[1.0], [0.0], [0.5]], np.float32)
IDS = np.array([[3, 1, 1], [0, 2, 0], [4, 4, 4]])
ANY = np.array([[-7, 2**62, 5], [5, 5, 0], [-(2**63), 9, 2**63 - 1]])


def ragged_ids() -> Any:
    return tf.ragged.constant([[3, 1, 1, 4], [], [2]], tf.int64)


FORMS: dict[str, Callable[[], Any]] = {
    "dense": lambda: tf.constant(IDS),
    "ragged": ragged_ids,
    "sparse": lambda: tf.sparse.from_dense(np.array([[3, 0, 1], [0, 2, 0], [0, 0, 4]], np.int64)),
}


def combining(kind: str, combiner: str, input_dim: int | None = 5, **options: Any) -> Any:
    """A functional model that combines the ids of one feature."""
    ids = keras.Input([None], dtype="int64", ragged=kind == "ragged", sparse=kind == "sparse")
    layer = Embedding(4, input_dim, combiner=combiner, name="tags", **options)
    return keras.Model(ids, keras.layers.Dense(1)(layer(ids)))


class WeightedLookup(keras.Model):  # type: ignore[misc]
    """Weights come with the ids."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.out = Embedding(4, 5, combiner="mean"), keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.out(self.tags(inputs["ids"], weights=inputs["weights"]))


@pytest.mark.parametrize(("kind", "combiner"), [("dense", "sum"), ("ragged", "mean"), ("sparse", "sqrtn")])
@pytest.mark.first_cases(1)
def test_combined_rows_have_the_gradients_of_plain_keras(kind: str, combiner: str) -> None:
    network = network_of(lambda: combining(kind, combiner, mask_zero=combiner == "mean"))
    assert [(table.rows, table.dim) for table in network.tables] == [(5, 4)]
    check_step(network, FORMS[kind](), LABELS)


@pytest.mark.parametrize("with_sample", [True, False])
@pytest.mark.first_cases(1)
def test_ids_without_a_bound_have_the_gradients_of_plain_keras(with_sample: bool) -> None:
    network = network_of(lambda: combining("dense", "sqrtn", None), ANY if with_sample else None, threshold=1 << 60)
    (table,) = network.tables
    assert (table.name, table.rows, table.dim) == ("tags/embeddings", 0, 4)
    assert set(np.asarray(network.unique_ids(ANY)[table.name])) == set(ANY.ravel())
    check_step(network, ANY, LABELS)


@pytest.mark.repetition
def test_weights_in_a_subclassed_model() -> None:
    features = {"ids": ragged_ids(), "weights": ragged_ids().with_values(tf.constant([0.5, 2.0, 1.0, 1.0, 3.0]))}
    check_step(network_of(WeightedLookup, features), features, LABELS)


def test_a_step_takes_ragged_features_of_any_length_without_a_new_trace() -> None:
    network = network_of(lambda: combining("ragged", "sum"))
    for records in ([[1, 2], [3]], [[1], [2], [3, 4, 0]], [[]]):
        ids = tf.ragged.constant(records, tf.int64, ragged_rank=1)
        network.train(network.initial_values(), rows_for(network, ids), ids, LABELS[: len(records)])
    assert network.trace_count == 1


@pytest.mark.repetition
def test_saved_models_need_no_edl(tmp_path: Path) -> None:
    """The lookup table and its rows are in the SavedModel; a ``.keras`` file needs edl.layers if ids are not dense."""
    for kind in FORMS:
        export_combining(kind, tmp_path / kind)
    code = """
        import keras, numpy as np, tensorflow as tf
        forms = {
            "dense": tf.constant([[3, 1, 1], [0, 2, 0], [4, 4, 4]], tf.int64),
            "ragged": tf.ragged.constant([[3, 1, 1, 4], [], [2]], tf.int64),
            "sparse": tf.sparse.from_dense(np.array([[3, 0, 1], [0, 2, 0], [0, 0, 4]])),
        }
        for kind, ids in forms.items():
            folder = sys.argv[1] + "/" + kind
            expected = np.load(folder + "/expected.npz")["outputs"]
            served = tf.saved_model.load(folder + "/saved_model")
            np.testing.assert_allclose(served.serve(ids), expected, rtol=1e-5, err_msg=kind)
            if kind == "dense":
                loaded = keras.models.load_model(folder + "/model.keras")
                np.testing.assert_allclose(loaded(ids), expected, rtol=1e-5)
    """
    without_edl(code, tmp_path, cwd=tmp_path)


def export_combining(kind: str, folder: Path) -> None:
    """Export a model of one kind of ids to ``folder``, and what it says of them, which is what was trained."""
    network = network_of(lambda: combining(kind, "mean", None))
    (name,) = (table.name for table in network.tables)
    rows = {name: RowBatch(np.array([4, 1, 3]), np.arange(12, dtype=np.float32).reshape(3, 4))}
    write_export(network, rows, folder)
    loaded = keras.models.load_model(folder / "model.keras")
    expected = loaded(FORMS[kind]()).numpy()
    table = np.concatenate([rows[name].values, np.zeros((2, 4), np.float32)])
    lent = {
        name: RowBatch(np.array([4, 1, 3, 0, 2]), table)
    }  # ids that nobody trained have the mean of what they might be
    np.testing.assert_allclose(network.predict(network.initial_values(), lent, FORMS[kind]()), expected, rtol=1e-5)
    np.savez(folder / "expected.npz", outputs=expected)


def many() -> Any:
    """Every form that Keras has layers for, in a nested model, one layer called with two shapes."""
    ids = keras.Input([3], dtype="int64")
    bound, unbound = Embedding(2, 5, combiner="sqrtn", mask_zero=True), Embedding(2, combiner="mean", name="any")
    inner = keras.Model(ids, [bound(ids), bound(ids[:, :2]), unbound(ids)])
    last = Embedding(2, 5, mask_zero=True, name="last")(ids)
    words = Embedding(2, name="words")(ids)
    return keras.Model(ids, keras.layers.Dense(1)(sum(inner(ids)) + last[:, 1] + words[:, 2]))


@pytest.mark.repetition
def test_keras_own_layers_take_the_place_of_edls_in_a_file(tmp_path: Path) -> None:
    network = network_of(many)
    rows = rows_for(network, IDS)
    write_export(network, rows, tmp_path)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert not [layer for layer in loaded._flatten_layers() if isinstance(layer, Embedding)]
    np.testing.assert_allclose(loaded(IDS), network.predict(network.initial_values(), rows, IDS), rtol=1e-5)


@pytest.mark.parametrize(("input_dim", "reason"), [(None, "has no input_dim"), (5, "is on the parameter servers")])
def test_a_file_cannot_be_predicted_with_where_rows_would_be_pulled(
    input_dim: int | None, reason: str, tmp_path: Path
) -> None:
    network = network_of(lambda: combining("dense", "sum", input_dim))
    with pytest.raises(BadInputError, match=f"'tags/embeddings' {reason}") as caught:
        network.load_weights_file(tmp_path / "model.keras")
    assert "edl predict --from r2" in str(caught.value)


def test_ids_without_a_bound_need_parameter_servers() -> None:
    with pytest.raises(ValueError, match="'tags' has no input_dim"):
        ModelReplica(module_of(lambda: combining("dense", "sum", None)), seed=1, rank_seed=None, sample=None)


def test_ids_without_a_bound_have_no_initializer_that_depends_on_their_number() -> None:
    with pytest.raises(UnsupportedEmbeddingError, match=r"any id x 4.*GlorotUniform") as caught:
        network_of(lambda: combining("dense", "sum", None, embeddings_initializer="glorot_uniform"))
    assert "threshold" not in str(caught.value)
