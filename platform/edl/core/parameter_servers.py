"""Parameter servers: registration, parameter ownership, planned handover, and rollback after a loss."""

from __future__ import annotations

from collections.abc import Set

from edl.api.cluster_port import Role
from edl.api.journal_entries import (
    CheckpointReplaced,
    EvaluationAbandoned,
    ParametersHandedOver,
    ParametersHeld,
    ParametersRestored,
    ParametersRolledBack,
)
from edl.api.run_events import RollbackDone, WarningRaised
from edl.core import checkpointing, evaluation_callbacks, update_accounting
from edl.core.cuts import CutStage, SavedCheckpoint
from edl.core.decision import Decision
from edl.core.events import (
    AttachPs,
    CheckpointRefused,
    CheckpointSaveFinished,
    DeletePod,
    MayEnd,
    ModelDeclared,
    PsAttached,
    PsHeartbeat,
    PsLeaving,
    PsRefused,
    PsRegistered,
    PsSilent,
    ReleaseCut,
    RevokeLeases,
)
from edl.core.job_pods import PS_SILENCE_SECONDS, JobPod
from edl.core.journal_application import end_job, record_entry
from edl.core.ledger import TRAINING
from edl.core.state import JobState

# --------------------------------------------------------------------------------------------------
# Planned handover: a PS that receives SIGTERM loses nothing, because its successor continues from
# its state. On SIGTERM the PS tells the master and keeps serving until it may exit. The master
# takes a *kept* cut: all PS copy their state and pause updates until ``ReleaseCut``, so the
# checkpoint misses nothing. Once the checkpoint is on disk the handover is journaled, the PS exits,
# its successor loads the checkpoint, leases stay valid, and updates resume with the last successor.
#
# If anything goes wrong (the grace period ends, the checkpoint cannot be written), the PS counts as
# lost: its parameters roll back to the newest checkpoint, and the loss is counted. The protocol is
# in docs/design/0002-record-accounting.md.


def handle_ps_leaving(state: JobState, event: PsLeaving, now: float) -> None:
    """A PS received SIGTERM: answer whether it may exit, and start what it needs to be able to."""
    pod = state.pods.by_uid.get(event.uid)
    decided = _decide_may_end(state, pod)
    if decided.value and pod is not None and state.pods.parameter_holders.get(pod.index) != event.uid:
        # A worker's declaration may be on the way to it.
        pod.may_end = True
    if not decided.value and event.uid not in state.leaving_ps:
        state.leaving_ps.add(event.uid)
        # The pod's grace period is running.
        state.cuts_blocked_until = min(state.cuts_blocked_until, now)
        if state.paused_cut and event.uid in state.paused_ps:
            # Its updates are already paused since that cut. Those of a successor that leaves too are not.
            _hand_over_parameters(state, state.paused_cut, {event.uid})
            decided = _decide_may_end(state, pod)
    state.add_commands(MayEnd(decided.value, decided.reason))


def delete_lingering_ps(state: JobState, pod: JobPod) -> None:
    """Delete a PS that handed over its parameters and is still running without being asked to stop.

    Its successor waits for its end. A process with the job's token may have claimed in its name that it
    leaves.
    """
    if (
        pod.uid not in state.pods.handed_over_ps
        or not pod.live
        or pod.is_abandoned
        or state.has_ended
        or not state.pods_synced
    ):
        return
    pod.is_abandoned, pod.leaving_reason = True, "its parameters were handed over"
    state.emit(WarningRaised(f"ps-{pod.index} handed over its parameters but has not exited: it is deleted"))
    state.add_commands(DeletePod(pod.uid, 0.0))


def _decide_may_end(state: JobState, pod: JobPod | None) -> Decision[bool]:
    """Whether a PS may exit: nothing is lost with it, or the loss cannot be prevented."""
    if not state.pods_synced:
        return Decision(False, "the master has just started and has not listed the pods yet")
    if pod is None or not pod.live:
        return Decision(True, "the cluster does not report this pod")
    if pod.uid in state.pods.handed_over_ps:
        return Decision(True, f"checkpoint {state.paused_cut} contains all its parameters")
    if pod.uid in state.unsaved_ps:
        return Decision(True, state.unsaved_ps[pod.uid])
    if not state.settings.durable:
        return Decision(True, "the job has no volume for checkpoints")
    if state.pods.parameter_holders.get(pod.index) != pod.uid:
        if pod.loading:
            # A successor takes updates as soon as it has loaded; the answer that says so is still to come.
            return Decision(False, "it is loading a checkpoint")
        return Decision(True, "it holds no parameters")
    return Decision(False, "its parameters are not in a checkpoint yet")


