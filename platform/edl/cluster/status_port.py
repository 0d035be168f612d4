"""The port between a master and users who cannot connect to it.

The master publishes its status and receives the desired state.
``edl.cluster.kubernetes.status_publisher`` implements the port with a ConfigMap and an annotation of
the Job. On one machine the files of the run directory are the status, so only the desired state needs an
implementation, ``edl.cluster.local.desired_state_file``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The state of a running job that users requested with ``edl scale`` and ``edl stop``.

    Attributes:
        min: number of workers below which the job counts as starved; None: as in the spec.
        max: number of workers that the job requests; None: as in the spec.
        stop: end the job now; it can be resumed.
        unreadable: the problem of a request that cannot be read. The previous numbers of workers
            then stay in force.
    """

    min: int | None = None
    max: int | None = None
    stop: bool = False
    unreadable: str = ""


class DesiredStateSource(Protocol):
    """Receives the desired state of a running job."""

    def watch_desired_state(self) -> Iterator[DesiredState]:
        """Yield the current desired state, then every change, until ``close``."""
        ...

    def close(self) -> None:
        """End ``watch_desired_state``."""
        ...


class StatusPublisher(DesiredStateSource, Protocol):
    """Publishes a job's status and receives its desired state."""

    def publish(self, pages: Mapping[str, str]) -> None:
        """Replace the published pages, by name. Returns at once; only the newest pages are certain to be published."""
        ...

    def close(self) -> None:
        """Publish the newest pages and end ``watch_desired_state``."""
        ...
