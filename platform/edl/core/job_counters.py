"""The job's counters that are not in the ledger; entries change them, and snapshots hold them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class JobCounters:
    """Counters for the summary that are not in the ledger.

    Attributes:
        updates_of: ``updates_rolled_back`` by PS index; the keys are strings, as in JSON.
        steps_not_applied: steps that workers reported as done and a PS did not apply although it lost
            nothing, or the reverse; see ``update_accounting``.
        skipped: corrupt records that were skipped, counted each time.
        updates_skipped: steps that changed nothing because a loss or gradient was not finite.
        warnings: of workers, by topic.
        loading: Python code that loads the export, if Keras alone cannot.
        corrupt: corrupt records by pass over a data set, which ``data.max_corrupt_records`` limits.
    """

    repeated: int = 0
    partial: int = 0
    skipped: int = 0
    rolled_back: int = 0
    updates_rolled_back: int = 0
    steps_not_applied: int = 0
    updates_skipped: int = 0
    updates_of: dict[str, int] = field(default_factory=dict)
    workers_lost: int = 0
    loss: float | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    corrupt: dict[str, int] = field(default_factory=dict)
    exported: list[str] = field(default_factory=list)
    loading: str = ""
    warnings: dict[str, list[str]] = field(default_factory=dict)