def advance_handover(state: JobState, now: float) -> None:
    """Begin the kept cut that a leaving PS waits for."""
    state.leaving_ps = {uid for uid in state.leaving_ps - state.unsaved_ps.keys() if state.pods.is_live(uid)}
    if state.training_ledger is None or not state.leaving_ps:
        return
    if state.is_training_over() and state.checkpoint is not None and state.checkpoint.step == state.step:
        # No worker will change the parameters any more.
        _hand_over_parameters(state, state.checkpoint.cut, state.leaving_ps)
        return
    # A cut in progress would resume updates after its copies. Start a kept one instead, at once.
    if state.cut is not None and state.cut.awaits_copies and not state.cut.keep_paused:
        checkpointing.abort_cut(
            state, "a parameter server is leaving; the next cut pauses updates until its successor is ready", now, 0
        )
    if checkpointing.can_begin_cut(state, now):
        checkpointing.begin_cut(state, checkpoint=True, pin=False, keep_paused=True)


def handle_save_finished(state: JobState, event: CheckpointSaveFinished, now: float) -> None:
    """A checkpoint was saved, or failed; after a kept one a planned handover may proceed."""
    cut = state.cut
    checkpointing.finish_save(state, event, now)
    if cut is None or not cut.keep_paused or cut.number != event.cut or cut.stage is not CutStage.SAVING:
        return
    if event.error:
        # Nothing can be saved, so the leaving PS need not wait for it.
        problem = f"checkpoint {event.cut} was not written: {event.error}"
        state.add_commands(ReleaseCut(event.cut))
        state.unsaved_ps.update(dict.fromkeys(state.leaving_ps, problem))
    else:
        state.paused_ps = frozenset(cut.versions)
        _hand_over_parameters(state, event.cut, state.leaving_ps & state.paused_ps)
        # The leaving PS has exited in the meantime.
        if not state.paused_cut:
            state.add_commands(ReleaseCut(event.cut))


def _hand_over_parameters(state: JobState, cut: int, leaving: Set[str]) -> None:
    """Journal the handover: the parameters of these PS are in a checkpoint, and updates are paused."""
    for uid in sorted(leaving):
        pod = state.pods.by_uid.get(uid)
        if pod is not None and state.pods.parameter_holders.get(pod.index) == uid:
            record_entry(state, ParametersHandedOver(index=pod.index, ps=uid, cut=cut))
    state.leaving_ps -= leaving


ATTACH_TIMEOUT = 70.0
"""Seconds until a PS that registers and has not answered is asked to attach again.

By then the first request was answered, or ``edl.master.ps_client`` has reported the PS as silent.
"""


def handle_ps_registered(state: JobState, event: PsRegistered, now: float) -> None:
    """A PS registered its address: attach it to this master."""
    pod = state.pods.by_uid.get(event.uid)
    # Any process with the job's token can claim to be a PS, so only pods that the cluster reports are
    # attached. A PS repeats its registration.
    if pod is None:
        return
    if pod.uid in state.pods.handed_over_ps:
        # Only a successor receives the state that was handed over.
        delete_lingering_ps(state, pod)
        return
    if pod.live and not pod.attached and (pod.attach_asked_at is None or now - pod.attach_asked_at >= ATTACH_TIMEOUT):
        pod.loading = False
        _attach_ps(state, pod, None, now)


def handle_ps_heartbeat(state: JobState, event: PsHeartbeat, now: float) -> None:
    """Record the heartbeat of a known PS."""
    pod = state.pods.by_uid.get(event.uid)
    if pod is not None:
        pod.last_seen = now
        delete_lingering_ps(state, pod)


def _attach_ps(state: JobState, pod: JobPod, restore_cut: int | None, now: float) -> None:
    # The PS believes no lease of an earlier master that is not named here as live.
    leases = state.training_ledger.leases if state.training_ledger else {}
    floor = state.lowest_open_lease()
    revoked = {n for n, lease in leases.items() if lease.revoke_reason is not None}
    revoked |= {n for n in state.revoked_leases if n >= floor}
    live = tuple(n for n in leases if n not in revoked)
    pod.attach_asked_at, pod.stale = now, False
    complete = restore_cut is not None and pod.index in state.pods.handed_over_ps.values()
    state.add_commands(AttachPs(pod.uid, floor, tuple(sorted(revoked)), live, passed_cut(state), restore_cut, complete))


