"""What each journal entry makes true. The table of entries is in docs/design/0002-record-accounting.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
    WorkerChanged,
    WorkerDismissed,
    WorkerMemoryRaised,
    WorkersScaled,
)
from edl.core import evaluation, update_accounting
from edl.core.cuts import SavedCheckpoint
from edl.core.evaluation import CallbackState, EvaluationRound, callbacks_from_json
from edl.core.job_counters import JobCounters
from edl.core.lease_timeouts import LeaseRevocation
from edl.core.ledger import (
    BEST_MODEL,
    DESCRIBE,
    EVALUATION,
    EXPORT,
    METRICS,
    PREDICTION,
    TRAINING,
    Lease,
    Ledger,
    RecordRange,
    shuffled_ledger,
    single_task_ledger,
)
from edl.core.pod_lifecycle import MemoryRaise
from edl.core.shuffle import RecordSource, ShardPlan, ShuffleOrder
from edl.core.task_results import parse_export

if TYPE_CHECKING:
    from edl.core.state import JobState

_LEASE_COUNTER_MASK = (1 << 32) - 1


def _apply_dataset(state: JobState, entry: DatasetEntered) -> None:
    s = state.settings
    state.is_dataset_known = True
    state.ledgers.pop(DESCRIBE, None)
    for kind, rows, epochs, seed in (
        (TRAINING, entry.training, s.epochs, s.seed),
        (PREDICTION, entry.prediction, 1, None),
    ):
        sources = _nonempty_sources(rows)
        if sources and (kind == PREDICTION) == s.predict:  # a worker describes whatever the job names
            state.ledgers[kind] = Ledger(ShardPlan(sources, s.task_records, seed), epochs, s.minibatch)
    # Journals from before there was an order have ranges of files.
    if entry.order is not None and entry.training is not None and TRAINING in state.ledgers:
        state.order = ShuffleOrder.from_json(entry.training, entry.order)
        state.ledgers[TRAINING] = shuffled_ledger(state.order, s.epochs, s.minibatch, s.task_records)
    state.validation = _nonempty_sources(entry.validation)


def _nonempty_sources(rows: Sources | None) -> tuple[RecordSource, ...]:
    return tuple(RecordSource(name, records) for name, records in rows or () if records)


def _apply_leased(state: JobState, entry: LeaseGranted) -> None:
    ledger = state.ledgers.setdefault(entry.task, single_task_ledger(entry.task))
    ledger.lease(entry.lease, RecordRange(*entry.work), entry.worker)
    state.lease_counter = entry.lease & _LEASE_COUNTER_MASK


def _apply_progress(state: JobState, entry: LeaseProgressed) -> None:
    found = state.find(entry.lease)
    if found:
        _count_reported_fields(state, entry, *found)
        state.ledgers[found[0]].progress(entry.lease, entry.through)


def _apply_done(state: JobState, entry: LeaseCompleted) -> None:
    found = state.find(entry.lease)
    if not found:
        return
    kind = found[0]
    _count_reported_fields(state, entry, *found)
    state.ledgers[kind].done(entry.lease)
    if kind == TRAINING:
        _close_revoked_lease(state, entry.lease)
    if kind == EVALUATION and state.round:
        state.round.states = evaluation.merge_metric_states(state.round.states, entry.result)
    if kind == EXPORT:
        state.counters.exported, state.counters.loading = parse_export(entry.result)
    if kind == BEST_MODEL:
        state.ledgers.pop(BEST_MODEL)
        state.callbacks = state.callbacks.written(entry.result["place"], entry.result["cut"])


def _count_reported_fields(state: JobState, entry: LeaseProgressed | LeaseCompleted, kind: str, lease: Lease) -> None:
    if entry.skipped:
        state.counters.skipped += entry.skipped
        one_pass = f"{kind} {lease.work.epoch}"
        state.counters.corrupt[one_pass] = state.counters.corrupt.get(one_pass, 0) + entry.skipped
    if entry.loss is not None:
        state.counters.loss = entry.loss


def _apply_revoking(state: JobState, entry: RevocationStarted) -> None:
    revocation = LeaseRevocation(entry.worker, entry.leases, entry.reason, entry.in_flight, entry.crashed)
    if revocation.begin(state.training.leases if state.training else {}):
        state.revocations.append(revocation)


def _apply_returned(state: JobState, entry: LeaseReturned) -> None:
    number = entry.lease
    found = state.find(number)
    if not found:
        return
    state.ledgers[found[0]].give_back(number, entry.through, entry.quarantine or 0)
    update_accounting.add_repeated_steps(state, entry.extra or {})
    state.counters.repeated += entry.repeated
    state.counters.partial += entry.partial
    if found[0] == TRAINING:
        state.revoked.add(number)
        oldest = state.oldest()
        state.revoked = {other for other in state.revoked if other >= oldest}
        _close_revoked_lease(state, number)


def _close_revoked_lease(state: JobState, number: int) -> None:
    """A lease is closed; with its last one a revocation is over. A thousand may be on their way at once."""
    for revocation in state.revocations:
        if number in revocation.leases:
            revocation.leases = tuple(other for other in revocation.leases if other != number)
            if not revocation.leases:
                state.revocations.remove(revocation)
            return


def _apply_cut(state: JobState, entry: CutAnnounced | CutTaken | CutCalledOff) -> None:
    state.cut_number = max(state.cut_number, entry.cut)
    if isinstance(entry, CutTaken):
        update_accounting.apply_balance_entry(state, entry)


def _apply_saved(state: JobState, entry: CheckpointWritten | CheckpointReplaced | BestWeightsRestored) -> None:
    state.checkpoint = SavedCheckpoint(entry.cut, entry.step, entry.version, entry.ledger)
    state.last_checkpoint = entry.step
    state.callbacks = state.callbacks.trim_history(entry.step)
    if state.round is not None and state.round.pin == entry.cut:
        state.round.saved = True


def _apply_evaluation(state: JobState, entry: EvaluationBegun) -> None:
    plan = ShardPlan(state.validation, state.settings.task_records)
    ledger = Ledger(plan, 1, state.settings.minibatch)
    state.round = EvaluationRound(entry.pin, entry.step, entry.final, ledger)
    state.round.saved = state.checkpoint is not None and state.checkpoint.cut == entry.pin
    state.counters.corrupt.pop(f"{EVALUATION} 0", None)
    state.ledgers[EVALUATION] = ledger
    state.ledgers.pop(METRICS, None)
    state.last_evaluation = entry.step


def _apply_evaluated(state: JobState, entry: EvaluationCompleted) -> None:
    state.counters.metrics = dict(entry.metrics)
    state.evaluated_final |= entry.final
    if entry.callbacks is not None:
        state.callbacks = state.callbacks.entered(entry.step, entry.callbacks)
    _give_up_evaluation(state)


def _apply_evaluation_off(state: JobState, entry: EvaluationAbandoned) -> None:
    _give_up_evaluation(state)


def _give_up_evaluation(state: JobState) -> None:
    state.round = None
    for kind in (EVALUATION, METRICS):
        state.ledgers.pop(kind, None)


def _apply_final(state: JobState, entry: FinalCutPinned) -> None:
    state.final_pin = entry.cut
    state.evaluated_final = False
    state.best_restored = 0
    state.ledgers.pop(EXPORT, None)
    state.counters.exported = []


def _apply_holds(state: JobState, entry: ParametersHeld) -> None:
    state.pods.parameter_holders[entry.index] = entry.ps
    if len(state.pods.parameter_holders) == state.pods.ps:
        _release_paused_updates(state)


def _apply_handed_over(state: JobState, entry: ParametersHandedOver) -> None:
    state.pods.parameter_holders.pop(entry.index, None)
    state.pods.handed_over_ps[entry.ps] = entry.index
    state.paused_cut = entry.cut


def _release_paused_updates(state: JobState) -> None:
    """Every PS that was handed over has a successor, or what it had went back."""
    state.pods.handed_over_ps.clear()
    state.paused_cut = 0


def _apply_rolled_back(state: JobState, entry: ParametersRolledBack) -> None:
    if entry.ledger is None:
        fleet = state.pods
        assert entry.ps is not None
        fleet.parameter_holders.pop(entry.ps, None)
        # A successor that is lost, too, has perhaps applied what the checkpoint lacks.
        fleet.handed_over_ps = {uid: index for uid, index in fleet.handed_over_ps.items() if index != entry.ps}
        update_accounting.add_lost_updates(state, str(entry.ps), entry.updates or 0)
    else:
        training = state.ledgers[TRAINING]
        training.restore(entry.ledger)
        if entry.records:
            state.counters.loss = None  # it is of steps that are not done any more
        if state.last_evaluation > training.done_steps:
            state.counters.metrics = {}
        state.counters.rolled_back += entry.records
        state.counters.corrupt.clear()  # they are read, and counted, again
        state.last_checkpoint = state.last_evaluation = training.done_steps
        state.revoked.clear()
        state.revocations.clear()
        state.pods.parameter_holders.clear()
        _release_paused_updates(state)
        update_accounting.apply_full_rollback(state, entry.ledger.get("lacking", None if entry.cut else {}))
        state.callbacks = state.callbacks.roll_back_to(training.done_steps)
    _give_up_evaluation(state)
    _apply_final(state, FinalCutPinned(cut=0))


def _apply_callbacks(state: JobState, entry: CallbacksDeclared) -> None:
    state.callbacks = state.callbacks.declare(callbacks_from_json(entry.declared))


def _apply_best_restored(state: JobState, entry: BestWeightsRestored) -> None:
    _apply_saved(state, entry)
    state.best_restored = entry.of
    state.counters.metrics = dict(entry.metrics)


def _apply_restored(state: JobState, entry: ParametersRestored) -> None:
    state.pods.born[entry.ps] = entry.born
    if entry.index is not None:
        update_accounting.apply_ps_restore(state, entry.ps, entry.index)


def _apply_worker(state: JobState, entry: WorkerChanged) -> None:
    fleet, uid = state.pods, entry.uid or ""
    fleet.next_worker_index = max(fleet.next_worker_index, entry.index + 1)
    if entry.lost:
        fleet.workers.pop(uid, None)
        state.counters.workers_lost += uid not in fleet.leaving_workers
        fleet.leaving_workers.discard(uid)
    elif uid:
        fleet.workers[uid] = entry.index


def _apply_dismissed(state: JobState, entry: WorkerDismissed) -> None:
    state.pods.leaving_workers.add(entry.uid)


def _apply_memory(state: JobState, entry: WorkerMemoryRaised) -> None:
    state.pods.memory = MemoryRaise(entry.raised, entry.since)


def _apply_scaled(state: JobState, entry: WorkersScaled) -> None:
    state.scaled = entry.min, entry.max


def _apply_phase(state: JobState, entry: JobPhaseChanged) -> None:
    state.phase, state.reason = entry.name, entry.reason


def _apply_resumed(state: JobState, entry: JobResumed) -> None:
    state.phase, state.reason = "Starting", "resumed"
    state.pods.leaving_workers = set(state.pods.workers)


def _apply_incarnation(state: JobState, entry: MasterStarted) -> None:
    state.incarnation, state.lease_counter = entry.number, 0


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
    CallbacksDeclared: _apply_callbacks,
    BestWeightsRestored: _apply_best_restored,
    WorkerChanged: _apply_worker,
    WorkerDismissed: _apply_dismissed,
    WorkerMemoryRaised: _apply_memory,
    WorkersScaled: _apply_scaled,
    JobPhaseChanged: _apply_phase,
    JobResumed: _apply_resumed,
    MasterStarted: _apply_incarnation,
}


# --------------------------------------------------------------------------------------------------
# The state as one JSON object: what a journal begins anew with, instead of all entries so far.


_SNAPSHOT_FIELDS = (
    "cut_number",
    "last_evaluation",
    "last_checkpoint",
    "final_pin",
    "evaluated_final",
    "phase",
    "reason",
    "lease_counter",
    "incarnation",
)


def state_to_snapshot(state: JobState) -> dict[str, Any]:
    """All that the journal's entries so far have led to."""
    checkpoint, fleet = state.checkpoint, state.pods
    return {
        "sources": dataset_entry(state) if state.is_dataset_known else None,
        "ledgers": {k: x.snapshot() for k, x in state.ledgers.items() if k != EVALUATION},
        "round": state.round.snapshot() if state.round else None,
        "counters": {name: getattr(state.counters, name) for name in JobCounters.__slots__},
        "checkpoint": checkpoint and [checkpoint.cut, checkpoint.step, checkpoint.version, checkpoint.ledger],
        "marks": [getattr(state, name) for name in _SNAPSHOT_FIELDS],
        "fleet": [
            fleet.next_worker_index,
            dict(fleet.born),
            dict(fleet.workers),
            sorted(fleet.parameter_holders.items()),
        ],
        "dismissed": sorted(fleet.leaving_workers),
        "handed_over": [state.paused_cut, dict(fleet.handed_over_ps)],
        "memory": [fleet.memory.raise_count, fleet.memory.since],
        "scaled": list(state.scaled),
        "balance": [dict(fleet.update_offsets), sorted(fleet.measured.items())],
        "callbacks": state.callbacks.snapshot(),
        "best_restored": state.best_restored,
        "revoked": sorted(state.revoked),
        "revocations": [revocation.to_row() for revocation in state.revocations],
    }


