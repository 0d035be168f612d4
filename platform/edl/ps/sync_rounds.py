"""Which pushes become one update in synchronous mode: the decisions of the first parameter server.

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
from typing import NamedTuple


class PushId(NamedTuple):
    """One push of an update: a step of a lease."""

    lease: int
    step: int


@dataclass(frozen=True, slots=True)
class WaitingPush:
    """A push that waits for its round; ``following`` is the lease of the worker's next one, 0 if there is none."""

    worker: int
    share: PushId
    following: int


@dataclass(frozen=True, slots=True)
class PendingRound:
    """A round that waits for more pushes, as people are told of it.

    Attributes:
        wanted: pushes that it waits for, if so many can come.
        arrived: workers whose pushes sit.
        awaited: workers whose pushes may come; nobody else is waited for.
    """

    wanted: int
    arrived: tuple[int, ...]
    awaited: tuple[int, ...]


class SyncRounds:
    """The round that forms now; pure.

    Args:
        wanted: pushes that an update waits for, if so many can come.
    """

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._seats: dict[int, WaitingPush] = {}
        self._expected: dict[int, int] = {}
        self._owed: set[int] = set()
        self._links: dict[int, Hashable] = {}

    @property
    def seats(self) -> tuple[WaitingPush, ...]:
        """Who waits, in the order of leases."""
        return tuple(sorted(self._seats.values(), key=lambda seat: seat.share))

    @property
    def expected(self) -> dict[int, int]:
        """Lease of the next push by worker, for those that are waited for."""
        return dict(self._expected)

    @property
    def forming(self) -> PendingRound | None:
        """Who waits for whom; None while nobody does."""
        if not self._seats:
            return None
        return PendingRound(self._wanted, tuple(sorted(self._seats)), tuple(sorted(self._expected)))

    def linked(self, worker: int, link: Hashable) -> None:
        """A worker speaks through this connection from now on."""
        self._links[worker] = link

    def parted(self, worker: int, link: Hashable) -> None:
        """A connection closed: nothing comes from a worker that had no other."""
        if self._links.get(worker) == link:
            del self._links[worker]
            self.leave(worker)

    def sit(self, seat: WaitingPush) -> WaitingPush | None:
        """A push takes its seat; returns the older one of the same worker that it takes the place of."""
        self._expected.pop(seat.worker, None)
        former = self._seats.get(seat.worker)
        self._seats[seat.worker] = seat
        return former

    def rise(self, worker: int) -> None:
        """A push is taken back; the worker will send it again."""
        seat = self._seats.pop(worker, None)
        if seat is not None:
            self._expected[worker] = seat.share.lease

    def expect(self, worker: int, lease: int) -> None:
        """A worker's next push will be of this lease; 0: none will come."""
        if lease:
            self._expected[worker] = lease
        else:
            self.leave(worker)

    def refuse(self, worker: int, lease: int) -> None:
        """A push was stale: the round waits for the worker's next try."""
        self._expected[worker] = lease
        self._owed.add(worker)

    def leave(self, worker: int) -> None:
        """Nothing comes from a worker, but for a push that sits already."""
        self._expected.pop(worker, None)
        self._owed.discard(worker)

    def drop(self, refused: Callable[[int], bool]) -> None:
        """Wait for nobody whose lease is refused."""
        for worker, lease in list(self._expected.items()):
            if refused(lease):
                self.leave(worker)

    def vacate(self, share: PushId) -> None:
        """A push that sits is answered without a round."""
        for worker, seat in list(self._seats.items()):
            if seat.share == share:
                del self._seats[worker]

    def close(self) -> tuple[WaitingPush, ...]:
        """Everyone who sits, if the round is complete; the next one begins with those that said what follows."""
        can_come = len(self._seats) + len(self._expected)
        if not self._seats or len(self._seats) < min(self._wanted, can_come) or self._owed & self._expected.keys():
            return ()
        seats, self._seats = self.seats, {}
        for seat in seats:
            self._owed.discard(seat.worker)
            self.expect(seat.worker, seat.following)
        return seats
