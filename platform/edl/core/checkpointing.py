"""When a cut starts, and how the answers of the PS advance it.

The protocol is in docs/design/0002-record-accounting.md.
"""

from __future__ import annotations

from edl.api.cluster_port import Role
from edl.api.journal_entries import (
    CheckpointWritten,
    CutAnnounced,
    CutCalledOff,
    CutTaken,
    EvaluationBegun,
    FinalCutPinned,
    LeaseProgressed,
)
from edl.api.run_events import CheckpointSaved as CheckpointSavedEvent
from edl.api.run_events import EvaluationStarted, RollbackDone, WarningRaised
from edl.core import cuts, update_accounting
from edl.core.cuts import CheckpointFailure, CutStage, PendingCut
from edl.core.events import (
    CheckpointSaveFinished,
    CutPrepared,
    HoldUpdates,
    PrepareCut,
    ReleaseCut,
    SaveCheckpoint,
    SnapshotTaken,
    StopRequested,
    TakeSnapshot,
    UpdatesHeld,
)
from edl.core.journal_application import end_job, record_entry
from edl.core.ledger import TRAINING, Ledger
from edl.core.state import JobState, PendingStop
from edl.core.state_snapshot import dataset_entry

# --------------------------------------------------------------------------------------------------
# What a failed checkpoint means for the job. The loss after a PS failure is bounded by the newest
# checkpoint, and a full disk must not exceed that bound. So training continues for one interval
# after a checkpoint was due and not written, then it pauses. Saving is retried in the meantime;
# when it succeeds, training continues. After ``checkpoint.full_timeout`` without space the job
# fails; such a run can be resumed.


def record_save_failure(state: JobState, reason: str, *, is_stuck: bool = False) -> None:
    """Record that a checkpoint was not written; the start of a pause is kept."""
    since = state.checkpoint_failure.paused_at if state.checkpoint_failure else None
    state.checkpoint_failure = CheckpointFailure(reason, since, is_stuck)


def clear_save_failure(state: JobState) -> None:
    """Record that a checkpoint was written."""
    state.checkpoint_failure = None


