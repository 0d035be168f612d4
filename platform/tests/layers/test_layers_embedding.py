"""Combiners give what the formulas say, over dense, ragged and sparse ids, and so do their gradients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras'
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from edl.layers import Embedding  # noqa: E402
from edl.layers.known_rows import Known, known_rows  # noqa: E402

ROWS, DIM = 9, 3
RECORDS = st.lists(
    st.lists(st.tuples(st.integers(0, ROWS - 1), st.floats(0.25, 2.0, width=32)), max_size=4), min_size=1, max_size=5
)
KINDS = ("ragged", "sparse", "padded")


def expected(table: Any, records: Any, combiner: str, *, mask_zero: bool) -> Any:
    """The formulas, in float64."""
    out = np.zeros((len(records), DIM))
    for record, entries in zip(out, records, strict=True):
        kept = [(i, w) for i, w in entries if i or not mask_zero]
        scale = {"sum": 1.0, "mean": sum(w for _, w in kept), "sqrtn": sum(w * w for _, w in kept) ** 0.5}[combiner]
        for i, w in kept:
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
@settings(max_examples=20, deadline=None)
@given(combiner=st.sampled_from(["sum", "mean", "sqrtn"]), records=RECORDS, mask_zero=st.booleans())
def test_combiners_give_what_the_formulas_say(kind: str, combiner: str, records: Any, mask_zero: bool) -> None:
    layer = Embedding(DIM, ROWS, combiner=combiner, mask_zero=mask_zero)
    ids, weights = inputs_of(kind, records)
    found = layer(ids, weights=weights)
    assert found.shape == (len(records), DIM)
    wanted = expected(np.asarray(layer.embeddings, np.float64), records, combiner, mask_zero=mask_zero)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_formula(kind: str) -> None:
    records = [[(1, 1.0), (2, 0.5), (1, 2.0)], [], [(8, 1.0)]]
    layer = Embedding(DIM, ROWS, combiner="sqrtn")
    ids, weights = inputs_of(kind, records)
    layer(ids)
    with tf.GradientTape() as tape:
        found = tf.reduce_sum(tf.square(layer(ids, weights=weights)))
    gradient = tf.convert_to_tensor(tape.gradient(found, layer.embeddings.value)).numpy()
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
        (lambda: Embedding(2, 3, combiner="max"), "combiner is one of sum, mean, sqrtn or None, not 'max'"),
        (lambda: Embedding(2, 3)(np.zeros((1, 1)), weights=np.ones((1, 1))), "weights are for a combiner"),
        (lambda: Embedding(2, 3)(tf.sparse.from_dense([[1]])), "sparse ids need a combiner"),
        (lambda: Embedding(2, 3, combiner="sum")(tf.ragged.constant([[[1]]])), "ragged ids of records and columns"),
        (lambda: Embedding(2, name="words")(np.zeros((1, 1))), "'words' has no input_dim"),
    ],
)
def test_what_does_not_go_together_is_refused(call: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


def test_a_file_is_loaded_by_plain_keras_with_this_package(tmp_path: Path) -> None:
    ids, more = keras.Input([4], dtype="int64"), keras.Input([None], dtype="int64", ragged=True)
    known = Known(np.array([-5, 7, 2**40]), np.arange(12, dtype=np.float32).reshape(4, DIM))
    with known_rows({"any": known}):
        rows = Embedding(DIM, combiner="sum", name="any")(ids)
    out = rows + Embedding(DIM, ROWS, combiner="mean", name="few")(more)
    model = keras.Model([ids, more], out)
    model.save(tmp_path / "model.keras")
    given = [tf.constant([[7, 7, 2**40, 99], [-5, 0, 1, 2]], tf.int64), tf.ragged.constant([[1, 2], [3]], tf.int64)]
    few = np.asarray(model.get_layer("few").embeddings)
    by_hand = known.rows[[2, 2, 3, 0]].sum(0), known.rows[[1, 0, 0, 0]].sum(0)
    np.testing.assert_allclose(model(given), [by_hand[0] + few[1:3].mean(0), by_hand[1] + few[3]], rtol=1e-5)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(given), model(given))


def test_the_package_imports_nothing_else_of_edl() -> None:
    code = "import sys, edl.layers; print(sorted(n for n in sys.modules if n.startswith('edl.') and 'layers' not in n))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
