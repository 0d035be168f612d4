"""The errors that end a round of reductions early."""

from __future__ import annotations

from edl.api.errors import RetryableError


class RoundBrokenError(RetryableError):
    """The round ended before the reduction was complete. The buffer holds a partial sum.

    Args:
        rank: the rank that a neighbour reported as lost, or else the neighbour whose loss was
            noticed; None if this process ended the round itself. Of several losses, the first. It
            is a hint, not a verdict, and the master never gets it: it decides by who reports to it.
        reason: the reason as text.
    """

    def __init__(self, rank: int | None, reason: str) -> None:
        super().__init__(f"The round is broken: {reason}")
        self.rank = rank
        self.reason = reason


class InjectedFaultError(RetryableError):
    """A test simulated the loss of this process."""
