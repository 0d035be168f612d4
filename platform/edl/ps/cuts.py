"""Cuts: which pushes wait, and which copies are kept.

A push that is stamped with cut k was computed after k was known, so it must not be in snapshot k: it waits until the
snapshot has been taken (or the cut is off). See docs/design/0002-record-accounting.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from edl.core.errors import RefusedError

Copy = TypeVar("Copy")


class CutError(RefusedError):
    """A cut that cannot be taken any more."""

    kind = "cut"


class PinError(RefusedError):
    """A pinned version that is not kept here."""

    kind = "pin"


class Cuts(Generic[Copy]):
    """The cuts of one PS; ``Copy`` is what a snapshot is."""

    def __init__(self) -> None:
        self._announced = 0
        self._passed = 0
        self._pins: dict[int, Copy] = {}

    @property
    def announced(self) -> int:
        """The newest cut that workers are told of."""
        return self._announced

    def announce(self, cut: int) -> None:
        """Tell workers of a cut from now on."""
        self._announced = max(self._announced, cut)

    def waits(self, stamp: int) -> bool:
        """A push with this stamp must wait."""
        return stamp > self._passed

    def check_open(self, cut: int) -> None:
        """Refuse to take a cut that is over.

        Raises:
            CutError: pushes stamped with it were let in already.
        """
        if cut <= self._passed:
            raise CutError(f"cut {cut} cannot be taken: pushes stamped up to {self._passed} were let in")

    def taken(self, cut: int, copy: Copy, *, pin: bool) -> None:
        """The state was copied: pushes stamped up to ``cut`` may go in; ``pin`` keeps the copy."""
        self.passed(cut)
        if pin:
            self._pins[cut] = copy

    def passed(self, cut: int) -> None:
        """Let pushes stamped up to ``cut`` in: it is complete, or off."""
        self.announce(cut)
        self._passed = max(self._passed, cut)

    def release(self, cut: int) -> Copy | None:
        """The cut is off: nothing of it is kept; returns the copy if it was pinned."""
        self.passed(cut)
        return self._pins.pop(cut, None)

    def pinned(self, cut: int) -> Copy:
        """The copy of a pinned cut; raises PinError if it is not kept."""
        if cut not in self._pins:
            raise PinError(f"cut {cut} is not pinned here", hint=f"pinned: {sorted(self._pins)}")
        return self._pins[cut]

    def unpin(self, cut: int) -> Copy | None:
        """Forget the copy and return it; None if it is not kept."""
        return self._pins.pop(cut, None)

    def pins(self) -> Iterator[int]:
        """The pinned cuts, in increasing order."""
        return iter(sorted(self._pins))
