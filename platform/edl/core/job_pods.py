"""Which pods a job has and which it wants.

A relaunched PS keeps its index, a relaunched worker gets a new one: with workers 0 to 3, the one after worker-0 is
worker-4. A worker that was told to go is replaced before it has gone, a PS after: two of them cannot hold the same
parameters.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, KeysView
from dataclasses import dataclass, field, replace

from edl.api.cluster_port import DEFAULT_OPTIONS, PodOptions, PodPhase, PodStatus, Role, TerminationCause
from edl.core.backoff import ExponentialBackoff
from edl.core.pod_lifecycle import (
    NO_MEMORY_RAISE,
    STEPS_PER_CRASH,
    TERMINAL_STATES,
    MemoryRaise,
    PodState,
    decide_relaunch,
    next_state,
    reported_state,
)

# --------------------------------------------------------------------------------------------------
# Pods that were asked for: those that are not seen yet, and those that the cluster would not start.


REQUEST_TIMEOUT = 60.0
"""Seconds after which a pod that was asked for and never shown is asked for again; asking twice gives one pod."""

PodKey = tuple[Role, int]


@dataclass(frozen=True, slots=True)
class PodRequest:
    """A pod that was asked for and is not yet seen: how, and when."""

    wish: PodOptions
    at: float


@dataclass(slots=True)
class PendingPodRequests:
    """What was asked for; counted as it changes, because every event wants to know how much there is.

    Attributes:
        elevated: how many of what is on its way have the higher class of a divided priority.
        refusals: what the cluster said when it would not start a pod, until that pod starts.
        rejected_indices: of the refused ones, those that are not on their way again: the next asked for get their
            indices.
    """

    elevated: int = 0
    refusals: dict[PodKey, str] = field(default_factory=dict)
    rejected_indices: dict[Role, set[int]] = field(default_factory=lambda: {role: set() for role in Role})
    _asked: dict[Role, dict[int, PodRequest]] = field(default_factory=lambda: {role: {} for role in Role})
    """In the order in which they were last asked for."""

    def __contains__(self, name: PodKey) -> bool:
        """Whether a pod is on its way."""
        return name[1] in self._asked[name[0]]

    def items(self) -> Iterator[tuple[PodKey, PodRequest]]:
        """Everything that is on its way."""
        return (((role, index), asked) for role, of in self._asked.items() for index, asked in of.items())

    def count(self, role: Role) -> int:
        """How many of a role are on their way."""
        return len(self._asked[role])

    def indices(self, role: Role) -> KeysView[int]:
        """Which of a role are on their way."""
        return self._asked[role].keys()

    def ask(self, name: PodKey, options: PodOptions, now: float) -> None:
        """A pod is asked for."""
        self._take(name)
        self._asked[name[0]][name[1]] = PodRequest(options, now)
        self.elevated += options.elevated
        self.rejected_indices[name[0]].discard(name[1])

    def mark_appeared(self, name: PodKey) -> bool:
        """A pod is there; whether it was on its way."""
        if self.refusals.pop(name, None) is not None:
            self.rejected_indices[name[0]].discard(name[1])
        return self._take(name) is not None

    def refused(self, name: PodKey, reason: str) -> bool:
        """A pod was not started; whether it was on its way."""
        if self._take(name) is None:
            return False
        self.refusals[name] = reason
        self.rejected_indices[name[0]].add(name[1])
        return True

    def drop(self, name: PodKey) -> PodRequest:
        """A pod that is on its way is not counted on any more."""
        asked = self._take(name)
        assert asked is not None
        if name in self.refusals:
            self.rejected_indices[name[0]].add(name[1])
        return asked

    def clear(self) -> None:
        """Nothing is on its way."""
        for name, _ in list(self.items()):
            self.drop(name)

    def overdue_requests(self, now: float) -> Iterator[PodKey]:
        """What was asked for so long ago that it is to be asked for again."""
        for role, by_index in self._asked.items():
            for index, asked in by_index.items():
                if now - asked.at < REQUEST_TIMEOUT:
                    break
                yield role, index

    def lowest_rejected(self, role: Role, count: int) -> list[int]:
        """The lowest indices that were refused and are not on their way."""
        return heapq.nsmallest(count, self.rejected_indices[role]) if self.rejected_indices[role] else []

    def trim_rejected(self, role: Role, limit: int) -> None:
        """Only so many of the refused ones are still wanted."""
        refused = self.rejected_indices[role]
        if len(refused) > limit:
            for index in sorted(refused)[limit:]:
                refused.discard(index)
                del self.refusals[role, index]

    def _take(self, name: PodKey) -> PodRequest | None:
        asked = self._asked[name[0]].pop(name[1], None)
        if asked is not None:
            self.elevated -= asked.wish.elevated
        return asked


@dataclass(slots=True)
class JobPod:
    """A pod as the master knows it.

    Attributes:
        cause: why it is going or gone, if somebody else wanted that.
        message: the cluster's own words, such as why it is pending.
        elevated: it has the higher class of a divided priority.
        has_run: it was running at some time; one that never was had nothing in its hands.
        attached: a PS that listens to this incarnation of the master.
        initialized: a PS that holds variables.
        building: a worker that this master saw start and that has not built its model yet: it cannot push.
        version: pushes that a PS had applied when it was last heard of.
        asked: when a PS was last asked to listen.
        loading: a PS that was told to load a checkpoint.
        stale: what it was asked no longer holds: its answer is not taken, and it is asked again.
        left: a worker that said goodbye.
        leased: a worker that got work, or may have: it ran before this master did.
        told: somebody told it to go, as the cluster said before it ended.
        leaving_since: when this master last told it to go; it is not wanted any more.
        leaving_reason: why.
        unreachable: since when the cluster has not heard of its node, in unix seconds; 0: it does.
        heard: when this master last heard of a PS, or saw it first.
        unreachable_noticed_at: when this master first saw that the cluster does not hear of the PS's node.
        is_abandoned: a PS that was deleted: neither the cluster, nor the master, nor workers heard of it, or its
            successor waits for its end.
    """

    uid: str
    role: Role
    index: int
    state: PodState
    pid: int | None = None
    reason: str = ""
    exit_code: int | None = None
    cause: TerminationCause = TerminationCause.NONE
    message: str = ""
    node: str = ""
    elevated: bool = False
    has_run: bool = False
    attached: bool = False
    initialized: bool = False
    building: bool = False
    version: int = 0
    asked: float | None = None
    loading: bool = False
    stale: bool = False
    left: bool = False
    leased: bool = False
    told: bool = False
    leaving_since: float | None = None
    leaving_reason: str = ""
    unreachable: float = 0.0
    heard: float = 0.0
    unreachable_noticed_at: float | None = None
    is_abandoned: bool = False

    @property
    def live(self) -> bool:
        """Whether it may still do something."""
        return self.state not in TERMINAL_STATES

    @property
    def staying(self) -> bool:
        """Whether it lives and nobody has told it to go."""
        return self.live and self.state is not PodState.LEAVING and self.leaving_since is None

    @property
    def expected_to_leave(self) -> bool:
        """Whether it was told to go, or has said goodbye."""
        return self.told or self.left or self.leaving_since is not None

    @property
    def waiting(self) -> bool:
        """Whether it stays and has not found a place to run yet."""
        return self.staying and not self.has_run

    def see(self, status: PodStatus, *, job_ended: bool = False) -> None:
        """Enter what the cluster says. What it said of the cause holds until the end.

        Args:
            what: it says.
            over: the job has ended: every pod goes.
        """
        self.cause = status.cause or self.cause
        leaving_expected = job_ended or self.role is not Role.WORKER or self.expected_to_leave
        reported = reported_state(replace(status, cause=self.cause), leaving_expected=leaving_expected)
        self.state = next_state(self.state, reported)
        self.told = self.told or self.state is PodState.LEAVING
        self.has_run = self.has_run or status.phase is PodPhase.RUNNING or status.exit_code is not None
        self.pid, self.node = status.pid or self.pid, status.node or self.node
        self.reason, self.exit_code, self.message = status.reason or self.reason, status.exit_code, status.message
        self.elevated, self.unreachable = self.elevated or status.elevated, status.unreachable_since

    def why(self) -> str:
        """Why it is going or gone, for people."""
        return self.leaving_reason or self._cause_text() or self.reason or self.state.value

    def _cause_text(self) -> str:
        return f"{self.cause}: {self.message}" if self.cause and self.message else self.cause.value


@dataclass(slots=True)
class PodIndex:
    """The pods of one role by what they are, by uid; entered at every change.

    Every event asks how many there are, and there may be thousands: nobody walks over all of them for that.

    Attributes:
        live: they have not ended.
        staying: of them, those that nobody told to go.
        waiting: of these, those that have found no place to run yet.
        elevated: of those that stay, those with the higher class of a divided priority.
        built: of the live ones, those that run and are not building their model.
        told: of the live ones, those that this master told to go, in the order in which they last were.
    """

    live: dict[str, JobPod] = field(default_factory=dict)
    staying: dict[str, JobPod] = field(default_factory=dict)
    waiting: dict[str, JobPod] = field(default_factory=dict)
    elevated: dict[str, JobPod] = field(default_factory=dict)
    built: dict[str, JobPod] = field(default_factory=dict)
    told: dict[str, JobPod] = field(default_factory=dict)

    def enter(self, pod: JobPod) -> None:
        """A pod is new, or has changed."""
        live, staying = pod.live, pod.staying
        for group, belongs in (
            (self.live, live),
            (self.staying, staying),
            (self.waiting, staying and not pod.has_run),
            (self.elevated, staying and pod.elevated),
            (self.built, live and pod.has_run and not pod.building),
            (self.told, live and pod.leaving_since is not None),
        ):
            if belongs:
                group[pod.uid] = pod
            else:
                group.pop(pod.uid, None)

    def mark_leaving(self, pod: JobPod, reason: str, now: float) -> None:
        """A pod is told to go, because it is not wanted any more."""
        pod.leaving_since, pod.leaving_reason = now, reason
        self.told.pop(pod.uid, None)
        self.enter(pod)

    def told_to_leave_before(self, time: float) -> Iterator[JobPod]:
        """Those that were last told to go at or before a time and have not gone."""
        for pod in self.told.values():
            if pod.leaving_since is None or pod.leaving_since > time:
                return
            yield pod

    @property
    def running(self) -> int:
        """How many stay and have found a place to run."""
        return len(self.staying) - len(self.waiting)


# --------------------------------------------------------------------------------------------------
# How long a role is not asked for after the cluster refused to start a pod of it.


_REFUSAL_BACKOFF = ExponentialBackoff(first_seconds=1.0, max_seconds=60.0)


@dataclass(slots=True)
class StartBackoff:
    """Twice as long after each round of refusals, until a pod of the role starts.

    Attributes:
        rounds: of refusals since the last success; refusals within one count once.
        until: nothing is asked for before.
    """

    rounds: int = 0
    until: float = float("-inf")

    def refused(self, now: float) -> bool:
        """The cluster would not start a pod; whether this is the first refusal of its round."""
        if now < self.until:
            return False
        self.rounds += 1
        self.until = now + _REFUSAL_BACKOFF.delay(self.rounds)
        return True

    def limit(self, now: float) -> int | None:
        """How many may be asked for: one to try with while refusals last; None: as many as are missing."""
        if not self.rounds:
            return None
        return 1 if now >= self.until else 0


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

    def see(self, status: PodStatus, *, job_ended: bool = False) -> tuple[JobPod, PodState]:
        """Enter what the cluster says; returns the pod and its state before. ``job_ended``: the job has ended."""
        pod = self.pods.get(status.uid)
        if pod is None:
            pod = self.pods[status.uid] = JobPod(status.uid, status.role, status.index, PodState.ASKED)
            if status.role is Role.WORKER:
                self.next_worker_index = max(self.next_worker_index, status.index + 1)
        before = pod.state
        pod.see(status, job_ended=job_ended)
        self.roles[pod.role].enter(pod)
        if self.asked.mark_appeared((status.role, status.index)):  # the cluster takes pods of its role again
            self.start_backoff[status.role] = StartBackoff()
        return pod, before

    def mark_leaving(self, pod: JobPod, reason: str, now: float) -> None:
        """A pod is told to go, because it is not wanted any more."""
        self.roles[pod.role].mark_leaving(pod, reason, now)

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

    def missing(self, workers: int, now: float, limit: int = _UNLIMITED) -> list[PodKey]:
        """What is to be asked for, ``limit`` of it, so that there are all PS and so many workers that stay."""
        ps = self._missing_ps()[: min(limit, self._start_allowance(Role.PS, now))]
        new_workers = self._missing_workers(workers, min(limit - len(ps), self._start_allowance(Role.WORKER, now)))
        return [*((Role.PS, index) for index in ps), *((Role.WORKER, index) for index in new_workers)]

    def _missing_ps(self) -> list[int]:
        present = {p.index for p in self.roles[Role.PS].live.values()} | self.asked.indices(Role.PS)
        return [index for index in range(self.ps) if index not in present]

    def _missing_workers(self, workers: int, limit: int) -> list[int]:
        """Indices that were refused come first; those of them that are not wanted any more are forgotten."""
        count = max(0, workers - self.count_expected_workers())
        self.asked.trim_rejected(Role.WORKER, count)
        count = min(count, limit)
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

    def ask(self, role: Role, index: int, now: float, options: PodOptions = DEFAULT_OPTIONS) -> None:
        """Remember that a pod was asked for."""
        self.asked.ask((role, index), options, now)
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
        if decision.value is not None:
            self.relaunch_times[pod.role] = now + decision.value
        return decision.value is not None, decision.reason

    def credit_steps(self, role: Role, steps: int) -> None:
        """Pods of the role got so many steps done, which make good for crashes; none are saved for crashes to come."""
        if not self.crashes.get(role):
            return
        forgiven, self.steps[role] = divmod(self.steps.get(role, 0) + steps, STEPS_PER_CRASH)
        self.forgive_crashes(role, forgiven)

    def forgive_crashes(self, role: Role, crashes: int) -> None:
        """So many crashes no longer count."""
        self.crashes[role] = max(0, self.crashes.get(role, 0) - crashes)
        if not self.crashes[role]:
            self.steps.pop(role, None)

    def all_ps_ready(self) -> bool:
        """Whether every PS is there, listens to this master and holds variables."""
        live = self.roles[Role.PS].live
        return len(live) == self.ps and all(p.attached and p.initialized for p in live.values())
