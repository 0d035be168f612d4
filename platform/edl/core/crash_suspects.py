"""Crash attribution: which minibatch made a worker crash, or exit without a report.

It may be one that was read or fed ahead, because a worker reads and feeds minibatches while an
earlier one trains (``MAX_FED_AHEAD``). A crash makes the current minibatch and those that follow it
suspect, and their ranges are leased *one by one* from then on: nothing is read, fed or leased before
the current minibatch is applied, so the next crash identifies its minibatch.

A minibatch is guilty after at least two crashes in which the worker held nothing else, and three
including those in which it may have been fed ahead. So an innocent minibatch is never blamed for
its successors, and a guilty one costs three workers. The counts are not journaled: a new master
starts counting again.

Under AllReduce a suspect minibatch is a lease of its own, for a worker that holds nothing else. So the ledger
names it, also when nobody is left who knows which steps were applied. A minibatch in which such a worker ended is
compared with others, the *controls*, that are leased in the same way: it is guilty when kills from outside, at the
rate at which workers with controls end, would hardly have hit it each time. docs/design/0010-allreduce.md has the
reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from edl.core.ledger import Lease
from edl.core.record_ranges import RecordRange

MIN_CRASHES = 3
"""Crashes after which a minibatch is guilty. Fewer may be kills from outside, which hit different minibatches."""
MIN_CERTAIN_CRASHES = 2
"""How many of these crashes must be of workers that held only this minibatch."""
MAX_FED_AHEAD = 5
"""How many minibatches after the first unapplied one a worker may have read or fed.

