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
from edl.core.cuts import due
from edl.core.events import PhaseEntered, Unpin
from edl.core.state import State
from edl.core.task_kinds import DESCRIBE, EXPORT, unit


def advance(state: State, now: float) -> None:
    """Start what is missing, begin what is due, end what is over."""
    if state.ended or not state.synced:
        return
    unreachable_ps.replace(state, now)
    scaling.advance(state, now)
    _check_pins(state)
    if state.stopping is None:
        ps_handover.advance(state, now)
        _proceed(state, now)
    else:
        final_checkpoint.advance(state, now)
    # Last: what a cut waited for may be settled by now.
    if not state.ended:
        snapshots.advance(state, now)
        stall.advance(state, now)


def _proceed(state: State, now: float) -> None:
    if not state.described:
        if state.settings.describe:
            state.ledgers.setdefault(DESCRIBE, unit(DESCRIBE))
    elif state.settings.predict:
        _predict(state)
    elif state.training is not None:
        _train(state, now)
    else:
        state.end("Failed", "the training data has no records", kind="input")


def _enter(state: State, phase: str, reason: str) -> None:
    if state.phase != phase:
        state.record(JobPhaseChanged(name=phase, reason=reason))
        state.emit(PhaseEntered(phase, reason))


def _check_pins(state: State) -> None:
    """A pin is of use only while every PS keeps it; one that was lost is taken anew."""
    if not state.fleet.ps_ready():
        return
    kept = [state.pins.get(ps.uid, frozenset()) for ps in state.fleet.live(Role.PS)]
    if state.round is not None and not all(state.round.pin in pins for pins in kept):
        state.record(EvaluationAbandoned(reason="its version is not kept by all parameter servers"))
    if state.final_pin and not all(state.final_pin in pins for pins in kept):
        state.record(FinalCutPinned(cut=0))
    _unpin(state, kept)


def _unpin(state: State, kept: Sequence[frozenset[int]]) -> None:
    """What nobody reads any more is not kept: each pin is a copy of all parameters."""
    read = {state.final_pin, state.round.pin if state.round is not None else 0}
    for pin in sorted(frozenset().union(*kept) - read):
        state.do(Unpin(pin))
        for uid, pins in state.pins.items():
            state.pins[uid] = pins - {pin}


def _predict(state: State) -> None:
    main = state.main
    if main is None:
        state.end("Failed", "there are no records to predict", kind="input")
    elif main.finished:
        state.end("Done", "every record is predicted")
    else:
        _enter(state, "Predicting", "the data set is known")


def _train(state: State, now: float) -> None:
    checkpoint_failures.advance(state, now)
    evaluation_callbacks.write_best(state)
    if state.ended:
        return
    if state.training_over():
        _finish(state, now)
    elif snapshots.possible(state, now):
        _cut_if_due(state, now)


def _cut_if_due(state: State, now: float) -> None:
    s = state.settings
    first = s.durable and state.checkpoint is None
    if not first:
        kept = ", and a checkpoint of them" if s.durable else "; nothing is kept on disk"
        _enter(state, "Training", f"the parameters are there{kept}")
    checkpoint = first or (s.durable and due(state.step, state.last_checkpoint, s.checkpoint_steps))
    evaluate = bool(state.validation) and state.round is None and not first
    pin = evaluate and due(state.step, state.last_evaluation, s.evaluation_steps)
    checkpoint = checkpoint or (pin and s.durable and state.callbacks.keep_best)
    if checkpoint or pin:
        snapshots.begin(state, checkpoint=checkpoint, pin=pin)


def _finish(state: State, now: float) -> None:
    """All records are done: a last cut, evaluation and export of it, and the end."""
    if state.final_pin == 0:
        if state.round is None and snapshots.possible(state, now):
            snapshots.begin(state, checkpoint=state.settings.durable, pin=True)
        return
    if state.validation and not state.evaluated_final:
        _enter(state, "Evaluating", _why_over(state))
        _evaluate_final(state)
    elif not evaluation_callbacks.restore_best(state):
        pass
    elif state.settings.export and not state.counters.exported:
        _enter(state, "Exporting", _why_over(state))
        state.ledgers.setdefault(EXPORT, unit(EXPORT))
    elif state.cut is None and state.callbacks.unwritten is None:
        state.end("Done", _why_over(state))


def _why_over(state: State) -> str:
    training = state.training
    if state.callbacks.stopped and training is not None and training.waiting:
        return state.callbacks.stopped
    if training is not None and training.waiting:
        return f"{training.done_steps} steps are done, as many as max_steps asks for"
    return "every record is done"


def _evaluate_final(state: State) -> None:
    if state.round is None:
        state.record(EvaluationBegun(pin=state.final_pin, step=state.step, final=True))
        state.emit(EvaluationStarted(step=state.step))


def metrics_due(state: State) -> bool:
    """Whether all records of the evaluation are in and a worker should turn the sum into values."""
    at = state.round
    return at is not None and at.ledger.finished and evaluation_callbacks.values_are_due(state, at)
