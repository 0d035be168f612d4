"""Adaptive lease timeouts.

Nobody can know the right number before the job runs, and a fixed one is either too long for small tasks or too short
for large ones. So the patience follows what was seen: a holder is silent for too long when it was silent for many times
what holders usually are, and it is stuck when it speaks and makes no step for many times what steps usually take.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from edl.api.journal_entries import LeaseReturned
from edl.core.ledger import Lease
from edl.core.shuffle import RecordRange

SILENCE_FLOOR, SILENCE_CEILING = 4.0, 60.0
STARTING_SILENCE = 30.0
"""Seconds that a worker may be silent before its first step.

While a large library such as TensorFlow is loaded, no other thread of the process runs; on a busy
machine this takes many times longer than on an idle one.
"""
STUCK_FLOOR, STUCK_FIRST = 60.0, 600.0
SILENCE_FACTOR, STUCK_FACTOR = 10.0, 20.0
_DECAY_PER_SECOND = 0.98
"""Decay of the maximum per second, regardless of the number of holders."""


@dataclass(slots=True)
class LeaseTimeouts:
    """Recent silences and step times in seconds, as decaying maxima.

    Timeouts must not hit the tail of the distribution.
    """

    max_gap: float = 0.4
    max_step: float = 0.0
    decayed_at: float | None = None

    def record_gap(self, gap: float, now: float) -> None:
        """Record that a holder was silent for ``gap`` seconds and then spoke."""
        self._decay(now)
        self.max_gap = max(gap, self.max_gap)

    def record_step(self, seconds: float, now: float) -> None:
        """Record the duration of a step, or of the smallest unit of a task that is reported."""
        self._decay(now)
        self.max_step = max(seconds, self.max_step)

    def _decay(self, now: float) -> None:
        if self.decayed_at is not None and now > self.decayed_at:
            left = _DECAY_PER_SECOND ** (now - self.decayed_at)
            self.max_gap, self.max_step = self.max_gap * left, self.max_step * left
        self.decayed_at = now

    @property
    def silence_seconds(self) -> float:
        """Seconds of silence after which a worker's leases are revoked."""
        return min(max(self.max_gap * SILENCE_FACTOR, SILENCE_FLOOR), SILENCE_CEILING)

    @property
    def stuck_seconds(self) -> float:
        """Seconds without a step after which a lease is revoked although its holder sends heartbeats."""
        return max(self.max_step * STUCK_FACTOR, STUCK_FLOOR) if self.max_step else STUCK_FIRST


