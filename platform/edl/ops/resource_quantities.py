"""Kubernetes quantities (``500m``, ``2Gi``, ``1e3``) as exact numbers, and amounts of resources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from edl.reporting.unit_formats import format_bytes, format_number

ResourceAmounts = Mapping[str, Fraction]
"""Amounts by resource: ``cpu`` in cores, ``memory`` in bytes, devices and pods in pieces."""

_QUANTITY_PATTERN = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?[0-9]{1,3}))?")
_UNIT_FACTORS = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", start=1)},
}
_BYTE_RESOURCES = ("memory", "storage", "ephemeral-storage")


@lru_cache(maxsize=4096)
def parse_quantity(text: str | int | float) -> Fraction:
    """The value of a quantity. Raises ValueError if the text is not a quantity."""
    match = _QUANTITY_PATTERN.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a quantity")
    number, unit, exponent = match.groups()
    return Fraction(number) * (_UNIT_FACTORS[unit] if unit else Fraction(10) ** int(exponent or 0))


def parse_resources(amounts: Mapping[str, Any] | None) -> dict[str, Fraction]:
    """The amounts of a ``requests``, ``allocatable`` or ``hard``."""
    return {name: parse_quantity(amount) for name, amount in (amounts or {}).items()}


def sum_resources(parts: Iterable[ResourceAmounts]) -> dict[str, Fraction]:
    """Amounts added by resource; a part that lacks a resource adds nothing to it."""
    total: dict[str, Fraction] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, Fraction()) + amount
    return total


def max_resources(parts: Iterable[ResourceAmounts]) -> dict[str, Fraction]:
    """The largest amount of each resource."""
    largest: dict[str, Fraction] = {}
    for part in parts:
        for name, amount in part.items():
            largest[name] = max(largest.get(name, amount), amount)
    return largest


def subtract_resources(minuend: ResourceAmounts, subtrahend: ResourceAmounts) -> dict[str, Fraction]:
    """``minuend`` minus ``subtrahend``; negative where ``subtrahend`` is larger."""
    return {name: amount - subtrahend.get(name, 0) for name, amount in minuend.items()}


def lacking_resources(available: ResourceAmounts, wanted: ResourceAmounts) -> list[str]:
    """The insufficient resources. One that ``available`` does not name counts as 0."""
    return [name for name, amount in wanted.items() if amount > available.get(name, 0)]


def format_amount(name: str, amount: Fraction) -> str:
    """An amount as text: ``1.5 CPU``, ``2 GiB``, ``1 nvidia.com/gpu``."""
    kind = base_resource(name)
    if kind == "cpu":
        return f"{format_number(amount)} CPU"
    if kind in _BYTE_RESOURCES:
        return format_bytes(amount) + ("" if kind == "memory" else f" {kind}")
    return f"{format_number(amount)} {kind}"


def base_resource(name: str) -> str:
    """The resource of a quota's ``requests.cpu`` or ``limits.cpu``."""
    return name.removeprefix("requests.").removeprefix("limits.")


def format_amounts(amounts: ResourceAmounts) -> str:
    """Amounts as text, CPU and memory first; ``nothing`` if there are none."""
    order = sorted(amounts, key=lambda name: (name != "cpu", name != "memory", name))
    return ", ".join(format_amount(name, amounts[name]) for name in order if amounts[name]) or "nothing"
