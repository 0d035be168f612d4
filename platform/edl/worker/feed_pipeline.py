"""Runs the user's ``feed`` on windows of records, one minibatch per window, ahead of training.

``feed`` is traced once, as a function of a window: whatever it does (map, shuffle, filter) stays
inside one minibatch, so a step always covers the same records. No generator runs inside tf.data: while
it waited for a lease, it would occupy one of TensorFlow's few threads, which training may need to get
the next lease.
"""

from __future__ import annotations

import inspect
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import tensorflow as tf

from edl.data.reader import Metadata, Reader, Record, describe_doubtful_header
from edl.data.record_columns import ColumnRecords, RaggedColumn, take_records
from edl.data.tf_example import parse_example
from edl.keras.feed_schema import SchemaFeed
from edl.keras.model_contract import FEED_MODES, UserFeedFunction
from edl.keras.user_code import UserCodeError, source_file, user_code
from edl.transport.process_identity import count_available_cores
from edl.worker.feed_graph import find_positional_step, find_seeded_operation, uses_records
from edl.worker.lease_client import LeasedTask
from edl.worker.record_stream import CorruptRecordSkipper, RecordWindow, count_records

_LOG = logging.getLogger(__name__)
# Messages of TensorFlow's get_single_element: for no element, and for more elements than fit into the
# batch in ``_build_graph``.
_EMPTY_DATASET_MESSAGE = "Dataset was empty"
_SEVERAL_BATCHES_MESSAGE = "Dataset had more than one element"
_CLOSE_POLL_SECONDS = 0.1
"""Interval in seconds at which a thread that waits for space checks whether the consumer is gone."""
_MAX_FEED_GROWTH = 64
"""Maximum number of elements per record that are counted, for the error about too many elements."""
_BATCHING_OPS = frozenset({"BatchDataset", "BatchDatasetV2", "ParallelBatchDataset", "PaddedBatchDataset",
                       "PaddedBatchDatasetV2", "MapAndBatchDataset"})  # fmt: skip
_CONTROL_FLOW_OPS = frozenset({"If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile", "For", "Switch",
                               "RefSwitch", "Merge", "RefMerge", "Enter", "RefEnter", "Exit", "RefExit",
                               "NextIteration", "RefNextIteration", "LoopCond"})  # fmt: skip
_SIMPLE_BATCHING_OPS = frozenset({"BatchDataset", "BatchDatasetV2", "ParallelBatchDataset"})
_ONE_TO_ONE_OPS = frozenset({"MapDataset", "ParallelMapDataset", "ParallelMapDatasetV2", "PrefetchDataset"})
_PARALLEL_MAP_OPS = frozenset({"ParallelMapDataset", "ParallelMapDatasetV2", "ParallelInterleaveDatasetV4"})
_IMAGE_OPS = frozenset({"DecodeImage", "DecodeJpeg", "DecodePng", "DecodeBmp", "DecodeGif", "DecodeWebP",
                        "DecodeAndCropJpeg"})  # fmt: skip
_MOST_DECODING_THREADS = 16
_UNBATCHING_OPS = frozenset({"UnbatchDataset", "FlatMapDataset", "InterleaveDataset", "ParallelInterleaveDatasetV4"})


@dataclass(frozen=True)
class Minibatch:
    """The minibatch that ``feed`` made of one window.

    Attributes:
        tag: tag of the window.
        features: nested tensors, records first; None if ``feed`` kept no record.
        labels: nested tensors, records first; None for prediction.
        weights: sample weights of the records, if ``feed`` yields (features, labels, sample weights).
        skipped_images: records that were skipped because they are images that cannot be decoded.
    """

    tag: int
    features: Any
    labels: Any
    weights: Any = None
    skipped_images: int = 0


class FeedError(UserCodeError):
    """``feed`` raised or returned an invalid result. ``tag`` identifies the window."""

    tag: int | None = None


