"""PriorityClasses of master, parameter servers and workers, including ElasticDL's rule ``high=0.5`` that splits them.

A rule names a class, or a class and the share of the workers that get it; the others get ``low``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LOW_PRIORITY_CLASS = "low"
"""The class of workers that a split rule does not elevate."""
_ROUNDING_DIGITS = 9
"""Digits to which share times workers is rounded before it is rounded up.

0.07 * 100 is slightly above 7 in binary floating point; without this it would be rounded up to 8.
"""


@dataclass(frozen=True, slots=True)
class PriorityRule:
    """A priority rule, which may split the workers.

    Attributes:
        name: the class of elevated workers, or of all workers if ``share`` is 0.
        share: the share of elevated workers, above 0 and below 1; 0: the rule does not split the workers.
    """

    name: str
    share: float = 0.0

    def priority_class(self, *, elevated: bool) -> str:
        """The PriorityClass of a worker."""
        return self.name if elevated or not self.share else LOW_PRIORITY_CLASS


def parse_priority(text: str) -> PriorityRule:
    """Parse ``high``, ``high=0.5`` or another class name.

    Raises:
        ValueError: the name is empty, or the share is not a number between 0 and 1.
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
    """The number of elevated workers: the share, rounded up."""
    return math.ceil(round(share * workers, _ROUNDING_DIGITS))


def next_is_elevated(share: float, workers: int, elevated_now: int) -> bool:
    """Whether the next worker should be elevated.

    The job wants ``workers`` workers and has ``elevated_now`` elevated ones.
    """
    return elevated_now < elevated_worker_count(share, workers)
