"""How pushes become updates; used under the server's lock.

An offered push gets its *outcome* when it is decided: in asynchronous mode (``edl.ps.push_updates``) at once, in
synchronous mode (``edl.ps.sync_updates``) when its round closes. Until then it has changed nothing.
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
# What became of pushes, in numbers; counted under the server's lock.


@dataclass(frozen=True, slots=True)
class PushCounts:
    """Pushes that brought a gradient, since this process began; what was rolled back since counts, too.

    Attributes:
        applied_pushes: those that are in an update.
        update_count: that they became.
        stale_pushes: those that were refused as too old; their minibatches were computed again.
        total_staleness: of those that entered, summed: updates between the values of the gradient and the one it is in.
        max_staleness: the largest of these.
    """

    applied_pushes: int = 0
    update_count: int = 0
    stale_pushes: int = 0
    total_staleness: int = 0
    max_staleness: int = 0


class PushCounter:
    """Counts."""

    def __init__(self) -> None:
        self._applied_pushes = self._update_count = self._stale_pushes = self._total_staleness = self._max_staleness = 0

    def count_update(self, staleness: Sequence[int]) -> None:
        """An update was made of gradients that miss so many others each; of none, it is not worth counting."""
        self._applied_pushes += len(staleness)
        self._update_count += bool(staleness)
        self._total_staleness += sum(staleness)
        self._max_staleness = max(self._max_staleness, *staleness, 0)

    def count_stale_push(self) -> None:
        """A push was too old."""
        self._stale_pushes += 1

    @property
    def push_counts(self) -> PushCounts:
        """So far."""
        return PushCounts(
            self._applied_pushes, self._update_count, self._stale_pushes, self._total_staleness, self._max_staleness
        )


@dataclass(slots=True)
class PendingPush:
    """A push, and what became of it once that is known.

    Attributes:
        push_id: which step of which lease it is.
        declaration: what the gradients were checked against.
        gradients: None enters the step only.
        worker: index of the worker that it comes from.
        connection: the connection that it came through.
        gradient_version: of the values that the gradient was computed at.
        next_lease: lease of the worker's next push; 0: it has none in hand.
        leader_round: the pushes that are one update with it, as the first PS has said; none at the first PS itself.
        is_retry: this is not the first try.
        outcome: an admission, or what went wrong; None while it waits.
        round_pushes: the pushes of the update that it is in.
    """

    push_id: PushId
    declaration: ModelDeclaration
    gradients: PushGradients | None
    worker: int = 0
    connection: int = 0
    gradient_version: int = 0
    next_lease: int = 0
    leader_round: tuple[PushId, ...] = ()
    is_retry: bool = False
    outcome: AdmissionOutcome | Exception | None = None
    round_pushes: tuple[PushId, ...] = ()

    def staleness_at(self, version: int) -> int:
        """Updates that its gradient misses where ``version`` are made; none after these went back to a checkpoint."""
        return max(0, version - self.gradient_version)

    def require_admission(self) -> AdmissionOutcome:
        """The outcome; raises what went wrong instead."""
        if isinstance(self.outcome, Exception):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome


class PushUpdater(Protocol):
    """What the server does with pushes; each method may give some of them their outcome."""

    def offer_push(self, push: PendingPush) -> None:
        """A push that no cut keeps out any more."""

    def withdraw_push(self, push: PendingPush) -> str:
        """A push waited for too long and will be sent again; says for what."""

    def reevaluate(self) -> None:
        """Leases or cuts changed."""

    def handle_disconnect(self, worker: int, connection: Hashable) -> None:
        """A worker's connection closed."""

    def reject_pending(self) -> None:
        """The parameters were replaced: what waits is to be sent again."""

    def summary(self) -> str:
        """What was done, for the log."""

    @property
    def push_counts(self) -> PushCounts:
        """What became of the pushes so far."""

    @property
    def pending_round(self) -> PendingRound | None:
        """The update that waits for more pushes, if one does."""


class AsyncUpdater:
    """Every push is an update, at once.

    Args:
        applied_steps: which pushes enter.
        model_state: what they change.
        staleness_aware: divide the learning rate by the updates since the values that a gradient was computed at,
            as Zhang et al., Staleness-aware async-SGD (IJCAI 2016), do.
    """

    def __init__(self, applied_steps: AppliedSteps, model_state: ModelState, *, staleness_aware: bool) -> None:
        self._applied_steps = applied_steps
        self._model_state = model_state
        self._staleness_aware = staleness_aware
        self._push_counter = PushCounter()

    def offer_push(self, push: PendingPush) -> None:
        """Applied before this returns, or refused."""
        push.outcome = self._applied_steps.decide_push(*push.push_id)
        if push.outcome is not AdmissionOutcome.APPLIED:
            return
        gradients, staleness = push.gradients, push.staleness_at(self._model_state.version)
        if gradients is not None and self._staleness_aware:
            gradients = replace(gradients, learning_rate=gradients.learning_rate / max(1, staleness))
        # First the values, then the step: a push that there is no memory for is refused here, and has not entered.
        # Nobody sees one without the other, because the lock is held.
        self._model_state.apply_push(gradients)
        self._applied_steps.admit_push(*push.push_id)
        self._push_counter.count_update([] if gradients is None else [staleness])

    def withdraw_push(self, push: PendingPush) -> str:
        """Nothing waits here."""
        raise AssertionError("an asynchronous push is decided when it is offered")

    def reevaluate(self) -> None:
        """Nothing waits here."""

    def handle_disconnect(self, worker: int, connection: Hashable) -> None:
        """Nobody is waited for."""

    def reject_pending(self) -> None:
        """Nothing waits here."""

    def summary(self) -> str:
        """See the protocol."""
        return f"{self._model_state.version} updates"

    @property
    def push_counts(self) -> PushCounts:
        """See the protocol."""
        return self._push_counter.push_counts

    @property
    def pending_round(self) -> None:
        """No update waits for anything."""
        return
