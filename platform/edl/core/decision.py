"""A decision and the reason for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Decision(Generic[T_co]):
    """A decided value and the reason for it, which is shown to users."""

    value: T_co
    reason: str
