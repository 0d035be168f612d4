"""Windows through the user's feed: one minibatch each, one trace, errors that say what was expected."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.api.job_spec import ModelSpec  # noqa: E402
from edl.data.reader import CorruptRange, CorruptRecordError, Metadata  # noqa: E402
from edl.data.record_columns import ColumnRecords, RaggedColumn  # noqa: E402
from edl.data.tf_example import serialize_example  # noqa: E402
from edl.keras.model_contract import load_model_module  # noqa: E402
from edl.keras.user_code import UserCodeError  # noqa: E402
from edl.worker.feed_pipeline import FeedError, FeedFunction, _find_bulk_parse, _to_tensors, feed_in_background  # noqa: E402
from edl.worker.lease_client import LeasedTask  # noqa: E402
from edl.worker.record_stream import CorruptRecordSkipper, RecordStream, RecordWindow  # noqa: E402

ZOO = Path(__file__).parents[3] / "model_zoo"
RECORDS = [serialize_example({"x": [float(i), i + 0.5], "y": i}) for i in range(20)]
SPEC = {"x": tf.io.FixedLenFeature([2], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}


def pair(record: Any) -> Any:
    example = tf.io.parse_single_example(record, SPEC)
    return example["x"], example["y"]


def window(start: int, end: int) -> RecordWindow:
    return RecordWindow(RECORDS[start:end], 0, "x.recordio", start)


def windows(size: int = 4, count: int = 20) -> Iterator[tuple[int, RecordWindow]]:
    return ((start // size, window(start, start + size)) for start in range(0, count, size))


def feed_minibatches(
    feed: Any, mode: str, metadata: Any, windows: Iterator[tuple[int, RecordWindow]], *, prefetch: int = 2
) -> Iterator[Any]:
    return feed_in_background(FeedFunction(feed, mode, metadata), windows, prefetch=prefetch)


def test_a_type_that_tensorflow_has_not_is_named_with_its_column() -> None:
    records = ColumnRecords({"x": np.zeros(2), "odd": np.zeros(2, [("a", "f4")])})
    with pytest.raises(FeedError, match="column 'odd' has the type"):
        FeedFunction(lambda dataset, mode, metadata: dataset, "training", "about").make_minibatch(
            0, RecordWindow(records)
        )


def test_every_window_is_one_minibatch_and_feed_is_traced_once() -> None:
    calls = []

    def feed(dataset: Any, mode: str, metadata: Any) -> Any:
        calls.append((mode, metadata))
        return dataset.map(pair).shuffle(100)

    minibatches = list(feed_minibatches(feed, "training", "about", windows(8)))
    assert calls == [("training", "about")]
    assert [minibatch.tag for minibatch in minibatches] == [0, 1, 2]
    assert [sorted(minibatch.labels.numpy()) for minibatch in minibatches] == [
        list(range(8)), list(range(8, 16)), list(range(16, 20))
    ]  # fmt: skip
    for minibatch in minibatches:
        np.testing.assert_array_equal(minibatch.features[:, 0], minibatch.labels)


def traced_operations(feed: FeedFunction, of: RecordWindow) -> Any:
    """The operations of the graph that is traced for such records."""
    return feed._trace_feed(_to_tensors(of.records)).graph.get_operations()  # type: ignore[attr-defined]


def map_threads(operations: list[Any]) -> list[bool]:
    """Whether each ``map`` among these operations uses TensorFlow's thread pool."""
    return [each.get_attr("use_inter_op_parallelism") for each in operations if each.type == "MapDataset"]


def test_functions_of_map_run_on_the_thread_of_feed() -> None:
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1], [10, 11], tf.int64, tf.int64), -1)

    def parse(record: Any) -> Any:
        x, y = pair(record)
        nested = tf.data.Dataset.range(y).map(lambda n: n + 1).reduce(tf.constant(0, tf.int64), lambda a, b: a + b)
        doubled = tf.ensure_shape(tf.numpy_function(lambda value: 2 * value, [y], tf.int64), [])
        noise = tf.random.uniform([], maxval=1, dtype=tf.int64)
        return x, tf.stack([nested, doubled, table.lookup(y), noise])

    feed = FeedFunction(lambda dataset, mode, metadata: dataset.map(parse), "training", None)
    minibatch = feed.make_minibatch(0, window(0, 8))
    assert minibatch is not None
    np.testing.assert_array_equal(
        minibatch.labels, [[y * (y + 1) // 2, 2 * y, 10 + y if y < 2 else -1, 0] for y in range(8)]
    )
    assert map_threads(traced_operations(feed, window(0, 8))) == [False]


@pytest.mark.parametrize(
    "change",
    [
        lambda y: tf.cond(y < 2, lambda: y, lambda: -y),
        lambda y: tf.while_loop(lambda n: n < 5, lambda n: [n + 1], [y])[0],
        lambda y: tf.map_fn(lambda n: n + 1, y[None])[0],
        tf.function(lambda y: tf.switch_case(tf.cast(y % 2, tf.int32), [lambda: y, lambda: 2 * y])),
        tf.function(lambda y: tf.cond(y < 2, lambda: y, lambda: -y)),
    ],
)
def test_functions_of_map_may_have_control_flow(change: Any) -> None:
    def parse(record: Any) -> Any:
        x, y = pair(record)
        return x, change(y)

    feed = FeedFunction(lambda dataset, mode, metadata: dataset.map(parse), "training", None)
    minibatch = feed.make_minibatch(0, window(0, 8))
    assert minibatch is not None
    np.testing.assert_array_equal(minibatch.labels, [change(tf.constant(y, tf.int64)) for y in range(8)])
    assert map_threads(traced_operations(feed, window(0, 8))) == [True]


def labelled_by(draw: Any) -> Any:
    """A feed whose labels are random numbers."""
    return lambda dataset, mode, metadata: dataset.map(lambda record: (record, draw()))


def labels_of(feed: Any) -> list[Any]:
    return [
        each for minibatch in feed_minibatches(feed, "training", None, windows()) for each in minibatch.labels.numpy()
    ]


@pytest.fixture
def _seeded() -> Iterator[None]:
    """As in a worker, which builds the user's model with a seed."""
    keras.utils.set_random_seed(42)
    yield
    tf.random.set_seed(None)


@pytest.mark.usefixtures("_seeded")
@pytest.mark.parametrize(
    "draw",
    [
        lambda: tf.random.uniform([]),
        lambda: tf.reduce_sum(tf.image.random_crop(tf.reshape(tf.range(1 << 20), [1 << 10, 1 << 10, 1]), [2, 2, 1])),
        lambda: tf.cond(tf.random.normal([]) < 0, lambda: tf.random.uniform([]), lambda: tf.random.normal([])),
        lambda: tf.function(lambda: tf.random.uniform([]))(),
        lambda: keras.random.uniform([]),
    ],
)
def test_random_numbers_go_on_in_the_next_minibatch(draw: Any) -> None:
    single = tf.data.Dataset.from_tensor_slices(RECORDS).map(lambda record: draw())
    assert len(set(single.as_numpy_iterator())) == len(RECORDS)
    assert len(set(labels_of(labelled_by(draw)))) == len(RECORDS)


@pytest.mark.usefixtures("_seeded")
@pytest.mark.parametrize("mode", ["training", "evaluation", "prediction"])
@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (lambda: tf.random.uniform([], seed=7), "RandomUniform"),
        (lambda: tf.image.random_flip_left_right(tf.zeros([2, 2, 3]), seed=1), "random_flip_left_right"),
        (tf.function(lambda: tf.random.normal([], seed=0)), "RandomStandardNormal"),
        (
            lambda: tf.data.Dataset.range(3).map(lambda n: tf.random.shuffle([n], 3)).get_single_element(),
            "RandomShuffle",
        ),
    ],
)
def test_a_seed_of_a_random_operation_is_refused(mode: str, draw: Any, name: str) -> None:
    """Each minibatch would begin with it."""

    def feed(dataset: Any, mode: str, metadata: Any) -> Any:
        return dataset.map(lambda record: draw() if mode == "prediction" else (record, draw()))

    with pytest.raises(FeedError, match=f"with a seed, in .*{name}") as caught:
        list(feed_minibatches(feed, mode, None, windows()))
    assert "leave `seed` out" in caught.value.hint


