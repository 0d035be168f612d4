"""A stream whose windows are read ahead while minibatches are taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from worker.loop_harness import LinearMinibatch, MemoryReader

from edl.api.errors import BadInputError
from edl.data.file_digests import digest_sources
from edl.data.reader import BlockSizes
from edl.data.reader_factory import describe_order, open_reader
from edl.worker.lease_client import LeasedTask
from edl.worker.record_stream import CorruptRecordSkipper, RecordStream, RecordWindow

STEPS = 4


class ReadAhead:
    """A pipeline that reads windows when the test says so, as a thread may at any time."""

    def __init__(self) -> None:
        self.ready: deque[tuple[int, RecordWindow]] = deque()

    def __call__(self, windows: Iterator[tuple[int, RecordWindow]]) -> Iterator[LinearMinibatch]:
        self.windows = windows
        while True:
            if not self.ready:
                self.read()
            tag, window = self.ready.popleft()
            yield LinearMinibatch(tag, np.ones((len(window.records), 1), np.float32), np.ones(1, np.float32))

    def read(self) -> None:
        self.ready.append(next(self.windows))


def test_a_window_is_read_while_a_range_begins() -> None:
    """A worker ended with *dictionary changed size during iteration*."""
    ahead = ReadAhead()
    stream = RecordStream(lambda: MemoryReader(2 * STEPS), CorruptRecordSkipper(0), ahead, lambda lease: True)
    first, second = (LeasedTask(n, "training", "s", n * STEPS, (n + 1) * STEPS) for n in range(2))
    stream.add_task(first)
    stream.add_task(second)
    next(stream.load_steps(first))
    ahead.read()

    class TagThatIsComparedSlowly(int):
        def __gt__(self, other: int) -> bool:
            ahead.read()
            return int(self) > other

    stream._first_tags = {key: TagThatIsComparedSlowly(tag) for key, tag in stream._first_tags.items()}
    loaded = list(stream.load_steps(second))
    assert [(each.step, each.record_count) for each in loaded] == [(step, 1) for step in range(STEPS)]


def test_ranges_that_were_dropped_after_they_were_read_leave_nothing_behind() -> None:
    """Each left one number in memory for the life of the process."""
    ahead = ReadAhead()
    stream = RecordStream(lambda: MemoryReader(4 * STEPS), CorruptRecordSkipper(0), ahead, lambda lease: True)
    first, second, third, last = (LeasedTask(n, "training", "s", n * STEPS, (n + 1) * STEPS) for n in range(4))
    for task in (first, second, third):
        stream.add_task(task)
    steps = stream.load_steps(first)
    next(steps)
    for _ in range(2 * STEPS):
        ahead.read()  # all of the second range, and the beginning of the third one
    assert [each.step for each in steps] == [1, 2, 3]
    stream.drop_task(second)
    stream.drop_task(third)
    stream.add_task(last)
    assert [each.record_count for each in stream.load_steps(last)] == [1] * STEPS
    assert (stream._dropped_tags, stream._window_sizes) == (set(), {})


def test_blocks_of_a_range_and_of_the_next_one_are_named_before_they_are_read() -> None:
    """Parquet decodes them ahead. The reader is open once a window was read."""

    class ReaderOfBlocks(MemoryReader):
        expected: ClassVar[list[list[tuple[str, int]]]] = []

        def blocks(self, source: str) -> BlockSizes:
            return BlockSizes([3] * 10, 1)

        def fetch_ahead(self, blocks: list[tuple[str, int]]) -> None:
            self.expected.append(blocks)

    ahead = ReadAhead()
    stream = RecordStream(lambda: ReaderOfBlocks(30), CorruptRecordSkipper(0), ahead, lambda lease: True)
    tasks = [LeasedTask(number, "training", "s", start, start + STEPS) for number, start in enumerate((0, 8, 20))]
    for task in tasks:
        stream.add_task(task)
    loaded = [step.record_count for task in tasks for step in stream.load_steps(task)]
    assert loaded == [1] * 3 * STEPS
    assert ReaderOfBlocks.expected == [[("s", 8), ("s", 9), ("s", 20), ("s", 21)], [("s", 20), ("s", 21)]]


@pytest.mark.parametrize("window", [0, 8])
def test_a_file_that_was_written_again_after_its_records_were_counted_is_refused_by_name(
    tmp_path: Path, window: int
) -> None:
    file = tmp_path / "a.csv"
    file.write_text("x\n" + "1\n" * STEPS)
    reader = open_reader(file)
    order = describe_order(reader, window, 0).fingerprint if window else ""
    source = "" if window else str(file)
    task = LeasedTask(
        1,
        "training",
        source,
        0,
        STEPS,
        shuffle_window=window,
        order_fingerprint=order,
        file_digests=digest_sources(reader),
    )

    def read() -> list[int]:
        stream = RecordStream(lambda: open_reader(file), CorruptRecordSkipper(0), ReadAhead(), lambda lease: True)
        stream.add_task(task)
        return [step.record_count for step in stream.load_steps(task)]

    assert read() == [1] * STEPS
    file.write_text("x\n" + "2\n" * STEPS)
    with pytest.raises(BadInputError, match=rf"{file}: the data has changed since this run started"):
        read()
    task = replace(task, file_digests="")
    assert read() == [1] * STEPS, "an older run knows no digests"
