"""Asynchronous mode: every push is an update, at once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from edl.numerics.parameter_store import Gradients
from edl.ps.applied_steps import Admission, Leases
from edl.ps.model_state import Contents
from edl.ps.push_counts import PushCounts, PushTally
from edl.ps.push_updates import Offered


class Single:
    """Every push is an update, at once.

    Args:
        leases: which pushes enter.
        contents: what they change.
        staleness_aware: divide the learning rate by the updates since the values that a gradient was computed at,
            as Zhang et al., Staleness-aware async-SGD (IJCAI 2016), do.
    """

    def __init__(self, leases: Leases, contents: Contents, *, staleness_aware: bool) -> None:
        self._leases = leases
        self._contents = contents
        self._staleness_aware = staleness_aware
        self._tally = PushTally()

    def offer(self, push: Offered) -> None:
        """Applied before this returns, or refused."""
        push.outcome = self._leases.decide(*push.share)
        if push.outcome is Admission.APPLIED:
            staleness = push.staleness(self._contents.version)
            self._contents.apply(self._modulated(push, staleness))
            self._leases.admit(*push.share)
            self._tally.update([] if push.gradients is None else [staleness])

    def _modulated(self, push: Offered, staleness: int) -> Gradients | None:
        if push.gradients is None or not self._staleness_aware:
            return push.gradients
        return replace(push.gradients, learning_rate=push.gradients.learning_rate / max(1, staleness))

    def withdraw(self, push: Offered) -> str:
        """Nothing waits here."""
        raise AssertionError("an asynchronous push is decided when it is offered")

    def settle(self) -> None:
        """Nothing waits here."""

    def parted(self, worker: int, link: Hashable) -> None:
        """Nobody is waited for."""

    def replaced(self) -> None:
        """Nothing waits here."""

    def summary(self) -> str:
        """See the protocol."""
        return f"{self._contents.version} updates"

    @property
    def counts(self) -> PushCounts:
        """See the protocol."""
        return self._tally.counts

    @property
    def forming(self) -> None:
        """No update waits for anything."""
        return
