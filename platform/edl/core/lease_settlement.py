"""Settles revoked leases: which of their steps count, and which records return to the ledger.

A revocation is complete when every PS has reported the steps that it applied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl.api.journal_entries import LeaseReturned
from edl.core.ledger import Lease


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

    Steps that the worker reported were applied by all PS; a PS that has fewer of them has rolled back to a
    checkpoint since. Steps that were not reported count as done only if every PS has applied them.
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