def test_numbers_of_a_generator_are_those_of_one_data_set() -> None:
    def draw(generator: Any) -> Any:
        return tf.random.stateless_uniform([], generator.make_seeds(1)[:, 0])

    generators = [tf.random.Generator.from_seed(1) for _ in range(2)]
    single = tf.data.Dataset.from_tensor_slices(RECORDS).map(lambda record: draw(generators[0]))
    assert labels_of(labelled_by(lambda: draw(generators[1]))) == list(single.as_numpy_iterator())


RANGE = tf.data.Dataset.range


@pytest.mark.parametrize(
    ("feed", "name"),
    [
        (lambda d, m, i: d.skip(1).map(pair), r"skip\(\)"),
        (lambda d, m, i: d.map(pair).take(10_000), r"take\(\)"),
        (lambda d, m, i: d.take(tf.random.uniform([], 5, 6, tf.int64)).map(pair), r"take\(\)"),
        (lambda d, m, i: d.shard(2, 0).map(pair), r"shard\(\)"),
        (lambda d, m, i: d.enumerate().map(lambda n, record: pair(record)), r"enumerate\(\)"),
        (lambda d, m, i: d.map(pair).scan(0, lambda n, element: (n + 1, element)), r"scan\(\)"),
        (lambda d, m, i: d.map(pair).take_while(lambda x, y: y < 2), r"take_while\(\)"),
        (lambda d, m, i: tf.data.Dataset.zip((d, RANGE(20))), r"zip\(\)"),
        (lambda d, m, i: tf.data.Dataset.zip((d, (tf.data.Dataset.counter(), tf.data.Dataset.counter()))), r"zip\(\)"),
        (lambda d, m, i: tf.data.Dataset.zip((d, d.filter(lambda record: True))), r"zip\(\)"),
        (lambda d, m, i: d.unique().map(pair), r"unique\(\)"),
        (lambda d, m, i: d.window(2, 1).flat_map(lambda w: w.batch(2)).map(lambda w: (w[0], w[1])), r"window\(\)"),
        (lambda d, m, i: d.map(pair).filter(lambda x, y: y > 2).concatenate(d.map(pair).take(1)), r"take\(\)"),
        (lambda d, m, i: d.concatenate(tf.data.Dataset.from_tensors(b"")).map(lambda r: (r, r)), r"concatenate\(\)"),
        (lambda d, m, i: tf.data.Dataset.sample_from_datasets([d, d]).map(pair), r"sample_from_datasets\(\)"),
        (lambda d, m, i: d.map(pair).cache("/tmp/cached"), r"cache\(\) with a file"),
        (lambda d, m, i: d.batch(3, drop_remainder=True).map(parse_in_bulk).unbatch(), "drop_remainder=True"),
        (lambda d, m, i: d.padded_batch(3, drop_remainder=True).map(parse_in_bulk).unbatch(), "drop_remainder=True"),
        (lambda d, m, i: with_first(d, d.take(1).get_single_element()), r"take\(\)"),
        (lambda d, m, i: with_first(d, next(iter(d))), r"iter\(\)"),
        (lambda d, m, i: with_first(d, d.reduce(b"", lambda old, new: new)), r"reduce\(\)"),
    ],
)
def test_steps_that_depend_on_the_position_of_a_record_are_refused(feed: Any, name: str) -> None:
    """They would begin anew with each minibatch."""
    with pytest.raises(FeedError, match=name) as caught:
        list(feed_minibatches(feed, "training", None, windows()))
    assert "one minibatch at a time" in caught.value.hint


def with_first(dataset: Any, first: Any) -> Any:
    return dataset.map(lambda record: (record, first))


