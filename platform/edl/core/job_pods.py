"""The pods that a job has and the pods that it wants.

A relaunched PS keeps its index. A relaunched worker gets a new one: with workers 0 to 3, the successor
of worker-0 is worker-4. A leaving worker is replaced before it has ended. A leaving PS is replaced
afterwards, because two processes cannot hold the same parameters.
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
# Requested pods: those that have not appeared yet, and those that the cluster refused to start.


PS_SILENCE_SECONDS = 10.0
"""A PS without a heartbeat for so long, while no worker completed a step, is considered silent.

This is ten heartbeats. The cluster takes longer to notice a lost node, so when it reports one, this
time has usually passed.
"""
REQUEST_TIMEOUT = 60.0
"""Seconds until a requested pod that never appeared is requested again. Requests are idempotent."""

PodKey = tuple[Role, int]


@dataclass(frozen=True, slots=True)
class PodRequest:
    """A requested pod that has not appeared yet."""

    options: PodOptions
    requested_at: float


@dataclass(slots=True)
class PendingPodRequests:
    """Pod requests that are pending or were refused.

    Counts are maintained incrementally because every event needs them.

    Attributes:
        elevated_count: number of pending requests with the higher class of a split priority.
        refusals: the cluster's reason for each refused pod, until that pod starts.
        rejected_indices: by role, the indices of refused pods that are not requested again yet; the next
            requests reuse them.
    """

    elevated_count: int = 0
    refusals: dict[PodKey, str] = field(default_factory=dict)
    rejected_indices: dict[Role, set[int]] = field(default_factory=lambda: {role: set() for role in Role})
    _pending: dict[Role, dict[int, PodRequest]] = field(default_factory=lambda: {role: {} for role in Role})
    """Ordered by the time of the latest request, so that ``overdue_requests`` can stop at the first young one."""

    def __contains__(self, name: PodKey) -> bool:
        """Whether this pod is requested and has not appeared yet."""
        return name[1] in self._pending[name[0]]

    def items(self) -> Iterator[tuple[PodKey, PodRequest]]:
        return (
            ((role, index), request) for role, by_index in self._pending.items() for index, request in by_index.items()
        )

    def count_pending(self, role: Role) -> int:
        """The number of pending requests for a role."""
        return len(self._pending[role])

    def pending_indices(self, role: Role) -> KeysView[int]:
        return self._pending[role].keys()

    def add_request(self, name: PodKey, options: PodOptions, now: float) -> None:
        """Record that a pod was requested."""
        # Also moves a repeated request to the end: ``_pending`` is in the order of the latest
        # request.
        self._remove_request(name)
        self._pending[name[0]][name[1]] = PodRequest(options, now)
        self.elevated_count += options.elevated
        self.rejected_indices[name[0]].discard(name[1])

    def mark_appeared(self, name: PodKey) -> bool:
        """Record that a pod appeared; returns whether it was pending."""
        if self.refusals.pop(name, None) is not None:
            self.rejected_indices[name[0]].discard(name[1])
        return self._remove_request(name) is not None

    def mark_refused(self, name: PodKey, reason: str) -> bool:
        """Record that a pod was refused; returns whether it was pending."""
        # A late answer, to a request that was dropped or whose pod has appeared, says nothing about
        # the next one.
        if self._remove_request(name) is None:
            return False
        self.refusals[name] = reason
        self.rejected_indices[name[0]].add(name[1])
        return True

    def drop_request(self, name: PodKey) -> PodRequest:
        request = self._remove_request(name)
        assert request is not None
        # It was refused before and then requested again. The next request takes its index first.
        if name in self.refusals:
            self.rejected_indices[name[0]].add(name[1])
        return request

    def clear(self) -> None:
        """Drop all pending requests."""
        for name, _ in list(self.items()):
            self.drop_request(name)

    def overdue_requests(self, now: float) -> Iterator[PodKey]:
        """Requests that are old enough to be repeated."""
        for role, by_index in self._pending.items():
            for index, request in by_index.items():
                if now - request.requested_at < REQUEST_TIMEOUT:
                    break
                yield role, index

    def lowest_rejected(self, role: Role, count: int) -> list[int]:
        """The lowest ``count`` indices that were refused and are not pending."""
        return heapq.nsmallest(count, self.rejected_indices[role]) if self.rejected_indices[role] else []

    def trim_rejected(self, role: Role, limit: int) -> None:
        """Forget all but the ``limit`` lowest of the refused indices."""
        refused = self.rejected_indices[role]
        if len(refused) > limit:
            for index in sorted(refused)[limit:]:
                refused.discard(index)
                del self.refusals[role, index]

    def _remove_request(self, name: PodKey) -> PodRequest | None:
        request = self._pending[name[0]].pop(name[1], None)
        if request is not None:
            self.elevated_count -= request.options.elevated
        return request


@dataclass(slots=True)
class JobPod:
    """A pod as the master knows it.

    Attributes:
        cause: why the pod leaves or has ended, if the cluster reports a cause.
        message: the cluster's message, such as why the pod is pending.
        elevated: whether it has the higher class of a split priority.
        has_run: whether it was ever running; a pod that was not holds nothing.
        attached: for a PS: it is attached to this master.
        initialized: for a PS: it holds variables.
        building: for a worker that this master saw start: it has not built its model yet and cannot push.
        version: for a PS: its last reported version.
        attach_asked_at: for a PS: when it was last asked to attach.
        loading: for a PS: it was told to load a checkpoint.
        may_end: for a PS: it was told that it may exit, because it held no parameters. It never holds any.
        stale: for a PS: its last attach request is outdated. Its answer is ignored, and it is asked again.
        has_left: for a worker: it announced that it leaves.
        had_lease: for a worker: it had a lease, or may have had one before this master started.
        told_to_leave: whether the cluster reported the pod as leaving before it ended.
        leaving_since: when this master last asked it to stop, because it is not wanted any more.
        leaving_reason: the reason for that.
        unreachable_since: since when the cluster reports its node as unreachable, in unix seconds; 0: it
            does not.
        last_seen: for a PS: when it last sent a heartbeat, or was first reported.
        unreachable_noticed_at: for a PS: when this master first saw that its node is unreachable.
        is_abandoned: for a PS: it was deleted because nothing reaches it, or because its successor waits
            for its end.
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
    attach_asked_at: float | None = None
    loading: bool = False
    may_end: bool = False
    stale: bool = False
    has_left: bool = False
    had_lease: bool = False
    told_to_leave: bool = False
    leaving_since: float | None = None
    leaving_reason: str = ""
    unreachable_since: float = 0.0
    last_seen: float = 0.0
    unreachable_noticed_at: float | None = None
    is_abandoned: bool = False

    @property
    def live(self) -> bool:
        """Whether the pod has not ended."""
        return self.state not in TERMINAL_STATES

    @property
    def staying(self) -> bool:
        """Whether the pod is live and was not asked to stop."""
        return self.live and self.state is not PodState.LEAVING and self.leaving_since is None

    @property
    def expected_to_leave(self) -> bool:
        """Whether the pod was asked to stop, or announced that it is leaving."""
        return self.told_to_leave or self.has_left or self.leaving_since is not None

    def update_status(self, status: PodStatus, *, job_ended: bool = False) -> None:
        """Update the pod from the cluster's report. A known cause is kept until the pod ends.

        Args:
            status: the pod as the cluster reports it.
            job_ended: the job has ended, so that every pod is expected to leave.
        """
        # A cluster may report the cause only while the pod leaves, and not with its end.
        self.cause = status.cause or self.cause
        # Only a worker can exit too early: its model's code may call ``exit(0)`` in the middle of
        # its work.
        leaving_expected = job_ended or self.role is not Role.WORKER or self.expected_to_leave
        reported = reported_state(replace(status, cause=self.cause), leaving_expected=leaving_expected)
        self.state = next_state(self.state, reported)
        self.told_to_leave = self.told_to_leave or self.state is PodState.LEAVING
        # A pod may end before a report of it running arrives; an exit code proves that it ran.
        self.has_run = self.has_run or status.phase is PodPhase.RUNNING or status.exit_code is not None
        self.pid, self.node = status.pid or self.pid, status.node or self.node
        self.reason, self.exit_code, self.message = status.reason or self.reason, status.exit_code, status.message
        self.elevated, self.unreachable_since = self.elevated or status.elevated, status.unreachable_since

    def describe_end(self) -> str:
        """Why the pod is leaving or gone, for users."""
        cause = f"{self.cause}: {self.message}" if self.cause and self.message else self.cause.value
        return self.leaving_reason or cause or self.reason or self.state.value


