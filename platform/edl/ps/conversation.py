"""What workers and the master say to a parameter server, and what it answers, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from edl.ps.leases import Admission


class Stamp(NamedTuple):
    """Which step a push is: its lease, the step's index in it, and the cut that the worker knew."""

    lease: int
    step: int
    cut: int


class PushResult(NamedTuple):
    """What became of a push; ``version`` counts the pushes applied, ``cut`` is the newest announced one."""

    admission: Admission
    version: int
    cut: int


@dataclass(frozen=True, slots=True)
class Attachment:
    """What a master says when it attaches.

    Attributes:
        incarnation: of the master.
        floor: leases below are closed.
        revoked: revoked leases at or above the floor.
        live: leases of lower incarnations that live on.
        restore: directory of the checkpoint to go back to; None keeps what is here.
        cut: the newest cut that is complete or off.
        slots: ``slots[i]`` is the index of the PS that owns slot i.
    """

    incarnation: int
    floor: int
    revoked: Sequence[int] = ()
    live: Sequence[int] = ()
    restore: Path | None = None
    cut: int = 0
    slots: Sequence[int] = ()

    def same_restore(self, other: Attachment | None) -> bool:
        """Whether ``other`` asked for the very restore that this one asks for: its answer was lost."""
        return other is not None and self._restore_key == other._restore_key

    @property
    def _restore_key(self) -> tuple[int, int, Path | None]:
        return self.incarnation, self.floor, self.restore


@dataclass(frozen=True, slots=True)
class State:
    """What a master learns when it attaches: ``applied`` is ``through`` by lease, ``pins`` the cuts that are kept."""

    initialized: bool
    version: int
    applied: Mapping[int, int]
    pins: Sequence[int]


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot that was taken; ``copy_seconds`` is how long pushes were kept out for the copy alone."""

    cut: int
    version: int
    applied: Mapping[int, int]
    copy_seconds: float