def parts_of(record: Any) -> Any:
    """A data set of a record: positions in it are the record's own."""
    parts = tf.data.Dataset.from_tensors(record).repeat(3).enumerate().skip(1).take(1)
    return tf.data.Dataset.zip((parts, RANGE(1))).map(lambda part, n: pair(part[1]))


@pytest.mark.parametrize(
    "feed",
    [
        lambda d, m, i: d.flat_map(parts_of),
        lambda d, m, i: d.interleave(parts_of, cycle_length=2),
        lambda d, m, i: d.map(pair).take(-1).skip(0).shard(1, 0),
        lambda d, m, i: d.map(pair).cache().prefetch(2),
        lambda d, m, i: tf.data.Dataset.zip((d.map(lambda r: pair(r)[0]).shuffle(1), d.map(lambda r: pair(r)[1]))),
        lambda d, m, i: (lambda kept: tf.data.Dataset.zip((kept.map(lambda x, y: x), kept.map(lambda x, y: y))))(
            d.map(pair).filter(lambda x, y: y >= 0)
        ),
        lambda d, m, i: d.filter(lambda r: pair(r)[1] % 2 == 0).concatenate(
            d.filter(lambda r: pair(r)[1] % 2 == 1)
        ).map(pair),
        lambda d, m, i: d.batch(3, drop_remainder=False).map(parse_in_bulk).unbatch().map(lambda x, y: (x["x"], y)),
        lambda d, m, i: d.map(
            lambda r, other=RANGE(9).skip(2).take(1): (pair(r)[0], pair(r)[1] + 0 * other.get_single_element())
        ),
    ],
)  # fmt: skip
def test_steps_within_a_record_and_those_that_change_nothing_are_fine(feed: Any) -> None:
    single = feed(tf.data.Dataset.from_tensor_slices(RECORDS), "training", None)
    minibatches = list(feed_minibatches(feed, "training", None, windows()))
    assert sorted(y for each in minibatches for y in each.labels.numpy()) == sorted(int(y) for x, y in single)
    for each in minibatches:
        np.testing.assert_array_equal(each.features[:, 0], each.labels)


def test_prediction_has_features_alone_and_rows_of_a_table_are_cells() -> None:
    module = load_model_module(ModelSpec(zoo=str(ZOO), definition="iris.iris_dnn.custom_model", params={}))
    rows = [["1", "2", "3", "4", "0"], ["5", "6", "7", "8", "2"]]
    (training,) = feed_minibatches(module.feed, "training", None, iter([(0, RecordWindow(rows))]))
    (prediction,) = feed_minibatches(module.feed, "prediction", None, iter([(0, RecordWindow(rows))]))
    np.testing.assert_array_equal(training.features, [[1, 2, 3, 4], [5, 6, 7, 8]])
    np.testing.assert_array_equal(training.labels, [0, 2])
    np.testing.assert_array_equal(prediction.features, training.features)
    assert prediction.labels is None


def test_a_window_that_feed_filters_away_has_no_features() -> None:
    minibatches = feed_minibatches(lambda d, m, i: d.map(pair).filter(lambda x, y: y >= 6), "training", None, windows())
    assert [(m.tag, None if m.features is None else m.features.shape[0]) for m in minibatches] == [
        (0, None), (1, 2), (2, 4), (3, 4), (4, 4)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("feed", "said"),
    [
        (lambda d, m, i: d.map(pair).map(lambda x, y: x), "yields float32.*expected .features, labels."),
        (lambda d, m, i: d.map(pair).map(lambda x, y: {"x": x, "y": y}), "yields {.*expected .features, labels."),
        (lambda d, m, i: [1, 2], "returned list, expected a tf.data.Dataset"),
        (lambda d, m, i: None, "returned NoneType, expected a tf.data.Dataset"),
        (lambda d, m, i: d.map(pair).batch(2), "yields batches: .float32"),
        (lambda d, m, i: d.map(pair).repeat(), "without end"),
        (lambda d, m, i: d.map(pair).map(lambda x, y: (tf.range(y), y)), "feed.. raised"),
        (lambda d, m, i: d.map(lambda record: 1 / 0), "raised ZeroDivisionError"),
        (lambda d, m, i: d.map(lambda record: (tf.io.decode_raw(record, tf.float64), 1)), "feed.. raised"),
    ],
)
def test_a_feed_that_cannot_be_used_is_told_what_was_expected(feed: Any, said: str) -> None:
    with pytest.raises(FeedError, match=said) as caught:
        list(feed_minibatches(feed, "training", None, windows()))
    assert caught.value.tag == 0


def parse_cells(dataset: Any, mode: str, metadata: Any) -> Any:
    return dataset.map(lambda cells: (tf.strings.to_number(cells[0]), tf.strings.to_number(cells[1])))


@pytest.mark.parametrize(
    ("skipped", "place"), [(0, "at record 6 of prices.csv"), (1, "at records 4 to 8 of prices.csv")]
)
def test_records_that_feed_cannot_take_are_named(skipped: int, place: str) -> None:
    rows = [["1", "2"]] * 4
    bad = RecordWindow([*rows[:2], ["cheap", "2"], rows[3]], skipped, "prices.csv", 4)
    minibatches = feed_minibatches(
        parse_cells, "training", None, iter([(0, RecordWindow(rows, 0, "prices.csv", 0)), (1, bad)])
    )
    next(minibatches)
    with pytest.raises(FeedError, match=r"feed\(\) raised .*cheap.*, " + place) as caught:
        next(minibatches)
    assert caught.value.tag == 1


def test_a_minibatch_of_which_no_record_is_wrong_alone_is_named_as_a_whole() -> None:
    ragged = feed_minibatches(
        lambda d, m, i: d.map(pair).map(lambda x, y: (tf.range(y), y)), "training", None, iter([(3, window(8, 12))])
    )
    with pytest.raises(FeedError, match=r"at records 8 to 11 of x\.recordio"):
        next(ragged)


def test_a_feed_that_cannot_be_traced_is_not_blamed_on_records() -> None:
    with pytest.raises(FeedError) as caught:
        next(feed_minibatches(lambda d, m, i: d.map(lambda record: 1 / 0), "training", None, windows()))
    assert "x.recordio" not in str(caught.value)


