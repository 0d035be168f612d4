"""The port between a master and users without a route to it: the published status, and the desired state.

``edl.cluster.kubernetes.status_publisher`` implements it with a ConfigMap and an annotation of the Job. On one machine
files and signals serve the purpose, and there is no implementation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DesiredState:
    """What users requested of a running job with ``edl scale`` and ``edl stop``. None: as in the spec.

    Attributes:
        min: with fewer workers, the job counts as starved.
        max: number of workers that the job requests.
        stop: end the job now; it can be resumed.
        unreadable: what is wrong with the request; the numbers of workers are then those before it.
    """

    min: int | None = None
    max: int | None = None
    stop: bool = False
    unreadable: str = ""


class StatusPublisher(Protocol):
    """Publishes a job's status and receives its desired state."""

    def publish(self, pages: Mapping[str, str]) -> None:
        """Replace the published pages, by name. Returns at once; only the newest pages are certain to be published."""
        ...

    def watch_desired_state(self) -> Iterator[DesiredState]:
        """Yield the current desired state, then every change, until ``close``."""
        ...

    def close(self) -> None:
        """Publish the newest pages and end ``watch_desired_state``."""
        ...
