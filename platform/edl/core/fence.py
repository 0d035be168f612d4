"""The port that keeps two masters of one job apart.

Implementations: ``edl.kube.lease`` (a ``coordination.k8s.io`` Lease). On one machine the journal's lock does.
"""

from __future__ import annotations

from typing import Protocol


class Fence(Protocol):
    """The right to decide for a job, held for a while and renewed."""

    @property
    def incarnation(self) -> int:
        """A number above that of every master that held the right before."""
        ...

    def holds(self) -> bool:
        """Whether the right cannot have passed to another yet. Cheap: asked before every decision."""
        ...

    def lost(self) -> bool:
        """Whether another master has it: this one must end."""
        ...

    def release(self) -> None:
        """Give the right back, so that the next master need not wait."""
        ...
