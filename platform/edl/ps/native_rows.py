"""A native table's rows at one moment: nothing is copied when they are taken, pushes keep what they change.

docs/design/0007-the-parameter-table.md says how.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np

from edl.ps import _native
from edl.ps.arrays import Floats, Ids
from edl.ps.cuts import PinError
from edl.ps.declaration import RowTable
from edl.ps.snapshot import StoredRows

PIECE_BYTES = 8 << 20
"""Of what :meth:`NativeRows.pieces` gives at once; the table's lock is taken for smaller parts of it."""


class NativeRows:
    """See :class:`edl.ps.snapshot.FrozenRows`.

    Args:
        table: is kept alive.
        dim: elements of a row.
        slots: names of its slot variables.
    """

    def __init__(self, table: _native.Table, dim: int, slots: tuple[str, ...]) -> None:
        self._snapshot = _native.Snapshot(table)
        self._count = len(self._snapshot)
        self._dim = dim
        self._slots = slots
        self._holders = 1
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._count

    def read(self, ids: Ids, declared: RowTable) -> Floats:
        """As the protocol says; the table itself knows the initial values."""
        out = np.empty((len(ids), self._dim), np.float32)
        with _translated():
            self._snapshot.read(ids, out)
        return out

    def scan(self, start: int, limit: int) -> StoredRows:
        """As the protocol says."""
        return self._copied(start, min(limit, max(0, self._count - start)), (), pass_by=False)

    def pieces(self) -> Iterator[StoredRows]:
        """As the protocol says. What was given to a holder who is alone is not kept any more when it changes."""
        rows = max(1, PIECE_BYTES // (8 + 4 * self._dim * (1 + len(self._slots))))
        for start, end in pairwise([*range(0, self._count, rows), self._count]):
            yield self._copied(start, end - start, self._slots, pass_by=self._holders == 1)

    def whole(self) -> StoredRows:
        """As the protocol says."""
        return self._copied(0, self._count, self._slots, pass_by=False)

    def hold(self) -> None:
        """As the protocol says."""
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        """As the protocol says."""
        with self._lock:
            self._holders -= 1
            if self._holders > 0:
                return
        self._snapshot.release()

    def _copied(self, start: int, count: int, slots: tuple[str, ...], *, pass_by: bool) -> StoredRows:
        rows = StoredRows.empty(count, self._dim, slots)
        with _translated():
            self._snapshot.scan(min(start, self._count), rows.ids, rows.values, [*rows.slots.values()], pass_by=pass_by)
        return rows


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except _native.ReleasedError as error:
        raise PinError("this version of the rows is not kept any more") from error
