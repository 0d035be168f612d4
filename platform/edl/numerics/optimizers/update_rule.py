"""The types of an update rule: its arguments, the rule itself, and a block that it updates.

A rule changes values and slot variables in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
"""Values, gradients and slot variables: flat ``[n]`` for slabs, ``[n, dim]`` for rows."""


@dataclass(frozen=True, slots=True)
class ScratchArrays:
    """Two temporary arrays with the shape of the updated values."""

    first: Floats
    second: Floats

    @classmethod
    def allocate_like(cls, values: Floats) -> ScratchArrays:
        """Allocate arrays with the shape of ``values``."""
        return cls(np.empty_like(values), np.empty_like(values))


@dataclass(frozen=True, slots=True)
class ParameterUpdate:
    """One gradient with its learning rate and update count.

    Attributes:
        gradient: has the shape of the values; a rule does not change it.
        learning_rate: learning rate of this step.
        update_number: number of this update, from 1; bias corrections use it.
    """

    gradient: Floats
    learning_rate: float
    update_number: int


UpdateRule = Callable[[Floats, Sequence[Floats], ParameterUpdate, ScratchArrays], None]
"""Updates values and their slot variables (in the order of ``OptimizerSpec.slot_starts``) in place."""


@dataclass(frozen=True, slots=True)
class FlatBlock:
    """A part of the flat buffer that a rule updates in one call.

    Attributes:
        flat_slice: position of the block in the slab.
        weight_decay: weight decay of all variables in the block.
        row_width: width of a row, if the block is one embedding whose rows the rule treats as
            groups; otherwise 0.
    """

    flat_slice: slice
    weight_decay: float
    row_width: int = 0

    def apply_rule(
        self, rule: UpdateRule, values: Floats, slots: Iterable[Floats], update: ParameterUpdate, scratch: ScratchArrays
    ) -> None:
        """Apply a rule to this part of the flat buffers."""
        part = ParameterUpdate(self._select_part(update.gradient), update.learning_rate, update.update_number)
        part_scratch = ScratchArrays(self._select_part(scratch.first), self._select_part(scratch.second))
        rule(self._select_part(values), [self._select_part(slot) for slot in slots], part, part_scratch)

    def _select_part(self, flat: Floats) -> Floats:
        part = flat[self.flat_slice]
        return part.reshape(-1, self.row_width) if self.row_width else part