def test_batches_that_are_unbatched_again_are_fine() -> None:
    minibatches = list(feed_minibatches(lambda d, m, i: d.map(pair).batch(3).unbatch(), "training", None, windows()))
    assert [minibatch.features.shape for minibatch in minibatches] == [(4, 2)] * 5


def parse_in_bulk(records: Any) -> Any:
    example = tf.io.parse_example(records, SPEC)
    return {"x": example["x"], "y": (example["y"], tf.strings.as_string(example["y"]))}, example["y"]


def takes_batches_as_they_are(feed: Any) -> bool:
    operations = traced_operations(FeedFunction(feed, "training", None), window(0, 4))
    return any(each.type in ("If", "StatelessIf") for each in operations)


@pytest.mark.parametrize("size", [1, 3, 4, 1024])
def test_batches_that_feed_has_made_have_the_values_of_batches_that_are_taken_apart(size: int) -> None:
    # Whatever follows `unbatch` makes EDL take single records.
    feeds = [
        lambda d, m, i: d.batch(size).map(parse_in_bulk).prefetch(1).unbatch(),
        lambda d, m, i: d.batch(size).map(parse_in_bulk).unbatch().prefetch(1),
    ]
    assert [takes_batches_as_they_are(feed) for feed in feeds] == [True, False]
    once, apart = (list(feed_minibatches(feed, "training", None, windows(4, 10))) for feed in feeds)
    assert [minibatch.tag for minibatch in once] == [minibatch.tag for minibatch in apart] == [0, 1, 2]
    for one, other in zip(once, apart, strict=True):
        values, others = ((each.features, each.labels) for each in (one, other))
        tf.nest.assert_same_structure(values, others)
        for left, right in zip(tf.nest.flatten(values), tf.nest.flatten(others), strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(
    "feed",
    [
        lambda d, m, i: d.batch(4).shuffle(4, seed=1).map(parse_in_bulk).unbatch(),
        lambda d, m, i: d.map(pair).batch(4).unbatch(),
        lambda d, m, i: d.batch(2).batch(2).map(lambda rows: parse_in_bulk(tf.reshape(rows, [-1]))).unbatch(),
        lambda d, m, i: d.batch(4).map(lambda rows: tf.RaggedTensor.from_row_lengths(rows, [1, 3])).unbatch(),
    ],
)
def test_what_may_have_several_batches_is_taken_apart(feed: Any) -> None:
    dataset = feed(tf.data.Dataset.from_tensor_slices(RECORDS[:4]), "training", None)
    with tf.Graph().as_default():
        source = tf.data.Dataset.from_tensor_slices(RECORDS[:4])
        assert _find_bulk_parse(source, feed(source, "training", None)) is None
    assert len(list(dataset)) > 1


@pytest.mark.parametrize(("size", "said"), [(2, "feed.. raised"), (1024, "feed yields columns of 4 and 3 elements")])
def test_columns_of_unequal_lengths_are_refused(size: int, said: str) -> None:
    def feed(dataset: Any, mode: str, metadata: Any) -> Any:
        return dataset.batch(size).map(pair_of_unequal_lengths).unbatch()

    def pair_of_unequal_lengths(records: Any) -> Any:
        example = tf.io.parse_example(records, SPEC)
        return example["x"], example["y"][1:]

    with pytest.raises(FeedError, match=said):
        list(feed_minibatches(feed, "training", None, windows()))


@pytest.mark.parametrize("size", [2, 1024])
def test_the_record_that_has_a_label_but_no_features_is_named(size: int) -> None:
    def feed(dataset: Any, mode: str, metadata: Any) -> Any:
        return dataset.batch(size).map(features_but_of_record_6).unbatch()

    def features_but_of_record_6(records: Any) -> Any:
        example = tf.io.parse_example(records, SPEC)
        return tf.boolean_mask(example["x"], example["y"] != 6), example["y"]

    with pytest.raises(FeedError, match=r"at record 6 of x\.recordio") as caught:
        list(feed_minibatches(feed, "training", None, windows()))
    assert caught.value.tag == 1


def test_a_data_set_that_feed_has_made_of_more_rows_is_taken_apart() -> None:
    def feed(dataset: Any, mode: str, metadata: Any) -> Any:
        records = dataset.batch(1024).get_single_element()
        twice = tf.data.Dataset.from_tensor_slices(tf.repeat(records, 2))
        return twice.batch(4).map(parse_every_other).unbatch()

    def parse_every_other(records: Any) -> Any:
        return parse_in_bulk(records[::2])

    minibatches = list(feed_minibatches(feed, "training", None, windows()))
    assert [minibatch.labels.numpy().tolist() for minibatch in minibatches] == np.arange(20).reshape(5, 4).tolist()


def generated(generate: Callable[[], Iterator[Any]]) -> Any:
    number = tf.TensorSpec([], tf.float32)
    return tf.data.Dataset.from_generator(generate, output_signature=(number, number))


@pytest.mark.parametrize(
    "feed",
    [
        lambda d, m, i, made=RANGE(4).map(lambda n: (n, n)): made,
        lambda d, m, i, made=RANGE(4).map(lambda n: (n, n)): made.batch(2).unbatch(),
        lambda d, m, i: RANGE(4).map(lambda n: (n, n)),
        lambda d, m, i: generated(lambda: iter([(1.0, 2.0)] * 4)),
        lambda d, m, i: generated(lambda: map(pair, d.as_numpy_iterator())),
    ],
    ids=["made before feed was called", "made before and changed", "made in feed", "a generator", "its generator"],
)
def test_a_feed_that_makes_nothing_of_its_records_is_refused(feed: Any) -> None:
    """Each minibatch would have the same elements, and all records would count as trained."""
    with pytest.raises(FeedError, match="no record of the job's data would be used") as caught:
        list(feed_minibatches(feed, "training", None, windows(4, 4)))
    assert "dataset.map" in caught.value.hint


def test_elements_may_be_made_of_the_records_as_a_whole() -> None:
    def feed(dataset: Any, mode: str, metadata: Any) -> Any:
        records = dataset.batch(100).get_single_element()
        return RANGE(tf.shape(records, tf.int64)[0]).map(lambda n: pair(records[n])).batch(4).unbatch()

    minibatches = list(feed_minibatches(feed, "training", None, windows()))
    assert [minibatch.labels.numpy().tolist() for minibatch in minibatches] == np.arange(20).reshape(5, 4).tolist()


def test_batches_of_several_shapes_get_the_hint() -> None:
    def feed(dataset: Any, mode: str, metadata: Any) -> Any:
        return dataset.batch(2).map(widths_of_first_record).unbatch()

    def widths_of_first_record(records: Any) -> Any:
        example = tf.io.parse_example(records, SPEC)
        return tf.zeros([tf.shape(records, tf.int64)[0], 1 + example["y"][0]]), example["y"]

    with pytest.raises(FeedError) as caught:
        list(feed_minibatches(feed, "training", None, windows()))
    assert "same shapes" in caught.value.hint


@pytest.mark.parametrize("size", [2, 1024])
def test_a_bulk_feed_that_keeps_nothing_has_no_features(size: int) -> None:
    def feed(dataset: Any, mode: str, metadata: Any) -> Any:
        return dataset.batch(size).map(only_large).unbatch()

    def only_large(records: Any) -> Any:
        example = tf.io.parse_example(records, SPEC)
        is_large = example["y"] >= 6
        return tf.boolean_mask(example["x"], is_large), tf.boolean_mask(example["y"], is_large)

    minibatches = feed_minibatches(feed, "training", None, windows())
    assert [0 if m.features is None else m.features.shape[0] for m in minibatches] == [0, 2, 4, 4, 4]


@pytest.mark.parametrize("mode", ["training", "evaluation", "prediction"])
@pytest.mark.parametrize(("times", "elements"), [(3, "12"), (65, "more than 256")])
def test_a_feed_with_more_elements_than_records_is_refused(mode: str, times: int, elements: str) -> None:
    def feed(dataset: Any, mode: str, metadata: Any) -> Any:
        pairs = dataset.map(pair)
        return (pairs.map(lambda x, y: x) if mode == "prediction" else pairs).shuffle(100).prefetch(2).repeat(times)

    with pytest.raises(FeedError) as caught:
        list(feed_minibatches(feed, mode, None, windows()))
    assert f"{elements} elements for 4 records" in caught.value.message
    assert "records 0 to 3 of x.recordio" in caught.value.message
    assert caught.value.tag == 0


class RepeatingFeed:
    """A feed that is an object: it repeats its records."""

    def __call__(self, dataset: Any, mode: str, metadata: Any, times: int = 3) -> Any:
        return dataset.map(pair).repeat(times)


@pytest.mark.parametrize("feed", [RepeatingFeed(), partial(RepeatingFeed(), times=2)])
def test_the_error_of_a_feed_that_is_an_object_names_its_file(feed: Any) -> None:
    with pytest.raises(FeedError, match="elements for 4 records") as caught:
        list(feed_minibatches(feed, "training", None, windows()))
    assert caught.value.where == __file__


FEED_OBJECT_MODULE = """
from functools import partial, wraps

def custom_model(): pass
def loss(labels, predictions): return 0.0
def optimizer(): return "sgd"
def eval_metrics_fn(): return {}

class RepeatingFeed:
    def __call__(self, dataset, mode, metadata, times=3):
        return dataset.map(lambda record: (record, 0)).repeat(times)

@wraps(RepeatingFeed())
def decorated(*args, **options):
    return RepeatingFeed()(*args, **options)
"""


@pytest.mark.parametrize(
    "feed", ["RepeatingFeed()", "partial(RepeatingFeed(), times=2)", "partial(decorated, times=2)"]
)
def test_the_error_of_a_feed_of_a_module_that_is_an_object_names_its_file(tmp_path: Path, feed: str) -> None:
    module = module_in(tmp_path, f"{FEED_OBJECT_MODULE}\nfeed = {feed}\n")
    with pytest.raises(FeedError, match="elements for 4 records") as caught:
        list(feed_minibatches(module.feed, "training", None, windows()))
    assert caught.value.where == str(tmp_path / "zoo_under_test" / "model.py")


def test_errors_of_the_windows_come_out_as_they_are_after_what_was_before() -> None:
    def broken() -> Iterator[tuple[int, RecordWindow]]:
        yield 0, window(0, 2)
        raise CorruptRecordError(CorruptRange("file", 2, 3, None, 20, "checksum"))

    minibatches = feed_minibatches(lambda d, m, i: d.map(pair), "training", None, broken())
    assert next(minibatches).tag == 0
    with pytest.raises(CorruptRecordError, match="checksum"):
        next(minibatches)


def test_it_runs_ahead_by_so_many_windows_and_ends_when_it_is_closed() -> None:
    tags, ended = [], threading.Event()

    def counted() -> Iterator[tuple[int, RecordWindow]]:
        try:
            for tag in range(1000):
                tags.append(tag)
                yield tag, window(0, 2)
        finally:
            ended.set()

    minibatches = feed_minibatches(lambda d, m, i: d.map(pair), "training", None, counted(), prefetch=2)
    next(minibatches)
    minibatches.close()  # type: ignore[attr-defined]
    assert ended.wait(20)
    assert len(tags) < 10


class PooledFeed:
    """A feed of EDL's own, of which two windows may be fed at a time."""

    def __init__(self, change: Any) -> None:
        self.change = change
        self.__wrapped__ = pooled_feed

    def __call__(self, dataset: Any, mode: str, metadata: Any) -> Any:
        return dataset.map(
            lambda record: (record, tf.ensure_shape(tf.numpy_function(self.change, [record], tf.int64), []))
        )

    def feed_minibatch(self, records: Any, mode: str, metadata: Any) -> None: ...

    def without_graph(self, mode: str, metadata: Any) -> None: ...

    def windows_at_once(self, metadata: Any) -> int:
        return 2

    def explain_bad_record(self, record: Any, mode: str, metadata: Any) -> None: ...


def pooled_feed(change: Any) -> FeedFunction:
    return FeedFunction(PooledFeed(change), "training", None)


def numbered_windows(count: int) -> Iterator[tuple[int, RecordWindow]]:
    return ((tag, RecordWindow(np.array([tag]))) for tag in range(count))


def test_windows_that_are_fed_at_the_same_time_come_in_their_order() -> None:
    both, second = threading.Barrier(2), threading.Event()

    def change(number: Any) -> Any:
        if number < 2:  # neither ends before the other has begun, and the first one ends last
            both.wait(20)
            assert number or second.wait(20)
            if number:
                second.set()
        return 10 * number

    minibatches = list(feed_in_background(pooled_feed(change), numbered_windows(6)))
    assert [(each.tag, each.labels.numpy().tolist()) for each in minibatches] == [(tag, [10 * tag]) for tag in range(6)]


def test_a_window_that_cannot_be_fed_ends_it_after_those_before_it() -> None:
    def change(number: Any) -> Any:
        if number == 2:
            raise ValueError("no third")
        return number

    minibatches = feed_in_background(pooled_feed(change), numbered_windows(6))
    assert [next(minibatches).tag for _ in range(2)] == [0, 1]
    with pytest.raises(FeedError, match="no third"):
        next(minibatches)


def test_an_error_before_the_first_window_comes_out_too() -> None:
    """Else the consumer waits for ever for a thread that has ended."""

    class Broken:
        @property
        def windows_at_once(self) -> int:
            raise ValueError("no metadata")

    with pytest.raises(ValueError, match="no metadata"):
        next(feed_in_background(Broken(), numbered_windows(1)))  # type: ignore[arg-type]


def test_a_minibatch_comes_while_the_next_window_is_waited_for() -> None:
    """A worker may get its next lease only when it has reported the last one."""
    trained = threading.Event()

    def waiting() -> Iterator[tuple[int, RecordWindow]]:
        for tag, record_window in numbered_windows(3):
            if tag == 2:
                assert trained.wait(20)
            yield tag, record_window

    minibatches = feed_in_background(pooled_feed(lambda number: number), waiting())
    assert [next(minibatches).tag for _ in range(2)] == [0, 1]
    trained.set()
    assert [each.tag for each in minibatches] == [2]


def test_a_ctrl_c_in_the_middle_of_a_wait_ends_it_though_its_lock_stays_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python may be interrupted between taking the queue's lock and the block that gives it back."""

    def interrupted(self: queue.Queue[Any], *given: Any, **named: Any) -> Any:
        self.mutex.acquire()
        raise KeyboardInterrupt

    monkeypatch.setattr(queue.Queue, "get", interrupted)
    ended: list[BaseException] = []

    def consume() -> None:
        try:
            list(feed_minibatches(lambda dataset, mode, metadata: dataset.map(pair), "training", None, windows()))
        except KeyboardInterrupt as interrupt:
            ended.append(interrupt)

    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    consumer.join(20)
    assert ended


# ---------------------------------------------------------------- the contract

MODULE = """
def custom_model(width=3):
    import keras
    return keras.Sequential([keras.Input([2]), keras.layers.Dense(width)])
def loss(labels, predictions): return 0.0
def optimizer(): raise ValueError("rate?")
def eval_metrics_fn(): return {}
def feed(dataset, mode, metadata): return dataset
"""


def module_in(folder: Path, source: str, name: str = "custom_model", **params: Any) -> Any:
    zoo = folder / "zoo_under_test"
    zoo.mkdir(exist_ok=True)
    (zoo / "model.py").write_text(source)
    (zoo / "part.py").write_text("VALUE = 5\n")
    return load_model_module(ModelSpec(zoo=str(zoo), definition=f"model.{name}", params=params))


def test_parameters_are_keyword_arguments_of_the_model(tmp_path: Path) -> None:
    assert module_in(tmp_path, MODULE, width=7).make_model().output_shape == (None, 7)


def test_the_zoo_and_its_parent_are_importable_and_zoos_of_one_name_do_not_meet(tmp_path: Path) -> None:
    for number in ("1", "2"):
        (tmp_path / number).mkdir()
        source = f"from zoo_under_test.part import VALUE\nimport part\n{MODULE}\ndef callbacks(): return [{number}]"
        assert module_in(tmp_path / number, source).callbacks() == [int(number)]


@pytest.mark.parametrize(
    ("source", "name", "params", "said"),
    [
        (MODULE.replace("def feed", "def fed"), "custom_model", {}, "does not define feed.dataset, mode, metadata."),
        (MODULE.replace("feed(dataset, mode, metadata)", "feed(dataset)"), "custom_model", {}, "feed.dataset. cannot"),
        (
            MODULE.replace("(labels, predictions)", "(outputs, labels)"),
            "custom_model",
            {},
            "EDL calls loss.labels, predictions.",
        ),
        (MODULE.replace("(labels, predictions)", "(labels)"), "custom_model", {}, "loss.labels. cannot be called"),
        (MODULE, "custom_model", {"depth": 3}, "unexpected keyword argument 'depth'"),
        (MODULE, "custommodel", {}, "did you mean custom_model"),
        (MODULE + "\nCALLED = 3", "CALLED", {}, "not a function or model class"),
    ],
)
def test_what_does_not_keep_the_contract_is_named(
    tmp_path: Path, source: str, name: str, params: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadInputError, match=said):
        module_in(tmp_path, source, name, **params)


def test_a_loss_whose_weights_have_no_default_is_told_to_give_them_one(tmp_path: Path) -> None:
    source = MODULE.replace("def loss(labels, predictions)", "def loss(labels, predictions, sample_weights)")
    with pytest.raises(BadInputError, match="sample_weights") as refused:
        module_in(tmp_path, source, "custom_model")
    assert "sample_weights=None" in str(refused.value.hint)
    (tmp_path / "with").mkdir()
    module_in(tmp_path / "with", source.replace("sample_weights)", "sample_weights=None)"), "custom_model")


def test_a_module_that_raises_gives_the_users_traceback_first(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=r"import of zoo_under_test\.model raised ZeroDivisionError") as caught:
        module_in(tmp_path, MODULE + "\ndef ratio(): return 1 / 0\nratio()\n")
    lines = caught.value.detail.splitlines()
    assert "your code" in lines[0]
    assert "zoo_under_test/model.py" in lines[1]
    assert str(caught.value.where).endswith(f"model.py:{MODULE.count(chr(10)) + 2}")


def test_functions_that_raise_later_and_other_results_are_named(tmp_path: Path) -> None:
    module = module_in(tmp_path, MODULE + "\ndef nothing(): return 3", "nothing")
    with pytest.raises(UserCodeError, match=r"optimizer\(\) raised ValueError: rate\?"):
        module.optimizer()
    with pytest.raises(BadInputError, match=r"nothing\(\) returned int, expected a keras.Model"):
        module.make_model()


@pytest.mark.parametrize("package", ["tf_keras", "tensorflow.python.keras"])
def test_parts_of_keras_2_in_a_job_for_keras_3_are_named_with_what_to_set(tmp_path: Path, package: str) -> None:
    kind = "SGD" if package == "tf_keras" else "adam_v2.Adam"
    source = MODULE.replace(
        'raise ValueError("rate?")', f"return importlib.import_module('{package}.optimizers').{kind}()"
    )
    source += f"import importlib\ndef old(): return importlib.import_module('{package}').Sequential()\n"
    module = module_in(tmp_path, source, "old")
    with pytest.raises(BadInputError, match=r"optimizer\(\) returned \w+ of Keras 2") as refused:
        module.optimizer()
    assert "keras.optimizers" in str(refused.value.hint)
    assert "model.keras: 2" in str(refused.value.hint)
    with pytest.raises(BadInputError, match=r"old\(\) returned a model of Keras 2") as refused:
        module.make_model()
    assert "model.keras: 2" in str(refused.value.hint)


def test_columns_reach_feed_as_mappings_and_lists_as_ragged_tensors() -> None:
    tags = RaggedColumn(np.array([b"a", b"b", b"c", b"d"], object), np.array([0, 2, 2, 3, 4]))
    table = ColumnRecords({"x": np.arange(8.0, dtype=np.float32).reshape(4, 2), "tags": tags, "y": np.arange(4)})
    calls = []

    def feed(dataset: Any, mode: str, metadata: Any) -> Any:
        calls.append(dataset.element_spec)
        return dataset.map(lambda row: ({"x": row["x"], "tags": tf.size(row["tags"])}, row["y"]))

    feeder = FeedFunction(feed, "training", None)
    first = feeder.make_minibatch(0, RecordWindow(table[:3]))
    second = feeder.make_minibatch(1, RecordWindow(table[3:]))
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first.features["x"], [[0, 1], [2, 3], [4, 5]])
    np.testing.assert_array_equal(first.features["tags"], [2, 0, 1])
    np.testing.assert_array_equal(second.features["tags"], [1])
    np.testing.assert_array_equal(second.labels, [3])
    (spec,) = calls
    assert (spec["y"].dtype, spec["tags"].dtype) == (tf.int64, tf.string)


