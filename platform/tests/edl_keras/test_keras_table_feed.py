"""Rows of a table become what a model's inputs are, if its module has no feed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.text_keys import missing_keys

from edl.api.errors import EdlError
from edl.api.job_spec import ModelSpec, SchemaSpec
from edl.data.reader import Metadata
from edl.data.record_columns import ColumnRecords, RaggedColumn
from edl.keras.model_contract import load_model_module
from edl.worker.feed_pipeline import FeedFunction
from edl.worker.record_stream import RecordWindow

pytestmark = pytest.mark.tensorflow

ROWS = [["Ulm", "31", "0.5", "1"], ["Bonn", "9", "2", "0"]]
COLUMNS = ("town", "age", "wealth", "rich")
HEAD = "import keras\n\ndef loss(labels, predictions): return 0\ndef optimizer(): return keras.optimizers.SGD()\n"
NAMED = HEAD + (
    "def custom_model():\n"
    "    given = [keras.Input((1,), name='wealth'), keras.Input((), name='town', dtype='string'),"
    " keras.Input((1,), name='age', dtype='int64')]\n"
    "    return keras.Model(given, keras.layers.Dense(1)(given[0]))\n"
)
VECTOR = HEAD + "def custom_model(): return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
OTHERS = HEAD + (
    "def custom_model():\n"
    "    given = [keras.Input((1,), name='x'), keras.Input((1,), name={second!r})]\n"
    "    return keras.Model(given, keras.layers.Add()(given))\n"
)


def feed_of(tmp_path: Path, text: str, mode: str = "training", columns: tuple[str, ...] = COLUMNS) -> FeedFunction:
    (tmp_path / "model.py").write_text(text)
    choice = ModelSpec("model.custom_model", zoo=str(tmp_path))
    module = load_model_module(choice, needs_metrics=False, schema=SchemaSpec(label="rich"))
    return FeedFunction(module.feed, mode, Metadata("csv", columns), zoo=module.zoo)


def minibatch(feed: FeedFunction, rows: list[list[str]] | ColumnRecords) -> Any:
    return feed.make_minibatch(0, RecordWindow(rows, source="rows.csv"))


def test_inputs_get_the_columns_of_their_names(tmp_path: Path) -> None:
    batch = minibatch(feed_of(tmp_path, NAMED), ROWS)
    assert sorted(batch.features) == ["age", "town", "wealth"]
    assert batch.features["age"].dtype == tf.int64
    np.testing.assert_array_equal(batch.features["age"], [[31], [9]])
    np.testing.assert_array_equal(batch.features["wealth"], [[0.5], [2.0]])
    assert batch.features["town"].numpy().tolist() == [b"Ulm", b"Bonn"]
    np.testing.assert_array_equal(batch.labels, [[1.0], [0.0]])


def test_a_model_with_one_other_input_gets_a_vector(tmp_path: Path) -> None:
    batch = minibatch(feed_of(tmp_path, VECTOR, columns=COLUMNS[1:]), [row[1:] for row in ROWS])
    np.testing.assert_array_equal(batch.features, [[31, 0.5], [9, 2]])


def test_whole_numbers_keep_their_digits(tmp_path: Path) -> None:
    text = HEAD + (
        "def custom_model():\n    given = keras.Input((2,), dtype='int64')\n"
        "    return keras.Model(given, keras.layers.Embedding(3, 2)(given))\n"
    )
    feed = feed_of(tmp_path, text, columns=("age", "wealth", "rich"))
    batch = minibatch(feed, [["16777217", "9007199254740993", "1"]])
    assert batch.features.numpy().tolist() == [[16777217, 9007199254740993]]


def test_predictions_need_no_label(tmp_path: Path) -> None:
    batch = minibatch(feed_of(tmp_path, NAMED, "prediction", COLUMNS[:3]), [row[:3] for row in ROWS])
    np.testing.assert_array_equal(batch.features["age"], [[31], [9]])


@pytest.mark.parametrize(
    ("text", "columns", "said"),
    [
        (NAMED, COLUMNS[:3], ("data.reader.label", "rich", "town, age, wealth")),
        (NAMED, (), ("no table",)),
        (OTHERS.format(second="age"), COLUMNS, ("inputs x", "defines no feed")),
        (OTHERS.format(second="y"), COLUMNS, ("(x, y)", "defines no feed")),
    ],
)
def test_tables_that_do_not_fit(tmp_path: Path, text: str, columns: tuple[str, ...], said: tuple[str, ...]) -> None:
    with pytest.raises(EdlError) as error:
        minibatch(feed_of(tmp_path, text, columns=columns), [row[: len(columns) or 1] for row in ROWS])
    assert not missing_keys(f"{error.value} {getattr(error.value, 'detail', '')}", *said)


def test_a_cell_that_is_no_number_is_found(tmp_path: Path) -> None:
    with pytest.raises(EdlError) as error:
        minibatch(feed_of(tmp_path, NAMED), [*ROWS, ["Ulm", "old", "1", "1"]])
    assert not missing_keys(f"{error.value} {getattr(error.value, 'detail', '')}", "record 2", "old")


def load_feed(tmp_path: Path, kind: str, schema: SchemaSpec, metadata: Metadata) -> FeedFunction:
    (tmp_path / "model.py").write_text(
        HEAD
        + f"def custom_model():\n    given = keras.Input((1,), name='age', dtype='{kind}')\n"
        + "    return keras.Model(given, keras.layers.Dense(1)(given))\n"
    )
    choice = ModelSpec("model.custom_model", zoo=str(tmp_path))
    module = load_model_module(choice, needs_metrics=False, schema=schema)
    return FeedFunction(module.feed, "training", metadata, zoo=module.zoo)


@pytest.mark.parametrize(
    ("declared", "kind", "age", "fits"),
    [
        ("int32", "float32", np.array([31, 2**40 + 9], np.int64), False),
        (None, "int32", np.array([31, -(2**31) - 1], np.int64), False),
        (None, "int64", np.array([31, 2**63], np.uint64), False),
        ("bool", "bool", np.array([1, 2], np.int64), False),
        ("int32", "int32", np.array([-(2**31), 2**31 - 1], np.int64), True),
        ("int64", "int64", np.array([31, 2**63 - 1], np.uint64), True),
        ("bool", "bool", np.array([0, 1], np.uint8), True),
    ],
)
def test_a_whole_number_that_a_type_does_not_have_is_refused_by_name(
    tmp_path: Path, declared: str | None, kind: str, age: Any, fits: bool
) -> None:
    schema = SchemaSpec(label="rich", features={"age": declared} if declared else {})
    metadata = Metadata("parquet", ("age", "rich"), {"age": age.dtype.name, "rich": "float32"})
    feed = load_feed(tmp_path, kind, schema, metadata)
    rows = ColumnRecords({"age": age, "rich": np.zeros(2, np.float32)})
    if fits:
        features = minibatch(feed, rows).features
        assert np.ravel(features).tolist() == age.tolist()
        return
    with pytest.raises(EdlError) as error:
        minibatch(feed, rows)
    error_text = f"{error.value} {getattr(error.value, 'detail', '')}"
    assert not missing_keys(error_text, "record 1", f"column 'age' has {age[1]}, which is no {declared or kind}")


def test_a_cell_of_csv_that_the_models_type_does_not_have_is_refused_by_name(tmp_path: Path) -> None:
    feed = load_feed(tmp_path, "int32", SchemaSpec(label="rich"), Metadata("csv", ("age", "rich")))
    with pytest.raises(EdlError) as error:
        minibatch(feed, [["31", "1"], ["2147483648", "1"]])
    error_text = f"{error.value} {getattr(error.value, 'detail', '')}"
    assert not missing_keys(error_text, "record 1", "column 'age' has '2147483648', which is no int32")


def test_a_feed_of_the_module_is_used(tmp_path: Path) -> None:
    own = "def feed(dataset, mode, metadata): return dataset.map(lambda row: (row[0], row[1]))\n"
    batch = minibatch(feed_of(tmp_path, VECTOR + own), ROWS)
    assert batch.features.numpy().tolist() == [b"Ulm", b"Bonn"]


def test_without_a_label_a_module_defines_feed(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(VECTOR)
    with pytest.raises(EdlError, match="does not define feed"):
        load_model_module(ModelSpec("model.custom_model", zoo=str(tmp_path)), needs_metrics=False)


TYPED = ColumnRecords(
    {
        "town": np.array([b"Ulm", b"Bonn"], object),
        "age": np.array([31, 9], np.int32),
        "wealth": np.array([[0.5], [2.0]], np.float64),
        "rich": np.array([True, False]),
    }
)


def test_typed_columns_become_the_inputs_of_their_names(tmp_path: Path) -> None:
    batch = minibatch(feed_of(tmp_path, NAMED), TYPED)
    assert (batch.features["age"].dtype, batch.features["wealth"].dtype) == (tf.int64, tf.float32)
    np.testing.assert_array_equal(batch.features["age"], [[31], [9]])
    assert batch.features["town"].numpy().tolist() == [b"Ulm", b"Bonn"]
    np.testing.assert_array_equal(batch.labels, [[1.0], [0.0]])


def test_typed_numbers_become_a_vector_and_text_is_refused_by_name(tmp_path: Path) -> None:
    numbers = ColumnRecords({name: TYPED.columns[name] for name in ("age", "wealth", "rich")})
    batch = minibatch(feed_of(tmp_path, VECTOR, columns=("age", "wealth", "rich")), numbers)
    np.testing.assert_array_equal(batch.features, [[31, 0.5], [9, 2.0]])
    with pytest.raises(EdlError, match="column 'town' is string, and the model takes it as float32"):
        minibatch(feed_of(tmp_path, VECTOR), TYPED)


@pytest.mark.parametrize(
    ("label", "said"),
    [
        (np.zeros((2, 3), np.float32), ("data.schema.label", "'rich' has 3 values", "a label has one", "define feed")),
        (np.array([b"yes", b"no"], object), ("data.schema.label", "'rich' is text", "data.schema.classes")),
        (RaggedColumn(np.arange(3), np.array([0, 1, 3])), ("data.schema.label", "'rich' has lists", "define feed")),
    ],
    ids=["several values", "text", "lists"],
)
def test_a_label_that_is_no_number_is_refused_as_a_label(tmp_path: Path, label: Any, said: tuple[str, ...]) -> None:
    rows = ColumnRecords({**TYPED.columns, "rich": label})
    with pytest.raises(EdlError) as error:
        minibatch(feed_of(tmp_path, NAMED), rows)
    assert not missing_keys(f"{error.value} {getattr(error.value, 'detail', '')}", *said)
    assert "input" not in str(error.value)


def test_text_of_a_csv_label_is_refused_with_what_makes_it_a_class(tmp_path: Path) -> None:
    with pytest.raises(EdlError) as error:
        minibatch(feed_of(tmp_path, NAMED), [*ROWS, ["Ulm", "3", "1", "yes"]])
    assert not missing_keys(f"{error.value} {getattr(error.value, 'detail', '')}", "record 2", "data.schema.classes")
