"""States as one array: every array comes back from its place, and sizes are multiples of eight bytes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from edl.numerics.packed_state import (
    array_checksum,
    cut_pieces,
    pack_arrays,
    packed_pieces,
    packed_size,
    part_bounds,
    pieces_checksum,
    split_packed,
)

ARRAYS = st.lists(
    arrays_of.arrays(
        st.sampled_from(["f4", "f8", "i8", "u1", "f2", "?"]), arrays_of.array_shapes(min_dims=0, min_side=0)
    )
)


@given(ARRAYS)
def test_arrays_come_back_from_a_packed_state(arrays: list[Any]) -> None:
    sizes = [array.nbytes for array in arrays]
    packed = pack_arrays(iter(arrays), packed_size(sizes))
    assert packed.size % 8 == 0
    assert packed.size == packed_size(sizes)
    for array, part in zip(arrays, split_packed(packed, sizes), strict=True):
        assert part.tobytes() == array.tobytes()
        assert part.size == 0 or (part.ctypes.data - packed.ctypes.data) % 8 == 0


@given(ARRAYS, st.integers(1, 5))
def test_the_parts_of_pieces_are_the_packed_state(arrays: list[Any], parts: int) -> None:
    packed = pack_arrays(iter(arrays), packed_size(array.nbytes for array in arrays)).tobytes()
    pieces = packed_pieces(arrays)
    assert b"".join(piece.tobytes() for piece in pieces) == packed
    assert pieces_checksum(pieces) == crc32(packed)
    bounds = [part_bounds(len(packed), part, parts) for part in range(parts)]
    assert (bounds[0][0], bounds[-1][1]) == (0, len(packed))
    assert all(end == start for (_, end), (start, _) in pairwise(bounds))
    for start, end in bounds:
        assert b"".join(piece.tobytes() for piece in cut_pieces(pieces, start, end)) == packed[start:end]


def test_what_is_between_the_arrays_is_zero() -> None:
    ones = np.full(3, 255, np.uint8)
    assert pack_arrays([ones, ones], packed_size([3, 3])).tolist() == [255, 255, 255, 0, 0, 0, 0, 0] * 2


def test_the_checksum_is_that_of_the_values_in_their_order() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert array_checksum(array.T) == crc32(np.ascontiguousarray(array.T).tobytes())
    assert array_checksum(np.float64(2.5)) == crc32(np.float64(2.5).tobytes())