def feed_in_background(
    feed_function: FeedFunction, windows: Iterator[tuple[int, RecordWindow]], *, prefetch: int = 2
) -> Iterator[Minibatch]:
    """Feed windows on a separate thread, ``prefetch`` of them ahead of the consumer.

    Several are fed at the same time if ``feed`` allows it (``FeedFunction.windows_at_once``); minibatches come in the
    order of the windows in any case. A window from which ``feed`` keeps no record gives a minibatch whose features are
    None, so that every window has a minibatch. Closing the iterator makes the thread end at its next window.

    Args:
        feed_function: the user's ``feed``, which may be traced already.
        windows: tagged records; consumed ahead of time by the thread.
        prefetch: the number of minibatches that wait for the consumer.

    Raises:
        FeedError: ``feed`` raised, or yields the wrong structure.
        Exception: an exception of ``windows``, unchanged, after the minibatches before it.
    """
    ready: queue.Queue[Minibatch | Future[Minibatch] | BaseException | None] = queue.Queue(max(1, prefetch))
    closed = threading.Event()
    threading.Thread(
        target=_feed_windows, args=(feed_function, windows, ready, closed), name="feed", daemon=True
    ).start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item.result() if isinstance(item, Future) else item
    finally:
        # The thread ends by this flag. The queue must not be drained for it: a Ctrl-C within `get` may
        # have left its lock locked.
        closed.set()


def _feed_windows(
    feed_function: FeedFunction,
    windows: Iterator[tuple[int, RecordWindow]],
    ready: queue.Queue[Any],
    closed: threading.Event,
) -> None:
    end: BaseException | None = None
    pool: ThreadPoolExecutor | None = None

    def make(tag: int, window: RecordWindow) -> Minibatch:
        return feed_function.make_minibatch(tag, window) or Minibatch(tag, None, None)

    try:
        # Within: an error that does not reach the consumer leaves it waiting for ever.
        at_once = feed_function.windows_at_once
        pool = ThreadPoolExecutor(at_once, thread_name_prefix="feed") if at_once > 1 else None
        for tag, window in windows:
            if closed.is_set():
                return
            # The consumer gets what is not made yet, too: the next window may come only when it has trained this one.
            _put_unless_closed(ready, make(tag, window) if pool is None else pool.submit(make, tag, window), closed)
    except BaseException as error:  # noqa: BLE001  raised again by the consumer
        end = error
    finally:
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=closed.is_set())
    _put_unless_closed(ready, end, closed)


def _put_unless_closed(ready: queue.Queue[Any], item: Any, closed: threading.Event) -> None:
    """Wait for space, unless the consumer is gone."""
    while not closed.is_set():
        with suppress(queue.Full):
            ready.put(item, timeout=_CLOSE_POLL_SECONDS)
            return


