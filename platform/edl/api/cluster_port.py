"""The port through which a master starts, deletes and watches the pods of its job.

Implementations: ``edl.cluster.local.local_cluster`` (processes of this machine),
``edl.cluster.kubernetes.kube_cluster`` (pods) and
``support.fake_cluster`` (a fake on a virtual clock). All of them pass the contract suite in
``platform/tests/support/cluster_contract.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

MOST_WORKERS = 10_000
"""Of one job: a slip of the keyboard must not ask a cluster for a million pods. The core is measured with 1,000."""


class Role(StrEnum):
    """What a pod does in a job."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"


class PodPhase(StrEnum):
    """Where a pod is in its life; the names of Kubernetes' pod phases, plus ``GONE`` for a deleted pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    GONE = "Gone"


class TerminationCause(StrEnum):
    """Why a pod is going or gone, as far as the cluster says; ``NONE``: by itself, or because its master wanted it."""

    NONE = ""
    PREEMPTED = "preempted"
    EVICTED = "evicted"
    OUT_OF_MEMORY = "out of memory"
    NODE_LOST = "node lost"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class PodOptions:
    """What a pod is asked for beyond its role's part of the spec.

    Attributes:
        memory_factor: of the role's memory; above 1 after a pod of it ran out of memory.
        elevated: it gets the higher class of a divided priority such as ``high=0.5``.
    """

    memory_factor: float = 1.0
    elevated: bool = False


DEFAULT_OPTIONS = PodOptions()


@dataclass(frozen=True, slots=True)
class PodStatus:
    """What a cluster says about one pod at one moment.

    Attributes:
        uid: unique over the cluster's life, never reused even when the name is.
        exit_code: 0-255 as a shell reports it (128 + n for signal n); None while the pod has not ended.
        reason: the cluster's own word for the state (``Started``, ``Completed``, ``Error``, ``Killed``, ``Terminated``,
            ``Deleted``...), shown to users.
        pid: the process id, where there is one on this machine.
        leaving: it was told to go and is still there.
        cause: why it is going or gone, when somebody else than the master or the pod itself wanted that.
        message: the cluster's own words: why a pod is pending, what the kubelet says of its end.
        node: where it runs; empty while it has no place.
        elevated: it has the higher class of a divided priority.
        unreachable_since: since when the cluster has not heard of its node, in unix seconds; 0: it does, or it has no
            node. The process may live all the same.
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
        """Whether the pod runs no more and never will again."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED, PodPhase.GONE)


@dataclass(frozen=True, slots=True)
class WatchSynced:
    """Marks, in a watch, that every pod that existed when the watch began has been yielded."""


class JobCluster(Protocol):
    """Start, delete and watch the pods of one job."""

    def start(self, role: Role, index: int, options: PodOptions = DEFAULT_OPTIONS) -> str:
        """Ask for a pod and return its uid. Asking again for a live (role, index) returns the uid it has.

        Raises:
            RetryableError: the cluster cannot be reached or refuses for now.
            BadInputError: the cluster will never accept this pod.
        """
        ...

    def delete(self, uid: str, *, grace: float) -> None:
        """Tell the pod to go (SIGTERM) and kill it after ``grace`` seconds (0: at once). Unknown uids are ignored."""
        ...

    def watch(self) -> Iterator[PodStatus | WatchSynced]:
        """Yield every existing pod, then ``WatchSynced``, then every change, until ``close`` is called.

        Ended pods that the cluster still remembers are listed too, so that a restarted master learns how they ended.
        The master's own pod is not part of the view. Every pod that was yielded alive is yielded ended exactly once,
        also when it vanished while the watch was away.
        """
        ...

    def close(self) -> None:
        """End every watch and release the connection. Pods stay as they are."""
        ...
