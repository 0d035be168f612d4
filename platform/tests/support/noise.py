"""Whether a disturbed run ended where undisturbed ones end: "within noise" as docs and tests mean it.

A value is within noise if it lies in the 99.9 % prediction interval (Student's t) of undisturbed seeded runs of the
same job, *and* inside an absolute bound: runs that vary a lot must not excuse a job that has learned nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

_T: Mapping[int, float] = {4: 8.610, 5: 6.869, 6: 5.959, 7: 5.408, 8: 5.041, 9: 4.781}
"""Two-sided 99.9 % quantile of Student's t by degrees of freedom."""


@dataclass(frozen=True, slots=True)
class RunNoise:
    """Where a run of a job ends when nothing disturbs it.

    Attributes:
        values: what the baseline runs ended with, 5 to 10 of them.
        cap: how far from their mean is too far in any case.
    """

    values: Sequence[float]
    cap: float

    @property
    def reach(self) -> float:
        """The allowed distance from the mean."""
        count = len(self.values)
        return min(_T[count - 1] * stdev(self.values) * sqrt(1 + 1 / count), self.cap)

    def allows(self, value: float) -> bool:
        """Whether a run that ended with ``value`` may pass for an undisturbed one."""
        return abs(value - fmean(self.values)) <= self.reach

    def __str__(self) -> str:
        return f"{fmean(self.values):.4f} +- {self.reach:.4f} from {[round(value, 4) for value in self.values]}"
