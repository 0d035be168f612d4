"""What workers and the master say to a parameter server, and what it answers, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from edl.ps.applied_steps import AdmissionOutcome
from edl.ps.sync_rounds import PushId


@dataclass(frozen=True, slots=True)
class PushOrigin:
    """Where a push comes from, and what goes with it.

    Attributes:
        worker: index of the worker.
        link: the connection.
        version: of the values that the gradient was computed at.
        following: lease of the worker's next push; 0: it has none in hand.
        round: the pushes that are one update with it, if the first PS has said so.
        again: this is not the first try.
    """

    worker: int = 0
    link: int = 0
    version: int = 0
    following: int = 0
    round: tuple[PushId, ...] = ()
    again: bool = False


class PushReply(NamedTuple):
    """What became of a push.

    Attributes:
        admission: whether it is in.
        version: updates that were applied.
        round: the pushes of the update that it is in, in synchronous mode.
    """

    admission: AdmissionOutcome
    version: int
    round: tuple[PushId, ...] = ()


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
