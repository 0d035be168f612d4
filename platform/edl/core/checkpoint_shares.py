"""Which rank writes which arrays of a checkpoint: the same answer on all ranks, from the sizes alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping

SHARD_BYTES = 64 << 20
"""Least bytes of a shard: a disk takes some 0.1 s for them, and more files for less would cost more than they save."""
MOST_WRITERS = 8
"""The most ranks that write one checkpoint: a shared volume is not faster with more of them."""


def choose_writer_count(state_bytes: int, ranks: int, shard_bytes: int = SHARD_BYTES) -> int:
    """How many ranks write a state together."""
    return max(1, min(ranks, MOST_WRITERS, state_bytes // shard_bytes))


def divide_arrays(sizes: Mapping[str, int], writers: int, of_first: Collection[str] = ()) -> list[list[str]]:
    """The names of the arrays that each writer has, so that all have about the same number of bytes.

    An array is never divided. The largest array comes first, and each goes to the writer with the fewest bytes so far.

    Args:
        sizes: bytes of each array.
        writers: number of writers.
        of_first: arrays of the first writer: others may have another value of them.
    """
    shares: list[list[str]] = [[] for _ in range(writers)]
    loads = [0] * writers
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        writer = 0 if name in of_first else loads.index(min(loads))
        shares[writer].append(name)
        loads[writer] += sizes[name]
    return shares
