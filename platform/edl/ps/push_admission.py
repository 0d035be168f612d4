"""Where pushes come in: each waits for its cut, then for its update, and is told what became of it.

All methods are called with the server's lock held; those that wait let it go meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from edl.api.job import Strategy
from edl.ps.applied_steps import AdmissionOutcome, AppliedSteps
from edl.ps.async_updates import AsyncUpdater
from edl.ps.cut_state import CutState
from edl.ps.model_state import ModelState
from edl.ps.push_counts import PushCounts
from edl.ps.push_updates import PendingPush, PushUpdater
from edl.ps.sync_rounds import PendingRound, PushId
from edl.ps.sync_updates import SyncUpdater
from edl.transport.peer_errors import PeerRefusedError


class PushAdmission:
    """See the module's docstring.

    Args:
        changed: the server's lock; told of whatever a push may wait for.
        leases: which pushes enter.
        cuts: which pushes wait.
        contents: what they change.
        strategy: how pushes become updates.
        patience: seconds that a push waits, for its cut and its update together.
        clock: monotonic seconds.

    Attributes:
        closed: the process ends.
        kept_out: pushes that wait for a cut.
    """

    def __init__(
        self,
        changed: threading.Condition,
        leases: AppliedSteps,
        cuts: CutState[Any],
        contents: ModelState,
        strategy: Strategy,
        *,
        patience: float,
        clock: Callable[[], float],
    ) -> None:
        self._changed = changed
        self._leases = leases
        self._cuts = cuts
        self._model_state = contents
        self._updater = _make_updater(strategy, leases, contents, cuts)
        self._push_timeout = patience
        self._clock = clock
        self.closed = False
        self.kept_out = 0

    def admit_push(self, push: PendingPush) -> AdmissionOutcome:
        """Wait until a push is decided.

        Raises:
            Refused: kind ``busy`` (try again) if the cut or the round is not over in time or the parameters were
                replaced meanwhile; ``incarnation`` (try again) if the lease's master has not attached yet.
        """
        until = self._clock() + self._push_timeout
        if self._must_wait(push.share):
            self._wait_for_cut(push.share, until)
        self._model_state.require_unchanged_store(push.declared)
        self._updater.offer_push(push)
        self._changed.notify_all()
        self._wait_for_outcome(push, until)
        admission = push.admission()
        if admission is AdmissionOutcome.UNKNOWN_MASTER:
            raise PeerRefusedError(
                f"the master that granted lease {push.share.lease} has not attached yet", kind="incarnation"
            )
        return admission

    def settle(self) -> None:
        """Leases or cuts changed."""
        self._updater.settle()
        self._changed.notify_all()

    def let_in(self, cut: int, within: Mapping[int, int], seconds: float) -> bool:
        """Let the steps below ``within`` of each lease in; whether all of them have come after so many seconds.

        Raises:
            Refused: kind ``busy``: the process ends.
        """
        self._cuts.let_in(cut, within)
        self.settle()
        if not self._leases.reached(within):
            self._changed.wait_for(lambda: self._leases.reached(within) or self.closed, seconds)
        self._check_running()
        if self._cuts.expire_pause(self._clock()):
            self.settle()
        return self._leases.reached(within)

    def replaced(self) -> None:
        """The parameters are about to be replaced: what waits is to be sent again."""
        self._updater.replaced()

    def parted(self, worker: int, link: int) -> None:
        """A worker's connection closed: no round waits for what would have come through it."""
        self._updater.parted(worker, link)
        self._changed.notify_all()

    @property
    def counts(self) -> PushCounts:
        """What became of the pushes so far."""
        return self._updater.counts

    @property
    def forming(self) -> PendingRound | None:
        """The update that waits for more pushes, if one does."""
        return self._updater.forming

    def close(self) -> str:
        """Answer pushes that wait; returns what was done."""
        self.closed = True
        self._changed.notify_all()
        return self._updater.summary()

    def _wait_for_cut(self, share: PushId, until: float) -> None:
        self.kept_out += 1
        self._changed.notify_all()
        try:
            if not self._await(lambda: not self._must_wait(share), until):
                raise PeerRefusedError(f"a cut is not over after {self._push_timeout:g} s", kind="busy")
        finally:
            self.kept_out -= 1

    def _wait_for_outcome(self, push: PendingPush, until: float) -> None:
        self._await(lambda: push.outcome is not None or self.closed, until)
        if push.outcome is None:
            reason = self._updater.withdraw_push(push)
            self._changed.notify_all()
            self._check_running()
            raise PeerRefusedError(f"{reason} for {self._push_timeout:g} s", kind="busy")

    def _await(self, over: Callable[[], bool], until: float) -> bool:
        """Wait until it is over; False if it is not by then. A cut that is held for too long is given up meanwhile."""
        while not over():
            now = self._clock()
            if self._cuts.expire_pause(now):
                self.settle()
            elif now >= until:
                return False
            else:
                self._changed.wait(min(until, self._cuts.until) - now)
        return True

    def _must_wait(self, share: PushId) -> bool:
        """A retried or revoked push changes nothing, so that it need not wait."""
        self._check_running()
        return self._cuts.keeps_out(*share) and self._leases.decide_push(*share) is AdmissionOutcome.APPLIED

    def _check_running(self) -> None:
        if self.closed:
            raise PeerRefusedError("this PS ends", kind="busy")


def _make_updater(strategy: Strategy, leases: AppliedSteps, contents: ModelState, cuts: CutState[Any]) -> PushUpdater:
    if strategy.mode == "sync":
        return SyncUpdater(leases, contents, strategy.grads_to_wait, strategy.version_tolerance, lambda: cuts.held)
    return AsyncUpdater(leases, contents, staleness_aware=strategy.staleness_aware)
