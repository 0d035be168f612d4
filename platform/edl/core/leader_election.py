"""Leader election: the port that ensures that a job has one active master, and the takeover rule.

``edl.cluster.kubernetes.lease_fence`` implements it with a ``coordination.k8s.io`` Lease. On one
machine the journal's lock serves instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from edl.core.decision import Decision

LEASE_SECONDS = 100.0
"""Lease duration: seconds until a lease that is not renewed expires."""
RENEW_DEADLINE_SECONDS = 90.0
"""A master makes decisions for this many seconds after it began its last renewal.

This is shorter than the lease, so its last decisions are complete before another master takes over.
"""
RENEW_INTERVAL_SECONDS = 2.0
_CLOCK_RESOLUTION_SECONDS = 1.0
"""The server reports its clock and renewal times in whole seconds."""


class MasterFence(Protocol):
    """The right to act as the job's master; held for a limited time and renewed."""

    @property
    def incarnation(self) -> int:
        """The master's incarnation: higher than that of every earlier holder."""
        ...

    def holds(self) -> bool:
        """Whether this master certainly still holds the lease. Cheap: checked before every decision."""
        ...

    def lost(self) -> bool:
        """Whether another master holds the lease, so that this one must exit."""
        ...

    def release(self) -> None:
        """Release the lease, so that the next master need not wait for it to expire."""
        ...


@dataclass(frozen=True, slots=True)
class LeadershipRecord:
    """The lease as stored where all masters can read it.

    Attributes:
        holder: identity of the holder; empty if the lease was released.
        renewed_at: time of the last renewal, in unix seconds of the server's clock; None if unknown.
        duration_seconds: seconds from the last renewal until the lease expires.
        unchanged_seconds: seconds, by the reader's own clock, for which the lease has not changed.
    """

    holder: str
    renewed_at: float | None
    duration_seconds: float
    unchanged_seconds: float = 0.0


def may_take_over(
    lease: LeadershipRecord | None, identity: str, server_now: float | None, *, holder_ended: bool
) -> Decision[bool]:
    """Whether ``identity`` may take over the lease now.

    Args:
        lease: the stored Lease; None if nobody has held it yet.
        identity: the caller's identity. A container that restarts in the same pod keeps it; the earlier
            process is then certainly gone.
        server_now: unix seconds of the server's clock; None if unknown.
        holder_ended: whether the cluster reports that no process of the holder runs any more.

    Returns:
        Whether the caller may take over, and the reason.
    """
    if lease is None:
        return Decision(True, "it had no holder")
    if not lease.holder:
        return Decision(True, "the previous master released it")
    if lease.holder == identity:
        return Decision(True, "this pod already holds it")
    if holder_ended:
        return Decision(True, f"{lease.holder} has ended")
    # Two clocks, because either may be unusable: the server may not report its time, and this
    # process may have started only now. Both give lower bounds, so the larger one is right.
    silent = max(lease.unchanged_seconds, _server_silence(lease.renewed_at, server_now))
    left = lease.duration_seconds - silent
    if left < 0:
        return Decision(True, f"{lease.holder} has not renewed it for {silent:.0f} s")
    return Decision(False, f"{lease.holder} holds it for {left:.0f} s more, unless it ends or renews")


def _server_silence(renewed: float | None, server_now: float | None) -> float:
    """A lower bound of the seconds since the last renewal, by the server's clock."""
    if renewed is None or server_now is None:
        return 0.0
    return server_now - renewed - _CLOCK_RESOLUTION_SECONDS
