"""Leases on their way back: when every PS has said how far it got, and what follows from that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl.core.ledger import Lease


@dataclass(slots=True)
class LeaseRevocation:
    """The training leases of one worker, taken back together.

    Attributes:
        waiting: uids of PS that have not answered.
        answers: what the others said: steps applied, by lease.
        first: the first step of each lease that they let in since they began, or went back to a checkpoint.
        in_flight: whether a minibatch may have been in the worker's hands and is computed in vain.
        crashed: whether the worker ended by an error of its own.
    """

    worker: str
    leases: tuple[int, ...]
    reason: str
    in_flight: bool
    crashed: bool = False
    waiting: set[str] = field(default_factory=set)
    answers: dict[str, Mapping[int, int]] = field(default_factory=dict)
    first: dict[str, Mapping[int, int]] = field(default_factory=dict)

    def to_row(self) -> list[Any]:
        """What the journal keeps: who is waited for is found again by looking."""
        return [self.worker, list(self.leases), self.reason, self.in_flight, self.crashed]

    @classmethod
    def of(cls, row: Sequence[Any]) -> LeaseRevocation:
        """A revocation that nobody has been asked about yet, from its row."""
        worker, leases, reason, in_flight, crashed = row
        return cls(worker, tuple(leases), reason, in_flight, crashed)

    def begin(self, leases: Mapping[int, Lease]) -> bool:
        """Take the leases back that are held; whether there are any.

        Journals may name others: masters have entered leases that were on their way back already, or done since.
        """
        held = (number for number in self.leases if number in leases and leases[number].revoking is None)
        self.leases = tuple(held)
        for number in self.leases:
            leases[number].revoking = self.reason
        return bool(self.leases)

    def answered(self, ps: str, applied: Mapping[int, int], first: Mapping[int, int] | None = None) -> None:
        """A PS refuses the leases from now on and says what it applied."""
        if ps in self.waiting and all(number in applied for number in self.leases):
            self.waiting.discard(ps)
            self.answers[ps], self.first[ps] = applied, first or {}

    def lost(self, ps: str) -> None:
        """A PS that will never answer."""
        self.waiting.discard(ps)
        self.answers.pop(ps, None)
        self.first.pop(ps, None)

    def let_in(self, lease: int, through: int) -> dict[str, int]:
        """How many steps of a lease, from ``through`` on, each PS let in; without those that let in none."""
        found = {}
        for ps, first in self.first.items():
            if lease in first and (steps := self.answers[ps][lease] - max(through, first[lease])) > 0:
                found[ps] = steps
        return found


@dataclass(frozen=True, slots=True)
class LeaseSettlement:
    """What becomes of one lease: ``through`` steps are in, ``repeated`` records after them are worked on again.

    Attributes:
        partial: steps that some PS applied and others did not.
        extra: of those, how many each PS let in, by uid.
    """

    lease: int
    through: int
    partial: int
    repeated: int
    extra: Mapping[str, int] = field(default_factory=dict)


def settle_leases(revocation: LeaseRevocation, leases: Mapping[int, Lease]) -> list[LeaseSettlement]:
    """Decide about every lease of a revocation that nobody is waited for any more, oldest lease first.

    What was reported was in on all PS: one that knows less has gone back to a checkpoint since. What was not reported
    counts as done only if all PS, also such a one, have applied it.
    """
    settlements = []
    in_flight = revocation.in_flight
    for number in sorted(revocation.leases):
        lease = leases.get(number)
        if lease is None:  # closed by other means
            continue
        # No more than it has: a worker can push a step that is beyond its end.
        known = [min(applied[number], lease.steps) for applied in revocation.answers.values()]
        through = [max(steps, lease.through) for steps in known] or [lease.through]
        low, high = min(through), max(through)
        repeated = 0
        if low < lease.steps and (in_flight or high > low):
            repeated = lease.position(max(high, low + 1)) - lease.position(low)
            in_flight = False
        settlements.append(LeaseSettlement(number, low, high - low, repeated, revocation.let_in(number, low)))
    return settlements
