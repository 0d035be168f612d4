"""What each journal entry makes true. The table of entries is in docs/design/0002-record-accounting.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edl.core import balance, evaluation
from edl.core.callbacks import from_json
from edl.core.checkpoint import Checkpoint
from edl.core.evaluation import Round
from edl.core.kinds import BEST, DESCRIBE, EVALUATION, EXPORT, METRICS, PREDICTION, TRAINING, shuffled, unit
from edl.core.memory import Memory
from edl.core.results import exported
from edl.core.revocations import Revocation
from edl.core.shards import Plan, Source
from edl.core.shuffle import Order
from edl.core.tasks import Lease, Ledger, Work

if TYPE_CHECKING:
    from edl.core.state import State

_COUNTER = (1 << 32) - 1


def _dataset(state: State, entry: Mapping[str, Any]) -> None:
    s = state.settings
    state.described = True
    state.ledgers.pop(DESCRIBE, None)
    for kind, epochs, seed in ((TRAINING, s.epochs, s.seed), (PREDICTION, 1, None)):
        sources = _filled(entry.get(kind))
        if sources and (kind == PREDICTION) == s.predict:  # a worker describes whatever the job names
            state.ledgers[kind] = Ledger(Plan(sources, s.task_records, seed), epochs, s.minibatch)
    order = entry.get("order")  # journals from before there was one have ranges of files
    if order is not None and TRAINING in state.ledgers:
        state.order = Order.from_json(entry[TRAINING], order)
        state.ledgers[TRAINING] = shuffled(state.order, s.epochs, s.minibatch, s.task_records)
    state.validation = _filled(entry.get("validation"))


def _filled(rows: Sequence[Sequence[Any]] | None) -> tuple[Source, ...]:
    return tuple(Source(name, records) for name, records in rows or () if records)


def _leased(state: State, entry: Mapping[str, Any]) -> None:
    ledger = state.ledgers.setdefault(entry["task"], unit(entry["task"]))
    ledger.lease(entry["lease"], Work(*entry["work"]), entry["worker"])
    state.lease_counter = entry["lease"] & _COUNTER


def _progress(state: State, entry: Mapping[str, Any]) -> None:
    found = state.find(entry["lease"])
    if found:
        _told(state, entry, *found)
        state.ledgers[found[0]].progress(entry["lease"], entry["through"])


def _done(state: State, entry: Mapping[str, Any]) -> None:
    found = state.find(entry["lease"])
    if not found:
        return
    kind = found[0]
    _told(state, entry, *found)
    state.ledgers[kind].done(entry["lease"])
    if kind == TRAINING:
        _settled(state, entry["lease"])
    if kind == EVALUATION and state.round:
        state.round.states = evaluation.add(state.round.states, entry["result"])
    if kind == EXPORT:
        state.counters.exported, state.counters.loading = exported(entry["result"])
    if kind == BEST:
        state.ledgers.pop(BEST)
        state.callbacks = state.callbacks.written(entry["result"]["place"], entry["result"]["cut"])


def _told(state: State, entry: Mapping[str, Any], kind: str, lease: Lease) -> None:
    skipped = entry.get("skipped", 0)
    if skipped:
        state.counters.skipped += skipped
        one_pass = f"{kind} {lease.work.epoch}"
        state.counters.corrupt[one_pass] = state.counters.corrupt.get(one_pass, 0) + skipped
    if entry.get("loss") is not None:
        state.counters.loss = entry["loss"]


def _revoking(state: State, entry: Mapping[str, Any]) -> None:
    revocation = Revocation.of([entry[name] for name in ("worker", "leases", "reason", "in_flight", "crashed")])
    if revocation.begin(state.training.leases if state.training else {}):
        state.revocations.append(revocation)


def _returned(state: State, entry: Mapping[str, Any]) -> None:
    number = entry["lease"]
    found = state.find(number)
    if not found:
        return
    state.ledgers[found[0]].give_back(number, entry["through"], entry.get("quarantine", 0))
    balance.leased_again(state, entry.get("extra", {}))
    state.counters.repeated += entry["repeated"]
    state.counters.partial += entry["partial"]
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


def _cut(state: State, entry: Mapping[str, Any]) -> None:
    state.cut_number = max(state.cut_number, entry["cut"])
    balance.enter(state, entry)


def _saved(state: State, entry: Mapping[str, Any]) -> None:
    state.checkpoint = Checkpoint(entry["cut"], entry["step"], entry["version"], entry["ledger"])
    state.last_checkpoint = entry["step"]
    state.callbacks = state.callbacks.forget_before(entry["step"])
    if state.round is not None and state.round.pin == entry["cut"]:
        state.round.saved = True


def _evaluation(state: State, entry: Mapping[str, Any]) -> None:
    plan = Plan(state.validation, state.settings.task_records)
    ledger = Ledger(plan, 1, state.settings.minibatch)
    state.round = Round(entry["pin"], entry["step"], entry["final"], ledger)
    state.round.saved = state.checkpoint is not None and state.checkpoint.cut == entry["pin"]
    state.counters.corrupt.pop(f"{EVALUATION} 0", None)
    state.ledgers[EVALUATION] = ledger
    state.ledgers.pop(METRICS, None)
    state.last_evaluation = entry["step"]


def _evaluated(state: State, entry: Mapping[str, Any]) -> None:
    state.counters.metrics = dict(entry["metrics"])
    state.evaluated_final |= entry["final"]
    if "callbacks" in entry:
        state.callbacks = state.callbacks.entered(entry["step"], entry["callbacks"])
    _evaluation_off(state, entry)


def _evaluation_off(state: State, entry: Mapping[str, Any]) -> None:
    state.round = None
    for kind in (EVALUATION, METRICS):
        state.ledgers.pop(kind, None)


def _final(state: State, entry: Mapping[str, Any]) -> None:
    state.final_pin = entry["cut"]
    state.evaluated_final = False
    state.best_restored = 0
    state.ledgers.pop(EXPORT, None)
    state.counters.exported = []


def _holds(state: State, entry: Mapping[str, Any]) -> None:
    state.fleet.holding[entry["index"]] = entry["ps"]
    if len(state.fleet.holding) == state.fleet.ps:
        _released(state)


def _handed_over(state: State, entry: Mapping[str, Any]) -> None:
    state.fleet.holding.pop(entry["index"], None)
    state.fleet.handed_over[entry["ps"]] = entry["index"]
    state.kept_cut = entry["cut"]


def _released(state: State) -> None:
    """Every PS that was handed over has a successor, or what it had went back."""
    state.fleet.handed_over.clear()
    state.kept_cut = 0


def _rolled_back(state: State, entry: Mapping[str, Any]) -> None:
    if entry["ledger"] is None:
        fleet = state.fleet
        fleet.holding.pop(entry["ps"], None)
        # A successor that is lost, too, has perhaps applied what the checkpoint lacks.
        fleet.handed_over = {uid: index for uid, index in fleet.handed_over.items() if index != entry["ps"]}
        balance.lost(state, str(entry["ps"]), entry["updates"])
    else:
        training = state.ledgers[TRAINING]
        training.restore(entry["ledger"])
        if entry["records"]:
            state.counters.loss = None  # it is of steps that are not done any more
        if state.last_evaluation > training.done_steps:
            state.counters.metrics = {}
        state.counters.rolled_back += entry["records"]
        state.counters.corrupt.clear()  # they are read, and counted, again
        state.last_checkpoint = state.last_evaluation = training.done_steps
        state.revoked.clear()
        state.revocations.clear()
        state.fleet.holding.clear()
        _released(state)
        balance.went_back(state, entry["ledger"].get("lacking", None if entry["cut"] else {}))
        state.callbacks = state.callbacks.back_to(training.done_steps)
    _evaluation_off(state, entry)
    _final(state, {"cut": 0})


def _callbacks(state: State, entry: Mapping[str, Any]) -> None:
    state.callbacks = state.callbacks.declare(from_json(entry["declared"]))


def _best_restored(state: State, entry: Mapping[str, Any]) -> None:
    _saved(state, entry)
    state.best_restored = entry["of"]
    state.counters.metrics = dict(entry["metrics"])


def _restored(state: State, entry: Mapping[str, Any]) -> None:
    state.fleet.born[entry["ps"]] = entry["born"]
    if "index" in entry:
        balance.restored(state, entry["ps"], entry["index"])


def _worker(state: State, entry: Mapping[str, Any]) -> None:
    fleet, uid = state.fleet, entry.get("uid", "")
    fleet.next_worker = max(fleet.next_worker, entry["index"] + 1)
    if entry.get("lost"):
        fleet.workers.pop(uid, None)
        state.counters.workers_lost += uid not in fleet.dismissed
        fleet.dismissed.discard(uid)
    elif uid:
        fleet.workers[uid] = entry["index"]


def _dismissed(state: State, entry: Mapping[str, Any]) -> None:
    state.fleet.dismissed.add(entry["uid"])


def _memory(state: State, entry: Mapping[str, Any]) -> None:
    state.fleet.memory = Memory(entry["raised"], entry["since"])


def _scaled(state: State, entry: Mapping[str, Any]) -> None:
    state.scaled = entry["min"], entry["max"]


def _phase(state: State, entry: Mapping[str, Any]) -> None:
    state.phase, state.reason = entry["name"], entry["reason"]


def _resumed(state: State, entry: Mapping[str, Any]) -> None:
    state.phase, state.reason = "Starting", "resumed"
    state.fleet.dismissed = set(state.fleet.workers)


def _incarnation(state: State, entry: Mapping[str, Any]) -> None:
    state.incarnation, state.lease_counter = entry["number"], 0


APPLY: Mapping[str, Callable[[State, Mapping[str, Any]], None]] = {
    "dataset": _dataset,
    "leased": _leased,
    "progress": _progress,
    "done": _done,
    "revoking": _revoking,
    "returned": _returned,
    "cut_announced": _cut,
    "cut_taken": _cut,
    "cut_off": _cut,
    "saved": _saved,
    "checkpoint_back": _saved,
    "evaluation": _evaluation,
    "evaluated": _evaluated,
    "evaluation_off": _evaluation_off,
    "final": _final,
    "holds": _holds,
    "handed_over": _handed_over,
    "rolled_back": _rolled_back,
    "restored": _restored,
    "callbacks": _callbacks,
    "best_restored": _best_restored,
    "worker": _worker,
    "dismissed": _dismissed,
    "memory": _memory,
    "scaled": _scaled,
    "phase": _phase,
    "resumed": _resumed,
    "incarnation": _incarnation,
}
