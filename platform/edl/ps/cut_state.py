"""Cuts on one PS: which steps wait, and which copies are kept.

While updates are paused for a cut, a step is admitted only if another PS already has it. So all PS
copy the same steps. See docs/design/0002-record-accounting.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from edl.api.errors import RefusedError
from edl.numerics.parameter_snapshot import PinError

CopyT = TypeVar("CopyT")

MAX_PAUSE_SECONDS = 5.0
"""Maximum pause in seconds, whatever happens to the master."""
MAX_CUTS_AHEAD = 100
"""How far a cut's number may be above the last known one.

Masters number cuts consecutively and send each one to every PS. A much higher number is forged: if
it were accepted, every cut below it would be refused as finished.
"""


class CutError(RefusedError):
    """The cut can no longer be taken."""

    kind = "cut"


class CutState(Generic[CopyT]):
    """The cuts of one PS; ``CopyT`` is the type of a snapshot. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._last_finished_cut = 0
        # The cut that pushes are paused for, and the one whose copy exists while they stay paused;
        # 0: none.
        self._paused_cut = 0
        self._copied_cut = 0
        self._paused_since = 0.0
        self._included_steps: Mapping[int, int] = {}
        self._pinned_copies: dict[int, CopyT] = {}

    def pause_pushes(self, cut: int, now: float) -> None:
        """Pause all steps from now on; repeating this for the same cut changes nothing.

        Raises:
            CutError: the cut is finished, so steps were admitted after it.
        """
        self.check_open(cut)
        # The request may be repeated. A later cut replaces one whose master is gone.
        if cut > self._paused_cut:
            self._paused_cut, self._paused_since, self._included_steps, self._copied_cut = cut, now, {}, 0

    def include_steps(self, cut: int, included_steps: Mapping[int, int]) -> None:
        """Declare that steps below ``included_steps`` of a lease belong to the cut."""
        if cut == self._paused_cut:
            self._included_steps = included_steps

    def must_wait(self, lease: int, step: int) -> bool:
        # Steps below belong to the cut: another server has them, so this one needs them in its
        # copy.
        return self._paused_cut > 0 and step >= self._included_steps.get(lease, 0)

    @property
    def is_paused(self) -> bool:
        """Whether steps are paused."""
        return self._paused_cut > 0

    @property
    def pause_deadline(self) -> float:
        """When the pause for the current cut times out; infinite if there is no cut or its copy was made.

        After the copy, steps wait for the successor of a PS, which may have to wait to be
        scheduled; the master, or the next one, ends that pause.
        """
        return self._paused_since + MAX_PAUSE_SECONDS if self._paused_cut and not self._copied_cut else float("inf")

    def expire_pause(self, now: float) -> bool:
        """Abort a cut whose pause timed out; returns whether there was one."""
        if now < self.pause_deadline:
            return False
        self.finish_cut(self._paused_cut)
        return True

    def paused_seconds(self, now: float) -> float:
        """Seconds since the pause began; 0 without a pause."""
        return now - self._paused_since if self._paused_cut else 0.0

    def is_open(self, cut: int) -> bool:
        """Whether the cut can still be taken."""
        return cut > self._last_finished_cut

    def check_open(self, cut: int) -> None:
        """Refuse a cut that is finished.

        Raises:
            CutError: steps were admitted after the cut, or no master can have reached its number.
        """
        if not self.is_open(cut):
            raise CutError(f"cut {cut} is finished: updates continued after cut {self._last_finished_cut}")
        self.check_reachable(cut)

    def check_reachable(self, cut: int) -> None:
        """Refuse a cut number that no master can have reached.

        Raises:
            CutError: the number is too high.
        """
        last = max(self._last_finished_cut, self._paused_cut)
        if cut > last + MAX_CUTS_AHEAD:
            raise CutError(f"cut {cut} is more than {MAX_CUTS_AHEAD} above cut {last}, the last one of this PS")

    def record_copy(self, cut: int, copy: CopyT, *, pin: bool, keep_paused: bool = False) -> None:
        """Record that the copy was made and resume steps.

        ``keep_paused``: steps resume only with ``release_cut``. ``pin`` keeps the copy.
        """
        if keep_paused:
            # Pushes admitted now would be in no copy, and lost with the server that is about to
            # exit.
            self._copied_cut = cut
        else:
            self.finish_cut(cut)
        if pin:
            self._pinned_copies[cut] = copy

    def finish_cut(self, cut: int) -> None:
        """Finish a complete or aborted cut: nothing waits for it any more."""
        # A late message about an older cut must not reopen it.
        self._last_finished_cut = max(self._last_finished_cut, cut)
        if self._paused_cut <= self._last_finished_cut:
            self._paused_cut, self._included_steps, self._copied_cut = 0, {}, 0

    def release_cut(self, cut: int) -> CopyT | None:
        """Abort a cut or end its pause: resume steps; returns the copy if it was pinned."""
        self.finish_cut(cut)
        return self._pinned_copies.pop(cut, None)

    def pinned_copy(self, cut: int) -> CopyT:
        """The copy of a pinned cut; raises PinError if it is not kept."""
        if cut not in self._pinned_copies:
            raise PinError(f"cut {cut} is not pinned here", hint=f"pinned: {sorted(self._pinned_copies)}")
        return self._pinned_copies[cut]

    def unpin_cut(self, cut: int) -> CopyT | None:
        """Drop the copy and return it; None if it is not kept."""
        return self._pinned_copies.pop(cut, None)

    def pinned_cuts(self) -> Iterator[int]:
        """The pinned cuts, in increasing order."""
        return iter(sorted(self._pinned_copies))
