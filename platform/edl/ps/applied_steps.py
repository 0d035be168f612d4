"""Which pushes are refused: a step of a lease that was applied before, and all steps of a revoked lease.

A lease number contains the incarnation of the master that granted it. Leases of the attached
incarnation are accepted; of lower incarnations, only those that the attached master declared live;
of higher ones none, until that master attaches. So leases granted by a master that was cut off have
no effect.

Only leases at or above the *floor* are remembered: the master raises it, and every lease below is
closed. Pure logic; docs/design/0002-record-accounting.md describes its callers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from edl.api.errors import RefusedError, RetryableError
from edl.core.ledger import LEASE_COUNTER_BITS

MAX_MASTERS_AHEAD = 8
"""How far an attaching master's incarnation may be above the last known one.

A PS registers every second, so it misses few masters. A much higher number is forged: if it were
accepted, no real master could reach it, and all of them would be refused as stale.
"""


class PushId(NamedTuple):
    """Identifies a push: a step of a lease."""

    lease: int
    step: int


class AdmissionOutcome(Enum):
    """The decision on a push."""

    ADMITTED = "admitted"
    DUPLICATE = "duplicate"
    """It was applied before, and the answer was lost."""
    REVOKED = "revoked"
    """Its lease is revoked, closed or unknown: the worker drops the lease."""
    UNKNOWN_MASTER = "unknown master"
    """Its lease was granted by a master that has not attached yet: retry."""
    STALE = "stale"
    """Its gradient is too old: the worker computes it again. Only synchronous mode decides this."""


class StaleMasterError(RefusedError):
    """The sender is a master that was replaced."""

    kind = "incarnation"


class NotAttachedError(RefusedError):
    """The sender is a master that has not attached to this PS yet."""

    kind = "unattached"


class AppliedSteps:
    """The applied steps, by lease."""

    def __init__(self) -> None:
        self._incarnation = 0
        self._last_known_incarnation = 0
        self._lowest_open_lease = 0
        # By lease: all steps below this number are applied.
        self._steps: dict[int, int] = {}
        # By lease: the first step admitted since this process started or rolled back.
        self._first_steps: dict[int, int] = {}
        self._admitted_count = 0
        self._revoked_leases: set[int] = set()
        # Leases of earlier incarnations that the attached master took over.
        self._surviving_leases: frozenset[int] = frozenset()

    @property
    def has_master(self) -> bool:
        """Whether a master has attached."""
        return self._incarnation > 0

    def check_master(self, incarnation: int) -> None:
        """Refuse any master but the attached one.

        Raises:
            StaleMasterError: a later master has attached.
            NotAttachedError: this master has not attached.
        """
        if incarnation < self._incarnation:
            raise StaleMasterError(f"message of master incarnation {incarnation}, attached is {self._incarnation}")
        if incarnation > self._incarnation:
            raise NotAttachedError(f"master incarnation {incarnation} has not attached, {self._incarnation} has")

    def record_incarnation(self, incarnation: int) -> None:
        """Record the incarnation of the master that accepted this server's registration."""
        self._last_known_incarnation = max(self._last_known_incarnation, incarnation)

    def check_may_attach(self, incarnation: int) -> None:
        """Refuse a master that cannot be the next one.

        Raises:
            StaleMasterError: a higher incarnation has attached before.
            RetryableError: the incarnation is too far above the last known one. The master can
                attach after it has answered a registration of this PS.
        """
        if incarnation < max(self._incarnation, 1):
            raise StaleMasterError(
                f"master incarnation {incarnation} cannot attach: incarnation {self._incarnation} is attached"
            )
        # A PS that has seen no master has nothing to compare with.
        last_known = max(self._incarnation, self._last_known_incarnation)
        if last_known and incarnation > last_known + MAX_MASTERS_AHEAD:
            raise RetryableError(
                f"master incarnation {incarnation} cannot attach: the last known incarnation is {last_known}"
            )

    def attach_master(
        self, incarnation: int, lowest_open_lease: int, revoked_leases: Iterable[int], live_leases: Iterable[int]
    ) -> None:
        """Attach a new master, or the same one again.

        Args:
            incarnation: the master's incarnation, from 1.
            lowest_open_lease: every lease below this number is closed.
            revoked_leases: revoked leases, in addition to those known here.
            live_leases: leases of lower incarnations that stay valid.

        Raises:
            StaleMasterError, RetryableError: see :meth:`check_may_attach`.
        """
        self.check_may_attach(incarnation)
        self._incarnation = incarnation
        self._revoked_leases |= set(revoked_leases)
        self._surviving_leases = frozenset(live_leases)
        self.close_leases_below(lowest_open_lease)

    def decide_push(self, lease: int, step: int) -> AdmissionOutcome:
        """Whether a push is applied or refused, and why; changes nothing."""
        # A new master's lease may reach a worker before that master has attached here. The lease
        # may be valid.
        granted_by = lease >> LEASE_COUNTER_BITS
        if granted_by > self._incarnation:
            return AdmissionOutcome.UNKNOWN_MASTER
        # A replaced master may not know that it was replaced, and may still grant leases. Of its
        # leases, only those that the new master took over are valid.
        is_believed = granted_by == self._incarnation or lease in self._surviving_leases
        if not is_believed or lease < self._lowest_open_lease or lease in self._revoked_leases:
            return AdmissionOutcome.REVOKED
        # A worker pushes the steps of a lease in order, so one number says which are applied. Steps
        # may be missing before this one: those that were rolled back are not sent again.
        return AdmissionOutcome.ADMITTED if step >= self._steps.get(lease, 0) else AdmissionOutcome.DUPLICATE

    def admit_push(self, lease: int, step: int) -> AdmissionOutcome:
        """Decide, and record the step if it is admitted; the caller applies it under the same lock."""
        admission = self.decide_push(lease, step)
        if admission is AdmissionOutcome.ADMITTED:
            self._steps[lease] = step + 1
            self._first_steps.setdefault(lease, step)
            self._admitted_count += 1
        return admission

    def revoke_leases(self, leases: Iterable[int], lowest_open_lease: int) -> dict[int, int]:
        """Close leases permanently.

        Returns:
            By lease, the number of steps that were applied here; 0 for an unknown or forgotten lease.
        """
        steps_by_lease = {lease: self._steps.get(lease, 0) for lease in leases}
        self._revoked_leases |= steps_by_lease.keys()
        self.close_leases_below(lowest_open_lease)
        return steps_by_lease

    def steps_by_lease(self) -> dict[int, int]:
        """The applied steps of every open lease that is not revoked."""
        return {lease: through for lease, through in self._steps.items() if lease not in self._revoked_leases}

    def steps_of_pushed_leases(self) -> dict[int, int]:
        """Like ``steps_by_lease``, for leases with a push since this PS started or rolled back to a checkpoint.

        For other leases, this PS may have lost steps that it applied after the checkpoint.
        """
        return {lease: through for lease, through in self.steps_by_lease().items() if lease in self._first_steps}

    @property
    def admitted_count(self) -> int:
        """Steps admitted since the parameters were created or rolled back."""
        return self._admitted_count

    def first_steps(self, leases: Iterable[int]) -> dict[int, int]:
        """The first of the steps that ``admitted_count`` counts, by lease; leases without any are left out.

        Steps between a checkpoint's and this one were rolled back and will not be pushed again.
        """
        return {lease: self._first_steps[lease] for lease in leases if lease in self._first_steps}

    def has_reached(self, included_steps: Mapping[int, int]) -> bool:
        """Whether the given number of steps of each lease is applied."""
        return all(self._steps.get(lease, 0) >= steps for lease, steps in included_steps.items())

    def steps_beyond(self, included_steps: Mapping[int, int]) -> dict[int, int]:
        """The applied steps of the leases that have more than the given number."""
        return {n: self._steps[n] for n, steps in included_steps.items() if self._steps.get(n, 0) > steps}

    def restore_steps(self, applied_steps: Mapping[int, int], *, covers_all_steps: bool = False) -> None:
        """Roll back to the applied steps of a checkpoint; the attached master and revoked leases stay.

        ``covers_all_steps``: no PS applied a step after that checkpoint, so these are all steps of
        each lease.
        """
        self._steps = {lease: through for lease, through in applied_steps.items() if lease >= self._lowest_open_lease}
        self._first_steps = dict(self._steps) if covers_all_steps else {}
        self._admitted_count = 0

    def close_leases_below(self, lowest_open_lease: int) -> None:
        """Close and forget every lease below a number, which never decreases."""
        # Requests may arrive out of order; a lower number is an old one.
        if lowest_open_lease <= self._lowest_open_lease:
            return
        self._lowest_open_lease = lowest_open_lease
        self._steps = {lease: through for lease, through in self._steps.items() if lease >= self._lowest_open_lease}
        self._revoked_leases = {lease for lease in self._revoked_leases if lease >= self._lowest_open_lease}
        self._first_steps = {lease: step for lease, step in self._first_steps.items() if lease in self._steps}

    def __len__(self) -> int:
        """The number of remembered leases."""
        return len(self._steps.keys() | self._revoked_leases)
