"""One update as a rule sees it: values and slot variables to change in place, and what they are changed by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
"""Values, gradients and slot variables: flat ``[n]`` for slabs, ``[n, dim]`` for rows."""


@dataclass(frozen=True, slots=True)
class ScratchArrays:
    """Two arrays for intermediate values, shaped like the values that are updated."""

    first: Floats
    second: Floats

    @classmethod
    def allocate_like(cls, values: Floats) -> ScratchArrays:
        """New arrays in the shape of ``values``."""
        return cls(np.empty_like(values), np.empty_like(values))


@dataclass(frozen=True, slots=True)
class ParameterUpdate:
    """One gradient and what it is applied with.

    Attributes:
        gradient: in the shape of the values, not changed.
        learning_rate: of this step.
        step: how many updates there are with this one, from 1 (bias corrections).
    """

    gradient: Floats
    learning_rate: float
    step: int


UpdateRule = Callable[[Floats, Sequence[Floats], ParameterUpdate, ScratchArrays], None]
"""Updates values and their slot variables (in the order of ``OptimizerSpec.slots``) in place."""
