"""Halves on the wire: what rounding takes is given back later."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edl.collective.element_types import named_element_type, widen_bfloat16
from edl.collective.wire_compression import WireType, compress_in_numpy, expand

WIRE_TYPES: tuple[WireType, ...] = ("float16", "bfloat16")
FLOATS = arrays.arrays(np.float32, 37, elements=st.floats(width=32, allow_nan=False))


@pytest.mark.parametrize("wire_type", WIRE_TYPES)
@given(values=FLOATS, residual=arrays.arrays(np.float32, 37, elements=st.floats(-1, 1, width=32)))
def test_nothing_finite_is_lost(wire_type: WireType, values: np.ndarray, residual: np.ndarray) -> None:
    halves, new_residual = np.empty(37, np.uint16), residual.copy()
    compress_in_numpy(values, new_residual, halves, wire_type)
    widened = halves.view(np.float16).astype(np.float32) if wire_type == "float16" else widen_bfloat16(halves)
    with np.errstate(all="ignore"):
        finite = np.isfinite(widened) & np.isfinite(values + residual)
        np.testing.assert_array_equal((widened + new_residual)[finite], (values + residual)[finite])
    assert np.isfinite(new_residual).all()


@pytest.mark.native
@pytest.mark.parametrize("isa", ["baseline", "avx2"])
@pytest.mark.parametrize("wire_type", WIRE_TYPES)
@given(values=FLOATS, residual=FLOATS)
def test_native_compression_has_the_bits_of_numpy(
    isa: str, wire_type: WireType, values: np.ndarray, residual: np.ndarray
) -> None:
    from edl.collective import _ring

    number = named_element_type(wire_type).number
    ours, theirs, our_residual, their_residual = (
        np.empty(37, np.uint16),
        np.empty(37, np.uint16),
        residual.copy(),
        residual.copy(),
    )
    compress_in_numpy(values, our_residual, ours, wire_type)
    try:
        _ring.compress(values, their_residual, theirs, number, isa)
    except ValueError:
        pytest.skip(f"this processor has no {isa}")
    with np.errstate(all="ignore"):
        numbers = ~np.isnan(values + residual)  # the bits of a NaN are nobody's
    np.testing.assert_array_equal(ours[numbers], theirs[numbers])
    np.testing.assert_array_equal(our_residual, their_residual)


@pytest.mark.parametrize("wire_type", WIRE_TYPES)
def test_halves_are_widened(wire_type: WireType) -> None:
    values = np.empty(3, np.float32)
    ones = {"float16": 0x3C00, "bfloat16": 0x3F80}[wire_type]
    expand(np.full(3, ones, np.uint16), values, wire_type)
    np.testing.assert_array_equal(values, 1)
