"""Applies the job's callbacks: when they are declared, after each evaluation, and at the end of training.

``callback_decisions.CallbackState`` makes the decisions. Each is journaled with its evaluation, so that a later
master or a resumed run restores it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edl.api.journal_entries import BestWeightsRestored, CallbacksDeclared, CutAnnounced
from edl.api.run_events import CallbackDecided, WarningRaised
from edl.core.callback_decisions import (
    BestCheckpoint,
    CallbackState,
    DeclaredCallback,
    EvaluationResult,
    ReduceLROnPlateau,
    callbacks_to_json,
    deciding_callbacks,
    explain_missing_monitor,
    model_files,
)
from edl.core.cuts import WORLD_STEP_KEY, CutStage
from edl.core.evaluation import PinnedEvaluation
from edl.core.events import CheckpointCopyFinished, CopyCheckpoint
from edl.core.journal_application import end_job, record_entry
from edl.core.ledger import BEST_MODEL, single_task_ledger
from edl.core.state import JobState


def declare_callbacks(state: JobState, specs: Sequence[DeclaredCallback]) -> None:
    """Register the callbacks that a worker declares; all workers of a run must declare the same ones."""
    if state.has_ended:
        return
    if state.declared_callbacks is not None and tuple(specs) != state.declared_callbacks:
        message = (
            "workers declare different callbacks: callbacks() and optimizer() must return the same in every process"
        )
        end_job(state, "Failed", message, kind="input")
        return
    state.declared_callbacks = tuple(specs)
    # A restarted master has them from its journal.
    if (deciding_callbacks(specs), model_files(specs)) == (state.callbacks.specs, state.model_files.specs):
        return
    record_entry(state, CallbacksDeclared(declared=callbacks_to_json(specs)))
    if state.callbacks.keeps_best_checkpoint and not state.settings.durable:
        end_job(
            state,
            "Failed",
            "a callback keeps the best weights (restore_best_weights or save_best_only), or writes the model of each "
            "evaluation, but the run has no storage for checkpoints: set storage.claim, or remove the option",
            kind="input",
        )


def decide_after_evaluation(
    state: JobState, evaluation: PinnedEvaluation, metrics: Mapping[str, float | None]
) -> dict[str, Any] | None:
    """Decide after an evaluation; returns the callbacks' part of its journal entry, if there are callbacks."""
    before = state.callbacks
    if not before.specs:
        return None
    after = before.apply_evaluation(EvaluationResult(evaluation.step, evaluated_checkpoint(state, evaluation), metrics))
    _emit_callback_events(state, evaluation, before, after)
    return after.evaluated_state()


def _emit_callback_events(
    state: JobState, evaluation: PinnedEvaluation, before: CallbackState, after: CallbackState
) -> None:
    def tell(callback: str, decision: str) -> None:
        state.emit(CallbackDecided(step=evaluation.step, callback=callback, decision=decision))

    if after.learning_rate != before.learning_rate:
        tell(ReduceLROnPlateau.__name__, f"the learning rate is now {after.learning_rate:.6g}")
    if after.stop_reason != before.stop_reason:
        tell("EarlyStopping", after.stop_reason)
    for callback, now, was in zip(after.specs, after.progress, before.progress, strict=True):
        if isinstance(callback, BestCheckpoint) and now.best_cut != was.best_cut:
            best = (
                "writes the model of"
                if callback.saves_every
                else f"the best {callback.monitor} so far is {now.best:.6g},"
            )
            tell("ModelCheckpoint", f"{best} checkpoint {now.best_cut}")
    if after.keeps_best_checkpoint and not evaluated_checkpoint(state, evaluation):
        state.emit(
            WarningRaised(
                f"the weights evaluated at step {evaluation.step} are in no checkpoint: they cannot be kept as the best"
            )
        )


def refuse_missing_monitors(state: JobState, metrics: Mapping[str, float | None]) -> None:
    """End the job if a callback monitors what its first evaluation does not have: it would never decide."""
    for callback in state.callbacks.specs:
        name = type(callback).__name__
        if isinstance(callback, BestCheckpoint):
            if callback.saves_every:
                continue
            name = "ModelCheckpoint"
        if problem := explain_missing_monitor(name, callback.monitor, metrics):
            end_job(state, "Failed", problem, kind="input")


def evaluated_checkpoint(state: JobState, evaluation: PinnedEvaluation) -> int:
    """The checkpoint of the evaluated parameters; 0: it is not on disk."""
    if state.world is None:
        return evaluation.pin if evaluation.saved else 0
    # Nobody trains until the callbacks have decided, so no later checkpoint can be the newest one.
    saved = state.checkpoint
    return saved.cut if saved is not None and saved.step == evaluation.step else 0


