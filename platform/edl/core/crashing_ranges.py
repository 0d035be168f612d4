"""Which minibatch made a worker crash, or end without a word: it may have been one that was read or fed ahead.

A worker reads and feeds minibatches while an earlier one trains (``MAX_FED_AHEAD``). So its end lays suspicion on the
minibatch at work and on those that follow, and its ranges are leased *one by one* from then on: nothing is read, fed or
leased before the minibatch at work is in. An end there names its minibatch. A minibatch is guilty when workers ended in
it that had nothing else in their hands, twice at least, and thrice with those that may have fed it ahead. So an
innocent one is never blamed for what follows it, and a guilty one costs three workers.

Not in the journal: a master that comes later counts anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from edl.core.ledger import Lease, RecordRange

MIN_CRASHES = 3
MIN_CERTAIN_CRASHES = 2
"""So many of them with nothing but this minibatch in the worker's hands."""
MAX_FED_AHEAD = 5
"""Minibatches, after the first that is not in, that a worker may have read or fed: the pipeline's queue of two, one in
``feed``, and with overlap one that is computed and one that is prepared."""


@dataclass(slots=True)
class CrashSuspects:
    """What is known of the ends of workers.

    Attributes:
        suspect_ranges: of workers that crashed, not done since: they are leased one by one.
        one_by_one_leases: numbers of leases that are held so.
        possible_crashes: how often a worker ended that may have fed this minibatch ahead, or had it at work.
        certain_crashes: how often one ended that had nothing else in its hands.
    """

    suspect_ranges: list[RecordRange] = field(default_factory=list)
    one_by_one_leases: set[int] = field(default_factory=set)
    possible_crashes: dict[RecordRange, int] = field(default_factory=dict)
    certain_crashes: dict[RecordRange, int] = field(default_factory=dict)

    def is_suspect(self, work: RecordRange) -> bool:
        """Whether a range, or a part of it, was in the hands of a worker that crashed."""
        return any(_ranges_overlap(each, work) for each in self.suspect_ranges)

    def over(self, lease: Lease, through: int) -> None:
        """A lease is over after so many steps: nothing of what they cover is suspect any more."""
        self.one_by_one_leases.discard(lease.number)
        self.clear(lease.work.split(lease.position(through))[0])

    def clear(self, work: RecordRange) -> None:
        """A range is done, or set aside."""
        if not self.is_suspect(work):
            return
        parts = [part for each in self.suspect_ranges for part in _subtract_range(each, work)]
        self.suspect_ranges = [part for part in parts if part.records]

    def crashed(self, held: Sequence[tuple[Lease, int]]) -> tuple[RecordRange, int] | None:
        """A worker crashed, or ended without a word.

        Args:
            held: its training leases, oldest first, each with the steps of it that are in.

        Returns:
            The minibatch that is guilty, if that is certain now, and how often workers ended with it.
        """
        begun = [(lease, through) for lease, through in held if through < lease.steps]
        if not begun:
            return None
        alone = begun[0][0].number in self.one_by_one_leases
        fed = [begun[0]] if alone else [each for each in begun if each[0].number not in self.one_by_one_leases]
        near = list(islice(_pending_minibatches(fed), 1 if alone else 1 + MAX_FED_AHEAD))
        counts, at_work = self.certain_crashes if alone else self.possible_crashes, near[0]
        for each in near:
            counts[each] = counts.get(each, 0) + 1
        for lease, through in begun:
            rest = lease.work.split(lease.position(through))[1]
            self.clear(rest)
            self.suspect_ranges.append(rest)
        certain = self.certain_crashes.get(at_work, 0)
        count = certain + self.possible_crashes.get(at_work, 0)
        return (at_work, count) if certain >= MIN_CERTAIN_CRASHES and count >= MIN_CRASHES else None


def _pending_minibatches(held: Sequence[tuple[Lease, int]]) -> Iterator[RecordRange]:
    """The minibatches that are not in, as their worker takes them."""
    for lease, through in held:
        for step in range(through, lease.steps):
            yield RecordRange(lease.work.epoch, lease.work.source, lease.position(step), lease.position(step + 1))


def _ranges_overlap(one: RecordRange, other: RecordRange) -> bool:
    same = (one.epoch, one.source) == (other.epoch, other.source)
    return same and one.start < other.end and other.start < one.end


def _subtract_range(whole: RecordRange, part: RecordRange) -> Iterator[RecordRange]:
    """What is left of a range; may be empty."""
    if _ranges_overlap(whole, part):
        yield whole.split(max(whole.start, part.start))[0]
        yield whole.split(min(whole.end, part.end))[1]
    else:
        yield whole