@dataclass(slots=True)
class LeaseHolder:
    """Liveness of one worker: its last heartbeat, and the last progress of each of its leases.

    Attributes:
        last_mentioned: when the worker last spoke of each lease; it speaks of all that it knows.
        partial_steps: steps of leases of which only the whole counts.
        is_starting: it began under this master, and has made no step yet.
        step_count: that it has made, of whatever it held.
    """

    last_seen: float
    last_steps: dict[int, float] = field(default_factory=dict)
    last_mentioned: dict[int, float] = field(default_factory=dict)
    partial_steps: dict[int, int] = field(default_factory=dict)
    step_count: int = 0
    is_starting: bool = False

    def excuse_silence(self, seconds: float, now: float) -> None:
        """Exclude ``seconds`` from the worker's silence: the master caused them."""
        self.last_seen = min(now, self.last_seen + seconds)
        for moments in (self.last_steps, self.last_mentioned):
            for lease, moment in moments.items():
                moments[lease] = min(now, moment + seconds)

    def silence_limit(self, timeouts: LeaseTimeouts) -> float:
        """Seconds of silence after which this worker's leases are revoked."""
        return max(timeouts.silence_seconds, STARTING_SILENCE) if self.is_starting else timeouts.silence_seconds

    def add_lease(self, lease: int, now: float) -> None:
        """It has this lease from now on."""
        self.last_steps[lease] = self.last_mentioned[lease] = now

    def drop_lease(self, lease: int, now: float | None = None) -> None:
        """Remove a lease; the worker's next lease becomes its current one at ``now``."""
        self.last_steps.pop(lease, None)
        self.last_mentioned.pop(lease, None)
        self.partial_steps.pop(lease, None)
        if now is not None and self.last_steps:
            self.last_steps[min(self.last_steps)] = now

    def find_unknown_leases(self, timeouts: LeaseTimeouts) -> list[int]:
        """Leases that the worker's heartbeats do not mention: it never received them."""
        latest = self.last_seen - self.silence_limit(timeouts)
        return [number for number, at in self.last_mentioned.items() if at <= latest]

    def find_expired_leases(self, now: float, timeouts: LeaseTimeouts) -> dict[int, str]:
        """Leases to revoke, with the reason. Only the oldest lease can be stuck: the others wait for it."""
        silent = now - self.last_seen
        if silent >= self.silence_limit(timeouts):
            return dict.fromkeys(self.last_steps, f"no heartbeat from the worker for {silent:.1f} s")
        if self.last_steps:
            current = min(self.last_steps)
            idle = now - self.last_steps[current]
            if idle >= timeouts.stuck_seconds:
                return {current: f"no step for {idle:.0f} s"}
        return {}

    def next_expiry(self, timeouts: LeaseTimeouts) -> float:
        """The earliest time at which ``find_expired_leases`` can return something."""
        first = self.last_steps[min(self.last_steps)] + timeouts.stuck_seconds
        return min(self.last_seen + self.silence_limit(timeouts), first)


# --------------------------------------------------------------------------------------------------
# Lease revocation: complete when every PS has reported the steps that it applied.


@dataclass(slots=True)
class LeaseRevocation:
    """The training leases of one worker, revoked together.

    Attributes:
        waiting_ps: uids of PS that have not answered.
        applied_steps: what the others said: steps applied, by lease.
        first_steps: the first step of each lease that they let in since they began, or went back to a checkpoint.
        in_flight: whether a minibatch may have been in the worker's hands and is computed in vain.
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
        """The journal's form. The awaited PS are not recorded; they are determined anew."""
        return [self.worker, list(self.leases), self.reason, self.in_flight, self.crashed]

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> LeaseRevocation:
        """Restore a revocation from its row; no PS has been asked yet."""
        worker, leases, reason, in_flight, crashed = row
        return cls(worker, tuple(leases), reason, in_flight, crashed)

    def mark_leases(self, leases: Mapping[int, Lease]) -> bool:
        """Mark the held leases as being revoked; returns whether there are any.

        Journals may name others: masters have entered leases that were on their way back already, or done since.
        """
        held = (number for number in self.leases if number in leases and leases[number].revoke_reason is None)
        self.leases = tuple(held)
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
        found = {}
        for ps, first in self.first_steps.items():
            if lease in first and (steps := self.applied_steps[ps][lease] - max(done_steps, first[lease])) > 0:
                found[ps] = steps
        return found


def settle_leases(revocation: LeaseRevocation, leases: Mapping[int, Lease]) -> list[LeaseReturned]:
    """The journal entries that return the leases of a completed revocation, oldest first.

    What was reported was in on all PS: one that knows less has gone back to a checkpoint since. What was not reported
    counts as done only if all PS, also such a one, have applied it.
    """
    settlements = []
    # At most one minibatch was in progress: that of the first unfinished lease.
    in_flight = revocation.in_flight
    for number in sorted(revocation.leases):
        lease = leases.get(number)
        # Already closed in another way.
        if lease is None:
            continue
        # Clamp to the range: a faulty worker can push a step beyond its end.
        reported_steps = [min(applied[number], lease.step_count) for applied in revocation.applied_steps.values()]
        applied_steps = [max(steps, lease.done_steps) for steps in reported_steps] or [lease.done_steps]
        low, high = min(applied_steps), max(applied_steps)
        repeated = 0
        if low < lease.step_count and (in_flight or high > low):
            repeated = lease.record_after_steps(max(high, low + 1)) - lease.record_after_steps(low)
            in_flight = False
        # Steps that only some PS applied are pushed again under a new lease number. Those PS then
        # count them twice.
        extra = revocation.admitted_steps(number, low) or None
        settlements.append(LeaseReturned(lease=number, through=low, partial=high - low, repeated=repeated, extra=extra))
    return settlements


