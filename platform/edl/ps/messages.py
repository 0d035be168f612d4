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
        incarnation: the master's incarnation.
        lowest_open_lease: every lease below this number is closed.
        revoked_leases: revoked leases that are not below ``lowest_open_lease``.
        live_leases: leases of lower incarnations that stay valid.
        restore_directory: directory of the checkpoint to load; None keeps the present parameters.
        last_finished_cut: the newest cut that is complete or aborted.
        slot_owners: the index of the PS that owns each slot.
        covers_all_steps: no PS applied a step after the checkpoint.
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
        """Whether ``other`` requested exactly this restore, so this one repeats it: the answer was lost."""
        return other is not None and self._restore_key == other._restore_key

    @property
    def _restore_key(self) -> tuple[int, int, Path | None]:
        # With the lowest open lease, because a job may roll back to the same checkpoint again.
        return self.incarnation, self.lowest_open_lease, self.restore_directory


@dataclass(frozen=True, slots=True)
class AttachResult:
    """The PS's answer to an attach request.

    ``applied_steps`` has the number of applied steps by lease, ``pinned_cuts`` the cuts that are kept.
    """

    initialized: bool
    version: int
    applied_steps: Mapping[int, int]
    pinned_cuts: Sequence[int]


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """The result of a snapshot.

    Attributes:
        pause_seconds: seconds for which no step was admitted.
        admitted_steps: steps admitted since the parameters were created or rolled back.
    """

    cut: int
    version: int
    pause_seconds: float
    admitted_steps: int = 0


@dataclass(frozen=True, slots=True)
class PsStatistics:
    """Statistics of a parameter server at one moment.

    Attributes:
        version: number of applied updates.
        push_counts: counts of its pushes.
        pending_round: the incomplete round; None if there is none, and in asynchronous mode.
        tables: the embedding tables by name.
    """

    version: int
    push_counts: PushCounts
    pending_round: PendingRound | None
    tables: Mapping[str, EmbeddingTable]
