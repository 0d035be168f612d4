"""What the master says to a parameter server, and what it answers, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edl.numerics.embedding_table import EmbeddingTable
from edl.ps.push_updates import PushCounts
from edl.ps.sync_rounds import PendingRound


@dataclass(frozen=True, slots=True)
class MasterAttachment:
    """What a master says when it attaches.

    Attributes:
        incarnation: of the master.
        floor: leases below are closed.
        revoked: revoked leases at or above the floor.
        live: leases of lower incarnations that live on.
        restore: directory of the checkpoint to go back to; None keeps what is here.
        cut: the newest cut that is complete or off.
        slots: ``slots[i]`` is the index of the PS that owns slot i.
        complete: nothing was applied after the checkpoint.
    """

    incarnation: int
    floor: int
    revoked: Sequence[int] = ()
    live: Sequence[int] = ()
    restore: Path | None = None
    cut: int = 0
    slots: Sequence[int] = ()
    complete: bool = False

    def is_same_restore(self, other: MasterAttachment | None) -> bool:
        """Whether ``other`` asked for the very restore that this one asks for: its answer was lost."""
        return other is not None and self._restore_key == other._restore_key

    @property
    def _restore_key(self) -> tuple[int, int, Path | None]:
        return self.incarnation, self.floor, self.restore


@dataclass(frozen=True, slots=True)
class AttachResult:
    """What a master learns when it attaches: ``applied`` is ``through`` by lease, ``pins`` the cuts that are kept."""

    initialized: bool
    version: int
    applied: Mapping[int, int]
    pins: Sequence[int]


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """A snapshot that was taken.

    Attributes:
        pause: for so many seconds no step was let in.
        entered: steps let in since the parameters were made, or went back to a checkpoint.
    """

    cut: int
    version: int
    pause: float
    entered: int = 0


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
