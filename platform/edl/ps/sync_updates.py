"""Synchronous mode: a push waits for its round, and each round is one update.

A waiting push has changed nothing: no snapshot contains part of a round, and a push whose lease is
revoked in the meantime leaves no trace. While updates are paused for a cut, the first parameter
server makes no update; the others make those that the first one has made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np

from edl.api.errors import RefusedError
from edl.numerics.array_types import Floats
from edl.numerics.parameter_store import PushGradients, RowBatch
from edl.ps.applied_steps import AdmissionOutcome, AppliedSteps, PushId
from edl.ps.model_state import ModelState
from edl.ps.push_updates import PendingPush, PushCounter, PushCounts
from edl.ps.sync_rounds import FollowerPush, FollowerRounds, PendingRound, SyncRounds, WaitingPush
from edl.transport.peer_errors import PeerRefusedError


def merge_gradients(parts: Sequence[PushGradients], learning_rate: float) -> PushGradients | None:
    """The mean gradient over the records of all parts; None if there is nothing to apply.

    A loss is a mean over the records of its minibatch, and ``weight`` is proportional to their number.
    So the sum of ``weight / sum of weights`` times each gradient is the gradient of all records as one
    minibatch. Statistics change by the mean of the parts' changes.

    Args:
        parts: in an order that does not depend on their arrival, because sums in float32 depend on it.
        learning_rate: learning rate of the update.
    """
    if not parts:
        return None
    # One part is not multiplied by 1.0 and keeps its bits, as in asynchronous mode.
    if len(parts) == 1:
        single = parts[0]
        return PushGradients(single.flat, single.rows, learning_rate, single.record_weight)
    factors = _record_weights(parts)
    flat = parts[0].flat * factors[0]
    scratch = np.empty_like(flat)
    for part, factor in zip(parts[1:], factors[1:], strict=True):
        flat += np.multiply(part.flat, factor, out=scratch)
    tables = sorted({table for part in parts for table in part.rows})
    rows = {table: _merge_rows(table, parts, factors) for table in tables}
    return PushGradients(flat, rows, learning_rate, sum(part.record_weight for part in parts) / len(parts))


def _record_weights(parts: Sequence[PushGradients]) -> list[np.float32]:
    total = sum(part.record_weight for part in parts)
    # Without a positive total (all weights are 0) every part counts the same.
    if not total > 0:
        return [np.float32(1 / len(parts))] * len(parts)
    return [np.float32(part.record_weight / total) for part in parts]


def _merge_rows(table: str, parts: Sequence[PushGradients], factors: Sequence[np.float32]) -> RowBatch:
    """Concatenate the rows: the table sums duplicate ids."""
    ids, values = [], list[Floats]()
    for part, factor in zip(parts, factors, strict=True):
        if table in part.rows:
            ids.append(part.rows[table].ids)
            values.append(part.rows[table].values * factor)
    return RowBatch(np.concatenate(ids), np.concatenate(values))


_MAY_ENTER = (AdmissionOutcome.ADMITTED, AdmissionOutcome.UNKNOWN_MASTER)


class SyncUpdater:
    """Collects pushes into rounds and applies each round as one update.

    Pushes that name their round follow the decision of the first parameter server. Pushes that do not
    are collected here: this is the first one.

    Args:
        applied_steps: decides which pushes are admitted.
        model_state: the parameters.
        required_pushes: pushes that close a round, if so many can come.
        version_tolerance: number of versions that the values of a gradient may lag behind.
        is_paused: whether updates are paused for a cut.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        applied_steps: AppliedSteps,
        model_state: ModelState,
        required_pushes: int,
        version_tolerance: int,
        is_paused: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._applied_steps = applied_steps
        self._model_state = model_state
        self._version_tolerance = version_tolerance
        self._is_paused = is_paused
        self._sync_rounds = SyncRounds(required_pushes, clock)
        self._follower_rounds = FollowerRounds()
        self._pending_pushes: dict[PushId, PendingPush] = {}
        self._last_rounds: dict[int, tuple[PushId, ...]] = {}
        self._push_counter = PushCounter()

    def offer_push(self, push: PendingPush) -> None:
        """Decide a push at once only if it changes nothing or completes its round."""
        push.outcome = self._applied_steps.decide_push(*push.push_id)
        # This is the first PS, which forms the rounds.
        is_leader = not push.leader_round
        if is_leader:
            self._sync_rounds.bind_connection(push.worker, push.connection)

        if push.outcome is not AdmissionOutcome.ADMITTED:
            # The push changes nothing. If it was applied and its answer was lost, the worker needs
            # its round for the other servers and stays expected. Otherwise its lease is refused,
            # and no push follows.
            is_duplicate = push.outcome is AdmissionOutcome.DUPLICATE
            if is_duplicate:
                last_round = self._last_rounds.get(push.push_id.lease, ())
                push.round_pushes = last_round if push.push_id in last_round else ()
            if is_leader:
                self._sync_rounds.expect_push(push.worker, push.next_lease if is_duplicate else 0)
        elif is_leader and self._is_stale(push):
            # The other servers never refuse a push as stale: what the first one admitted is applied
            # on all of them.
            push.outcome = AdmissionOutcome.STALE
            self._push_counter.count_stale_push()
            self._sync_rounds.guarantee_next_round(push.worker, push.push_id.lease)
        else:
            # The push waits for its round. It replaces a waiting push for the same step or, on the
            # first PS, any other push of the same worker: the connection of that push is lost, so
            # its answer could not be delivered.
            self._reject_pushes((push.push_id,), _resent_error())
            push.outcome = None
            self._pending_pushes[push.push_id] = push
            if is_leader:
                previous_push = self._sync_rounds.join(WaitingPush(push.worker, push.push_id, push.next_lease))
                if previous_push is not None:
                    self._reject_pushes((previous_push.push_id,), _resent_error())
            else:
                self._follower_rounds.join(FollowerPush(push.push_id, frozenset(push.leader_round), push.is_retry))
        self._apply_complete_rounds()

    def _is_stale(self, push: PendingPush) -> bool:
        """Whether the gradient is too old.

        A higher version than this PS's stems from before a rollback and is acceptable.
        """
        if push.gradients is None:
            return False
        return push.gradient_version < self._model_state.version - self._version_tolerance

    def withdraw_push(self, push: PendingPush) -> str:
        """Take a push out of its round."""
        del self._pending_pushes[push.push_id]
        if push.leader_round:
            self._follower_rounds.remove_push(push.push_id)
            return "the other pushes of its update have not arrived"
        missing = sorted(self._sync_rounds.expected_leases.values())
        self._sync_rounds.withdraw_push(push.worker)
        return f"a round is waiting for pushes of leases {missing}"

    def reevaluate(self) -> None:
        """Decide waiting pushes whose leases were revoked; this, or the end of a pause, may complete a round."""
        for push_id, push in list(self._pending_pushes.items()):
            admission = self._applied_steps.decide_push(*push_id)
            if admission is not AdmissionOutcome.ADMITTED:
                self._remove_pending(push_id)
                push.outcome = admission
        self._sync_rounds.stop_expecting_refused(
            lambda lease: self._applied_steps.decide_push(lease, 0) is AdmissionOutcome.REVOKED
        )
        self._last_rounds = {
            n: made
            for n, made in self._last_rounds.items()
            if self._applied_steps.decide_push(n, 0) is not AdmissionOutcome.REVOKED
        }
        self._apply_complete_rounds()

    def handle_disconnect(self, worker: int, connection: Hashable) -> None:
        """Stop waiting for pushes of a process that ended."""
        self._sync_rounds.handle_disconnect(worker, connection)
        self._apply_complete_rounds()

    def reject_pending(self) -> None:
        """Reject waiting gradients, which belong to replaced parameters."""
        error = PeerRefusedError("the parameters were replaced while the push waited", kind="busy")
        self._reject_pushes(tuple(self._pending_pushes), error)

    def summary(self) -> str:
        counts = self.push_counts
        return (
            f"{self._model_state.version} updates, {counts.applied_pushes} pushes in them, "
            f"{counts.stale_pushes} refused as stale"
        )

    @property
    def push_counts(self) -> PushCounts:
        return self._push_counter.push_counts

    @property
    def pending_round(self) -> PendingRound | None:
        """The incomplete round; None on servers that follow the first one."""
        return self._sync_rounds.pending_round

    # ------------------------------------------------------------ closing rounds

    def _apply_complete_rounds(self) -> None:
        """Apply every complete round as one update."""
        while push_ids := self._next_complete_round():
            pushes = [self._pending_pushes.pop(push_id) for push_id in push_ids]
            staleness = [push.staleness_at(self._model_state.version) for push in pushes if push.gradients is not None]
            # As in asynchronous mode, first the values, then the steps: a round that runs out of
            # memory is refused and none of its pushes is admitted.
            try:
                self._model_state.apply_push(_merge_pushes(pushes))
            except Exception as error:  # noqa: BLE001  raised again where each push is answered
                for push in pushes:
                    push.outcome = error
                continue
            self._push_counter.count_update(staleness)
            for push in pushes:
                push.outcome, push.round_pushes = self._applied_steps.admit_push(*push.push_id), push_ids
                self._last_rounds[push.push_id.lease] = push_ids

    def _next_complete_round(self) -> tuple[PushId, ...]:
        # While updates are paused for a cut, the first PS makes no update. The others make those
        # that it has made before, so that all servers copy the same ones.
        waiting_pushes = () if self._is_paused() else self._sync_rounds.close_round()
        if waiting_pushes:
            return tuple(waiting.push_id for waiting in waiting_pushes)
        return self._follower_rounds.close_round(
            lambda push_id: self._applied_steps.decide_push(*push_id) in _MAY_ENTER
        )

    def _reject_pushes(self, push_ids: Iterable[PushId], error: RefusedError) -> None:
        for push_id in push_ids:
            if push_id in self._pending_pushes:
                self._pending_pushes[push_id].outcome = error
                self._remove_pending(push_id)

    def _remove_pending(self, push_id: PushId) -> None:
        del self._pending_pushes[push_id]
        self._sync_rounds.remove_push(push_id)
        self._follower_rounds.remove_push(push_id)


def _merge_pushes(pushes: list[PendingPush]) -> PushGradients | None:
    """The combined gradient of a round, at the learning rate of the newest values used by one of its pushes."""
    newest = sorted(pushes, key=lambda push: push.gradient_version, reverse=True)
    rate = next((push.gradients.learning_rate for push in newest if push.gradients is not None), 0.0)
    return merge_gradients([push.gradients for push in pushes if push.gradients is not None], rate)


def _resent_error() -> RefusedError:
    return PeerRefusedError("the push was sent again through another connection", kind="busy")
