"""Which of a job's workers get the higher priority: the rule ``high=0.5`` of ElasticDL's users.

A rule is the name of a class, or a class and the share of the workers that get it; the others get ``low``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LOW_PRIORITY_CLASS = "low"
"""What workers get that a divided rule does not raise."""
_ROUNDING_DIGITS = 9
"""Of a share times a number of workers: 0.7 * 10 is a little more than 7 in binary, and seven workers are meant."""


@dataclass(frozen=True, slots=True)
class PriorityRule:
    """A priority, divided or not.

    Attributes:
        name: the class of elevated workers; of all of them where ``share`` is 0.
        share: of the workers that are elevated, above 0 and below 1; 0: the rule is not divided.
    """

    name: str
    share: float = 0.0

    def priority_class(self, *, elevated: bool) -> str:
        """The PriorityClass of a worker."""
        return self.name if elevated or not self.share else LOW_PRIORITY_CLASS


def parse_priority(text: str) -> PriorityRule:
    """The rule of ``high``, ``high=0.5`` or any other name of a class.

    Raises:
        ValueError: no name, or a share that is not a number between 0 and 1.
    """
    name, divided, share = text.partition("=")
    if not name:
        raise ValueError(f"{text!r} names no priority class")
    if not divided:
        return PriorityRule(name)
    number = float(share)
    if not 0 < number < 1:
        raise ValueError(f"{text!r}: the share of workers must be above 0 and below 1")
    return PriorityRule(name, number)


def elevated_worker_count(share: float, workers: int) -> int:
    """How many of so many workers are elevated: the share, rounded up."""
    return math.ceil(round(share * workers, _ROUNDING_DIGITS))


def next_is_elevated(share: float, workers: int, elevated_now: int) -> bool:
    """Whether the next worker is to be elevated, of a job that wants ``workers`` and has ``elevated_now`` such ones."""
    return elevated_now < elevated_worker_count(share, workers)