def passed_cut(state: JobState) -> int:
    """The last cut for which no PS needs to pause updates any more, nor for earlier ones."""
    if state.paused_cut:
        return state.paused_cut - 1
    return state.cut_number - 1 if state.cut is not None and state.cut.awaits_copies else state.cut_number


def handle_ps_attached(state: JobState, event: PsAttached, now: float) -> None:
    """A PS attached. If it is empty and there is a checkpoint, it is told to load it first."""
    pod = state.pods.by_uid.get(event.uid)
    if pod is None or not pod.live or pod.uid in state.pods.handed_over_ps:
        return
    if pod.stale:
        pod.loading = False
    # An initialized PS that is neither loading for this master nor a recorded holder may have loaded
    # its checkpoint for a previous master that never received the answer. It may lack a later rollback,
    # and nothing was applied to it yet, so let it load again.
    trusted = pod.loading or state.pods.parameter_holders.get(pod.index) == pod.uid
    if state.checkpoint is not None and (pod.stale or not event.initialized or not trusted):
        _load_checkpoint(state, pod, state.checkpoint.cut, now)
        return
    if pod.stale:
        if state.settings.durable:
            _attach_ps(state, pod, None, now)
        else:
            _replace_empty_ps(state, pod)
        return
    if event.version and not trusted and _has_no_progress(state):
        _replace_unaccounted_ps(state, pod, now)
        return
    # Before the first checkpoint, a worker's declaration may have arrived before this answer.
    pod.attached, pod.version = True, event.version
    pod.initialized = event.initialized or (pod.initialized and state.checkpoint is None)
    state.pinned_cuts[event.uid] = frozenset(event.pins)
    if pod.initialized:
        _record_holder(state, pod)
    for revocation in state.revocations:
        if event.uid in revocation.waiting_ps:
            state.add_commands(RevokeLeases(event.uid, revocation.leases, state.lowest_open_lease()))


def _has_no_progress(state: JobState) -> bool:
    """Whether the journal shows no step, done or in flight."""
    training = state.training_ledger
    return state.checkpoint is None and (training is None or not (training.done_steps or training.leases))


def _replace_unaccounted_ps(state: JobState, pod: JobPod, now: float) -> None:
    """Replace a PS that holds updates whose journal is lost: their records will be trained again."""
    if not state.pods_synced:
        _attach_ps(state, pod, None, now)
        return
    state.emit(WarningRaised(f"ps-{pod.index} holds updates whose journal is lost: it is replaced"))
    _replace_empty_ps(state, pod)
    # A new PS is initialized when a worker declares the model. The running workers have declared it to
    # the old PS already, so they are replaced too.
    if not state.workers_replaced:
        state.workers_replaced = True
        state.add_commands(
            *(DeletePod(worker.uid, 0.0) for worker in state.pods.live_pods(Role.WORKER) if worker.has_run)
        )


def _load_checkpoint(state: JobState, pod: JobPod, cut: int, now: float) -> None:
    """Tell a PS to load the checkpoint, once: loading again would discard updates that it has applied since."""
    if not pod.loading:
        pod.loading = True
        record_entry(state, ParametersRestored(ps=pod.uid, born=state.next_lease_number(), index=pod.index))
        _attach_ps(state, pod, cut, now)


def handle_model_declared(state: JobState, event: ModelDeclared, now: float) -> None:
    """A worker declared the variables to every PS: it has built its model."""
    if event.callbacks is not None:
        evaluation_callbacks.declare_callbacks(state, event.callbacks)
    state.pods.mark_model_built(event.worker)
    for pod in state.pods.live_pods(Role.PS):
        # With a checkpoint, a PS that is not attached yet has to load it first.
        if pod.attached or state.checkpoint is None:
            pod.initialized = True
        if pod.attached:
            _record_holder(state, pod)


def _record_holder(state: JobState, pod: JobPod) -> None:
    """Record which PS holds parameters: losing it now loses parameters, and the next master must know."""
    if state.pods.parameter_holders.get(pod.index) == pod.uid or pod.uid in state.pods.handed_over_ps:
        return
    if pod.may_end:
        # Updates that it took would end with it. One that has not exited by itself makes room for its successor.
        state.add_commands(DeletePod(pod.uid, 0.0))
        return
    if not state.settings.durable and state.training_ledger is not None and state.training_ledger.leases:
        # It starts with initial values and has not seen any progress of the existing leases.
        record_entry(state, ParametersRestored(ps=pod.uid, born=state.next_lease_number(), index=pod.index))
    # This entry may end the pause after a planned handover, if it was the last missing holder.
    paused_cut = state.paused_cut
    for revocation in state.revocations if paused_cut else ():
        # A successor knows as much about the leases as its predecessor did.
        revocation.waiting_ps.add(pod.uid)
    record_entry(state, ParametersHeld(index=pod.index, ps=pod.uid))
    if paused_cut and not state.paused_cut:
        state.add_commands(ReleaseCut(paused_cut))


