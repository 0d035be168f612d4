"""The ids of a table that a minibatch needs: each once, and where each look-up finds its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from edl.worker import aligned

Ids = NDArray[np.int64]

_ROUNDS = 4  # of hashing, after which ids that met each time are sorted
_ODD = tuple(
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
)
_SLOTS = 8  # of the hash table for each id


class WantedIds(np.ndarray[tuple[int, ...], np.dtype[np.int64]]):
    """Ids, each once, which know where each look-up finds its own.

    Wherever ids go between look-up and step, the positions go with them.
    """

    positions: NDArray[np.int32]

    @classmethod
    def of(cls, ids: Ids, positions: NDArray[np.int32]) -> WantedIds:
        """Ids ``[n]``, and for each look-up the position of its id, ``[lookups]``."""
        wanted = ids.view(cls)
        wanted.positions = positions
        return wanted


def positions_among(ids: Ids, wanted: WantedIds) -> NDArray[np.int32]:
    """For each look-up, where its id is among ``ids``: the wanted ones themselves, or all of them in another order."""
    if ids is wanted:
        return wanted.positions
    order = np.argsort(ids)
    found = order[np.searchsorted(ids, wanted, sorter=order)].astype(np.int32)
    return np.asarray(found[wanted.positions])


class Distinct(threading.local):
    """Finds equal ids through a hash table; several threads may do so at once, each with a table of its own.

    It takes half of the time of ``tf.unique`` and a fifth of that of ``np.unique``, which sorts.
    """

    def __init__(self) -> None:
        self._table: Ids = np.empty(0, np.int64)

    def each(self, tables: Sequence[Ids]) -> Iterator[WantedIds]:
        """For each table the ids ``[lookups]`` that are looked up there, each once; the same for those looked up alike.

        Models often give the same ids to several tables: a weight and a vector for each.
        """
        found: dict[tuple[int, ...], tuple[Ids, WantedIds]] = {}
        for ids in tables:
            like = (len(ids), *ids[:1].tolist())
            known = found.get(like)
            if known is None or not np.array_equal(known[0], ids):
                known = found[like] = ids, self.of(ids)
            yield known[1]

    def of(self, ids: Ids) -> WantedIds:
        """The ids ``[lookups]``, each once."""
        order = np.arange(len(ids))
        same = self._representatives(ids, order)
        chosen = np.flatnonzero(same == order)
        rank = np.empty(len(ids), np.int32)
        rank[chosen] = np.arange(len(chosen), dtype=np.int32)
        positions = rank.take(same, out=aligned.empty(len(ids), dtype=np.int32), mode="clip")  # "raise" would copy
        return WantedIds.of(ids.take(chosen), positions)

    def _representatives(self, ids: Ids, order: Ids, turn: int = 0) -> Ids:
        """For each id the index of one that is equal, which is the same index for all equal ones."""
        if turn == _ROUNDS:
            _, first, of = np.unique(ids, return_index=True, return_inverse=True)
            return np.asarray(first[of])
        slots, table = self._slots(ids, turn)
        table[slots] = order  # whichever of those that meet comes last
        same = table.take(slots)
        others = np.flatnonzero(ids.take(same) != ids)
        if len(others):  # another id has their slot
            same[others] = others.take(self._representatives(ids.take(others), order[: len(others)], turn + 1))
        return same

    def _slots(self, ids: Ids, turn: int) -> tuple[Ids, Ids]:
        """The slot of each id, and the hash table, in which anything may stand."""
        bits = max(4, (_SLOTS * len(ids) - 1).bit_length())
        if len(self._table) < 1 << bits:
            self._table = np.empty(1 << bits, np.int64)
        hashed = ids.view(np.uint64) * _ODD[turn]
        hashed >>= np.uint64(64 - bits)
        return hashed.view(np.int64), self._table
