"""Kubernetes' quantities (``500m``, ``2Gi``, ``1e3``) as exact numbers, and resources that are counted in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

Resources = Mapping[str, Fraction]
"""Amounts by resource: ``cpu`` in cores, ``memory`` in bytes, devices and pods in pieces."""

_TEXT = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?[0-9]{1,3}))?")
_UNITS = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", start=1)},
}
_BYTES = ("memory", "storage", "ephemeral-storage")


@lru_cache(maxsize=4096)
def quantity(text: str | int | float) -> Fraction:
    """The number that a quantity means; raises ValueError for anything that is none."""
    match = _TEXT.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a quantity")
    number, unit, exponent = match.groups()
    return Fraction(number) * (_UNITS[unit] if unit else Fraction(10) ** int(exponent or 0))


def resources(amounts: Mapping[str, Any] | None) -> dict[str, Fraction]:
    """The amounts of a ``requests``, ``allocatable`` or ``hard``."""
    return {name: quantity(amount) for name, amount in (amounts or {}).items()}


def total(parts: Iterable[Resources]) -> dict[str, Fraction]:
    """The sum of all."""
    found: dict[str, Fraction] = {}
    for part in parts:
        for name, amount in part.items():
            found[name] = found.get(name, Fraction()) + amount
    return found


def largest(parts: Iterable[Resources]) -> dict[str, Fraction]:
    """The largest amount of each resource."""
    found: dict[str, Fraction] = {}
    for part in parts:
        for name, amount in part.items():
            found[name] = max(found.get(name, amount), amount)
    return found


def less(one: Resources, other: Resources) -> dict[str, Fraction]:
    """What of ``one`` is left without ``other``; negative where that is more."""
    return {name: amount - other.get(name, 0) for name, amount in one.items()}


def lacks(room: Resources, wanted: Resources) -> list[str]:
    """The resources of which there is too little; one that ``room`` does not name is not there."""
    return [name for name, amount in wanted.items() if amount > room.get(name, 0)]


def said(name: str, amount: Fraction) -> str:
    """An amount for people: ``1.5 CPU``, ``2 GiB``, ``1 nvidia.com/gpu``."""
    kind = plain(name)
    if kind == "cpu":
        return f"{_short(amount)} CPU"
    if kind in _BYTES:
        return _size(amount) + ("" if kind == "memory" else f" {kind}")
    return f"{_short(amount)} {kind}"


def plain(name: str) -> str:
    """The resource of a quota's ``requests.cpu`` or ``limits.cpu``."""
    return name.removeprefix("requests.").removeprefix("limits.")


def all_said(amounts: Resources) -> str:
    """Amounts for people, CPU and memory first; ``nothing`` if there are none."""
    order = sorted(amounts, key=lambda name: (name != "cpu", name != "memory", name))
    return ", ".join(said(name, amounts[name]) for name in order if amounts[name]) or "nothing"


def _size(amount: Fraction) -> str:
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(amount) >= 1024**power:
            return f"{_short(amount / 1024**power)} {unit}"
    return f"{_short(amount)} bytes"


def _short(amount: Fraction) -> str:
    return f"{float(amount):.2f}".rstrip("0").rstrip(".") if abs(amount) < 100 else f"{float(amount):,.0f}"
