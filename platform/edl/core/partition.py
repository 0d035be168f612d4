"""Which parameter server owns a key.

Keys are variable names and row ids. A stable hash maps a key to one of a fixed number of *slots*; a
table that the master versions maps slots to parameter servers. Worker and PS call the same
functions. Nothing here depends on ``hash()``, which differs between processes.

The hash is splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA
2014) for ids and FNV-1a (Fowler, Noll, Vo) for names. It uses integer operators only, so that it
accepts Python ints and NumPy uint64 arrays.
"""

from __future__ import annotations

from typing import Any

SLOT_COUNT = 256
"""Never change this: checkpoints and placements of every version depend on it."""

_MASK = (1 << 64) - 1


def splitmix64(key: Any) -> Any:
    """Splitmix64's output function, for a non-negative int or elementwise for a uint64 array."""
    x = (key + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def slot_of_row(row: Any) -> Any:
    """Slot of a row id, a non-negative int or a uint64 array of them."""
    return splitmix64(row) % SLOT_COUNT


def slot_of_name(name: str) -> int:
    """Slot of a dense variable's name."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = ((h ^ byte) * 0x100000001B3) & _MASK
    # The upper half: FNV mixes towards the high bits.
    return (h >> 32) % SLOT_COUNT


def initial_placement(ps_count: int) -> tuple[int, ...]:
    """The initial placement: slot i belongs to PS ``i % ps_count``.

    Raises:
        ValueError: if there is no parameter server.
    """
    if ps_count < 1:
        raise ValueError(f"a placement needs at least one parameter server, got {ps_count}")
    return tuple(slot % ps_count for slot in range(SLOT_COUNT))


def owner_of_name(name: str, slots: tuple[int, ...]) -> int:
    """Index of the PS that owns a dense variable."""
    return slots[slot_of_name(name)]