The pipeline's queue of two, one in ``feed``, and with overlap one being computed and one being
prepared.
"""


CONTROL_MINIBATCHES = 24
"""Under AllReduce, minibatches that are leased like a suspect one, and done, before that one is tried again."""
MOST_CHANCE = 1e-4
"""Under AllReduce a minibatch is guilty if kills from outside would hit all its leases with at most this chance."""
MOST_CERTAIN_CRASHES = 16
"""Under AllReduce, ends of workers that held only one minibatch after which it is guilty also without controls."""


@dataclass(slots=True)
class CrashSuspects:
    """The crashes of workers so far and the records they implicate.

    Attributes:
        suspect_ranges: ranges that crashed workers held and that are not done yet; they are leased one
            by one.
        one_by_one_leases: the leases that were granted one by one.
        possible_crashes: by minibatch, crashes of workers that may have read, fed or trained it.
        certain_crashes: by minibatch, crashes of workers that held nothing else.
        guilty_ranges: by minibatch that is to be quarantined, its number of crashes. Only under AllReduce, where a
            ledger that went back leases it again.
        done_alone: minibatches that were done by workers that held nothing else.
        outlived_ends: the ends of workers that held nothing but one of these minibatches.
        since: by minibatch, ``done_alone`` and ``outlived_ends`` when it became suspect.
        controls_due: minibatches that are to be done alone before a suspect one is tried again.
        fruitless_losses: how often in succession all members ended before one of them had finished a minibatch.
    """

    suspect_ranges: list[RecordRange] = field(default_factory=list)
    one_by_one_leases: set[int] = field(default_factory=set)
    possible_crashes: dict[RecordRange, int] = field(default_factory=dict)
    certain_crashes: dict[RecordRange, int] = field(default_factory=dict)
    guilty_ranges: dict[RecordRange, int] = field(default_factory=dict)
    done_alone: int = 0
    outlived_ends: int = 0
    since: dict[RecordRange, tuple[int, int]] = field(default_factory=dict)
    controls_due: int = 0
    fruitless_losses: int = 0

    def is_suspect(self, work: RecordRange) -> bool:
        """Whether a crashed worker held this range, or a part of it."""
        return any(_ranges_overlap(each, work) for each in self.suspect_ranges)

    def close_lease(self, lease: Lease, done_steps: int) -> None:
        """Clear the records of a closed lease that its ``done_steps`` cover."""
        if lease.number in self.one_by_one_leases:
            self.one_by_one_leases.remove(lease.number)
            if done_steps >= lease.step_count:
                self.done_alone, self.controls_due = self.done_alone + 1, max(0, self.controls_due - 1)
                self.outlived_ends += self.certain_crashes.get(lease.record_range, 0)
        self.clear_range(lease.record_range.split(lease.record_after_steps(done_steps))[0])

    def clear_range(self, work: RecordRange) -> None:
        """Clear a range that is done or quarantined."""
        if not self.is_suspect(work):
            return
        parts = [part for each in self.suspect_ranges for part in _subtract_range(each, work)]
        self.suspect_ranges = [part for part in parts if part.records]

    def record_crash(self, leases: Sequence[tuple[Lease, int]]) -> tuple[RecordRange, int] | None:
        """Record that a worker crashed or exited without a report.

        Args:
            leases: its training leases, oldest first, each with its number of applied steps.

        Returns:
            The guilty minibatch and its number of crashes; None while no minibatch is certain.
        """
        begun = [(lease, applied_steps) for lease, applied_steps in leases if applied_steps < lease.step_count]
        if not begun:
            return None
        # Under a one-by-one lease only the first unapplied minibatch was read. Otherwise every
        # minibatch that the pipeline may have read ahead is possible.
        is_one_by_one = begun[0][0].number in self.one_by_one_leases
        fed = [begun[0]] if is_one_by_one else [each for each in begun if each[0].number not in self.one_by_one_leases]
        suspects = list(islice(_pending_minibatches(fed), 1 if is_one_by_one else 1 + MAX_FED_AHEAD))
        counts, at_work = self.certain_crashes if is_one_by_one else self.possible_crashes, suspects[0]
        for each in suspects:
            counts[each] = counts.get(each, 0) + 1
        for lease, applied_steps in begun:
            self._suspect_range(lease.record_range.split(lease.record_after_steps(applied_steps))[1])
        return self._find_guilt(at_work)

    def record_member_crash(
        self, leases: Sequence[tuple[Lease, int]], minibatch: int, *, is_progress_known: bool
    ) -> tuple[RecordRange, int] | None:
        """Record that a worker of an AllReduce round crashed or exited without a report.

        Args:
            leases: its training leases, oldest first, each with its number of steps that are known to be applied.
            minibatch: the most records that it reads, feeds and trains together.
            is_progress_known: whether these are all. Otherwise all members were lost, and the worker may have been
                further.

        Returns:
            As ``record_crash``.
        """
        begun = [(lease, applied_steps) for lease, applied_steps in leases if applied_steps < lease.step_count]
        if not begun:
            return None
        is_alone = begun[0][0].number in self.one_by_one_leases
        pending = _pending_minibatches(begun, minibatch)
        suspects = list(islice(pending, 1 + MAX_FED_AHEAD if is_progress_known else None))
        counts = self.certain_crashes if is_alone else self.possible_crashes
        for each in suspects:
            counts[each] = counts.get(each, 0) + 1
            self._suspect_range(each)
            self.since.setdefault(each, (self.done_alone, self.outlived_ends))
        if is_alone:
            self.controls_due = CONTROL_MINIBATCHES
        certain = self.certain_crashes.get(suspects[0], 0)
        if certain < MOST_CERTAIN_CRASHES and (not certain or self._chance_of_kills(suspects[0]) > MOST_CHANCE):
            return None
        return suspects[0], certain + self.possible_crashes.get(suspects[0], 0)

    def _chance_of_kills(self, suspect: RecordRange) -> float:
        """The chance that kills from outside hit each lease in which only this minibatch was held.

        Each was as long as those of the controls, and of other suspect minibatches that were done in the end. If kills
        hit all of these leases alike, any order of ends and completions is equally likely (Fisher's exact test).
        Minibatches that are not done tell nothing: they may be bad as well.
        """
        done, ends = self.since[suspect]
        done, ends = self.done_alone - done, self.outlived_ends - ends
        chance = 1.0
        for index in range(self.certain_crashes[suspect]):
            chance *= (ends + 1 + index) / (ends + done + 1 + index)
        return chance

    def is_postponed(self, work: RecordRange) -> bool:
        """Whether other records are to be leased before this range, whose first minibatch has ended a worker alone."""
        return self.controls_due > 0 and self.is_hard_suspect(work)

    def is_hard_suspect(self, work: RecordRange) -> bool:
        """Whether the first minibatch of a range has ended a worker that held nothing else, and is not guilty."""
        first = next(
            (each for each in self.suspect_ranges if _ranges_overlap(each, work.split(work.start + 1)[0])), None
        )
        return first in self.certain_crashes and first not in self.guilty_ranges

    def add_control(self, work: RecordRange, minibatch: int) -> RecordRange:
        """The first minibatch of a range, which is leased like a suspect one from now on."""
        first = work.split(min(work.end, work.start + minibatch))[0]
        self._suspect_range(first)
        return first

    def isolate_suspects(self, work: RecordRange, minibatch: int) -> RecordRange:
        """The beginning of a range that may be one lease: a single suspect minibatch, or what precedes the first."""
        first = min((x for x in self.suspect_ranges if _ranges_overlap(x, work)), key=lambda x: x.start, default=None)
        if first is None:
            return work
        end = first.start if first.start > work.start else min(first.end, work.start + minibatch)
        return work.split(min(work.end, end))[0]

    def _suspect_range(self, work: RecordRange) -> None:
        # Replace overlapping parts, so that no record is listed twice.
        self.clear_range(work)
        self.suspect_ranges.append(work)

    def _find_guilt(self, at_work: RecordRange) -> tuple[RecordRange, int] | None:
        certain = self.certain_crashes.get(at_work, 0)
        count = certain + self.possible_crashes.get(at_work, 0)
        return (at_work, count) if certain >= MIN_CERTAIN_CRASHES and count >= MIN_CRASHES else None


def _pending_minibatches(leases: Sequence[tuple[Lease, int]], minibatch: int | None = None) -> Iterator[RecordRange]:
    """The minibatches that are not applied, in the order in which the worker processes them.

    Args:
        minibatch: records of each; None: those of a step of its lease.
    """
    for lease, applied_steps in leases:
        rest = lease.record_range.split(lease.record_after_steps(applied_steps))[1]
        while rest.records:
            first, rest = rest.split(min(rest.end, rest.start + (minibatch or lease.minibatch)))
            yield first


def _ranges_overlap(first: RecordRange, second: RecordRange) -> bool:
    same = (first.epoch, first.source) == (second.epoch, second.source)
    return same and first.start < second.end and second.start < first.end


def _subtract_range(whole: RecordRange, part: RecordRange) -> Iterator[RecordRange]:
    """The parts of a range that remain without another one; may be empty."""
    if _ranges_overlap(whole, part):
        yield whole.split(max(whole.start, part.start))[0]
        yield whole.split(min(whole.end, part.end))[1]
    else:
        yield whole
