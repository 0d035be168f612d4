"""Sums in native code have the bits of NumPy's."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.collective.element_types import find_element_type

DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.int16, np.int32, np.int64)


def any_bits(dtype: Any, count: int, seed: int) -> Any:
    """Elements of every magnitude, infinities and subnormal ones among them, but no NaN: its bits are nobody's."""
    elements = np.random.default_rng(seed).integers(0, 256, count * np.dtype(dtype).itemsize, np.uint8).view(dtype)
    with np.errstate(all="ignore"):
        return np.where(np.isnan(elements), np.zeros(1, dtype), elements) if np.dtype(dtype).kind in "fV" else elements


@pytest.mark.native
@pytest.mark.parametrize("isa", ["baseline", "avx2", ""])
@given(dtype=st.sampled_from(DTYPES), count=st.integers(0, 200), seed=st.integers(0, 1000), shift=st.integers(0, 8))
def test_native_sums_have_the_bits_of_numpy(isa: str, dtype: Any, count: int, seed: int, shift: int) -> None:
    from edl.collective import _ring

    element = find_element_type(np.dtype(dtype))
    ours, theirs = (any_bits(dtype, count, seed + each).view(np.uint8) for each in range(2))
    expected = ours.copy()
    element.add_into(expected, theirs)
    shifted = np.zeros(len(theirs) + 8, np.uint8)[shift : shift + len(theirs)]
    shifted[:] = theirs
    try:
        _ring.add_into(ours, shifted, element.number, isa)
    except ValueError:
        pytest.skip(f"this processor has no {isa}")
    result, wanted = ours.view(dtype), expected.view(dtype)
    with np.errstate(all="ignore"):
        same = (result == wanted) & (np.signbit(result) == np.signbit(wanted)) | (result != result) & (wanted != wanted)
    assert same.all()


@given(count=st.integers(0, 200), seed=st.integers(0, 1000))
def test_bfloat16_is_summed_as_its_own_library_does(count: int, seed: int) -> None:
    ours, theirs = (any_bits(ml_dtypes.bfloat16, count, seed + each) for each in range(2))
    with np.errstate(all="ignore"):
        expected = ours + theirs
        find_element_type(np.dtype(ml_dtypes.bfloat16)).add_into(ours.view(np.uint8), theirs.view(np.uint8))
        both_nan = (ours != ours) & (expected != expected)
        assert ((ours == expected) | both_nan).all()


@pytest.mark.native
@pytest.mark.parametrize(
    ("into", "other", "element"),
    [(4, 4, 0), (4, 4, 9), (4, 8, 1), (5, 5, 1)],
)
def test_what_cannot_be_summed_is_refused(into: int, other: int, element: int) -> None:
    from edl.collective import _ring

    with pytest.raises(ValueError, match=r"element|length"):
        _ring.add_into(np.zeros(into, np.uint8), np.zeros(other, np.uint8), element)
