"""Requests of the master to a parameter server and the answers, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edl.numerics.embedding_table import EmbeddingTable
from edl.ps.push_updates import PushCounts
from edl.ps.sync_rounds import PendingRound


@dataclass(frozen=True, slots=True)
class MasterAttachment:
    """The master's attach request.

    Attributes:
        incarnation: of the master.
        lowest_open_lease: leases below are closed.
        revoked_leases: revoked leases at or above the floor.
        live_leases: leases of lower incarnations that live on.
        restore_directory: directory of the checkpoint to go back to; None keeps what is here.
        last_finished_cut: the newest cut that is complete or off.
        slot_owners: ``slots[i]`` is the index of the PS that owns slot i.
        covers_all_steps: nothing was applied after the checkpoint.
    """

    incarnation: int
    lowest_open_lease: int
    revoked_leases: Sequence[int] = ()
    live_leases: Sequence[int] = ()
    restore_directory: Path | None = None
    last_finished_cut: int = 0
    slot_owners: Sequence[int] = ()
    covers_all_steps: bool = False

    def is_same_restore(self, other: MasterAttachment | None) -> bool:
        """Whether ``other`` requested exactly this restore: its answer was lost."""
        return other is not None and self._restore_key == other._restore_key

    @property
    def _restore_key(self) -> tuple[int, int, Path | None]:
        return self.incarnation, self.lowest_open_lease, self.restore_directory


@dataclass(frozen=True, slots=True)
class AttachResult:
    """The PS's answer to an attach request.

    ``applied_steps`` is ``through`` by lease, ``pinned_cuts`` the cuts that are kept.
    """

    initialized: bool
    version: int
    applied_steps: Mapping[int, int]
    pinned_cuts: Sequence[int]


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """The result of a snapshot.

    Attributes:
        pause_seconds: for so many seconds no step was let in.
        admitted_steps: steps let in since the parameters were made, or went back to a checkpoint.
    """

    cut: int
    version: int
    pause_seconds: float
    admitted_steps: int = 0


@dataclass(frozen=True, slots=True)
class PsStatistics:
    """Statistics of a parameter server at one moment.

    Attributes:
        version: updates that are in its values.
        push_counts: of its pushes.
        pending_round: the update that waits for more pushes; None while none does, and in asynchronous mode.
        tables: by name.
    """

    version: int
    push_counts: PushCounts
    pending_round: PendingRound | None
    tables: Mapping[str, EmbeddingTable]
