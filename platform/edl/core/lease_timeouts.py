"""How long a lease lasts without a word from its holder.

Nobody can know the right number before the job runs, and a fixed one is either too long for small tasks or too short
for large ones. So the patience follows what was seen: a holder is silent for too long when it was silent for many times
what holders usually are, and it is stuck when it speaks and makes no step for many times what steps usually take.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SILENCE_FLOOR, SILENCE_CEILING = 4.0, 60.0
STARTING_SILENCE = 30.0
"""Seconds that a worker may be silent before its first step: while a library of TensorFlow's size is loaded, no other
thread of the process runs, and on a busy machine that takes many times what it takes on an idle one."""
STUCK_FLOOR, STUCK_FIRST = 60.0, 600.0
SILENCE_FACTOR, STUCK_FACTOR = 10.0, 20.0
_DECAY_PER_SECOND = 0.98
"""What is left of a maximum after one second, however many holders there are."""


@dataclass(slots=True)
class LeaseTimeouts:
    """What silences and steps took lately, in seconds: decaying maxima, because expiry must not hit the tail."""

    max_gap: float = 0.4
    step: float = 0.0
    decayed_at: float | None = None

    def heard(self, gap: float, now: float) -> None:
        """A holder spoke again after ``gap`` seconds."""
        self._decay(now)
        self.max_gap = max(gap, self.max_gap)

    def stepped(self, seconds: float, now: float) -> None:
        """A step, or the smallest unit of a task that is reported, took so long."""
        self._decay(now)
        self.step = max(seconds, self.step)

    def _decay(self, now: float) -> None:
        if self.decayed_at is not None and now > self.decayed_at:
            left = _DECAY_PER_SECOND ** (now - self.decayed_at)
            self.max_gap, self.step = self.max_gap * left, self.step * left
        self.decayed_at = now

    @property
    def silence_seconds(self) -> float:
        """Seconds without a word after which a lease is taken back."""
        return min(max(self.max_gap * SILENCE_FACTOR, SILENCE_FLOOR), SILENCE_CEILING)

    @property
    def stuck(self) -> float:
        """Seconds without a step after which a lease is taken back though its holder speaks."""
        return max(self.step * STUCK_FACTOR, STUCK_FLOOR) if self.step else STUCK_FIRST


@dataclass(slots=True)
class LeaseHolder:
    """When one worker was last heard of, and when each of its leases last made a step.

    Attributes:
        last_mentioned: when the worker last spoke of each lease; it speaks of all that it knows.
        through: steps of leases of which only the whole counts.
        starting: it began under this master, and has made no step yet.
        steps: that it has made, of whatever it held.
    """

    heard: float
    stepped: dict[int, float] = field(default_factory=dict)
    last_mentioned: dict[int, float] = field(default_factory=dict)
    through: dict[int, int] = field(default_factory=dict)
    steps: int = 0
    starting: bool = False

    def excuse_silence(self, seconds: float, now: float) -> None:
        """So much of its silence was not its own."""
        self.heard = min(now, self.heard + seconds)
        for moments in (self.stepped, self.last_mentioned):
            for lease, moment in moments.items():
                moments[lease] = min(now, moment + seconds)

    def silence_limit(self, patience: LeaseTimeouts) -> float:
        """Seconds without a word after which its leases are taken back."""
        return max(patience.silence_seconds, STARTING_SILENCE) if self.starting else patience.silence_seconds

    def hold(self, lease: int, now: float) -> None:
        """It has this lease from now on."""
        self.stepped[lease] = self.last_mentioned[lease] = now

    def drop(self, lease: int, now: float | None = None) -> None:
        """It has this lease no more; the one after it is its current one from ``now`` on."""
        self.stepped.pop(lease, None)
        self.last_mentioned.pop(lease, None)
        self.through.pop(lease, None)
        if now is not None and self.stepped:
            self.stepped[min(self.stepped)] = now

    def unknown(self, patience: LeaseTimeouts) -> list[int]:
        """Leases that the worker does not speak of though it speaks: it never heard of them."""
        latest = self.heard - self.silence_limit(patience)
        return [number for number, at in self.last_mentioned.items() if at <= latest]

    def find_expired_leases(self, now: float, patience: LeaseTimeouts) -> dict[int, str]:
        """Leases to be taken back, each with the reason. Only the oldest can be stuck: the rest wait for it."""
        silent = now - self.heard
        if silent >= self.silence_limit(patience):
            return dict.fromkeys(self.stepped, f"no word from the worker for {silent:.1f} s")
        if self.stepped:
            current = min(self.stepped)
            idle = now - self.stepped[current]
            if idle >= patience.stuck:
                return {current: f"no step for {idle:.0f} s"}
        return {}

    def deadline(self, patience: LeaseTimeouts) -> float:
        """The earliest time at which ``expired`` can say something."""
        first = self.stepped[min(self.stepped)] + patience.stuck
        return min(self.heard + self.silence_limit(patience), first)
