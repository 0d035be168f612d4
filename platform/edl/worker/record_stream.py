"""Reads minibatches of leased ranges ahead of the steps that use them.

One pipeline serves all tasks of a mode for the life of the process, so that the user's ``feed`` is traced
once. Its input are windows of records, tagged with consecutive numbers; its output are minibatches with
these tags, in order.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from edl.api.errors import BadInputError, EdlError, RetryableError
from edl.api.job_spec import BatchSpec
from edl.core.backoff import ExponentialBackoff
from edl.core.shuffle import SHUFFLED_SOURCE_NAME
from edl.data.file_digests import FileCheck
from edl.data.reader import CorruptRange, CorruptRecordError, Reader, Record
from edl.data.reader_factory import describe_order
from edl.retry.attempts import Retry, draw_jitter
from edl.worker.lease_client import LeasedTask

if TYPE_CHECKING:
    from edl.data.shuffled_reader import PositionReader


# --------------------------------------------------------------------------------------------------
# Corrupt records: skipped and counted up to ``data.max_corrupt_records``, an error beyond that.


class RecordWindow(NamedTuple):
    """The records of one step without ``skipped_records`` corrupt ones.

    They start at ``start`` of ``source``, or at position ``start`` of a shuffled order if there is
    ``describe_positions``, which names the records at given positions.
    """

    records: Sequence[Record]
    skipped_records: int = 0
    source: str = ""
    start: int = 0
    describe_positions: Callable[[int, int], str] | None = None
    # Counts an image that only ``feed`` finds to be none as a corrupt record, and says whether one more is allowed.
    skip_image: Callable[[bytes, str], bool] | None = None

    def describe_location(self, index: int | None = None) -> str:
        """Where the records are from, for users.

        Args:
            index: index of one record; None: all records.
        """
        # If records were skipped, it is unknown which ones, and indices do not match.
        if index is not None and not self.skipped_records:
            position = self.start + index
            return (
                f"record {position} of {self.source}"
                if self.describe_positions is None
                else self.describe_positions(position, position + 1)
            )
        if self.describe_positions is not None:
            return self.describe_positions(self.start, self.start + len(self.records) + self.skipped_records)
        last = self.start + len(self.records) + self.skipped_records - 1
        return f"records {self.start} to {last} of {self.source}"


class CorruptRecordSkipper:
    """Counts the corrupt records that this process skipped.

    The master adds up the reports of all workers. This limit stops a worker that alone finds too many.

    Args:
        limit: ``data.max_corrupt_records``.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._corrupt_positions: set[tuple[str, int]] = set()
        self._logged_chunks: set[tuple[str, range]] = set()
        self._lock = threading.Lock()

    def read(self, reader: Reader, source: str, start: int, end: int) -> RecordWindow:
        """Records ``[start, end)`` without the corrupt ones.

        Raises:
            CorruptRecordError: there are more corrupt records than allowed.
        """
        # Without ``on_corrupt``: a user's reader that cannot skip records need not have the
        # argument.
        if not self.limit:
            return RecordWindow(reader.read(source, start, end), 0, source, start)
        skipped: list[CorruptRange] = []
        records = reader.read(source, start, end, partial(self._record_skipped, skipped))
        return RecordWindow(
            records, sum(corrupt.records for corrupt in skipped), source, start, skip_image=self.skip_image
        )

    def read_shuffled(self, reader: PositionReader, epoch: int, start: int, end: int) -> RecordWindow:
        """The records at positions ``[start, end)`` of an epoch's shuffled order, without the corrupt ones.

        Raises:
            CorruptRecordError: there are more corrupt records than allowed.
        """
        skipped: list[CorruptRange] = []
        records = reader.read(epoch, start, end, partial(self._record_skipped, skipped) if self.limit else None)
        describe = partial(reader.describe_positions, epoch)
        return RecordWindow(records, len(skipped), "", start, describe, self.skip_image if self.limit else None)

    @property
    def count(self) -> int:
        """Corrupt records that this process has found."""
        return len(self._corrupt_positions)

    def skip_image(self, content: bytes, where: str) -> bool:
        """Count an image that cannot be decoded as a corrupt record; False: there are more than allowed.

        It is known by its content, because the records before it in a window may have been skipped.
        """
        with self._lock:
            self._corrupt_positions.add((_IMAGE, int.from_bytes(blake2b(content, digest_size=8).digest())))
            count = len(self._corrupt_positions)
        if count <= self.limit:
            _LOG.warning(
                "%s is an image that cannot be decoded: skipped, %d of %d allowed so far", where, count, self.limit
            )
        return count <= self.limit

    def _record_skipped(self, skipped: list[CorruptRange], corrupt: CorruptRange) -> None:
        skipped.append(corrupt)
        self._count_corrupt(corrupt)

    def _count_corrupt(self, corrupt: CorruptRange) -> None:
        # A record counts once, however often this process reads it.
        new_positions = {
            (corrupt.source, index) for index in range(corrupt.start, corrupt.end)
        } - self._corrupt_positions
        if new_positions:
            self._corrupt_positions |= new_positions
            # The records of a damaged chunk arrive one by one when shuffled; log it only once.
            single_record = corrupt.records == 1 < len(corrupt.damaged)
            damaged_chunk = (corrupt.source, corrupt.damaged)
            first = corrupt.damaged[0] if single_record else corrupt.start
            last = corrupt.damaged[-1] if single_record else corrupt.end - 1
            _LOG.log(
                logging.DEBUG if single_record and damaged_chunk in self._logged_chunks else logging.WARNING,
                "%s: %s corrupt (%s): skipped, %d of %d allowed so far",
                corrupt.source,
                f"record {first} is" if first == last else f"records {first} to {last} are",
                corrupt.reason,
                len(self._corrupt_positions),
                self.limit,
            )
            self._logged_chunks.add(damaged_chunk)
        if len(self._corrupt_positions) > self.limit:
            chunk = {(corrupt.source, index) for index in corrupt.damaged}
            raise CorruptRecordError(corrupt, others=len(self._corrupt_positions - chunk))