@dataclass(slots=True)
class PodIndex:
    """The pods of one role, grouped by state and keyed by uid; updated on every change.

    Every event needs the sizes of these groups, and there may be thousands of pods, so they are not
    counted anew.

    Attributes:
        live: pods that have not ended.
        staying: live pods that were not asked to stop.
        pending: staying pods that are not scheduled yet.
        elevated: staying pods with the higher class of a split priority.
        model_built: live pods that run and have built their model.
        told_to_leave: live pods that this master asked to stop, in the order of the last request.
    """

    live: dict[str, JobPod] = field(default_factory=dict)
    staying: dict[str, JobPod] = field(default_factory=dict)
    pending: dict[str, JobPod] = field(default_factory=dict)
    elevated: dict[str, JobPod] = field(default_factory=dict)
    model_built: dict[str, JobPod] = field(default_factory=dict)
    told_to_leave: dict[str, JobPod] = field(default_factory=dict)

    def update_pod(self, pod: JobPod) -> None:
        """Add or update a pod."""
        live, staying = pod.live, pod.staying
        for group, belongs in (
            (self.live, live),
            (self.staying, staying),
            (self.pending, staying and not pod.has_run),
            (self.elevated, staying and pod.elevated),
            (self.model_built, live and pod.has_run and not pod.building),
            (self.told_to_leave, live and pod.leaving_since is not None),
        ):
            if belongs:
                group[pod.uid] = pod
            else:
                group.pop(pod.uid, None)

    def mark_leaving(self, pod: JobPod, reason: str, now: float) -> None:
        """Record that a pod was asked to stop because it is no longer wanted."""
        pod.leaving_since, pod.leaving_reason = now, reason
        # Added again at the end: ``told_to_leave_before`` relies on the order of the last request.
        self.told_to_leave.pop(pod.uid, None)
        self.update_pod(pod)

    def told_to_leave_before(self, time: float) -> Iterator[JobPod]:
        """Pods that were last asked to stop at or before ``time`` and have not ended."""
        for pod in self.told_to_leave.values():
            if pod.leaving_since is None or pod.leaving_since > time:
                return
            yield pod

    @property
    def running_count(self) -> int:
        """The number of pods that are not leaving and are running."""
        return len(self.staying) - len(self.pending)


