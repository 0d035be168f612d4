"""A simulated parameter server: real lease and cut logic around a set of minibatches instead of
arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from edl.core.ledger import Lease
from edl.ps.applied_steps import AdmissionOutcome, AppliedSteps
from edl.ps.cut_state import CutState

Minibatch = tuple[int, str, int]
"""Epoch, source and first record.

A range keeps the borders of its minibatches however often it is leased, so these identify one.
"""


def minibatch_of(lease: Lease, step: int) -> Minibatch:
    """The minibatch that a step of a lease applies."""
    return lease.record_range.epoch, lease.record_range.source, lease.record_after_steps(step)


class Answer(Enum):
    """The answer to a push."""

    IN = "in"
    REVOKED = "revoked"
    LATER = "later"
    """The push waits: for a cut, for a master to attach, or for parameters."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The content of a snapshot.

    Attributes:
        applied: how often each minibatch is in the parameters.
        steps: applied steps, as (lease, step).
        through: number of applied steps of each lease.
        lacking: minibatches that are missing because of an earlier loss of this PS alone.
    """

    applied: Counter[Minibatch]
    steps: frozenset[tuple[int, int]]
    through: dict[int, int]
    lacking: frozenset[Minibatch]
    version: int


@dataclass(slots=True)
class SimulatedPs:
    """One PS process."""

    uid: str
    index: int
    alive: bool = True
    initialized: bool = False
    version: int = 0
    leases: AppliedSteps = field(default_factory=AppliedSteps)
    cuts: CutState[Copy] = field(default_factory=CutState)
    applied: Counter[Minibatch] = field(default_factory=Counter)
    steps: set[tuple[int, int]] = field(default_factory=set)
    lacking: frozenset[Minibatch] = frozenset()
    incarnation: int = 0
    busy_until: float = 0.0

    def push(self, lease: int, step: int, what: Minibatch, now: float) -> Answer:
        """Apply a step by the rules of the real PS."""
        self.cuts.expire_pause(now)
        if not self.initialized:
            return Answer.LATER
        decided = self.leases.decide_push(lease, step)
        if decided is AdmissionOutcome.UNKNOWN_MASTER or (
            decided is AdmissionOutcome.ADMITTED and self.cuts.must_wait(lease, step)
        ):
            return Answer.LATER
        if self.leases.admit_push(lease, step) is AdmissionOutcome.ADMITTED:
            self.applied[what] += 1
            self.steps.add((lease, step))
            self.version += 1
        return Answer.REVOKED if decided is AdmissionOutcome.REVOKED else Answer.IN

    def snapshot(self, cut: int, *, pin: bool, floor: int, keep: bool) -> Copy:
        """Copy the state and resume all pushes, unless they stay paused."""
        self.cuts.check_open(cut)
        self.leases.close_leases_below(floor)
        copy = Copy(
            Counter(self.applied), frozenset(self.steps), self.leases.steps_by_lease(), self.lacking, self.version
        )
        self.cuts.record_copy(cut, copy, pin=pin, keep_paused=keep)
        return copy

    def restore(self, cut: int, copy: Copy, everything: Iterable[Minibatch], *, complete: bool) -> None:
        """Restore a checkpoint. The PS lacks the rest of ``everything`` from now on."""
        self.applied, self.version, self.initialized = Counter(copy.applied), copy.version, True
        self.steps = set(copy.steps)
        self.lacking = frozenset(everything) - self.applied.keys()
        self.leases.restore_steps(copy.through, covers_all_steps=complete)
        self.cuts.finish_cut(cut)
