"""Halves on the wire: what rounding takes is given back later."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support.rank_threads import NUMPY, RankThreads

from edl.api.errors import BadInputError
from edl.collective.communicator import Communicator
from edl.collective.element_types import named_element_type, widen_bfloat16
from edl.collective.round_errors import RoundBrokenError
from edl.collective.wire_compression import CompressedReducer, WireType, compress_in_numpy, expand

WIRE_TYPES: tuple[WireType, ...] = ("float16", "bfloat16")
FLOATS = arrays.arrays(np.float32, 37, elements=st.floats(width=32, allow_nan=False))


@pytest.mark.parametrize("wire_type", WIRE_TYPES)
@given(values=FLOATS, residual=arrays.arrays(np.float32, 37, elements=st.floats(-1, 1, width=32)))
def test_nothing_finite_is_lost(wire_type: WireType, values: np.ndarray, residual: np.ndarray) -> None:
    halves, kept = np.empty(37, np.uint16), residual.copy()
    compress_in_numpy(values, kept, halves, wire_type)
    widened = halves.view(np.float16).astype(np.float32) if wire_type == "float16" else widen_bfloat16(halves)
    with np.errstate(all="ignore"):
        finite = np.isfinite(widened) & np.isfinite(values + residual)
        np.testing.assert_array_equal((widened + kept)[finite], (values + residual)[finite])
    assert np.isfinite(kept).all()


@pytest.mark.native
@pytest.mark.parametrize("isa", ["baseline", "avx2"])
@pytest.mark.parametrize("wire_type", WIRE_TYPES)
@given(values=FLOATS, residual=FLOATS)
def test_native_compression_has_the_bits_of_numpy(
    isa: str, wire_type: WireType, values: np.ndarray, residual: np.ndarray
) -> None:
    from edl.collective import _ring

    number = named_element_type(wire_type).number
    ours, theirs, kept, same = np.empty(37, np.uint16), np.empty(37, np.uint16), residual.copy(), residual.copy()
    compress_in_numpy(values, kept, ours, wire_type)
    try:
        _ring.compress(values, same, theirs, number, isa)
    except ValueError:
        pytest.skip(f"this processor has no {isa}")
    with np.errstate(all="ignore"):
        numbers = ~np.isnan(values + residual)  # the bits of a NaN are nobody's
    np.testing.assert_array_equal(ours[numbers], theirs[numbers])
    np.testing.assert_array_equal(kept, same)


@pytest.mark.parametrize("wire_type", WIRE_TYPES)
def test_small_gradients_arrive_in_time(tmp_path: Path, wire_type: WireType) -> None:
    steps, unit = 400, {"float16": 2.0**-10, "bfloat16": 2.0**-7}[wire_type]
    gradients = np.zeros((2, steps, 50), np.float32)
    gradients[0] = 1 + 0.3 * unit  # rounded to one: each step loses 0.3 units, all of them 120

    def run(communicator: Communicator) -> np.ndarray:
        reducer, total = CompressedReducer(50, wire_type), np.zeros(50)
        for gradient in gradients[communicator.rank]:
            buffer = gradient.copy()
            assert reducer.all_reduce(communicator, buffer, b"c") == [b"c", b"c"]
            total += buffer
        return total

    with RankThreads(NUMPY[0], tmp_path, most=2) as ranks, ranks.round(2) as round_:
        ours, theirs = ranks.each(run, round_)
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(ours, steps * (1 + 0.3 * unit), rtol=0, atol=2 * unit)


def test_an_error_leaves_gradients_and_residual_as_they_were(tmp_path: Path) -> None:
    with RankThreads(NUMPY[0], tmp_path, most=2) as ranks, ranks.round(2) as round_:
        reducer, buffer = CompressedReducer(3, "bfloat16"), np.full(3, 1.001, np.float32)
        round_[0].abort("test")
        with pytest.raises(RoundBrokenError):
            reducer.all_reduce(round_[0], buffer)
        np.testing.assert_array_equal(reducer.residual, 0)
        np.testing.assert_array_equal(buffer, np.float32(1.001))


def test_other_types_do_not_travel() -> None:
    with pytest.raises(BadInputError):
        CompressedReducer(3, "float32")  # type: ignore[arg-type]


@pytest.mark.parametrize("wire_type", WIRE_TYPES)
def test_halves_are_widened(wire_type: WireType) -> None:
    values = np.empty(3, np.float32)
    ones = {"float16": 0x3C00, "bfloat16": 0x3F80}[wire_type]
    expand(np.full(3, ones, np.uint16), values, wire_type)
    np.testing.assert_array_equal(values, 1)
