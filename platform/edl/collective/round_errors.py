"""How a round of reductions ends before its time."""

from __future__ import annotations

from edl.api.errors import RetryableError


class RoundBrokenError(RetryableError):
    """The round ended before the reduction was done; what the buffer holds means nothing.

    Args:
        rank: the neighbour at which the loss was noticed, or the rank that it reported as lost; None if this process
            ended the round itself. The first of several losses is the one that is named.
        reason: for people.
    """

    def __init__(self, rank: int | None, reason: str) -> None:
        super().__init__(f"The round is broken: {reason}")
        self.rank = rank
        self.reason = reason


class InjectedFaultError(RetryableError):
    """A test asked for this process to be lost here."""