# --------------------------------------------------------------------------------------------------
# Crash attribution: which minibatch made a worker crash or exit without a report. It may be one
# that was read or fed ahead (``MAX_FED_AHEAD``). A crash makes the current minibatch and those that
# follow it suspect, and their ranges are leased *one by one* from then on: nothing is read, fed or
# leased before the
# current minibatch is applied, so the next crash identifies its minibatch. A minibatch is guilty
# after at least two crashes in which the worker held nothing else, and three including those in
# which it may have been fed ahead. So an innocent minibatch is never blamed for its successors, and
# a guilty one costs three workers. Not journaled: a new master starts counting again.


MIN_CRASHES = 3
MIN_CERTAIN_CRASHES = 2
"""Crashes in which the worker held only this minibatch."""
MAX_FED_AHEAD = 5
"""How many minibatches after the first unapplied one a worker may have read or fed.

The pipeline's queue of two, one in ``feed``, and with overlap one being computed and one being
prepared.
"""


@dataclass(slots=True)
class CrashSuspects:
    """The crashes of workers so far and the records they implicate.

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
        """Whether a crashed worker held this range, or a part of it."""
        return any(_ranges_overlap(each, work) for each in self.suspect_ranges)

    def close_lease(self, lease: Lease, done_steps: int) -> None:
        """Clear the records of a closed lease that its ``done_steps`` cover."""
        self.one_by_one_leases.discard(lease.number)
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
            leases: its training leases, oldest first, each with the number of its steps that are applied.

        Returns:
            The minibatch that is guilty, if that is certain now, and how often workers ended with it.
        """
        begun = [(lease, through) for lease, through in leases if through < lease.step_count]
        if not begun:
            return None
        is_one_by_one = begun[0][0].number in self.one_by_one_leases
        fed = [begun[0]] if is_one_by_one else [each for each in begun if each[0].number not in self.one_by_one_leases]
        near = list(islice(_pending_minibatches(fed), 1 if is_one_by_one else 1 + MAX_FED_AHEAD))
        counts, at_work = self.certain_crashes if is_one_by_one else self.possible_crashes, near[0]
        for each in near:
            counts[each] = counts.get(each, 0) + 1
        for lease, through in begun:
            rest = lease.record_range.split(lease.record_after_steps(through))[1]
            self.clear_range(rest)
            self.suspect_ranges.append(rest)
        certain = self.certain_crashes.get(at_work, 0)
        count = certain + self.possible_crashes.get(at_work, 0)
        return (at_work, count) if certain >= MIN_CERTAIN_CRASHES and count >= MIN_CRASHES else None


def _pending_minibatches(held: Sequence[tuple[Lease, int]]) -> Iterator[RecordRange]:
    """The minibatches that are not applied, in the order in which the worker processes them."""
    for lease, through in held:
        for step in range(through, lease.step_count):
            yield RecordRange(
                lease.record_range.epoch,
                lease.record_range.source,
                lease.record_after_steps(step),
                lease.record_after_steps(step + 1),
            )


def _ranges_overlap(one: RecordRange, other: RecordRange) -> bool:
    same = (one.epoch, one.source) == (other.epoch, other.source)
    return same and one.start < other.end and other.start < one.end


def _subtract_range(whole: RecordRange, part: RecordRange) -> Iterator[RecordRange]:
    """The parts of a range that remain without another one; may be empty."""
    if _ranges_overlap(whole, part):
        yield whole.split(max(whole.start, part.start))[0]
        yield whole.split(min(whole.end, part.end))[1]
    else:
        yield whole
