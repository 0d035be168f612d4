"""Where pushes come in: each waits for its cut, then for its update, and is told what became of it.

All methods are called with the server's lock held; those that wait let it go meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from edl.ps.contents import Contents
from edl.ps.conversation import Stamp
from edl.ps.cuts import Cuts
from edl.ps.leases import Admission, Leases
from edl.ps.pushes import PushCounts
from edl.ps.rounds import Forming
from edl.ps.single import Single
from edl.ps.together import Together
from edl.ps.updates import Offered, Updates
from edl.rpc.refusal import Refused
from edl.spec.job import Strategy


class Entrance:
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
    """

    def __init__(
        self,
        changed: threading.Condition,
        leases: Leases,
        cuts: Cuts[Any],
        contents: Contents,
        strategy: Strategy,
        *,
        patience: float,
        clock: Callable[[], float],
    ) -> None:
        self._changed = changed
        self._leases = leases
        self._cuts = cuts
        self._contents = contents
        self._updates = _updates(strategy, leases, contents)
        self._patience = patience
        self._clock = clock
        self.closed = False

    def admit(self, push: Offered) -> Admission:
        """Wait until a push is decided.

        Raises:
            Refused: kind ``busy`` (try again) if the cut or the round is not over in time or the parameters were
                replaced meanwhile; ``incarnation`` (try again) if the lease's master has not attached yet.
        """
        until = self._clock() + self._patience
        self._await_cut(push, until)
        self._contents.store_of(push.declared)
        self._updates.offer(push)
        self._changed.notify_all()
        self._await_outcome(push, until)
        admission = push.admission()
        if admission is Admission.UNKNOWN_MASTER:
            raise Refused(f"the master that granted lease {push.stamp.lease} has not attached yet", kind="incarnation")
        return admission

    def settle(self) -> None:
        """Leases or cuts changed."""
        self._updates.settle(self._cuts.waits)
        self._changed.notify_all()

    def replaced(self) -> None:
        """The parameters are about to be replaced: what waits is to be sent again."""
        self._updates.replaced()

    def parted(self, worker: int, link: int) -> None:
        """A worker's connection closed: no round waits for what would have come through it."""
        self._updates.parted(worker, link)
        self._changed.notify_all()

    @property
    def counts(self) -> PushCounts:
        """What became of the pushes so far."""
        return self._updates.counts

    @property
    def forming(self) -> Forming | None:
        """The update that waits for more pushes, if one does."""
        return self._updates.forming

    def close(self) -> str:
        """Answer pushes that wait; returns what was done."""
        self.closed = True
        self._changed.notify_all()
        return self._updates.summary()

    def _await_cut(self, push: Offered, until: float) -> None:
        stamp = push.stamp
        if not self._kept_out(stamp):
            return
        self._updates.hold(push)
        self._changed.notify_all()
        if not self._changed.wait_for(lambda: not self._kept_out(stamp), until - self._clock()):
            raise Refused(f"cut {stamp.cut} is not over after {self._patience:g} s", kind="busy")

    def _await_outcome(self, push: Offered, until: float) -> None:
        self._changed.wait_for(lambda: push.outcome is not None or self.closed, until - self._clock())
        if push.outcome is None:
            reason = self._updates.withdraw(push)
            self._changed.notify_all()
            self._check_open()
            raise Refused(f"{reason} for {self._patience:g} s", kind="busy")

    def _kept_out(self, stamp: Stamp) -> bool:
        """A retried or revoked push changes nothing, so that it need not wait."""
        self._check_open()
        return self._cuts.waits(stamp.cut) and self._leases.decide(stamp.lease, stamp.step) is Admission.APPLIED

    def _check_open(self) -> None:
        if self.closed:
            raise Refused("this PS ends", kind="busy")


def _updates(strategy: Strategy, leases: Leases, contents: Contents) -> Updates:
    if strategy.mode == "sync":
        return Together(leases, contents, strategy.grads_to_wait, strategy.version_tolerance)
    return Single(leases, contents, staleness_aware=strategy.staleness_aware)
