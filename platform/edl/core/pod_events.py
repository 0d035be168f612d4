"""Consequences of a pod that starts, ends, leaves or fails."""

from __future__ import annotations

from edl.api.cluster_port import Role
from edl.api.journal_entries import WorkerChanged, WorkerDismissed, WorkerMemoryRaised
from edl.api.run_events import RoleEnded, RoleLeaving, RoleStarted, WarningRaised
from edl.core import member_crashes, parameter_servers, pod_lifecycle, scaling
from edl.core.events import Acknowledged, PodChanged, PodsSynced, StartRefused, WorkerFailed, WorkerLeft
from edl.core.grants import has_time_limits, record_heartbeat, record_lease_progress
from edl.core.job_pods import JobPod
from edl.core.journal_application import end_job, record_entry
from edl.core.lease_timeouts import LeaseHolder
from edl.core.ledger import EVALUATION, PREDICTION, STEPLESS_KINDS, TRAINING, Lease
from edl.core.pod_lifecycle import MAX_CRASHES, TERMINAL_STATES, EndBlame, PodState, assign_blame
from edl.core.record_ranges import describe_ranges
from edl.core.revocation import request_revocation, revoke_leases
from edl.core.state import JobState

_GONE_REASON = "missing when the master restarted"
_LEAVING_REASON = "a previous master told it to leave"


def handle_pod_changed(state: JobState, event: PodChanged, now: float) -> None:
    """The cluster reports a pod: note when it starts or leaves, and what follows from its end."""
    status = event.pod
    known = state.pods.by_uid.get(status.uid)
    had_run = known is not None and known.has_run
    pod, before = state.pods.update_pod(status, job_ended=state.has_ended)
    if known is None:
        pod.last_seen = now
    if pod.live:
        if pod.has_run and not had_run:
            _handle_start(state, pod)
        if pod.state is PodState.LEAVING and before is not PodState.LEAVING:
            _emit_leaving(state, pod)
    elif before not in TERMINAL_STATES and state.pods_synced:
        _handle_end(state, pod, now)
    # Until all pods are listed, this end may be one that the previous master already journaled: see
    # ``handle_pods_synced``.


def _handle_start(state: JobState, pod: JobPod) -> None:
    known = pod.uid in state.pods.worker_indices or pod.uid in state.pods.parameter_holders.values()
    pod.had_lease = known
    if not known:
        state.emit(RoleStarted(role=pod.role.value, index=pod.index, pid=pod.pid))
        # A worker that came after the last record has nothing to do, and nothing waits for it.
        if pod.role is Role.WORKER and not state.has_ended:
            state.pods.mark_building(pod)
            record_entry(state, WorkerChanged(index=pod.index, uid=pod.uid))
            # The pod was scheduled before its deletion reached the cluster.
            if pod.leaving_since is not None:
                record_entry(state, WorkerDismissed(uid=pod.uid, reason=pod.leaving_reason))


def _emit_leaving(state: JobState, pod: JobPod) -> None:
    """Report a pod that was asked to stop.

    It keeps its leases until it has ended; a worker's replacement is requested now.
    """
    if pod.leaving_since is None and pod.uid not in state.pods.leaving_workers and not state.has_ended:
        state.emit(RoleLeaving(role=pod.role.value, index=pod.index, cause=pod.cause.value, message=pod.message))


def _handle_end(state: JobState, pod: JobPod, now: float) -> None:
    reason = pod.describe_end()
    role, code = pod.role.value, pod.exit_code
    state.emit(RoleEnded(role=role, index=pod.index, pid=pod.pid, reason=reason, exit_code=code))
    if state.has_ended:
        return
    dismissed = pod.leaving_since is not None or pod.uid in state.pods.leaving_workers
    blamed_on = _blame_for_end(state, pod)
    if blamed_on is not EndBlame.NOTHING:
        state.last_failure = _describe_silent_end(pod)
    crashed = pod.state is PodState.CRASHED or blamed_on is EndBlame.ROLE
    crash_range, range_crashes = _record_range_crash(state, pod) if crashed else ("", 0)
    if pod.role is Role.WORKER:
        _handle_worker_lost(state, pod, reason, now, in_minibatch=blamed_on is EndBlame.MINIBATCH)
    else:
        parameter_servers.handle_ps_lost(state, pod, reason, now)
    # Must come last: this may end the job, and by then the pod's leases must be journaled as
    # returned.
    if not dismissed:
        _relaunch_or_fail(state, pod, now, crashed, crash_range, range_crashes)


