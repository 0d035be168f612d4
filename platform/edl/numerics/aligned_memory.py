"""Aligned arrays, which TensorFlow uses without a copy.

Pulled values are therefore not copied before a step. TensorFlow holds a reference to such an array
for as long as it may read its memory. Before a worker writes to the array again, it checks that no
reference is left (``slab.DoubleBuffer``).
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Alignment of TensorFlow's own tensors, in bytes."""


def allocate_aligned(*shape: int, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """Allocate aligned, uninitialized memory."""
    size = np.dtype(dtype).itemsize * prod(shape)
    # NumPy does not promise this alignment. Allocate more and start at the first aligned byte.
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -_memory_address(memory) % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def is_aligned(array: npt.NDArray[Any]) -> bool:
    """Whether TensorFlow can use the array without a copy.

    It must be contiguous, writeable, not empty and aligned to ``ALIGNMENT``, and hold numbers.
    """
    flags = array.flags
    return bool(
        array.dtype.kind in "fi"
        and flags.c_contiguous
        # DLPack does not export read-only arrays.
        and flags.writeable
        and array.size
        and _memory_address(array) % ALIGNMENT == 0
    )


def _memory_address(array: npt.NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
