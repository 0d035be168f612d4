"""Parameter servers: who listens, who holds parameters, and what goes back when one is lost."""

from __future__ import annotations

from edl.api.cluster_port import Role
from edl.api.events import RollbackDone, WarningRaised
from edl.api.journal_entries import (
    CheckpointReplaced,
    EvaluationAbandoned,
    ParametersHeld,
    ParametersRestored,
    ParametersRolledBack,
)
from edl.core import evaluation_callbacks, ps_handover, snapshots, update_accounting
from edl.core.events import (
    AttachPs,
    CheckpointRefused,
    DeletePod,
    ModelDeclared,
    PsAttached,
    PsHeartbeat,
    PsRefused,
    PsSilent,
    ReleaseCut,
    RevokeLeases,
)
from edl.core.job_pods import JobPod
from edl.core.saved_checkpoint import SavedCheckpoint
from edl.core.state import JobState
from edl.core.task_kinds import TRAINING

ATTACH_TIMEOUT = 70.0
"""Seconds after which a PS that did not answer, and registers again, is asked again: longer than calls are retried."""


def handle_ps_registered(state: JobState, uid: str, now: float) -> None:
    """A PS that the cluster has shown says where it listens: make it listen to this incarnation of the master.

    A PS that the cluster has not shown is left out: whoever has the job's token can name one. It registers again.
    """
    pod = state.pods.pods.get(uid)
    if pod is None:
        return
    if pod.uid in state.pods.handed_over_ps:
        ps_handover.delete_lingering_ps(state, pod)  # only a successor gets what it had
        return
    if pod.live and not pod.attached and (pod.asked is None or now - pod.asked >= ATTACH_TIMEOUT):
        pod.loading = False
        _attach_ps(state, pod, None, now)


def handle_ps_heartbeat(state: JobState, event: PsHeartbeat, now: float) -> None:
    """A PS that this master knows speaks."""
    pod = state.pods.pods.get(event.uid)
    if pod is not None:
        pod.heard = now
        ps_handover.delete_lingering_ps(state, pod)


def _attach_ps(state: JobState, pod: JobPod, restore: int | None, now: float) -> None:
    leases = state.training.leases if state.training else {}
    floor = state.floor()
    revoked = {n for n, lease in leases.items() if lease.revoking is not None}
    revoked |= {n for n in state.revoked if n >= floor}
    live = tuple(n for n in leases if n not in revoked)
    pod.asked, pod.stale = now, False
    complete = restore is not None and pod.index in state.pods.handed_over_ps.values()
    state.do(AttachPs(pod.uid, floor, tuple(sorted(revoked)), live, passed_cut(state), restore, complete))


def passed_cut(state: JobState) -> int:
    """No PS is to hold updates for this cut, or for one before it."""
    if state.paused_cut:
        return state.paused_cut - 1
    return state.cut_number - 1 if state.cut is not None and state.cut.awaits_copies else state.cut_number


def handle_ps_attached(state: JobState, event: PsAttached, now: float) -> None:
    """A PS listens. One that holds nothing though there is a checkpoint is told to load it first."""
    pod = state.pods.pods.get(event.uid)
    if pod is None or not pod.live or pod.uid in state.pods.handed_over_ps:
        return
    if pod.stale:
        pod.loading = False
    # One that loaded for a master that never took its answer may lack a rollback since: nothing is in there yet.
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
    # Before the first checkpoint a worker's declaration may have been faster than this answer.
    pod.attached, pod.version = True, event.version
    pod.initialized = event.initialized or (pod.initialized and state.checkpoint is None)
    state.pins[event.uid] = frozenset(event.pins)
    if pod.initialized:
        _record_holder(state, pod)
    for revocation in state.revocations:
        if event.uid in revocation.waiting:
            state.do(RevokeLeases(event.uid, revocation.leases, state.floor()))


def _has_no_progress(state: JobState) -> bool:
    """Whether no step of the job has been made or can be on its way, as far as the journal knows."""
    training = state.training
    return state.checkpoint is None and (training is None or not (training.done_steps or training.leases))