def _blame_for_end(state: JobState, pod: JobPod) -> EndBlame:
    """What to blame for a worker's end if nothing external caused it.

    Call this before its leases are revoked.
    """
    if pod.role is not Role.WORKER:
        return EndBlame.NOTHING
    held_work = _held_work(state, pod)
    return assign_blame(
        pod.state,
        is_explained=bool(pod.cause) or pod.expected_to_leave or pod.uid in state.pods.leaving_workers,
        is_working=bool(held_work) or not pod.had_lease,
        in_minibatch=bool(held_work) and held_work[0][0] == TRAINING and not pod.building,
    )


def _held_work(state: JobState, pod: JobPod) -> list[tuple[str, Lease]]:
    """The worker's leases, beginning with the one that it was working on."""
    leases = state.worker_leases(pod.uid)
    if state.world is None:
        return leases
    # A round that lost it may have started already, and its leases have returned.
    leases = leases or [(TRAINING, lease) for lease in state.returned_work.get(pod.uid, ())]
    # All other work is done while nobody trains, or while this worker adds nothing to the steps: its training leases
    # stay.
    return sorted(leases, key=lambda item: item[0] == TRAINING)


def _describe_silent_end(pod: JobPod) -> tuple[str, str]:
    """The description of a worker's end when the worker reported no error."""
    if pod.state is PodState.KILLED:
        how = "was killed by a signal (SIGKILL), which the kernel sends when memory runs out"
    else:
        how = "exited with code 0 before its work was done: does the model's code exit the process?"
    return f"worker-{pod.index} {how}", ""


def _record_range_crash(state: JobState, pod: JobPod) -> tuple[str, int]:
    """Record the range that a crashed worker evaluated or predicted, and how many workers crashed in it.

    Call this before its leases are revoked. Returns a description of the range for messages, and the count.
    """
    # Such a range takes much longer than a minibatch of training, so kills from outside may hit it
    # several times. It therefore ends the job only after ``MAX_CRASHES``. Completed steps offset crashes
    # of the role, but not these.
    held_work = _held_work(state, pod)
    if pod.building or not held_work or held_work[0][0] not in (EVALUATION, PREDICTION):
        return "", 0
    kind, work = held_work[0][0], held_work[0][1].record_range
    count = state.range_crashes[kind, work] = state.range_crashes.get((kind, work), 0) + 1
    which = describe_ranges({work.source: [(work.start, work.end)]})
    return f", the last at {which} ({kind})" + (f", where {count} workers ended" if count > 1 else ""), count


def _relaunch_or_fail(
    state: JobState, pod: JobPod, now: float, crashed: bool, crash_range: str, range_crashes: int
) -> None:
    """Plan the replacement of a pod, or end the job. ``crash_range`` describes the records that it was processing."""
    if pod.state is PodState.OUT_OF_MEMORY:
        _raise_memory(state, pod)
    goes_on, reason = state.pods.plan_relaunch(pod, now, crashed=crashed)
    if goes_on and range_crashes >= MAX_CRASHES:
        goes_on, reason = False, "crashed"
    if not goes_on:
        message, detail = state.last_failure or (f"see the log of the last {pod.role}", "")
        end_job(state, "Failed", f"{pod.role}s {reason}{crash_range}: {message}", detail, "crash")


def _raise_memory(state: JobState, pod: JobPod) -> None:
    s, fleet = state.settings, state.pods
    if pod.role is Role.PS:
        end_job(state, "Failed", pod_lifecycle.ps_oom_reason(pod.index, s.ps_memory))
        return
    decided = pod_lifecycle.decide_after_oom(
        fleet.worker_memory, pod.index, fleet.next_worker_index, s.oom_memory_factor, s.worker_memory
    )
    if decided.value is None:
        end_job(state, "Failed", decided.reason)
    elif decided.value != fleet.worker_memory:
        record_entry(state, WorkerMemoryRaised(raised=decided.value.raise_count, since=decided.value.first_worker))
        state.emit(WarningRaised(decided.reason))