# --------------------------------------------------------------------------------------------------
# Backoff per role after the cluster refused to start a pod.


_REFUSAL_BACKOFF = ExponentialBackoff(first_seconds=1.0, max_seconds=60.0)


@dataclass(slots=True)
class StartBackoff:
    """Backoff after the cluster refused a pod, for example because a quota is used up.

    The delay doubles with each round of refusals, until a pod of the role starts.

    Attributes:
        refusal_rounds: rounds of refusals since the last success; refusals within one round count once.
        retry_at: no pod of the role is requested before this time.
    """

    refusal_rounds: int = 0
    retry_at: float = float("-inf")

    def record_refusal(self, now: float) -> bool:
        """Record a refused start; returns whether it is the first refusal of its round."""
        # Requests of one batch are refused together; they must not raise the delay several times.
        if now < self.retry_at:
            return False
        self.refusal_rounds += 1
        self.retry_at = now + _REFUSAL_BACKOFF.delay(self.refusal_rounds)
        return True

    def start_limit(self, now: float) -> int | None:
        """How many pods may be requested: one probe while starts are refused; None: no limit."""
        if not self.refusal_rounds:
            return None
        # One request finds out whether the cluster accepts the role again. When its pod starts, the
        # others follow at once.
        return 1 if now >= self.retry_at else 0


_UNLIMITED = 1 << 31


