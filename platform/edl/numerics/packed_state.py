"""A state as one array of bytes, as workers under AllReduce give it to each other, and checksums of its arrays.

The arrays follow each other. Each begins at a multiple of eight bytes, so that it can be used where it is, and the
whole can be sent as 64-bit words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl.numerics.aligned_memory import allocate_aligned
from edl.numerics.checksum import crc32

Bytes = NDArray[np.uint8]

_ALIGNMENT = 8


def packed_size(sizes: Iterable[int]) -> int:
    """The bytes of a packed state whose arrays have these sizes in bytes."""
    return sum(map(_padded_size, sizes))


def pack_arrays(arrays: Iterable[NDArray[Any]], size: int) -> Bytes:
    """A copy of the arrays as one, with zeros between them.

    Args:
        arrays: taken one by one, so that they need not be in memory together.
        size: as :func:`packed_size` says.
    """
    packed = allocate_aligned(size, dtype=np.uint8)
    packed.fill(0)
    start = 0
    for array in arrays:
        content = _as_bytes(array)
        packed[start : start + content.size] = content
        start += _padded_size(content.size)
    return packed


def packed_pieces(arrays: Iterable[NDArray[Any]]) -> list[Bytes]:
    """The same bytes as of :func:`pack_arrays`, without a copy: views of the arrays, and the zeros between them."""
    pieces = []
    for array in arrays:
        content = _as_bytes(array)
        pieces.append(content)
        if content.size % _ALIGNMENT:
            pieces.append(np.zeros(_padded_size(content.size) - content.size, np.uint8))
    return pieces


def cut_pieces(pieces: Iterable[Bytes], start: int, end: int) -> list[Bytes]:
    """The bytes ``start .. end - 1`` of pieces that follow each other, as views."""
    views = []
    for piece in pieces:
        if start < piece.size and end > 0 and piece.size:
            views.append(piece[max(0, start) : end])
        start, end = start - piece.size, end - piece.size
    return views


def part_bounds(size: int, part: int, parts: int) -> tuple[int, int]:
    """The first byte of a part of a packed state, and the one after its last byte.

    Args:
        size: of the state in bytes.
        part: from 0.
        parts: their number.
    """
    words = size // _ALIGNMENT
    return words * part // parts * _ALIGNMENT, words * (part + 1) // parts * _ALIGNMENT


def pieces_checksum(pieces: Iterable[Bytes]) -> int:
    """CRC-32 of pieces that follow each other."""
    checksum = 0
    for piece in pieces:
        checksum = crc32(piece.data, checksum)
    return checksum


def split_packed(packed: NDArray[Any], sizes: Iterable[int]) -> Iterator[Bytes]:
    """The bytes of each array of a packed state, as views, without those between them."""
    content, start = _as_bytes(packed), 0
    for size in sizes:
        yield content[start : start + size]
        start += _padded_size(size)


def array_checksum(array: NDArray[Any]) -> int:
    """CRC-32 of an array's values."""
    return crc32(_as_bytes(array).data)


def _as_bytes(array: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _padded_size(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