class FeedFunction:
    """``feed`` as a function of one window; traced at the first one.

    Args:
        feed: the user's ``feed(dataset, mode, metadata)``.
        mode: ``training``, ``evaluation`` or ``prediction``.
        metadata: the reader's metadata.
        zoo: frames of files below it are the user's; by default the folder of ``feed``'s file.
        pad: whether records of different shapes are padded to the longest one (``train.batches.pad``).

    Attributes:
        mode: the given mode.
    """

    def __init__(
        self, feed: UserFeedFunction, mode: str, metadata: Any, *, zoo: Path | None = None, pad: bool = False
    ) -> None:
        if mode not in FEED_MODES:
            raise ValueError(f"mode is one of {FEED_MODES}, got {mode!r}")
        self._feed = feed
        self.mode = mode
        self._metadata = metadata
        self._pad = pad
        self._zoo = zoo or Path(_feed_file(feed)).parent
        self._function: Callable[[Sequence[Record]], Any] | None = None
        """Makes a minibatch of the records of a window."""
        self._tracing = threading.Lock()

    @property
    def windows_at_once(self) -> int:
        """The number of windows that may be fed at the same time: 1 for a user's ``feed``, which may have a state."""
        return self._feed.windows_at_once(self._metadata) if isinstance(self._feed, SchemaFeed) else 1

    def with_metadata(self, metadata: Any) -> FeedFunction:
        """The same ``feed`` for records of another reader."""
        return FeedFunction(self._feed, self.mode, metadata, zoo=self._zoo, pad=self._pad)

    def make_minibatch(self, tag: int, window: RecordWindow) -> Minibatch | None:
        """The minibatch of a window; None if ``feed`` keeps none of its records.

        Raises:
            FeedError: ``feed`` raised, yields the wrong structure, or more elements than there are records.
        """
        if not len(window.records):
            return None
        try:
            outputs = self._call_feed(window.records)
        except FeedError as error:
            error.tag = tag
            bad_images = [] if self._function is None else self._find_bad_images(window)
            if bad_images and self._skip_images(window, bad_images):
                return self._make_without(tag, window, bad_images)
            if _SEVERAL_BATCHES_MESSAGE in error.detail:
                self._raise_too_many(tag, window, f"more than {_MAX_FEED_GROWTH * len(window.records)}")
            # If tracing succeeded, the error is about these records.
            if self._function is not None:
                bad = self._find_bad_record(window)
                self._explain_bad_record(error, window, bad)
                error.message = f"{error.message.removesuffix('.')}, at {window.describe_location(bad)}"
                if bad_images:
                    error.hint = f"{error.hint}; {_BAD_IMAGE_HINT}" if error.hint else _BAD_IMAGE_HINT
            raise
        if outputs is None:
            return None
        minibatch = Minibatch(tag, outputs, None) if self.mode == "prediction" else Minibatch(tag, *outputs)
        if (elements := count_records(minibatch.features)) > len(window.records):
            self._raise_too_many(tag, window, f"{elements}")
        return minibatch

    def _find_bad_images(self, window: RecordWindow) -> list[int]:
        """The records with an image that TensorFlow cannot decode, and for which ``feed`` raises."""
        return [
            index
            for index, record in enumerate(window.records)
            if any(map(_is_bad_image, _texts_of(record))) and self._is_refused(window, index)
        ]

    def _skip_images(self, window: RecordWindow, bad: Sequence[int]) -> bool:
        """Count images as corrupt records; False: no more are allowed."""
        return window.skip_image is not None and all(
            window.skip_image(
                next(filter(_is_bad_image, _texts_of(window.records[index]))), window.describe_location(index)
            )
            for index in bad
        )

    def _make_without(self, tag: int, window: RecordWindow, bad: Sequence[int]) -> Minibatch:
        left = take_records(window.records, np.setdiff1d(np.arange(len(window.records)), bad))
        rest = window._replace(records=left, skipped_records=window.skipped_records + len(bad))
        made = self.make_minibatch(tag, rest) or Minibatch(tag, None, None)
        return replace(made, skipped_images=made.skipped_images + len(bad))

    def _raise_too_many(self, tag: int, window: RecordWindow, elements: str) -> NoReturn:
        error = FeedError(
            f"feed returned {elements} elements for {len(window.records)} records: {window.describe_location()}",
            where=_feed_file(self._feed),
            hint="feed may filter records but must not repeat them; train.epochs sets how often each record is used",
        )
        error.tag = tag
        raise error

    def _explain_bad_record(self, error: FeedError, window: RecordWindow, bad: int | None) -> None:
        """Say what is wrong with a record, where ``feed`` is EDL's own and can tell."""
        if bad is None or not isinstance(self._feed, SchemaFeed):
            return
        known = self._feed.explain_bad_record(window.records[bad], self.mode, self._metadata)
        if known is not None:
            error.message, error.hint = known
            error.where, error.detail = "data.schema", ""

    def _find_bad_record(self, window: RecordWindow) -> int | None:
        """The first record for which ``feed`` raises when it is alone; None if only a combination fails."""
        return next((index for index in range(len(window.records)) if self._is_refused(window, index)), None)

    def _is_refused(self, window: RecordWindow, index: int) -> bool:
        """Whether ``feed`` raises for a record alone."""
        try:
            self._call_feed(window.records[index : index + 1])
        except FeedError:
            return True
        return False

    def _call_feed(self, window: Sequence[Record]) -> Any:
        try:
            with user_code(self._zoo, "feed()", function=self._feed):
                with self._tracing:
                    if self._function is None:
                        self._function = self._make_function(window)
                outputs = self._function(window)
        except UserCodeError as error:
            if _EMPTY_DATASET_MESSAGE in error.detail:
                return None
            raise _to_feed_error(error, self._feed) from error
        return outputs if self._count_elements(outputs) else None

    def _count_elements(self, outputs: Any) -> int:
        """The number of elements; batches that ``feed`` has made may be empty, or columns of unequal lengths."""
        counts = {int(leaf.shape[0]) for leaf in tf.nest.flatten(outputs) if isinstance(leaf, tf.Tensor)}
        if len(counts) > 1:
            raise FeedError(
                f"feed yields columns of {' and '.join(map(str, sorted(counts, reverse=True)))} elements",
                where=_feed_file(self._feed),
                hint="return as many labels as features",
            )
        return next(iter(counts), 1)

    def _make_function(self, window: Sequence[Record]) -> Callable[[Sequence[Record]], Any]:
        # EDL's own feed of images needs no graph.
        if isinstance(self._feed, SchemaFeed):
            function = self._feed.without_graph(self.mode, self._metadata)
            if function is not None:
                return function
        traced = self._trace_feed(_to_tensors(window))
        return lambda records: traced(_to_tensors(records))

    def _trace_feed(self, records: Any) -> Callable[[Any], Any]:
        # One warning a job is enough.
        doubt = None if self.mode == "evaluation" else doubtful_header(self._metadata)
        if doubt is not None:
            _LOG.warning("%s; if it is a record, set data.reader.header to false", doubt)
        traced = tf.function(self._build_graph, input_signature=[_any_count(records)], autograph=False)
        function: Callable[[Any], Any] = traced.get_concrete_function()
        return function

    def _build_graph(self, records: Any) -> Any:
        """Trace ``feed`` for one window as a graph."""
        # EDL's own feed of a table parses all rows at once.
        if isinstance(self._feed, SchemaFeed):
            minibatch = self._feed.feed_minibatch(records, self.mode, self._metadata)
            if minibatch is not None:
                return minibatch
        # Random operations in ``feed`` would begin with the seed of TensorFlow again in each minibatch.
        tf.compat.v1.get_default_graph().seed = None
        source = tf.data.Dataset.from_tensor_slices(records)
        dataset = self._feed(source, self.mode, self._metadata)
        self._check_dataset(source, dataset)
        # One batch of all elements. It is larger than the window, so that too many elements can be
        # counted.
        longest = _count_in_graph(records) * _MAX_FEED_GROWTH
        elements = dataset.padded_batch(longest) if self._pad else dataset.batch(longest)
        batches = _decode_images_in_threads(elements)
        # Images are worth more threads than the copy of a batch, which is what is saved otherwise.
        bulk = _find_bulk_parse(source, dataset) if batches is elements else None
        if bulk is None:
            minibatch = batches.get_single_element()
        else:
            # To take a batch apart and to make it again would cost as much as to parse it.
            minibatch = tf.cond(
                _count_in_graph(records) <= bulk.size, bulk.batches.get_single_element, batches.get_single_element
            )
        _run_maps_on_one_thread()
        return minibatch

    def _check_dataset(self, source: tf.data.Dataset, dataset: Any) -> None:
        expected = "features" if self.mode == "prediction" else "(features, labels)"
        hint = f"for {self.mode}, feed returns a tf.data.Dataset of single {expected}"
        if self.mode != "prediction":
            hint += " or (features, labels, sample weights)"
        if not isinstance(dataset, tf.data.Dataset):
            raise FeedError(f"feed returned {type(dataset).__name__}, expected a tf.data.Dataset", hint=hint)
        spec = dataset.element_spec
        if self.mode != "prediction" and not (isinstance(spec, tuple) and len(spec) in (2, 3)):
            raise FeedError(f"feed yields {_describe_spec(spec)}, expected {expected}", hint=hint)
        if not uses_records(source, dataset):
            raise FeedError(
                "feed returns a data set that is not made of its argument: no record of the job's data would be used",
                hint="return dataset.map(...) or the like; what a generator yields can be written to files, or come "
                "from a custom_data_reader",
            )
        graph = tf.compat.v1.get_default_graph()
        seeded = find_seeded_operation(graph)
        if seeded is not None:
            raise FeedError(f"feed draws random numbers with a seed, in {seeded}", hint=_SEED_HINT)
        positional = find_positional_step(source, dataset)
        if positional is not None:
            step, advice = positional
            raise FeedError(
                f"feed uses {step}, which would begin anew with each minibatch",
                hint=f"{advice}. EDL gives feed the records of one minibatch at a time",
            )
        operations = graph.get_operations()
        if any(operation.type == "RepeatDataset" and _repeats_forever(operation) for operation in operations):
            raise FeedError(
                "feed repeats its records without end", hint="remove repeat(); train.epochs sets the number of passes"
            )
        # Batches in ``feed`` are harmless only if it splits them again, as with unbatch().
        types = {operation.type for operation in operations}
        if types & _BATCHING_OPS and not types & _UNBATCHING_OPS:
            raise FeedError(
                f"feed yields batches: {_describe_spec(spec)}",
                hint=f"{hint}; EDL makes minibatches of train.minibatch_size",
            )


