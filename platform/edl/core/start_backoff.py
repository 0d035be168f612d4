"""How long a role is not asked for after the cluster refused to start a pod of it."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_DELAY, _MAX_DELAY = 1.0, 60.0


@dataclass(slots=True)
class StartBackoff:
    """Twice as long after each round of refusals, until a pod of the role starts.

    Attributes:
        rounds: of refusals since the last success; refusals within one count once.
        until: nothing is asked for before.
    """

    rounds: int = 0
    until: float = float("-inf")

    def refused(self, now: float) -> bool:
        """The cluster would not start a pod; whether this is the first refusal of its round."""
        if now < self.until:
            return False
        self.until = now + min(_FIRST_DELAY * 2**self.rounds, _MAX_DELAY)
        self.rounds += 1
        return True

    def limit(self, now: float) -> int | None:
        """How many may be asked for: one to try with while refusals last; None: as many as are missing."""
        if not self.rounds:
            return None
        return 1 if now >= self.until else 0
