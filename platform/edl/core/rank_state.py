"""A worker's side of the rounds of AllReduce: which state it has, and what it reports about it.

See ``edl.core.world_rounds`` for the master's side and docs/design/0010-allreduce.md for both. Nothing
here computes: reductions, copies of variables and messages are effects of the caller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import index
from typing import Any, NamedTuple

from edl.api.round_id import RoundId
from edl.core.world_rounds import MAX_NUMBER, NO_ROUND, MemberReport, RoundAnnounced, Share, StepShares


@dataclass(slots=True)
class PendingShares:
    """The shares of the steps in a worker's state that no master has acknowledged.

    Of each lease only its done records count, because its shares follow one another. So the size depends on the
    number of leases and not on the number of steps: without a master no lease is granted.

    Attributes:
        after: the newest step that a master has acknowledged.
        step: the newest step.
        done: by lease, the done records of the steps before the newest one, the last step with a share of it, and the
            corrupt ones among these records.
        newest: the shares of the newest step, which may not be stable yet.
        skipped_steps: the steps after ``after`` that changed nothing (``train.on_nan``).
    """

    after: int = 0
    step: int = 0
    done: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    newest: StepShares = ()
    skipped_steps: tuple[int, ...] = ()

    def add_step(self, shares: StepShares, *, is_skipped: bool = False) -> None:
        """Add the shares of the next step."""
        for share in self.newest:
            self.done[share.lease] = (share.end, self.step, share.skipped)
        self.step += 1
        # A worker that follows the others may get a step that is in the ledger already.
        self.newest = shares if self.step > self.after else ()
        if is_skipped and self.step > self.after:
            self.skipped_steps += (self.step,)

    def drop_steps(self, until: int) -> None:
        """Drop the steps up to ``until``: they are in the ledger."""
        if until <= self.after:
            return
        self.after = until
        self.skipped_steps = tuple(step for step in self.skipped_steps if step > until)
        self.done = {lease: each for lease, each in self.done.items() if each[1] > until}
        if self.step <= until:
            self.newest = ()

    def done_records(self, until: int) -> dict[int, int]:
        """By lease, the done records of the steps up to ``until``: the newest step or the one before."""
        done = {lease: records for lease, (records, _, _) in self.done.items()}
        if until >= self.step:
            done.update((share.lease, share.end) for share in self.newest)
        return done

    def skipped_records(self, until: int) -> dict[int, int]:
        """By lease, the corrupt ones among ``done_records``, without leases that have none."""
        skipped = {lease: count for lease, (_, _, count) in self.done.items()}
        if until >= self.step:
            skipped.update((share.lease, share.skipped) for share in self.newest)
        return {lease: count for lease, count in skipped.items() if count}

    def to_json(self) -> dict[str, Any]:
        """These shares for a copy of the state."""
        done = [[lease, *each] for lease, each in self.done.items()]
        newest = [list(share) for share in self.newest]
        steps = {"skipped_steps": list(self.skipped_steps)} if self.skipped_steps else {}
        return {"after": self.after, "step": self.step, "done": done, "newest": newest, **steps}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PendingShares:
        """Read what ``to_json`` of another worker returned.

        Raises:
            KeyError, TypeError, ValueError: it is something else, or a number is impossible.
        """
        after, step = index(data["after"]), index(data["step"])
        if not 0 <= after <= MAX_NUMBER or not 0 <= step <= MAX_NUMBER:
            raise ValueError(f"the steps {after} and {step} are impossible")
        done = {}
        for lease, records, at_step, skipped in data["done"]:
            # The first records of a lease are a share, too.
            if not Share(lease, 0, records, skipped).is_possible or not 0 <= index(at_step) <= MAX_NUMBER:
                raise ValueError(f"it has impossible records of a lease, {[lease, records, at_step, skipped]}")
            done[index(lease)] = (index(records), at_step, index(skipped))
        newest = tuple(Share(*map(index, share)) for share in data["newest"])
        for each in newest:
            if not each.is_possible:
                raise ValueError(f"it has an impossible share, {each}")
        # Absent where no step was skipped.
        skipped_steps = tuple(index(each) for each in data.get("skipped_steps", ()))
        if not all(after < each <= step for each in skipped_steps):
            raise ValueError(f"it has impossible skipped steps, {skipped_steps}")
        return cls(after, step, done, newest, skipped_steps)


class CallbackEpoch(NamedTuple):
    """How far the callbacks of a rank are in an epoch. It goes with a state, to ranks that get it.

    Attributes:
        begun: how many epochs they have begun; 0: training has not begun.
        loss_sum: the sum of the losses of the present epoch's steps.
        steps: their number.
        began_in: the round in which training began, or began again from a checkpoint: its incarnation and number.
        learning_rate: the rate that they have set for the next step; None: they have set none.
        first_epoch: in which training began in that round.
    """

    begun: int = 0
    loss_sum: float = 0.0
    steps: int = 0
    began_in: tuple[int, int] = (0, 0)
    learning_rate: float | None = None
    first_epoch: int = 0

    @property
    def is_possible(self) -> bool:
        """Whether there can be such an epoch: what another process says may be anything."""
        counts = (self.begun, self.steps, *self.began_in, self.first_epoch)
        is_rate = self.learning_rate is None or math.isfinite(self.learning_rate)
        return is_rate and all(0 <= count <= MAX_NUMBER for count in counts)

    @property
    def place(self) -> tuple[int, float, int]:
        """What grows while training goes on."""
        return self.begun, self.loss_sum, self.steps


NOT_BEGUN = CallbackEpoch()


class EndedStep(NamedTuple):
    """The newest step that is over for the callbacks of a rank.

    Attributes:
        step: the number of steps before it; -1: there is none.
        epoch: of the step.
        loss: of the step.
        is_applied: otherwise a gradient was not finite, and they were not called after it.
    """

    step: int = -1
    epoch: int = 0
    loss: float = 0.0
    is_applied: bool = True

    @property
    def is_possible(self) -> bool:
        """Whether there can be such a step: what another process says may be anything."""
        return -1 <= self.step <= MAX_NUMBER and 0 <= self.epoch <= MAX_NUMBER


NO_ENDED_STEP = EndedStep()


class RankPhase(Enum):
    """What a worker does about the rounds."""

    OUTSIDE = "outside"
    """The worker is in no round, and asks to join the next one."""
    FOLLOWING = "following"
    """The worker is in no round and does not ask to join yet: it gets every step of the running round from a member."""
    CAUGHT_UP = "caught up"
    """It follows the running round, has all steps but the newest one, and asks to join at the next boundary."""
    FETCHING = "fetching"
    """The worker is a member and lacks the state of the round's first step."""
    CONFIRMED = "confirmed"
    """The worker has that state and waits until all members have it."""
    RUNNING = "running"
    ENDED = "ended"
    """The round is over. The worker has kept its state and waits for the next round."""