_SEED_HINT = (
    "they would be the same in every minibatch: leave `seed` out. For numbers that can be drawn again, let the module "
    "make a tf.random.Generator, and give its make_seeds(1)[:, 0] to a stateless function in feed"
)
_DECODED_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM")
"""How files begin that TensorFlow decodes. Of others, such as WebP, it does not know whether they are damaged."""
_BAD_IMAGE_HINT = "data.max_corrupt_records allows to skip and count images that cannot be decoded"


def _texts_of(record: Any) -> Iterator[bytes]:
    """The values of a record that may be encoded images: also those inside of a ``tf.train.Example``."""
    values = record.values() if isinstance(record, Mapping) else (record,)
    for value in values:
        if isinstance(value, bytes):
            yield value
            if not value.startswith(_DECODED_SIGNATURES):
                yield from _texts_of_example(value)


def _texts_of_example(record: bytes) -> list[bytes]:
    try:
        features = parse_example(record)
    except ValueError:
        return []
    return [
        value
        for feature in features.values()
        for value in (feature if isinstance(feature, list) else [feature])
        if isinstance(value, bytes)
    ]


def _is_bad_image(value: bytes) -> bool:
    if not value.startswith(_DECODED_SIGNATURES):
        return False
    try:
        tf.io.decode_image(value, expand_animations=False)
    except tf.errors.OpError:
        return True
    return False


