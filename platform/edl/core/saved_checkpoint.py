"""A checkpoint, as the core knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

STOPPED = "stopped by its user"
FINAL_SECONDS = 10.0
"""How long a final checkpoint may take on one machine."""


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that is complete on disk."""

    cut: int
    step: int
    version: int
    ledger: Mapping[str, Any]


@dataclass(slots=True)
class CheckpointFailure:
    """The newest attempt to write a checkpoint failed.

    Attributes:
        reason: for people.
        paused_at: since when no further step is handed out; None while training goes on.
    """

    reason: str
    paused_at: float | None = None
