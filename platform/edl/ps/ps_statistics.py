"""What a parameter server says of itself: its pushes, the update that forms now, its tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edl.numerics.embedding_table import Table
from edl.ps.push_counts import PushCounts
from edl.ps.sync_rounds import Forming


@dataclass(frozen=True, slots=True)
class Account:
    """One moment of a parameter server.

    Attributes:
        version: updates that are in its values.
        counts: of its pushes.
        forming: the update that waits for more pushes; None while none does, and in asynchronous mode.
        tables: by name.
    """

    version: int
    counts: PushCounts
    forming: Forming | None
    tables: Mapping[str, Table]
