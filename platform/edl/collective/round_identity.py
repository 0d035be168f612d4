"""Names a round and the ways in which it ends."""

from __future__ import annotations

from typing import NamedTuple

from edl.api.errors import RetryableError


class RoundId(NamedTuple):
    """One round; a later round is greater, whichever master announced it.

    Attributes:
        incarnation: of the master that announced it.
        number: of the round; never used twice by one master.
    """

    incarnation: int
    number: int

    def __str__(self) -> str:
        return f"round {self.incarnation}.{self.number}"


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
