"""A stream whose windows are read ahead while minibatches are taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
from worker.loop_harness import LinearMinibatch, MemoryReader

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
