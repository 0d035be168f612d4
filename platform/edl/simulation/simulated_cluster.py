"""A simulated cluster: pods wait for capacity, are evicted, and end for every reason of a real
cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from edl.api.cluster_port import PodOptions, PodPhase, PodStatus, Role, TerminationCause
from edl.api.exit_codes import SIGKILL_EXIT

if TYPE_CHECKING:
    from edl.simulation.clock import VirtualClock

NOTICED = 10.0
"""Seconds after which the cluster declares a node lost that does not answer."""


class SimulatedCluster:
    """Pods and their capacity.

    Args:
        clock: the virtual clock.
        capacity: number of workers that fit; None: no limit. Parameter servers always fit.
        report_pod: reports the state of a pod, after a delay.
        on_started: called when a process has started.
        on_sigterm: called when a process gets SIGTERM.
        on_ended: called when a process has ended; its pod may still exist.
    """

    def __init__(
        self,
        clock: VirtualClock,
        capacity: int | None,
        *,
        report_pod: Callable[[str], None],
        on_started: Callable[[PodStatus], None],
        on_sigterm: Callable[[str], None],
        on_ended: Callable[[str], None],
    ) -> None:
        self._clock, self._capacity = clock, capacity
        self._report_pod, self._on_started, self._on_sigterm, self._on_ended = (
            report_pod,
            on_started,
            on_sigterm,
            on_ended,
        )
        self.pods: dict[str, PodStatus] = {}
        self.start_refusal = ""
        self._started_pods = 0

    def live_pods(self, role: Role) -> list[PodStatus]:
        """Pods of a role that have not ended."""
        return [pod for pod in self.pods.values() if pod.role is role and not pod.has_ended]

    def start_pod(self, role: Role, index: int, options: PodOptions) -> str:
        """Accept a pod; returns the cluster's reason if it refuses."""
        if any(pod.index == index for pod in self.live_pods(role)):
            # Like the real cluster: repeating a request for a live pod starts none.
            return ""
        if self.start_refusal and role is Role.WORKER:
            return self.start_refusal
        self._started_pods += 1
        uid = f"{role}-{index}-{self._started_pods}"
        self.pods[uid] = PodStatus(uid, role, index, PodPhase.PENDING, elevated=options.elevated, message="no room")
        self._schedule_pods()
        if self.pods[uid].phase is PodPhase.PENDING:
            self._report_pod(uid)
        return ""

    def set_capacity(self, capacity: int | None) -> None:
        """Change the capacity; running workers stay."""
        self._capacity = capacity
        self._schedule_pods()

    def _schedule_pods(self) -> None:
        for pod in list(self.pods.values()):
            if pod.phase is PodPhase.PENDING and (pod.role is Role.PS or self._has_room()):
                self.pods[pod.uid] = replace(pod, phase=PodPhase.RUNNING, message="", node="a-node")
                self._report_pod(pod.uid)
                self._on_started(self.pods[pod.uid])

    def _has_room(self) -> bool:
        running = sum(pod.phase is PodPhase.RUNNING for pod in self.live_pods(Role.WORKER))
        return self._capacity is None or running < self._capacity

    # ------------------------------------------------------------------ pod ends

    def delete_pod(self, uid: str, grace: float, cause: TerminationCause = TerminationCause.NONE) -> None:
        """Delete a pod; it is killed after its grace period."""
        pod = self.pods.get(uid)
        if pod is None or pod.has_ended:
            return
        self.pods[uid] = replace(pod, leaving=True, cause=pod.cause or cause)
        if pod.phase is PodPhase.PENDING or grace <= 0:
            self.end_pod(uid, None if pod.phase is PodPhase.PENDING else SIGKILL_EXIT)
            return
        self._report_pod(uid)
        self._on_sigterm(uid)
        self._clock.call_later(grace, lambda: self.end_pod(uid, SIGKILL_EXIT))

    def lose_node(self, uid: str) -> None:
        """Lose a pod's node. The process ends at once, the pod when the cluster has noticed."""
        if uid in self.pods and self.pods[uid].phase is PodPhase.RUNNING:
            self._on_ended(uid)
            self._clock.call_later(NOTICED, lambda: self.delete_pod(uid, NOTICED, TerminationCause.NODE_LOST))

    def end_pod(self, uid: str, exit_code: int | None, cause: TerminationCause = TerminationCause.NONE) -> None:
        """End a pod: 0, ``SIGTERM_EXIT``, ``SIGKILL_EXIT``, an error, or no code if it is unknown."""
        pod = self.pods.get(uid)
        if pod is None or pod.has_ended:
            return
        failed = PodPhase.FAILED if exit_code else PodPhase.SUCCEEDED
        phase = PodPhase.GONE if pod.leaving else failed
        self.pods[uid] = replace(pod, phase=phase, exit_code=exit_code, leaving=False, cause=pod.cause or cause)
        self._on_ended(uid)
        self._report_pod(uid)
        self._schedule_pods()

    def forget_ended(self) -> None:
        """Remove ended pods from the listing."""
        for uid in [uid for uid, pod in self.pods.items() if pod.has_ended]:
            del self.pods[uid]
