"""The port to the rows of one embedding table: what a store asks of it. docs/design/0007 says what it promises."""

from __future__ import annotations

from typing import Protocol

from edl.numerics.array_types import Floats, Ids
from edl.numerics.parameter_snapshot import RowArrays, TableSnapshot


class EmbeddingTable(Protocol):
    """Rows ``[dim]`` by id, each with its slot variables; a row is stored when it is first updated."""

    def read(self, ids: Ids) -> Floats:
        """Rows ``[n, dim]``, a new array; initial values of what is not stored, which reading does not change."""

    def __len__(self) -> int:
        """Rows that are stored."""

    @property
    def evicted_count(self) -> int:
        """Rows that were dropped so far because no push named them for too long."""

    @property
    def bound(self) -> int | None:
        """Rows that it may hold; None for no bound."""

    @property
    def occupied(self) -> int:
        """Bytes of memory that it occupies.

        May be asked while others use the table: they may wait meanwhile, for some ten milliseconds where it is large.
        """

    @property
    def position_limit(self) -> int:
        """Rows are at positions below this; some of them may be free."""

    def prepare_update(self, ids: Ids, step: int) -> None:
        """Drop the rows that no push named for too long by ``step``, and see whether a push of ``ids`` has room.

        Raises:
            TableFullError: it has not.
            MemoryError: the same; a table that can get the memory of new rows beforehand does it here.
        """

    def apply(self, ids: Ids, gradients: Floats, learning_rate: float, step: int) -> None:
        """Drop what is due; sum the gradients ``[n, dim]`` of equal ids and update those rows, and no others.

        Raises:
            MemoryError: a part of the rows may be updated.
        """

    def scan(self, start: int, limit: int) -> RowArrays:
        """The stored rows at positions ``start`` to ``start + limit``, copied, without slot variables.

        A row is at one position as long as it is stored; that of one that was dropped may become another's.
        """

    def snapshot(self) -> TableSnapshot:
        """The stored rows as they are now, while the table goes on."""

    def load(self, rows: RowArrays, step: int = 0) -> None:
        """Store rows with their slot variables; ``step`` named those last that do not say which one did."""