@dataclass(slots=True)
class JobPods:
    """All pods of a job by uid, and the pending pod requests.

    Attributes:
        next_worker_index: index of the next worker; journaled.
        worker_indices: by uid, the index of every worker that ran and whose end is not journaled; journaled.
        leaving_workers: those of them that a master asked to stop, or that ended with the run before it was
            resumed. They do not count as lost; journaled.
        parameter_holders: by index, uid of the PS that holds the parameters; journaled.
        handed_over_ps: by uid, the index of each PS whose parameters are in the cut after which updates are
            paused; journaled.
        worker_memory: the memory of workers that are requested now; journaled.
        built_workers: uids of workers that have built their model. The cluster may not have reported them
            as running yet.
        requests: requested pods that have not appeared, and refused ones.
        relaunch_times: by role, when pods may be requested again after a crash.
        start_backoff: by role, the backoff after refusals.
        crash_counts: by role, crashes that no completed steps have offset.
        steps_since_crash: by role, completed steps that have not offset a crash yet.
        by_role: the pods that have not ended, by role.
        restore_lease: by uid of a PS that was restored from a checkpoint, the number of the next lease at
            that time. Its number of applied steps of an older lease may be too low.
        update_offsets: by uid of a PS, the offset of ``update_accounting``; journaled.
        measured_ps: by index, uid of the PS that took part in the newest cut; journaled.
        version: rises with every change of a pod's state.
    """

    ps_count: int
    next_worker_index: int = 0
    worker_indices: dict[str, int] = field(default_factory=dict)
    leaving_workers: set[str] = field(default_factory=set)
    parameter_holders: dict[int, str] = field(default_factory=dict)
    handed_over_ps: dict[str, int] = field(default_factory=dict)
    worker_memory: MemoryRaise = NO_MEMORY_RAISE
    restore_lease: dict[str, int] = field(default_factory=dict)
    update_offsets: dict[str, int] = field(default_factory=dict)
    measured_ps: dict[int, str] = field(default_factory=dict)
    built_workers: set[str] = field(default_factory=set)
    by_uid: dict[str, JobPod] = field(default_factory=dict)
    requests: PendingPodRequests = field(default_factory=PendingPodRequests)
    by_role: dict[Role, PodIndex] = field(default_factory=lambda: {role: PodIndex() for role in Role})
    relaunch_times: dict[Role, float] = field(default_factory=dict)
    start_backoff: dict[Role, StartBackoff] = field(default_factory=lambda: {role: StartBackoff() for role in Role})
    crash_counts: dict[Role, int] = field(default_factory=dict)
    steps_since_crash: dict[Role, int] = field(default_factory=dict)
    version: int = 0

    def live_pods(self, role: Role) -> list[JobPod]:
        """Pods of a role that have not ended, by index."""
        return sorted(self.by_role[role].live.values(), key=lambda p: p.index)

    def staying_pods(self, role: Role) -> list[JobPod]:
        """Pods of a role that are live and were not asked to stop, by index."""
        return sorted(self.by_role[role].staying.values(), key=lambda p: p.index)

    def pending_pods(self, role: Role) -> list[JobPod]:
        """Pods of a role that are waiting to be scheduled."""
        return sorted(self.by_role[role].pending.values(), key=lambda p: p.index)

    @property
    def refusals(self) -> dict[PodKey, str]:
        """Refused starts with the cluster's reason. The next request reuses the index."""
        return self.requests.refusals

    def is_live(self, uid: str) -> bool:
        """Whether a pod is known and has not ended."""
        return uid in self.by_uid and self.by_uid[uid].live

    def index_of(self, uid: str) -> int | None:
        """The pod's index, by which users know it; None if the cluster never reported the pod."""
        return self.by_uid[uid].index if uid in self.by_uid else None

    def has_ended(self, uid: str) -> bool:
        """Whether a pod is known to have ended; False for one that the cluster has not reported yet."""
        # Ended pods stay in ``by_uid``, so that their late messages are recognized.
        return uid in self.by_uid and not self.by_uid[uid].live

    # ------------------------------------------------------------------ reports of the cluster

    def update_pod(self, status: PodStatus, *, job_ended: bool = False) -> tuple[JobPod, PodState]:
        """Update a pod from the cluster's report; returns the pod and its previous state."""
        pod = self.by_uid.get(status.uid)
        if pod is None:
            pod = self.by_uid[status.uid] = JobPod(status.uid, status.role, status.index, PodState.ASKED)
            if status.role is Role.WORKER:
                # An index is never given twice, whichever master requested the pod.
                self.next_worker_index = max(self.next_worker_index, status.index + 1)
        before = pod.state
        self.version += 1
        pod.update_status(status, job_ended=job_ended)
        self.by_role[pod.role].update_pod(pod)
        # A pod started, so the cluster accepts this role again.
        if self.requests.mark_appeared((status.role, status.index)):
            self.start_backoff[status.role] = StartBackoff()
        return pod, before

    def mark_leaving(self, pod: JobPod, reason: str, now: float) -> None:
        """Record that a pod was asked to stop because it is no longer wanted."""
        self.version += 1
        self.by_role[pod.role].mark_leaving(pod, reason, now)

    def mark_building(self, pod: JobPod) -> None:
        """Record that a worker started and builds its model, unless it already reported a built model."""
        # The worker's message and the cluster's report arrive in any order.
        pod.building = pod.uid not in self.built_workers
        self.by_role[pod.role].update_pod(pod)

    def mark_model_built(self, uid: str) -> None:
        """Record that a worker has built its model."""
        self.built_workers.add(uid)
        if pod := self.by_uid.get(uid):
            pod.building = False
            self.by_role[pod.role].update_pod(pod)

    def record_start_refusal(self, role: Role, index: int, reason: str, now: float) -> bool:
        """Record that the cluster refused to start a pod; returns whether this is the first refusal of its round."""
        return self.requests.mark_refused((role, index), reason) and self.start_backoff[role].record_refusal(now)

    # ------------------------------------------------------------------ wanted pods

    def missing_pods(self, workers: int, now: float, limit: int = _UNLIMITED) -> list[PodKey]:
        """The pods to request next, at most ``limit``, to reach all PS and the wanted number of workers."""
        # PS first: no training is leased before all of them are ready.
        ps = self._missing_ps()[: min(limit, self._start_allowance(Role.PS, now))]
        new_workers = self._missing_workers(workers, min(limit - len(ps), self._start_allowance(Role.WORKER, now)))
        return [*((Role.PS, index) for index in ps), *((Role.WORKER, index) for index in new_workers)]

    def _missing_ps(self) -> list[int]:
        present = {p.index for p in self.by_role[Role.PS].live.values()} | self.requests.pending_indices(Role.PS)
        return [index for index in range(self.ps_count) if index not in present]

    def _missing_workers(self, workers: int, limit: int) -> list[int]:
        """Refused indices are reused first; refused indices that are no longer wanted are dropped."""
        count = max(0, workers - self.count_expected_workers())
        self.requests.trim_rejected(Role.WORKER, count)
        count = min(count, limit)
        refused = self.requests.lowest_rejected(Role.WORKER, count)
        return [*refused, *(self.next_worker_index + i for i in range(count - len(refused)))]

    def count_expected_workers(self) -> int:
        """The number of workers that are staying or requested."""
        return len(self.by_role[Role.WORKER].staying) + self.requests.count_pending(Role.WORKER)

    def _start_allowance(self, role: Role, now: float) -> int:
        """How many pods of a role may be requested now."""
        if now < self.relaunch_times.get(role, 0.0):
            return 0
        limit = self.start_backoff[role].start_limit(now)
        # A probe that is still pending is the one that may be requested.
        return _UNLIMITED if limit is None else max(0, limit - self.requests.count_pending(role))

    def request_pod(self, role: Role, index: int, now: float, options: PodOptions = DEFAULT_OPTIONS) -> None:
        """Record that a pod was requested."""
        self.requests.add_request((role, index), options, now)
        if role is Role.WORKER:
            self.next_worker_index = max(self.next_worker_index, index + 1)

    def count_elevated(self) -> int:
        """The number of workers, staying or requested, with the higher priority class."""
        return len(self.by_role[Role.WORKER].elevated) + self.requests.elevated_count

    # ------------------------------------------------------------------ lost pods and crashes

    def plan_relaunch(self, pod: JobPod, now: float, *, crashed: bool | None = None) -> tuple[bool, str]:
        """Decide whether the job continues after losing a pod that it needed, and why.

        ``crashed``: whether the end counts as a crash; by default if the pod ended with an error.
        """
        if crashed is None:
            crashed = pod.state is PodState.CRASHED
        if crashed:
            self.crash_counts[pod.role] = self.crash_counts.get(pod.role, 0) + 1
        decision = decide_relaunch(pod.state, self.crash_counts.get(pod.role, 0), crashed=crashed)
        if decision.value is not None:
            self.relaunch_times[pod.role] = now + decision.value
        return decision.value is not None, decision.reason

    def credit_steps(self, role: Role, steps: int) -> None:
        """Credit completed steps to a role. Enough steps offset a crash; unused credit is not kept."""
        # Steps offset crashes that happened before them, never later ones.
        if not self.crash_counts.get(role):
            return
        forgiven, self.steps_since_crash[role] = divmod(self.steps_since_crash.get(role, 0) + steps, STEPS_PER_CRASH)
        self.forgive_crashes(role, forgiven)

    def forgive_crashes(self, role: Role, crashes: int) -> None:
        """Remove this many crashes from the count."""
        self.crash_counts[role] = max(0, self.crash_counts.get(role, 0) - crashes)
        if not self.crash_counts[role]:
            self.steps_since_crash.pop(role, None)

    def all_ps_ready(self) -> bool:
        """Whether every PS is running, attached to this master and initialized."""
        live = self.by_role[Role.PS].live
        return len(live) == self.ps_count and all(p.attached and p.initialized for p in live.values())
