"""What the summary of a job says besides its ledger."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """What the summary says besides the ledger."""

    repeated: int = 0
    partial: int = 0
    skipped: int = 0
    rolled_back: int = 0
    updates_rolled_back: int = 0
    workers_lost: int = 0
    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    exported: list[str] = field(default_factory=list)
