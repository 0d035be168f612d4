"""The ledger of record ranges: which worker processes which records.

Every record of every epoch is in exactly one place:

* *planned*: not yet reached by the lazy plan;
* *returned*: to be leased again, before planned ranges;
* *begun*: the rest of a shard of several leases. It stays with the worker that began the shard as
  long as there is other work for the others;
* *leased*, *done*, or *quarantined* by the user's rule.

The only operations are to move a range to another place and to split it. No operation drops a range,
so no record is lost; ranges never overlap, so no record is done twice.

Only ``apply_entry`` (``edl.core.journal_application``) calls the methods that change a ledger, live and in replay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl.core.record_ranges import RecordRange, RecordSource, ShardPlan
from edl.core.shuffle import SHUFFLED_SOURCE, ShuffleOrder

LEASE_COUNTER_BITS = 32
"""A lease number is ``(incarnation << 32) + counter``, so numbers of different masters never collide.

The counter counts the leases of one master.
"""


@dataclass(slots=True)
class Lease:
    """A range that is leased to one worker.

    Attributes:
        number: the lease's number; unique in the run and increasing.
        minibatch: records per step. Step k covers ``[start + k * minibatch, ...)``; the last one may be
            shorter.
        worker: uid of the holder's pod.
        done_steps: all steps below this number are done.
        revoke_reason: why it is being revoked, possibly an empty string that its worker sent; None while
            it is held.
        skipped_records: the corrupt records among the done ones, under AllReduce.
    """

    number: int
    record_range: RecordRange
    minibatch: int
    worker: str
    done_steps: int = 0
    revoke_reason: str | None = None
    skipped_records: int = 0

    @property
    def step_count(self) -> int:
        """Steps in the whole range."""
        return -(-self.record_range.records // self.minibatch)

    def record_after_steps(self, done_steps: int) -> int:
        """The first record after ``done_steps`` steps."""
        return min(self.record_range.start + done_steps * self.minibatch, self.record_range.end)


@dataclass(slots=True)
class LeaseRevocation:
    """The training leases of one worker, revoked together.

    Attributes:
        waiting_ps: uids of PS that have not answered yet.
        applied_steps: by PS that answered, the number of applied steps of each lease.
        first_steps: by PS, the first step of each lease that it admitted since it started or rolled back.
        in_flight: whether the worker may have been computing a minibatch, which is then wasted.
        crashed: whether the worker ended by an error of its own.
    """

    worker: str
    leases: tuple[int, ...]
    reason: str
    in_flight: bool
    crashed: bool = False
    waiting_ps: set[str] = field(default_factory=set)
    applied_steps: dict[str, Mapping[int, int]] = field(default_factory=dict)
    first_steps: dict[str, Mapping[int, int]] = field(default_factory=dict)

    def to_row(self) -> list[Any]:
        """The row for a compacted journal. The awaited PS are not recorded: a new master asks all PS again."""
        return [self.worker, list(self.leases), self.reason, self.in_flight, self.crashed]

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> LeaseRevocation:
        """Restore a revocation from its row; no PS has been asked yet."""
        worker, leases, reason, in_flight, crashed = row
        return cls(worker, tuple(leases), reason, in_flight, crashed)

    def mark_leases(self, leases: Mapping[int, Lease]) -> bool:
        """Mark the held leases as being revoked; returns whether there are any."""
        # Journals of earlier versions may also name leases that were being revoked already, or done.
        numbers = (number for number in self.leases if number in leases and leases[number].revoke_reason is None)
        self.leases = tuple(numbers)
        for number in self.leases:
            leases[number].revoke_reason = self.reason
        return bool(self.leases)

    def record_answer(
        self, ps: str, applied_steps: Mapping[int, int], first_steps: Mapping[int, int] | None = None
    ) -> None:
        """Record the answer of a PS: it refuses the leases from now on and reports the steps it applied."""
        if ps in self.waiting_ps and all(number in applied_steps for number in self.leases):
            self.waiting_ps.discard(ps)
            self.applied_steps[ps], self.first_steps[ps] = applied_steps, first_steps or {}

    def drop_ps(self, ps: str) -> None:
        """Stop waiting for a PS that will never answer."""
        self.waiting_ps.discard(ps)
        self.applied_steps.pop(ps, None)
        self.first_steps.pop(ps, None)

    def admitted_steps(self, lease: int, done_steps: int) -> dict[str, int]:
        """How many steps of a lease, from ``done_steps`` on, each PS admitted.

        PS that admitted none are left out.
        """
        steps_by_ps = {}
        for ps, first in self.first_steps.items():
            if lease in first and (steps := self.applied_steps[ps][lease] - max(done_steps, first[lease])) > 0:
                steps_by_ps[ps] = steps
        return steps_by_ps


@dataclass(slots=True)
class Ledger:
    """The ranges of one kind of work: a plan, repeated for a number of epochs.

    Attributes:
        lease_records: records per lease; 0: a lease is a whole shard of the plan.
        shard_rests: the *begun* ranges, by their epoch, source and first record.
    """

    plan: ShardPlan
    epochs: int
    minibatch: int
    lease_records: int = 0
    epoch: int = 0
    shard_index: int = 0
    returned_ranges: deque[RecordRange] = field(default_factory=deque)
    shard_rests: dict[tuple[int, str, int], RecordRange] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    done_records: int = 0
    done_steps: int = 0
    quarantined_ranges: list[RecordRange] = field(default_factory=list)
    outstanding_steps: int = 0
    """Leased steps that are not done.

    Maintained incrementally, because every lease request needs it when steps are limited.
    """
    _leases_by_worker: dict[str, dict[int, Lease]] = field(default_factory=dict)
    """Leases by worker, maintained for the same reason: a thousand workers hold two leases each."""
    _unleased_steps: int | None = field(default=None, compare=False)
    """Steps of planned, returned and begun ranges, maintained from the first time that they are needed."""
    _begun_records: dict[int, int] | None = field(default=None, compare=False)
    """By epoch, the records of returned, begun and leased ranges that are not done, maintained likewise."""

    def __post_init__(self) -> None:
        if not self.plan.shard_count:
            self.epoch = self.epochs

    @property
    def total_records(self) -> int:
        """Records of all epochs."""
        # A resumed run may have fewer epochs than it has already begun. Then everything that was
        # handed out counts, except ranges that returned and are not leased again.
        if (self.epoch, self.shard_index) <= (self.epochs, 0):
            return self.plan.records * self.epochs
        handed_out = self.plan.records * self.epoch + self._count_reached_records()
        back = (*self.returned_ranges, *self.shard_rests.values())
        return handed_out - sum(work.records for work in back if work.epoch >= self.epochs)

    @property
    def has_work(self) -> bool:
        """Whether there is work to lease."""
        return (
            self.epoch < self.epochs or self._returned_range() is not None or self._first_rest(self.epochs) is not None
        )

    @property
    def is_finished(self) -> bool:
        """Whether nothing is planned, returned or leased."""
        return not self.has_work and not self.leases

    @property
    def planned_shards(self) -> int:
        """Shards of this epoch and of later ones that no lease has begun."""
        return max(0, self.plan.shard_count * (self.epochs - self.epoch) - self.shard_index)

    @property
    def unfinished_steps(self) -> int:
        """Steps of all epochs that are not done, leased or not."""
        if self._unleased_steps is None:
            self._unleased_steps = self._count_unleased_steps()
        return self._unleased_steps + self.outstanding_steps

    def _count_unleased_steps(self) -> int:
        planned = 0
        if self.epoch < self.epochs:
            # Few shards are reached, or few are left.
            reached, shards = self.shard_index, self.plan.shard_count
            is_early = reached <= shards // 2
            counted = sum(
                self._count_steps(self.plan.shard(self.epoch, index))
                for index in (range(reached) if is_early else range(reached, shards))
            )
            whole = self.plan.count_steps(self.minibatch)
            planned = whole * (self.epochs - self.epoch - 1) + (whole - counted if is_early else counted)
        return planned + sum(map(self._count_steps, (*self.returned_ranges, *self.shard_rests.values())))

    def _count_steps(self, work: RecordRange) -> int:
        """The minibatches of a range; none beyond the last epoch."""
        return -(-work.records // self.minibatch) if work.epoch < self.epochs else 0

    def _add_begun_records(self, epoch: int, records: int) -> None:
        if self._begun_records is not None:
            left = self._begun_records.get(epoch, 0) + records
            if left:
                self._begun_records[epoch] = left
            else:
                self._begun_records.pop(epoch, None)

    def _add_unleased_steps(self, steps: int) -> None:
        if self._unleased_steps is not None:
            self._unleased_steps += steps

    def oldest_lease(self) -> int | None:
        """The oldest lease. Leases are granted in numeric order, and the dict keeps that order."""
        return next(iter(self.leases), None)

    def worker_leases(self, worker: str) -> Collection[Lease]:
        """The leases of one worker, oldest first."""
        return self._leases_by_worker.get(worker, _NO_LEASES).values()

    def next_range(
        self, max_steps: int | None = None, worker: str = "", *, skips: Callable[[RecordRange], bool] | None = None
    ) -> RecordRange | None:
        """The range to lease next, at most ``max_steps`` steps of it; None if there is none.

        Args:
            max_steps: maximum number of steps that may still be handed out.
            worker: the requesting worker. It continues the shard that it has begun, whose blocks it holds
                in memory.
            skips: returned and begun ranges that are left for later.
        """
        if max_steps is not None and max_steps <= 0:
            return None
        # Rests of earlier epochs come before the plan, so that an epoch ends before the next one
        # begins; rests of this epoch come last, because other workers would have to read their blocks
        # again. A shard of a single lease has a rest if the lease was shorter, and needs no such order.
        first = self.epochs if self.plan.size <= self.lease_records else self.epoch
        work = (
            self._returned_range(skips)
            or self._continued_rest(worker, skips)
            or self._first_rest(first, skips)
            or (self._current_shard() if self.epoch < self.epochs else None)
            or self._first_rest(self.epochs, skips)
        )
        if work is None:
            return None
        most = [work.records] if max_steps is None else [work.records, max_steps * self.minibatch]
        return work.split(work.start + min([*most, self.lease_records] if self.lease_records else most))[0]

    def _returned_range(self, skips: Callable[[RecordRange], bool] | None = None) -> RecordRange | None:
        """The first returned range. Ranges beyond the last epoch stay in the queue."""
        candidates = (work for work in self.returned_ranges if work.epoch < self.epochs)
        return next((work for work in candidates if skips is None or not skips(work)), None)

    def _continued_rest(self, worker: str, skips: Callable[[RecordRange], bool] | None = None) -> RecordRange | None:
        """The rest of the shard of which this worker holds a lease."""
        if not self.shard_rests:
            return None
        ends = (
            (lease.record_range.epoch, lease.record_range.source, lease.record_range.end)
            for lease in self.worker_leases(worker)
        )
        rests = (self.shard_rests.get(end) for end in ends)
        candidates = (rest for rest in rests if rest is not None and rest.epoch < self.epochs)
        return next((rest for rest in candidates if skips is None or not skips(rest)), None)

    def _first_rest(self, before: int, skips: Callable[[RecordRange], bool] | None = None) -> RecordRange | None:
        """The first rest of any shard of an epoch before this one."""
        candidates = (work for work in self.shard_rests.values() if work.epoch < min(before, self.epochs))
        return next((work for work in candidates if skips is None or not skips(work)), None)

    def _current_shard(self) -> RecordRange:
        return self.plan.shard(self.epoch, self.shard_index)

    def grant_range(self, number: int, work: RecordRange, worker: str) -> Lease:
        """Lease ``work``, which must be the result of ``next_range`` or its beginning."""
        # This must not depend on the number of epochs: a resumed run may have another number, and the
        # journal has to replay to the same ledger.
        position = next(
            (position for position, each in enumerate(self.returned_ranges) if _starts_with(each, work)), None
        )
        if position is not None:
            whole = self.returned_ranges[position]
            rest = whole.split(work.end)[1]
            del self.returned_ranges[position]
            if rest.records:
                self.returned_ranges.insert(position, rest)
        else:
            shard_rest = self.shard_rests.pop((work.epoch, work.source, work.start), None)
            whole = self._current_shard() if shard_rest is None else shard_rest
            if shard_rest is None:
                if not _starts_with(whole, work):
                    raise ValueError(f"{work} is not next: {self.next_range()}")
                self._advance_plan()
                self._add_begun_records(whole.epoch, whole.records)
            rest = whole.split(work.end)[1]
            self._keep_rest(rest)
        # A range that is split within a minibatch has one more.
        self._add_unleased_steps(self._count_steps(rest) - self._count_steps(whole))
        lease = self._add_lease(Lease(number, work, self.minibatch, worker))
        self.outstanding_steps += lease.step_count
        return lease

    def _keep_rest(self, rest: RecordRange) -> None:
        if not rest.records:
            return
        if self.lease_records:
            self.shard_rests[rest.epoch, rest.source, rest.start] = rest
        else:
            self.returned_ranges.appendleft(rest)

    def _add_lease(self, lease: Lease) -> Lease:
        self.leases[lease.number] = self._leases_by_worker.setdefault(lease.worker, {})[lease.number] = lease
        return lease

    def _close_lease(self, number: int) -> Lease:
        lease = self.leases.pop(number)
        worker_leases = self._leases_by_worker[lease.worker]
        del worker_leases[number]
        if not worker_leases:
            del self._leases_by_worker[lease.worker]
        return lease

    def _advance_plan(self) -> None:
        self.shard_index += 1
        if self.shard_index == self.plan.shard_count:
            self.epoch, self.shard_index = self.epoch + 1, 0

    def record_progress(self, number: int, done_steps: int) -> int:
        """Record done steps; returns the newly done records. A lower count than before changes nothing."""
        lease = self.leases[number]
        # Clamped to the range: a faulty worker can report a step beyond its end.
        done_steps = max(lease.done_steps, min(done_steps, lease.step_count))
        added = lease.record_after_steps(done_steps) - lease.record_after_steps(lease.done_steps)
        self.done_records += added
        self._add_begun_records(lease.record_range.epoch, -added)
        self.done_steps += done_steps - lease.done_steps
        self.outstanding_steps -= done_steps - lease.done_steps
        lease.done_steps = done_steps
        return added

    def record_skipped(self, number: int, skipped: int) -> int:
        """Record the corrupt records among the done ones of a lease; returns how many are new."""
        lease = self.leases[number]
        added = max(0, skipped - lease.skipped_records)
        lease.skipped_records += added
        return added

    def finish_lease(self, number: int) -> int:
        """Record the whole range as done and close the lease; returns the newly done records."""
        added = self.record_progress(number, self.leases[number].step_count)
        self._close_lease(number)
        return added

    def return_lease(self, number: int, done_steps: int, quarantine_records: int = 0) -> RecordRange:
        """Close a lease after ``done_steps`` steps, put the rest at the head of the queue and return it.

        The first ``quarantine_records`` records of the rest are quarantined instead.
        """
        self.record_progress(number, done_steps)
        lease = self._close_lease(number)
        self.outstanding_steps -= lease.step_count - lease.done_steps
        rest = lease.record_range.split(lease.record_after_steps(lease.done_steps))[1]
        if quarantine_records:
            bad, rest = rest.split(min(rest.end, rest.start + quarantine_records))
            self.quarantined_ranges.append(bad)
            self._add_begun_records(bad.epoch, -bad.records)
        if rest.records:
            self.returned_ranges.appendleft(rest)
            self._add_unleased_steps(self._count_steps(rest))
        return rest

    def open_epoch(self) -> tuple[int, int]:
        """The first epoch that is not over, and how many of its records are neither done nor quarantined.

        Records of later epochs may be leased or done: only with files of each epoch, or with a global batch, nothing
        of one is leased before the previous one is done.
        """
        if not self.plan.records:
            return self.epochs, 0
        if self._begun_records is None:
            self._begun_records = {}
            for place, work in self.open_ranges():
                if place != "quarantined":
                    self._add_begun_records(work.epoch, work.records)
        first = min(self._begun_records, default=self.epoch)
        if first < self.epoch:
            return (first, self._begun_records[first]) if first < self.epochs else (self.epochs, 0)
        # All earlier epochs are over, and nothing of later ones was handed out.
        processed = self.done_records + sum(work.records for work in self.quarantined_ranges)
        epoch, done = divmod(processed, self.plan.records)
        return (epoch, self.plan.records - done) if epoch < self.epochs else (self.epochs, 0)

    def count_remaining_records(self) -> int:
        """The number of unfinished records, summed over every place they can be in."""
        planned = 0
        if self.epoch < self.epochs:
            planned = self.plan.records * (self.epochs - self.epoch) - self._count_reached_records()
        leased = sum(
            lease.record_range.end - lease.record_after_steps(lease.done_steps) for lease in self.leases.values()
        )
        back = (*self.returned_ranges, *self.shard_rests.values())
        return planned + leased + sum(work.records for work in back if work.epoch < self.epochs)

    def count_done_remainders(self) -> int:
        """Done records of steps that are not full: at the ends of shards, whose other steps are all full."""
        per_epoch = sum(source.records % self.minibatch for source in self.plan.sources)
        reached = per_epoch * min(self.epoch, self.epochs)
        if self.epoch < self.epochs:
            shards = (self.plan.shard(self.epoch, index) for index in range(self.shard_index))
            reached += sum(shard.records % self.minibatch for shard in shards)
        # A rest begins with a whole step of its shard, so that what is not full is at its end.
        return reached - sum(work.records % self.minibatch for _, work in self.open_ranges())

    def _count_reached_records(self) -> int:
        """Records of the current epoch that were handed out."""
        shards = (self.plan.shard(self.epoch, index) for index in range(self.shard_index))
        return sum(shard.records for shard in shards)

    def open_ranges(self) -> Iterator[tuple[str, RecordRange]]:
        """Every range that is neither planned nor done, with its place."""
        for work in self.returned_ranges:
            yield "returned", work
        for work in self.shard_rests.values():
            yield "begun", work
        for lease in self.leases.values():
            yield "leased", lease.record_range.split(lease.record_after_steps(lease.done_steps))[1]
        for work in self.quarantined_ranges:
            yield "quarantined", work

    def to_snapshot(self) -> dict[str, Any]:
        """The ledger as JSON, for journal compaction."""
        return {
            "epoch": self.epoch,
            "index": self.shard_index,
            "returned": [_range_to_row(work) for work in self.returned_ranges],
            "leases": [
                [n, _range_to_row(x.record_range), x.minibatch, x.worker, x.done_steps]
                + ([x.skipped_records] if x.skipped_records else [])
                for n, x in self.leases.items()
            ],
            "done_records": self.done_records,
            "done_steps": self.done_steps,
            "quarantined": [_range_to_row(work) for work in self.quarantined_ranges],
            **({"begun": [_range_to_row(work) for work in self.shard_rests.values()]} if self.shard_rests else {}),
        }

    def restore_snapshot(self, snapshot: Mapping[str, Any]) -> None:
        """Restore what ``to_snapshot`` returned."""
        self.epoch, self.shard_index = snapshot["epoch"], snapshot["index"]
        self.returned_ranges = deque(RecordRange(*row) for row in snapshot["returned"])
        self.shard_rests = {(row[0], row[1], row[2]): RecordRange(*row) for row in snapshot.get("begun", ())}
        self.leases, self._leases_by_worker = {}, {}
        for n, row, m, w, t, *skipped in snapshot["leases"]:
            self._add_lease(Lease(n, RecordRange(*row), m, w, t, skipped_records=skipped[0] if skipped else 0))
        # Follows from the leases, so it is not in the snapshot.
        self.outstanding_steps = sum(lease.step_count - lease.done_steps for lease in self.leases.values())
        self._unleased_steps, self._begun_records = None, None
        self.done_records, self.done_steps = snapshot["done_records"], snapshot["done_steps"]
        self.quarantined_ranges = [RecordRange(*row) for row in snapshot["quarantined"]]

    def empty_copy(self) -> Ledger:
        """A ledger of the same work with nothing done."""
        return Ledger(self.plan, self.epochs, self.minibatch, self.lease_records)

    def snapshot_at_cut(self, applied_steps: Mapping[int, int]) -> dict[str, Any]:
        """The snapshot of a ledger with ``applied_steps`` steps of each lease done and no lease held.

        This is the ledger position of a cut: records that are not in the parameters will be leased again.
        """
        copy = self.empty_copy()
        copy.restore_snapshot(self.to_snapshot())
        # Newest first: each rest is put at the head of the queue, so the oldest is leased first.
        for number in sorted(copy.leases, reverse=True):
            copy.return_lease(number, applied_steps.get(number, 0))
        return copy.to_snapshot()


_NO_LEASES: Mapping[int, Lease] = {}


def _starts_with(whole: RecordRange, work: RecordRange) -> bool:
    return (whole.epoch, whole.source, whole.start) == (work.epoch, work.source, work.start)


def _range_to_row(work: RecordRange) -> list[Any]:
    return [work.epoch, work.source, work.start, work.end]


# --------------------------------------------------------------------------------------------------
# Kinds of work that are leased.


TRAINING, EVALUATION, PREDICTION = "training", "evaluation", "prediction"
DESCRIBE, METRICS, EXPORT = "describe", "metrics", "export"
BEST_MODEL = "best model"
"""Writing the file of ``ModelCheckpoint(save_best_only=True)``."""
MODEL_FILE = "model file"
"""Writing the files of ``ModelCheckpoint`` without ``save_best_only`` that are due at one step."""

STEPWISE_KINDS = (TRAINING, PREDICTION)
"""Kinds whose steps count individually. For the others only the result of the whole task counts."""

STEPLESS_KINDS = (DESCRIBE, METRICS, EXPORT, BEST_MODEL, MODEL_FILE)
"""Kinds of tasks that report nothing before their result."""


def single_task_ledger(kind: str) -> Ledger:
    """The ledger of work that one worker does as a whole."""
    return Ledger(ShardPlan((RecordSource(kind, 1),), 1), 1, 1)


def shuffled_ledger(
    order: ShuffleOrder, epochs: int, minibatch: int, lease_records: int, *, splits_leases: bool = False
) -> Ledger:
    """The ledger of an order's positions, in sequence, in leases of ``lease_records`` records.

    A window of several leases is one shard, which stays with one worker as far as possible: each worker
    that has a part of a window reads all of its blocks.

    Args:
        splits_leases: whether leases may be smaller than that.
    """
    positions = (RecordSource(SHUFFLED_SOURCE, order.records),)
    if splits_leases:
        return Ledger(ShardPlan(positions, max(order.window, lease_records)), epochs, minibatch, lease_records)
    if order.window <= lease_records:
        return Ledger(ShardPlan(positions, lease_records), epochs, minibatch)
    return Ledger(ShardPlan(positions, order.window), epochs, minibatch, lease_records)