def numbers_of(dataset: Any, mode: str, metadata: Any) -> Any:
    return dataset.map(tf.strings.to_number).map(lambda row: (row[:-1], row[-1:]))


@pytest.mark.parametrize(
    ("names", "is_reported"),
    [
        (("0.12", "-0.5", "1"), True),
        (("1e3", "nan", "0"), True),
        (("0", "1", "2"), False),  # as pandas names columns
        (("height", "0.5", "label"), False),
    ],
)
def test_a_csv_file_that_begins_with_a_record_of_numbers_is_a_warning(
    names: tuple[str, ...], is_reported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    feed = FeedFunction(numbers_of, "training", Metadata("csv", names))
    for start in (0, 2):
        assert feed.make_minibatch(0, RecordWindow([["1", "2", "0"], ["3", "4", "1"]], 0, "x.csv", start)) is not None
    reported = [text for text in caplog.messages if "data.reader.header" in text]
    assert len(reported) == is_reported
    assert all(", ".join(names) in text for text in reported)


@cache
def good_image() -> bytes:
    return bytes(tf.io.encode_png(np.full((2, 2, 3), 7, np.uint8)).numpy())


BAD_IMAGE = b"\xff\xd8\xff\xda of the right length, and wrong inside \xff\xd9"


def images_window(images: list[bytes], skipper: CorruptRecordSkipper, **fields: Any) -> RecordWindow:
    columns = {"image": np.array(images, object), "label": np.arange(len(images))}
    skip_image = skipper.skip_image if skipper.limit else None
    return RecordWindow(ColumnRecords(columns), 0, "pets", 0, skip_image=skip_image, **fields)


def decoding_feed(dataset: Any, mode: str, metadata: Any) -> Any:
    def decode(record: Any) -> Any:
        image = tf.ensure_shape(tf.io.decode_image(record["image"], 3, expand_animations=False), (2, 2, 3))
        return image, record["label"]

    return dataset.map(decode)


def test_an_image_that_feed_cannot_decode_is_skipped_and_counted_as_a_corrupt_record() -> None:
    feed, skipper = FeedFunction(decoding_feed, "training", None), CorruptRecordSkipper(2)
    images = [good_image(), BAD_IMAGE, good_image(), BAD_IMAGE + b"2\xff\xd9"]
    for _ in range(2):  # the next epoch has the same ones
        minibatch = feed.make_minibatch(0, images_window(images, skipper))
        assert minibatch is not None
        assert minibatch.labels.numpy().tolist() == [0, 2]
        assert minibatch.skipped_images == 2
    alone = feed.make_minibatch(1, images_window(images[1:2], skipper))
    assert alone is not None
    assert (alone.features, alone.skipped_images) == (None, 1)
    with pytest.raises(FeedError, match="record 0 of pets"):
        feed.make_minibatch(2, images_window([BAD_IMAGE + b"3\xff\xd9"], skipper))


@pytest.mark.parametrize("as_list", [False, True])
def test_an_image_inside_of_an_example_is_skipped_and_counted_too(as_list: bool) -> None:
    spec = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parse(record: Any) -> Any:
        example = tf.io.parse_single_example(record, spec)
        image = tf.io.decode_image(example["image"], 3, expand_animations=False)
        return tf.ensure_shape(image, (2, 2, 3)), example["label"]

    feed, skipper = FeedFunction(lambda d, m, i: d.map(parse), "training", None), CorruptRecordSkipper(1)
    records = [
        serialize_example({"label": number, "image": image, "names": [b"x", image] if as_list else b"x"})
        for number, image in enumerate([good_image(), BAD_IMAGE, good_image()])
    ]
    minibatch = feed.make_minibatch(0, RecordWindow(records, 0, "x.tfrecord", 0, skip_image=skipper.skip_image))
    assert minibatch is not None
    assert (minibatch.labels.numpy().tolist(), minibatch.skipped_images, skipper.count) == ([0, 2], 1, 1)
    with pytest.raises(FeedError, match="record 1 of x") as raised:
        feed.make_minibatch(0, RecordWindow(records, 0, "x.tfrecord", 0))
    assert "data.max_corrupt_records" in (raised.value.hint or "")


def test_a_job_that_allows_no_corrupt_records_ends_and_names_the_field() -> None:
    feed = FeedFunction(decoding_feed, "training", None)
    with pytest.raises(FeedError, match="record 1 of pets") as raised:
        feed.make_minibatch(0, images_window([good_image(), BAD_IMAGE], CorruptRecordSkipper(0)))
    assert "data.max_corrupt_records" in (raised.value.hint or "")


def test_an_image_is_not_blamed_for_what_feed_raises_of_other_records() -> None:
    feed, skipper = FeedFunction(lambda *args: decoding_feed(*args).take(0), "training", None), CorruptRecordSkipper(9)
    assert feed.make_minibatch(0, images_window([BAD_IMAGE], skipper)) is None, "feed does not decode it"
    feed = FeedFunction(lambda d, m, i: d.map(lambda r: (r["label"], 1 // r["label"])), "training", None)
    with pytest.raises(FeedError, match="record 0 of pets") as raised:
        feed.make_minibatch(0, images_window([good_image(), BAD_IMAGE], skipper))
    assert "max_corrupt" not in (raised.value.hint or "")
    assert skipper.count == 0


def test_skipped_images_are_reported_with_their_step() -> None:
    skipper = CorruptRecordSkipper(1)
    feed = FeedFunction(decoding_feed, "training", None)
    images = images_window([good_image(), BAD_IMAGE, good_image()], skipper).records

    class Reader:
        def read(self, source: str, start: int, end: int, on_corrupt: Any = None) -> Any:
            return images[start:end]

    stream = RecordStream(
        lambda: Reader(),  # type: ignore[arg-type,return-value]
        skipper,
        lambda windows: feed_in_background(feed, windows),
        lambda lease: True,
    )
    task = LeasedTask(1, "training", "pets", 0, 3, minibatch_size=2)
    stream.add_task(task)
    steps = [(step.record_count, step.skipped_records) for step in stream.load_steps(task)]
    assert steps == [(1, 1), (1, 0)]
    stream.close()


@pytest.mark.parametrize(
    ("inter_op", "cores", "parallel", "expected"),
    [(2, 8, 8, [8]), (2, 100, tf.data.AUTOTUNE, [16]), (2, 2, 2, []), (0, 8, 8, []), (2, 8, None, [])],
)
def test_images_are_decoded_by_as_many_threads_as_the_worker_has_cores(
    monkeypatch: pytest.MonkeyPatch, inter_op: int, cores: int, parallel: int | None, expected: list[int]
) -> None:
    """TensorFlow has two threads for functions of map in a worker, whatever ``num_parallel_calls`` says."""
    monkeypatch.setattr(tf.config.threading, "get_inter_op_parallelism_threads", lambda: inter_op)
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: cores)

    def feed_with(decode: Any) -> FeedFunction:
        return FeedFunction(
            lambda dataset, mode, metadata: dataset.map(
                lambda record: (decode(record), record["label"]), num_parallel_calls=parallel
            ),
            "training",
            None,
        )

    for feed, threads in (
        (feed_with(lambda record: tf.io.decode_image(record["image"], 3, expand_animations=False)), expected),
        (feed_with(lambda record: record["label"]), []),
    ):
        minibatch = feed.make_minibatch(0, images_window([good_image()] * 3, CorruptRecordSkipper(0)))
        assert minibatch is not None
        assert minibatch.labels.numpy().tolist() == [0, 1, 2]
        operations = traced_operations(feed, images_window([good_image()], CorruptRecordSkipper(0)))
        thread_pools = [each for each in operations if each.type == "PrivateThreadPoolDataset"]
        assert [tf.get_static_value(each.inputs[1]) for each in thread_pools] == threads


def test_images_that_feed_decodes_in_bulk_get_these_threads_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tf.config.threading, "get_inter_op_parallelism_threads", lambda: 2)
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: 8)

    def decode(records: Any) -> Any:
        images = tf.map_fn(lambda each: tf.io.decode_png(each, 3), records["image"], fn_output_signature=tf.uint8)
        return images, records["label"]

    feed = FeedFunction(lambda d, m, i: d.batch(8).map(decode, num_parallel_calls=8).unbatch(), "training", None)
    of = images_window([good_image()] * 3, CorruptRecordSkipper(0))
    minibatch = feed.make_minibatch(0, of)
    assert minibatch is not None
    assert minibatch.labels.numpy().tolist() == [0, 1, 2]
    operations = traced_operations(feed, of)
    (element,) = [each for each in operations if each.type == "DatasetToSingleElement"]
    assert element.inputs[0].op.type == "PrivateThreadPoolDataset"
