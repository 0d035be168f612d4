"""Rounds float32 values to float16 or bfloat16 for the wire, with error feedback.

The rounding error of each value is kept and added to the value of the next step (Seide et al.,
2014): small gradients arrive late instead of never. The sums between ranks are rounded as well,
once for each rank. Those errors are not fed back.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from edl.collective.element_types import named_element_type, round_to_bfloat16, widen_bfloat16

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.uint16]
WireType = Literal["float16", "bfloat16"]


def compress(values: Floats, residual: Floats, halves: Halves, wire_type: WireType) -> None:
    """Round values + residual to halves, and store the rounding errors in ``residual``; all ``[n]``."""
    try:
        from edl.collective import _ring
    except ImportError:
        compress_in_numpy(values, residual, halves, wire_type)
    else:
        _ring.compress(values, residual, halves, named_element_type(wire_type).number)


def expand(halves: Halves, values: Floats, wire_type: WireType) -> None:
    """Widen halves ``[n]`` into ``values`` ``[n]``."""
    try:
        from edl.collective import _ring
    except ImportError:
        values[:] = halves.view(np.float16) if wire_type == "float16" else widen_bfloat16(halves)
    else:
        _ring.expand(halves, values, named_element_type(wire_type).number)


def compress_in_numpy(values: Floats, residual: Floats, halves: Halves, wire_type: WireType) -> None:
    """The reference for the native code, and the fallback without the extension."""
    # A value beyond the range of float16 becomes infinite here. The caller checks the sum.
    with np.errstate(all="ignore"):
        total = values + residual
        if wire_type == "float16":
            halves.view(np.float16)[:] = total
            kept = halves.view(np.float16).astype(np.float32)
        else:
            halves[:] = round_to_bfloat16(total)
            kept = widen_bfloat16(halves)
        difference = total - kept
    # An infinite or NaN value leaves no residual: the residual would then never be finite again.
    residual[:] = np.where(np.isfinite(difference), difference, np.float32(0))
