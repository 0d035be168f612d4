"""A checkpoint, as the core knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that is complete on disk."""

    cut: int
    step: int
    version: int
    ledger: Mapping[str, Any]
