"""Asynchronous mode: every push is an update, at once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from edl.numerics.parameter_store import PushGradients
from edl.ps.applied_steps import AdmissionOutcome, AppliedSteps
from edl.ps.model_state import ModelState
from edl.ps.push_counts import PushCounter, PushCounts
from edl.ps.push_updates import PendingPush


class AsyncUpdater:
    """Every push is an update, at once.

    Args:
        leases: which pushes enter.
        contents: what they change.
        staleness_aware: divide the learning rate by the updates since the values that a gradient was computed at,
            as Zhang et al., Staleness-aware async-SGD (IJCAI 2016), do.
    """

    def __init__(self, leases: AppliedSteps, contents: ModelState, *, staleness_aware: bool) -> None:
        self._leases = leases
        self._model_state = contents
        self._staleness_aware = staleness_aware
        self._push_counter = PushCounter()

    def offer_push(self, push: PendingPush) -> None:
        """Applied before this returns, or refused."""
        push.outcome = self._leases.decide_push(*push.share)
        if push.outcome is AdmissionOutcome.APPLIED:
            staleness = push.staleness(self._model_state.version)
            self._model_state.apply(self._scale_learning_rate(push, staleness))
            self._leases.admit_push(*push.share)
            self._push_counter.update([] if push.gradients is None else [staleness])

    def _scale_learning_rate(self, push: PendingPush, staleness: int) -> PushGradients | None:
        if push.gradients is None or not self._staleness_aware:
            return push.gradients
        return replace(push.gradients, learning_rate=push.gradients.learning_rate / max(1, staleness))

    def withdraw_push(self, push: PendingPush) -> str:
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
        return f"{self._model_state.version} updates"

    @property
    def counts(self) -> PushCounts:
        """See the protocol."""
        return self._push_counter.counts

    @property
    def forming(self) -> None:
        """No update waits for anything."""
        return