def _replace_empty_ps(state: JobState, pod: JobPod) -> None:
    """Replace an empty PS: without a checkpoint, it could only overwrite updates that it may have applied."""
    state.add_commands(DeletePod(pod.uid, 0.0))


def handle_ps_silent(state: JobState, event: PsSilent, now: float) -> None:
    """Replace a PS whose pod is alive but that does not answer; the end of its pod is handled as a loss."""
    pod = state.pods.by_uid.get(event.uid)
    if pod is not None and pod.live and not state.has_ended:
        state.emit(WarningRaised(f"ps-{pod.index} has not answered for {event.seconds:.0f} s: it is replaced"))
        state.add_commands(DeletePod(event.uid, 0.0))


def handle_ps_refused(state: JobState, event: PsRefused, now: float) -> None:
    """A PS refused a request: abort the cut, or fail the job.

    A cut can be retried, but a restore or a revocation has no substitute.
    """
    pod = state.pods.by_uid.get(event.uid)
    if pod is None or not pod.live or state.has_ended:
        return
    if not event.cut:
        end_job(state, "Failed", event.message, kind="storage" if event.kind == "storage" else "refused")
    elif state.cut is not None and state.cut.number == event.cut and state.cut.awaits_copies:
        checkpointing.abort_cut(state, event.message, now)


# ------------------------------------------------------------------------------------ damaged checkpoints


def handle_checkpoint_refused(state: JobState, event: CheckpointRefused, now: float) -> None:
    """A PS cannot read its checkpoint: fall back to the newest older one that is intact."""
    pod = state.pods.by_uid.get(event.uid)
    if pod is None or not pod.live or state.has_ended or state.checkpoint is None:
        return
    # Otherwise another PS reported this before.
    if state.checkpoint.cut == event.cut:
        if event.fallback is None:
            end_job(state, "Failed", f"{event.message}; {event.skipped_reasons}", kind="storage")
            return
        _fall_back_to_checkpoint(state, state.checkpoint, event.fallback, event.message)
    pod.loading = False
    _load_checkpoint(state, pod, state.checkpoint.cut, now)


def _fall_back_to_checkpoint(state: JobState, newest: SavedCheckpoint, older: SavedCheckpoint, cause: str) -> None:
    """Roll back everything that was at the newest checkpoint to an older one."""
    reason = f"checkpoint {newest.cut} cannot be used"
    record_entry(
        state,
        CheckpointReplaced(
            cut=older.cut, step=older.step, version=older.version, ledger=dict(older.ledger), reason=cause
        ),
    )
    state.emit(WarningRaised(f"{reason}; falling back to checkpoint {older.cut}: {cause}"))
    fleet = state.pods
    # No PS holds parameters, so parameters and ledger both go back to the older checkpoint.
    if not any(fleet.is_live(uid) for uid in fleet.parameter_holders.values()):
        roll_back_job(state, reason)
        return
    # Others hold parameters and the ledger stays. A PS that was to load the newest checkpoint loads an
    # older one: count the further updates that it lacks.
    then, now = (
        update_accounting.checkpoint_missing_updates(state.counters, older),
        update_accounting.checkpoint_missing_updates(state.counters, newest),
    )
    for index in sorted(set(range(fleet.ps_count)) - fleet.parameter_holders.keys()):
        more = newest.step - older.step + then.get(str(index), 0) - now.get(str(index), 0)
        _roll_back_ps(state, index, max(0, more), reason)
    for pod in fleet.live_pods(Role.PS):
        pod.stale = pod.loading and fleet.parameter_holders.get(pod.index) != pod.uid


# ------------------------------------------------------------------------------------ lost parameter servers


def handle_ps_lost(state: JobState, pod: JobPod, reason: str, now: float) -> None:
    """A PS has ended."""
    state.pinned_cuts.pop(pod.uid, None)
    # The cut lacks its copy or its shard.
    if state.cut is not None:
        checkpointing.abort_cut(state, f"ps-{pod.index} was lost", now, checkpointing.RETRY_SECONDS)
    for revocation in state.revocations:
        revocation.drop_ps(pod.uid)
    check_lost_holders(state, reason)


