"""An embedding table of a model, as workers, parameter servers, checkpoints and exports describe it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A float32 table of which each parameter server owns some rows.

    Slot variables and limits are not part of the spec, because all tables of a job have the same: the job's optimizer
    and its ``ps`` section determine them. ``edl.numerics.model_declaration.check_table_shape`` checks the shape.

    Attributes:
        name: path of the Embedding layer's variable.
        rows: number of ids; 0: every int64 is a valid id.
        dim: elements per row.
        initializer: config of the initializer for new rows, see ``edl.numerics.initializers``.
        seed: seed of these initial values. A row's initial values depend on seed and id only.
    """

    name: str
    rows: int
    dim: int
    initializer: Mapping[str, Any]
    seed: int

    def __str__(self) -> str:
        return f"{self.name} {f'{self.rows:,}' if self.rows else 'any id'} x {self.dim}"

    @property
    def described(self) -> str:
        """Name and shape, for messages."""
        return f"table '{self.name}' ({self.rows or 'any id'} x {self.dim})"

    def to_json(self) -> list[Any]:
        """The format of a declaration in a checkpoint's shard: ``[name, rows, dim, initializer, seed]``."""
        return [self.name, self.rows, self.dim, dict(self.initializer), self.seed]

    @classmethod
    def from_json(cls, fields: Sequence[Any]) -> TableSpec:
        """Parse the result of ``to_json``; raises TypeError or ValueError for anything else."""
        name, rows, dim, initializer, seed = fields
        return cls(str(name), int(rows), int(dim), dict(initializer), int(seed))
