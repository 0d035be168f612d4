"""The port between a master and people who have no route to it: what it tells, and what they want of it.

Implementations: ``edl.cluster.kubernetes.status_publisher`` (a ConfigMap, and an annotation of the Job); on one
machine files and signals do, and there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DesiredState:
    """What somebody wants of a job that runs; None: as the spec says.

    Attributes:
        min: below so many workers the job is called starved.
        max: so many workers are asked for.
        stop: end the job now; it can be resumed.
        unreadable: what is wrong with what somebody wrote; numbers of workers are then as they were.
    """

    min: int | None = None
    max: int | None = None
    stop: bool = False
    unreadable: str = ""


class StatusPublisher(Protocol):
    """Where a job's status hangs out, and where wishes are pinned."""

    def publish(self, pages: Mapping[str, str]) -> None:
        """Show these pages, by name, in place of those before. Returns at once; the newest pages win."""
        ...

    def watch_desired_state(self) -> Iterator[DesiredState]:
        """Yield what is wanted now, then every change, until ``close``."""
        ...

    def close(self) -> None:
        """Show what was published last, end ``watch_desired_state``."""
        ...
