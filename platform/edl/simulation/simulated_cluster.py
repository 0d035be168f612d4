"""A simulated cluster: pods wait for capacity, are evicted, and end for every reason of a real
cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from edl.api.cluster_port import PodOptions, PodPhase, PodStatus, Role, TerminationCause

if TYPE_CHECKING:
    from edl.simulation.clock import VirtualClock

NOTICED = 10.0
"""Seconds after which the cluster declares a node lost that does not answer."""


class SimulatedCluster:
    """Pods and their capacity.

    Args:
        clock: the virtual clock.
        capacity: number of workers that fit; None: no limit. Parameter servers always fit.
        tell: reports the state of a pod, after a delay.
        began: called when a process has started.
        asked_to_go: called when a process gets SIGTERM.
        died: called when a process has ended; its pod may still exist.
    """

    def __init__(
        self,
        clock: VirtualClock,
        capacity: int | None,
        *,
        tell: Callable[[str], None],
        began: Callable[[PodStatus], None],
        asked_to_go: Callable[[str], None],
        died: Callable[[str], None],
    ) -> None:
        self._clock, self._capacity = clock, capacity
        self._tell, self._began, self._asked_to_go, self._died = tell, began, asked_to_go, died
        self.pods: dict[str, PodStatus] = {}
        self.refusal = ""
        self._names = 0

    def live(self, role: Role) -> list[PodStatus]:
        """Pods of a role that have not ended."""
        return [pod for pod in self.pods.values() if pod.role is role and not pod.has_ended]

    def start(self, role: Role, index: int, wish: PodOptions) -> str:
        """Accept a pod; returns the cluster's reason if it refuses."""
        if any(pod.index == index for pod in self.live(role)):
            # Like the real cluster: repeating a request for a live pod starts none.
            return ""
        if self.refusal and role is Role.WORKER:
            return self.refusal
        self._names += 1
        uid = f"{role}-{index}-{self._names}"
        self.pods[uid] = PodStatus(uid, role, index, PodPhase.PENDING, elevated=wish.elevated, message="no room")
        self._schedule()
        if self.pods[uid].phase is PodPhase.PENDING:
            self._tell(uid)
        return ""

    def resize(self, capacity: int | None) -> None:
        """Change the capacity; running workers stay."""
        self._capacity = capacity
        self._schedule()

    def _schedule(self) -> None:
        for pod in list(self.pods.values()):
            if pod.phase is PodPhase.PENDING and (pod.role is Role.PS or self._has_room()):
                self.pods[pod.uid] = replace(pod, phase=PodPhase.RUNNING, message="", node="a-node")
                self._tell(pod.uid)
                self._began(self.pods[pod.uid])

    def _has_room(self) -> bool:
        running = sum(pod.phase is PodPhase.RUNNING for pod in self.live(Role.WORKER))
        return self._capacity is None or running < self._capacity

    # ------------------------------------------------------------------ pod ends

    def delete(self, uid: str, grace: float, cause: TerminationCause = TerminationCause.NONE) -> None:
        """Delete a pod; it is killed after its grace period."""
        pod = self.pods.get(uid)
        if pod is None or pod.has_ended:
            return
        self.pods[uid] = replace(pod, leaving=True, cause=pod.cause or cause)
        if pod.phase is PodPhase.PENDING or grace <= 0:
            self.end(uid, None if pod.phase is PodPhase.PENDING else 137)
            return
        self._tell(uid)
        self._asked_to_go(uid)
        self._clock.after(grace, lambda: self.end(uid, 137))

    def lose(self, uid: str) -> None:
        """Lose a pod's node. The process ends at once, the pod when the cluster has noticed."""
        if uid in self.pods and self.pods[uid].phase is PodPhase.RUNNING:
            self._died(uid)
            self._clock.after(NOTICED, lambda: self.delete(uid, NOTICED, TerminationCause.NODE_LOST))

    def end(self, uid: str, exit_code: int | None, cause: TerminationCause = TerminationCause.NONE) -> None:
        """End a pod: 0, 143 (SIGTERM), 137 (SIGKILL), an error, or no code if it is unknown."""
        pod = self.pods.get(uid)
        if pod is None or pod.has_ended:
            return
        failed = PodPhase.FAILED if exit_code else PodPhase.SUCCEEDED
        phase = PodPhase.GONE if pod.leaving else failed
        self.pods[uid] = replace(pod, phase=phase, exit_code=exit_code, leaving=False, cause=pod.cause or cause)
        self._died(uid)
        self._tell(uid)
        self._schedule()

    def forget_ended(self) -> None:
        """Remove ended pods from the listing."""
        for uid in [uid for uid, pod in self.pods.items() if pod.has_ended]:
            del self.pods[uid]