def snapshot_cut_number(snapshot: Mapping[str, Any]) -> int:
    """The number of the last cut that a snapshot knows of."""
    return int(snapshot["marks"][_SNAPSHOT_FIELDS.index("cut_number")])


def restore_state(state: JobState, snapshot: Mapping[str, Any]) -> None:
    """Make a fresh state what ``state_to_snapshot`` described."""
    if snapshot["sources"] is not None:
        state.apply(DatasetEntered.from_fields(snapshot["sources"]))
    if snapshot["round"]:
        _restore_evaluation(state, snapshot["round"])
    for kind, ledger in snapshot["ledgers"].items():
        state.ledgers.setdefault(kind, single_task_ledger(kind)).restore(ledger)
    state.counters = JobCounters(**snapshot["counters"])
    state.checkpoint = SavedCheckpoint(*snapshot["checkpoint"]) if snapshot["checkpoint"] else None
    for name, value in zip(_SNAPSHOT_FIELDS, snapshot["marks"], strict=True):
        setattr(state, name, value)
    state.pods.next_worker_index, state.pods.born, state.pods.workers, holding = snapshot["fleet"]
    state.pods.parameter_holders = dict(holding)
    state.pods.leaving_workers = set(snapshot.get("dismissed", ()))
    state.paused_cut, handed_over = snapshot.get("handed_over", (0, {}))
    state.pods.handed_over_ps = dict(handed_over)
    state.pods.memory = MemoryRaise(*snapshot.get("memory", ()))
    offsets, measured = snapshot.get("balance", ({}, ()))
    state.pods.update_offsets, state.pods.measured = dict(offsets), dict(measured)
    if "callbacks" in snapshot:
        state.callbacks = CallbackState.restore(snapshot["callbacks"])
    state.best_restored = snapshot.get("best_restored", 0)
    least, most = snapshot.get("scaled", (None, None))
    state.scaled = least, most
    state.revoked = set(snapshot["revoked"])
    held = state.training.leases if state.training else {}
    found = [LeaseRevocation.of(row) for row in snapshot["revocations"]]
    state.revocations = [revocation for revocation in found if revocation.begin(held)]


def _restore_evaluation(state: JobState, snapshot: Mapping[str, Any]) -> None:
    state.apply(EvaluationBegun.from_fields(snapshot))
    assert state.round is not None
    state.round.ledger.restore(snapshot["ledger"])
    state.round.states = snapshot["states"]
    state.round.saved = snapshot.get("saved", False)


def dataset_entry(state: JobState) -> dict[str, Any]:
    """What a ``dataset`` entry of the journal says, as the state has it."""

    def rows(sources: Sequence[RecordSource]) -> list[list[Any]]:
        return [[source.name, source.records] for source in sources]

    found: dict[str, Any] = {
        k: rows(state.ledgers[k].plan.sources) for k in (TRAINING, PREDICTION) if k in state.ledgers
    }
    if state.order is not None:
        found |= {TRAINING: rows(state.order.sources), "order": state.order.to_json()}
    return {**found, "validation": rows(state.validation)}
