"""Worker scaling: which pods to request, and which workers to stop.

The wanted number of workers does not follow quotas or free capacity: it is ``workers.max`` while work
is waiting. When a ResourceQuota is short, the cluster refuses a pod, and ``job_pods.StartBackoff`` delays
the next request; a pod that is admitted and finds no node stays Pending.

Two invariants: apart from leaving workers, there are never more workers than are wanted; and no worker
is requested while no work is waiting, except the one that a job needs to finish.
"""

from __future__ import annotations

from itertools import islice

from edl.api.cluster_port import DEFAULT_OPTIONS, PodOptions, Role
from edl.api.journal_entries import WorkerChanged, WorkerDismissed, WorkersScaled
from edl.api.run_events import RoleLeaving, RoleRequested, WorkerCountChanged
from edl.core import priority_rule
from edl.core.events import DeletePod, ScaleRequested, StartPod
from edl.core.grants import remaining_step_budget
from edl.core.job_pods import JobPod
from edl.core.journal_application import record_entry
from edl.core.state import JobState
from edl.core.world_rounds import RoundPhase

START_BATCH = 50
"""Maximum number of pods requested per event: a thousand at once would delay the answers to workers."""
BATCH_DELAY_SECONDS = 0.05
"""Seconds until the next batch of requests if no other event arrives."""
DELETE_AGAIN_SECONDS = 30.0
"""Seconds after the grace period until a pod that has not ended is asked to stop again."""


def reconcile_pods(state: JobState, now: float) -> None:
    """Stop excess workers and request missing pods."""
    # In this order, so that one event never both requests and stops pods.
    _withdraw_pending_workers(state, now)
    _remove_excess_workers(state, now)
    _delete_lingering_workers(state, now)
    _request_missing_pods(state, now)


def handle_scale_requested(state: JobState, event: ScaleRequested, now: float) -> None:
    """Apply new worker counts."""
    if (event.min, event.max) != state.scale_override and not state.has_ended:
        record_entry(state, WorkersScaled(min=event.min, max=event.max))
        state.emit(WorkerCountChanged(min=state.workers_min, max=state.workers_max))


# ------------------------------------------------------------------------------------------------
# wanted count


def count_wanted_workers(state: JobState) -> int:
    """The wanted number of workers: the maximum while work is waiting, otherwise what a job needs to finish."""
    if state.pending_stop is not None:
        return 0
    return state.workers_max if has_waiting_work(state) else count_needed_workers(state)


def count_needed_workers(state: JobState) -> int:
    """How many workers a job needs when all its work is leased, or done.

    One stays, because leased ranges may return. Under AllReduce those of a lost worker return only with the
    next round, and no round starts below the minimum.
    """
    waits_for_members = state.world is not None and state.world.phase is not RoundPhase.RUNNING
    return state.members_needed if waits_for_members else 1


def has_waiting_work(state: JobState) -> bool:
    """Whether a new worker would get work, now or when a pending revocation completes."""
    main = state.main_ledger
    # Before the data set is known, a worker may have to describe it. The ranges of a revocation
    # return when it completes.
    if main is None or (state.revocations and not state.is_training_over()):
        return True
    if state.is_training_over():
        return False
    return main.next_range(remaining_step_budget(state)) is not None or (
        state.evaluation is not None and state.evaluation.ledger.has_work
    )


def is_starved(state: JobState) -> bool:
    """Whether work is waiting and fewer workers run than the minimum."""
    running = state.pods.by_role[Role.WORKER].running_count
    if state.has_ended or running >= state.workers_min:
        return False
    return has_waiting_work(state) or running < count_needed_workers(state)


# ------------------------------------------------------------------------------------------------
# excess workers


def _withdraw_pending_workers(state: JobState, now: float) -> None:
    """Withdraw pending workers when no work is left, but for those that the job needs to finish."""
    workers = state.pods.by_role[Role.WORKER]
    if not workers.pending or has_waiting_work(state):
        return
    missing = max(0, count_needed_workers(state) - workers.running_count)
    for pod in state.pods.pending_pods(Role.WORKER)[missing:]:
        terminate_worker(state, pod, "withdrawn: no work waits for it", now)


