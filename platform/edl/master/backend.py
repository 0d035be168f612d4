"""What is around a master: the cluster of its job, and on Kubernetes a fence between masters and a board for people."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from edl.api.cluster_port import JobCluster
from edl.api.job_spec import JobSpec
from edl.cluster.local.local_cluster import LocalCluster
from edl.cluster.status_port import StatusPublisher
from edl.core.leader_election import MasterFence

DONE_EXIT, FAILED_EXIT = 0, 1


class MasterBackend(Protocol):
    """Where a master is.

    Attributes:
        cluster: where its pods are.
        fence: the right to decide; None where the journal's lock is one.
        status_publisher: where people without a route to it look; None where files do.
        gone_seconds: how long pods that were told to go may take at the end of the job.
        durable: what is written to the run directory outlives the master's pod.
    """

    @property
    def cluster(self) -> JobCluster: ...  # noqa: D102

    @property
    def fence(self) -> MasterFence | None: ...  # noqa: D102

    @property
    def status_publisher(self) -> StatusPublisher | None: ...  # noqa: D102

    @property
    def gone_seconds(self) -> float: ...  # noqa: D102

    @property
    def durable(self) -> bool: ...  # noqa: D102

    def acquire(self, stopping: threading.Event) -> bool:
        """Wait for the right to decide; False if ``stopping`` was set before."""
        ...

    def conclude(self, *, failed: bool) -> int:
        """Tell whoever restarts masters that the job is over; returns the exit code that goes with it."""
        ...

    def close(self) -> None:
        """Give everything back; pods stay."""
        ...


@dataclass(frozen=True)
class LocalMasterBackend:
    """A supervisor on this machine: exit code 0 says that the job is over, and its files say how."""

    cluster: JobCluster
    fence: None = None
    status_publisher: None = None
    gone_seconds: float = 1.5
    durable: bool = True

    def acquire(self, stopping: threading.Event) -> bool:
        """The journal's lock is all there is."""
        return not stopping.is_set()

    def conclude(self, *, failed: bool) -> int:
        """Nothing needs to be told."""
        del failed
        return DONE_EXIT

    def close(self) -> None:
        """Nothing was taken."""


class KubernetesMasterBackend:
    """A pod: a Job that is Complete or Failed says how it ended; no pod stays longer than that.

    Raises:
        BadInputError: this is no master's pod, or it has no service account.
    """

    gone_seconds = 8.0

    def __init__(self, spec: JobSpec, variables: Mapping[str, str]) -> None:
        from edl.cluster.kubernetes.master_backend import (
            KubeMasterBackend,  # a master on one machine never imports the Kubernetes client
        )

        self._platform = KubeMasterBackend.from_environment(spec, variables)
        self.cluster: JobCluster = self._platform.cluster
        self.fence: MasterFence = self._platform.fence
        self.status_publisher: StatusPublisher = self._platform.status_publisher
        self.durable = self._platform.durable

    def acquire(self, stopping: threading.Event) -> bool:
        """Wait for the job's Lease."""
        return self._platform.acquire(stopping)

    def conclude(self, *, failed: bool) -> int:
        """A Job whose pod exits 0 is Complete; one that has failed may not restart it."""
        self._platform.conclude(failed=failed)
        return FAILED_EXIT if failed else DONE_EXIT

    def close(self) -> None:
        """Show what was published last, and give the Lease back."""
        self._platform.close()


def choose_backend(spec: JobSpec, token: str, variables: Mapping[str, str]) -> MasterBackend:
    """Where this process is, by its environment.

    Args:
        spec: of the job.
        token: of the job.
        variables: of this process: ``EDL_JOB_UID`` is set in pods only.

    Raises:
        BadInputError: the environment lacks something.
    """
    if variables.get("EDL_JOB_UID"):
        return KubernetesMasterBackend(spec, variables)
    return LocalMasterBackend(LocalCluster.from_environment(token))
