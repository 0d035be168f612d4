"""The feed of a module that defines none, as data.schema describes it: tables, Example records, folders of images."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.repetition import repetitions
from support.text_keys import missing_keys

from edl.api.errors import EdlError
from edl.api.job_spec import ModelSpec, SchemaSpec
from edl.data import open_reader, serialize_example
from edl.data.reader import Metadata
from edl.data.record_columns import ColumnRecords, RaggedColumn
from edl.keras.image_feed import decoding_threads
from edl.keras.model_contract import load_model_module
from edl.keras.model_loss import ModelLoss
from edl.worker.feed_pipeline import FeedFunction
from edl.worker.record_stream import RecordWindow

pytestmark = pytest.mark.tensorflow

HEAD = "import keras\n\nloss = 'mse'\noptimizer = 'sgd'\n"
TWO_INPUTS = HEAD + (
    "def custom_model():\n"
    "    given = [keras.Input((1,), name='age'), keras.Input((1,), name='town', dtype='string')]\n"
    "    return keras.Model(given, keras.layers.Dense(1)(given[0]))\n"
)
SUBCLASS = HEAD + "class custom_model(keras.Model):\n    def call(self, given):\n        return given\n"
COLUMNS = ("town", "age", "wealth", "rich")
ROWS = [["Ulm", "31", "0.5", "yes"], ["Bonn", "9", "2", "no"]]


def feed_of(
    folder: Path, text: str, schema: SchemaSpec, metadata: Metadata, mode: str = "training", *, pad: bool = False
) -> FeedFunction:
    (folder / "model.py").write_text(text)
    choice = ModelSpec("model.custom_model", zoo=str(folder))
    module = load_model_module(choice, needs_metrics=False, schema=schema)
    return FeedFunction(module.feed, mode, metadata, zoo=module.zoo, pad=pad)


def rows_of(
    folder: Path, schema: SchemaSpec, rows: Any = ROWS, *, text: str = TWO_INPUTS, mode: str = "training"
) -> Any:
    feed = feed_of(folder, text, schema, Metadata("csv", COLUMNS), mode)
    return feed.make_minibatch(0, RecordWindow(rows, source="rows.csv"))


def error_of(folder: Path, schema: SchemaSpec, rows: Any = ROWS, **options: Any) -> str:
    with pytest.raises(EdlError) as error:
        rows_of(folder, schema, rows, **options)
    return f"{error.value} {error.value.where} {error.value.hint}"


FEATURES = {"age": "int32", "town": "string"}
TABLE = SchemaSpec(label="rich", features=FEATURES, classes=("no", "yes"))


def test_the_features_of_the_schema_become_inputs_and_classes_numbers(tmp_path: Path) -> None:
    minibatch = rows_of(tmp_path, TABLE)
    assert minibatch.features["age"].dtype == tf.float32
    np.testing.assert_array_equal(minibatch.features["age"], [[31], [9]])
    assert minibatch.features["town"].numpy().tolist() == [[b"Ulm"], [b"Bonn"]]
    assert (minibatch.labels.dtype, minibatch.labels.numpy().tolist()) == (tf.int32, [1, 0])


@pytest.mark.parametrize(
    ("mode", "labels"), [("categorical", [[0, 1], [1, 0]]), ("binary", [[1], [0]]), ("int", [1, 0])]
)
def test_labels_are_encoded_as_the_schema_says(tmp_path: Path, mode: str, labels: list[Any]) -> None:
    minibatch = rows_of(tmp_path, SchemaSpec(label="rich", features=FEATURES, classes=("no", "yes"), label_mode=mode))
    assert minibatch.labels.numpy().tolist() == labels


def test_a_class_that_the_schema_does_not_have_is_named_in_typed_rows(tmp_path: Path) -> None:
    rows = ColumnRecords({"age": np.arange(2), "town": np.array([b"Ulm"] * 2), "rich": np.array([b"no", b"maybe"])})
    message = "the label is 'maybe', which is none of data.schema.classes: no, yes, at record 1"
    assert message in error_of(tmp_path, TABLE, rows)


VECTOR = HEAD + "def custom_model(): return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
NUMBERS = {"wealth": "float32", "age": "int64"}
AS_EXAMPLES = [
    serialize_example({"town": town, "age": int(age), "wealth": float(wealth), "rich": rich})
    for town, age, wealth, rich in ROWS
]
AS_COLUMNS = ColumnRecords(
    {
        "town": np.array([b"Ulm", b"Bonn"], object),
        "age": np.array([31, 9]),
        "wealth": np.array([0.5, 2], np.float32),
        "rich": np.array([b"yes", b"no"], object),
    }
)


@pytest.mark.parametrize("label_mode", ["int", *repetitions(["binary", "categorical"])])
@pytest.mark.parametrize(
    ("text", "features"), [(TWO_INPUTS, FEATURES), (VECTOR, NUMBERS), (SUBCLASS, FEATURES), (SUBCLASS, NUMBERS)]
)
@pytest.mark.parametrize("records", [ROWS, AS_EXAMPLES, AS_COLUMNS], ids=["text", "examples", "columns"])
@pytest.mark.first_cases(4)
def test_rows_parsed_at_once_are_those_parsed_one_by_one(
    tmp_path: Path, records: Any, text: str, features: dict[str, str], label_mode: str
) -> None:
    schema = SchemaSpec(label="rich", features=features, classes=("no", "yes"), label_mode=label_mode)
    metadata = Metadata("tfrecord") if records is AS_EXAMPLES else Metadata("csv", COLUMNS)
    feed = feed_of(tmp_path, text, schema, metadata)
    minibatch = feed.make_minibatch(0, RecordWindow(records))
    assert minibatch is not None
    dataset = tf.data.Dataset.from_tensor_slices(dict(records.columns) if records is AS_COLUMNS else records)
    features_one_by_one, labels_one_by_one = feed._feed(dataset, "training", metadata).batch(2).get_single_element()
    tf.nest.map_structure(np.testing.assert_array_equal, minibatch.features, features_one_by_one)
    assert tf.nest.map_structure(lambda part: part.dtype, minibatch.features) == tf.nest.map_structure(
        lambda part: part.dtype, features_one_by_one
    )
    np.testing.assert_array_equal(minibatch.labels, labels_one_by_one)
    assert minibatch.labels.dtype == labels_one_by_one.dtype


def test_a_schema_beside_a_feed_that_is_imported_by_a_star_is_refused(tmp_path: Path) -> None:
    (tmp_path / "parsing.py").write_text("def feed(dataset, mode, metadata): return dataset\n")
    with pytest.raises(EdlError, match="has no effect: the model module defines feed"):
        feed_of(tmp_path, "from parsing import *\n" + TWO_INPUTS, TABLE, Metadata("csv", COLUMNS))


def test_several_values_a_record_do_not_become_records(tmp_path: Path) -> None:
    rows = ColumnRecords({"age": np.zeros((2, 3)), "town": np.array([b"Ulm"] * 2), "rich": np.array([b"no"] * 2)})
    schema = SchemaSpec(label="rich", features={**FEATURES, "age": "float64"}, classes=("no", "yes"))
    assert "column 'age' has 3 values a record, and the model's input takes 1" in error_of(tmp_path, schema, rows)


def test_a_model_without_inputs_gets_a_vector_of_numbers_or_a_mapping_with_text(tmp_path: Path) -> None:
    numbers = SchemaSpec(label="rich", features={"wealth": "float32", "age": "int64"}, classes=("no", "yes"))
    minibatch = rows_of(tmp_path, numbers, text=SUBCLASS)
    np.testing.assert_array_equal(minibatch.features, [[0.5, 31], [2, 9]])
    minibatch = rows_of(tmp_path, TABLE, text=SUBCLASS)
    assert {name: value.dtype.name for name, value in minibatch.features.items()} == {"age": "int32", "town": "string"}


def test_predictions_need_neither_label_nor_other_columns(tmp_path: Path) -> None:
    feed = feed_of(tmp_path, TWO_INPUTS, TABLE, Metadata("csv", ("age", "town")), "prediction")
    minibatch = feed.make_minibatch(0, RecordWindow([["31", "Ulm"]], source="rows.csv"))
    np.testing.assert_array_equal(minibatch.features["age"], [[31]])


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (["Ulm", "", "1", "no"], "column 'age' has no value, at record 2 of rows.csv"),
        (["Ulm", "old", "1", "no"], "column 'age' has 'old', which is no int32, at record 2 of rows.csv"),
        (
            ["Ulm", "3", "1", "maybe"],
            "the label is 'maybe', which is none of data.schema.classes: no, yes, at record 2",
        ),
    ],
)
def test_a_row_without_a_usable_value_is_named(tmp_path: Path, row: list[str], said: str) -> None:
    assert said in error_of(tmp_path, TABLE, [*ROWS, row])


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (SchemaSpec(label="rich", features={**FEATURES, "size": "int64"}), ("data.schema.features", "found size")),
        (SchemaSpec(label="rich", features={**FEATURES, "wealth": "int64"}), ("no input wealth", "age, town")),
        (SchemaSpec(label="rich", features={"age": "string", "town": "string"}), ("'age' is string", "float32")),
        (SchemaSpec(label="poor", features=FEATURES), ("data.schema.label", "poor", "data.training")),
        (SchemaSpec(label="rich", image_size=(2, 2)), ("data.schema.image_size", "csv")),
        (SchemaSpec(), ("data.schema.label", "is missing", "rich")),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, schema: SchemaSpec, said: tuple[str, ...]) -> None:
    assert not missing_keys(error_of(tmp_path, schema), *said)


def test_fractions_are_not_cut_off_and_lists_are_refused(tmp_path: Path) -> None:
    typed = {"age": np.array([1.5]), "town": np.array([b"Ulm"], object), "rich": np.array([True])}
    metadata = Metadata("parquet", tuple(typed))
    schema = SchemaSpec(label="rich", features=FEATURES)
    with pytest.raises(EdlError, match="column 'age' is float64, and the schema declares it as int32"):
        feed_of(tmp_path, TWO_INPUTS, schema, metadata).make_minibatch(0, RecordWindow(ColumnRecords(typed)))
    ragged = {**typed, "age": RaggedColumn(np.arange(2), np.array([0, 2]))}
    with pytest.raises(EdlError, match="column 'age' has lists of different lengths"):
        feed_of(tmp_path, TWO_INPUTS, schema, metadata).make_minibatch(0, RecordWindow(ColumnRecords(ragged)))


TOKENS = HEAD + (
    "def custom_model():\n"
    "    tokens = keras.Input((None,), name='tokens', dtype='int64')\n"
    "    return keras.Model(tokens, keras.layers.Embedding(9, 2)(tokens))\n"
)


def test_lists_are_padded_to_the_longest_of_the_minibatch(tmp_path: Path) -> None:
    typed = {"tokens": RaggedColumn(np.arange(1, 6), np.array([0, 2, 2, 5])), "rich": np.arange(3.0)}
    schema, metadata = SchemaSpec(label="rich", features={"tokens": "int64"}), Metadata("parquet", tuple(typed))
    minibatch = feed_of(tmp_path, TOKENS, schema, metadata, pad=True).make_minibatch(
        0, RecordWindow(ColumnRecords(typed))
    )
    assert minibatch is not None
    np.testing.assert_array_equal(minibatch.features, [[1, 2, 0], [0, 0, 0], [3, 4, 5]])
    with pytest.raises(EdlError) as error:
        feed_of(tmp_path, TOKENS, schema, metadata).make_minibatch(0, RecordWindow(ColumnRecords(typed)))
    assert "train.batches.pad" in str(error.value.hint)


def test_lists_of_lists_are_padded_in_both_axes(tmp_path: Path) -> None:
    words = RaggedColumn(np.arange(1, 7), np.array([0, 1, 3, 3, 6]))
    typed = {"tokens": RaggedColumn(words, np.array([0, 2, 4])), "rich": np.arange(2.0)}
    schema, metadata = SchemaSpec(label="rich", features={"tokens": "int64"}), Metadata("parquet", tuple(typed))
    text = TOKENS.replace("(None,)", "(None, None)")
    minibatch = feed_of(tmp_path, text, schema, metadata, pad=True).make_minibatch(
        0, RecordWindow(ColumnRecords(typed))
    )
    assert minibatch is not None
    np.testing.assert_array_equal(minibatch.features, [[[1, 0, 0], [2, 3, 0]], [[0, 0, 0], [4, 5, 6]]])


def test_a_feed_gets_lists_of_lists_as_ragged_tensors(tmp_path: Path) -> None:
    words = RaggedColumn(np.arange(1, 7), np.array([0, 1, 3, 3, 6]))
    records = ColumnRecords({"words": RaggedColumn(words, np.array([0, 2, 4]))})
    feed = FeedFunction(
        lambda dataset, mode, metadata: dataset.map(lambda row: (row["words"].row_lengths(), tf.size(row["words"]))),
        "training",
        Metadata("parquet", ("words",)),
        zoo=tmp_path,
    )
    minibatch = feed.make_minibatch(0, RecordWindow(records))
    assert minibatch is not None
    np.testing.assert_array_equal(minibatch.features, [[1, 2], [0, 3]])


def test_whole_numbers_of_a_column_become_classes(tmp_path: Path) -> None:
    typed = {"age": np.array([1, 2]), "town": np.array([b"Ulm", b"Ulm"], object), "rich": np.array([7, 3])}
    schema = SchemaSpec(label="rich", features=FEATURES, classes=("3", "7"))
    feed = feed_of(tmp_path, TWO_INPUTS, schema, Metadata("parquet", tuple(typed)))
    minibatch = feed.make_minibatch(0, RecordWindow(ColumnRecords(typed)))
    assert minibatch is not None
    assert minibatch.labels.numpy().tolist() == [1, 0]


def test_records_of_example_are_parsed_by_the_schema(tmp_path: Path) -> None:
    records = [serialize_example({"age": age, "town": "Ulm", "rich": "yes"}) for age in (31, 9)]
    minibatch = feed_of(tmp_path, TWO_INPUTS, TABLE, Metadata("tfrecord")).make_minibatch(0, RecordWindow(records))
    assert minibatch is not None
    np.testing.assert_array_equal(minibatch.features["age"], [[31], [9]])
    assert minibatch.labels.numpy().tolist() == [1, 1]
    unlabelled = [serialize_example({"age": 3, "town": "Ulm"})]
    feed = feed_of(tmp_path, TWO_INPUTS, TABLE, Metadata("tfrecord"), "prediction")
    minibatch = feed.make_minibatch(0, RecordWindow(unlabelled))
    assert minibatch is not None
    assert minibatch.features["age"].numpy().tolist() == [[3]]


# --------------------------------------------------------------------------------------------------
# Images.


def images_of(folder: Path, channels: int = 3) -> Path:
    rng = np.random.default_rng(0)
    for number in range(6):
        file = folder / "pets" / ("cat", "dog")[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (9 + number, 7, channels), np.uint8)
        file.write_bytes(tf.io.encode_png(pixels).numpy())
    return folder / "pets"


def image_model(*shape: int | None) -> str:
    return HEAD + (
        f"def custom_model():\n    return keras.Sequential([keras.Input({shape}), keras.layers.GlobalMaxPooling2D()])\n"
    )


def image_batch(folder: Path, schema: SchemaSpec, text: str, mode: str = "training") -> Any:
    reader = open_reader(str(images_of(folder)))
    (source,) = reader.sources()
    feed = feed_of(folder, text, schema, reader.metadata, mode)
    return feed.make_minibatch(0, RecordWindow(reader.read(source.name, 0, source.records)))


@pytest.mark.parametrize("label_mode", [None, "int", "categorical", "binary"])
@pytest.mark.parametrize("color_mode", [None, "grayscale", "rgb", "rgba"])
@pytest.mark.first_cases(5)
def test_images_are_those_of_image_dataset_from_directory(
    tmp_path: Path, label_mode: str | None, color_mode: str | None
) -> None:
    import keras

    minibatch = image_batch(
        tmp_path,
        SchemaSpec(label_mode=label_mode, image_size=(8, 5), color_mode=color_mode),
        image_model(None, None, {"grayscale": 1, "rgba": 4}.get(color_mode or "", 3)),
    )
    options = {"label_mode": label_mode or "int", "color_mode": color_mode or "rgb"}
    theirs = keras.utils.image_dataset_from_directory(
        str(tmp_path / "pets"), image_size=(8, 5), shuffle=False, batch_size=6, verbose=False, **options
    )
    ((images, labels),) = list(theirs)
    np.testing.assert_array_equal(minibatch.features, images)
    np.testing.assert_array_equal(minibatch.labels, labels)
    assert (minibatch.features.dtype, minibatch.labels.dtype) == (images.dtype, labels.dtype)


@pytest.fixture(params=["direct", "graph"])
def each_way_to_decode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without native code a graph decodes. Where none is built, both are the same."""
    if request.param == "graph":
        monkeypatch.setattr("edl.keras.image_feed.find_resizer", lambda: None)


