"""The ids of a minibatch, each once, by NumPy: where there is no compiler for ``native_distinct``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edl.numerics import aligned_memory

Ids = NDArray[np.int64]

_HASH_ROUNDS = 4  # of hashing, after which ids that met each time are sorted
_HASH_MULTIPLIERS = tuple(
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
)
_SLOTS_PER_ID = 8  # of the hash table for each id


class NumpyUniqueFinder:
    """A hash table of arrays; used by one thread at a time.

    It takes half of the time of ``tf.unique``; of that of ``np.unique``, which sorts, a quarter where nearly all ids
    differ, and two thirds where few ids come often.
    """

    def __init__(self) -> None:
        self._table: Ids = np.empty(0, np.int64)

    def __call__(self, ids: Ids) -> tuple[Ids, NDArray[np.int32]]:
        """Of ids ``[lookups]`` each once, in the order in which they come first; and where each look-up has its own."""
        order = np.arange(len(ids))
        first = self._first_positions(ids, order)
        chosen = np.flatnonzero(first == order)
        rank = np.empty(len(ids), np.int32)
        rank[chosen] = np.arange(len(chosen), dtype=np.int32)
        positions = rank.take(
            first, out=aligned_memory.allocate_aligned(len(ids), dtype=np.int32), mode="clip"
        )  # "raise" would copy
        return ids.take(chosen), positions

    def _first_positions(self, ids: Ids, order: Ids, turn: int = 0) -> Ids:
        """For each id the index of the first that is equal."""
        if turn == _HASH_ROUNDS:
            _, first, of = np.unique(ids, return_index=True, return_inverse=True)
            return np.asarray(first[of])
        slots, table = self._slots(ids, turn)
        table[slots[::-1]] = order[::-1]  # of those that meet the first is written last, and stays
        first = table.take(slots)
        others = np.flatnonzero(ids.take(first) != ids)
        if len(others):  # another id has their slot
            first[others] = others.take(self._first_positions(ids.take(others), order[: len(others)], turn + 1))
        return first

    def _slots(self, ids: Ids, turn: int) -> tuple[Ids, Ids]:
        """The slot of each id, and the hash table, in which anything may stand."""
        bits = max(4, (_SLOTS_PER_ID * len(ids) - 1).bit_length())
        if len(self._table) < 1 << bits:
            self._table = np.empty(1 << bits, np.int64)
        hashed = ids.view(np.uint64) * _HASH_MULTIPLIERS[turn]
        hashed >>= np.uint64(64 - bits)
        return hashed.view(np.int64), self._table
