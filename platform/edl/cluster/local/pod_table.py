"""The pods that a supervisor knows: the live ones, and the ended ones until they are deleted or too many.

Ended pods are remembered so that a master that was away learns how they ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.cluster.local.exit_status import ExitStatus

MAX_ENDED_PODS = 1000


class PodTable:
    """What was started, by uid; decides what each change means, does nothing itself."""

    def __init__(self) -> None:
        self._live_pods: dict[str, PodStatus] = {}
        self._names: dict[tuple[Role, int], PodStatus] = {}
        self._ended: dict[str, PodStatus] = {}
        self._deleting: set[str] = set()

    def __iter__(self) -> Iterator[PodStatus]:
        return iter([*self._ended.values(), *self._live_pods.values()])

    def live(self, role: Role, index: int) -> PodStatus | None:
        """Return the live pod of that name."""
        return self._names.get((role, index))

    def started(self, uid: str, role: Role, index: int, pid: int) -> PodStatus:
        """Enter a pod that runs since now."""
        pod = PodStatus(uid, role, index, PodPhase.RUNNING, reason="Started", pid=pid)
        self._live_pods[uid] = self._names[role, index] = pod
        return pod

    def delete(self, uid: str) -> bool:
        """Note that a pod was told to go; return whether it is alive. An ended pod is forgotten."""
        self._ended.pop(uid, None)
        if uid in self._live_pods:
            self._deleting.add(uid)
        return uid in self._live_pods

    def ended(self, uid: str, ending: ExitStatus) -> PodStatus:
        """Enter a live pod's end and return its last state: ``GONE`` when it was deleted."""
        pod = self._live_pods.pop(uid)
        del self._names[pod.role, pod.index]
        if uid in self._deleting:
            self._deleting.remove(uid)
            return replace(pod, phase=PodPhase.GONE, exit_code=ending.exit_code, reason="Deleted")
        last = replace(pod, phase=ending.phase, exit_code=ending.exit_code, reason=ending.reason)
        self._ended[uid] = last
        if len(self._ended) > MAX_ENDED_PODS:
            del self._ended[next(iter(self._ended))]
        return last