_IMAGE = "\0image"
"""Stands for the source of an image that is known by its content."""
_LOG = logging.getLogger(__name__)

_READ_TRIES = 10
"""Attempts to read after a temporary error, such as of a network file system; about 5 s in all."""
_READ_BACKOFF = ExponentialBackoff(first_seconds=0.1, max_seconds=1.0)
_LEASE_POLL_SECONDS = 0.2
"""Interval in seconds at which a thread that waits for a request checks whether the lease is still held."""


class MinibatchLike(Protocol):
    """A minibatch that the pipeline made of one window."""

    @property
    def tag(self) -> int:
        """The tag of the window."""

    @property
    def features(self) -> Any:
        """Nested arrays, records first; None or of no records if there were none."""

    @property
    def labels(self) -> Any:
        """Nested arrays; None for prediction."""

    @property
    def weights(self) -> Any:
        """Sample weights: nested arrays; None if ``feed`` yields none."""

    @property
    def skipped_images(self) -> int:
        """Records of the window that were skipped because ``feed`` could not decode them."""


TaggedWindows: TypeAlias = Iterator[tuple[int, RecordWindow]]
FeedPipeline: TypeAlias = Callable[[TaggedWindows], Iterator[MinibatchLike]]


class LoadedStep(NamedTuple):
    """The minibatch of one step; None if it has no records: all were corrupt, or ``feed`` dropped them."""

    step: int
    minibatch: MinibatchLike | None
    record_count: int
    skipped_records: int


_DEFAULT_BATCHES = BatchSpec()


