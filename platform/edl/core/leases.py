"""How long a lease lasts without a word from its holder.

Nobody can know the right number before the job runs, and a fixed one is either too long for small tasks or too short
for large ones. So the patience follows what was seen: a holder is silent for too long when it was silent for many times
what holders usually are, and it is stuck when it speaks and makes no step for many times what steps usually take.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SILENCE_FLOOR, SILENCE_CEILING = 4.0, 60.0
STUCK_FLOOR, STUCK_FIRST = 60.0, 600.0
SILENCE_FACTOR, STUCK_FACTOR = 10.0, 20.0
_FADE = 0.98


@dataclass(slots=True)
class Patience:
    """What silences and steps took lately, in seconds: decaying maxima, because expiry must not hit the tail."""

    gap: float = 0.4
    step: float = 0.0

    def heard(self, gap: float) -> None:
        """A holder spoke again after ``gap`` seconds."""
        self.gap = max(gap, self.gap * _FADE)

    def stepped(self, seconds: float) -> None:
        """A step, or the smallest unit of a task that is reported, took so long."""
        self.step = max(seconds, self.step * _FADE)

    @property
    def silence(self) -> float:
        """Seconds without a word after which a lease is taken back."""
        return min(max(self.gap * SILENCE_FACTOR, SILENCE_FLOOR), SILENCE_CEILING)

    @property
    def stuck(self) -> float:
        """Seconds without a step after which a lease is taken back though its holder speaks."""
        return max(self.step * STUCK_FACTOR, STUCK_FLOOR) if self.step else STUCK_FIRST


@dataclass(slots=True)
class Holder:
    """When one worker was last heard of, and when each of its leases last made a step."""

    heard: float
    stepped: dict[int, float] = field(default_factory=dict)

    def expired(self, now: float, patience: Patience) -> dict[int, str]:
        """Leases to be taken back, each with the reason. Only the oldest can be stuck: the rest wait for it."""
        silent = now - self.heard
        if silent >= patience.silence:
            return dict.fromkeys(self.stepped, f"no word from the worker for {silent:.1f} s")
        if self.stepped:
            current = min(self.stepped)
            idle = now - self.stepped[current]
            if idle >= patience.stuck:
                return {current: f"no step for {idle:.0f} s"}
        return {}

    def deadline(self, patience: Patience) -> float:
        """The earliest time at which ``expired`` can say something."""
        first = self.stepped[min(self.stepped)] + patience.stuck
        return min(self.heard + patience.silence, first)
