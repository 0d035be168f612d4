"""One step as it goes to the parameter servers, and what they say to it."""

from __future__ import annotations

from dataclasses import dataclass

from edl.worker.slab import Floats, RowsByTable


@dataclass(frozen=True, slots=True)
class Push:
    """One step of one lease.

    Attributes:
        lease: the lease's number.
        step: index in the lease, from 0.
        cut: the stamp.
        learning_rate: of this step.
        weight: records of this minibatch by records of a full one; weighs statistics.
        slab: gradients (statistics: deltas), float32; None for a step that applies nothing.
        rows: gradients by table, aligned to their ids.
        versions: by PS, of the values that it was computed at (``Parameters.versions``).
        following: the lease of the push after this one; 0 if there is none in hand: rounds do not wait for it.
    """

    lease: int
    step: int
    cut: int
    learning_rate: float = 0.0
    weight: float = 0.0
    slab: Floats | None = None
    rows: RowsByTable | None = None
    versions: tuple[int, ...] = ()
    following: int = 0


@dataclass(frozen=True, slots=True)
class PushResult:
    """What the PS said.

    Attributes:
        revoked: one of them refuses the lease.
        version: the highest of theirs.
        cut: the newest that was announced.
        stale: nothing was applied anywhere: the gradient is to be computed again, of the values as they are now.
    """

    revoked: bool
    version: int
    cut: int
    stale: bool = False

    @property
    def is_in(self) -> bool:
        """The step is on all PS."""
        return not (self.revoked or self.stale)
