"""Rounds of synchronous training, as decided by the first parameter server.

A push *joins* and waits. The round closes when ``wanted`` pushes have joined, or as many as can
come; then all of them are one update. Only *expected* workers are waited for. A worker is expected
from its first push on, with the lease of its next push, until

- it says that no minibatch follows (it waits for work, evaluates, or has finished),
- its connection closes (its process ended),
- that lease is refused here (the master revoked it), or
- another worker pushes a step of that lease: a lease has one holder.

A worker whose push was refused as stale is *guaranteed* the next round: no round closes before its
next push has joined. So a minibatch is refused at most once.

The index of a worker in a push is not authenticated. So a round waits for a limited time, counted
from its first push: less for workers that have not been in a round yet, and nobody can extend it.
docs/design/0008-modes.md shows why no round waits forever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from edl.ps.applied_steps import PushId

MAX_WAIT_SECONDS = 600.0
"""Seconds that a round waits for workers of earlier rounds; the master revokes their leases before that."""
NEWCOMER_WAIT_SECONDS = 60.0
"""Seconds that a round waits for other workers: a retry of a stale push, or an invented worker."""


@dataclass(frozen=True, slots=True)
class WaitingPush:
    """A push that waits for its round.

    ``next_lease`` is the lease of the worker's next push, 0 if there is none.
    """

    worker: int
    push_id: PushId
    next_lease: int


@dataclass(frozen=True, slots=True)
class PendingRound:
    """An incomplete round, for status reports.

    Attributes:
        required_pushes: pushes that close the round, if so many can come.
        arrived_workers: workers whose pushes have joined.
        awaited_workers: workers whose pushes are expected.
    """

    required_pushes: int
    arrived_workers: tuple[int, ...]
    awaited_workers: tuple[int, ...]


class SyncRounds:
    """The current round; pure logic.

    Args:
        required_pushes: pushes that close a round, if so many can come.
        clock: returns monotonic seconds.
    """

    def __init__(self, required_pushes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._required_pushes = required_pushes
        self._clock = clock
        self._round_started = 0.0
        # All by worker.
        self._waiting_pushes: dict[int, WaitingPush] = {}
        self._expected_leases: dict[int, int] = {}
        self._guaranteed_workers: set[int] = set()
        self._known_workers: set[int] = set()  # workers that were in a round
        self._withdrawn_workers: set[int] = set()  # workers that will send a push of this round again
        self._connections: dict[int, Hashable] = {}

    @property
    def waiting_pushes(self) -> tuple[WaitingPush, ...]:
        """The waiting pushes, ordered by lease."""
        return tuple(sorted(self._waiting_pushes.values(), key=lambda seat: seat.push_id))

    @property
    def expected_leases(self) -> dict[int, int]:
        """The lease of the next push, by expected worker."""
        return dict(self._expected_leases)

    @property
    def pending_round(self) -> PendingRound | None:
        """The incomplete round for status reports; None if no push waits."""
        if not self._waiting_pushes:
            return None
        return PendingRound(
            self._required_pushes, tuple(sorted(self._waiting_pushes)), tuple(sorted(self._expected_leases))
        )

    def bind_connection(self, worker: int, connection: Hashable) -> None:
        """Associate a worker with the connection that it uses from now on."""
        self._connections[worker] = connection

    def handle_disconnect(self, worker: int, connection: Hashable) -> None:
        """Handle a closed connection: a worker without another connection sends nothing more."""
        # A worker may have connected again before its old connection was found dead.
        if self._connections.get(worker) == connection:
            del self._connections[worker]
            self._known_workers.discard(worker)
            self.stop_expecting(worker)

    def join(self, push: WaitingPush) -> WaitingPush | None:
        """Add a push; returns the worker's older push that it replaces, if there is one."""
        # The time counts from the first push, and a push that is sent again does not restart it.
        if not self._waiting_pushes and not self._withdrawn_workers:
            self._round_started = self._clock()
        self._withdrawn_workers.discard(push.worker)
        self._expected_leases.pop(push.worker, None)
        self._stop_expecting_others(push.worker, push.push_id.lease)
        previous_push = self._waiting_pushes.get(push.worker)
        self._waiting_pushes[push.worker] = push
        return previous_push

    def withdraw_push(self, worker: int) -> None:
        """Take a push out; the worker will send it again."""
        push = self._waiting_pushes.pop(worker, None)
        # The worker stays expected, so the round keeps waiting for it.
        if push is not None:
            self._expected_leases[worker] = push.push_id.lease
            self._withdrawn_workers.add(worker)

    def expect_push(self, worker: int, lease: int) -> None:
        """Expect a worker's next push with this lease; 0: no push will come."""
        if not lease:
            self.stop_expecting(worker)
        # A lease has one holder: an invented worker must not be expected in its place.
        elif not self._is_held_by_other(worker, lease):
            self._stop_expecting_others(worker, lease)
            self._expected_leases[worker] = lease

    def guarantee_next_round(self, worker: int, lease: int) -> None:
        """Make the next round wait for this worker, whose push was stale."""
        self.expect_push(worker, lease)
        if self._expected_leases.get(worker) == lease:
            self._guaranteed_workers.add(worker)

    def stop_expecting(self, worker: int) -> None:
        """Expect nothing more from a worker, except a push that has already joined."""
        self._expected_leases.pop(worker, None)
        self._guaranteed_workers.discard(worker)
        self._withdrawn_workers.discard(worker)

    def stop_expecting_refused(self, is_refused: Callable[[int], bool]) -> None:
        """Stop expecting workers whose lease is refused."""
        for worker, lease in list(self._expected_leases.items()):
            if is_refused(lease):
                self.stop_expecting(worker)

    def remove_push(self, push_id: PushId) -> None:
        """Remove a push that is answered without a round."""
        for worker, seat in list(self._waiting_pushes.items()):
            if seat.push_id == push_id:
                del self._waiting_pushes[worker]

    def close_round(self) -> tuple[WaitingPush, ...]:
        """The pushes of the round, if it is complete.

        The next round starts with the workers that announced a next push.
        """
        self._stop_waiting_too_long()
        # Complete means: as many pushes as the job wants, or as many as can come, because fewer
        # workers may train. A worker whose push was stale is always waited for; otherwise it might
        # be refused again and again.
        can_come = len(self._waiting_pushes) + len(self._expected_leases)
        if (
            not self._waiting_pushes
            or len(self._waiting_pushes) < min(self._required_pushes, can_come)
            or self._guaranteed_workers & self._expected_leases.keys()
        ):
            return ()
        pushes, self._waiting_pushes = self.waiting_pushes, {}
        self._withdrawn_workers.clear()
        for push in pushes:
            self._known_workers.add(push.worker)
            self._guaranteed_workers.discard(push.worker)
            self.expect_push(push.worker, push.next_lease)
        return pushes

    def _is_held_by_other(self, worker: int, lease: int) -> bool:
        """Whether another worker that was in a round, or whose push waits, holds this lease."""
        expected_of_known = any(
            self._expected_leases.get(known) == lease for known in self._known_workers if known != worker
        )
        return expected_of_known or any(
            lease in (seat.push_id.lease, seat.next_lease)
            for seat in self._waiting_pushes.values()
            if seat.worker != worker
        )

    def _stop_expecting_others(self, worker: int, lease: int) -> None:
        for other, expected in list(self._expected_leases.items()):
            if expected == lease and other != worker:
                self.stop_expecting(other)

    def _stop_waiting_too_long(self) -> None:
        if not self._waiting_pushes:
            return
        waited = self._clock() - self._round_started
        for worker in list(self._expected_leases):
            limit = MAX_WAIT_SECONDS if worker in self._known_workers else NEWCOMER_WAIT_SECONDS
            if waited >= limit:
                self.stop_expecting(worker)


