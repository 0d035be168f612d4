"""What the job does next, derived from where it is."""

from __future__ import annotations

from collections.abc import Sequence

from edl.api.cluster_port import Role
from edl.api.events import EvaluationStarted
from edl.api.journal_entries import EvaluationAbandoned, EvaluationBegun, FinalCutPinned, JobPhaseChanged
from edl.core import (
    checkpoint_failures,
    evaluation_callbacks,
    final_checkpoint,
    ps_handover,
    scaling,
    snapshots,
    stall,
    unreachable_ps,
)
from edl.core.cuts import is_due
from edl.core.events import PhaseEntered, Unpin
from edl.core.state import JobState
from edl.core.task_kinds import DESCRIBE, EXPORT, single_task_ledger


def advance_job(state: JobState, now: float) -> None:
    """Start what is missing, begin what is due, end what is over."""
    if state.ended or not state.synced:
        return
    unreachable_ps.replace_unreachable_ps(state, now)
    scaling.reconcile_pods(state, now)
    _check_pins(state)
    if state.stopping is None:
        ps_handover.advance_handover(state, now)
        _advance_work(state, now)
    else:
        final_checkpoint.advance_final_checkpoint(state, now)
    # Last: what a cut waited for may be settled by now.
    if not state.ended:
        snapshots.advance_cut(state, now)
        stall.update_stall(state, now)


def _advance_work(state: JobState, now: float) -> None:
    if not state.is_dataset_known:
        if state.settings.describe:
            state.ledgers.setdefault(DESCRIBE, single_task_ledger(DESCRIBE))
    elif state.settings.predict:
        _advance_prediction(state)
    elif state.training is not None:
        _advance_training(state, now)
    else:
        state.end("Failed", "the training data has no records", kind="input")


def _enter_phase(state: JobState, phase: str, reason: str) -> None:
    if state.phase != phase:
        state.record(JobPhaseChanged(name=phase, reason=reason))
        state.emit(PhaseEntered(phase, reason))


def _check_pins(state: JobState) -> None:
    """A pin is of use only while every PS keeps it; one that was lost is taken anew."""
    if not state.pods.all_ps_ready():
        return
    kept = [state.pins.get(ps.uid, frozenset()) for ps in state.pods.live(Role.PS)]
    if state.round is not None and not all(state.round.pin in pins for pins in kept):
        state.record(EvaluationAbandoned(reason="its version is not kept by all parameter servers"))
    if state.final_pin and not all(state.final_pin in pins for pins in kept):
        state.record(FinalCutPinned(cut=0))
    _unpin_unused(state, kept)


def _unpin_unused(state: JobState, kept: Sequence[frozenset[int]]) -> None:
    """What nobody reads any more is not kept: each pin is a copy of all parameters."""
    read = {state.final_pin, state.round.pin if state.round is not None else 0}
    for pin in sorted(frozenset().union(*kept) - read):
        state.do(Unpin(pin))
        for uid, pins in state.pins.items():
            state.pins[uid] = pins - {pin}


def _advance_prediction(state: JobState) -> None:
    main = state.main
    if main is None:
        state.end("Failed", "there are no records to predict", kind="input")
    elif main.is_finished:
        state.end("Done", "every record is predicted")
    else:
        _enter_phase(state, "Predicting", "the data set is known")


def _advance_training(state: JobState, now: float) -> None:
    checkpoint_failures.advance_save_failure(state, now)
    evaluation_callbacks.request_best_write(state)
    if state.ended:
        return
    if state.is_training_over():
        _finish_training(state, now)
    elif snapshots.can_begin_cut(state, now):
        _begin_due_cut(state, now)


def _begin_due_cut(state: JobState, now: float) -> None:
    s = state.settings
    first = s.durable and state.checkpoint is None
    if not first:
        kept = ", and a checkpoint of them" if s.durable else "; nothing is kept on disk"
        _enter_phase(state, "Training", f"the parameters are there{kept}")
    checkpoint = first or (s.durable and is_due(state.step, state.last_checkpoint, s.checkpoint_steps))
    evaluate = bool(state.validation) and state.round is None and not first
    pin = evaluate and is_due(state.step, state.last_evaluation, s.evaluation_steps)
    checkpoint = checkpoint or (pin and s.durable and state.callbacks.keeps_best_checkpoint)
    if checkpoint or pin:
        snapshots.begin_cut(state, checkpoint=checkpoint, pin=pin)


def _finish_training(state: JobState, now: float) -> None:
    """All records are done: a last cut, evaluation and export of it, and the end."""
    if state.final_pin == 0:
        if state.round is None and snapshots.can_begin_cut(state, now):
            snapshots.begin_cut(state, checkpoint=state.settings.durable, pin=True)
        return
    if state.validation and not state.evaluated_final:
        _enter_phase(state, "Evaluating", _end_reason(state))
        _begin_final_evaluation(state)
    elif not evaluation_callbacks.restore_best_weights(state):
        pass
    elif state.settings.export and not state.counters.exported:
        _enter_phase(state, "Exporting", _end_reason(state))
        state.ledgers.setdefault(EXPORT, single_task_ledger(EXPORT))
    elif state.cut is None and state.callbacks.best_to_write is None:
        state.end("Done", _end_reason(state))


def _end_reason(state: JobState) -> str:
    training = state.training
    if state.callbacks.stopped and training is not None and training.waiting:
        return state.callbacks.stopped
    if training is not None and training.waiting:
        return f"{training.done_steps} steps are done, as many as max_steps asks for"
    return "every record is done"


def _begin_final_evaluation(state: JobState) -> None:
    if state.round is None:
        state.record(EvaluationBegun(pin=state.final_pin, step=state.step, final=True))
        state.emit(EvaluationStarted(step=state.step))


def are_metrics_due(state: JobState) -> bool:
    """Whether all records of the evaluation are in and a worker should turn the sum into values."""
    at = state.round
    return at is not None and at.ledger.is_finished and evaluation_callbacks.can_finish_evaluation(state, at)
