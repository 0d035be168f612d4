"""Which pods a job has and which it wants.

A relaunched PS keeps its index, a relaunched worker gets a new one: with workers 0 to 3, the one after worker-0 is
worker-4.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edl.core.cluster import PodSeen, Role
from edl.core.pods import TERMINAL, State, relaunch, seen, transition


@dataclass(slots=True)
class Pod:
    """A pod as the master knows it.

    Attributes:
        attached: a PS that listens to this incarnation of the master.
        initialized: a PS that holds variables.
        building: a worker that this master saw start and that has not built its model yet: it cannot push.
        version: pushes that a PS had applied when it was last heard of.
        asked: when a PS was last asked to listen.
        loading: a PS that was told to load a checkpoint.
        stale: what it was asked no longer holds: its answer is not taken, and it is asked again.
        left: a worker that said goodbye.
    """

    uid: str
    role: Role
    index: int
    state: State
    pid: int | None = None
    reason: str = ""
    exit_code: int | None = None
    attached: bool = False
    initialized: bool = False
    building: bool = False
    version: int = 0
    asked: float | None = None
    loading: bool = False
    stale: bool = False
    left: bool = False

    @property
    def live(self) -> bool:
        """Whether it may still do something."""
        return self.state not in TERMINAL


@dataclass(slots=True)
class Fleet:
    """All pods of a job, by uid, and the wishes that are not yet seen fulfilled.

    Attributes:
        next_worker: index of the next worker; survives the master.
        workers: index of every worker that ran and whose end is not entered yet, by uid; survives the master.
        dismissed: of them, those that ended with the run before it was resumed: they are not lost; survives the master.
        holding: uid of the PS that holds the parameters of each index; survives the master.
        asked: (role, index) asked for and not yet seen.
        not_before: when a role may be asked for again.
        crashes: pods of a role that crashed since one of them last got work done.
        born: of each PS that was restored from a checkpoint, by uid, the number of the next lease then. What it says of
            older leases may be older than what they reached.
    """

    ps: int
    next_worker: int = 0
    workers: dict[str, int] = field(default_factory=dict)
    dismissed: set[str] = field(default_factory=set)
    holding: dict[int, str] = field(default_factory=dict)
    born: dict[str, int] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    asked: set[tuple[Role, int]] = field(default_factory=set)
    not_before: dict[Role, float] = field(default_factory=dict)
    crashes: dict[Role, int] = field(default_factory=dict)
    _live: dict[Role, dict[str, Pod]] = field(default_factory=lambda: {role: {} for role in Role})

    def live(self, role: Role) -> list[Pod]:
        """Pods of a role that have not ended, by index."""
        return sorted(self._live[role].values(), key=lambda p: p.index)

    def is_live(self, uid: str) -> bool:
        """Whether a pod is known and has not ended."""
        return uid in self.pods and self.pods[uid].live

    def has_ended(self, uid: str) -> bool:
        """Whether a pod is known to have ended; one that the cluster has not shown yet has not."""
        return uid in self.pods and not self.pods[uid].live

    def see(self, what: PodSeen) -> tuple[Pod, State]:
        """Enter what the cluster says; returns the pod and the state it was in before."""
        self.asked.discard((what.role, what.index))
        pod = self.pods.get(what.uid)
        if pod is None:
            pod = self.pods[what.uid] = Pod(what.uid, what.role, what.index, State.ASKED)
            if what.role is Role.WORKER:
                self.next_worker = max(self.next_worker, what.index + 1)
        before = pod.state
        pod.state = transition(before, seen(what))
        pod.pid, pod.reason, pod.exit_code = what.pid or pod.pid, what.reason or pod.reason, what.exit_code
        if pod.live:
            self._live[pod.role][pod.uid] = pod
        else:
            self._live[pod.role].pop(pod.uid, None)
        return pod, before

    def missing(self, workers: int, now: float) -> list[tuple[Role, int]]:
        """What is to be asked for so that there are all PS and so many workers."""
        missing: list[tuple[Role, int]] = []
        if now >= self.not_before.get(Role.PS, 0.0):
            there = {p.index for p in self._live[Role.PS].values()} | {i for role, i in self.asked if role is Role.PS}
            missing += [(Role.PS, index) for index in range(self.ps) if index not in there]
        if now >= self.not_before.get(Role.WORKER, 0.0):
            there_are = len(self._live[Role.WORKER]) + sum(role is Role.WORKER for role, _ in self.asked)
            missing += [(Role.WORKER, self.next_worker + i) for i in range(workers - there_are)]
        return missing

    def ask(self, role: Role, index: int) -> None:
        """Remember that a pod was asked for."""
        self.asked.add((role, index))
        if role is Role.WORKER:
            self.next_worker = max(self.next_worker, index + 1)

    def ended(self, pod: Pod, now: float) -> tuple[bool, str]:
        """A pod ended while it was needed: whether the job goes on, and why."""
        if pod.state is State.CRASHED:
            self.crashes[pod.role] = self.crashes.get(pod.role, 0) + 1
        decision = relaunch(pod.state, self.crashes.get(pod.role, 0))
        if decision.value.delay is None:
            return False, decision.reason
        self.not_before[pod.role] = now + decision.value.delay
        return True, decision.reason

    def worked(self, role: Role) -> None:
        """A pod of the role got work done: earlier crashes no longer count."""
        self.crashes.pop(role, None)

    def ps_ready(self) -> bool:
        """Whether every PS is there, listens to this master and holds variables."""
        live = self._live[Role.PS]
        return len(live) == self.ps and all(p.attached and p.initialized for p in live.values())
