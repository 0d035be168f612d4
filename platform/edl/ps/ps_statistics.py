"""What a parameter server says of itself: its pushes, the update that forms now, its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edl.numerics.embedding_table import EmbeddingTable
from edl.ps.push_updates import PushCounts
from edl.ps.sync_rounds import PendingRound


@dataclass(frozen=True, slots=True)
class PsStatistics:
    """One moment of a parameter server.

    Attributes:
        version: updates that are in its values.
        counts: of its pushes.
        forming: the update that waits for more pushes; None while none does, and in asynchronous mode.
        tables: by name.
    """

    version: int
    counts: PushCounts
    forming: PendingRound | None
    tables: Mapping[str, EmbeddingTable]
