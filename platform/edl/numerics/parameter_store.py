"""The port to the parameters themselves: what a server asks of a store, and the values that pass between them.

A store is used by one thread at a time; the server's lock sees to that. It trusts its arguments: sizes and ids were
checked against the declaration when they arrived (``edl.ps.request_parsing``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from edl.numerics.array_types import Floats, Ids
from edl.numerics.embedding_table import EmbeddingTable
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.parameter_snapshot import ParameterSnapshot, RowArrays


@dataclass(frozen=True, slots=True)
class RowGradients:
    """Gradients of some rows of a table: ids ``[n]``, which may repeat, and values ``[n, dim]``."""

    ids: Ids
    values: Floats


@dataclass(frozen=True, slots=True)
class PushGradients:
    """What one push brings.

    Attributes:
        slab: gradients of the trained variables, then deltas of the statistics, in slab order.
        rows: by table.
        learning_rate: of this step.
        weight: factor of the deltas: records of this minibatch / records of a full one.
    """

    slab: Floats
    rows: Mapping[str, RowGradients]
    learning_rate: float
    weight: float


class ParameterStore(Protocol):
    """Dense slab, rows and slot variables of one parameter server."""

    @property
    def declaration(self) -> ModelDeclaration:
        """What it holds."""

    @property
    def tables(self) -> Mapping[str, EmbeddingTable]:
        """By name; to look at, not to change."""

    def read_flat(self, out: Floats) -> None:
        """Copy the slab to ``out``, ``[declaration.size]``."""

    def read_rows(self, table: str, ids: Ids) -> Floats:
        """Rows ``[n, dim]``, a new array. A row that was never updated has its initial value and is not stored.

        Raises:
            OutOfMemoryError: for so many.
        """

    def apply(self, gradients: PushGradients, step: int) -> None:
        """Apply one push: duplicate ids are summed first, statistics get ``weight`` times their delta.

        Args:
            gradients: as they arrived.
            step: how many pushes there are with this one, from 1.

        Raises:
            TableFullError: a table has no room for its rows; nothing was changed.
            OutOfMemoryError: the same of memory.
            PartialUpdateError: memory ran out later; the store may not be used any more.
        """

    def position_limit(self, table: str) -> int:
        """Rows of a table are at positions below this; some of them may be free."""

    def scan(self, table: str, start: int, limit: int) -> RowArrays:
        """The stored rows at positions ``start`` to ``start + limit``; see ``embedding_table.Table.scan``."""

    def make_room(self) -> None:
        """Prepare memory for the next snapshot, which then takes less time; any thread may, at any time.

        Raises:
            OutOfMemoryError: there is none.
        """

    def snapshot(self) -> ParameterSnapshot:
        """Everything as it is now: the slab and its slots are copied, tables as they can (``parameter_snapshot``).

        Raises:
            OutOfMemoryError: for the copy.
        """
