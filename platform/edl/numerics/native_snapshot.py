"""A native table's rows at one moment: nothing is copied when they are taken, pushes keep what they change.

docs/design/0007-the-parameter-table.md says how.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np

from edl.api.tables import TableSpec
from edl.numerics import _native
from edl.numerics.array_types import Floats, Ids
from edl.numerics.parameter_snapshot import PinError, RowArrays

CHUNK_BYTES = 8 << 20
"""Of what :meth:`NativeTableSnapshot.pieces` gives at once; the table's lock is taken for smaller parts of it."""


class NativeTableSnapshot:
    """See :class:`edl.numerics.parameter_snapshot.TableSnapshot`.

    Args:
        table: is kept alive.
        dim: elements of a row.
        slots: names of its slot variables.
        has_last_steps: its rows say by which step they were named last.
    """

    def __init__(self, table: _native.Table, dim: int, slots: tuple[str, ...], *, tracked: bool) -> None:
        self._snapshot = _native.Snapshot(table)
        self._count = len(self._snapshot)
        self._position_limit = self._snapshot.extent
        self._dim = dim
        self._slots = slots
        self._has_last_steps = tracked
        self._holder_count = 1
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    @property
    def position_limit(self) -> int:
        """As the protocol says."""
        return self._position_limit

    @property
    def has_last_steps(self) -> bool:
        """As the protocol says."""
        return self._has_last_steps

    def read(self, ids: Ids, declared: TableSpec) -> Floats:
        """As the protocol says; the table itself knows the initial values."""
        out = np.empty((len(ids), self._dim), np.float32)
        with _translate_released():
            self._snapshot.read(ids, out)
        return out

    def scan(self, start: int, limit: int) -> RowArrays:
        """As the protocol says."""
        rows = RowArrays.empty(count_positions(start, limit, self._position_limit), self._dim)
        return self._copy_rows(min(start, self._position_limit), rows, pass_by=False)

    def iter_chunks(self) -> Iterator[RowArrays]:
        """As the protocol says. What was given to a holder who is alone is not kept any more when it changes."""
        rows = max(1, CHUNK_BYTES // (8 + 4 * self._dim * (1 + len(self._slots))))
        room = self._room(min(rows, self._position_limit))  # once: new memory for each piece costs as much as its rows
        for start, end in pairwise([*range(0, self._position_limit, rows), self._position_limit]):
            piece = self._copy_rows(start, room.first(end - start), pass_by=self._holder_count == 1)
            if len(piece):
                yield piece

    def whole(self) -> RowArrays:
        """As the protocol says."""
        return self._copy_rows(0, self._room(self._position_limit), pass_by=False)

    def hold(self) -> None:
        """As the protocol says."""
        with self._lock:
            self._holder_count += 1

    def release(self) -> None:
        """As the protocol says."""
        with self._lock:
            self._holder_count -= 1
            if self._holder_count > 0:
                return
        self._snapshot.release()

    def _room(self, positions: int) -> RowArrays:
        return RowArrays.empty(positions, self._dim, self._slots, tracked=self._has_last_steps)

    def _copy_rows(self, start: int, rows: RowArrays, *, pass_by: bool) -> RowArrays:
        """Those of the positions from ``start`` on, as many as ``rows`` has room for, at which there are rows."""
        slots = [*rows.slots.values()]
        with _translate_released():
            return rows.first(self._snapshot.scan(start, rows.ids, rows.values, slots, rows.seen, pass_by=pass_by))


def count_positions(start: int, limit: int, extent: int) -> int:
    """How many of the positions ``start`` to ``start + limit`` there are, if start is not negative."""
    return max(0, min(limit, extent - max(0, start)))


@contextmanager
def _translate_released() -> Iterator[None]:
    try:
        yield
    except _native.ReleasedError as error:
        raise PinError("this version of the rows is not kept any more") from error
