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
    if (event.min, event.max) != state.scaled and not state.ended:
        state.record(WorkersScaled(min=event.min, max=event.max))
        state.emit(WorkerCountChanged(min=state.workers_min, max=state.workers_max))


# ------------------------------------------------------------------------------------------------ how many


def count_wanted_workers(state: JobState) -> int:
    """As many as may be while there is work to hand out; then at least one, for what may come back."""
    if state.stopping is not None:
        return 0
    return state.workers_max if has_waiting_work(state) else 1


def has_waiting_work(state: JobState) -> bool:
    """Whether a worker that came now would get something to do, or will when what is on its way has come back."""
    main = state.main
    if main is None or (state.revocations and not state.is_training_over()):
        return True
    if state.is_training_over():
        return False
    return main.next(remaining_step_budget(state)) is not None or (
        state.round is not None and state.round.ledger.waiting
    )


def is_starved(state: JobState) -> bool:
    """Whether work waits and fewer workers run than the job should have at least."""
    running = state.pods.roles[Role.WORKER].running
    return not state.ended and running < state.workers_min and has_waiting_work(state)


# ------------------------------------------------------------------------------------------------ too many


def _withdraw_pending_workers(state: JobState, now: float) -> None:
    """Workers that wait for room are not started for nothing; one stays if no other is there."""
    workers = state.pods.roles[Role.WORKER]
    if not workers.waiting or has_waiting_work(state):
        return
    for pod in state.pods.waiting(Role.WORKER)[0 if workers.running else 1 :]:
        terminate_worker(state, pod, "withdrawn: no work waits for it", now)


def _remove_excess_workers(state: JobState, now: float) -> None:
    """Of too many workers those go first that do not run yet, then the newest ones."""
    staying = state.pods.roles[Role.WORKER].staying
    excess = len(staying) - state.workers_max
    if excess > 0:
        why = f"only {state.workers_max} of {len(staying)} workers are wanted"
        for pod in sorted(staying.values(), key=lambda pod: (pod.has_run, -pod.index))[:excess]:
            terminate_worker(state, pod, why, now)


def terminate_worker(state: JobState, pod: JobPod, reason: str, now: float) -> None:
    """Tell a worker to go; one that runs gets the time to give back what it has."""
    if pod.uid in state.pods.workers and pod.uid not in state.pods.leaving_workers:
        state.record(WorkerDismissed(uid=pod.uid, reason=reason))
    state.pods.mark_leaving(pod, reason, now)
    state.emit(RoleLeaving(role=pod.role.value, index=pod.index, cause=reason))
    state.do(DeletePod(pod.uid, state.settings.grace if pod.has_run else 0.0))


def _delete_lingering_workers(state: JobState, now: float) -> None:
    """An order to go may have been lost, with the master that gave it or on its way."""
    leave_timeout = state.settings.grace + DELETE_AGAIN_SECONDS
    for pod in list(state.pods.roles[Role.WORKER].told_to_leave_before(now - leave_timeout)):
        state.pods.mark_leaving(pod, pod.leaving_reason, now)
        state.do(DeletePod(pod.uid, 0.0))


# ------------------------------------------------------------------------------------------------ too few


def _request_missing_pods(state: JobState, now: float) -> None:
    wanted = count_wanted_workers(state)
    left = START_BATCH - _repeat_requests(state, wanted, now)
    names = state.pods.missing(wanted, now, left + 1)
    state.has_more_missing = len(names) > left
    for role, index in names[:left]:
        refused = state.pods.refusals.get((role, index), "")
        why = f"refused before: {refused}" if refused else _request_reason(state, role, wanted)
        wish = _worker_options(state) if role is Role.WORKER else DEFAULT_OPTIONS
        if role is Role.WORKER and index >= state.pods.next_worker_index:
            # Entered before it is asked for: a master that comes later must not give the index to another worker.
            state.record(WorkerChanged(index=index))
        state.pods.ask(role, index, now, wish)
        state.emit(RoleRequested(role=role.value, index=index, reason=why))
        state.do(StartPod(role, index, wish))


def _repeat_requests(state: JobState, wanted: int, now: float) -> int:
    """What was asked for and never shown: asked for anew, or not wanted any more; returns how many."""
    names = list(islice(state.pods.asked.overdue_requests(now), START_BATCH))
    for role, index in names:
        asked = state.pods.asked.drop((role, index))
        if role is Role.PS or state.pods.count_expected_workers() < wanted:
            state.pods.ask(role, index, now, asked.wish)
            state.do(StartPod(role, index, asked.wish))
    return len(names)


def _request_reason(state: JobState, role: Role, wanted: int) -> str:
    if role is Role.PS:
        return f"the parameters need {state.settings.ps}"
    return f"{wanted} wanted, {state.pods.count_expected_workers()} there or on their way"


def _worker_options(state: JobState) -> PodOptions:
    """What the next worker is asked for with."""
    s, fleet = state.settings, state.pods
    raised = bool(s.elevated_share) and worker_priority.next_is_elevated(
        s.elevated_share, state.workers_max, fleet.elevated()
    )
    return PodOptions(fleet.memory.factor(s.oom_memory_factor), raised)
