"""When is a master that died started again?

At once the first times; when it keeps dying young, after a delay that doubles; and when it never lives long, not at
all: the user then needs its log more than another try.
"""

from __future__ import annotations

from dataclasses import dataclass

YOUNG_SECONDS = 5.0
"""A master that dies before this age died young; an older one starts a new count."""
FREE_RESTARTS = 3
FIRST_DELAY_SECONDS = 0.2
MAX_DELAY_SECONDS = 5.0
MAX_YOUNG_DEATHS = 15


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Counts deaths at a young age in a row."""

    young_deaths: int = 0

    def after_death(self, age: float) -> RestartPolicy:
        """Return the policy after a death at ``age`` seconds."""
        return RestartPolicy(self.young_deaths + 1 if age < YOUNG_SECONDS else 1)

    @property
    def is_exhausted(self) -> bool:
        """Whether another try makes no sense."""
        return self.young_deaths >= MAX_YOUNG_DEATHS

    @property
    def delay_seconds(self) -> float:
        """Seconds to wait before the next start."""
        late = self.young_deaths - FREE_RESTARTS
        if late <= 0:
            return 0.0
        return float(min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2 ** (late - 1)))
