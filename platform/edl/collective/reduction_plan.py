"""The algorithms of a reduction as steps around the ring.

``edl/numerics/native/ring.cpp`` executes the same steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class Algorithm(IntEnum):
    """How a buffer is summed. The number is part of every frame.

    RING: reduce-scatter, then all-gather: 2 (n - 1) steps, each of 1/n of the buffer.
    GATHER: every whole buffer passes through all ranks, and each rank sums all of them: n - 1 steps.
    """

    RING = 1
    GATHER = 2


BLOCK_BYTES = 1024 * 1024
"""Bytes that RING reduces together. Two such blocks fit into a second-level cache."""
# A frame stores the number of a step in 16 bits. Larger buffers get larger blocks instead.
_MOST_STEPS = 60_000

GATHER_BYTES = 64 * 1024
"""Up to this many bytes in all n buffers together, GATHER is used.

``bench/allreduce_sizes.py`` compares the algorithms (docs/design/0011-collective.md).
"""


def choose_algorithm(nbytes: int, size: int) -> Algorithm:
    """The algorithm for a buffer. It depends only on sizes, so all ranks choose the same one."""
    return Algorithm.GATHER if nbytes * size <= GATHER_BYTES or not nbytes else Algorithm.RING


@dataclass(frozen=True, slots=True)
class TransferStep:
    """What one step sends and receives.

    Attributes:
        after: index of the step that receives the data to send; None if the data is this rank's.
        send_offset: offset of the data in its buffer, in bytes.
        add: add the received data to the buffer, instead of overwriting it.
        send_control: rank whose control message the first frame sent carries; None for no message.
        receive_control: rank whose control message the first frame received carries.
    """

    send: Bytes
    receive: Bytes
    after: int | None = None
    send_offset: int = 0
    receive_offset: int = 0
    add: bool = False
    send_control: int | None = None
    receive_control: int | None = None


def ring_steps(buffer: Bytes, item: int, rank: int, size: int) -> list[TransferStep]:
    """Steps of RING, in place.

    A buffer is cut into blocks, and each block into one segment per rank. Phases of consecutive
    blocks take turns: data to send was received a moment ago and is still in the processor's cache.

    Args:
        buffer: bytes of all elements.
        item: bytes of one element.
        rank: the rank of this process.
        size: the number of ranks.
    """
    phases, count = 2 * (size - 1), len(buffer) // item
    block = max(BLOCK_BYTES // item, -(-count // (_MOST_STEPS // phases)))
    blocks = max(1, -(-count // block))
    steps: list[TransferStep] = []
    # The step that last received data of each block: the block's next step sends that data.
    latest: list[int | None] = [None] * blocks
    for turn in range(blocks + phases - 1):
        for phase in range(min(phases, turn + 1)):
            number = turn - phase
            if number >= blocks:
                continue
            segments = _cut(number * block, min(block, count - number * block), item, size)
            out, into = (rank - phase) % size, (rank - 1 - phase) % size
            # The reduce-scatter phases of the first block pass every rank's message to every rank.
            with_control = number == 0 and phase < size - 1
            steps.append(
                TransferStep(
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
    """The bytes of each rank's segment of a block. A remainder goes to the first segments."""
    each, rest = divmod(length, size)
    edges = [item * (begin + segment * each + min(segment, rest)) for segment in range(size + 1)]
    return [slice(edges[segment], edges[segment + 1]) for segment in range(size)]


def gather_steps(contributions: npt.NDArray[Any], rank: int, size: int) -> list[TransferStep]:
    """Steps of GATHER.

    Args:
        contributions: bytes, ``[size, bytes of a buffer]``. Only this rank's row is filled.
        rank: the rank of this process.
        size: the number of ranks.
    """
    steps = []
    for number in range(size - 1):
        out, into = (rank - number) % size, (rank - 1 - number) % size
        after = number - 1 if number else None
        step = TransferStep(contributions[out], contributions[into], after, send_control=out, receive_control=into)
        steps.append(step)
    return steps
