"""When a cut is taken: announced, acknowledged by every holder of older leases, snapshot by every PS.

The protocol is described in docs/design/0002-record-accounting.md. This module only keeps score; ``job`` acts on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from edl.core.decision import Decision

ACKNOWLEDGE_FLOOR = 5.0
ACKNOWLEDGE_STEPS = 4.0


class Stage(StrEnum):
    """How far a cut is."""

    ANNOUNCED = "announced"
    SNAPSHOT = "snapshot"
    SAVING = "saving"


@dataclass(slots=True)
class Cut:
    """One cut on its way.

    Attributes:
        checkpoint: whether it is written to disk.
        pin: whether the PS keep it in memory for an evaluation or the export.
        holders: uids of workers that may still send pushes stamped below ``number``.
        parts: uids of PS that have not yet taken their snapshot, or not yet saved it.
        pause: seconds from the announcement to the last snapshot; updates waited for a part of it.
        applied: what each PS said of its live leases when it took the snapshot.
    """

    number: int
    checkpoint: bool
    pin: bool
    step: int
    began: float
    holders: set[str] = field(default_factory=set)
    stage: Stage = Stage.ANNOUNCED
    parts: set[str] = field(default_factory=set)
    applied: dict[str, dict[int, int]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    deadline: float = float("inf")
    pause: float = 0.0

    def acknowledged(self, worker: str, known: int) -> None:
        """A worker says that every push of its that is stamped below ``known`` has been answered."""
        if known >= self.number:
            self.holders.discard(worker)

    def let_go(self, worker: str) -> None:
        """A worker holds no leases any more: none of its pushes can arrive and be admitted."""
        self.holders.discard(worker)

    @property
    def awaited(self) -> bool:
        """Whether pushes stamped with its number wait at the PS."""
        return self.stage is not Stage.SAVING

    def overdue(self, now: float) -> bool:
        """Whether the cut should be given up, because others wait behind it."""
        return self.awaited and now >= self.deadline

    def steps(self, born: Mapping[str, int]) -> Decision[dict[int, int] | None]:
        """Steps of each live lease that the cut holds; None when two PS disagree, which the protocol rules out.

        A PS that was restored after a lease was granted may know less of it, but never more.
        """
        agreed: dict[int, int] = {}
        later: dict[int, int] = {}
        for ps, applied in self.applied.items():
            for lease, through in applied.items():
                if born.get(ps, 0) > lease:
                    later[lease] = max(later.get(lease, 0), through)
                elif agreed.setdefault(lease, through) != through:
                    return Decision(None, f"{ps} holds {through} steps of lease {lease}, another PS {agreed[lease]}")
        return Decision({**later, **agreed}, "all PS agree")


def begin(
    number: int, *, checkpoint: bool, pin: bool, step: int, holders: Iterable[str], slowest_step: float, now: float
) -> Cut:
    """A new cut. It is given up after a few of the slowest steps: a stopped worker must not stop the others."""
    deadline = now + max(ACKNOWLEDGE_FLOOR, ACKNOWLEDGE_STEPS * slowest_step)
    return Cut(number, checkpoint, pin, step, now, set(holders), deadline=deadline)


def due(step: int, last: int, every: int | None) -> bool:
    """Whether a multiple of ``every`` steps was passed since the last cut for that purpose.

    Multiples, because a cut comes some steps after it is due: counted from the last one, they would drift apart.
    """
    return bool(every) and step // (every or 1) > last // (every or 1)
