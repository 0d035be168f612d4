"""The port that keeps two masters of one job apart, and the rule by which one takes over from another.

Implementations: ``edl.cluster.kubernetes.lease_fence`` (a ``coordination.k8s.io`` Lease). On one machine the
journal's lock does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from edl.core.decision import Decision

LEASE_SECONDS = 100.0
"""How long a right lasts that is not renewed."""
RENEW_DEADLINE_SECONDS = 90.0
"""How long a master decides after it began its last renewal: what it decided last is done before another one begins."""
RENEW_INTERVAL_SECONDS = 2.0
_CLOCK_RESOLUTION_SECONDS = 1.0
"""The server tells its time, and that of a renewal, in whole seconds."""


class MasterFence(Protocol):
    """The right to decide for a job, held for a while and renewed."""

    @property
    def incarnation(self) -> int:
        """A number above that of every master that held the right before."""
        ...

    def holds(self) -> bool:
        """Whether the right cannot have passed to another yet. Cheap: asked before every decision."""
        ...

    def lost(self) -> bool:
        """Whether another master has it: this one must end."""
        ...

    def release(self) -> None:
        """Give the right back, so that the next master need not wait."""
        ...


@dataclass(frozen=True, slots=True)
class LeaseSnapshot:
    """A right as it is written down where all masters see it.

    Attributes:
        holder: whose it is; empty when it was given back.
        renewed_at: when it was renewed last, in unix seconds of the server's clock; None if the server does not say.
        duration_seconds: seconds that it lasts from there.
        unchanged_seconds: seconds of the reader's own clock for which nothing of it has changed.
    """

    holder: str
    renewed_at: float | None
    duration_seconds: float
    unchanged_seconds: float = 0.0


def may_acquire_lease(
    lease: LeaseSnapshot | None, identity: str, server_now: float | None, *, holder_ended: bool
) -> Decision[bool]:
    """May ``identity`` take the right over now?

    Args:
        lease: the right as it is; None: nobody has had it.
        me: who asks; the same after a restart in the same pod, where the process before is gone for certain.
        server_now: unix seconds of the server's clock; None if it does not say.
        holder_ended: somebody who saw it end says that no process of the holder runs any more.

    Returns:
        Whether, and why or why not.
    """
    if lease is None:
        return Decision(True, "it had no holder")
    if not lease.holder:
        return Decision(True, "the previous master released it")
    if lease.holder == identity:
        return Decision(True, "this pod already holds it")
    if holder_ended:
        return Decision(True, f"{lease.holder} has ended")
    silent = max(lease.unchanged_seconds, _server_silence(lease.renewed_at, server_now))
    left = lease.duration_seconds - silent
    if left < 0:
        return Decision(True, f"{lease.holder} has not renewed it for {silent:.0f} s")
    return Decision(False, f"{lease.holder} holds it for {left:.0f} s more, unless it ends or renews")


def _server_silence(renewed: float | None, server_now: float | None) -> float:
    """Seconds since the last renewal by the server's clock, at least."""
    if renewed is None or server_now is None:
        return 0.0
    return server_now - renewed - _CLOCK_RESOLUTION_SECONDS
