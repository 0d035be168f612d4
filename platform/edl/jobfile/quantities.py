"""Quantities with units: ``2Mi`` bytes, ``500m`` cores, ``1h30m``. Each parser returns one documented unit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from edl.api.fields import JsonValue, Quantity
from edl.jobfile.document_tree import DocumentNode, ReadContext
from edl.jobfile.scalar_types import ScalarType, to_finite_float, to_whole_number

_NUMBER_PATTERN = r"[0-9]+(?:\.[0-9]+)?"
_POSITIVE_NUMBER_PATTERN = r"(?:0*[1-9][0-9]*(?:\.[0-9]+)?|0+\.0*[1-9][0-9]*)"
"""The same without 0. It uses no look-ahead, because the regular expressions of Helm's schemas (Go) have none."""
SIZE_PATTERN = rf"^{_NUMBER_PATTERN}(?:[KMGT]i|[kMGT])?$"
CORES_PATTERN = rf"^{_NUMBER_PATTERN}m?$"
DURATION_PATTERN = rf"^(?:{_NUMBER_PATTERN}(?:ms|s|m|h|d))+$"

_BYTES_PER_UNIT = {
    "": 1,
    **{unit: 1000**power for power, unit in enumerate("kMGT", start=1)},
    **{f"{unit}i": 1024**power for power, unit in enumerate("KMGT", start=1)},
}
_SECONDS_PER_UNIT = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}


@dataclass(frozen=True, slots=True)
class QuantityType(ScalarType):
    """A number in the documented unit, or text with a unit of its own: ``2Mi``, ``500m``, ``30m``."""

    parse: Callable[[str], float]
    pattern: str
    description: str
    is_whole_number: bool = False
    above_zero: bool = False

    @property
    def expected_text(self) -> str:
        return self.description

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        plain = to_whole_number if self.is_whole_number else to_finite_float
        number = self._parse_or_none(node.value) if isinstance(node.value, str) else plain(node.value)
        allowed = number is not None and (number > 0 if self.above_zero else number >= 0)
        return number if allowed else self.report_invalid_value(node, place)

    def schema(self) -> dict[str, JsonValue]:
        return {
            "anyOf": [
                {
                    "type": "integer" if self.is_whole_number else "number",
                    "exclusiveMinimum" if self.above_zero else "minimum": 0,
                },
                {"type": "string", "pattern": self.pattern},
            ]
        }

    def _parse_or_none(self, text: str) -> float | None:
        try:
            return self.parse(text)
        except (ValueError, OverflowError):
            return None


def parse_size(text: str) -> int:
    """Bytes of ``2Mi``, ``1.5G`` or ``4096``; raises ValueError for anything else, and for fractions of a byte."""
    # exact arithmetic, so that a fraction of a byte is an error and is not rounded away
    number, unit = _split_unit(text, SIZE_PATTERN)
    exact = Fraction(number) * _BYTES_PER_UNIT[unit]
    if exact.denominator != 1:
        raise ValueError(text)
    return int(exact)


def parse_cores(text: str) -> float:
    """CPU cores of ``500m`` (thousandths), ``2`` or ``1.5``; raises ValueError for anything else."""
    number, unit = _split_unit(text, CORES_PATTERN)
    return float(Fraction(number) / (1000 if unit else 1))


def format_size(count: int) -> str:
    """Bytes as Kubernetes writes them, exactly: ``2Gi``, ``1536Mi``, ``1500000000``."""
    # only units that give a whole number, so that nothing is rounded
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if count and count % _BYTES_PER_UNIT[unit] == 0:
            return f"{count // _BYTES_PER_UNIT[unit]}{unit}"
    return str(count)


def format_cores(count: float) -> str:
    """Cores as Kubernetes writes them: ``2``, ``250m``. Rounded up, so that a positive number never becomes 0."""
    # round() first: 0.1 * 3 cores would otherwise be rounded up to 301m
    thousandths = max(math.ceil(round(count * 1000, 6)), int(count > 0))
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


def parse_duration(text: str) -> float:
    """Seconds of ``30m``, ``1h30m``, ``250ms``, ``1.5s`` or ``2d``; raises ValueError for anything else."""
    if not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError(text)
    parts = re.findall(rf"({_NUMBER_PATTERN})(ms|s|m|h|d)", text)
    return float(sum(Fraction(number) * _SECONDS_PER_UNIT[unit] for number, unit in parts))


def _split_unit(text: str, pattern: str) -> tuple[str, str]:
    if not re.fullmatch(pattern, text):
        raise ValueError(text)
    number = re.match(_NUMBER_PATTERN, text)
    assert number is not None
    return number.group(), text[number.end() :]


QUANTITY_TYPES: Mapping[Quantity, QuantityType] = {
    Quantity.SIZE: QuantityType(
        parse_size, SIZE_PATTERN, "a size such as 2Mi, 1.5G or a number of bytes", is_whole_number=True
    ),
    Quantity.POSITIVE_SIZE: QuantityType(
        parse_size,
        SIZE_PATTERN.replace(_NUMBER_PATTERN, _POSITIVE_NUMBER_PATTERN),
        "a size above 0 such as 2Mi, 1.5G or a number of bytes",
        is_whole_number=True,
        above_zero=True,
    ),
    Quantity.POSITIVE_CORES: QuantityType(
        parse_cores,
        CORES_PATTERN.replace(_NUMBER_PATTERN, _POSITIVE_NUMBER_PATTERN),
        "CPU cores above 0 such as 2, 1.5 or 500m",
        above_zero=True,
    ),
    Quantity.DURATION: QuantityType(
        parse_duration, DURATION_PATTERN, "a duration such as 30m, 1h30m, 45s or a number of seconds"
    ),
}
"""The valid values of each kind of quantity."""
