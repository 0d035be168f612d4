"""How pushes become updates; used under the server's lock.

An offered push gets its *outcome* when it is decided: in asynchronous mode (``edl.ps.async_updates``) at once, in
synchronous mode (``edl.ps.sync_updates``) when its round closes. Until then it has changed nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.parameter_store import PushGradients
from edl.ps.applied_steps import AdmissionOutcome
from edl.ps.messages import PushOrigin
from edl.ps.push_counts import PushCounts
from edl.ps.sync_rounds import PendingRound, PushId


@dataclass(slots=True)
class PendingPush:
    """A push, and what became of it once that is known.

    Attributes:
        share: which step of which lease it is.
        origin: where it comes from.
        declared: what the gradients were checked against.
        gradients: None enters the step only.
        outcome: an admission, or what went wrong; None while it waits.
        round: the pushes of the update that it is in.
    """

    share: PushId
    origin: PushOrigin
    declared: ModelDeclaration
    gradients: PushGradients | None
    outcome: AdmissionOutcome | Exception | None = None
    round: tuple[PushId, ...] = ()

    def staleness(self, version: int) -> int:
        """Updates that its gradient misses where ``version`` are made; none after these went back to a checkpoint."""
        return max(0, version - self.origin.version)

    def admission(self) -> AdmissionOutcome:
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

    def settle(self) -> None:
        """Leases or cuts changed."""

    def parted(self, worker: int, link: Hashable) -> None:
        """A worker's connection closed."""

    def replaced(self) -> None:
        """The parameters were replaced: what waits is to be sent again."""

    def summary(self) -> str:
        """What was done, for the log."""

    @property
    def counts(self) -> PushCounts:
        """What became of the pushes so far."""

    @property
    def forming(self) -> PendingRound | None:
        """The update that waits for more pushes, if one does."""
