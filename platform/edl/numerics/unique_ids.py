"""Deduplicates the ids of a minibatch and records the position of each lookup's id."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from edl.numerics import aligned_memory

# --------------------------------------------------------------------------------------------------
# Deduplication in NumPy, for machines without the native extension.


# Rounds of hashing; ids that collide in all of them are sorted.
_HASH_ROUNDS = 4
_HASH_MULTIPLIERS = tuple(
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
)
# Slots of the hash table per id.
_SLOTS_PER_ID = 8


class NumpyUniqueFinder:
    """A hash table of arrays; used by one thread at a time.

    It takes half of the time of ``tf.unique``. ``np.unique`` sorts: compared with that it takes a quarter of
    the time if nearly all ids differ, and two thirds if few ids occur often.
    """

    def __init__(self) -> None:
        self._slot_table: Ids = np.empty(0, np.int64)

    def __call__(self, ids: Ids) -> tuple[Ids, NDArray[np.int32]]:
        """The unique ids of ``[lookups]`` in order of first occurrence, and the position of each lookup's id."""
        order = np.arange(len(ids))
        first_positions = self._first_positions(ids, order)
        chosen = np.flatnonzero(first_positions == order)
        rank = np.empty(len(ids), np.int32)
        rank[chosen] = np.arange(len(chosen), dtype=np.int32)
        positions = rank.take(
            first_positions,
            out=aligned_memory.allocate_aligned(len(ids), dtype=np.int32),
            mode="clip",  # "raise" would copy
        )
        return ids.take(chosen), positions

    def _first_positions(self, ids: Ids, order: Ids, hash_round: int = 0) -> Ids:
        """The index of the first equal id, for each id."""
        if hash_round == _HASH_ROUNDS:
            _, first_positions, inverse = np.unique(ids, return_index=True, return_inverse=True)
            return np.asarray(first_positions[inverse])
        slots, table = self._hash_slots(ids, hash_round)
        # Written in reverse order, so the first occurrence remains.
        table[slots[::-1]] = order[::-1]
        first_positions = table.take(slots)
        colliding = np.flatnonzero(ids.take(first_positions) != ids)
        # A different id occupies their slot.
        if len(colliding):
            first_positions[colliding] = colliding.take(
                self._first_positions(ids.take(colliding), order[: len(colliding)], hash_round + 1)
            )
        return first_positions

    def _hash_slots(self, ids: Ids, hash_round: int) -> tuple[Ids, Ids]:
        """The slot of each id, and the uninitialized hash table."""
        bits = max(4, (_SLOTS_PER_ID * len(ids) - 1).bit_length())
        if len(self._slot_table) < 1 << bits:
            self._slot_table = np.empty(1 << bits, np.int64)
        hashed = ids.view(np.uint64) * _HASH_MULTIPLIERS[hash_round]
        hashed >>= np.uint64(64 - bits)
        return hashed.view(np.int64), self._slot_table


Ids = NDArray[np.int64]
FindUnique = Callable[[Ids], tuple[Ids, NDArray[np.int32]]]
"""Returns the unique ids of ``[lookups]`` and the position of each lookup's id."""


class UniqueIds(np.ndarray[tuple[int, ...], np.dtype[np.int64]]):
    """Unique ids with the position of each lookup's id.

    Between lookup and step, ids are always passed with their positions.
    """

    positions: NDArray[np.int32]

    @classmethod
    def with_positions(cls, ids: Ids, positions: NDArray[np.int32]) -> UniqueIds:
        """The unique ids ``[n]``, and the position of each lookup's id, ``[lookups]``."""
        unique_ids = ids.view(cls)
        unique_ids.positions = positions
        return unique_ids


def positions_in(ids: Ids, unique_ids: UniqueIds) -> NDArray[np.int32]:
    """The position of each lookup's id among ``ids``: these ids, or all of them in another order."""
    if ids is unique_ids:
        return unique_ids.positions
    order = np.argsort(ids)
    sorted_positions = order[np.searchsorted(ids, unique_ids, sorter=order)].astype(np.int32)
    return np.asarray(sorted_positions[unique_ids.positions])


def make_fastest_finder() -> FindUnique:
    """Create the fastest available finder."""
    try:
        from edl.numerics.native_unique_ids import NativeUniqueFinder
    except ImportError:
        return NumpyUniqueFinder()
    return NativeUniqueFinder()


class UniqueIdFinder(threading.local):
    """Finds unique ids; several threads may do so at once, each with its own hash table.

    Args:
        make_finder: what finds them.
    """

    def __init__(self, make_finder: Callable[[], FindUnique] = make_fastest_finder) -> None:
        self._find_unique = make_finder()

    def find_by_table(self, tables: Sequence[Ids]) -> Iterator[UniqueIds]:
        """The unique ids by table; computed only once for tables with the same lookups.

        Models often use the same ids for several tables, such as one of weights and one of vectors.
        """
        unique_by_prefix: dict[tuple[int, ...], tuple[Ids, UniqueIds]] = {}
        for ids in tables:
            prefix = (len(ids), *ids[:1].tolist())
            earlier_result = unique_by_prefix.get(prefix)
            if earlier_result is None or not np.array_equal(earlier_result[0], ids):
                earlier_result = unique_by_prefix[prefix] = ids, self.find(ids)
            yield earlier_result[1]

    def find(self, ids: Ids) -> UniqueIds:
        """The unique ids of ``[lookups]`` in order of first occurrence."""
        return UniqueIds.with_positions(*self._find_unique(ids))
