"""What each journal entry changes in the state of the job.

Nothing here decides, reads a clock or fails on an entry that a master produced: an entry must mean the same
in replay, years later, as when it was decided. Entries of earlier versions lack fields; the defaults here
say what they meant. docs/design/0002-record-accounting.md lists the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edl.api.journal_entries import (
    BestWeightsRestored,
    CallbacksDeclared,
    CheckpointReplaced,
    CheckpointWritten,
    CutAnnounced,
    CutCalledOff,
    CutTaken,
    DatasetEntered,
    EvaluationAbandoned,
    EvaluationBegun,
    EvaluationCompleted,
    FinalCutPinned,
    JobPhaseChanged,
    JobResumed,
    JournalEntry,
    LeaseCompleted,
    LeaseGranted,
    LeaseProgressed,
    LeaseReturned,
    MasterStarted,
    ParametersHandedOver,
    ParametersHeld,
    ParametersRestored,
    ParametersRolledBack,
    RevocationStarted,
    Sources,
    StepsApplied,
    StoppedByCallback,
    WorkerChanged,
    WorkerDismissed,
    WorkerMemoryRaised,
    WorkersScaled,
    WorkerWarned,
    WorldAnnounced,
    WorldStarted,
)
from edl.core import evaluation, update_accounting, world_entries
from edl.core.callback_decisions import callbacks_from_json, model_files
from edl.core.cuts import WORLD_STEP_KEY, SavedCheckpoint
from edl.core.evaluation import PinnedEvaluation
from edl.core.events import EndJob, RecordEntry
from edl.core.ledger import (
    BEST_MODEL,
    DESCRIBE,
    EVALUATION,
    EXPORT,
    LEASE_COUNTER_BITS,
    METRICS,
    MODEL_FILE,
    PREDICTION,
    TRAINING,
    Lease,
    LeaseRevocation,
    Ledger,
    shuffled_ledger,
    single_task_ledger,
)
from edl.core.model_files import ModelFiles
from edl.core.pod_lifecycle import MemoryRaise
from edl.core.record_ranges import RecordRange, RecordSource, ShardPlan
from edl.core.shuffle import ShuffleOrder
from edl.core.state import JobSettings, JobState
from edl.core.task_results import parse_export

_LEASE_COUNTER_MASK = (1 << LEASE_COUNTER_BITS) - 1


def _apply_dataset(state: JobState, entry: DatasetEntered) -> None:
    s = state.settings
    state.is_dataset_known = True
    state.ledgers.pop(DESCRIBE, None)
    for kind, rows, epochs, seed in (
        (TRAINING, entry.training, s.epochs, s.seed),
        (PREDICTION, entry.prediction, 1, None),
        # A job that also trains has a ledger for each evaluation.
        (EVALUATION, entry.validation, 1, None),
    ):
        sources = _nonempty_sources(rows)
        # A worker describes whatever parts the job names.
        if sources and kind == s.main_kind:
            state.ledgers[kind] = _range_ledger(s, kind, ShardPlan(sources, s.task_records, seed), epochs)
    # Journals from before shuffled orders have ranges of files.
    if entry.order is not None and entry.training is not None and TRAINING in state.ledgers:
        state.shuffle_order = ShuffleOrder.from_json(entry.training, entry.order)
        state.ledgers[TRAINING] = shuffled_ledger(
            state.shuffle_order, s.epochs, s.step_records, s.task_records, splits_leases=s.all_reduce
        )
    state.validation = _nonempty_sources(entry.validation)
    state.file_digests = entry.digests or {}


def _range_ledger(settings: JobSettings, kind: str, plan: ShardPlan, epochs: int) -> Ledger:
    # Leases shorten at the end of training. What is left of a shard is not work that has come back.
    if kind == TRAINING and settings.all_reduce:
        return Ledger(plan, epochs, settings.step_records, settings.task_records)
    return Ledger(plan, epochs, settings.minibatch)


def _nonempty_sources(rows: Sources | None) -> tuple[RecordSource, ...]:
    return tuple(RecordSource(name, records) for name, records in rows or () if records)


def _apply_leased(state: JobState, entry: LeaseGranted) -> None:
    ledger = state.ledgers.setdefault(entry.task, single_task_ledger(entry.task))
    ledger.grant_range(entry.lease, RecordRange(*entry.work), entry.worker)
    state.lease_counter = entry.lease & _LEASE_COUNTER_MASK


def _apply_progress(state: JobState, entry: LeaseProgressed) -> None:
    lease_place = state.find_lease(entry.lease)
    if lease_place:
        _count_reported_fields(state, entry, *lease_place)
        state.ledgers[lease_place[0]].record_progress(entry.lease, entry.through)


def _apply_done(state: JobState, entry: LeaseCompleted) -> None:
    lease_place = state.find_lease(entry.lease)
    if not lease_place:
        return
    kind = lease_place[0]
    _count_reported_fields(state, entry, *lease_place)
    # After the count, which needs the open lease.
    state.ledgers[kind].finish_lease(entry.lease)
    if kind == TRAINING:
        _close_revoked_lease(state, entry.lease)
    if kind == EVALUATION and state.evaluation:
        state.evaluation.states = evaluation.merge_metric_states(state.evaluation.states, entry.result)
    if kind == EXPORT:
        state.counters.exported, state.counters.loading = parse_export(entry.result)
    if kind == BEST_MODEL:
        state.ledgers.pop(BEST_MODEL)
        state.callbacks = state.callbacks.mark_written(entry.result["place"], entry.result["cut"])
    if kind == MODEL_FILE:
        state.ledgers.pop(MODEL_FILE)
        state.model_files = state.model_files.mark_written(dict(entry.result["written"]))


def _count_reported_fields(state: JobState, entry: LeaseProgressed | LeaseCompleted, kind: str, lease: Lease) -> None:
    state.counters.updates_skipped += entry.updates_skipped or 0
    if entry.skipped:
        state.counters.skipped += entry.skipped
        one_pass = f"{kind} {lease.record_range.epoch}"
        state.counters.corrupt[one_pass] = state.counters.corrupt.get(one_pass, 0) + entry.skipped
    if entry.loss is not None:
        state.counters.loss = entry.loss


def _apply_revoking(state: JobState, entry: RevocationStarted) -> None:
    revocation = LeaseRevocation(entry.worker, entry.leases, entry.reason, entry.in_flight, entry.crashed)
    if revocation.mark_leases(state.training_ledger.leases if state.training_ledger else {}):
        state.revocations.append(revocation)


def _apply_returned(state: JobState, entry: LeaseReturned) -> None:
    number = entry.lease
    found = state.find_lease(number)
    if not found:
        return
    state.ledgers[found[0]].return_lease(number, entry.through, entry.quarantine or 0)
    update_accounting.add_repeated_steps(state.pods, entry.extra or {})
    state.counters.repeated += entry.repeated
    state.counters.partial += entry.partial
    if found[0] == TRAINING:
        state.revoked_leases.add(number)
        # PS forget leases below the oldest open one, so they need not be named to them any more.
        oldest = state.oldest_training_lease()
        state.revoked_leases = {other for other in state.revoked_leases if other >= oldest}
        _close_revoked_lease(state, number)


def _close_revoked_lease(state: JobState, number: int) -> None:
    """Remove a closed lease from its revocation, which ends with its last lease."""
    for revocation in state.revocations:
        if number in revocation.leases:
            revocation.leases = tuple(other for other in revocation.leases if other != number)
            if not revocation.leases:
                state.revocations.remove(revocation)
            return


def _apply_cut(state: JobState, entry: CutAnnounced | CutTaken | CutCalledOff) -> None:
    state.cut_number = max(state.cut_number, entry.cut)
    if isinstance(entry, CutTaken):
        update_accounting.apply_balance_entry(state.pods, state.counters, entry)


def _apply_saved(state: JobState, entry: CheckpointWritten | CheckpointReplaced | BestWeightsRestored) -> None:
    state.checkpoint = SavedCheckpoint(entry.cut, entry.step, entry.version, entry.ledger)
    state.last_checkpoint = entry.step
    if state.world is not None:
        state.world.checkpoint_step = entry.step
    state.callbacks = state.callbacks.trim_history(entry.step)
    # Only evaluated weights that are in a checkpoint can be kept as the best. Under AllReduce a pin is a step.
    if state.world is None and state.evaluation is not None and state.evaluation.pin == entry.cut:
        state.evaluation.saved = True


def _apply_evaluation(state: JobState, entry: EvaluationBegun) -> None:
    plan = ShardPlan(state.validation, state.settings.task_records)
    ledger = Ledger(plan, 1, state.settings.minibatch)
    state.evaluation = PinnedEvaluation(entry.pin, entry.step, entry.final, ledger, of_copy=bool(entry.of_copy))
    is_cut_saved = state.world is None and state.checkpoint is not None and state.checkpoint.cut == entry.pin
    state.evaluation.saved = is_cut_saved
    # ``data.max_corrupt_records`` counts for each pass over the validation data.
    state.counters.corrupt.pop(f"{EVALUATION} 0", None)
    state.ledgers[EVALUATION] = ledger
    state.ledgers.pop(METRICS, None)
    state.last_evaluation = entry.step


def _apply_evaluated(state: JobState, entry: EvaluationCompleted) -> None:
    state.counters.metrics = dict(entry.metrics)
    state.evaluated_final |= entry.final
    state.evaluated_step = entry.step
    if entry.callbacks is not None:
        state.callbacks = state.callbacks.apply_evaluated_state(entry.step, entry.callbacks)
    evaluated = state.ledgers.get(EVALUATION)
    _give_up_evaluation(state)
    if state.settings.evaluate and evaluated is not None:
        # The summary counts its records.
        state.ledgers[EVALUATION] = evaluated


def _apply_evaluation_off(state: JobState, entry: EvaluationAbandoned) -> None:
    _give_up_evaluation(state)


def _forget_stop_after(state: JobState, step: int) -> None:
    """Steps after ``step`` are made again, and the callbacks see them again."""
    if state.stopped_after is not None and state.stopped_after > step:
        state.stopped_after = None


def _forget_evaluated_step(state: JobState) -> None:
    """The variables are others now, or will be: those of the same step are evaluated again."""
    state.evaluated_step = 0


def _give_up_evaluation(state: JobState) -> None:
    state.evaluation = None
    for kind in (EVALUATION, METRICS):
        state.ledgers.pop(kind, None)


def _apply_final(state: JobState, entry: FinalCutPinned) -> None:
    # Evaluation and export of an earlier final cut are void.
    state.final_pin = entry.cut
    state.evaluated_final = False
    state.best_restored = 0
    state.ledgers.pop(EXPORT, None)
    state.counters.exported = []


def _apply_holds(state: JobState, entry: ParametersHeld) -> None:
    state.pods.parameter_holders[entry.index] = entry.ps
    # The last successor has the parameters, so nothing waits for the pause any more.
    if len(state.pods.parameter_holders) == state.pods.ps_count:
        _release_paused_updates(state)


def _apply_handed_over(state: JobState, entry: ParametersHandedOver) -> None:
    # No holder any more: losing this PS now loses nothing.
    state.pods.parameter_holders.pop(entry.index, None)
    state.pods.handed_over_ps[entry.ps] = entry.index
    state.paused_cut = entry.cut


def _release_paused_updates(state: JobState) -> None:
    """Resume updates: every PS that was handed over has a successor, or its state was rolled back."""
    state.pods.handed_over_ps.clear()
    state.paused_cut = 0


def _apply_rolled_back(state: JobState, entry: ParametersRolledBack) -> None:
    # One PS of several went back. The others keep their parameters, and the ledger stays.
    if entry.ledger is None:
        fleet = state.pods
        assert entry.ps is not None
        fleet.parameter_holders.pop(entry.ps, None)
        # A successor that was lost as well may have applied updates that the checkpoint lacks.
        fleet.handed_over_ps = {uid: index for uid, index in fleet.handed_over_ps.items() if index != entry.ps}
        update_accounting.add_lost_updates(state.counters, str(entry.ps), entry.updates or 0)
    else:
        training = state.ledgers[TRAINING]
        training.restore_snapshot(entry.ledger)
        if entry.records:
            # These steps are no longer done.
            state.counters.loss = None
        # Under AllReduce a step contains a minibatch of each worker.
        step = entry.ledger.get(WORLD_STEP_KEY, training.done_steps)
        if state.last_evaluation > step:
            state.counters.metrics = {}
        state.counters.rolled_back += entry.records
        # They are read, and counted, again.
        state.counters.corrupt.clear()
        state.last_checkpoint = state.last_evaluation = step
        # Every lease is below the lowest open one now, so none has to be named to the PS.
        state.revoked_leases.clear()
        state.revocations.clear()
        state.pods.parameter_holders.clear()
        _release_paused_updates(state)
        lacking = entry.ledger.get("lacking", None if entry.cut else {})
        update_accounting.apply_full_rollback(state.pods, state.counters, lacking)
        state.callbacks = state.callbacks.roll_back_to(step)
        _forget_stop_after(state, step)
    # In both cases, a PS that kept a part of the pinned cuts is gone.
    _give_up_evaluation(state)
    _forget_evaluated_step(state)
    _apply_final(state, FinalCutPinned(cut=0))


def _apply_world_announced(state: JobState, entry: WorldAnnounced) -> None:
    assert state.world is not None
    world_entries.apply_announced_entry(state.world, entry)
    if entry.ledger is None:
        return
    # Nobody has a state any more, so training goes on from the newest checkpoint, or starts again.
    state.ledgers[TRAINING].restore_snapshot(entry.ledger)
    state.counters.rolled_back += entry.records or 0
    if entry.records:
        # These steps are no longer done.
        state.counters.loss = None
    if state.last_evaluation > entry.step or not entry.step:
        state.counters.metrics = {}
    # They are read, and counted, again.
    state.counters.corrupt.clear()
    state.last_evaluation = state.last_checkpoint = entry.step
    state.callbacks = state.callbacks.roll_back_to(entry.step)
    if _lacks_evaluation(state, entry.step):
        state.last_evaluation = entry.step - 1
    state.model_files = state.model_files.roll_back_to(entry.step, state.ledgers[TRAINING].open_epoch()[0])
    state.ledgers.pop(MODEL_FILE, None)
    _forget_stop_after(state, entry.step)
    _give_up_evaluation(state)
    _forget_evaluated_step(state)
    _apply_final(state, FinalCutPinned(cut=0))


def _lacks_evaluation(state: JobState, step: int) -> bool:
    """Whether the evaluation after this step, whose parameters are kept if they are the best, is not complete."""
    every = state.settings.evaluation_steps
    if not state.callbacks.keeps_best_checkpoint or not every or not step or step % every:
        return False
    return all(evaluated != step for evaluated, _ in state.callbacks.history)


def _apply_world_started(state: JobState, entry: WorldStarted) -> None:
    assert state.world is not None
    _count_skipped(state, world_entries.apply_started_entry(state.world, state.training_ledger, entry))
    state.counters.repeated += entry.repeated
    state.counters.updates_skipped += entry.updates_skipped or 0


def _apply_steps(state: JobState, entry: StepsApplied) -> None:
    assert state.world is not None
    _count_skipped(state, world_entries.apply_steps_entry(state.world, state.training_ledger, entry))
    state.counters.updates_skipped += entry.updates_skipped or 0
    if entry.loss is not None:
        state.counters.loss = entry.loss


def _count_skipped(state: JobState, skipped: Mapping[int, int]) -> None:
    """Count corrupt records of some epochs that are in the steps of the world."""
    for epoch, count in skipped.items():
        state.counters.skipped += count
        one_pass = f"{TRAINING} {epoch}"
        state.counters.corrupt[one_pass] = state.counters.corrupt.get(one_pass, 0) + count


def _apply_worker_warned(state: JobState, entry: WorkerWarned) -> None:
    state.counters.warnings.setdefault(entry.topic, []).append(entry.text)


def _apply_callbacks(state: JobState, entry: CallbacksDeclared) -> None:
    declared = callbacks_from_json(entry.declared)
    state.callbacks = state.callbacks.declare_callbacks(declared)
    if files := model_files(declared):
        state.model_files = state.model_files.declare(files, *_reached_place(state))
    else:
        state.model_files = ModelFiles()


def _reached_place(state: JobState) -> tuple[int, int]:
    """The step at which training is or will go on, and the epochs that have ended there."""
    training, saved = state.training_ledger, state.checkpoint
    if training is None or not training.plan.records:
        return 0, 0
    if state.step or saved is None:
        return state.step, training.open_epoch()[0]
    at_checkpoint = training.empty_copy()
    at_checkpoint.restore_snapshot(saved.ledger)
    return saved.step, at_checkpoint.open_epoch()[0]


def _apply_stopped_by_callback(state: JobState, entry: StoppedByCallback) -> None:
    state.stopped_after = entry.step


def _apply_best_restored(state: JobState, entry: BestWeightsRestored) -> None:
    _apply_saved(state, entry)
    state.best_restored = entry.of
    state.counters.metrics = dict(entry.metrics)


def _apply_restored(state: JobState, entry: ParametersRestored) -> None:
    state.pods.restore_lease[entry.ps] = entry.born
    if entry.index is not None:
        update_accounting.apply_ps_restore(state.pods, state.counters, state.checkpoint, entry.ps, entry.index)


def _apply_worker(state: JobState, entry: WorkerChanged) -> None:
    fleet, uid = state.pods, entry.uid or ""
    fleet.next_worker_index = max(fleet.next_worker_index, entry.index + 1)
    if entry.lost:
        fleet.worker_indices.pop(uid, None)
        state.counters.workers_lost += uid not in fleet.leaving_workers
        fleet.leaving_workers.discard(uid)
    elif uid:
        fleet.worker_indices[uid] = entry.index


def _apply_dismissed(state: JobState, entry: WorkerDismissed) -> None:
    state.pods.leaving_workers.add(entry.uid)


def _apply_memory(state: JobState, entry: WorkerMemoryRaised) -> None:
    state.pods.worker_memory = MemoryRaise(entry.raised, entry.since)


def _apply_scaled(state: JobState, entry: WorkersScaled) -> None:
    state.scale_override = entry.min, entry.max


def _apply_phase(state: JobState, entry: JobPhaseChanged) -> None:
    state.phase, state.reason = entry.name, entry.reason


def _apply_resumed(state: JobState, entry: JobResumed) -> None:
    state.phase, state.reason = "Starting", "resumed"
    # These workers ended with the run and do not count as lost.
    state.pods.leaving_workers = set(state.pods.worker_indices)


def _apply_incarnation(state: JobState, entry: MasterStarted) -> None:
    # Lease numbers stay unique, because the incarnation is their upper half.
    state.incarnation, state.lease_counter = entry.number, 0
    if state.world is not None:
        state.world.incarnation = entry.number


ENTRY_HANDLERS: Mapping[type[JournalEntry], Callable[[JobState, Any], None]] = {
    DatasetEntered: _apply_dataset,
    LeaseGranted: _apply_leased,
    LeaseProgressed: _apply_progress,
    LeaseCompleted: _apply_done,
    RevocationStarted: _apply_revoking,
    LeaseReturned: _apply_returned,
    CutAnnounced: _apply_cut,
    CutTaken: _apply_cut,
    CutCalledOff: _apply_cut,
    CheckpointWritten: _apply_saved,
    CheckpointReplaced: _apply_saved,
    EvaluationBegun: _apply_evaluation,
    EvaluationCompleted: _apply_evaluated,
    EvaluationAbandoned: _apply_evaluation_off,
    FinalCutPinned: _apply_final,
    ParametersHeld: _apply_holds,
    ParametersHandedOver: _apply_handed_over,
    ParametersRolledBack: _apply_rolled_back,
    ParametersRestored: _apply_restored,
    WorldAnnounced: _apply_world_announced,
    WorldStarted: _apply_world_started,
    StepsApplied: _apply_steps,
    CallbacksDeclared: _apply_callbacks,
    StoppedByCallback: _apply_stopped_by_callback,
    BestWeightsRestored: _apply_best_restored,
    WorkerWarned: _apply_worker_warned,
    WorkerChanged: _apply_worker,
    WorkerDismissed: _apply_dismissed,
    WorkerMemoryRaised: _apply_memory,
    WorkersScaled: _apply_scaled,
    JobPhaseChanged: _apply_phase,
    JobResumed: _apply_resumed,
    MasterStarted: _apply_incarnation,
}


def apply_entry(state: JobState, entry: JournalEntry) -> None:
    """Apply a journaled decision. Never decides, and never fails on an entry that ``handle`` produced."""
    ENTRY_HANDLERS[type(entry)](state, entry)


def record_entry(state: JobState, entry: JournalEntry) -> None:
    """Change the ledger: the entry is journaled and applied at once."""
    # Applied before it is on disk. What follows from it waits for the disk in the shell.
    state.pending_commands.append(RecordEntry(entry))
    apply_entry(state, entry)


def end_job(state: JobState, phase: str, reason: str, detail: str = "", kind: str = "job") -> None:
    """End the job; later events have no effect."""
    # Several parts may find a reason while they handle one event. The first one counts.
    if not state.has_ended:
        record_entry(state, JobPhaseChanged(name=phase, reason=reason))
        # What is reported from now on is about the time after the end.
        state.last_failure = None
        state.add_commands(EndJob(phase, reason, detail, kind))