def _replace_unaccounted_ps(state: JobState, pod: JobPod, now: float) -> None:
    """A PS holds updates whose journal is lost, and their records will be trained on again: it begins with nothing.

    Its workers have nothing to do until somebody declares the model, and have done so already: others begin, too.
    """
    if not state.synced:
        _attach_ps(state, pod, None, now)
        return
    state.emit(WarningRaised(f"ps-{pod.index} holds updates of which no journal is left: it is replaced"))
    _replace_empty_ps(state, pod)
    if not state.workers_replaced:
        state.workers_replaced = True
        state.do(*(DeletePod(worker.uid, 0.0) for worker in state.pods.live(Role.WORKER) if worker.has_run))


def _load_checkpoint(state: JobState, pod: JobPod, cut: int, now: float) -> None:
    """Once: a PS that loads again forgets what it applied since."""
    if not pod.loading:
        pod.loading = True
        state.record(ParametersRestored(ps=pod.uid, born=state.next_lease_number(), index=pod.index))
        _attach_ps(state, pod, cut, now)


def handle_model_declared(state: JobState, event: ModelDeclared, now: float) -> None:
    """A worker told every PS what the variables are: it has built its model."""
    if event.callbacks is not None:
        evaluation_callbacks.declare_callbacks(state, event.callbacks)
    state.pods.mark_model_built(event.worker)
    for pod in state.pods.live(Role.PS):
        if pod.attached or state.checkpoint is None:
            pod.initialized = True
        if pod.attached:
            _record_holder(state, pod)


def _record_holder(state: JobState, pod: JobPod) -> None:
    """From now on, losing this PS is losing parameters; the next master has to know."""
    if state.pods.parameter_holders.get(pod.index) == pod.uid or pod.uid in state.pods.handed_over_ps:
        return
    if not state.settings.durable and state.training is not None and state.training.leases:
        # It begins with initial values, and has never heard of what the leases reached before.
        state.record(ParametersRestored(ps=pod.uid, born=state.next_lease_number(), index=pod.index))
    kept = state.paused_cut
    for revocation in state.revocations if kept else ():
        revocation.waiting.add(pod.uid)  # a successor knows as much of the leases as the one before
    state.record(ParametersHeld(index=pod.index, ps=pod.uid))
    if kept and not state.paused_cut:
        state.do(ReleaseCut(kept))


def _replace_empty_ps(state: JobState, pod: JobPod) -> None:
    """Without a checkpoint there is nothing that it could load over what it may have applied: another one begins."""
    state.do(DeletePod(pod.uid, 0.0))


def handle_ps_silent(state: JobState, event: PsSilent, now: float) -> None:
    """A PS lives and does not answer: it is made to go, and what follows is what follows a lost PS."""
    pod = state.pods.pods.get(event.uid)
    if pod is not None and pod.live and not state.ended:
        state.emit(WarningRaised(f"ps-{pod.index} has not answered for {event.seconds:.0f} s: it is replaced"))
        state.do(DeletePod(event.uid, 0.0))


def handle_ps_refused(state: JobState, event: PsRefused, now: float) -> None:
    """A PS refuses: a cut can be tried again, for a restore or a revocation nothing can stand in."""
    pod = state.pods.pods.get(event.uid)
    if pod is None or not pod.live or state.ended:
        return
    if not event.cut:
        state.end("Failed", event.message, kind="storage" if event.kind == "storage" else "refused")
    elif state.cut is not None and state.cut.number == event.cut and state.cut.awaits_copies:
        snapshots.abort_cut(state, event.message, now)


# ------------------------------------------------------------------------------------ a checkpoint that is damaged


def handle_checkpoint_refused(state: JobState, event: CheckpointRefused, now: float) -> None:
    """A PS cannot read the checkpoint that it was told to load: the newest older one that is intact stands in."""
    pod = state.pods.pods.get(event.uid)
    if pod is None or not pod.live or state.ended or state.checkpoint is None:
        return
    if state.checkpoint.cut == event.cut:  # else another PS said so before
        if event.older is None:
            state.end("Failed", f"{event.message}; {event.skipped}", kind="storage")
            return
        _fall_back_to_checkpoint(state, state.checkpoint, event.older, event.message)
    pod.loading = False
    _load_checkpoint(state, pod, state.checkpoint.cut, now)


