"""With a global batch, a rank takes any number of records from its leases and loads them in micro-batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edl.core.global_batch import RankRecords
from edl.core.world_rounds import Share
from edl.worker.allreduce.batch_plan import BatchPlan
from edl.worker.allreduce.share_source import BatchShareSource, ShareSource
from edl.worker.allreduce.step_message import StepMessage, StepOutcome
from edl.worker.lease_client import LeaseClient, LeasedTask
from edl.worker.record_stream import CorruptRecordSkipper, RecordStream, TaggedWindows


class Leases:
    """The leases that a test grants."""

    has_ended = False

    def __init__(self) -> None:
        self.tasks: deque[LeasedTask] = deque()
        self.free_slots = 4
        self.lost: set[int] = set()
        self.finished: list[int] = []

    def grant(self, number: int, start: int, end: int, **fields: Any) -> None:
        self.free_slots -= 1
        self.tasks.append(LeasedTask(number, "training", "a", start, end, 1, **fields))

    def poll_task(self, seconds: float) -> LeasedTask | None:
        return self.tasks.popleft() if self.tasks else None

    def release_slot(self, task: LeasedTask) -> None:
        self.free_slots += 1

    def mark_lost(self, numbers: Iterable[int]) -> None:
        self.lost.update(numbers)

    def drop_lease(self, number: int) -> None:
        pass

    def await_ledger(self, number: int) -> None:
        self.finished.append(number)


class Numbers:
    """A reader whose records are their own numbers; it notes what was read."""

    def __init__(self) -> None:
        self.read_ranges: list[tuple[int, int]] = []

    def read(self, source: str, start: int, end: int) -> list[int]:
        self.read_ranges.append((start, end))
        return list(range(start, end))


class Fed:
    """A minibatch of numbers."""

    def __init__(self, tag: int, records: Any) -> None:
        self.tag, self.features = tag, np.array(records)
        self.labels = self.weights = None
        self.skipped_images = 0


class CountingStream(RecordStream):
    """It counts the records that it was told to read."""

    added_records = 0

    def add_task(self, task: LeasedTask) -> None:
        super().add_task(task)
        self.added_records += task.end - task.start


class Harness:
    def __init__(self, minibatch: int) -> None:
        self.leases, self.reader = Leases(), Numbers()
        self.stream = CountingStream(
            lambda: self.reader,  # type: ignore[arg-type, return-value]
            CorruptRecordSkipper(0),
            self._feed,
            lambda lease: lease not in self.leases.lost,
        )
        self.shares = BatchShareSource(self.leases, self.leases, self.stream, minibatch)  # type: ignore[arg-type]

    def _feed(self, windows: TaggedWindows) -> Iterator[Any]:
        return (Fed(tag, window.records) for tag, window in windows)

    def load(self, records: int, expected: int | None = None) -> tuple[tuple[Share, ...], list[list[int]]]:
        """Load a share; the one after it is expected to have the same size unless ``expected`` says another one."""
        shares, loaded = self.shares.load_share(records, records if expected is None else expected)
        return shares, [step.minibatch.features.tolist() for _, step in loaded if step.minibatch is not None]

    def apply(self, shares: tuple[Share, ...], step: int = 1) -> list[bool]:
        return [self.shares.mark_applied(share, step) for share in shares]


def test_a_share_takes_the_rest_of_a_lease_and_the_beginning_of_the_next_one() -> None:
    harness = Harness(4)
    harness.leases.grant(1, 100, 107)
    harness.leases.grant(2, 300, 320)
    harness.shares.take_tasks()
    assert harness.shares.available(0) == RankRecords(27)
    shares, loaded = harness.load(10)
    assert shares == (Share(1, 0, 7), Share(2, 0, 3))
    assert loaded == [[100, 101, 102, 103], [104, 105, 106], [300, 301, 302]]
    assert harness.shares.available(10) == RankRecords(17)
    assert harness.apply(shares) == [True, False]
    assert harness.leases.finished == [1]
    assert harness.shares.available(0) == RankRecords(17)
    assert harness.load(5) == ((Share(2, 3, 8),), [[303, 304, 305, 306], [307]])


def test_the_next_share_is_read_ahead_and_nothing_is_read_twice() -> None:
    harness = Harness(4)
    harness.leases.grant(1, 0, 24)
    harness.shares.take_tasks()
    for start in (0, 6, 12, 18):
        shares, loaded = harness.load(6)
        assert loaded == [list(range(start, start + 4)), list(range(start + 4, start + 6))]
        harness.apply(shares)
    read = [number for first, last in harness.reader.read_ranges for number in range(first, last)]
    assert read == list(range(24))


def test_a_share_of_another_size_drops_what_was_to_be_read_ahead() -> None:
    harness = Harness(4)
    harness.leases.grant(1, 0, 60)
    harness.shares.take_tasks()
    shares, _ = harness.load(6)
    harness.apply(shares)
    shares, loaded = harness.load(9)
    assert loaded == [[6, 7, 8, 9], [10, 11, 12, 13], [14]]
    # The round broke: the same records come again, as another share.
    shares, loaded = harness.load(3)
    assert (shares, loaded) == ((Share(1, 6, 9),), [[6, 7, 8]])
    harness.apply(shares)
    assert harness.load(3) == ((Share(1, 9, 12),), [[9, 10, 11]])


@pytest.mark.parametrize(
    ("world", "global_batch", "evaluating"), [(3, 32, 0), (3, 32, 1), (4, 32, 0), (4, 32, 1), (5, 64, 2), (7, 12, 0)]
)
def test_ranks_whose_shares_differ_read_ahead_what_they_train(world: int, global_batch: int, evaluating: int) -> None:
    """With 32 records and 3 ranks, two ranks read another number ahead than they trained, in every step."""
    ranks = [Harness(4) for _ in range(world)]
    plans = [BatchPlan(global_batch, None, rank.shares) for rank in ranks]
    granted = trained = 0
    for step in range(300):
        for rank in ranks:
            while rank.shares.available(0).count < 8 * global_batch // world:
                rank.leases.grant(granted, 100 * granted, 100 * granted + 64)
                rank.shares.take_tasks()
                granted += 1
        stocks = [rank.shares.available(0) for rank in ranks]
        # A rank that evaluates offers nothing.
        stocks[:evaluating] = [RankRecords()] * evaluating
        messages = [StepMessage(available=stock, epoch_left=1 << 30) for stock in stocks]
        outcome = StepOutcome.from_messages([message.encode() for message in messages])
        for number, (rank, plan) in enumerate(zip(ranks, plans, strict=True)):
            plan.agree(outcome, number, step)
            if plan.records:
                rank.apply(rank.load(plan.records, plan.expected_records)[0], step + 1)
            rank.shares.forget_committed(step + 1)
            trained += plan.records
    assert trained == 300 * global_batch
    assert sum(rank.stream.added_records for rank in ranks) <= 1.02 * trained


def test_nothing_is_expected_after_the_last_step_of_an_epoch_or_of_all() -> None:
    shares = Harness(4).shares
    for max_steps, left, expected in ((None, 100, 10), (None, 24, 2), (None, 20, 0), (7, 100, 0), (8, 100, 10)):
        plan = BatchPlan(20, max_steps, shares)
        stocks = (RankRecords(90), RankRecords(90))
        message = StepMessage(epoch_left=left).encode()
        plan.agree(replace(StepOutcome.from_messages([message]), available=stocks), 1, 6)
        assert (plan.records, plan.expected_records) == (10, expected)


def test_records_that_crashed_a_worker_are_indivisible_and_not_read_ahead() -> None:
    harness = Harness(4)
    harness.leases.grant(1, 40, 44, one_by_one=True)
    harness.shares.take_tasks()
    assert harness.shares.available(0) == RankRecords(4, is_indivisible=True)
    assert harness.load(4) == ((Share(1, 0, 4),), [[40, 41, 42, 43]])


def test_a_lost_lease_is_not_read_and_the_slots_are_free_for_other_tasks() -> None:
    harness = Harness(4)
    harness.leases.grant(1, 0, 12)
    harness.leases.grant(2, 20, 32)
    harness.shares.take_tasks()
    assert harness.leases.free_slots == 4
    harness.apply(harness.load(6)[0])
    harness.shares.align({2: 4}, last_lease=2)
    assert harness.shares.available(0) == RankRecords(8)
    assert harness.load(6) == ((Share(2, 4, 10),), [[24, 25, 26, 27], [28, 29]])
    assert harness.leases.free_slots == 4


def test_records_that_may_be_tried_alone_only_are_offered_alone() -> None:
    """A new master does not know what the one before has granted so, and leases more."""
    harness = Harness(4)
    harness.leases.grant(1, 0, 6)
    harness.leases.grant(2, 10, 14, one_by_one=True)
    harness.leases.grant(3, 20, 40)
    harness.shares.take_tasks()
    assert harness.shares.available(0) == RankRecords(6)
    assert harness.shares.available(6) == RankRecords(4, is_indivisible=True)
    assert harness.shares.available(10) == RankRecords(20)
    harness.apply(harness.load(6)[0])
    assert harness.shares.available(0) == RankRecords(4, is_indivisible=True)
    assert harness.load(4) == ((Share(2, 0, 4),), [[10, 11, 12, 13]])


def test_the_rest_of_a_lease_that_a_worker_dropped_is_not_read() -> None:
    """Seen by reading: a worker that came back to the world read up to three leases of which it had none any more,
    and all ranks waited."""
    reader = Numbers()
    leases = LeaseClient(None, lambda task: None, list)  # type: ignore[arg-type]
    stream = RecordStream(
        lambda: reader,  # type: ignore[arg-type, return-value]
        CorruptRecordSkipper(0),
        lambda windows: (Fed(tag, window.records) for tag, window in windows),  # type: ignore[arg-type]
        leases.is_held,
    )
    shares = ShareSource(leases, Leases(), stream)  # type: ignore[arg-type]
    for number, start in ((1, 0), (2, 100)):
        task = LeasedTask(number, "training", "a", start, start + 40, 4)
        stream.add_task(task)
        leases._enqueue_task(task)
        shares.take_tasks()
        if number == 1:
            shares.drop_all()
    current = shares.current()
    assert current is not None
    assert current.share() == Share(2, 0, 4)
    assert reader.read_ranges == [(100, 104)]
