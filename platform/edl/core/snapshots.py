"""When a cut is begun, and what follows from each answer to it.

The protocol is in docs/design/0002-record-accounting.md.
"""

from __future__ import annotations

from edl.api.cluster_port import Role
from edl.api.events import CheckpointSaved as CheckpointSavedEvent
from edl.api.events import EvaluationStarted, RollbackDone, WarningRaised
from edl.api.journal_entries import (
    CheckpointWritten,
    CutAnnounced,
    CutCalledOff,
    CutTaken,
    EvaluationBegun,
    FinalCutPinned,
)
from edl.core import checkpoint_failures, cuts, update_accounting
from edl.core.compaction import dataset_entry
from edl.core.cuts import CutStage, PendingCut
from edl.core.events import (
    CheckpointSaveFinished,
    CutPrepared,
    HoldUpdates,
    PrepareCut,
    ReleaseCut,
    SaveCheckpoint,
    SnapshotTaken,
    TakeSnapshot,
    UpdatesHeld,
)
from edl.core.ledger import Ledger
from edl.core.state import JobState

RETRY_SECONDS = 1.0
RETRY_HELD_SECONDS = 10.0
RETRY_SAVING_SECONDS = 30.0


def can_begin_cut(state: JobState, now: float) -> bool:
    """Whether a cut that is begun now can be taken."""
    assert state.training is not None
    live = state.training.leases
    unmet = any(lease in live and live[lease].through <= known for lease, known in state.unconfirmed_leases.items())
    free = state.cut is None and not state.paused_cut
    return free and not unmet and now >= state.cuts_blocked_until and state.pods.all_ps_ready()


def begin_cut(state: JobState, *, checkpoint: bool, pin: bool, keep: bool = False) -> None:
    """Begin a cut: the PS make room for it; ``keep``: they hold updates after their copies, too."""
    assert state.training is not None
    number = state.cut_number + 1
    state.record(CutAnnounced(cut=number, step=state.step))
    state.cut = PendingCut(number, checkpoint, pin, keep=keep)
    state.cut.enter(CutStage.PREPARING, _live_ps(state))
    state.do(PrepareCut(number))


def advance_cut(state: JobState, now: float) -> None:
    """Hold updates when all PS have room and no lease is on its way back; call the cut off when it takes too long."""
    cut = state.cut
    if cut is None:
        return
    if cut.stage is CutStage.PREPARING and cut.complete and not state.revocations:
        cut.enter(CutStage.HOLDING, _live_ps(state), now + cuts.HOLD_TIMEOUT_SECONDS)
        state.do(HoldUpdates(cut.number))
    elif cut.is_overdue(now):
        abort_cut(state, f"no answer from {', '.join(sorted(cut.parts))} in time", now)


def abort_cut(state: JobState, reason: str, now: float, retry: float = RETRY_HELD_SECONDS) -> None:
    """Give the cut on its way up; it is tried again under another number.

    Args:
        reason: for people.
        now: the time.
        retry: seconds until then; long where what stopped it may last, because updates may be held in vain each time.
    """
    assert state.cut is not None
    state.record(CutCalledOff(cut=state.cut.number, reason=reason))
    state.do(ReleaseCut(state.cut.number))
    state.emit(WarningRaised(f"cut {state.cut.number} is off: {reason}"))
    if state.cut.keep:  # somebody waits for it, and not for long
        retry = min(retry, RETRY_SECONDS)
    _clear_cut(state, reason, now + retry)


def _clear_cut(state: JobState, reason: str, until: float) -> None:
    """No cut is on its way any more, and none is begun before ``until``."""
    state.cut, state.cuts_blocked_until = None, until
    if state.stopping is not None:
        state.stopping.obstacle = reason


def handle_cut_prepared(state: JobState, event: CutPrepared, now: float) -> None:
    """A PS has room for its copy; ``advance`` goes on when all have."""
    cut = state.cut
    if cut is not None and cut.number == event.cut:
        cut.answered(CutStage.PREPARING, event.ps)


def handle_updates_held(state: JobState, event: UpdatesHeld, now: float) -> None:
    """A PS lets no further step in; with the last one it is known which steps the cut has: the ledger's half of it."""
    cut, training = state.cut, state.training
    if cut is None or cut.number != event.cut or not cut.answered(CutStage.HOLDING, event.ps):
        return
    cut.applied[event.ps] = event.applied
    if not cut.complete:
        return
    assert training is not None
    live = {number: lease.through for number, lease in training.leases.items()}
    unmet = cut.find_unconfirmed_leases(live, state.pods.born)
    if unmet:
        state.unconfirmed_leases = {lease: live[lease] for lease in unmet}
        names = sorted({f"ps-{state.pods.pods[ps].index}" for ps in unmet.values()})
        reason = f"{', '.join(names)} went back to a checkpoint, and not every worker has made a step since"
        abort_cut(state, reason, now, RETRY_SECONDS)
        return
    steps = cut.steps(live)
    if steps.value is None:
        abort_cut(state, steps.reason, now)
        return
    cut.within, cut.below = steps.value, state.next_lease_number()
    state.cut_ledger = training.position(cut.within)
    cut.enter(CutStage.SNAPSHOT, _live_ps(state), now + cuts.COPY_TIMEOUT_SECONDS)
    state.do(TakeSnapshot(cut.number, cut.checkpoint, cut.pin, state.floor(), cut.within, cut.keep))


