"""Turns pushes into updates; used under the server's lock.

An offered push gets its *outcome* when it is decided: immediately in asynchronous mode (this
module), when its round closes in synchronous mode (``edl.ps.sync_updates``). Until then it has
changed nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.parameter_store import PushGradients
from edl.ps.applied_steps import AdmissionOutcome, AppliedSteps, PushId
from edl.ps.model_state import ModelState
from edl.ps.sync_rounds import PendingRound

# --------------------------------------------------------------------------------------------------
# Statistics of pushes, updated under the server's lock.


@dataclass(frozen=True, slots=True)
class PushCounts:
    """Counts of pushes that carried a gradient, since this process started; rolled-back pushes are included.

    Attributes:
        applied_pushes: pushes that are in an update.
        update_count: updates made of these pushes.
        stale_pushes: pushes refused as stale; their minibatches were computed again.
        total_staleness: sum over the applied pushes of the updates between the values of the gradient
            and its own update.
        max_staleness: the largest staleness of an applied push.
    """

    applied_pushes: int = 0
    update_count: int = 0
    stale_pushes: int = 0
    total_staleness: int = 0
    max_staleness: int = 0


class PushCounter:
    """Counts pushes and updates for ``PushCounts``."""

    def __init__(self) -> None:
        self._applied_pushes = self._update_count = self._stale_pushes = self._total_staleness = self._max_staleness = 0

    def count_update(self, staleness: Sequence[int]) -> None:
        """Count an update made of gradients with these staleness values.

        An update without gradients is not counted.
        """
        self._applied_pushes += len(staleness)
        self._update_count += bool(staleness)
        self._total_staleness += sum(staleness)
        self._max_staleness = max(self._max_staleness, *staleness, 0)

    def count_stale_push(self) -> None:
        self._stale_pushes += 1

    @property
    def push_counts(self) -> PushCounts:
        """The counts so far."""
        return PushCounts(
            self._applied_pushes, self._update_count, self._stale_pushes, self._total_staleness, self._max_staleness
        )


@dataclass(slots=True)
class PendingPush:
    """A push and, once it is decided, its outcome.

    Attributes:
        push_id: lease and step.
        declaration: the declaration that the gradients were checked against.
        gradients: None: record the step and change no parameters.
        worker: index of the sending worker.
        connection: the connection on which the push arrived.
        gradient_version: version of the values from which the gradient was computed.
        next_lease: lease of the worker's next push; 0 if it holds no further work.
        leader_round: the pushes of its round as decided by the first PS; empty on the first PS.
        is_retry: whether the push was sent before.
        outcome: the decision or an error; None while the push waits.
        round_pushes: the pushes of the update that contains it.
    """

    push_id: PushId
    declaration: ModelDeclaration
    gradients: PushGradients | None
    worker: int = 0
    # A round stops waiting for a worker whose connection closes: its process has ended.
    connection: int = 0
    # Of this PS only: each PS counts its own updates.
    gradient_version: int = 0
    # With it the first PS knows whom the next round has to wait for (docs/design/0008-modes.md).
    next_lease: int = 0
    # If every PS formed its own rounds, two workers whose first pushes reach two PS in different
    # order would wait for each other for ever.
    leader_round: tuple[PushId, ...] = ()
    # At a PS that follows, a push that was sent before waits for no other: the others may have been
    # answered by a process that is gone, and are then never sent again.
    is_retry: bool = False
    outcome: AdmissionOutcome | Exception | None = None
    round_pushes: tuple[PushId, ...] = ()

    def staleness_at(self, version: int) -> int:
        """Updates that the gradient missed at ``version``; 0 after a rollback."""
        return max(0, version - self.gradient_version)

    def require_admission(self) -> AdmissionOutcome:
        """The outcome; raises it if it is an error."""
        if isinstance(self.outcome, Exception):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome


class PushUpdater(Protocol):
    """The server's update strategy; each method may decide the outcome of some pushes."""

    def offer_push(self, push: PendingPush) -> None:
        """Offer a push that no cut excludes."""

    # Otherwise the worker would send the push again while a round still contains it.
    def withdraw_push(self, push: PendingPush) -> str:
        """Withdraw a push that timed out and will be sent again; returns what it was waiting for."""

    def reevaluate(self) -> None:
        """Decide waiting pushes again after a change of leases or cuts."""

    def handle_disconnect(self, worker: int, connection: Hashable) -> None:
        """Handle a closed connection of a worker."""

    def reject_pending(self) -> None:
        """Reject waiting pushes after the parameters were replaced; workers send them again."""

    def summary(self) -> str:
        """A summary for the log."""

    @property
    def push_counts(self) -> PushCounts:
        """The counts of pushes so far."""

    @property
    def pending_round(self) -> PendingRound | None:
        """The incomplete update, if there is one."""


class AsyncUpdater:
    """Asynchronous mode: every push is applied at once.

    Args:
        applied_steps: decides which pushes are admitted.
        model_state: the parameters.
        staleness_aware: divide the learning rate by the staleness of the gradient, as in Zhang et al.,
            Staleness-aware async-SGD (IJCAI 2016). Strategy AllReduce scales it by the number of ranks instead
            (``edl.worker.allreduce.rate_scaling``).
    """

    def __init__(self, applied_steps: AppliedSteps, model_state: ModelState, *, staleness_aware: bool) -> None:
        self._applied_steps = applied_steps
        self._model_state = model_state
        self._staleness_aware = staleness_aware
        self._push_counter = PushCounter()

    def offer_push(self, push: PendingPush) -> None:
        """Apply or refuse the push before returning."""
        push.outcome = self._applied_steps.decide_push(*push.push_id)
        if push.outcome is not AdmissionOutcome.ADMITTED:
            return
        gradients, staleness = push.gradients, push.staleness_at(self._model_state.version)
        if gradients is not None and self._staleness_aware:
            gradients = replace(gradients, learning_rate=gradients.learning_rate / max(1, staleness))
        # Apply the values first, then record the step: a push that runs out of memory is refused
        # here and has not been admitted. The lock hides the intermediate state.
        self._model_state.apply_push(gradients)
        self._applied_steps.admit_push(*push.push_id)
        self._push_counter.count_update([] if gradients is None else [staleness])

    def withdraw_push(self, push: PendingPush) -> str:
        """Never called, because no push waits in this mode."""
        raise AssertionError("an asynchronous push is decided when it is offered")

    def reevaluate(self) -> None:
        """No push waits in this mode."""

    def handle_disconnect(self, worker: int, connection: Hashable) -> None:
        """No push waits in this mode."""

    def reject_pending(self) -> None:
        """No push waits in this mode."""

    def summary(self) -> str:
        return f"{self._model_state.version} updates"

    @property
    def push_counts(self) -> PushCounts:
        return self._push_counter.push_counts

    @property
    def pending_round(self) -> None:
        """None: no push waits in this mode."""
        return
