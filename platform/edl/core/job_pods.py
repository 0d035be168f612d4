"""Which pods a job has and which it wants.

A relaunched PS keeps its index, a relaunched worker gets a new one: with workers 0 to 3, the one after worker-0 is
worker-4. A worker that was told to go is replaced before it has gone, a PS after: two of them cannot hold the same
parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edl.api.cluster_port import DEFAULT_OPTIONS, PodOptions, PodStatus, Role
from edl.core.job_pod import JobPod
from edl.core.oom_policy import NO_MEMORY_RAISE, MemoryRaise
from edl.core.pod_index import PodIndex
from edl.core.pod_lifecycle import STEPS_PER_CRASH, PodState, decide_relaunch
from edl.core.pod_requests import REQUEST_TIMEOUT, PendingPodRequests, PodKey, PodRequest
from edl.core.start_backoff import StartBackoff

__all__ = ["REQUEST_TIMEOUT", "JobPod", "JobPods", "PodKey", "PodRequest"]

_UNLIMITED = 1 << 31


@dataclass(slots=True)
class JobPods:
    """All pods of a job, by uid, and the wishes that are not yet seen fulfilled.

    Attributes:
        next_worker_index: index of the next worker; survives the master.
        workers: index of every worker that ran and whose end is not entered yet, by uid; survives the master.
        leaving_workers: of them, those that were told to go by a master, or ended with the run before it was resumed:
            they are not lost; survives the master.
        parameter_holders: uid of the PS that holds the parameters of each index; survives the master.
        handed_over_ps: index of each PS, by uid, whose parameters are in the cut that updates are held after;
            survives the master.
        memory: what workers that are asked for now get; survives the master.
        built: uids of workers that have built their model, also if the cluster has not shown yet that they run.
        asked: pods asked for and not yet seen, or refused.
        relaunch_times: when a role may be asked for again.
        start_backoff: the same, after refusals.
        crashes: of pods of a role, that no work has made good for.
        steps: that have not made good for a crash yet, by role.
        roles: the pods that have not ended, by what they are.
        born: of each PS that was restored from a checkpoint, by uid, the number of the next lease then. What it says of
            older leases may be older than what they reached.
        update_offsets: by uid of a PS, what ``balance`` adds to the steps done; survives the master.
        measured: uid of the PS of each index that the newest cut was measured with; survives the master.
    """

    ps: int
    next_worker_index: int = 0
    workers: dict[str, int] = field(default_factory=dict)
    leaving_workers: set[str] = field(default_factory=set)
    parameter_holders: dict[int, str] = field(default_factory=dict)
    handed_over_ps: dict[str, int] = field(default_factory=dict)
    memory: MemoryRaise = NO_MEMORY_RAISE
    born: dict[str, int] = field(default_factory=dict)
    update_offsets: dict[str, int] = field(default_factory=dict)
    measured: dict[int, str] = field(default_factory=dict)
    built: set[str] = field(default_factory=set)
    pods: dict[str, JobPod] = field(default_factory=dict)
    asked: PendingPodRequests = field(default_factory=PendingPodRequests)
    roles: dict[Role, PodIndex] = field(default_factory=lambda: {role: PodIndex() for role in Role})
    relaunch_times: dict[Role, float] = field(default_factory=dict)
    start_backoff: dict[Role, StartBackoff] = field(default_factory=lambda: {role: StartBackoff() for role in Role})
    crashes: dict[Role, int] = field(default_factory=dict)
    steps: dict[Role, int] = field(default_factory=dict)

    def live(self, role: Role) -> list[JobPod]:
        """Pods of a role that have not ended, by index."""
        return sorted(self.roles[role].live.values(), key=lambda p: p.index)

    def staying(self, role: Role) -> list[JobPod]:
        """Pods of a role that have not ended and that nobody told to go, by index."""
        return sorted(self.roles[role].staying.values(), key=lambda p: p.index)

    def waiting(self, role: Role) -> list[JobPod]:
        """Those of them that have found no place to run yet."""
        return sorted(self.roles[role].waiting.values(), key=lambda p: p.index)

    @property
    def refusals(self) -> dict[PodKey, str]:
        """What the cluster said when it would not start a pod; the next one asked for gets the same index."""
        return self.asked.refusals

    def is_live(self, uid: str) -> bool:
        """Whether a pod is known and has not ended."""
        return uid in self.pods and self.pods[uid].live

    def index_of(self, uid: str) -> int | None:
        """By which people know a pod; None: the cluster has never shown it."""
        return self.pods[uid].index if uid in self.pods else None

    def has_ended(self, uid: str) -> bool:
        """Whether a pod is known to have ended; one that the cluster has not shown yet has not."""
        return uid in self.pods and not self.pods[uid].live

    # ------------------------------------------------------------------ what the cluster says

    def see(self, what: PodStatus, *, over: bool = False) -> tuple[JobPod, PodState]:
        """Enter what the cluster says; returns the pod and the state it was in before. ``over``: the job has ended."""
        pod = self.pods.get(what.uid)
        if pod is None:
            pod = self.pods[what.uid] = JobPod(what.uid, what.role, what.index, PodState.ASKED)
            if what.role is Role.WORKER:
                self.next_worker_index = max(self.next_worker_index, what.index + 1)
        before = pod.state
        pod.see(what, over=over)
        self.roles[pod.role].enter(pod)
        if self.asked.mark_appeared((what.role, what.index)):  # the cluster takes pods of its role again
            self.start_backoff[what.role] = StartBackoff()
        return pod, before

    def mark_leaving(self, pod: JobPod, why: str, now: float) -> None:
        """A pod is told to go, because it is not wanted any more."""
        self.roles[pod.role].mark_leaving(pod, why, now)

    def mark_building(self, pod: JobPod) -> None:
        """A worker was seen to start: it builds its model, unless it has told of that before."""
        pod.building = pod.uid not in self.built
        self.roles[pod.role].enter(pod)

    def mark_model_built(self, uid: str) -> None:
        """A worker has built its model."""
        self.built.add(uid)
        if pod := self.pods.get(uid):
            pod.building = False
            self.roles[pod.role].enter(pod)

    def refused(self, role: Role, index: int, reason: str, now: float) -> bool:
        """The cluster would not start a pod now; whether this is the first refusal of its round."""
        return self.asked.refused((role, index), reason) and self.start_backoff[role].refused(now)

    # ------------------------------------------------------------------ what is wanted

    def missing(self, workers: int, now: float, most: int = _UNLIMITED) -> list[PodKey]:
        """What is to be asked for, ``most`` of it, so that there are all PS and so many workers that stay."""
        ps = self._missing_ps()[: min(most, self._start_allowance(Role.PS, now))]
        there = self._missing_workers(workers, min(most - len(ps), self._start_allowance(Role.WORKER, now)))
        return [*((Role.PS, index) for index in ps), *((Role.WORKER, index) for index in there)]

    def _missing_ps(self) -> list[int]:
        there = {p.index for p in self.roles[Role.PS].live.values()} | self.asked.indices(Role.PS)
        return [index for index in range(self.ps) if index not in there]

    def _missing_workers(self, workers: int, most: int) -> list[int]:
        """Indices that were refused come first; those of them that are not wanted any more are forgotten."""
        count = max(0, workers - self.count_expected_workers())
        self.asked.trim_rejected(Role.WORKER, count)
        count = min(count, most)
        refused = self.asked.lowest_rejected(Role.WORKER, count)
        return [*refused, *(self.next_worker_index + i for i in range(count - len(refused)))]

    def count_expected_workers(self) -> int:
        """Workers that stay or are asked for."""
        return len(self.roles[Role.WORKER].staying) + self.asked.count(Role.WORKER)

    def _start_allowance(self, role: Role, now: float) -> int:
        """How many of a role may be asked for now."""
        if now < self.relaunch_times.get(role, 0.0):
            return 0
        limit = self.start_backoff[role].limit(now)
        return _UNLIMITED if limit is None else max(0, limit - self.asked.count(role))

    def ask(self, role: Role, index: int, now: float, wish: PodOptions = DEFAULT_OPTIONS) -> None:
        """Remember that a pod was asked for."""
        self.asked.ask((role, index), wish, now)
        if role is Role.WORKER:
            self.next_worker_index = max(self.next_worker_index, index + 1)

    def elevated(self) -> int:
        """Workers that stay or are asked for with the higher class of a divided priority."""
        return len(self.roles[Role.WORKER].elevated) + self.asked.elevated

    # ------------------------------------------------------------------ ends and work

    def ended(self, pod: JobPod, now: float, *, crashed: bool | None = None) -> tuple[bool, str]:
        """A pod ended while it was needed: whether the job goes on, and why.

        ``crashed``: it counts as a crash; by default if it ended with an error.
        """
        if crashed is None:
            crashed = pod.state is PodState.CRASHED
        if crashed:
            self.crashes[pod.role] = self.crashes.get(pod.role, 0) + 1
        decision = decide_relaunch(pod.state, self.crashes.get(pod.role, 0), crashed=crashed)
        if decision.value.delay is None:
            return False, decision.reason
        self.relaunch_times[pod.role] = now + decision.value.delay
        return True, decision.reason

    def credit_steps(self, role: Role, steps: int) -> None:
        """Pods of the role got so many steps done, which make good for crashes; none are saved for crashes to come."""
        if not self.crashes.get(role):
            return
        amends, self.steps[role] = divmod(self.steps.get(role, 0) + steps, STEPS_PER_CRASH)
        self.forgive_crashes(role, amends)

    def forgive_crashes(self, role: Role, crashes: int) -> None:
        """So many crashes no longer count."""
        self.crashes[role] = max(0, self.crashes.get(role, 0) - crashes)
        if not self.crashes[role]:
            self.steps.pop(role, None)

    def all_ps_ready(self) -> bool:
        """Whether every PS is there, listens to this master and holds variables."""
        live = self.roles[Role.PS].live
        return len(live) == self.ps and all(p.attached and p.initialized for p in live.values())
