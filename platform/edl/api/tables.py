"""An embedding table of a model, as workers, parameter servers, checkpoints and exports describe it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A float32 table of which each parameter server owns some rows.

    Slot variables follow from the job's optimizer and limits from the job's ``ps`` section: they are the same for all
    tables of a job, and not a table's own. What a table may be is checked by
    ``edl.numerics.model_declaration.check_table_shape``.

    Attributes:
        name: the path of the Embedding's variable.
        rows: number of ids; 0 if every int64 is one.
        dim: elements of a row.
        initializer: of rows that were never trained, as in ``edl.numerics.initializers``.
        seed: of these initial values.
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
        """As the declaration in a checkpoint's shard has it: ``[name, rows, dim, initializer, seed]``."""
        return [self.name, self.rows, self.dim, dict(self.initializer), self.seed]

    @classmethod
    def from_json(cls, fields: Sequence[Any]) -> TableSpec:
        """The spec of which ``to_json`` gave these fields; raises TypeError or ValueError if there is none."""
        name, rows, dim, initializer, seed = fields
        return cls(str(name), int(rows), int(dim), dict(initializer), int(seed))
