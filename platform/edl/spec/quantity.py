"""Quantities as people write them: ``2Mi`` bytes, ``500m`` cores, ``1h30m``; each parser gives one documented unit."""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
SIZE_PATTERN = rf"^{_NUMBER}(?:[KMGT]i|[kMGT])?$"
CORES_PATTERN = rf"^{_NUMBER}m?$"
DURATION_PATTERN = rf"^(?:{_NUMBER}(?:ms|s|m|h|d))+$"

_SIZES = {
    "": 1,
    **{unit: 1000**power for power, unit in enumerate("kMGT", start=1)},
    **{f"{unit}i": 1024**power for power, unit in enumerate("KMGT", start=1)},
}
_SECONDS = {"ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "h": Fraction(3600), "d": Fraction(86400)}


def size(text: str) -> int:
    """Bytes of ``2Mi``, ``1.5G`` or ``4096``; raises ValueError for anything else and for parts of a byte."""
    number, unit = _split(text, SIZE_PATTERN)
    exact = Fraction(number) * _SIZES[unit]
    if exact.denominator != 1:
        raise ValueError(text)
    return int(exact)


def cores(text: str) -> float:
    """CPU cores of ``500m`` (thousandths), ``2`` or ``1.5``; raises ValueError for anything else."""
    number, unit = _split(text, CORES_PATTERN)
    return float(Fraction(number) / (1000 if unit else 1))


def duration(text: str) -> float:
    """Seconds of ``30m``, ``1h30m``, ``250ms``, ``1.5s`` or ``2d``; raises ValueError for anything else."""
    if not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError(text)
    parts = re.findall(rf"({_NUMBER})(ms|s|m|h|d)", text)
    return float(sum(Fraction(number) * _SECONDS[unit] for number, unit in parts))


def _split(text: str, pattern: str) -> tuple[str, str]:
    if not re.fullmatch(pattern, text):
        raise ValueError(text)
    number = re.match(_NUMBER, text)
    assert number is not None
    return number.group(), text[number.end() :]