def _remove_excess_workers(state: JobState, now: float) -> None:
    """Stop excess workers: pending ones first, then the newest."""
    staying = state.pods.by_role[Role.WORKER].staying
    excess = len(staying) - state.workers_max
    if excess > 0:
        reason = f"only {state.workers_max} of {len(staying)} workers are wanted"
        # A worker that has not run holds nothing, so it costs nothing to stop it.
        for pod in sorted(staying.values(), key=lambda pod: (pod.has_run, -pod.index))[:excess]:
            terminate_worker(state, pod, reason, now)


def terminate_worker(state: JobState, pod: JobPod, reason: str, now: float) -> None:
    """Ask a worker to stop; a running one gets its grace period to return its leases."""
    if pod.uid in state.pods.worker_indices and pod.uid not in state.pods.leaving_workers:
        record_entry(state, WorkerDismissed(uid=pod.uid, reason=reason))
    state.pods.mark_leaving(pod, reason, now)
    state.emit(RoleLeaving(role=pod.role.value, index=pod.index, cause=reason))
    state.add_commands(DeletePod(pod.uid, state.settings.grace if pod.has_run else 0.0))


def _delete_lingering_workers(state: JobState, now: float) -> None:
    """Repeat requests to stop that had no effect."""
    # A request may have been lost on the way, or with the master that sent it.
    leave_timeout = state.settings.grace + DELETE_AGAIN_SECONDS
    for pod in list(state.pods.by_role[Role.WORKER].told_to_leave_before(now - leave_timeout)):
        state.pods.mark_leaving(pod, pod.leaving_reason, now)
        state.add_commands(DeletePod(pod.uid, 0.0))


# ------------------------------------------------------------------------------------------------
# missing pods


def _request_missing_pods(state: JobState, now: float) -> None:
    wanted = count_wanted_workers(state)
    left = START_BATCH - _repeat_requests(state, wanted, now)
    # One more than may be requested, to know whether further pods are missing.
    names = state.pods.missing_pods(wanted, now, left + 1)
    state.has_more_missing = len(names) > left
    for role, index in names[:left]:
        refused = state.pods.refusals.get((role, index), "")
        reason = f"refused before: {refused}" if refused else _request_reason(state, role, wanted)
        options = _worker_options(state) if role is Role.WORKER else DEFAULT_OPTIONS
        if role is Role.WORKER and index >= state.pods.next_worker_index:
            # Journaled before the request, so that a later master does not give this index to
            # another worker.
            record_entry(state, WorkerChanged(index=index))
        state.pods.request_pod(role, index, now, options)
        state.emit(RoleRequested(role=role.value, index=index, reason=reason))
        state.add_commands(StartPod(role, index, options))


def _repeat_requests(state: JobState, wanted: int, now: float) -> int:
    """Repeat or drop requests for pods that never appeared; returns how many were repeated."""
    names = list(islice(state.pods.requests.overdue_requests(now), START_BATCH))
    for role, index in names:
        request = state.pods.requests.drop_request((role, index))
        # Requests are idempotent: if the pod exists after all, the cluster starts no second one.
        if role is Role.PS or state.pods.count_expected_workers() < wanted:
            state.pods.request_pod(role, index, now, request.options)
            state.add_commands(StartPod(role, index, request.options))
    return len(names)


def _request_reason(state: JobState, role: Role, wanted: int) -> str:
    if role is Role.PS:
        return f"ps.count is {state.settings.ps}"
    return f"{wanted} wanted, {state.pods.count_expected_workers()} running or pending"


def _worker_options(state: JobState) -> PodOptions:
    """The options of the next worker pod."""
    s, fleet = state.settings, state.pods
    raised = bool(s.elevated_share) and priority_rule.next_is_elevated(
        s.elevated_share, state.workers_max, fleet.count_elevated()
    )
    return PodOptions(fleet.worker_memory.memory_factor(s.oom_memory_factor), raised)
