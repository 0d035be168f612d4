"""Combiners give what the formulas say, over dense, ragged and sparse ids, and so do their gradients."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.repetition import repetition, repetitions
from support.text_keys import missing_keys

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras'
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from support.examples import examples  # noqa: E402

from edl.layers import Embedding  # noqa: E402
from edl.layers.known_rows import KnownRows, provide_known_rows  # noqa: E402

ROWS, DIM = 9, 3
RECORDS = st.lists(
    st.lists(st.tuples(st.integers(0, ROWS - 1), st.floats(0.25, 2.0, width=32)), max_size=4), min_size=1, max_size=5
)
KINDS = ("ragged", "sparse", "padded")


def expected(table: Any, records: Any, combiner: str, *, mask_zero: bool) -> Any:
    """The formulas, in float64."""
    out = np.zeros((len(records), DIM))
    for record, entries in zip(out, records, strict=True):
        terms = [(i, w) for i, w in entries if i or not mask_zero]
        scale = {"sum": 1.0, "mean": sum(w for _, w in terms), "sqrtn": sum(w * w for _, w in terms) ** 0.5}[combiner]
        for i, w in terms:
            record += w * table[i] / scale
    return out


def inputs_of(kind: str, records: Any) -> tuple[Any, Any]:
    """Ids and weights; padded ones have id 0 with the weight 0."""
    ids, weights = ([[entry[part] for entry in record] for record in records] for part in (0, 1))
    ragged = (tf.ragged.constant(ids, tf.int64, 1), tf.ragged.constant(weights, tf.float32, 1))
    if kind == "ragged":
        return ragged
    if kind == "padded":
        return ragged[0].to_tensor(shape=[None, 5]), ragged[1].to_tensor(shape=[None, 5])
    return ragged[0].to_sparse(), ragged[1].to_sparse()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(20), deadline=None)
@given(combiner=st.sampled_from(["sum", "mean", "sqrtn"]), records=RECORDS, mask_zero=st.booleans())
def test_combiners_give_what_the_formulas_say(kind: str, combiner: str, records: Any, mask_zero: bool) -> None:
    layer = Embedding(DIM, ROWS, combiner=combiner, mask_zero=mask_zero)
    ids, weights = inputs_of(kind, records)
    combined = layer(ids, weights=weights)
    assert combined.shape == (len(records), DIM)
    wanted = expected(np.asarray(layer.embeddings, np.float64), records, combiner, mask_zero=mask_zero)
    np.testing.assert_allclose(combined, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_formula(kind: str) -> None:
    records = [[(1, 1.0), (2, 0.5), (1, 2.0)], [], [(8, 1.0)]]
    layer = Embedding(DIM, ROWS, combiner="sqrtn")
    ids, weights = inputs_of(kind, records)
    layer(ids)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(layer(ids, weights=weights)))
    gradient = tf.convert_to_tensor(tape.gradient(loss, layer.embeddings.value)).numpy()
    table = np.asarray(layer.embeddings, np.float64)
    step = 1e-6
    for row, column in ((1, 0), (2, 2), (8, 1), (0, 0)):
        moved = table.copy()
        moved[row, column] += step
        before, after = (np.square(expected(t, records, "sqrtn", mask_zero=False)).sum() for t in (table, moved))
        np.testing.assert_allclose(gradient[row, column], (after - before) / step, rtol=1e-3, atol=1e-5)


def test_without_weights_every_id_counts_once() -> None:
    layer = Embedding(DIM, ROWS, combiner="mean")
    ids = tf.ragged.constant([[1, 2, 3], [4]], tf.int64)
    table = np.asarray(layer(ids) is not None and layer.embeddings)
    np.testing.assert_allclose(layer(ids), [table[1:4].mean(0), table[4]], rtol=1e-6)


def test_without_a_combiner_it_is_that_of_keras() -> None:
    layer, ids = Embedding(DIM, ROWS, mask_zero=True), np.array([[1, 0], [3, 4]])
    plain = keras.layers.Embedding(
        ROWS, DIM, mask_zero=True, weights=np.asarray(layer(ids) is not None and layer.embeddings)
    )
    np.testing.assert_array_equal(layer(ids), plain(ids))
    np.testing.assert_array_equal(layer.compute_mask(ids), plain.compute_mask(ids))
    assert layer(tf.ragged.constant([[1], [2, 3]])).shape == (2, None, DIM)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Embedding(2, 3, combiner="max"), "sum, mean, sqrtn or None, not 'max'"),
        (lambda: Embedding(2, 3)(np.zeros((1, 1)), weights=np.ones((1, 1))), "weights need a combiner"),
        (lambda: Embedding(2, 3)(tf.sparse.from_dense([[1]])), "sparse ids need a combiner"),
        (lambda: Embedding(2, 3, combiner="sum")(tf.ragged.constant([[[1]]])), "ragged ids of shape"),
        (lambda: Embedding(2, name="words")(np.zeros((1, 1))), "'words' has no input_dim"),
    ],
)
def test_what_does_not_go_together_is_refused(call: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


def sparse() -> Any:
    return tf.sparse.from_dense([[1, 2, 0], [3, 0, 0]])


OTHER_FORMS: dict[str, Callable[[], tuple[Any, Any, str]]] = {
    "sparse ids of rank 3": lambda: (tf.sparse.from_dense([[[1, 2]], [[3, 0]]]), None, r"\[records, columns\]"),
    "ragged ids, ragged weights of other lengths": lambda: (
        tf.ragged.constant([[1, 2], [3]]),
        tf.ragged.constant([[1.0], [2.0, 3.0]]),
        "weights .* row_splits",
    ),
    "ragged ids, fewer weights": lambda: (
        tf.ragged.constant([[1, 2], [3]]),
        tf.ragged.constant([[1.0]]),
        "weights .* row_splits",
    ),
    "ragged ids, weights that are ragged twice": lambda: (
        tf.ragged.constant([[1, 2], [3]]),
        tf.ragged.constant([[[1.0], [2.0]], [[3.0]]]),
        "weights .* ragged .*rank 1",
    ),
    "ragged ids, a row of weights for each": lambda: (
        tf.ragged.constant([[1, 2], [3]]),
        tf.RaggedTensor.from_row_splits(tf.ones([3, 2]), [0, 2, 3]),
        "weights .* ragged .*rank 1",
    ),
    "sparse ids, sparse weights elsewhere": lambda: (
        sparse(),
        tf.sparse.from_dense([[1.0, 0.0, 2.0], [3.0, 0.0, 0.0]]),
        "weights .* indices",
    ),
    "sparse ids, fewer weights": lambda: (
        sparse(),
        tf.sparse.from_dense([[1.0, 0, 0], [0, 0, 0]]),
        "weights .* indices",
    ),
    "dense ids, one weight a record": lambda: (tf.constant([[1, 2], [3, 0]]), tf.ones([2, 1]), "weights .* shape"),
    "sparse ids, dense weights": lambda: (sparse(), tf.ones([2, 3]), "ids are sparse .* weights .* dense"),
    "sparse ids, ragged weights": lambda: (
        sparse(),
        tf.ragged.constant([[1.0], [2.0]]),
        "ids are sparse .* weights .* ragged",
    ),
    "ragged ids, dense weights": lambda: (
        tf.ragged.constant([[1, 2], [3]]),
        tf.ones([3]),
        "ids are ragged .* weights .* dense",
    ),
    "dense ids, sparse weights": lambda: (
        tf.constant([[1, 2]]),
        tf.sparse.from_dense([[1.0]]),
        "ids are dense .* sparse",
    ),
}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("case", OTHER_FORMS)
@pytest.mark.first_cases(8)
def test_ids_and_weights_of_other_forms_are_refused(case: str, traced: bool) -> None:
    ids, weights, message = OTHER_FORMS[case]()
    layer = Embedding(DIM, ROWS, combiner="sum", name="tags")
    call = layer
    if traced:  # with nothing known of the shapes but ranks
        call = any_shape(layer, [ids, weights])
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=f"(?s)Embedding tags:.*{message}"):
        call(*(each for each in (ids, weights) if each is not None))


def any_shape(function: Any, arguments: Any) -> Any:
    """A function as a graph for arguments of any shape of their ranks."""
    specs = [unknown(each) for each in arguments if each is not None]
    return tf.function(function, input_signature=specs, autograph=False)


def unknown(tensor: Any) -> Any:
    """The spec of a tensor of any shape of its rank."""
    shape = [None] * len(tensor.shape)
    if isinstance(tensor, tf.RaggedTensor):
        inner = tensor.flat_values.shape[1:]
        return tf.RaggedTensorSpec([*shape[: tensor.ragged_rank + 1], *inner], tensor.dtype, tensor.ragged_rank)
    spec = tf.SparseTensorSpec if isinstance(tensor, tf.SparseTensor) else tf.TensorSpec
    return spec(shape, tensor.dtype)


def test_a_model_with_sparse_ids_of_rank_3_is_refused_when_it_is_made() -> None:
    ids = keras.Input([2, None], dtype="int64", sparse=True)
    with pytest.raises(ValueError, match=r"tags: .*\[records, columns\], not \(None, 2, None\).*tf.sparse.reshape"):
        Embedding(DIM, ROWS, combiner="sum", name="tags")(ids)


@pytest.mark.parametrize("wrong", [-1, ROWS, *repetitions((-ROWS - 1, 2**40))])
@pytest.mark.parametrize("kind", [*KINDS, "no combiner"])
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.first_cases(6)
def test_ids_outside_of_the_table_are_refused(kind: str, wrong: int, traced: bool) -> None:
    layer = Embedding(DIM, ROWS, combiner=None if kind == "no combiner" else "sum", name="tags")
    ids, _ = inputs_of("padded" if kind == "no combiner" else kind, [[(1, 1.0)], [(wrong, 1.0), (ROWS - 1, 1.0)]])
    call = tf.function(layer, autograph=False) if traced else layer
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        call(ids)
    assert not missing_keys(str(caught.value), "Embedding tags (9 x 3)", "0 to 8")
    assert re.search(rf"[\[\n ]{wrong}\b", str(caught.value))


@pytest.mark.parametrize(
    ("kind", "wrong"), [("float32", -3.0), ("uint64", 2**63 + 5), ("int8", -1), ("float64", 2.0**40)]
)
def test_ids_of_other_types_are_checked_before_they_are_cut(kind: str, wrong: Any) -> None:
    layer = Embedding(DIM, ROWS)
    assert layer(np.array([0, ROWS - 1], kind)).shape == (2, DIM)
    with pytest.raises(tf.errors.InvalidArgumentError, match="outside of the Embedding"):
        layer(np.array([0, wrong], kind))


def test_no_ids_are_all_within_the_table() -> None:
    for kind in ("int32", "int64"):
        assert Embedding(DIM, ROWS)(np.empty((0, 2), kind)).shape == (0, 2, DIM)


def test_plain_keras_compiles_and_fits_it() -> None:
    """Keras compiles models with XLA where it can, which knows no assertions."""
    ids, weights = keras.Input([2], dtype="int64"), keras.Input([2])
    out = keras.layers.Dense(1)(Embedding(DIM, ROWS, combiner="mean")(ids, weights=weights))
    model = keras.Model([ids, weights], out)
    model.compile(optimizer="sgd", loss="mse", jit_compile=True)
    history = model.fit([np.array([[1, 2], [3, 8]]), np.ones((2, 2))], np.ones((2, 1)), verbose=0)
    assert np.isfinite(history.history["loss"]).all()


@pytest.mark.parametrize("kind", [kind if kind == "ragged" else repetition(kind) for kind in KINDS])
def test_weights_survive_both_files(kind: str, tmp_path: Path) -> None:
    options = {"ragged": kind == "ragged", "sparse": kind == "sparse"}
    inputs = [keras.Input([None], dtype="int64", **options), keras.Input([None], **options)]
    model = keras.Model(inputs, Embedding(DIM, ROWS, combiner="mean")(inputs[0], weights=inputs[1]))
    features = inputs_of(kind, [[(1, 1.0), (2, 0.5)], [(3, 2.0)]])
    expected = model(list(features))
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras")(list(features)), expected)
    saved = tf.Module()
    saved.model = model
    saved.serve = any_shape(lambda *both: model(list(both)), features)
    tf.saved_model.save(saved, tmp_path / "saved")
    served = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_allclose(served.serve(*features), expected, rtol=1e-6)
    others = inputs_of(kind, [[(1, 1.0)], [(3, 2.0), (2, 1.0), (2, 1.0)]])[1]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Embedding embedding.*: (the )?weights"):
        served.serve(features[0], others[:, :4] if kind == "padded" else others)


def test_a_file_is_loaded_by_plain_keras_with_this_package(tmp_path: Path) -> None:
    ids, more = keras.Input([4], dtype="int64"), keras.Input([None], dtype="int64", ragged=True)
    known = KnownRows(np.array([-5, 7, 2**40]), np.arange(12, dtype=np.float32).reshape(4, DIM))
    with provide_known_rows({"any": known}):
        rows = Embedding(DIM, combiner="sum", name="any")(ids)
    out = rows + Embedding(DIM, ROWS, combiner="mean", name="few")(more)
    model = keras.Model([ids, more], out)
    model.save(tmp_path / "model.keras")
    features = [tf.constant([[7, 7, 2**40, 99], [-5, 0, 1, 2]], tf.int64), tf.ragged.constant([[1, 2], [3]], tf.int64)]
    few = np.asarray(model.get_layer("few").embeddings)
    by_hand = known.rows[[2, 2, 3, 0]].sum(0), known.rows[[1, 0, 0, 0]].sum(0)
    np.testing.assert_allclose(model(features), [by_hand[0] + few[1:3].mean(0), by_hand[1] + few[3]], rtol=1e-5)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(features), model(features))


def test_a_table_of_an_export_that_is_built_once_more_is_the_same() -> None:
    known = KnownRows(np.array([7]), np.arange(6, dtype=np.float32).reshape(2, DIM))
    with provide_known_rows({"any": known}):
        layer = Embedding(DIM, name="any")
        layer.build()
        layer.build()
    np.testing.assert_array_equal(layer(tf.constant([7, 8], tf.int64)), known.rows[[1, 0]])


@pytest.mark.repetition  # `make layers` has a contract of it
def test_the_package_imports_nothing_else_of_edl() -> None:
    code = "import sys, edl.layers; print(sorted(n for n in sys.modules if n.startswith('edl.') and 'layers' not in n))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
