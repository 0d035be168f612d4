"""The element types that can be summed, and their sums in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from edl.api.errors import BadInputError

Array = npt.NDArray[Any]
AddInto = Callable[[Array, Array], None]
"""Adds the second array of bytes to the first one, element by element."""


@dataclass(frozen=True, slots=True)
class ElementType:
    """One type of elements.

    Attributes:
        number: the type's number in frames, the same as in ``edl/numerics/native/sums.hpp``.
        size: bytes of one element.
        add_into: the sum, for arrays of bytes (uint8) of equal length, a multiple of ``size``.
    """

    name: str
    number: int
    size: int
    add_into: AddInto


@cache  # called for every reduction
def find_element_type(dtype: np.dtype[Any]) -> ElementType:
    """The type of a buffer's elements.

    Unsigned integers are summed as signed ones: modulo 2**bits the result is the same.

    Raises:
        BadInputError: buffers of this type cannot be summed.
    """
    name = dtype.name
    element_type = _TYPES.get(name.removeprefix("u") if dtype.kind == "u" else name)
    if element_type is None or not dtype.isnative:
        raise BadInputError(f"Arrays of {dtype} cannot be reduced", hint=f"those that can: {', '.join(_TYPES)}")
    return element_type


def named_element_type(name: str) -> ElementType:
    """The type with this name, for buffers whose NumPy type only has the same width.

    Raises:
        BadInputError: there is no such type.
    """
    if name not in _TYPES:
        raise BadInputError(f"Elements of type {name!r} cannot be reduced", hint=f"those that can: {', '.join(_TYPES)}")
    return _TYPES[name]


def _add_as(dtype: npt.DTypeLike) -> AddInto:
    def add(into: Array, other: Array) -> None:
        # An overflow gives an infinite or NaN sum on every rank. The caller checks for it.
        with np.errstate(all="ignore"):
            target = into.view(dtype)
            np.add(target, other.view(dtype), out=target)

    return add


def _add_bfloat16(into: Array, other: Array) -> None:
    """Sum in float32 and round after each addition, as native code does. NumPy has no bfloat16."""
    target = into.view(np.uint16)
    with np.errstate(all="ignore"):
        target[:] = round_to_bfloat16(widen_bfloat16(target) + widen_bfloat16(other.view(np.uint16)))


def round_to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round to nearest, ties to even. NaN stays NaN."""
    bits = values.view(np.uint32)
    upper = bits >> np.uint32(16)
    # Half of the last kept bit, less one unit unless that bit is odd: ties go to the even value.
    # For NaN this could carry into an infinity, so NaN keeps its upper half with the quiet bit set.
    rounded = (bits + np.uint32(0x7FFF) + (upper & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), upper | np.uint32(0x40), rounded).astype(np.uint16)


def widen_bfloat16(halves: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """The same numbers as float32."""
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


_TYPES = {
    each.name: each
    for each in (
        ElementType("float32", 1, 4, _add_as(np.float32)),
        ElementType("float64", 2, 8, _add_as(np.float64)),
        ElementType("float16", 3, 2, _add_as(np.float16)),
        ElementType("bfloat16", 4, 2, _add_bfloat16),
        ElementType("int8", 5, 1, _add_as(np.int8)),
        ElementType("int16", 6, 2, _add_as(np.int16)),
        ElementType("int32", 7, 4, _add_as(np.int32)),
        ElementType("int64", 8, 8, _add_as(np.int64)),
    )
}
