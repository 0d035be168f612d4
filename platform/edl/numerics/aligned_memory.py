"""Arrays whose memory TensorFlow takes as it is: what is pulled into them is not copied before a step.

TensorFlow holds an array for as long as it may read its memory. So whoever wants to write there again asks first
whether anybody still holds it (``slab.DoubleBuffer``).
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Bytes: of TensorFlow's own tensors."""


def allocate_aligned(*shape: int, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """Aligned memory, in which anything may stand."""
    size = np.dtype(dtype).itemsize * prod(shape)
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -_memory_address(memory) % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def is_aligned(array: npt.NDArray[Any]) -> bool:
    """Whether TensorFlow can take it as it is: numbers, one behind the other, from a multiple of ``ALIGNMENT`` on."""
    flags = array.flags
    return bool(
        array.dtype.kind in "fi"
        and flags.c_contiguous
        and flags.writeable  # DLPack knows no other memory
        and array.size
        and _memory_address(array) % ALIGNMENT == 0
    )


def _memory_address(array: npt.NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
