"""The environment of a master: its cluster and, on Kubernetes, the leader lease and the status publisher.

``LocalMasterBackend`` is that of one machine, ``edl.cluster.kubernetes.master_backend`` that of a pod.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from edl.api.cluster_port import JobCluster
from edl.api.exit_codes import DONE_EXIT
from edl.api.job_spec import JobSpec
from edl.cluster.local.desired_state_file import DesiredStateFile
from edl.cluster.local.local_cluster import LocalCluster
from edl.cluster.status_port import DesiredStateSource, StatusPublisher
from edl.core.leader_election import MasterFence
from edl.storage.run_directory import RunDirectory
from edl.transport.process_identity import ProcessIdentity


class MasterBackend(Protocol):
    """The environment that a master runs in.

    Attributes:
        cluster: the cluster that runs the job's pods.
        fence: the right to decide; None if the journal's lock is enough.
        status_publisher: publishes the status to users without a route to the master; None if files do.
        desired_states: receives what users request of the running job; None if they cannot.
        gone_seconds: maximum seconds for pods to end at the end of the job.
        durable: whether the run directory outlives the master's pod.
    """

    @property
    def cluster(self) -> JobCluster: ...

    @property
    def fence(self) -> MasterFence | None: ...

    @property
    def status_publisher(self) -> StatusPublisher | None: ...

    @property
    def desired_states(self) -> DesiredStateSource | None: ...

    @property
    def gone_seconds(self) -> float: ...

    @property
    def durable(self) -> bool: ...

    def acquire(self, stopping: threading.Event) -> bool:
        """Wait for the right to decide; False if ``stopping`` was set first."""
        ...

    def conclude(self, *, failed: bool) -> int:
        """Tell whoever restarts masters that the job is over; returns the exit code."""
        ...

    def close(self) -> None:
        """Release everything; pods keep running."""
        ...


@dataclass(frozen=True)
class LocalMasterBackend:
    """Local backend: exit code 0 tells the supervisor that the job is over; the run's files have the result."""

    cluster: JobCluster
    fence: None = None
    status_publisher: None = None
    desired_states: DesiredStateSource | None = None
    gone_seconds: float = 1.5
    durable: bool = True

    def acquire(self, stopping: threading.Event) -> bool:
        """No waiting: holding the journal's lock is enough."""
        return not stopping.is_set()

    def conclude(self, *, failed: bool) -> int:
        """Nothing to report."""
        del failed
        return DONE_EXIT

    def close(self) -> None:
        """End the watch of the desired state."""
        if self.desired_states is not None:
            self.desired_states.close()


def choose_backend(spec: JobSpec, identity: ProcessIdentity, variables: Mapping[str, str]) -> MasterBackend:
    """Choose the backend from the environment.

    Args:
        spec: the job's spec.
        identity: identity of this process.
        variables: environment variables of this process; ``EDL_JOB_UID`` is set only in pods.

    Raises:
        BadInputError: a variable is missing, or the pod has no service account.
    """
    if variables.get("EDL_JOB_UID"):
        # Imported here: a master on one machine never imports the Kubernetes client.
        from edl.cluster.kubernetes.master_backend import KubeMasterBackend

        return KubeMasterBackend.from_environment(spec, variables)
    return LocalMasterBackend(
        LocalCluster.from_environment(identity.token),
        desired_states=DesiredStateFile(RunDirectory(identity.run_dir).desired_state),
    )