def steps_before_pause(state: JobState) -> int | None:
    """Steps that may be handed out without a new checkpoint; None: saving works, or no checkpoint is due."""
    every, training = state.settings.checkpoint_steps, state.training_ledger
    if state.checkpoint_failure is None or training is None or not every:
        return None
    was_due = (state.last_checkpoint // every + 1) * every
    # Under AllReduce all ranks pause after the same step, so leases that are open count for nothing.
    done = state.step if state.world is not None else training.done_steps + training.outstanding_steps
    return max(0, was_due + every - done)


def advance_save_failure(state: JobState, now: float) -> None:
    """Pause training one interval after a checkpoint was due; fail the job if there is no space for too long."""
    failure = state.checkpoint_failure
    if failure is None:
        return
    # Parameter servers hand out no work before the first checkpoint; ranks of AllReduce train without one.
    is_first = state.checkpoint is None and state.world is None
    if failure.paused_at is None and (is_first or steps_before_pause(state) == 0):
        # Module ``stall`` reports this to users.
        failure.paused_at = now
    if failure.paused_at is not None and now >= failure.paused_at + state.settings.checkpoint_full_timeout:
        seconds = state.settings.checkpoint_full_timeout
        end_job(
            state,
            "Failed",
            f"no checkpoint could be written, and training was paused for {seconds:g} s "
            f"(checkpoint.full_timeout): {failure.reason}",
            kind="storage",
        )


def pause_deadline(state: JobState) -> float:
    """When ``advance_save_failure`` ends the job."""
    failure = state.checkpoint_failure
    if failure is None or failure.paused_at is None or state.has_ended:
        return float("inf")
    return failure.paused_at + state.settings.checkpoint_full_timeout


RETRY_SECONDS = 1.0
"""Seconds until the next cut after a lost PS or a revocation, which do not repeat."""
RETRY_HELD_SECONDS = 10.0
"""Seconds until the next cut if the cause may last: each attempt pauses updates."""
RETRY_SAVING_SECONDS = 30.0
"""Seconds until the next cut after a checkpoint that could not be written: a full disk stays full for a while."""


def can_begin_cut(state: JobState, now: float) -> bool:
    """Whether a cut that starts now can complete."""
    assert state.training_ledger is not None
    live = state.training_ledger.leases
    # The last cut failed because a PS may have lost steps of these leases. Until a further step of
    # each is done, or the lease is closed, every cut would fail.
    unmet = any(lease in live and live[lease].done_steps <= known for lease, known in state.unconfirmed_leases.items())
    free = state.cut is None and not state.paused_cut and state.world is None
    return free and not unmet and now >= state.cuts_blocked_until and state.pods.all_ps_ready()


def begin_cut(state: JobState, *, checkpoint: bool, pin: bool, keep_paused: bool = False) -> None:
    """Start a cut: the PS allocate memory for it. ``keep_paused``: updates stay paused after the copies."""
    assert state.training_ledger is not None
    number = state.cut_number + 1
    record_entry(state, CutAnnounced(cut=number, step=state.step))
    state.cut = PendingCut(number, checkpoint, pin, keep_paused=keep_paused)
    state.cut.enter_stage(CutStage.PREPARING, _live_ps(state))
    state.add_commands(PrepareCut(number))


def advance_cut(state: JobState, now: float) -> None:
    """Pause updates once all PS are prepared and no revocation is pending; abort a cut that takes too long."""
    cut = state.cut
    if cut is None:
        return
    if cut.stage is CutStage.PREPARING and cut.is_complete and not state.revocations:
        cut.enter_stage(CutStage.HOLDING, _live_ps(state), now + cuts.HOLD_TIMEOUT_SECONDS)
        state.add_commands(HoldUpdates(cut.number))
    elif cut.is_overdue(now):
        abort_cut(state, f"no answer from {', '.join(sorted(cut.waiting_ps))} in time", now)


def abort_cut(state: JobState, reason: str, now: float, retry_seconds: float = RETRY_HELD_SECONDS) -> None:
    """Abort the current cut; it is retried under another number.

    Args:
        reason: the reason, for users.
        now: the core's time.
        retry_seconds: seconds until the next attempt.
    """
    assert state.cut is not None
    record_entry(state, CutCalledOff(cut=state.cut.number, reason=reason))
    state.add_commands(ReleaseCut(state.cut.number))
    state.emit(WarningRaised(f"cut {state.cut.number} was aborted: {reason}"))
    # A leaving PS waits for this cut, and its grace period is short.
    if state.cut.keep_paused:
        retry_seconds = min(retry_seconds, RETRY_SECONDS)
    _clear_cut(state, reason, now + retry_seconds)


def _clear_cut(state: JobState, reason: str, until: float) -> None:
    """Clear the current cut; no other starts before ``until``."""
    state.cut, state.cuts_blocked_until = None, until
    if state.pending_stop is not None:
        state.pending_stop.obstacle = reason


def handle_cut_prepared(state: JobState, event: CutPrepared, now: float) -> None:
    """A PS is prepared; ``advance_cut`` continues once all are."""
    cut = state.cut
    if cut is not None and cut.number == event.cut:
        cut.record_answer(CutStage.PREPARING, event.ps)


def handle_updates_held(state: JobState, event: UpdatesHeld, now: float) -> None:
    """A PS paused updates. The last answer determines the steps in the cut: the ledger's half of it."""
    cut, training = state.cut, state.training_ledger
    if cut is None or cut.number != event.cut or not cut.record_answer(CutStage.HOLDING, event.ps):
        return
    cut.applied_steps[event.ps] = event.applied_steps
    if not cut.is_complete:
        return
    assert training is not None
    live = {number: lease.done_steps for number, lease in training.leases.items()}
    unmet = cut.find_unconfirmed_leases(live, state.pods.restore_lease)
    if unmet:
        state.unconfirmed_leases = {lease: live[lease] for lease in unmet}
        names = sorted({f"ps-{state.pods.by_uid[ps].index}" for ps in unmet.values()})
        reason = f"{', '.join(names)} rolled back to a checkpoint, and not every worker has completed a step since then"
        abort_cut(state, reason, now, RETRY_SECONDS)
        return
    steps = cut.decide_included_steps(live)
    if steps.value is None:
        abort_cut(state, steps.reason, now)
        return
    # The ledger position of the cut. It is fixed here, while no PS admits further steps: leases that
    # are granted from now on have no step in the cut.
    cut.included_steps, cut.next_lease = steps.value, state.next_lease_number()
    state.cut_ledger = training.snapshot_at_cut(cut.included_steps)
    cut.enter_stage(CutStage.SNAPSHOT, _live_ps(state), now + cuts.COPY_TIMEOUT_SECONDS)
    state.add_commands(
        TakeSnapshot(
            cut.number, cut.checkpoint, cut.pin, state.lowest_open_lease(), cut.included_steps, cut.keep_paused
        )
    )


def handle_snapshot_taken(state: JobState, event: SnapshotTaken, now: float) -> None:
    """A PS made its copy and resumed updates; the last answer completes the cut."""
    cut = state.cut
    if cut is None or cut.number != event.cut or not cut.record_answer(CutStage.SNAPSHOT, event.ps):
        return
    cut.versions[event.ps], cut.pause = event.version, max(cut.pause, event.pause)
    if event.admitted_steps is not None:
        cut.admitted_steps[event.ps] = event.admitted_steps
    if event.ps in state.pods.by_uid:
        state.pods.by_uid[event.ps].version = event.version
    if cut.is_complete:
        _complete_cut(state, cut)


def _complete_cut(state: JobState, cut: PendingCut) -> None:
    version, step = max(cut.versions.values(), default=0), state.cut_ledger["done_steps"]
    imbalance = _check_update_balance(state, cut, step)
    record_entry(
        state,
        CutTaken(
            cut=cut.number,
            step=step,
            version=version,
            below=cut.next_lease,
            lacking=imbalance.missing_updates if cut.admitted_steps else None,
            differs=imbalance.step_differences if cut.admitted_steps else None,
            applied={str(number): through for number, through in cut.included_steps.items()},
            pause=round(cut.pause, 6),
        ),
    )
    # Saved with the checkpoint: a rollback to it restores this count.
    state.cut_ledger["lacking"] = dict(state.counters.updates_of)
    if cut.pin:
        for uid in cut.versions:
            state.pinned_cuts[uid] = state.pinned_cuts.get(uid, frozenset()) | {cut.number}
        # In a durable job, only a cut that also becomes a checkpoint can be the final one.
        lasting = cut.checkpoint or not state.settings.durable
        _record_pin(state, cut.number, step, final=lasting and state.is_ledger_over(_ledger_at_cut(state)))
    if cut.checkpoint:
        cut.enter_stage(CutStage.SAVING, ())
        state.add_commands(SaveCheckpoint(cut.number, step, version, state.cut_ledger, cut.pause, dataset_entry(state)))
    else:
        state.cut = None


def _check_update_balance(state: JobState, cut: PendingCut, step: int) -> update_accounting.UpdateBalance:
    """Compare the done steps with the applied ones; report losses that were unknown before, and mismatches."""
    imbalance = update_accounting.compare_with_cut(state.pods, state.counters, cut, step)
    back = state.checkpoint.cut if state.checkpoint is not None else None
    for index, updates in imbalance.missing_updates.items():
        more = updates - state.counters.updates_of.get(index, 0)
        if more:
            reason = f"ps-{index}: steps that were applied but not yet reported when it was lost"
            state.emit(RollbackDone(records=0, updates=more, to_cut=back, reason=reason))
    if imbalance.step_differences:
        uid, steps = max(imbalance.step_differences.items(), key=lambda item: abs(item[1]))
        which = "reports steps that it did not push" if steps > 0 else "pushes steps that it does not report"
        state.emit(
            WarningRaised(
                f"at cut {cut.number} {step} steps are done, and ps-{state.pods.by_uid[uid].index} applied "
                f"{abs(steps)} {'fewer' if steps > 0 else 'more'} than that: a worker {which}"
            )
        )
    return imbalance


def _ledger_at_cut(state: JobState) -> Ledger:
    """The training ledger as of the cut."""
    training = state.training_ledger
    assert training is not None
    ledger = training.empty_copy()
    ledger.restore_snapshot(state.cut_ledger)
    return ledger


def _live_ps(state: JobState) -> set[str]:
    return {ps.uid for ps in state.pods.live_pods(Role.PS)}


def _record_pin(state: JobState, pin: int, step: int, *, final: bool) -> None:
    if final:
        record_entry(state, FinalCutPinned(cut=pin))
    # The last step may have been evaluated before the job knew that it was the last one.
    if state.validation and not (final and state.has_evaluated(step)):
        record_entry(state, EvaluationBegun(pin=pin, step=step, final=final))
        state.emit(EvaluationStarted(step=step))


def finish_save(state: JobState, event: CheckpointSaveFinished, now: float) -> None:
    """The checkpoint is on disk. If it failed, the previous one stays the newest."""
    cut = state.cut
    if cut is None or cut.number != event.cut or cut.stage is not CutStage.SAVING:
        return
    if event.error:
        record_entry(state, CutCalledOff(cut=cut.number, reason=event.error))
        state.emit(WarningRaised(f"checkpoint {cut.number} was not written; the previous one is kept: {event.error}"))
        record_save_failure(state, event.error)
        _clear_cut(state, event.error, now + RETRY_SAVING_SECONDS)
    else:
        step, version = state.cut_ledger["done_steps"], max(cut.versions.values(), default=0)
        record_entry(state, CheckpointWritten(cut=cut.number, step=step, version=version, ledger=state.cut_ledger))
        state.emit(CheckpointSavedEvent(cut=cut.number, step=step, pause_seconds=cut.pause))
        clear_save_failure(state)
    state.cut = None


# --------------------------------------------------------------------------------------------------
# The final checkpoint before a stop. ``StopRequested`` with a time limit starts it. No more leases
# are granted; a cut is taken as usual, and the job ends when its checkpoint is on disk. Updates
# that the PS apply after their copies do not belong to the job: the ledger is frozen from then on,
# so that it matches the checkpoint and a resumed run repeats nothing. If no checkpoint is written
# in time, the job ends anyway, says why, and resumes from the previous checkpoint.


def handle_stop_requested(state: JobState, event: StopRequested, now: float) -> None:
    """A user wants the job to end: at once, or after a final checkpoint if it would contain anything new."""
    if not event.checkpoint_seconds or not _has_unsaved_steps(state):
        end_job(state, "Interrupted", event.reason)
    elif state.pending_stop is None:
        seconds, failure = event.checkpoint_seconds, state.checkpoint_failure
        # The next attempt may be due after the deadline only: the last one says why.
        known = failure.reason if failure is not None else ""
        state.pending_stop = PendingStop(event.reason, seconds, now + seconds, obstacle=known)
        cut = state.cut
        if cut is not None and cut.checkpoint and cut.stage in (CutStage.PREPARING, CutStage.HOLDING):
            # The checkpoint in progress will contain all steps so far.
            state.pending_stop.cut_number = cut.number


def advance_final_checkpoint(state: JobState, now: float) -> None:
    """Start the final cut as soon as possible; end the job when it is on disk or its time is over."""
    stopping, saved = state.pending_stop, state.checkpoint
    assert stopping is not None
    if is_ledger_frozen(state):
        _record_cut_progress(state)
    if saved is not None and saved.cut == stopping.cut_number:
        end_job(state, "Interrupted", f"{stopping.reason}: checkpoint {saved.cut} contains all {saved.step:,} steps")
    # The last PS was lost: parameters and ledger rolled back.
    elif _is_no_cut_pending(state) and not _has_unsaved_steps(state):
        end_job(state, "Interrupted", stopping.reason)
    elif now >= stopping.deadline:
        obstacle = stopping.obstacle or _describe_obstacle(state)
        end_job(
            state,
            "Interrupted",
            f"{stopping.reason}; no checkpoint was written within {stopping.timeout_seconds:g} s: {obstacle}",
        )
    elif _is_no_cut_pending(state) and state.cuts_blocked_until >= stopping.deadline:
        end_job(state, "Interrupted", f"{stopping.reason}; no checkpoint could be written: {stopping.obstacle}")
    elif can_begin_cut(state, now):
        begin_cut(state, checkpoint=True, pin=False)
        stopping.cut_number = state.cut_number


def _is_no_cut_pending(state: JobState) -> bool:
    return state.cut is None and state.world_checkpoint is None


def is_ledger_frozen(state: JobState) -> bool:
    """Whether the final cut is fixed: later updates are neither recorded nor rolled back."""
    cut, stopping = state.cut, state.pending_stop
    return (
        stopping is not None
        and cut is not None
        and cut.number == stopping.cut_number
        and cut.stage in (CutStage.SNAPSHOT, CutStage.SAVING)
    )


def _record_cut_progress(state: JobState) -> None:
    """Record steps that the copies contain and their workers have not reported: the checkpoint has them."""
    training, cut = state.ledgers[TRAINING], state.cut
    # Before that stage the cut may still be aborted, and these steps with it.
    if cut is None or cut.stage is not CutStage.SAVING:
        return
    for number, applied_steps in sorted(cut.included_steps.items()):
        if number in training.leases and applied_steps > training.leases[number].done_steps:
            record_entry(state, LeaseProgressed(lease=number, through=applied_steps))


def _has_unsaved_steps(state: JobState) -> bool:
    if not state.settings.durable or state.training_ledger is None or state.has_ended:
        return False
    return state.checkpoint is not None and state.checkpoint.step < state.step


def _describe_obstacle(state: JobState) -> str:
    if state.world is not None:
        copied = state.world_checkpoint is not None and state.world_checkpoint.step is not None
        return "it was still being written" if copied else "the workers had not stopped after the same step"
    if state.cut is None:
        return "not every parameter server was ready"
    if state.cut.stage is CutStage.SAVING:
        return "it was still being written"
    names = sorted(f"ps-{state.pods.by_uid[uid].index}" for uid in state.cut.waiting_ps if uid in state.pods.by_uid)
    return f"{', '.join(names) or 'pending lease revocations'} had not answered"