def can_finish_evaluation(state: JobState, evaluation: PinnedEvaluation) -> bool:
    """Whether an evaluation can be completed."""
    # If the best weights are kept, the decision depends on whether this evaluation's checkpoint is on
    # disk. Wait until it is written or has failed.
    if not state.callbacks.keeps_best_checkpoint:
        return True
    if state.world is None:
        cut = state.cut
        return cut is None or cut.number != evaluation.pin or cut.stage is not CutStage.SAVING
    if evaluated_checkpoint(state, evaluation):
        return True
    # After a failure, the next attempt begins half a minute later.
    return state.checkpoint_failure is not None and state.world_checkpoint is None


def request_best_write(state: JobState) -> None:
    """Request that a worker writes the file of a best checkpoint that has no file yet."""
    if state.callbacks.best_to_write is not None:
        state.ledgers.setdefault(BEST_MODEL, single_task_ledger(BEST_MODEL))
    elif (ledger := state.ledgers.get(BEST_MODEL)) is not None and not ledger.leases:
        # Training went back to a step before this evaluation.
        del state.ledgers[BEST_MODEL]


def best_write_payload(state: JobState) -> dict[str, Any] | None:
    """The task payload for that worker."""
    best_checkpoint = state.callbacks.best_to_write
    if best_checkpoint is None:
        return None
    place, callback, best = best_checkpoint
    return {
        "place": place,
        "cut": best.best_cut,
        "epoch": best.best_epoch,
        "metrics": dict(best.best_metrics),
        "filepath": callback.filepath,
        "weights_only": callback.weights_only,
    }


def restore_best_weights(state: JobState) -> bool:
    """Carry out ``restore_best_weights`` at the end; returns whether this is finished.

    The best checkpoint becomes the newest one, which is the one that export, prediction and a
    resumed run use.
    """
    best = state.callbacks.best_to_restore
    if best is None or best.best_cut in (_final_checkpoint(state), state.best_restored):
        return True
    # Wait for a copy or a cut in progress: the copy takes the next cut number.
    in_progress = state.copy_cut or state.cut is not None or state.world_checkpoint is not None
    if in_progress or state.training_ledger is None:
        return False
    state.copy_cut = state.cut_number + 1
    record_entry(state, CutAnnounced(cut=state.copy_cut, step=state.step))
    state.add_commands(CopyCheckpoint(best.best_cut, state.copy_cut, _final_version(state), _final_ledger(state)))
    return False


def _final_checkpoint(state: JobState) -> int:
    """The checkpoint of the parameters at the end of training; 0: there is none."""
    if state.world is None:
        return state.final_pin
    saved = state.checkpoint
    return saved.cut if saved is not None and saved.step == state.step else 0


def _final_version(state: JobState) -> int:
    """The version of a checkpoint at the end of training."""
    if state.world is not None:
        return state.step
    return state.checkpoint.version if state.checkpoint is not None else 0


def _final_ledger(state: JobState) -> dict[str, Any]:
    """The ledger at the end of training, with the metadata of the newest checkpoint."""
    assert state.training_ledger is not None
    known = state.checkpoint.ledger if state.checkpoint is not None else {}
    # Without the last checkpoint, which failed, the newest one is of an older step.
    world_step = {WORLD_STEP_KEY: state.step} if state.world is not None else {}
    return {**known, **state.training_ledger.to_snapshot(), **world_step}


def handle_checkpoint_copied(state: JobState, event: CheckpointCopyFinished, now: float) -> None:
    """The best checkpoint was copied and is now the newest one, or the copy failed."""
    del now
    if event.cut != state.copy_cut or state.training_ledger is None:
        return
    state.copy_cut = 0
    best = state.callbacks.best_to_restore
    if event.error or best is None or best.best_cut != event.source:
        if event.error:
            end_job(state, "Failed", f"the best weights cannot be restored: {event.error}", kind="storage")
        return
    record_entry(
        state,
        BestWeightsRestored(
            cut=event.cut,
            of=event.source,
            step=state.step,
            version=_final_version(state),
            ledger=_final_ledger(state),
            metrics=dict(best.best_metrics),
        ),
    )
    decision = f"restored the weights of step {best.best_step:,}, which have the best value"
    state.emit(CallbackDecided(step=state.step, callback="EarlyStopping", decision=decision))
