"""The CRC-32 of bytes that are put together: zlib's ``crc32_combine``, which Python does not have.

CRC-32 is linear: what the bytes behind add to it does not depend on what stands in front of them, but for the front's
checksum times x^(8n), a polynomial over GF(2) modulo the CRC's own (https://zlib.net/crc_v3.txt).
"""

from __future__ import annotations

_MODULUS = 0xEDB88320
"""Of CRC-32; the highest power of x is the lowest bit."""
_ONE = 1 << 31
_BYTE = _ONE >> 8
"""x^8: one byte further."""


def combine_crc32(front: int, back: int, length: int) -> int:
    """The crc32 of two pieces of bytes behind each other.

    Args:
        front: crc32 of the first one.
        back: crc32 of the second one.
        length: bytes of the second one.
    """
    return _multiply_polynomials(_raise_polynomial(_BYTE, length), front) ^ back


def _multiply_polynomials(one: int, other: int) -> int:
    result = 0
    for bit in range(31, -1, -1):
        if one >> bit & 1:
            result ^= other
        other = other >> 1 ^ (_MODULUS if other & 1 else 0)
    return result


def _raise_polynomial(base: int, exponent: int) -> int:
    result = _ONE
    while exponent:
        if exponent & 1:
            result = _multiply_polynomials(result, base)
        base = _multiply_polynomials(base, base)
        exponent >>= 1
    return result