def handle_snapshot_taken(state: JobState, event: SnapshotTaken, now: float) -> None:
    """A PS has its copy and lets updates in again; with the last one the cut is taken."""
    cut = state.cut
    if cut is None or cut.number != event.cut or not cut.answered(CutStage.SNAPSHOT, event.ps):
        return
    cut.versions[event.ps], cut.pause = event.version, max(cut.pause, event.pause)
    if event.entered is not None:
        cut.entered[event.ps] = event.entered
    if event.ps in state.pods.pods:
        state.pods.pods[event.ps].version = event.version
    if cut.complete:
        _complete_cut(state, cut)


def _complete_cut(state: JobState, cut: PendingCut) -> None:
    version, step = max(cut.versions.values(), default=0), state.cut_ledger["done_steps"]
    found = _check_update_balance(state, cut, step)
    state.record(
        CutTaken(
            cut=cut.number,
            step=step,
            version=version,
            below=cut.below,
            lacking=found.lacking if cut.entered else None,
            differs=found.step_differences if cut.entered else None,
            applied={str(number): through for number, through in cut.within.items()},
            pause=round(cut.pause, 6),
        )
    )
    # Of a checkpoint without it, written by an older EDL, nobody knows.
    state.cut_ledger["lacking"] = dict(state.counters.updates_of)
    if cut.pin:
        for uid in cut.versions:
            state.pins[uid] = state.pins.get(uid, frozenset()) | {cut.number}
        lasting = cut.checkpoint or not state.settings.durable
        _record_pin(state, cut.number, step, final=lasting and state.over(_ledger_at_cut(state)))
    if cut.checkpoint:
        cut.enter(CutStage.SAVING, ())
        state.do(SaveCheckpoint(cut.number, step, version, state.cut_ledger, cut.pause, dataset_entry(state)))
    else:
        state.cut = None


def _check_update_balance(state: JobState, cut: PendingCut, step: int) -> update_accounting.UpdateBalance:
    """Compare what is done with what was applied; tell what was not known when a PS was lost, and what differs."""
    found = update_accounting.compare_with_cut(state, cut, step)
    back = state.checkpoint.cut if state.checkpoint is not None else None
    for index, updates in found.lacking.items():
        more = updates - state.counters.updates_of.get(index, 0)
        if more:
            reason = f"ps-{index}: steps that were in and not yet reported when it was lost"
            state.emit(RollbackDone(records=0, updates=more, to_cut=back, reason=reason))
    if found.step_differences:
        uid, steps = max(found.step_differences.items(), key=lambda item: abs(item[1]))
        which = "reports steps that it did not push" if steps > 0 else "pushes steps that it does not report"
        state.emit(
            WarningRaised(
                f"at cut {cut.number} {step} steps are done, and ps-{state.pods.pods[uid].index} applied "
                f"{abs(steps)} {'fewer' if steps > 0 else 'more'} than that: a worker {which}"
            )
        )
    return found


def _ledger_at_cut(state: JobState) -> Ledger:
    """The training ledger as the cut has it."""
    training = state.training
    assert training is not None
    ledger = training.empty_copy()
    ledger.restore(state.cut_ledger)
    return ledger


def _live_ps(state: JobState) -> set[str]:
    return {ps.uid for ps in state.pods.live(Role.PS)}


def _record_pin(state: JobState, pin: int, step: int, *, final: bool) -> None:
    if final:
        state.record(FinalCutPinned(cut=pin))
    if state.validation:
        state.record(EvaluationBegun(pin=pin, step=step, final=final))
        state.emit(EvaluationStarted(step=step))


def finish_save(state: JobState, event: CheckpointSaveFinished, now: float) -> None:
    """The checkpoint is on disk, or could not be written: then the one before stays the newest."""
    cut = state.cut
    if cut is None or cut.number != event.cut or cut.stage is not CutStage.SAVING:
        return
    if event.error:
        state.record(CutCalledOff(cut=cut.number, reason=event.error))
        state.emit(WarningRaised(f"checkpoint {cut.number} was not written, the one before stays: {event.error}"))
        checkpoint_failures.record_save_failure(state, event.error)
        _clear_cut(state, event.error, now + RETRY_SAVING_SECONDS)
    else:
        step, version = state.cut_ledger["done_steps"], max(cut.versions.values(), default=0)
        state.record(CheckpointWritten(cut=cut.number, step=step, version=version, ledger=state.cut_ledger))
        state.emit(CheckpointSavedEvent(cut=cut.number, step=step, pause_seconds=cut.pause))
        checkpoint_failures.clear_save_failure(state)
    state.cut = None
