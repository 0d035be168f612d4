"""Which pods a job has and which it wants.

A relaunched PS keeps its index, a relaunched worker gets a new one: with workers 0 to 3, the one after worker-0 is
worker-4. A worker that was told to go is replaced before it has gone, a PS after: two of them cannot hold the same
parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from edl.core.backoff import Backoff
from edl.core.cluster import PLAIN, PodSeen, Role, Wish
from edl.core.memory import UNRAISED, Memory
from edl.core.pod import Pod
from edl.core.pods import State, relaunch

__all__ = ["ASK_PATIENCE", "Asked", "Fleet", "Name", "Pod"]

ASK_PATIENCE = 60.0
"""Seconds after which a pod that was asked for and never shown is asked for again; asking twice gives one pod."""

Name = tuple[Role, int]


@dataclass(frozen=True, slots=True)
class Asked:
    """A pod that was asked for and is not yet seen: how, and when."""

    wish: Wish
    at: float


@dataclass(slots=True)
class Fleet:
    """All pods of a job, by uid, and the wishes that are not yet seen fulfilled.

    Attributes:
        next_worker: index of the next worker; survives the master.
        workers: index of every worker that ran and whose end is not entered yet, by uid; survives the master.
        dismissed: of them, those that were told to go by a master, or ended with the run before it was resumed: they
            are not lost; survives the master.
        holding: uid of the PS that holds the parameters of each index; survives the master.
        memory: what workers that are asked for now get; survives the master.
        asked: pods asked for and not yet seen.
        refusals: what the cluster said when it would not start a pod; the next one asked for gets the same index.
        not_before: when a role may be asked for again.
        backoff: the same, after refusals.
        crashes: pods of a role that crashed since one of them last got work done.
        born: of each PS that was restored from a checkpoint, by uid, the number of the next lease then. What it says of
            older leases may be older than what they reached.
    """

    ps: int
    next_worker: int = 0
    workers: dict[str, int] = field(default_factory=dict)
    dismissed: set[str] = field(default_factory=set)
    holding: dict[int, str] = field(default_factory=dict)
    memory: Memory = UNRAISED
    born: dict[str, int] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    asked: dict[Name, Asked] = field(default_factory=dict)
    refusals: dict[Name, str] = field(default_factory=dict)
    not_before: dict[Role, float] = field(default_factory=dict)
    backoff: dict[Role, Backoff] = field(default_factory=lambda: {role: Backoff() for role in Role})
    crashes: dict[Role, int] = field(default_factory=dict)
    _live: dict[Role, dict[str, Pod]] = field(default_factory=lambda: {role: {} for role in Role})
    _staying: dict[Role, dict[str, Pod]] = field(default_factory=lambda: {role: {} for role in Role})
    _waiting: dict[Role, dict[str, Pod]] = field(default_factory=lambda: {role: {} for role in Role})

    def live(self, role: Role) -> list[Pod]:
        """Pods of a role that have not ended, by index."""
        return sorted(self._live[role].values(), key=lambda p: p.index)

    def staying(self, role: Role) -> list[Pod]:
        """Pods of a role that have not ended and that nobody told to go, by index."""
        return sorted(self._staying[role].values(), key=lambda p: p.index)

    def waiting(self, role: Role) -> list[Pod]:
        """Those of them that have found no place to run yet."""
        return sorted(self._waiting[role].values(), key=lambda p: p.index)

    def going(self, role: Role) -> list[Pod]:
        """Pods of a role that have not ended and were told to go."""
        if len(self._live[role]) == len(self._staying[role]):
            return []
        return [pod for pod in self.live(role) if not pod.staying]

    def is_live(self, uid: str) -> bool:
        """Whether a pod is known and has not ended."""
        return uid in self.pods and self.pods[uid].live

    def has_ended(self, uid: str) -> bool:
        """Whether a pod is known to have ended; one that the cluster has not shown yet has not."""
        return uid in self.pods and not self.pods[uid].live

    # ------------------------------------------------------------------ what the cluster says

    def see(self, what: PodSeen) -> tuple[Pod, State]:
        """Enter what the cluster says; returns the pod and the state it was in before."""
        pod = self.pods.get(what.uid)
        if pod is None:
            pod = self.pods[what.uid] = Pod(what.uid, what.role, what.index, State.ASKED)
            if what.role is Role.WORKER:
                self.next_worker = max(self.next_worker, what.index + 1)
        before = pod.state
        pod.see(what)
        self._file(pod)
        self._appeared((what.role, what.index))
        return pod, before

    def dismiss(self, pod: Pod, why: str, now: float) -> None:
        """A pod is told to go, because it is not wanted any more."""
        pod.dismissed, pod.dismissal = now, why
        self._file(pod)

    def _file(self, pod: Pod) -> None:
        """Keep what is asked for at every event: there may be thousands of pods."""
        for file, belongs in ((self._live, pod.live), (self._staying, pod.staying), (self._waiting, pod.waiting)):
            if belongs:
                file[pod.role][pod.uid] = pod
            else:
                file[pod.role].pop(pod.uid, None)

    def _appeared(self, name: Name) -> None:
        """What was asked for is there: the cluster takes pods of its role again."""
        if self.asked.pop(name, None) is not None:
            self.backoff[name[0]] = Backoff()
        self.refusals.pop(name, None)

    def refused(self, role: Role, index: int, reason: str, now: float) -> bool:
        """The cluster would not start a pod now; whether this is the first refusal of its round."""
        if self.asked.pop((role, index), None) is None:
            return False
        self.refusals[role, index] = reason
        return self.backoff[role].refused(now)

    # ------------------------------------------------------------------ what is wanted

    def missing(self, workers: int, now: float) -> list[Name]:
        """What is to be asked for so that there are all PS and so many workers that stay."""
        return [
            *self._may(Role.PS, self._missing_ps(), now),
            *self._may(Role.WORKER, self._missing_workers(workers), now),
        ]

    def _missing_ps(self) -> list[int]:
        there = {p.index for p in self._live[Role.PS].values()} | {i for role, i in self.asked if role is Role.PS}
        return [index for index in range(self.ps) if index not in there]

    def _missing_workers(self, workers: int) -> list[int]:
        """Indices that were refused come first; those of them that are not wanted any more are forgotten."""
        count = max(0, workers - self.wanted_now())
        refused = sorted(
            index for role, index in self.refusals if role is Role.WORKER and (role, index) not in self.asked
        )
        for index in refused[count:]:
            del self.refusals[Role.WORKER, index]
        return [*refused[:count], *(self.next_worker + i for i in range(count - len(refused)))]

    def wanted_now(self) -> int:
        """Workers that stay or are asked for."""
        return len(self._staying[Role.WORKER]) + sum(role is Role.WORKER for role, _ in self.asked)

    def _may(self, role: Role, missing: Iterable[int], now: float) -> list[Name]:
        names = [(role, index) for index in missing]
        limit = self.backoff[role].limit(now)
        if limit is not None:
            names = names[: max(0, limit - sum(asked is role for asked, _ in self.asked))]
        return names if now >= self.not_before.get(role, 0.0) else []

    def unseen(self, now: float) -> list[Name]:
        """What was asked for so long ago that it is to be asked for again."""
        return [name for name, asked in self.asked.items() if now - asked.at >= ASK_PATIENCE]

    def ask(self, role: Role, index: int, now: float, wish: Wish = PLAIN) -> None:
        """Remember that a pod was asked for."""
        self.asked[role, index] = Asked(wish, now)
        if role is Role.WORKER:
            self.next_worker = max(self.next_worker, index + 1)

    def elevated(self) -> int:
        """Workers that stay or are asked for with the higher class of a divided priority."""
        staying = sum(pod.elevated for pod in self._staying[Role.WORKER].values())
        return staying + sum(role is Role.WORKER and asked.wish.elevated for (role, _), asked in self.asked.items())

    # ------------------------------------------------------------------ ends and work

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