def doubtful_header(metadata: Any) -> str | None:
    """What is said of the header of CSV files that may be a record; None of other data."""
    is_csv = isinstance(metadata, Metadata) and metadata.format == "csv"
    return describe_doubtful_header(metadata.column_names) if is_csv else None


def _to_tensors(window: Sequence[Record]) -> Any:
    """Records as one tensor, or as a mapping from columns to tensors, which are ragged for lists."""
    if not isinstance(window, ColumnRecords):
        # A third of the time that convert_to_tensor takes for a list.
        return _to_tensor(window, "a record")
    return {name: _to_tensor(column, f"column '{name}'") for name, column in window.columns.items()}


def _to_tensor(column: Any, what: str) -> Any:
    if not isinstance(column, RaggedColumn):
        try:
            return tf.constant(column)
        except ValueError as error:
            if not isinstance(column, np.ndarray) or column.dtype == object:
                raise
            raise FeedError(
                f"{what} has the type {column.dtype}, which TensorFlow has not",
                where="data",
                hint="write it as numbers or text, or leave the column out with data.reader.columns",
            ) from error
    return tf.RaggedTensor.from_row_splits(_to_tensor(column.values, what), tf.constant(column.bounds), validate=False)


def _any_count(records: Any) -> Any:
    """The specification of these records for any number of them."""
    if isinstance(records, dict):
        return {name: _any_count(column) for name, column in records.items()}
    if isinstance(records, tf.RaggedTensor):
        ragged = [None] * (1 + records.ragged_rank)
        shape = [*ragged, *records.shape[len(ragged) :]]
        return tf.RaggedTensorSpec(shape, records.dtype, ragged_rank=records.ragged_rank)
    return tf.TensorSpec([None, *records.shape[1:]], records.dtype)


