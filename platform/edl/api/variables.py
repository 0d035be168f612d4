"""A dense variable of a model, as workers, parameter servers, checkpoints and exports describe it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class VariableSpec:
    """A float32 variable; one parameter server holds all of its elements.

    Variables of other types are never declared: a worker refuses to train them, and keeps those that are not trained to
    itself. :class:`edl.numerics.model_declaration.ModelDeclaration` checks the shape.

    Attributes:
        name: path in the model; unique, and the same in every process.
        shape: shape of the variable.
        statistic: gradients do not change it, such as BatchNorm's mean. The worker pushes new value minus old value;
            the parameter server adds that, weighted by records.
    """

    name: str
    shape: tuple[int, ...]
    statistic: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def to_json(self) -> list[Any]:
        """The format of a declaration in a checkpoint's shard: ``[name, shape, statistic]``."""
        return [self.name, list(self.shape), self.statistic]

    @classmethod
    def from_json(cls, fields: Sequence[Any]) -> VariableSpec:
        """Parse the result of ``to_json``; raises TypeError or ValueError for anything else."""
        name, shape, statistic = fields
        return cls(str(name), tuple(int(length) for length in shape), bool(statistic))
