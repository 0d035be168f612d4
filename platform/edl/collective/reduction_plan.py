"""Algorithms of a reduction as steps around the ring; ``edl/numerics/native/ring.cpp`` runs the same."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class Algorithm(IntEnum):
    """How a buffer is summed; the number goes into frames.

    RING: reduce-scatter, then all-gather: 2 (n - 1) steps, each of a share of 1/n of the buffer.
    GATHER: every buffer goes round whole and each rank sums all of them: n - 1 steps of the whole buffer.
    """

    RING = 1
    GATHER = 2


BLOCK_BYTES = 1024 * 1024
"""Bytes that RING reduces together; with twice as many under way they fit into a second-level cache."""
_MOST_STEPS = 60_000  # their numbers have 16 bits

GATHER_BYTES = 64 * 1024
"""Up to this many bytes in all n buffers GATHER is faster (docs/design/0011-collective.md)."""


def choose_algorithm(nbytes: int, size: int) -> Algorithm:
    """The faster algorithm for a buffer; the same on all ranks."""
    return Algorithm.GATHER if nbytes * size <= GATHER_BYTES or not nbytes else Algorithm.RING


@dataclass(frozen=True, slots=True)
class Step:
    """What one step sends and receives.

    Attributes:
        after: index of the step that received what is sent; None: it is there from the beginning.
        send_offset: of the data in its buffer, in bytes.
        add: what is received is added to what is there; otherwise it replaces it.
        send_control: rank whose control message goes with the first frame; None for none.
        receive_control: the same for the frame that comes.
    """

    send: Bytes
    receive: Bytes
    after: int | None = None
    send_offset: int = 0
    receive_offset: int = 0
    add: bool = False
    send_control: int | None = None
    receive_control: int | None = None


def ring_steps(buffer: Bytes, item: int, rank: int, size: int) -> list[Step]:
    """Steps of RING, in place.

    A buffer is cut into blocks and each block into a segment for each rank. Phases of consecutive blocks take turns, so
    that what is sent was received a moment ago and is still in the processor's cache.

    Args:
        buffer: bytes of all elements.
        item: bytes of one element.
        rank: of this process.
        size: number of ranks.
    """
    phases, count = 2 * (size - 1), len(buffer) // item
    block = max(BLOCK_BYTES // item, -(-count // (_MOST_STEPS // phases)))
    blocks = max(1, -(-count // block))
    steps: list[Step] = []
    latest: list[int | None] = [None] * blocks
    for turn in range(blocks + phases - 1):
        for phase in range(min(phases, turn + 1)):
            number = turn - phase
            if number >= blocks:
                continue
            segments = _cut(number * block, min(block, count - number * block), item, size)
            out, into = (rank - phase) % size, (rank - 1 - phase) % size
            with_control = number == 0 and phase < size - 1
            steps.append(
                Step(
                    send=buffer[segments[out]],
                    receive=buffer[segments[into]],
                    after=latest[number],
                    send_offset=segments[out].start,
                    receive_offset=segments[into].start,
                    add=phase < size - 1,
                    send_control=out if with_control else None,
                    receive_control=into if with_control else None,
                )
            )
            latest[number] = len(steps) - 1
    return steps


def _cut(begin: int, length: int, item: int, size: int) -> list[slice]:
    """The bytes of each rank's segment of a block; the first ones are an element longer if need be."""
    each, rest = divmod(length, size)
    edges = [item * (begin + segment * each + min(segment, rest)) for segment in range(size + 1)]
    return [slice(edges[segment], edges[segment + 1]) for segment in range(size)]


def gather_steps(contributions: npt.NDArray[Any], rank: int, size: int) -> list[Step]:
    """Steps of GATHER.

    Args:
        contributions: bytes, ``[size, bytes of a buffer]``; this rank's are there.
        rank: of this process.
        size: number of ranks.
    """
    steps = []
    for number in range(size - 1):
        out, into = (rank - number) % size, (rank - 1 - number) % size
        after = number - 1 if number else None
        steps.append(Step(contributions[out], contributions[into], after, send_control=out, receive_control=into))
    return steps
