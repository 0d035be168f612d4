"""Synchronous mode: pushes wait for their round, and are one update.

A push that waits has changed nothing: no snapshot holds a part of a round, and one whose lease is revoked meanwhile was
never there. While a cut is held, the first parameter server makes no update; the others make those that it has made.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from edl.api.errors import RefusedError
from edl.numerics.gradient_merging import merge_gradients
from edl.numerics.parameter_store import PushGradients
from edl.ps.applied_steps import AdmissionOutcome, AppliedSteps
from edl.ps.model_state import ModelState
from edl.ps.push_updates import PendingPush, PushCounter, PushCounts
from edl.ps.sync_rounds import FollowerPush, FollowerRounds, PendingRound, PushId, SyncRounds, WaitingPush
from edl.transport.peer_errors import PeerRefusedError

_MAY_ENTER = (AdmissionOutcome.APPLIED, AdmissionOutcome.UNKNOWN_MASTER)


class SyncUpdater:
    """Pushes wait for their round, and are one update.

    Those that name their round follow the first parameter server; those that do not are put together here.

    Args:
        leases: which pushes enter.
        contents: what they change.
        wanted: pushes of an update, if so many can come.
        tolerance: versions that the values of a gradient may lag behind.
        held: whether a cut keeps further steps out.
    """

    def __init__(
        self,
        applied_steps: AppliedSteps,
        model_state: ModelState,
        required_pushes: int,
        version_tolerance: int,
        is_paused: Callable[[], bool],
    ) -> None:
        self._leases = applied_steps
        self._model_state = model_state
        self._version_tolerance = version_tolerance
        self._held = is_paused
        self._rounds = SyncRounds(required_pushes)
        self._follower_rounds = FollowerRounds()
        self._waiting: dict[PushId, PendingPush] = {}
        self._made: dict[int, tuple[PushId, ...]] = {}
        self._push_counter = PushCounter()

    def offer_push(self, push: PendingPush) -> None:
        """Decided at once only if it enters nothing, or completes its round."""
        origin = push.origin
        push.outcome = self._leases.decide_push(*push.share)
        if not origin.round:
            self._rounds.bind_connection(origin.worker, origin.link)
        if push.outcome is not AdmissionOutcome.APPLIED:
            self._answer_rejected_push(push)
        elif self._is_stale(push):
            push.outcome = AdmissionOutcome.STALE
            self._push_counter.refuse()
            self._rounds.refuse(origin.worker, push.share.lease)
        else:
            self._add_to_round(push)
        self._close()

    def _answer_rejected_push(self, push: PendingPush) -> None:
        """A push that enters nothing; one whose answer was lost is told its round again."""
        last_round = self._made.get(push.share.lease, ())
        if push.outcome is AdmissionOutcome.DUPLICATE:
            push.round = last_round if push.share in last_round else ()
        if not push.origin.round:
            self._rounds.expect_push(
                push.origin.worker, push.origin.following if push.outcome is AdmissionOutcome.DUPLICATE else 0
            )

    def _is_stale(self, push: PendingPush) -> bool:
        """Values of a later version than this one's are of before it went back to a checkpoint: good enough."""
        if push.origin.round or push.gradients is None:
            return False
        return push.origin.version < self._model_state.version - self._version_tolerance

    def _add_to_round(self, push: PendingPush) -> None:
        self._reject_pushes((push.share,), _resent_error())
        push.outcome = None
        self._waiting[push.share] = push
        if push.origin.round:
            self._follower_rounds.join(FollowerPush(push.share, frozenset(push.origin.round), push.origin.again))
            return
        previous_push = self._rounds.join(WaitingPush(push.origin.worker, push.share, push.origin.following))
        if previous_push is not None:
            self._reject_pushes((previous_push.share,), _resent_error())

    def withdraw_push(self, push: PendingPush) -> str:
        """It does not sit any more."""
        del self._waiting[push.share]
        if push.origin.round:
            self._follower_rounds.remove_push(push.share)
            return "the other pushes of its update have not come"
        missing = sorted(self._rounds.expected.values())
        self._rounds.withdraw_push(push.origin.worker)
        return f"a round waits for pushes of leases {missing}"

    def settle(self) -> None:
        """What was revoked leaves; a round may be complete without it, or not be held any more."""
        for share, push in list(self._waiting.items()):
            admission = self._leases.decide_push(*share)
            if admission is not AdmissionOutcome.APPLIED:
                self._remove_pending(share)
                push.outcome = admission
        self._rounds.drop(lambda lease: self._leases.decide_push(lease, 0) is AdmissionOutcome.REVOKED)
        self._made = {
            n: made for n, made in self._made.items() if self._leases.decide_push(n, 0) is not AdmissionOutcome.REVOKED
        }
        self._close()

    def parted(self, worker: int, connection: Hashable) -> None:
        """A process that ended is not waited for."""
        self._rounds.parted(worker, connection)
        self._close()

    def replaced(self) -> None:
        """Gradients of other values than those that are here now."""
        error = PeerRefusedError("the parameters were replaced while the push waited", kind="busy")
        self._reject_pushes(tuple(self._waiting), error)

    def summary(self) -> str:
        """See the protocol."""
        counts = self.counts
        return (
            f"{self._model_state.version} updates, {counts.entered} pushes in them, {counts.refused} refused as stale"
        )

    @property
    def counts(self) -> PushCounts:
        """See the protocol."""
        return self._push_counter.counts

    @property
    def forming(self) -> PendingRound | None:
        """See the protocol; where rounds are followed, none forms."""
        return self._rounds.forming

    # ------------------------------------------------------------ closing

    def _close(self) -> None:
        """Apply every round that is complete."""
        while push_ids := self._next_complete_round():
            pushes = [self._waiting.pop(share) for share in push_ids]
            try:
                self._apply_round(pushes)
            except Exception as error:  # noqa: BLE001  raised again where each of them is answered
                for push in pushes:
                    push.outcome = error

    def _next_complete_round(self) -> tuple[PushId, ...]:
        waiting_pushes = () if self._held() else self._rounds.close()
        if waiting_pushes:
            return tuple(seat.share for seat in waiting_pushes)
        return self._follower_rounds.close(lambda share: self._leases.decide_push(*share) in _MAY_ENTER)

    def _apply_round(self, pushes: list[PendingPush]) -> None:
        """One update; then all of its pushes are in."""
        staleness = [push.staleness(self._model_state.version) for push in pushes if push.gradients is not None]
        self._model_state.apply(_merge_pushes(pushes))
        self._push_counter.update(staleness)
        push_ids = tuple(push.share for push in pushes)
        for push in pushes:
            push.outcome, push.round = self._leases.admit_push(*push.share), push_ids
            self._made[push.share.lease] = push_ids

    def _reject_pushes(self, push_ids: Iterable[PushId], error: RefusedError) -> None:
        for share in push_ids:
            if share in self._waiting:
                self._waiting[share].outcome = error
                self._remove_pending(share)

    def _remove_pending(self, push_id: PushId) -> None:
        del self._waiting[push_id]
        self._rounds.remove_push(push_id)
        self._follower_rounds.remove_push(push_id)


def _merge_pushes(pushes: list[PendingPush]) -> PushGradients | None:
    """What the pushes of a round do together, at the learning rate of the newest values that one was computed at."""
    newest = sorted(pushes, key=lambda push: push.origin.version, reverse=True)
    rate = next((push.gradients.learning_rate for push in newest if push.gradients is not None), 0.0)
    return merge_gradients([push.gradients for push in pushes if push.gradients is not None], rate)


def _resent_error() -> RefusedError:
    return PeerRefusedError("the push was sent again through another connection", kind="busy")