def _count_in_graph(records: Any) -> Any:
    column = next(iter(records.values())) if isinstance(records, dict) else records
    return column.nrows(tf.int64) if isinstance(column, tf.RaggedTensor) else tf.shape(column, tf.int64)[0]


class _BulkParse(NamedTuple):
    """What a ``feed`` that ends with ``unbatch()`` takes apart.

    Attributes:
        batches: the data set before ``unbatch()``.
        size: the largest number of records for which it has one batch.
    """

    batches: tf.data.Dataset
    size: Any


def _find_bulk_parse(source: tf.data.Dataset, dataset: tf.data.Dataset) -> _BulkParse | None:
    """Of a ``feed`` such as ``source.batch(1024).map(parse).unbatch()``, the part before ``unbatch()``.

    None: it does something else, or yields other than dense tensors.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    unbatched = tf.data.experimental.to_variant(dataset)
    # A data set that was made before ``feed`` was called has no operation in this graph.
    if not tf.is_symbolic_tensor(unbatched):
        return None
    operation = unbatched.op
    if operation.type != "UnbatchDataset" or not all(_is_dense(spec) for spec in specs):
        return None
    variant = operation.inputs[0]
    batching = variant.op
    while batching.type in _ONE_TO_ONE_OPS:
        batching = batching.inputs[0].op
    # Another data set may have more elements than there are records.
    if batching.type not in _SIMPLE_BATCHING_OPS or batching.inputs[0] is not tf.data.experimental.to_variant(source):
        return None
    spec = tf.nest.map_structure(lambda each: tf.TensorSpec([None, *each.shape], each.dtype), dataset.element_spec)
    return _BulkParse(tf.data.experimental.from_variant(variant, spec), batching.inputs[1])


def _is_dense(spec: Any) -> bool:
    return isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None


def _run_maps_on_one_thread() -> None:
    """Let the functions of ``map`` in the graph that is being traced run on the thread of ``feed``.

    Otherwise TensorFlow hands every record to its thread pool, where the step waits for a thread as well: several
    times the processor time for a small function. Its executor of one thread refuses control flow, so functions with
    control flow stay in the pool.
    """
    graph = tf.compat.v1.get_default_graph()
    maps = [operation for operation in graph.get_operations() if operation.type == "MapDataset"]
    functions = (
        {function.signature.name: function for function in graph.as_graph_def().library.function} if maps else {}
    )
    for operation in maps:
        if not _has_control_flow(operation.get_attr("f").name, functions, set()):
            # ``Dataset.map`` has no argument for it.
            operation._set_attr("use_inter_op_parallelism", tf.compat.v1.AttrValue(b=False))


def _decode_images_in_threads(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Give a data set that is being traced threads of its own, if it decodes several images at the same time.

    A worker's TensorFlow has two threads for that, because more of them cost time where operations are small. Threads
    of a data set are made for each minibatch (.2 ms each), which only images are worth: they take milliseconds each.
    ``Options.threading`` has no effect on a data set without an iterator.
    """
    most = min(
        tf.config.threading.get_intra_op_parallelism_threads() or count_available_cores(), _MOST_DECODING_THREADS
    )
    if not 0 < tf.config.threading.get_inter_op_parallelism_threads() < most:
        return dataset
    graph = tf.compat.v1.get_default_graph()
    if not any(operation.type in _PARALLEL_MAP_OPS for operation in graph.get_operations()):
        return dataset
    functions = graph.as_graph_def().library.function
    if not any(node.op in _IMAGE_OPS for function in functions for node in function.node_def):
        return dataset
    with_threads = tf.raw_ops.PrivateThreadPoolDataset(
        input_dataset=tf.data.experimental.to_variant(dataset), num_threads=most, **dataset._flat_structure
    )
    return tf.data.experimental.from_variant(with_threads, dataset.element_spec)


