"""The minibatches of this rank: its training leases, and how far each of them is in the worker's state."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from edl.core.global_batch import MAX_SHARE_LEASES, RankRecords
from edl.core.world_rounds import Share, StepShares
from edl.worker.lease_client import TRAINING_KIND, LeaseClient, LeasedTask, ProgressReporter
from edl.worker.record_stream import LoadedStep, RecordStream


@dataclass(slots=True)
class OpenLease:
    """A training lease with records that are not in the ledger.

    Attributes:
        loaded_steps: its minibatches, from the next one that was not loaded.
        next_step: the first step that is not in the worker's state.
        loaded: the minibatch of that step, once loaded: a round that broke did not use it.
        finished_at: the step of the world with which its last records were applied; None: it has more.
        skipped: the corrupt records before the next step, which were skipped.
        pending_skip: the end of the newest share, and the corrupt records before this end; None: there was no share.
            They count when the share is applied, perhaps by another rank alone, whose state this one gets.
    """

    task: LeasedTask
    loaded_steps: Iterator[LoadedStep]
    next_step: int = 0
    loaded: LoadedStep | None = None
    finished_at: int | None = None
    skipped: int = 0
    pending_skip: tuple[int, int] | None = None

    @property
    def has_steps(self) -> bool:
        """Whether records are left."""
        return self.next_step < self.task.step_count

    def load(self) -> LoadedStep:
        """The minibatch of the next step."""
        while self.loaded is None or self.loaded.step < self.next_step:
            self.loaded = next(self.loaded_steps)
        return self.loaded

    def share(self) -> Share:
        """The records of the next step, counted from the start of the lease. Loads them."""
        start, end = self.task.step_range(self.next_step)
        share = Share(self.task.lease_id, start - self.task.start, end - self.task.start)
        return self.count_skipped(share, self.load().skipped_records)

    def count_skipped(self, share: Share, skipped: int) -> Share:
        """The next share, with ``skipped`` corrupt records in it."""
        self.pending_skip = share.end, self.skipped + skipped
        return share._replace(skipped=self.skipped + skipped)


class ShareSource:
    """Takes leases from the master and gives out one minibatch after the other.

    Args:
        leases: requests tasks.
        progress: keeps the master informed of the leases that this worker knows.
        stream: reads the training records.
    """

    def __init__(self, leases: LeaseClient, progress: ProgressReporter, stream: RecordStream) -> None:
        self._leases = leases
        self._progress = progress
        self._stream = stream
        self._open: list[OpenLease] = []
        self.other_tasks: deque[LeasedTask] = deque()
        """Tasks of other kinds, which change no variable."""

    @property
    def is_over(self) -> bool:
        """Whether the master has no more work for this worker."""
        return self._leases.has_ended and not self.other_tasks

    def take_tasks(self, seconds: float = 0.0) -> None:
        """Take the tasks that have arrived; without any, wait for one for ``seconds``."""
        while (task := self._leases.poll_task(seconds)) is not None:
            seconds = 0.0
            if task.kind == TRAINING_KIND:
                self._open_lease(task)
            else:
                self.other_tasks.append(task)

    def _open_lease(self, task: LeasedTask) -> None:
        self._open.append(OpenLease(task, self._stream.load_steps(task)))

    def _finish_lease(self, task: LeasedTask) -> None:
        """No record of it is left for this rank: the next one may be requested."""
        self._leases.release_slot(task)

    def current(self) -> OpenLease | None:
        """The lease whose records come next; None if there is none now."""
        return next((lease for lease in self._open if lease.has_steps), None)

    def mark_applied(self, share: Share, step: int) -> bool:
        """The records of a share of this rank are in the worker's state, by step ``step`` of the world.

        Returns whether a lease is finished by it.
        """
        lease = next((each for each in self._open if each.task.lease_id == share.lease), None)
        return lease is not None and self._advance(lease, share.end, step)

    def _advance(self, lease: OpenLease, end: int, step: int) -> bool:
        """The first ``end`` records of a lease are in the worker's state, by step ``step``; as ``mark_applied``."""
        done = -(-end // lease.task.minibatch_size)
        if lease.has_steps and done > lease.next_step:
            lease.next_step, lease.loaded = done, None
            if lease.pending_skip is not None and lease.pending_skip[0] == end:
                lease.skipped = lease.pending_skip[1]
            if not lease.has_steps:
                lease.finished_at = step
                # It stays known until it is in the ledger.
                self._progress.await_ledger(lease.task.lease_id)
                self._finish_lease(lease.task)
                return True
        return False

    def forget_committed(self, step: int) -> None:
        """The steps up to ``step`` are in the ledger."""
        for lease in [each for each in self._open if each.finished_at is not None and each.finished_at <= step]:
            self._open.remove(lease)
            self._progress.drop_lease(lease.task.lease_id)

    def align(self, done_records: Mapping[int, int], last_lease: int) -> None:
        """A round starts: the master says which leases this worker has, and how much of each is in the ledger.

        Args:
            done_records: by lease, the done records.
            last_lease: a lease up to this number that is not in ``done_records`` belongs to somebody else now.
        """
        self.take_tasks()
        for lease in list(self._open):
            number = lease.task.lease_id
            done = done_records.get(number)
            if done is None and number <= last_lease:
                self._drop(lease)
            elif done:
                # They are in the ledger, whichever step has applied them.
                self._advance(lease, done, step=0)

    def drop_all(self) -> None:
        """This worker is not in the world any more, so it has no training lease."""
        for lease in list(self._open):
            self._drop(lease)

    def _drop(self, lease: OpenLease) -> None:
        self._open.remove(lease)
        self._progress.drop_lease(lease.task.lease_id)
        if lease.has_steps:
            self._finish_lease(lease.task)
        # Last, because a slot that is released forgets the mark. The stream may still be reading the lease.
        self._leases.mark_lost([lease.task.lease_id])


class BatchShareSource(ShareSource):
    """Gives out any number of records at a time, from as many leases as that takes (``strategy.global_batch``).

    A step of a lease is one record here. The records of a share are loaded in micro-batches of at most ``minibatch``
    records. The next share is read ahead.
    """

    def __init__(self, leases: LeaseClient, progress: ProgressReporter, stream: RecordStream, minibatch: int) -> None:
        super().__init__(leases, progress, stream)
        self._minibatch = minibatch
        self._ahead: deque[LeasedTask] = deque()
        """Ranges that the stream reads already."""
        self._skipped: dict[int, int] = {}
        """By lease, the corrupt records of the share that is loaded now."""

    def _open_lease(self, task: LeasedTask) -> None:
        super()._open_lease(task)
        # The master bounds what a worker holds, by records: a step may need many small leases.
        self._leases.release_slot(task)

    def _finish_lease(self, task: LeasedTask) -> None:
        """The slot was released before."""

    @property
    def epoch(self) -> int:
        """The epoch of the next record. All records of a step are of one epoch."""
        return next((lease.task.epoch for lease in self._open if lease.has_steps), 0)

    def available(self, after: int) -> RankRecords:
        """The records of this rank behind the next ``after`` ones.

        Those of a lease that is tried alone are offered alone. Others may be behind them: a new master does not know
        what the one before has granted so.
        """
        count = 0
        for lease in islice((lease for lease in self._open if lease.has_steps), MAX_SHARE_LEASES):
            left = lease.task.step_count - lease.next_step
            used = min(after, left)
            after, left = after - used, left - used
            if left and lease.task.one_by_one:
                return RankRecords(count) if count else RankRecords(left, is_indivisible=True)
            count += left
        return RankRecords(count)

    def load_share(self, records: int, expected: int) -> tuple[StepShares, Iterator[tuple[LeasedTask, LoadedStep]]]:
        """The next ``records`` records as shares of leases, and their micro-batches with the range of each share.

        Args:
            expected: the records of the share after it, which is read ahead.
        """
        ranges = self._cut(0, records)
        for each in ranges:
            self._request(each)
        for each in self._cut(records, expected)[len(self._ahead) :]:
            if not each.one_by_one:
                self._stream.add_task(each)
                self._ahead.append(each)
        starts = {lease.task.lease_id: lease.task.start for lease in self._open}
        shares = tuple(
            Share(each.lease_id, each.start - starts[each.lease_id], each.end - starts[each.lease_id])
            for each in ranges
        )
        self._skipped = {}
        return shares, self._load(ranges)

    def _load(self, ranges: Iterable[LeasedTask]) -> Iterator[tuple[LeasedTask, LoadedStep]]:
        for each in ranges:
            for loaded in self._stream.load_steps(each):
                self._skipped[each.lease_id] = self._skipped.get(each.lease_id, 0) + loaded.skipped_records
                yield each, loaded

    def count_skipped(self, shares: StepShares) -> StepShares:
        """The shares of which all micro-batches are loaded, with the corrupt records that were skipped."""
        leases = {lease.task.lease_id: lease for lease in self._open}
        return tuple(leases[share.lease].count_skipped(share, self._skipped.get(share.lease, 0)) for share in shares)

    def _cut(self, skip: int, records: int) -> list[LeasedTask]:
        """The ranges of the next ``records`` records behind the first ``skip`` ones."""
        ranges = []
        for lease in islice((lease for lease in self._open if lease.has_steps), MAX_SHARE_LEASES):
            start = lease.next_step + min(skip, lease.task.step_count - lease.next_step)
            skip -= start - lease.next_step
            end = min(start + records, lease.task.step_count)
            if start < end:
                first = lease.task.start
                ranges.append(replace(lease.task, start=first + start, end=first + end, minibatch_size=self._minibatch))
                records -= end - start
        return ranges

    def _request(self, wanted: LeasedTask) -> None:
        """Let the stream read a range next, unless it does so already."""
        if self._ahead and self._ahead[0] == wanted:
            self._ahead.popleft()
            return
        # The share has another size than was expected, or is loaded anew after a round that broke.
        while self._ahead:
            self._stream.drop_task(self._ahead.popleft())
        self._stream.add_task(wanted)