# --------------------------------------------------------------------------------------------------
# Rounds on the other parameter servers. The first PS decides the rounds (``edl.ps.sync_rounds``)
# and tells each worker in its answer which pushes its round contains; the worker passes this on. So
# the same pushes form one update on every PS.


@dataclass(frozen=True, slots=True)
class FollowerPush:
    """A push that waits for the others of its round.

    Attributes:
        push_id: lease and step.
        round_pushes: all pushes of its round.
        is_retry: whether it was sent before. The others may then have been answered by a process that
            is gone and will not be sent again, so the push does not wait for them.
    """

    push_id: PushId
    round_pushes: frozenset[PushId]
    is_retry: bool


class FollowerRounds:
    """Pushes that wait for the others of their rounds; pure logic."""

    def __init__(self) -> None:
        self._waiting: dict[PushId, FollowerPush] = {}

    def join(self, follower: FollowerPush) -> None:
        """Add a push; a repeated push replaces the first attempt."""
        self._waiting[follower.push_id] = follower

    def remove_push(self, push_id: PushId) -> None:
        self._waiting.pop(push_id, None)

    def close_round(self, may_come: Callable[[PushId], bool]) -> tuple[PushId, ...]:
        """The pushes of a complete round, ordered by lease; the largest such round.

        Args:
            may_come: whether a push that is not here can still be admitted: it is not applied yet, and
                its lease is valid.
        """
        # A push names only itself if the first server has forgotten its round. Larger rounds come
        # first, so that such a push is applied together with those that name it.
        for follower in sorted(self._waiting.values(), key=lambda one: (-len(one.round_pushes), one.push_id)):
            present_pushes = {follower.push_id} | (follower.round_pushes & self._waiting.keys())
            if follower.is_retry or not any(may_come(push_id) for push_id in follower.round_pushes - present_pushes):
                for push_id in present_pushes:
                    del self._waiting[push_id]
                return tuple(sorted(present_pushes))
        return ()
