"""Which pods are asked for, and which workers are told to go because they are not wanted any more.

There are never more workers, those that were told to go not counted, than are wanted, and none is asked for when no
work waits for it, except the one that a job needs to come to its end.
"""

from __future__ import annotations

from itertools import islice

from edl.api.cluster_port import DEFAULT_OPTIONS, PodOptions, Role
from edl.api.events import RoleLeaving, RoleRequested, WorkerCountChanged
from edl.api.journal_entries import WorkerChanged, WorkerDismissed, WorkersScaled
from edl.core import worker_priority
from edl.core.events import DeletePod, ScaleRequested, StartPod
from edl.core.grants import remaining_step_budget
from edl.core.job_pods import JobPod
from edl.core.state import JobState

START_BATCH = 50
"""Pods asked for at one event: a thousand at once would keep workers waiting that report. The others follow soon."""
BATCH_DELAY_SECONDS = 0.05
"""Seconds after which the next batch is asked for, if nothing happens before."""
DELETE_AGAIN_SECONDS = 30.0
"""Beyond its grace, after which a pod that was told to go and has not gone is told again."""


def reconcile_pods(state: JobState, now: float) -> None:
    """Tell workers to go that are too many, ask for what is missing."""
    # In this order, so that nothing is asked for and told to go at the same event.
    _withdraw_pending_workers(state, now)
    _remove_excess_workers(state, now)
    _delete_lingering_workers(state, now)
    _request_missing_pods(state, now)


def handle_scale_requested(state: JobState, event: ScaleRequested, now: float) -> None:
    """Somebody wants other numbers of workers from now on."""
    if (event.min, event.max) != state.scale_override and not state.has_ended:
        state.record_entry(WorkersScaled(min=event.min, max=event.max))
        state.emit(WorkerCountChanged(min=state.workers_min, max=state.workers_max))


# ------------------------------------------------------------------------------------------------ how many


def count_wanted_workers(state: JobState) -> int:
    """As many as may be while there is work to hand out; then at least one, for what may come back."""
    if state.pending_stop is not None:
        return 0
    return state.workers_max if has_waiting_work(state) else 1


def has_waiting_work(state: JobState) -> bool:
    """Whether a worker that came now would get something to do, or will when what is on its way has come back."""
    main = state.main_ledger
    if main is None or (state.revocations and not state.is_training_over()):
        return True
    if state.is_training_over():
        return False
    return main.next_range(remaining_step_budget(state)) is not None or (
        state.evaluation is not None and state.evaluation.ledger.has_work
    )


def is_starved(state: JobState) -> bool:
    """Whether work waits and fewer workers run than the job should have at least."""
    running = state.pods.by_role[Role.WORKER].running_count
    return not state.has_ended and running < state.workers_min and has_waiting_work(state)


# ------------------------------------------------------------------------------------------------ too many


def _withdraw_pending_workers(state: JobState, now: float) -> None:
    """Workers that wait for room are not started for nothing; one stays if no other is there."""
    workers = state.pods.by_role[Role.WORKER]
    if not workers.pending or has_waiting_work(state):
        return
    for pod in state.pods.pending_pods(Role.WORKER)[0 if workers.running_count else 1 :]:
        terminate_worker(state, pod, "withdrawn: no work waits for it", now)


def _remove_excess_workers(state: JobState, now: float) -> None:
    """Of too many workers those go first that do not run yet, then the newest ones."""
    staying = state.pods.by_role[Role.WORKER].staying
    excess = len(staying) - state.workers_max
    if excess > 0:
        why = f"only {state.workers_max} of {len(staying)} workers are wanted"
        for pod in sorted(staying.values(), key=lambda pod: (pod.has_run, -pod.index))[:excess]:
            terminate_worker(state, pod, why, now)


def terminate_worker(state: JobState, pod: JobPod, reason: str, now: float) -> None:
    """Tell a worker to go; one that runs gets the time to give back what it has."""
    if pod.uid in state.pods.worker_indices and pod.uid not in state.pods.leaving_workers:
        state.record_entry(WorkerDismissed(uid=pod.uid, reason=reason))
    state.pods.mark_leaving(pod, reason, now)
    state.emit(RoleLeaving(role=pod.role.value, index=pod.index, cause=reason))
    state.add_commands(DeletePod(pod.uid, state.settings.grace if pod.has_run else 0.0))


def _delete_lingering_workers(state: JobState, now: float) -> None:
    """An order to go may have been lost, with the master that gave it or on its way."""
    leave_timeout = state.settings.grace + DELETE_AGAIN_SECONDS
    for pod in list(state.pods.by_role[Role.WORKER].told_to_leave_before(now - leave_timeout)):
        state.pods.mark_leaving(pod, pod.leaving_reason, now)
        state.add_commands(DeletePod(pod.uid, 0.0))


# ------------------------------------------------------------------------------------------------ too few


def _request_missing_pods(state: JobState, now: float) -> None:
    wanted = count_wanted_workers(state)
    left = START_BATCH - _repeat_requests(state, wanted, now)
    names = state.pods.missing_pods(wanted, now, left + 1)
    state.has_more_missing = len(names) > left
    for role, index in names[:left]:
        refused = state.pods.refusals.get((role, index), "")
        why = f"refused before: {refused}" if refused else _request_reason(state, role, wanted)
        wish = _worker_options(state) if role is Role.WORKER else DEFAULT_OPTIONS
        if role is Role.WORKER and index >= state.pods.next_worker_index:
            # Entered before it is asked for: a master that comes later must not give the index to another worker.
            state.record_entry(WorkerChanged(index=index))
        state.pods.request_pod(role, index, now, wish)
        state.emit(RoleRequested(role=role.value, index=index, reason=why))
        state.add_commands(StartPod(role, index, wish))


def _repeat_requests(state: JobState, wanted: int, now: float) -> int:
    """What was asked for and never shown: asked for anew, or not wanted any more; returns how many."""
    names = list(islice(state.pods.requests.overdue_requests(now), START_BATCH))
    for role, index in names:
        asked = state.pods.requests.drop_request((role, index))
        if role is Role.PS or state.pods.count_expected_workers() < wanted:
            state.pods.request_pod(role, index, now, asked.options)
            state.add_commands(StartPod(role, index, asked.options))
    return len(names)


def _request_reason(state: JobState, role: Role, wanted: int) -> str:
    if role is Role.PS:
        return f"the parameters need {state.settings.ps}"
    return f"{wanted} wanted, {state.pods.count_expected_workers()} running or pending"


def _worker_options(state: JobState) -> PodOptions:
    """What the next worker is asked for with."""
    s, fleet = state.settings, state.pods
    raised = bool(s.elevated_share) and worker_priority.next_is_elevated(
        s.elevated_share, state.workers_max, fleet.count_elevated()
    )
    return PodOptions(fleet.worker_memory.memory_factor(s.oom_memory_factor), raised)
