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


class PushReply(Enum):
    """The answer to a push."""

    APPLIED = "in"
    REVOKED = "revoked"
    LATER = "later"
    """The push waits: for a cut, for a master to attach, or for parameters."""


@dataclass(frozen=True, slots=True)
class SnapshotContent:
    """The content of a snapshot.

    Attributes:
        applied_counts: how often each minibatch is in the parameters.
        applied_steps: applied steps, as (lease, step).
        steps_by_lease: number of applied steps of each lease.
        lacking_minibatches: minibatches that are missing because of an earlier loss of this PS alone.
    """

    applied_counts: Counter[Minibatch]
    applied_steps: frozenset[tuple[int, int]]
    steps_by_lease: dict[int, int]
    lacking_minibatches: frozenset[Minibatch]
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
    cuts: CutState[SnapshotContent] = field(default_factory=CutState)
    applied_counts: Counter[Minibatch] = field(default_factory=Counter)
    applied_steps: set[tuple[int, int]] = field(default_factory=set)
    lacking_minibatches: frozenset[Minibatch] = frozenset()
    incarnation: int = 0
    busy_until: float = 0.0

    def apply_push(self, lease: int, step: int, what: Minibatch, now: float) -> PushReply:
        """Apply a step by the rules of the real PS."""
        self.cuts.expire_pause(now)
        if not self.initialized:
            return PushReply.LATER
        decided = self.leases.decide_push(lease, step)
        if decided is AdmissionOutcome.UNKNOWN_MASTER or (
            decided is AdmissionOutcome.ADMITTED and self.cuts.must_wait(lease, step)
        ):
            return PushReply.LATER
        if self.leases.admit_push(lease, step) is AdmissionOutcome.ADMITTED:
            self.applied_counts[what] += 1
            self.applied_steps.add((lease, step))
            self.version += 1
        return PushReply.REVOKED if decided is AdmissionOutcome.REVOKED else PushReply.APPLIED

    def take_snapshot(self, cut: int, *, pin: bool, floor: int, keep: bool) -> SnapshotContent:
        """Copy the state and resume all pushes, unless they stay paused."""
        self.cuts.check_open(cut)
        self.leases.close_leases_below(floor)
        copy = SnapshotContent(
            Counter(self.applied_counts),
            frozenset(self.applied_steps),
            self.leases.steps_by_lease(),
            self.lacking_minibatches,
            self.version,
        )
        self.cuts.record_copy(cut, copy, pin=pin, keep_paused=keep)
        return copy

    def restore_checkpoint(
        self, cut: int, copy: SnapshotContent, everything: Iterable[Minibatch], *, complete: bool
    ) -> None:
        """Restore a checkpoint. The PS lacks the rest of ``everything`` from now on."""
        self.applied_counts, self.version, self.initialized = Counter(copy.applied_counts), copy.version, True
        self.applied_steps = set(copy.applied_steps)
        self.lacking_minibatches = frozenset(everything) - self.applied_counts.keys()
        self.leases.restore_steps(copy.steps_by_lease, covers_all_steps=complete)
        self.cuts.finish_cut(cut)
