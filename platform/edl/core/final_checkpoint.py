"""A final checkpoint before a stop: what somebody who stops a job wants of its parameters.

``StopRequested`` with seconds begins it. No lease is granted any more; a cut is taken as at any other time, and the job
ends when its checkpoint is on disk. What PS apply after they have made their copies is no part of the job: the ledger
stands still from then on, so that it says at the end what the checkpoint holds, and a run that goes on repeats nothing.

Without a checkpoint after the given seconds, or when it cannot be written, the job ends all the same and says why; it
goes on from the checkpoint before.
"""

from __future__ import annotations

from edl.api.journal_entries import LeaseProgressed
from edl.core import snapshots
from edl.core.cuts import CutStage
from edl.core.events import StopRequested
from edl.core.state import JobState, PendingStop
from edl.core.task_kinds import TRAINING


def handle_stop_requested(state: JobState, event: StopRequested, now: float) -> None:
    """Somebody wants the job to end: at once, or after a final checkpoint if that would hold anything new."""
    if not event.checkpoint_seconds or not _has_unsaved_steps(state):
        state.end("Interrupted", event.reason)
    elif state.stopping is None:
        state.stopping = PendingStop(event.reason, event.checkpoint_seconds, now + event.checkpoint_seconds)
        cut = state.cut
        if cut is not None and cut.checkpoint and cut.stage in (CutStage.PREPARING, CutStage.HOLDING):
            state.stopping.cut = cut.number  # it is on its way, and will have all steps up to now


def advance_final_checkpoint(state: JobState, now: float) -> None:
    """Begin the final cut as soon as one can be taken; end the job when it is on disk, or cannot be in time."""
    stopping, saved = state.stopping, state.checkpoint
    assert stopping is not None
    if is_ledger_frozen(state):
        _record_cut_progress(state)
    if saved is not None and saved.cut == stopping.cut:
        state.end("Interrupted", f"{stopping.reason}: checkpoint {saved.cut} holds all {saved.step:,} steps")
    elif state.cut is None and not _has_unsaved_steps(state):  # the last PS was lost: parameters and ledger went back
        state.end("Interrupted", stopping.reason)
    elif now >= stopping.deadline:
        why = stopping.obstacle or _describe_obstacle(state)
        state.end("Interrupted", f"{stopping.reason}; no checkpoint was written within {stopping.seconds:g} s: {why}")
    elif state.cut is None and state.cuts_blocked_until >= stopping.deadline:
        state.end("Interrupted", f"{stopping.reason}; no checkpoint could be written: {stopping.obstacle}")
    elif snapshots.can_begin_cut(state, now):
        snapshots.begin_cut(state, checkpoint=True, pin=False)
        stopping.cut = state.cut_number


def is_ledger_frozen(state: JobState) -> bool:
    """Whether the final cut is fixed: what is applied from now on is neither entered nor taken back."""
    cut, stopping = state.cut, state.stopping
    return (
        stopping is not None
        and cut is not None
        and cut.number == stopping.cut
        and cut.stage in (CutStage.SNAPSHOT, CutStage.SAVING)
    )


def _record_cut_progress(state: JobState) -> None:
    """Enter the steps that the copies have and their workers have not reported yet: the checkpoint holds them."""
    training, cut = state.ledgers[TRAINING], state.cut
    if cut is None or cut.stage is not CutStage.SAVING:  # until then the cut may be called off, and they with it
        return
    for number, through in sorted(cut.within.items()):
        if number in training.leases and through > training.leases[number].through:
            state.record(LeaseProgressed(lease=number, through=through))


def _has_unsaved_steps(state: JobState) -> bool:
    if state.settings.predict or not state.settings.durable or state.training is None or state.ended:
        return False
    return state.checkpoint is not None and state.checkpoint.step < state.step


def _describe_obstacle(state: JobState) -> str:
    if state.cut is None:
        return "not every parameter server was ready"
    if state.cut.stage is CutStage.SAVING:
        return "it was still being written"
    names = sorted(f"ps-{state.pods.pods[uid].index}" for uid in state.cut.parts if uid in state.pods.pods)
    return f"{', '.join(names) or 'leases on their way back'} had not answered"
