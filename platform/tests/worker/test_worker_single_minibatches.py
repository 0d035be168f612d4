"""A range whose minibatches are read, fed and trained one by one, so that the end of a worker names the one at work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from worker.loop_harness import (
    FEATURES,
    LEASE,
    MINIBATCH,
    LinearMinibatch,
    LinearNetwork,
    LinearStep,
    LoopHarness,
    MemoryReader,
    task,
)

from edl.core.crash_suspects import MAX_FED_AHEAD
from edl.worker import feed_pipeline
from edl.worker.lease_client import LeasedTask
from edl.worker.record_stream import CorruptRecordSkipper, RecordStream, RecordWindow
from edl.worker.trainer import SerialExecutor

pytestmark = pytest.mark.tensorflow

RECORDS = 80


class FedRecords:
    """What a worker has read, fed and put in so far, by the first record of the minibatch."""

    windows_at_once = 1

    def __init__(self) -> None:
        self.windows: list[int] = []
        self.changed = threading.Condition()

    def make_minibatch(self, tag: int, window: RecordWindow) -> LinearMinibatch:
        rows = np.array([np.frombuffer(record, np.float32) for record in window.records], np.float32)
        rows = rows.reshape(-1, FEATURES + 1)
        with self.changed:
            self.windows.append(int(rows[0, -1]) if len(rows) else -1)
            self.changed.notify_all()
        return LinearMinibatch(tag, rows[:, :-1], rows[:, -1])

    def last(self) -> int:
        """The last one, when none has come for a moment."""
        with self.changed:
            while self.changed.wait(0.1):
                pass
            return max(self.windows)


@pytest.fixture
def harness() -> Iterator[LoopHarness]:
    harness = LoopHarness(records=RECORDS)
    yield harness
    harness.close()


@pytest.fixture(params=["in turn", "overlapped"])
def executor(request: pytest.FixtureRequest) -> Iterator[SerialExecutor | None]:
    executor = SerialExecutor("test")
    yield None if request.param == "in turn" else executor
    executor.close()


def with_pipeline(harness: LoopHarness) -> FedRecords:
    """Have the harness's training records go through the real pipeline."""
    fed = FedRecords()
    corrupt = CorruptRecordSkipper(0)
    feed: Callable[[Any], Any] = lambda windows: feed_pipeline.feed_in_background(fed, windows)  # type: ignore[arg-type] # noqa: E731
    harness.streams["training"] = RecordStream(lambda: harness.reader, corrupt, feed, harness.leases.is_held)
    return fed


def train(harness: LoopHarness, fed: FedRecords, executor: SerialExecutor | None, *tasks: Any) -> list[tuple[int, int]]:
    """Train ranges; at each step the first record of the minibatch that is not in, and of the last that is fed."""
    network = LinearNetwork()
    parameters = harness.parameters(network, overlap=executor is not None)
    positions: list[tuple[int, int]] = []
    plain = network.train

    def watched(slab: Any, rows: Any, features: Any, labels: Any, weights: Any = None) -> LinearStep:
        positions.append((harness.servers.servers[0].collect_statistics().version * MINIBATCH, fed.last()))
        return plain(slab, rows, features, labels, weights)

    network.train = watched  # type: ignore[method-assign]
    trainer = harness.trainer(network, parameters, executor=executor)
    for leased in harness.take(*tasks):
        trainer.run(leased)
    return positions


def test_nothing_is_read_or_fed_before_the_minibatch_at_work_is_in(
    harness: LoopHarness, executor: SerialExecutor | None
) -> None:
    fed = with_pipeline(harness)
    positions = train(harness, fed, executor, task(1, 0, 20, one_by_one=True), task(2, 20, 28, one_by_one=True))
    assert positions == [(first, first) for first in range(0, 28, MINIBATCH)]
    assert isinstance(harness.reader, MemoryReader)
    assert harness.reader.reads == [(first, first + MINIBATCH) for first in range(0, 28, MINIBATCH)]


@pytest.mark.first_cases(1)
def test_a_worker_feeds_no_further_ahead_than_the_core_believes(
    harness: LoopHarness, executor: SerialExecutor | None
) -> None:
    fed = with_pipeline(harness)
    positions = train(harness, fed, executor, task(1, 0, 40), task(2, 40, RECORDS))
    ahead = [(last - first) // MINIBATCH for first, last in positions]
    assert max(ahead) > 1
    assert max(ahead) <= MAX_FED_AHEAD


def test_a_range_after_one_that_others_fed_ahead_is_not_read_before_it_is_taken(
    harness: LoopHarness, executor: SerialExecutor | None
) -> None:
    fed = with_pipeline(harness)
    positions = train(harness, fed, executor, task(1, 0, 8), task(2, 8, 24, one_by_one=True), task(3, 24, 32))
    assert all(last <= 4 for first, last in positions if first < 8)
    assert [each for each in positions if 8 <= each[0] < 20] == [(first, first) for first in range(8, 20, MINIBATCH)]


def test_a_lease_that_is_lost_holds_up_nobody(harness: LoopHarness) -> None:
    """Whoever waits to be asked for its next minibatch goes on with the range after it."""
    fed = with_pipeline(harness)
    stream = harness.streams["training"]
    first, second = (LeasedTask.from_message(each) for each in (task(1, 0, 8, one_by_one=True), task(2, 8, 16)))
    stream.add_task(first)
    stream.add_task(second)
    assert next(iter(stream.load_steps(first))).step == 0
    harness.leases.mark_lost([LEASE + 1])
    until = time.monotonic() + 5
    loaded_steps = list(stream.load_steps(second))
    assert [loaded.record_count for loaded in loaded_steps] == [MINIBATCH, MINIBATCH]
    assert time.monotonic() < until
    assert fed.windows[-1] == 12