def check_lost_holders(state: JobState, reason: str) -> None:
    """Roll back for parameter holders that are gone; if none is left, the ledger rolls back too."""
    holding = state.pods.parameter_holders
    lost_indices = sorted(index for index, uid in holding.items() if not state.pods.is_live(uid))
    if not lost_indices or state.training_ledger is None or state.has_ended:
        return
    description = f"{', '.join(f'ps-{index}' for index in lost_indices)}: {reason}"
    if state.evaluation is not None:
        record_entry(state, EvaluationAbandoned(reason=description))
    if len(lost_indices) == len(holding):
        roll_back_job(state, description)
        return
    for index in lost_indices:
        updates = update_accounting.count_updates_lost(state.counters, state.checkpoint, state.step, index)
        _roll_back_ps(state, index, updates, f"ps-{index}: {reason}")


def _roll_back_ps(state: JobState, index: int, updates: int, reason: str) -> None:
    """Roll the parameters of one PS back to the newest checkpoint, or to the start.

    The other PS keep theirs, and the ledger stays.
    """
    cut = state.checkpoint.cut if state.checkpoint else 0
    record_entry(state, ParametersRolledBack(cut=cut, records=0, ledger=None, updates=updates, ps=index, reason=reason))
    state.emit(RollbackDone(records=0, updates=updates, to_cut=cut or None, reason=reason))


def roll_back_job(state: JobState, reason: str) -> None:
    """Roll parameters and ledger back to the newest checkpoint, or to the start: no PS holds parameters."""
    training = state.ledgers[TRAINING]
    if state.checkpoint is not None:
        cut, ledger = state.checkpoint.cut, dict(state.checkpoint.ledger)
    else:
        cut, ledger = 0, training.empty_copy().to_snapshot()
    # The checkpoint may contain applied steps that no worker has reported yet.
    records = max(0, training.done_records - ledger["done_records"])
    for holder in state.holders.values():
        for number in [n for n in holder.last_steps if n in training.leases]:
            holder.drop_lease(number)
    record_entry(state, ParametersRolledBack(cut=cut, records=records, ledger=ledger, reason=reason))
    state.emit(RollbackDone(records=records, updates=0, to_cut=cut or None, reason=reason))
    for pod in state.pods.live_pods(Role.PS):
        # Its earlier request named leases that are closed now.
        pod.attached, pod.initialized, pod.stale = False, False, pod.attach_asked_at is not None
        if pod.stale and not state.settings.durable:
            _replace_empty_ps(state, pod)


# --------------------------------------------------------------------------------------------------
# When a PS on an unreachable node is replaced. A cluster needs a minute or more to give up the pods
# of a lost node, and training stalls until the PS has a successor. But the cluster may be wrong: if
# only the kubelet is down, the pod's processes still run. So two more signals are required: the PS
# sent no heartbeat to the master, and no worker completed a step, which needs an answer from every
# PS. If both are absent the PS is deleted at once, without a grace period, because nothing can be
# using it; a PS that answers is kept.
#
# If the process still runs, cut off together with some workers, it can no longer affect the job:
# the master and the other workers follow the new placement, and pushes of closed leases are refused
# (docs/design/0002-record-accounting.md).


TAINT_SECONDS = 5.0
"""Seconds to wait until the cluster has tainted the lost node, which it does after it updates the pods' conditions.

A successor created before that could be scheduled to the same node.
"""


def replace_unreachable_ps(state: JobState, now: float) -> None:
    """Replace every PS that is unreachable; this is handled like a lost PS."""
    for pod in state.pods.live_pods(Role.PS):
        pod.unreachable_noticed_at = (
            (now if pod.unreachable_noticed_at is None else pod.unreachable_noticed_at)
            if pod.unreachable_since
            else None
        )
        if pod.unreachable_noticed_at is None or now - pod.unreachable_noticed_at < TAINT_SECONDS:
            continue
        silent = now - max(pod.last_seen, state.last_step)
        if pod.is_abandoned or silent < PS_SILENCE_SECONDS:
            continue
        pod.is_abandoned, pod.leaving_reason = True, "its node is unreachable"
        state.emit(
            WarningRaised(
                f"ps-{pod.index} is replaced: its node {pod.node} is unreachable, and neither the master nor a "
                f"worker has had an answer from it for {silent:.0f} s"
            )
        )
        state.add_commands(DeletePod(pod.uid, 0.0))
