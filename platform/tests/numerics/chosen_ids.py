"""Ids that somebody chose who knows the salt of a hash table: they all belong in one place of it."""

from __future__ import annotations

import numpy as np

from edl.numerics.array_types import Ids

_MASK = (1 << 64) - 1


def with_hashes(hashes: np.ndarray, salt: int) -> Ids:
    """The ids whose place in a native table with this salt has these hashes ``[n]``: splitmix64 backwards."""
    x = _unshifted(hashes.astype(np.uint64), 31)
    x = _unshifted(x * np.uint64(pow(0x94D049BB133111EB, -1, 1 << 64)), 27)
    x = _unshifted(x * np.uint64(pow(0xBF58476D1CE4E5B9, -1, 1 << 64)), 30)
    return ((x - np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(salt)).astype(np.int64)


def _unshifted(x: np.ndarray, bits: int) -> np.ndarray:
    """What gives ``x`` as ``y ^ (y >> bits)``."""
    y = x
    for _ in range(64 // bits + 1):
        y = x ^ (y >> np.uint64(bits))
    return y


def alike_in_a_product(count: int, salt: int) -> Ids:
    """Distinct ids that all belong in one 64th of the places that a ``UniqueIdFinder`` with this salt uses."""
    random, chosen = np.random.default_rng(3), []
    while sum(map(len, chosen)) < count:
        ids = random.integers(0, 1 << 63, 1 << 20).astype(np.uint64)
        chosen.append(ids[_folded_product(ids ^ np.uint64(salt)) >> np.uint64(58) == 0])
    return np.unique(np.concatenate(chosen).astype(np.int64))[:count]


def _folded_product(x: np.ndarray) -> np.ndarray:
    """Both halves of the product with the constant of ``distinct.hpp``, from products of 32 bits."""
    factor, low, half = 0xE7037ED1A0B428DB, np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b, c, d = x >> half, x & low, np.uint64(factor >> 32), np.uint64(factor & 0xFFFFFFFF)
    middle = (b * d >> half) + (a * d & low) + (b * c & low)
    upper = a * c + (a * d >> half) + (b * c >> half) + (middle >> half)
    return upper ^ x * np.uint64(factor)