class RecordStream:
    """Reads leased ranges in the order in which they were added.

    Args:
        open_reader: opens the reader of the records.
        corrupt_records: skips and counts corrupt records.
        pipeline: makes minibatches of windows; called once, on the thread that takes the first minibatch.
        is_held: whether this worker still holds a lease; the rest of a lost lease is not read.
        seed: the job's seed, which determines the order of shuffled records.
        batches: what a minibatch of training records is made of.
        portion_records: records of a lease, among which buckets are made; 0: there are none.
        pause: waits for the given seconds.
        jitter: returns a random number, uniform in 0-1.
    """

    def __init__(
        self,
        open_reader: Callable[[], Reader],
        corrupt_records: CorruptRecordSkipper,
        pipeline: FeedPipeline,
        is_held: Callable[[int], bool],
        *,
        seed: int = 0,
        batches: BatchSpec = _DEFAULT_BATCHES,
        portion_records: int = 0,
        pause: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = draw_jitter,
    ) -> None:
        self._open_reader = open_reader
        self._seed = seed
        self._batches = batches
        self._portion_records = portion_records
        self._pause = pause
        self._jitter = jitter
        self._shuffled_reader: PositionReader | None = None
        self._corrupt_records = corrupt_records
        self._pipeline = pipeline
        self._is_held = is_held
        self._lock = threading.Lock()
        self._request_changed = threading.Condition()
        self._requested_tag = -1
        self._task_queue: queue.SimpleQueue[tuple[int, LeasedTask] | None] = queue.SimpleQueue()
        self._next_tag = 0
        self._first_tags: dict[tuple[int, int], int] = {}
        """By lease and first record."""
        self._waiting_tasks: dict[int, LeasedTask] = {}
        """Added ranges that are not read yet, by the tag of their first window."""
        self._dropped_tags: set[int] = set()
        self._early_windows: dict[int, RecordWindow] = {}
        self._window_sizes: dict[int, tuple[int, int]] = {}
        self._read_error: Exception | None = None
        self._minibatches: Iterator[MinibatchLike] | None = None
        self._next_minibatch: MinibatchLike | None = None
        self._reader: Reader | None = None
        self._file_check = FileCheck(self._get_reader)

    def add_task(self, task: LeasedTask) -> None:
        """Append a leased range, or a part of one."""
        with self._lock:
            tag = self._next_tag
            self._next_tag += task.step_count
            self._first_tags[task.lease_id, task.start] = tag
            self._waiting_tasks[tag] = task
        self._task_queue.put((tag, task))

    def drop_task(self, task: LeasedTask) -> None:
        """Drop an added range of which no step was loaded; what was not read yet is not read."""
        self._dropped_tags.add(self._first_tags.pop((task.lease_id, task.start)))

    def read_first_window(self, task: LeasedTask) -> None:
        """Read the first window of an added range now: while TensorFlow is imported, file IO delays no step."""
        # Later, the pipeline reads ahead by itself; and a one-by-one range must not be read ahead.
        if task.step_count and self._minibatches is None and not task.one_by_one:
            # The error is raised again where it is expected.
            with suppress(EdlError):
                self._early_windows[self._first_tags[task.lease_id, task.start]] = self._read_window(task, 0)

    def close(self) -> None:
        """Close the stream: no range follows."""
        self._task_queue.put(None)

    def load_steps(self, task: LeasedTask) -> Iterator[LoadedStep]:
        """Every step of an added range, in order; stop early to drop the rest.

        Raises:
            EdlError: records cannot be read.
            Exception: whatever the user's ``feed`` raises.
        """
        first = self._first_tags.pop((task.lease_id, task.start))
        # Sizes of windows of ranges that were dropped. The pipeline's thread adds others meanwhile: a list takes all
        # keys at once.
        for tag in [tag for tag in list(self._window_sizes) if tag < first]:
            del self._window_sizes[tag]
        for step in range(task.step_count):
            minibatch = self._take_minibatch(first + step)
            records, skipped = self._window_sizes.pop(first + step, (0, 0))
            yield LoadedStep(step, minibatch, records, skipped)

    def _take_minibatch(self, tag: int) -> MinibatchLike | None:
        """The minibatch of a window; skips minibatches of dropped ranges."""
        with self._request_changed:
            self._requested_tag = tag
            self._request_changed.notify_all()
        while self._next_minibatch is None or self._next_minibatch.tag < tag:
            self._next_minibatch = self._advance_pipeline()
        # The reading thread has passed these ranges, perhaps before they were dropped. It discards others meanwhile.
        self._dropped_tags.difference_update([dropped for dropped in list(self._dropped_tags) if dropped < tag])
        # The lease was lost, and the reading thread has left out the rest of its range.
        if self._next_minibatch.tag > tag:
            return None
        minibatch, self._next_minibatch = self._next_minibatch, None
        if minibatch.skipped_images and tag in self._window_sizes:
            records, skipped = self._window_sizes[tag]
            self._window_sizes[tag] = records - minibatch.skipped_images, skipped + minibatch.skipped_images
        return minibatch if count_records(minibatch.features) else None

    def _advance_pipeline(self) -> MinibatchLike:
        if self._minibatches is None:
            self._minibatches = self._pipeline(self._read_windows())
        try:
            minibatch = next(self._minibatches, None)
        except Exception:
            # An error of the reader is the cause; TensorFlow only says that the generator failed.
            if self._read_error is not None:
                raise self._read_error from None
            raise
        if minibatch is None:
            raise self._read_error or RuntimeError("the input pipeline ended too early")
        return minibatch

    def _read_windows(self) -> TaggedWindows:
        """Read ahead of training, on a thread of the pipeline."""
        while (item := self._task_queue.get()) is not None:
            first, task = item
            self._waiting_tasks.pop(first, None)
            if not task.one_by_one and not task.shuffle_window:  # a shuffled order knows its blocks itself
                self._fetch_ahead(task, self._waiting_tasks.get(first + task.step_count))
            for step in range(task.step_count):
                if first in self._dropped_tags:
                    break
                if task.one_by_one:
                    self._wait_until_requested(first + step, task)
                window = self._try_window(first + step, task, step)
                if window is None:
                    return
                self._window_sizes[first + step] = (len(window.records), window.skipped_records)
                yield first + step, window
                if not self._is_held(task.lease_id):
                    break
            self._dropped_tags.discard(first)

    def _fetch_ahead(self, *tasks: LeasedTask | None) -> None:
        """Let a reader that can begin with the blocks of these ranges before they are read."""
        reader: Any = self._reader
        fetch_ahead = getattr(reader, "fetch_ahead", None)
        if fetch_ahead is None:  # also if the reader is not open yet
            return
        with suppress(EdlError):  # raised again where the window is read
            fetch_ahead(
                [
                    (task.source, row)
                    for task in tasks
                    if task is not None and not task.shuffle_window
                    for row in reader.blocks(task.source).starts_in(task.start, task.end)
                ]
            )

    def _wait_until_requested(self, tag: int, task: LeasedTask) -> None:
        """Wait for the request of a minibatch instead of reading ahead."""
        with self._request_changed:
            while self._requested_tag < tag and self._is_held(task.lease_id):
                self._request_changed.wait(_LEASE_POLL_SECONDS)

    def _try_window(self, tag: int, task: LeasedTask, step: int) -> RecordWindow | None:
        """The window of one step; None if it cannot be read."""
        # An empty window of a lost lease, because the consumer may already wait for it.
        if not self._is_held(task.lease_id):
            return RecordWindow(())
        try:
            return self._early_windows.pop(tag, None) or self._read_window(task, step)
        except Exception as error:  # noqa: BLE001  raised again where the minibatch is taken
            self._read_error = error
            return None

    def _read_window(self, task: LeasedTask, step: int) -> RecordWindow:
        start, end = task.step_range(step)
        if self._batches.drop_remainder and task.is_remainder(step):
            return RecordWindow(())
        retry = Retry(_READ_BACKOFF, self._pause, tries=_READ_TRIES, jitter=self._jitter)
        while True:
            try:
                self._file_check.check(task.file_digests, "" if task.shuffle_window else task.source)
                if task.shuffle_window:
                    return self._corrupt_records.read_shuffled(self._open_shuffled(task), task.epoch, start, end)
                return self._corrupt_records.read(self._get_reader(), task.source, start, end)
            except RetryableError as error:
                if retry.is_last:
                    raise
                _LOG.warning("%s; reading again", error)
                retry.wait()

    def _open_shuffled(self, task: LeasedTask) -> PositionReader:
        """Open the shuffled order of a task.

        Raises:
            BadInputError: the files differ from those that were described to the master.
        """
        if self._shuffled_reader is None:
            # Imports NumPy, which TensorFlow imports anyway.
            from edl.data.shuffled_reader import read_by_position

            reader = self._get_reader()
            self._shuffled_reader = read_by_position(
                reader,
                describe_order(reader, task.shuffle_window, self._seed, self._portion_records),
                bucket_by=self._batches.bucket_by,
                minibatch=task.minibatch_size,
            )
        if self._shuffled_reader.order.fingerprint != task.order_fingerprint:
            raise BadInputError(
                "the training data has changed since this run started: the files, records or chunks differ",
                where="data.training",
                hint="restore the files, or start a new run",
            )
        return self._shuffled_reader

    def describe_positions(self, epoch: int, start: int, end: int) -> str:
        """Describe the records at positions ``[start, end)`` of an epoch's shuffled order, for users."""
        if self._shuffled_reader is None:
            return f"records {start} to {end - 1} of {SHUFFLED_SOURCE_NAME}"
        return self._shuffled_reader.describe_positions(epoch, start, end)

    def _get_reader(self) -> Reader:
        if self._reader is None:
            self._reader = self._open_reader()
        return self._reader


def count_records(features: Any) -> int:
    """The number of records in a minibatch: the first dimension of its first array; 0 for None."""
    if features is None:
        return 0
    while isinstance(features, Mapping | tuple | list):
        if not features:
            return 0
        features = next(iter(features.values())) if isinstance(features, Mapping) else features[0]
    return int(features.shape[0])
