"""The port through which a master starts, deletes and watches the pods of its job.

Implementations: ``edl.local.client`` (processes of this machine), ``edl.testing.cluster`` (a fake on a virtual clock)
and, later, ``edl.kube`` (pods). All of them pass the contract suite in ``platform/tests/cluster_contract.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Role(StrEnum):
    """What a pod does in a job."""

    MASTER = "master"
    PS = "ps"
    WORKER = "worker"


class Phase(StrEnum):
    """Where a pod is in its life; the names of Kubernetes' pod phases, plus ``GONE`` for a deleted pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    GONE = "Gone"


@dataclass(frozen=True, slots=True)
class PodSeen:
    """What a cluster says about one pod at one moment.

    Attributes:
        uid: unique over the cluster's life, never reused even when the name is.
        exit_code: 0-255 as a shell reports it (128 + n for signal n); None while the pod has not ended.
        reason: the cluster's own word for the state (``Started``, ``Completed``, ``Error``, ``Killed``, ``Terminated``,
            ``Deleted``...), shown to users.
        pid: the process id, where there is one on this machine.
    """

    uid: str
    role: Role
    index: int
    phase: Phase
    exit_code: int | None = None
    reason: str = ""
    pid: int | None = None

    @property
    def ended(self) -> bool:
        """Whether the pod runs no more and never will again."""
        return self.phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.GONE)


@dataclass(frozen=True, slots=True)
class Synced:
    """Marks, in a watch, that every pod that existed when the watch began has been yielded."""


class Cluster(Protocol):
    """Start, delete and watch the pods of one job."""

    def start(self, role: Role, index: int) -> str:
        """Ask for a pod and return its uid. Asking again for a live (role, index) returns the uid it has.

        Raises:
            RetryableError: the cluster cannot be reached or refuses for now.
            BadInputError: the cluster will never accept this pod.
        """
        ...

    def delete(self, uid: str, *, grace: float) -> None:
        """Tell the pod to go (SIGTERM) and kill it after ``grace`` seconds (0: at once). Unknown uids are ignored."""
        ...

    def watch(self) -> Iterator[PodSeen | Synced]:
        """Yield every existing pod, then ``Synced``, then every change, until ``close`` is called.

        Ended pods that the cluster still remembers are listed too, so that a restarted master learns how they ended.
        The master's own pod is not part of the view. Every pod that was yielded alive is yielded ended exactly once,
        also when it vanished while the watch was away.
        """
        ...

    def close(self) -> None:
        """End every watch and release the connection. Pods stay as they are."""
        ...
