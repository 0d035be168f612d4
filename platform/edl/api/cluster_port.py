"""The port through which a master starts, deletes and watches the pods of its job.

Implementations: ``edl.cluster.local.local_cluster`` (processes of this machine),
``edl.cluster.kubernetes.kube_cluster`` (pods) and
``support.fake_cluster`` (a fake on a virtual clock). All of them pass the contract suite in
``platform/tests/support/cluster_contract.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

MOST_WORKERS = 10_000
"""Per job. A typing error must not request a million pods from a cluster. The core is measured with 1,000 workers."""


class Role(StrEnum):
    """The role of a pod in a job."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"


ALLOCATOR_VARIABLES: Mapping[Role, Mapping[str, str]] = {Role.MASTER: {"MALLOC_ARENA_MAX": "1"}}
"""Settings of glibc's allocator by role. A master has many threads and allocates little, so arenas of their own would
only keep pages that nobody uses. Parameter servers and workers allocate in parallel."""


class PodPhase(StrEnum):
    """The phase of a pod: those of Kubernetes, plus ``GONE`` for a deleted pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    GONE = "Gone"


class TerminationCause(StrEnum):
    """Why a pod is leaving or ended, as far as the cluster says.

    ``NONE``: it exited by itself, or its master deleted it.
    """

    NONE = ""
    PREEMPTED = "preempted"
    EVICTED = "evicted"
    OUT_OF_MEMORY = "out of memory"
    NODE_LOST = "node lost"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class PodOptions:
    """Options of one pod, in addition to its role's part of the spec.

    Attributes:
        memory_factor: factor of the role's memory; above 1 after a pod of the role ran out of memory.
        elevated: the pod gets the higher class of a divided priority such as ``high=0.5``.
    """

    memory_factor: float = 1.0
    elevated: bool = False


DEFAULT_OPTIONS = PodOptions()
UNSCHEDULABLE = "Unschedulable"
"""The scheduler's reason for a pod that no node can take."""


@dataclass(frozen=True, slots=True)
class PodStatus:
    """The state of one pod, as the cluster reports it at one moment.

    Attributes:
        uid: unique, and never reused, even if the pod's name is.
        exit_code: 0-255 as a shell reports it (128 + n for signal n); None while the pod has not ended.
        reason: the cluster's word for the state (``Started``, ``Completed``, ``Error``, ``Killed``, ``Terminated``,
            ``Deleted``...), shown to users.
        pid: process id, if the pod is a process of this machine.
        leaving: the pod was told to exit and has not ended.
        cause: why it is leaving or ended, if neither the master nor the pod itself caused that.
        message: the cluster's message: why the pod is pending, or the kubelet's message about its end.
        node: the node that it runs on; empty until it is scheduled.
        elevated: it has the higher class of a divided priority.
        unreachable_since: when the cluster lost contact with the pod's node, in unix seconds; 0: it has contact, or
            the pod has no node. The process may still run.
    """

    uid: str
    role: Role
    index: int
    phase: PodPhase
    exit_code: int | None = None
    reason: str = ""
    pid: int | None = None
    leaving: bool = False
    cause: TerminationCause = TerminationCause.NONE
    message: str = ""
    node: str = ""
    elevated: bool = False
    unreachable_since: float = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether the pod has ended for good."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED, PodPhase.GONE)


@dataclass(frozen=True, slots=True)
class WatchSynced:
    """Marks the point in a watch at which all pods that existed when it began have been yielded."""


POD_GRACE_SECONDS = 30
"""Seconds between SIGTERM and SIGKILL that every pod of a job gets from Kubernetes, as by default."""


class JobCluster(Protocol):
    """The cluster as one job sees it: it can start, delete and watch the job's pods."""

    def start(self, role: Role, index: int, options: PodOptions = DEFAULT_OPTIONS) -> str:
        """Request a pod and return its uid. For a (role, index) that is alive, return the uid of the existing pod.

        Raises:
            RetryableError: the cluster cannot be reached or refuses for now.
            BadInputError: the cluster will never accept this pod.
        """
        ...

    def delete(self, uid: str, *, grace: float) -> None:
        """Send the pod SIGTERM, and SIGKILL after ``grace`` seconds (0: at once). An unknown uid is ignored."""
        ...

    def watch(self) -> Iterator[PodStatus | WatchSynced]:
        """Yield every existing pod, then ``WatchSynced``, then every change, until ``close`` is called.

        Ended pods that the cluster still has are yielded too, so that a restarted master learns how they ended. The
        master's own pod is not yielded. Every pod that was yielded alive is yielded ended exactly once, even if it
        vanished while the watch was disconnected.
        """
        ...

    def close(self) -> None:
        """End every watch and close the connection. Pods keep running."""
        ...
