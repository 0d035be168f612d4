"""What each journal entry makes true. The table of entries is in docs/design/0002-record-accounting.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from edl.core.callback_decisions import from_json
from edl.core.evaluation import Round
from edl.core.ledger import Lease, Ledger, Work
from edl.core.oom_policy import Memory
from edl.core.revocation_settlement import Revocation
from edl.core.saved_checkpoint import Checkpoint
from edl.core.shards import Plan, Source
from edl.core.shuffle import Order
from edl.core.task_kinds import BEST, DESCRIBE, EVALUATION, EXPORT, METRICS, PREDICTION, TRAINING, shuffled, unit
from edl.core.task_results import exported

if TYPE_CHECKING:
    from edl.core.state import State

_COUNTER = (1 << 32) - 1


def _dataset(state: State, entry: DatasetEntered) -> None:
    s = state.settings
    state.described = True
    state.ledgers.pop(DESCRIBE, None)
    for kind, rows, epochs, seed in (
        (TRAINING, entry.training, s.epochs, s.seed),
        (PREDICTION, entry.prediction, 1, None),
    ):
        sources = _filled(rows)
        if sources and (kind == PREDICTION) == s.predict:  # a worker describes whatever the job names
            state.ledgers[kind] = Ledger(Plan(sources, s.task_records, seed), epochs, s.minibatch)
    # Journals from before there was an order have ranges of files.
    if entry.order is not None and entry.training is not None and TRAINING in state.ledgers:
        state.order = Order.from_json(entry.training, entry.order)
        state.ledgers[TRAINING] = shuffled(state.order, s.epochs, s.minibatch, s.task_records)
    state.validation = _filled(entry.validation)


def _filled(rows: Sources | None) -> tuple[Source, ...]:
    return tuple(Source(name, records) for name, records in rows or () if records)


def _leased(state: State, entry: LeaseGranted) -> None:
    ledger = state.ledgers.setdefault(entry.task, unit(entry.task))
    ledger.lease(entry.lease, Work(*entry.work), entry.worker)
    state.lease_counter = entry.lease & _COUNTER


def _progress(state: State, entry: LeaseProgressed) -> None:
    found = state.find(entry.lease)
    if found:
        _told(state, entry, *found)
        state.ledgers[found[0]].progress(entry.lease, entry.through)


def _done(state: State, entry: LeaseCompleted) -> None:
    found = state.find(entry.lease)
    if not found:
        return
    kind = found[0]
    _told(state, entry, *found)
    state.ledgers[kind].done(entry.lease)
    if kind == TRAINING:
        _settled(state, entry.lease)
    if kind == EVALUATION and state.round:
        state.round.states = evaluation.add(state.round.states, entry.result)
    if kind == EXPORT:
        state.counters.exported, state.counters.loading = exported(entry.result)
    if kind == BEST:
        state.ledgers.pop(BEST)
        state.callbacks = state.callbacks.written(entry.result["place"], entry.result["cut"])


def _told(state: State, entry: LeaseProgressed | LeaseCompleted, kind: str, lease: Lease) -> None:
    if entry.skipped:
        state.counters.skipped += entry.skipped
        one_pass = f"{kind} {lease.work.epoch}"
        state.counters.corrupt[one_pass] = state.counters.corrupt.get(one_pass, 0) + entry.skipped
    if entry.loss is not None:
        state.counters.loss = entry.loss


def _revoking(state: State, entry: RevocationStarted) -> None:
    revocation = Revocation(entry.worker, entry.leases, entry.reason, entry.in_flight, entry.crashed)
    if revocation.begin(state.training.leases if state.training else {}):
        state.revocations.append(revocation)


def _returned(state: State, entry: LeaseReturned) -> None:
    number = entry.lease
    found = state.find(number)
    if not found:
        return
    state.ledgers[found[0]].give_back(number, entry.through, entry.quarantine or 0)
    update_accounting.leased_again(state, entry.extra or {})
    state.counters.repeated += entry.repeated
    state.counters.partial += entry.partial
    if found[0] == TRAINING:
        state.revoked.add(number)
        oldest = state.oldest()
        state.revoked = {other for other in state.revoked if other >= oldest}
        _settled(state, number)


def _settled(state: State, number: int) -> None:
    """A lease is closed; with its last one a revocation is over. A thousand may be on their way at once."""
    for revocation in state.revocations:
        if number in revocation.leases:
            revocation.leases = tuple(other for other in revocation.leases if other != number)
            if not revocation.leases:
                state.revocations.remove(revocation)
            return


def _cut(state: State, entry: CutAnnounced | CutTaken | CutCalledOff) -> None:
    state.cut_number = max(state.cut_number, entry.cut)
    if isinstance(entry, CutTaken):
        update_accounting.enter(state, entry)


def _saved(state: State, entry: CheckpointWritten | CheckpointReplaced | BestWeightsRestored) -> None:
    state.checkpoint = Checkpoint(entry.cut, entry.step, entry.version, entry.ledger)
    state.last_checkpoint = entry.step
    state.callbacks = state.callbacks.forget_before(entry.step)
    if state.round is not None and state.round.pin == entry.cut:
        state.round.saved = True


def _evaluation(state: State, entry: EvaluationBegun) -> None:
    plan = Plan(state.validation, state.settings.task_records)
    ledger = Ledger(plan, 1, state.settings.minibatch)
    state.round = Round(entry.pin, entry.step, entry.final, ledger)
    state.round.saved = state.checkpoint is not None and state.checkpoint.cut == entry.pin
    state.counters.corrupt.pop(f"{EVALUATION} 0", None)
    state.ledgers[EVALUATION] = ledger
    state.ledgers.pop(METRICS, None)
    state.last_evaluation = entry.step


def _evaluated(state: State, entry: EvaluationCompleted) -> None:
    state.counters.metrics = dict(entry.metrics)
    state.evaluated_final |= entry.final
    if entry.callbacks is not None:
        state.callbacks = state.callbacks.entered(entry.step, entry.callbacks)
    _give_up_evaluation(state)


def _evaluation_off(state: State, entry: EvaluationAbandoned) -> None:
    _give_up_evaluation(state)


def _give_up_evaluation(state: State) -> None:
    state.round = None
    for kind in (EVALUATION, METRICS):
        state.ledgers.pop(kind, None)


def _final(state: State, entry: FinalCutPinned) -> None:
    state.final_pin = entry.cut
    state.evaluated_final = False
    state.best_restored = 0
    state.ledgers.pop(EXPORT, None)
    state.counters.exported = []


def _holds(state: State, entry: ParametersHeld) -> None:
    state.fleet.holding[entry.index] = entry.ps
    if len(state.fleet.holding) == state.fleet.ps:
        _released(state)


def _handed_over(state: State, entry: ParametersHandedOver) -> None:
    state.fleet.holding.pop(entry.index, None)
    state.fleet.handed_over[entry.ps] = entry.index
    state.kept_cut = entry.cut


def _released(state: State) -> None:
    """Every PS that was handed over has a successor, or what it had went back."""
    state.fleet.handed_over.clear()
    state.kept_cut = 0


def _rolled_back(state: State, entry: ParametersRolledBack) -> None:
    if entry.ledger is None:
        fleet = state.fleet
        assert entry.ps is not None
        fleet.holding.pop(entry.ps, None)
        # A successor that is lost, too, has perhaps applied what the checkpoint lacks.
        fleet.handed_over = {uid: index for uid, index in fleet.handed_over.items() if index != entry.ps}
        update_accounting.lost(state, str(entry.ps), entry.updates or 0)
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
        state.fleet.holding.clear()
        _released(state)
        update_accounting.went_back(state, entry.ledger.get("lacking", None if entry.cut else {}))
        state.callbacks = state.callbacks.back_to(training.done_steps)
    _give_up_evaluation(state)
    _final(state, FinalCutPinned(cut=0))


def _callbacks(state: State, entry: CallbacksDeclared) -> None:
    state.callbacks = state.callbacks.declare(from_json(entry.declared))


def _best_restored(state: State, entry: BestWeightsRestored) -> None:
    _saved(state, entry)
    state.best_restored = entry.of
    state.counters.metrics = dict(entry.metrics)


def _restored(state: State, entry: ParametersRestored) -> None:
    state.fleet.born[entry.ps] = entry.born
    if entry.index is not None:
        update_accounting.restored(state, entry.ps, entry.index)


def _worker(state: State, entry: WorkerChanged) -> None:
    fleet, uid = state.fleet, entry.uid or ""
    fleet.next_worker = max(fleet.next_worker, entry.index + 1)
    if entry.lost:
        fleet.workers.pop(uid, None)
        state.counters.workers_lost += uid not in fleet.dismissed
        fleet.dismissed.discard(uid)
    elif uid:
        fleet.workers[uid] = entry.index


def _dismissed(state: State, entry: WorkerDismissed) -> None:
    state.fleet.dismissed.add(entry.uid)


def _memory(state: State, entry: WorkerMemoryRaised) -> None:
    state.fleet.memory = Memory(entry.raised, entry.since)


def _scaled(state: State, entry: WorkersScaled) -> None:
    state.scaled = entry.min, entry.max


def _phase(state: State, entry: JobPhaseChanged) -> None:
    state.phase, state.reason = entry.name, entry.reason


def _resumed(state: State, entry: JobResumed) -> None:
    state.phase, state.reason = "Starting", "resumed"
    state.fleet.dismissed = set(state.fleet.workers)


def _incarnation(state: State, entry: MasterStarted) -> None:
    state.incarnation, state.lease_counter = entry.number, 0


APPLY: Mapping[type[JournalEntry], Callable[[State, Any], None]] = {
    DatasetEntered: _dataset,
    LeaseGranted: _leased,
    LeaseProgressed: _progress,
    LeaseCompleted: _done,
    RevocationStarted: _revoking,
    LeaseReturned: _returned,
    CutAnnounced: _cut,
    CutTaken: _cut,
    CutCalledOff: _cut,
    CheckpointWritten: _saved,
    CheckpointReplaced: _saved,
    EvaluationBegun: _evaluation,
    EvaluationCompleted: _evaluated,
    EvaluationAbandoned: _evaluation_off,
    FinalCutPinned: _final,
    ParametersHeld: _holds,
    ParametersHandedOver: _handed_over,
    ParametersRolledBack: _rolled_back,
    ParametersRestored: _restored,
    CallbacksDeclared: _callbacks,
    BestWeightsRestored: _best_restored,
    WorkerChanged: _worker,
    WorkerDismissed: _dismissed,
    WorkerMemoryRaised: _memory,
    WorkersScaled: _scaled,
    JobPhaseChanged: _phase,
    JobResumed: _resumed,
    MasterStarted: _incarnation,
}