def _has_control_flow(name: str, functions: Mapping[str, Any], visited: set[str]) -> bool:
    """Whether a function, or one that it calls, has control flow."""
    if name in visited:
        return False
    visited.add(name)
    if name not in functions:
        return True  # unknown
    for node in functions[name].node_def:
        if node.op in _CONTROL_FLOW_OPS:
            return True
        called = [each for attribute in node.attr.values() for each in (attribute.func, *attribute.list.func)]
        called_names = [node.op] if node.op in functions else []
        called_names += [each.name for each in called if each.name]
        if any(_has_control_flow(each, functions, visited) for each in called_names):
            return True
    return False


def _repeats_forever(repeat: Any) -> bool:
    count = tf.get_static_value(repeat.inputs[1])
    return count is not None and count < 0


def _feed_file(feed: UserFeedFunction) -> str:
    """The file of a ``feed``, which may be a function, a ``functools.partial`` or an object with ``__call__``."""
    # A module's functions are wrapped, in EDL's own wrapper and maybe in decorators.
    function: Any = inspect.unwrap(feed)
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    return source_file(function) or source_file(type(function)) or ""


def _to_feed_error(error: UserCodeError, feed: UserFeedFunction) -> FeedError:
    if isinstance(error, FeedError):
        error.where = error.where or _feed_file(feed)
        return error
    hint = error.hint
    if "Cannot batch tensors with different shapes" in error.detail:
        hint = (
            "all records of a minibatch need the same shapes: set train.batches.pad, or pad, crop, or make ragged "
            "tensors in feed"
        )
    return FeedError(error.message, where=error.where, hint=hint, detail=error.detail)


def _describe_spec(spec: Any) -> str:
    """An element's structure, for users."""
    if isinstance(spec, tuple):
        return "(" + ", ".join(_describe_spec(part) for part in spec) + ")"
    if isinstance(spec, dict):
        return "{" + ", ".join(f"{key}: {_describe_spec(part)}" for key, part in spec.items()) + "}"
    return f"{spec.dtype.name}{spec.shape}" if isinstance(spec, tf.TensorSpec) else type(spec).__name__


# --------------------------------------------------------------------------------------------------
# The first minibatch of a data set: a model that is built by its first call needs its features.


_TRIES_PER_SOURCE = 8
"""Number of leading minibatches of each source that are tried.

A minibatch is empty if its records are corrupt or ``feed`` drops them.
"""


def find_first_minibatch(
    reader: Reader, feeder: FeedFunction, corrupt: CorruptRecordSkipper, *, size: int
) -> tuple[LeasedTask, Minibatch] | None:
    """The first minibatch of ``size`` records that is not empty, with its range as a task; None if there is none.

    Raises:
        EdlError: records cannot be read, or ``feed`` raises.
    """
    for source in reader.sources():
        for start in range(0, min(source.records, _TRIES_PER_SOURCE * size), size):
            end = min(source.records, start + size)
            minibatch = feeder.make_minibatch(0, corrupt.read(reader, source.name, start, end))
            if minibatch is not None and minibatch.features is not None:
                return LeasedTask(0, feeder.mode, source.name, start, end, size), minibatch
    return None


def find_first_features(reader: Reader, feeder: FeedFunction, corrupt: CorruptRecordSkipper, *, size: int) -> Any:
    """Features of the first minibatch of ``size`` records that is not empty; None if there is none.

    Raises:
        EdlError: records cannot be read, or ``feed`` raises.
    """
    first = find_first_minibatch(reader, feeder, corrupt, size=size)
    return None if first is None else first[1].features
