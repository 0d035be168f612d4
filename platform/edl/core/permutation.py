"""A keyed permutation of integers, which is computed and never stored.

It is a Feistel network with cycle walking (Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002). The
order of an epoch's shards and of its records is one.
"""

from __future__ import annotations

from typing import Any

from edl.core.partition import splitmix64


def permute_index(index: int, count: int, key: int) -> int:
    """Map ``index`` by a keyed permutation of ``range(count)``.

    Raises:
        ValueError: unless ``0 <= index < count``.
    """
    if not 0 <= index < count:
        raise ValueError(f"index {index} is not in a plan of {count}")
    # Cycle walking: the network permutes a larger range, so repeat until the result is in range. At
    # most four passes are needed on average, because that range is at most four times as large.
    while True:
        index = feistel_permute(index, count, key)
        if index < count:
            return int(index)


def feistel_permute(index: Any, count: int, key: int) -> Any:
    """One pass of the Feistel network over the smallest power of four that is at least ``count``.

    ``permute_index`` repeats it until the result is in range. It uses integer operators only, so that
    ``index`` may also be a NumPy uint64 array.
    """
    half = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    left, right = index >> half, index & mask
    for turn in range(4):
        left, right = right, left ^ (splitmix64(right ^ splitmix64((key << 3) + turn)) & mask)
    return (left << half) | right
