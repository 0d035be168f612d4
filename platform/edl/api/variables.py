"""A dense variable of a model, as workers, parameter servers, checkpoints and exports describe it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class VariableSpec:
    """A float32 variable whose values lie whole on one parameter server.

    There is no other type: a worker refuses to train one, and keeps what is not trained to itself. What a shape may be
    is checked where a model is declared (:class:`edl.numerics.model_declaration.ModelDeclaration`).

    Attributes:
        name: its path in the model; unique, and the same in every process.
        shape: of the variable.
        statistic: not moved by gradients (BatchNorm's mean). The worker pushes new - old value; the parameter server
            adds it, weighted by records.
    """

    name: str
    shape: tuple[int, ...]
    statistic: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def to_json(self) -> list[Any]:
        """As the declaration in a checkpoint's shard has it: ``[name, shape, statistic]``."""
        return [self.name, list(self.shape), self.statistic]

    @classmethod
    def from_json(cls, fields: Sequence[Any]) -> VariableSpec:
        """The spec of which ``to_json`` gave these fields; raises TypeError or ValueError if there is none."""
        name, shape, statistic = fields
        return cls(str(name), tuple(int(length) for length in shape), bool(statistic))
