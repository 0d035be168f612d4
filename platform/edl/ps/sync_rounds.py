"""Rounds of synchronous training, as decided by the first parameter server.

A push *joins* and waits. The round closes when ``wanted`` pushes have joined, or as many as can
come; then all of them are one update. Only *expected* workers are waited for. A worker is expected
from its first push on, with the lease of its next push, until

- it says that no minibatch follows (it waits for work, evaluates, or has finished),
- its connection closes (its process ended), or
- that lease is refused here (the master revoked it).

A worker whose push was refused as stale is *guaranteed* the next round: no round closes before its
next push has joined. So a minibatch is refused at most once. docs/design/0008-modes.md shows why no
round waits forever.

A push takes a *seat* and waits. The round closes when ``wanted`` seats are taken, or as many as can be: then all that
sit are one update. Nobody is waited for who may not come. A worker is *expected* from its first push on, with the lease
that its next push will be of, and not any more when

- it said that no minibatch follows (it waits for work, evaluates, has finished),
- its connection is closed (its process ended), or
- that lease is refused here (the master gave the worker up).

A worker whose push was refused as stale is *owed* a round: none closes before its next push is in. So a minibatch is
refused once at most. docs/design/0008-modes.md says why nothing here can wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from edl.ps.applied_steps import PushId


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
        required_pushes: pushes that it waits for, if so many can come.
        arrived_workers: workers whose pushes sit.
        awaited_workers: workers whose pushes may come; nobody else is waited for.
    """

    required_pushes: int
    arrived_workers: tuple[int, ...]
    awaited_workers: tuple[int, ...]


class SyncRounds:
    """The current round; pure logic.

    Args:
        required_pushes: pushes that an update waits for, if so many can come.
    """

    def __init__(self, required_pushes: int) -> None:
        self._required_pushes = required_pushes
        self._waiting_pushes: dict[int, WaitingPush] = {}
        self._expected_leases: dict[int, int] = {}
        self._guaranteed_workers: set[int] = set()
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
        """A connection closed: a worker without another connection sends nothing more."""
        if self._connections.get(worker) == connection:
            del self._connections[worker]
            self.stop_expecting(worker)

    def join(self, push: WaitingPush) -> WaitingPush | None:
        """Add a push; returns the worker's older push that it replaces, if there is one."""
        self._expected_leases.pop(push.worker, None)
        previous_push = self._waiting_pushes.get(push.worker)
        self._waiting_pushes[push.worker] = push
        return previous_push

    def withdraw_push(self, worker: int) -> None:
        """Take a push out; the worker will send it again."""
        push = self._waiting_pushes.pop(worker, None)
        # The worker stays expected, so the round keeps waiting for it.
        if push is not None:  # the round goes on waiting for it
            self._expected_leases[worker] = push.push_id.lease

    def expect_push(self, worker: int, lease: int) -> None:
        """Expect a worker's next push with this lease; 0: no push will come."""
        if lease:
            self._expected_leases[worker] = lease
        else:
            self.stop_expecting(worker)

    def guarantee_next_round(self, worker: int, lease: int) -> None:
        """A push was stale: the next round waits for the worker's retry."""
        self._expected_leases[worker] = lease
        self._guaranteed_workers.add(worker)

    def stop_expecting(self, worker: int) -> None:
        """Expect nothing more from a worker, except a push that has already joined."""
        self._expected_leases.pop(worker, None)
        self._guaranteed_workers.discard(worker)

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
        for seat in pushes:
            self._guaranteed_workers.discard(seat.worker)
            self.expect_push(seat.worker, seat.next_lease)
        return pushes


# --------------------------------------------------------------------------------------------------
# Rounds on the other parameter servers. The first PS decides the rounds (``edl.ps.sync_rounds``)
# and tells each worker in its answer which pushes its round contains; the worker passes this on. So
# the same pushes form one update on every PS.
#
# The first parameter server puts pushes together to rounds (``edl.ps.sync_rounds``) and tells each worker with its
# answer
# which pushes its round has; the worker passes that on. So the same pushes make one update on all of them.


@dataclass(frozen=True, slots=True)
class FollowerPush:
    """A push that waits for the others of its round.

    Attributes:
        push_id: which one it is.
        round_pushes: all pushes of its round.
        is_retry: it was sent before, so that the others may have been answered by a process that is gone: they are not
            waited for.
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
        """Remove a push."""
        self._waiting.pop(push_id, None)

    def close_round(self, may_come: Callable[[PushId], bool]) -> tuple[PushId, ...]:
        """The pushes of a complete round, ordered by lease; the largest such round.

        Args:
            may_come: whether a push that is not here can still enter: it has not, and its lease is good.
        """
        # A push names only itself if the first server has forgotten its round. Larger rounds come
        # first, so that such a push is applied together with those that name it.
        for follower in sorted(self._waiting.values(), key=lambda one: (-len(one.round_pushes), one.push_id)):
            present_pushes = {follower.push_id} | (follower.round_pushes & self._waiting.keys())
            if follower.is_retry or not any(may_come(share) for share in follower.round_pushes - present_pushes):
                for share in present_pushes:
                    del self._waiting[share]
                return tuple(sorted(present_pushes))
        return ()
