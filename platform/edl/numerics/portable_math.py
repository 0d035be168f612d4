"""Logarithm, exponential, power and cosine from exactly rounded operations: equal bits on every machine.

NumPy uses those of the processor or the C library, whose last bit differs between machines: a row that
is lost on one machine and initialized again on another would differ slightly. The native table performs
the same operations in the same order (``edl/numerics/native/kernels.cpp``), so it has the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]
    Floats = NDArray[np.float32]

_LN_2 = 0.6931471805599453
_HALF_ROOT = 0.7071067811865476
_FULL_TURN = 6.283185307179586
_LOG2_E = 1.4426950408889634
# ln 2 in two parts. A whole number times the first part is exact.
_LN_2_HIGH, _LN_2_LOW = 0.6931471803691238, 1.9082149292705877e-10
# Exponents of e: near the limit of float64, and far beyond that of float32.
_LARGEST_POWER = 700.0  # of e: near the end of a float64, and far beyond a float32
# Taylor's series around 0, from the highest power down: enough terms for an eighth of a turn, for the logarithm of
# what is between the root of 1/2 and the root of 2, and for the exponential of half of ln 2.
_ARTANH = tuple(1.0 / n for n in range(23, 0, -2))
_COS = tuple((-1.0) ** (n // 2) / factorial(n) for n in range(16, -1, -2))
_SIN = tuple((-1.0) ** (n // 2) / factorial(n) for n in range(17, 0, -2))
_EXP = tuple(1.0 / factorial(n) for n in range(14, -1, -1))


def log(x: Doubles) -> Doubles:
    """Natural logarithm of positive normal numbers, to about 1e-16 of itself or of ln 2."""
    import numpy as np

    m, exponent = np.frexp(x)
    low = m < _HALF_ROOT
    m = np.where(low, m * 2.0, m)
    s = (m - 1.0) / (m + 1.0)
    scaled: Doubles = (exponent - low).astype(np.float64) * _LN_2
    return scaled + 2.0 * s * _evaluate_polynomial(_ARTANH, s * s)


def exp(x: Doubles) -> Doubles:
    """The exponential of numbers from -700 to 700, to about 2e-16 of itself."""
    import numpy as np

    exponent = np.floor(x * _LOG2_E + 0.5)
    rest = (x - exponent * _LN_2_HIGH) - exponent * _LN_2_LOW
    scaled: Doubles = np.ldexp(_evaluate_polynomial(_EXP, rest), exponent.astype(np.int32))
    return scaled


def power(base: Floats, exponent: float) -> Floats:
    """``base ** exponent`` of numbers that are finite and not negative, in float32.

    Rounded from float64: all but some in a hundred million have the bits of the exact power. An infinite base counts as
    the largest number.
    """
    import numpy as np

    positive = base > 0
    finite = np.where(positive, np.minimum(base, np.finfo(np.float32).max), np.float32(1)).astype(np.float64)
    powers = exp(np.clip(exponent * log(finite), -_LARGEST_POWER, _LARGEST_POWER))
    with np.errstate(over="ignore", under="ignore"):
        return np.where(positive, powers, 0.0 if exponent else 1.0).astype(np.float32)


def cos_of_turns(turns: Doubles) -> Doubles:
    """Cosine of angles from 0 to 1 turns, to about 1e-16."""
    import numpy as np

    quarter = np.floor(turns * 4.0 + 0.5)
    angle = (turns - quarter * 0.25) * _FULL_TURN
    z = angle * angle
    size = np.where(
        (quarter == 1.0) | (quarter == 3.0), _evaluate_polynomial(_SIN, z) * angle, _evaluate_polynomial(_COS, z)
    )
    signed: Doubles = np.where((quarter == 1.0) | (quarter == 2.0), -size, size)
    return signed


def _evaluate_polynomial(coefficients: Sequence[float], z: Doubles) -> Doubles:
    import numpy as np

    total: Doubles = np.full_like(z, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * z + coefficient
    return total
