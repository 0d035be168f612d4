"""How far the main thread of each member of a round is, and since when the others wait for one that is behind.

A member's messages come from threads of their own, so they do not show that its main thread hangs, for example in a
read from a dead network file system. Each member says how many exchanges of the round its main thread has entered. All
members make the same ones, and none ends before every member has entered it. So they differ by one at most, and those
with the lower number are the ones that the others wait for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from edl.api.round_id import RoundId
from edl.core.lease_timeouts import LeaseTimeouts
from edl.core.world_rounds import NO_ROUND, RoundPhase


@dataclass(slots=True)
class StepArrivals:
    """What the members of one phase of a round have said. Nothing of it is in the journal.

    Attributes:
        round: the round, and ``phase`` where it is.
        entered: by member, how many exchanges of the round its main thread has entered.
        furthest: the largest of these numbers; -1: no member has said one.
        step: the newest step that a member has applied.
        since: when ``furthest`` or ``step`` changed last, or when the phase began.
        newest_arrival: when any member's number changed last: the others wait from ``since`` until then.
        tasks_at: by member, when it reported progress of another task than training last.
        committed_at: when steps were entered in the ledger last; None: not since training went on.
        step_timeouts: how long the steps of this job take. Apart from the limits of leases: a lease of AllReduce
            that changes no parameters may take many times longer than a step.
        replacements: how often workers were replaced since steps were entered in the ledger last.
        description: which members the others wait for, for users; empty: for none, or not for long.
        is_reported: whether users were told of it.
    """

    round: RoundId = NO_ROUND
    phase: RoundPhase = RoundPhase.CLOSING
    entered: dict[str, int] = field(default_factory=dict)
    furthest: int = -1
    step: int = 0
    since: float = 0.0
    newest_arrival: float = 0.0
    tasks_at: dict[str, float] = field(default_factory=dict)
    committed_at: float | None = None
    step_timeouts: LeaseTimeouts = field(default_factory=LeaseTimeouts)
    replacements: int = 0
    description: str = ""
    is_reported: bool = False

    def follow_round(self, round_id: RoundId, phase: RoundPhase, now: float) -> None:
        """Begin anew if the round, or its phase, is another one."""
        if (round_id, phase) != (self.round, self.phase):
            self.round, self.phase = round_id, phase
            self.entered.clear()
            self.tasks_at.clear()
            self.furthest, self.step = -1, 0
            self.count_anew(now)

    def count_anew(self, now: float) -> None:
        """All that was before ``now`` is no wait for a member: for example, training paused."""
        self.since, self.newest_arrival, self.committed_at = now, now, None
        self.description, self.is_reported = "", False

    def excuse(self, seconds: float, now: float) -> None:
        """Exclude ``seconds`` in which the master heard nobody."""
        self.since = min(now, self.since + seconds)
        self.newest_arrival = min(now, self.newest_arrival + seconds)
        for worker, at in self.tasks_at.items():
            self.tasks_at[worker] = min(now, at + seconds)
        if self.committed_at is not None:
            self.committed_at = min(now, self.committed_at + seconds)

    def record_entered(self, worker: str, entered: int, step: int, now: float) -> None:
        """A member of the round says how far its main thread is; messages may arrive in any order."""
        if entered > self.entered.get(worker, -1):
            self.entered[worker], self.newest_arrival = entered, now
        if entered > self.furthest or step > self.step:
            self.furthest, self.step = max(entered, self.furthest), max(step, self.step)
            self.since, self.description, self.is_reported = now, "", False

    def record_task(self, worker: str, now: float) -> None:
        """A member's main thread goes on with another task than training."""
        self.tasks_at[worker] = now

    def idle_seconds(self, worker: str, now: float) -> float:
        """For how long the others have waited for a member that is late without a sign of its main thread."""
        return now - max(self.since, self.tasks_at.get(worker, self.since))

    def record_committed(self, steps: int, now: float) -> None:
        """So many steps were entered in the ledger. The first ones of a round count as none: workers may trace."""
        if self.committed_at is not None:
            self.step_timeouts.record_step((now - self.committed_at) / steps, now)
        self.committed_at, self.replacements = now, 0

    def find_late(self, members: Iterable[str]) -> list[str] | None:
        """The members that have not entered the exchange in which others wait; None: some have said nothing yet."""
        late = []
        for worker in members:
            entered = self.entered.get(worker)
            if entered is None:
                return None
            if entered < self.furthest:
                late.append(worker)
        return late
