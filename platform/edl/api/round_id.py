"""The identity of a round of Elastic AllReduce: the time between two changes of who takes part."""

from __future__ import annotations

from typing import NamedTuple


class RoundId(NamedTuple):
    """Identifies a round in every frame and report.

    A master that was replaced may have announced a number that its successor uses as well, so the
    incarnation belongs to it. A later round is greater, whichever master announced it.

    Attributes:
        incarnation: of the master that announced it.
        number: never used twice by one master.
    """

    incarnation: int
    number: int

    def __str__(self) -> str:
        return f"round {self.incarnation}.{self.number}"