def test_images_become_what_the_model_s_input_is(tmp_path: Path) -> None:
    for name, axes, expected in (("a", (4, 6, 1), (6, 4, 6, 1)), ("b", (None, None, 3), (6, 256, 256, 3))):
        (tmp_path / name).mkdir()
        assert image_batch(tmp_path / name, SchemaSpec(), image_model(*axes)).features.shape == expected
    minibatch = image_batch(tmp_path, SchemaSpec(), image_model(4, 6, 1), "prediction")
    assert (minibatch.features.shape, minibatch.labels) == ((6, 4, 6, 1), None)


@pytest.mark.usefixtures("each_way_to_decode")
@pytest.mark.parametrize(
    ("schema", "shape", "said"),
    [
        (SchemaSpec(image_size=(8, 8)), (4, 6, 3), ("data.schema.image_size", "(8, 8, 3)", "(4, 6, 3)")),
        (SchemaSpec(color_mode="rgb"), (4, 6, 1), ("data.schema.color_mode",)),
        (SchemaSpec(), (4, 6, 2), ("2 channels",)),
        (SchemaSpec(label="age"), (4, 6, 3), ("data.schema.label", "images")),
    ],
)
def test_images_that_do_not_fit_the_model_are_refused_by_name(
    tmp_path: Path, schema: SchemaSpec, shape: tuple[int, ...], said: tuple[str, ...]
) -> None:
    with pytest.raises(EdlError) as error:
        image_batch(tmp_path, schema, image_model(*shape))
    assert not missing_keys(f"{error.value} {error.value.where}", *said)


