"""Stall detection: whether training is blocked and by what. For users only; nothing is decided here.

A step needs every PS, so a job that lacks one makes no progress, however many workers it has. A job
that cannot write checkpoints stops handing out steps after a while (module ``checkpointing``). The
status shows either at once (``find_missing_ps``, ``unsaved_checkpoint_reason``). Events report the
beginning and the end of a stall, and any further PS that is missing or on a lost node
(``update_stall``). A worker that is silent, stuck or waited for is not a stall: the list in
``lease_timeouts`` says which rule notices it.
"""

from __future__ import annotations

from edl.api.cluster_port import Role
from edl.api.run_events import StallEnded
from edl.core.events import MissingPs, TrainingStalled
from edl.core.job_pods import PS_SILENCE_SECONDS, JobPod
from edl.core.state import JobState, StallState

EVENT_DELAY_SECONDS = 3.0
"""Shorter stalls are not reported: a new master needs about a second to attach every PS."""
UNSAVED_REASON = "waiting until a checkpoint can be written"
_WORKING_PHASES = ("Training", "Evaluating", "Exporting")


def update_stall(state: JobState, now: float) -> None:
    """Report when training stalls and when it continues."""
    missing, unsaved = find_missing_ps(state, now), unsaved_checkpoint_reason(state)
    if not missing and not unsaved:
        _end_stall(state, now)
        return
    stalled = state.stall = state.stall or StallState(now)
    stalled.missing_ps = tuple(f"ps-{each.index}" for each in missing)
    stalled.unsaved = bool(unsaved)
    # Remember the lost node: its PS is deleted soon, and the wait for the successor has the same
    # cause.
    for each in missing:
        if each.since and each.index not in stalled.lost_nodes:
            stalled.lost_nodes[each.index] = each.reason, each.since
    news = {(each.index, bool(each.since)) for each in missing} - stalled.reported_ps
    lasts = news if now - stalled.since >= EVENT_DELAY_SECONDS else set()
    if lasts or (unsaved and not stalled.reported_unsaved):
        # A PS on a lost node is requested again a moment later; do not report that separately.
        stalled.reported_ps |= lasts | {(index, False) for index, _ in lasts}
        stalled.reported_unsaved |= stalled.unsaved
        state.emit(TrainingStalled(missing, unsaved))


def _end_stall(state: JobState, now: float) -> None:
    stalled, state.stall = state.stall, None
    # A stall that was too short to be reported has no end to report either.
    if stalled is None or state.has_ended or not (stalled.reported_ps or stalled.reported_unsaved):
        return
    reason = f"{', '.join(stalled.missing_ps)} {'serves' if len(stalled.missing_ps) == 1 else 'serve'} again"
    if stalled.unsaved:
        saved = "a checkpoint was written again"
        reason = saved if state.checkpoint_failure is None else "training continues until the next one is due"
    state.emit(StallEnded(seconds=now - stalled.since, reason=reason))


def unsaved_checkpoint_reason(state: JobState) -> str:
    """Why no checkpoint can be written, if training is paused for that; otherwise empty."""
    failure, training = state.checkpoint_failure, state.training_ledger
    if state.has_ended or failure is None or failure.paused_at is None or training is None:
        return ""
    # While leased steps are still being trained, training has not stopped yet. Under AllReduce the ranks pause in the
    # middle of their leases.
    is_training = training.outstanding_steps > 0 if state.world is None else not state.world_pauses
    return "" if is_training or state.is_training_over() else failure.reason


def find_missing_ps(state: JobState, now: float) -> tuple[MissingPs, ...]:
    """The PS that a running job is waiting for."""
    if state.has_ended or not state.pods_synced or state.phase not in _WORKING_PHASES:
        return ()
    live_ps = {pod.index: pod for pod in state.pods.live_pods(Role.PS)}
    missing_by_index = (_find_missing(state, index, live_ps.get(index), now) for index in range(state.pods.ps_count))
    return tuple(_add_lost_node(state, missing) for missing in missing_by_index if missing is not None)


def _add_lost_node(state: JobState, missing: MissingPs) -> MissingPs:
    """Name the lost node too: a successor takes longer to start than the lost node is shown."""
    lost = state.stall.lost_nodes.get(missing.index) if state.stall is not None else None
    if lost is None or missing.since:
        return missing
    reason, since = lost
    return MissingPs(missing.index, f"{missing.reason}; its predecessor is lost: {reason}", since)


def _find_missing(state: JobState, index: int, pod: JobPod | None, now: float) -> MissingPs | None:
    if pod is None:
        refusal = state.pods.refusals.get((Role.PS, index), "")
        return MissingPs(index, f"the cluster did not start it: {refusal}" if refusal else "a new one was requested")
    silent = now - max(pod.last_seen, state.last_step)
    if pod.unreachable_since and silent >= PS_SILENCE_SECONDS:
        return MissingPs(index, f"its node {pod.node} is unreachable", pod.unreachable_since)
    if not pod.has_run:
        return MissingPs(index, f"it is not scheduled yet: {pod.message}" if pod.message else "it is starting")
    if not (pod.attached and pod.initialized):
        return MissingPs(index, "it is loading its checkpoint" if pod.loading else "it is starting")
    if silent >= PS_SILENCE_SECONDS:
        return MissingPs(index, f"it has not answered for {silent:.0f} s")
    return None