def _fall_back_to_checkpoint(state: JobState, newest: SavedCheckpoint, older: SavedCheckpoint, why: str) -> None:
    """All that went back to the newest checkpoint goes back to an older one."""
    reason = f"checkpoint {newest.cut} cannot be used"
    state.record(
        CheckpointReplaced(cut=older.cut, step=older.step, version=older.version, ledger=dict(older.ledger), reason=why)
    )
    state.emit(WarningRaised(f"{reason}, checkpoint {older.cut} stands in: {why}"))
    fleet = state.pods
    if not any(fleet.is_live(uid) for uid in fleet.parameter_holders.values()):
        roll_back_job(state, reason)
        return
    then, now = (
        update_accounting.checkpoint_missing_updates(state, older),
        update_accounting.checkpoint_missing_updates(state, newest),
    )
    for index in sorted(set(range(fleet.ps)) - fleet.parameter_holders.keys()):
        more = newest.step - older.step + then.get(str(index), 0) - now.get(str(index), 0)
        _roll_back_ps(state, index, max(0, more), reason)
    for pod in fleet.live(Role.PS):
        pod.stale = pod.loading and fleet.parameter_holders.get(pod.index) != pod.uid


# ------------------------------------------------------------------------------------------------ what is lost


def handle_ps_lost(state: JobState, pod: JobPod, reason: str, now: float) -> None:
    """A PS ended."""
    state.pins.pop(pod.uid, None)
    if state.cut is not None:
        snapshots.abort_cut(state, f"ps-{pod.index} was lost", now, snapshots.RETRY_SECONDS)
    for revocation in state.revocations:
        revocation.lost(pod.uid)
    check_lost_holders(state, reason)


def check_lost_holders(state: JobState, reason: str) -> None:
    """Who held parameters and is gone takes them along; if nobody is left, the ledger goes back with them."""
    holding = state.pods.parameter_holders
    gone = sorted(index for index, uid in holding.items() if not state.pods.is_live(uid))
    if not gone or state.training is None or state.ended:
        return
    told = f"{', '.join(f'ps-{index}' for index in gone)}: {reason}"
    if state.round is not None:
        state.record(EvaluationAbandoned(reason=told))
    if len(gone) == len(holding):
        roll_back_job(state, told)
        return
    for index in gone:
        _roll_back_ps(state, index, update_accounting.count_updates_lost(state, index), f"ps-{index}: {reason}")


def _roll_back_ps(state: JobState, index: int, updates: int, reason: str) -> None:
    """Others survive: the slots of this PS go back to the newest checkpoint, or the start; the ledger stays."""
    cut = state.checkpoint.cut if state.checkpoint else 0
    state.record(ParametersRolledBack(cut=cut, records=0, ledger=None, updates=updates, ps=index, reason=reason))
    state.emit(RollbackDone(records=0, updates=updates, to_cut=cut or None, reason=reason))


def roll_back_job(state: JobState, reason: str) -> None:
    """No PS is left: parameters and ledger go back to the newest checkpoint, or to the start."""
    training = state.ledgers[TRAINING]
    if state.checkpoint is not None:
        cut, ledger = state.checkpoint.cut, dict(state.checkpoint.ledger)
    else:
        cut, ledger = 0, training.empty_copy().snapshot()
    # The checkpoint may have steps that are in and that no worker has reported yet.
    records = max(0, training.done_records - ledger["done_records"])
    for holder in state.holders.values():
        for number in [n for n in holder.stepped if n in training.leases]:
            holder.drop(number)
    state.record(ParametersRolledBack(cut=cut, records=records, ledger=ledger, reason=reason))
    state.emit(RollbackDone(records=records, updates=0, to_cut=cut or None, reason=reason))
    for pod in state.pods.live(Role.PS):
        # It was asked with the leases of before, which are closed now.
        pod.attached, pod.initialized, pod.stale = False, False, pod.asked is not None
        if pod.stale and not state.settings.durable:
            _replace_empty_ps(state, pod)
