"""Logarithm and cosine from exactly rounded operations, so that their bits are equal on every machine.

NumPy's own take the processor's or the C library's, which differ in the last bit from one machine to the next: a row
that is lost on one and made again on another would come back slightly different. The native table has the same
operations in the same order (``edl/ps/native/kernels.cpp``), hence the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]

_LN_2 = 0.6931471805599453
_HALF_ROOT = 0.7071067811865476
_TURN = 6.283185307179586
# Taylor's series around 0, from the highest power down: enough terms for an eighth of a turn, and for the logarithm of
# what is between the root of 1/2 and the root of 2.
_ARTANH = tuple(1.0 / n for n in range(23, 0, -2))
_COS = tuple((-1.0) ** (n // 2) / factorial(n) for n in range(16, -1, -2))
_SIN = tuple((-1.0) ** (n // 2) / factorial(n) for n in range(17, 0, -2))


def log(x: Doubles) -> Doubles:
    """Natural logarithm of positive normal numbers, to about 1e-16 of itself or of ln 2."""
    import numpy as np

    m, exponent = np.frexp(x)
    low = m < _HALF_ROOT
    m = np.where(low, m * 2.0, m)
    s = (m - 1.0) / (m + 1.0)
    scaled: Doubles = (exponent - low).astype(np.float64) * _LN_2
    return scaled + 2.0 * s * _series(_ARTANH, s * s)


def cos_of_turns(turns: Doubles) -> Doubles:
    """Cosine of angles from 0 to 1, in turns, to about 1e-16."""
    import numpy as np

    quarter = np.floor(turns * 4.0 + 0.5)
    angle = (turns - quarter * 0.25) * _TURN
    z = angle * angle
    size = np.where((quarter == 1.0) | (quarter == 3.0), _series(_SIN, z) * angle, _series(_COS, z))
    signed: Doubles = np.where((quarter == 1.0) | (quarter == 2.0), -size, size)
    return signed


def _series(coefficients: Sequence[float], z: Doubles) -> Doubles:
    import numpy as np

    total: Doubles = np.full_like(z, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * z + coefficient
    return total
