"""The unique ids of a minibatch in native code, in .10 to .41 of the time of ``NumpyUniqueFinder``.

The extension is built by ``make native``; importing this module without it is an ImportError.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from edl.numerics import _distinct, aligned_memory

Ids = NDArray[np.int64]


class NativeUniqueFinder:
    """A hash table that fits the processor's cache; used by one thread at a time.

    Args:
        salt: 64 bits, of its hash; by default secret, so that nobody can choose ids that crowd. No result
            depends on it.
    """

    def __init__(self, salt: int | None = None) -> None:
        self._native_index = _distinct.Distinct(secrets.randbits(64) if salt is None else salt)

    def __call__(self, ids: Ids) -> tuple[Ids, NDArray[np.int32]]:
        """The unique ids of ``[lookups]`` in order of first occurrence, and the position of each lookup's id."""
        positions = aligned_memory.allocate_aligned(len(ids), dtype=np.int32)
        unique_ids = np.empty(self._native_index.take(ids, positions), np.int64)
        self._native_index.copy(unique_ids)
        return unique_ids, positions
