"""Arrays in memory that TensorFlow accepts without a copy, so that pulled values are not copied before a step.

TensorFlow holds an array for as long as it may read its memory. So whoever wants to write there again asks first
whether anybody still holds it (``slab.DoubleBuffer``).
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
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -_memory_address(memory) % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def is_aligned(array: npt.NDArray[Any]) -> bool:
    """Whether TensorFlow can use the array without a copy: contiguous numbers, aligned to ``ALIGNMENT``."""
    flags = array.flags
    return bool(
        array.dtype.kind in "fi"
        and flags.c_contiguous
        # DLPack supports no other memory.
        and flags.writeable
        and array.size
        and _memory_address(array) % ALIGNMENT == 0
    )


def _memory_address(array: npt.NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