@pytest.mark.usefixtures("each_way_to_decode")
def test_an_image_outside_of_the_classes_is_named(tmp_path: Path) -> None:
    folder = images_of(tmp_path)
    (folder / "stray.png").write_bytes((folder / "cat" / "0.png").read_bytes())
    with pytest.raises(EdlError) as error:
        image_batch(tmp_path, SchemaSpec(), image_model(4, 6, 3))
    assert not missing_keys(f"{error.value} {getattr(error.value, 'detail', '')}", "in no folder of a class", "stray")


@pytest.mark.usefixtures("each_way_to_decode")
def test_an_image_that_cannot_be_decoded_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader finds truncated ones; others show when they are decoded."""
    folder = images_of(tmp_path)
    monkeypatch.setitem(globals(), "images_of", lambda folder: folder / "pets")
    header = b"IHDR" + bytes(13)  # no pixels, and a right checksum
    (folder / "dog" / "3.png").write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            len(part[4:]).to_bytes(4, "big") + part + zlib.crc32(part).to_bytes(4, "big") for part in (header, b"IEND")
        )
    )
    for mode in ("training", "prediction"):
        with pytest.raises(EdlError) as error:
            image_batch(tmp_path, SchemaSpec(), image_model(4, 6, 3), mode)
        assert not missing_keys(f"{error.value} {error.value.hint}", "dog/3.png", "decoded", "replace the file")


@pytest.mark.usefixtures("each_way_to_decode")
def test_a_third_class_is_not_binary(tmp_path: Path) -> None:
    folder = images_of(tmp_path)
    (folder / "cow").mkdir()
    (folder / "cow" / "0.png").write_bytes((folder / "cat" / "0.png").read_bytes())
    with pytest.raises(EdlError, match="binary needs two classes, found 3"):
        image_batch(tmp_path, SchemaSpec(label_mode="binary"), image_model(4, 6, 3))


@pytest.mark.first_cases(2)
@pytest.mark.usefixtures("each_way_to_decode")
@pytest.mark.parametrize("threads", [None, 2, 5])
def test_images_that_threads_decode_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int | None
) -> None:
    monkeypatch.setattr("edl.keras.default_feed.decoding_threads", lambda: threads)
    monkeypatch.setattr("edl.keras.image_feed.decoding_threads", lambda: threads)
    folder = images_of(tmp_path)
    rng = np.random.default_rng(1)
    # one that takes longer than all others together comes first
    large = rng.integers(0, 256, (1500, 1500, 3), np.uint8)
    (folder / "cat" / "0.png").write_bytes(tf.io.encode_png(large).numpy())
    reader = open_reader(str(folder))
    (source,) = reader.sources()
    schema = SchemaSpec(image_size=(8, 5))
    feed = feed_of(tmp_path, image_model(8, 5, 3), schema, reader.metadata)
    minibatch = feed.make_minibatch(0, RecordWindow(reader.read(source.name, 0, source.records)))
    assert minibatch is not None
    files = [folder / name for name in ("cat/0.png", "cat/2.png", "cat/4.png", "dog/1.png", "dog/3.png", "dog/5.png")]
    expected = [tf.image.resize(tf.io.decode_image(file.read_bytes()), (8, 5)) for file in files]
    np.testing.assert_array_equal(minibatch.features, np.stack(expected))


@pytest.mark.parametrize(("format_name", "threads", "at_once"), [("images", 4, 2), ("images", None, 1), ("csv", 4, 1)])
def test_minibatches_of_images_are_made_while_the_last_image_of_another_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str, threads: int | None, at_once: int
) -> None:
    monkeypatch.setattr("edl.keras.default_feed.decoding_threads", lambda: threads)
    assert feed_of(tmp_path, image_model(8, 5, 3), SchemaSpec(), Metadata(format_name)).windows_at_once == at_once


@pytest.mark.parametrize(("cores", "threads"), [(1, None), (4, 4)])
def test_as_many_images_are_decoded_at_once_as_the_worker_has_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: int | None
) -> None:
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: cores)
    assert decoding_threads() == threads


@pytest.mark.parametrize("feed", ["", "def feed(dataset, mode, metadata):\n    return dataset\n"])
def test_one_label_for_two_outputs_is_refused_with_what_to_do(tmp_path: Path, feed: str) -> None:
    (tmp_path / "model.py").write_text(TWO_INPUTS + feed)
    schema = None if feed else SchemaSpec(label="rich", features=FEATURES)
    module = load_model_module(ModelSpec("model.custom_model", zoo=str(tmp_path)), needs_metrics=False, schema=schema)
    predictions = {"low": tf.zeros((2, 1)), "high": tf.zeros((2, 1))}
    with pytest.raises(EdlError) as error:
        ModelLoss(module, ["low", "high"])(tf.zeros((2, 1)), predictions, training=True)
    text = f"{error.value} {error.value.where} {error.value.hint}"
    place = "feed gives 1 label per record" if feed else "data.schema.label"
    assert not missing_keys(text, place, "the model has 2 outputs: 'high', 'low'", "labels by the outputs' names")
    assert ("remove data.schema" in text) == (not feed)