@dataclass(slots=True)
class RankState:
    """The rounds as one worker knows them.

    Attributes:
        worker: uid of this worker.
        round: the newest round that concerns this worker and that it knows.
        members: the members of that round, by rank.
        state_round: the newest round whose first state it had, or the one that its state was copied from.
        step: the newest step that is applied in its state; None: it has none.
        shares: the shares of the steps up to ``step`` that no master has acknowledged.
    """

    worker: str
    round: RoundId = NO_ROUND
    members: tuple[str, ...] = ()
    phase: RankPhase = RankPhase.OUTSIDE
    state_round: RoundId = NO_ROUND
    step: int | None = None
    shares: PendingShares = field(default_factory=PendingShares)

    @property
    def rank(self) -> int:
        """The rank of this worker in the round.

        Raises:
            ValueError: this worker is no member.
        """
        return self.members.index(self.worker)

    def report(self, digest: int = 0) -> MemberReport:
        """The report of this worker's state to the master."""
        shares = self.shares
        return MemberReport(
            self.state_round,
            self.step,
            digest,
            shares.after,
            shares.done_records(shares.step),
            shares.skipped_records(shares.step),
            shares.skipped_steps,
        )

    def handle_announced(self, entry: RoundAnnounced) -> None:
        """Handle a new round: a worker that lacks its first state has to fetch it."""
        # The same round or an older one: the message came twice or late, or the round has ended since.
        if entry.round <= self.round or self.worker not in entry.members:
            return
        self.round, self.members = entry.round, entry.members
        if self.worker in entry.holders:
            self._confirm()
        else:
            # Its own state stays until the whole copy is there: if all holders die before, it may be the
            # furthest one that is left.
            self.phase = RankPhase.FETCHING

    def adopt_state(self, round_id: RoundId, step: int, shares: PendingShares | None = None) -> bool:
        """Adopt a state that was fetched or built; returns whether the present round waits for it.

        Args:
            shares: those of its source; None: all its steps are acknowledged.
        """
        if self.phase is not RankPhase.FETCHING or round_id != self.round:
            return False
        self.step = step
        self.shares = PendingShares(step, step) if shares is None else replace(shares, done=dict(shares.done))
        self._confirm()
        return True

    def _confirm(self) -> None:
        self.phase, self.state_round = RankPhase.CONFIRMED, self.round

    def handle_started(self, round_id: RoundId) -> None:
        """Start the round: all members have confirmed."""
        if round_id == self.round and self.phase is RankPhase.CONFIRMED:
            self.phase = RankPhase.RUNNING

    def apply_step(self, shares: StepShares, *, is_skipped: bool = False) -> int:
        """Record that a reduction is finished and applied; returns the newest stable step.

        Args:
            shares: the shares of all ranks, as the reduction transferred them.
            is_skipped: whether the step changed nothing, because a gradient was not finite.
        """
        if self.phase not in (RankPhase.RUNNING, *_FOLLOWING_PHASES) or self.step is None:
            raise ValueError(f"{self.worker} applies a step while it is {self.phase.value}")
        self.step += 1
        self.shares.add_step(shares, is_skipped=is_skipped)
        return self.step - 1

    def handle_acknowledged(self, step: int) -> None:
        """Drop the shares of the steps up to ``step``: these steps are in the ledger, so nobody needs them."""
        self.shares.drop_steps(step)

    def handle_closed(self, round_id: RoundId) -> bool:
        """Handle the end of a round; returns whether this worker must report about it.

        Args:
            round_id: the round. One that this worker does not know counts as its own: it has done nothing since
                the previous round, and the master knows whether it was a member.
        """
        if round_id < self.round:
            return False
        self.round, self.phase = round_id, RankPhase.ENDED
        return True

    def leave_world(self, round_id: RoundId, *, may_follow: bool = False) -> None:
        """Leave the world: the master does not count this worker as a member of this round, or of any later one.

        The worker joins like a new one.

        Args:
            may_follow: the round is not over, so this worker follows it before it asks to join. It must not ask
                before: such a message may be late, and it names a state that the worker has given up since.
        """
        if round_id > self.round or (round_id == self.round and not self.is_outside):
            self.round, self.phase = round_id, RankPhase.FOLLOWING if may_follow else RankPhase.OUTSIDE

    # ------------------------------------------------------------------------------------ following a round

    def begin_following(self) -> None:
        """Give the own state up for that of a member of the running round, which is being copied."""
        if self.phase is not RankPhase.FOLLOWING:
            raise ValueError(f"{self.worker} follows a round while it is {self.phase.value}")
        self.step, self.shares = None, PendingShares()

    def adopt_followed_state(self, step: int, shares: PendingShares) -> None:
        """The copy is complete: the state of a step of the round that this worker follows."""
        if self.phase is RankPhase.FOLLOWING:
            self.step, self.shares, self.state_round = step, replace(shares, done=dict(shares.done)), self.round

    def catch_up(self) -> None:
        """This worker has all steps but the newest one: it asks to join."""
        if self.phase is RankPhase.FOLLOWING and self.step is not None:
            self.phase = RankPhase.CAUGHT_UP

    def end_following(self) -> None:
        """No further step of this round comes: this worker asks to join with the state that it has."""
        if self.phase in _FOLLOWING_PHASES:
            self.phase = RankPhase.OUTSIDE

    @property
    def is_outside(self) -> bool:
        """Whether the worker is in no round."""
        return self.phase is RankPhase.OUTSIDE or self.phase in _FOLLOWING_PHASES


_FOLLOWING_PHASES = (RankPhase.FOLLOWING, RankPhase.CAUGHT_UP)