def _handle_worker_lost(state: JobState, pod: JobPod, reason: str, now: float, *, in_minibatch: bool = False) -> None:
    """Handle the end of a worker.

    ``in_minibatch``: whether it ended without a report in a minibatch that may be the cause.
    """
    # A pod that never ran holds no lease.
    if not pod.has_run:
        return
    crashed = in_minibatch or (pod.state is PodState.CRASHED and pod.uid not in state.pods.leaving_workers)
    record_entry(state, WorkerChanged(index=pod.index, uid=pod.uid, lost=1))
    held_work = _held_work(state, pod)
    revoke_leases(state, pod.uid, reason, now, crashed=crashed)
    state.holders.pop(pod.uid, None)
    if state.world is not None:
        # Last: it may end the job.
        is_training = bool(held_work) and held_work[0][0] == TRAINING
        member_crashes.handle_member_ended(state, pod.uid, crashed=crashed and is_training)


# ------------------------------------------------------------------------------------------------
# master restart


def handle_pods_synced(state: JobState, event: PodsSynced, now: float) -> None:
    """All existing pods have been listed: pods that are missing have ended, and pending requests are void."""
    state.pods.requests.clear()
    if state.pods_synced:
        return
    state.pods_synced = True
    # A PS may have answered the previous master instead of this one: ask all of them again.
    for revocation in state.revocations:
        request_revocation(state, revocation)
    for kind, ledger in state.ledgers.items():
        for number, lease in ledger.leases.items():
            if lease.revoke_reason is None:
                # The last heartbeats are unknown: the timeouts start now.
                holder = state.holders.setdefault(lease.worker, LeaseHolder(now))
                if has_time_limits(state, kind):
                    holder.add_lease(number, now, is_stepless=kind in STEPLESS_KINDS)
    for uid, index in list(state.pods.worker_indices.items()):
        if not state.pods.is_live(uid):
            _handle_worker_gone(state, uid, index, now)
        elif uid in state.pods.leaving_workers:
            scaling.terminate_worker(state, state.pods.by_uid[uid], _LEAVING_REASON, now)
    parameter_servers.check_lost_holders(state, _GONE_REASON)


def _handle_worker_gone(state: JobState, uid: str, index: int, now: float) -> None:
    """Handle a worker that ended while no master was running; the cluster may still report how."""
    pod = state.pods.by_uid.get(uid)
    if pod is None:
        # Events name the worker by its index, which is looked up here.
        pod = state.pods.by_uid[uid] = JobPod(
            uid, Role.WORKER, index, PodState.DELETED, reason=_GONE_REASON, has_run=True
        )
    pod.had_lease = True
    # A worker that was asked to stop, or that ended with its run before that was resumed, ended as
    # expected: its end is not reported, and no replacement is planned.
    if uid in state.pods.leaving_workers:
        _handle_worker_lost(state, pod, "its run was stopped", now)
    else:
        _handle_end(state, pod, now)


# ------------------------------------------------------------------------------------------------
# reports of workers


def handle_worker_left(state: JobState, event: WorkerLeft, now: float) -> None:
    """A leaving worker reports its final progress; none of its pushes is in flight."""
    for steps in event.steps:
        record_lease_progress(state, event.worker, steps, now)
    revoke_leases(state, event.worker, event.reason, now, in_flight=False)
    if event.worker in state.pods.by_uid:
        state.pods.by_uid[event.worker].has_left = True
    state.add_commands(Acknowledged())


def handle_worker_failed(state: JobState, event: WorkerFailed, now: float) -> None:
    """A worker reports that it cannot continue."""
    # What a process without a pod meets, such as refusals, says nothing of the others; another worker has its work.
    if event.kind != "crash" and state.pods.has_ended(event.worker):
        state.add_commands(Acknowledged(fatal=True))
        return
    state.last_failure = (event.message, event.detail)
    # After a crash the worker exits, and the end of its pod decides. The other kinds would fail in every
    # worker, so they end the job.
    if event.kind == "crash":
        record_heartbeat(state, event.worker, now)
        state.add_commands(Acknowledged())
        return
    state.add_commands(Acknowledged(fatal=True))
    end_job(state, "Failed", event.message, event.detail, event.kind)


def note_failure_after_end(state: JobState, event: WorkerFailed) -> Acknowledged:
    """A worker reports that it failed after the job has ended: see ``program_ends``."""
    state.last_failure = (event.message, event.detail)
    return Acknowledged(fatal=True)


def handle_start_refused(state: JobState, event: StartRefused, now: float) -> None:
    """The cluster refused to start a pod."""
    if event.retry:
        if state.pods.record_start_refusal(event.role, event.index, event.reason, now):
            state.emit(WarningRaised(f"{event.role}-{event.index} was not started: {event.reason}"))
    else:
        end_job(state, "Failed", f"{event.role}-{event.index} cannot be started: {event.reason}")
