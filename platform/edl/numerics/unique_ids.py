"""The ids of a table that a minibatch needs: each once, and where each look-up finds its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from edl.numerics.numpy_unique_ids import NumpyUniqueFinder

Ids = NDArray[np.int64]
FindUnique = Callable[[Ids], tuple[Ids, NDArray[np.int32]]]
"""Of ids ``[lookups]`` each once, and for each look-up the position of its id."""


class UniqueIds(np.ndarray[tuple[int, ...], np.dtype[np.int64]]):
    """Ids, each once, which know where each look-up finds its own.

    Wherever ids go between look-up and step, the positions go with them.
    """

    positions: NDArray[np.int32]

    @classmethod
    def of(cls, ids: Ids, positions: NDArray[np.int32]) -> UniqueIds:
        """Ids ``[n]``, and for each look-up the position of its id, ``[lookups]``."""
        wanted = ids.view(cls)
        wanted.positions = positions
        return wanted


def positions_in(ids: Ids, wanted: UniqueIds) -> NDArray[np.int32]:
    """For each look-up, where its id is among ``ids``: the wanted ones themselves, or all of them in another order."""
    if ids is wanted:
        return wanted.positions
    order = np.argsort(ids)
    found = order[np.searchsorted(ids, wanted, sorter=order)].astype(np.int32)
    return np.asarray(found[wanted.positions])


def make_fastest_finder() -> FindUnique:
    """The fastest that there is on this machine."""
    try:
        from edl.numerics.native_unique_ids import NativeUniqueFinder
    except ImportError:
        return NumpyUniqueFinder()
    return NativeUniqueFinder()


class UniqueIdFinder(threading.local):
    """Finds equal ids; several threads may do so at once, each with a hash table of its own.

    Args:
        make: what finds them.
    """

    def __init__(self, make: Callable[[], FindUnique] = make_fastest_finder) -> None:
        self._find_unique = make()

    def find_by_table(self, tables: Sequence[Ids]) -> Iterator[UniqueIds]:
        """For each table the ids ``[lookups]`` that are looked up there, each once; the same for those looked up alike.

        Models often give the same ids to several tables: a weight and a vector for each.
        """
        found: dict[tuple[int, ...], tuple[Ids, UniqueIds]] = {}
        for ids in tables:
            like = (len(ids), *ids[:1].tolist())
            known = found.get(like)
            if known is None or not np.array_equal(known[0], ids):
                known = found[like] = ids, self.of(ids)
            yield known[1]

    def of(self, ids: Ids) -> UniqueIds:
        """The ids ``[lookups]``, each once, in the order in which they come first."""
        return UniqueIds.of(*self._find_unique(ids))
