"""The dense parameters: every variable that is no table, one behind the other in a float32 slab."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edl.numerics.array_types import Floats
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers import ParameterUpdate, ScratchArrays, UpdateRule, make_blocks, make_rule
from edl.numerics.parameter_store import PushGradients

RuleFactory = Callable[[OptimizerSpec, float], UpdateRule]


@dataclass(frozen=True, slots=True)
class FlatCopy:
    """Values and slot variables, by name, of a slab at one moment."""

    values: Floats
    slots: dict[str, Floats]


class FlatParameters:
    """Values and slot variables of the trained variables, then the values of the statistics.

    Args:
        declaration: what is in it, and what moves it.
        values: initial ones, ``[declaration.size]``, copied.
        rule: of an optimizer and a weight decay.
    """

    def __init__(self, declaration: ModelDeclaration, values: Floats, rule: RuleFactory = make_rule) -> None:
        optimizer, trained = declaration.optimizer, declaration.trained
        self.values: Floats = np.array(values, np.float32)
        self.slots: dict[str, Floats] = {
            name: np.full(trained, start, np.float32) for name, start in optimizer.slots.items()
        }
        self._trained_values, self._statistic_values = self.values[:trained], self.values[trained:]
        self._blocks = tuple(
            (block, rule(optimizer, block.weight_decay)) for block in make_blocks(optimizer, declaration.places())
        )
        self._scratch = ScratchArrays.allocate_like(self._trained_values)
        self._room: FlatCopy | None = None

    def apply(self, gradients: PushGradients, step: int) -> None:
        """Move the trained variables by their gradients, the statistics by ``weight`` times their deltas."""
        trained = len(self._trained_values)
        update = ParameterUpdate(gradients.slab[:trained], gradients.learning_rate, step)
        for block, block_rule in self._blocks:
            block.apply(block_rule, self._trained_values, self.slots.values(), update, self._scratch)
        if len(self._statistic_values):
            self._statistic_values += gradients.slab[trained:] * np.float32(gradients.weight)

    def make_room(self) -> None:
        """Touch the memory that the next copy goes to: new pages cost far more than copying.

        May run beside anything else that is done with the slab.
        """
        room = self._allocate_copy()
        for array in (room.values, *room.slots.values()):
            array.fill(0)
        self._room = room

    def copy(self) -> FlatCopy:
        """As it is now; quick if room was made before."""
        room, self._room = self._room or self._allocate_copy(), None
        np.copyto(room.values, self.values)
        for name, slot in self.slots.items():
            np.copyto(room.slots[name], slot)
        return room

    def _allocate_copy(self) -> FlatCopy:
        return FlatCopy(np.empty_like(self.values), {name: np.empty_like(slot) for name, slot in self.slots.items()})
