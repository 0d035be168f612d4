"""What the summary of a job says besides its ledger."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class JobCounters:
    """What the summary says besides the ledger.

    Attributes:
        updates_of: of ``updates_rolled_back``, those of each PS, by its index in decimal: JSON has no other keys.
        steps_not_applied: steps that workers reported as done and that a PS that lost nothing did not apply, or the
            other way round: see ``balance``.
        skipped: corrupt records that were left out, counted every time.
        loading: Python that loads the export, where it takes more than Keras.
        corrupt: of them, by pass over a data set: what ``data.max_corrupt_records`` limits.
    """

    repeated: int = 0
    partial: int = 0
    skipped: int = 0
    rolled_back: int = 0
    updates_rolled_back: int = 0
    steps_not_applied: int = 0
    updates_of: dict[str, int] = field(default_factory=dict)
    workers_lost: int = 0
    loss: float | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    corrupt: dict[str, int] = field(default_factory=dict)
    exported: list[str] = field(default_factory=list)
    loading: str = ""
