"""What a worker that asks gets, and what its progress and reports mean."""

from __future__ import annotations

from typing import Any

from edl.core.cluster import Role
from edl.core.cuts import Stage
from edl.core.events import (
    Acknowledged,
    Command,
    Granted,
    LeaseWanted,
    Progressed,
    Steps,
    StopWork,
    TaskReported,
    Unpin,
    WaitForWork,
)
from edl.core.leases import Holder
from edl.core.state import DESCRIBE, EVALUATION, EXPORT, METRICS, PREDICTION, TRAINING, State
from edl.core.tasks import Work

# What holds others up comes first.
_ORDER = (DESCRIBE, METRICS, EXPORT, EVALUATION, PREDICTION, TRAINING)


def wanted(state: State, event: LeaseWanted, now: float) -> None:
    """Answer a worker that asks for work."""
    state.do(_answer(state, event.worker, now))


def _answer(state: State, worker: str, now: float) -> Command:
    if state.ended:
        return StopWork(f"the job is {state.phase.lower()}")
    if not state.synced:
        return WaitForWork("the master has just started and looks who is there")
    if not state.fleet.is_live(worker):
        return StopWork("the cluster says that this pod has ended")
    heard(state, worker, now)
    for kind in _ORDER:
        work = _next(state, kind)
        if work is not None:
            return _grant(state, worker, kind, work, now)
    return WaitForWork(idle_reason(state))


def _next(state: State, kind: str) -> Work | None:
    ledger = state.ledgers.get(kind)
    if ledger is None:
        return None
    if kind == TRAINING:
        return ledger.next(budget(state)) if serving(state) else None
    if kind in (EVALUATION, EXPORT) and not state.fleet.ps_ready():
        return None
    return ledger.next()


def budget(state: State) -> int | None:
    """Steps that may still be handed out under ``max_steps``; None without a limit."""
    limit, training = state.settings.max_steps, state.training
    if limit is None or training is None:
        return None
    return limit - training.done_steps - training.outstanding_steps()


def serving(state: State) -> bool:
    """Whether training work is handed out: all PS are there, and the state to fall back to is in a cut."""
    first = state.cut is not None and state.checkpoint is None and state.cut.stage is not Stage.SAVING
    return state.fleet.ps_ready() and state.cut_number > 0 and not first


def idle_reason(state: State) -> str:
    """Why there is no work now, for people."""
    if not state.fleet.ps_ready():
        return "waiting for the parameter servers"
    if not state.described:
        return "waiting for the description of the data set"
    if state.training is not None and not serving(state):
        return "waiting for the first checkpoint"
    return "all that is left is in the hands of other workers"


def _grant(state: State, worker: str, kind: str, work: Work, now: float) -> Granted:
    number = state.next_number()
    ledger = state.ledgers[kind]
    row = [work.epoch, work.source, work.start, work.end]
    entry = {
        "kind": "leased",
        "lease": number,
        "task": kind,
        "work": row,
        "minibatch": ledger.minibatch,
        "worker": worker,
    }
    state.record(entry)
    state.holders[worker].stepped[number] = now
    pin, step, payload = _extras(state, kind)
    return Granted(number, kind, work, ledger.minibatch, state.patience.silence, pin, step, payload)


def _extras(state: State, kind: str) -> tuple[int, int, Any]:
    at = state.round
    if kind in (EVALUATION, METRICS) and at is not None:
        return at.pin, at.step, at.states if kind == METRICS else None
    if kind == EXPORT:
        return state.final_pin, state.step, None
    return 0, state.step, None


# ------------------------------------------------------------------------------------------------ hearing of workers


def heard(state: State, worker: str, now: float) -> None:
    """A worker spoke."""
    holder = state.holders.get(worker)
    if holder is None:
        state.holders[worker] = Holder(now)
        return
    if holder.stepped:
        state.patience.heard(now - holder.heard)
    holder.heard = now


def progressed(state: State, event: Progressed, now: float) -> None:
    """Enter a worker's progress; answer which of its leases are not its own any more."""
    heard(state, event.worker, now)
    acknowledge_cut(state, event.worker, event.known_cut)
    lost = tuple(steps.lease for steps in event.steps if not _owns(state, event.worker, steps.lease))
    for steps in event.steps:
        if steps.lease not in lost:
            advance_lease(state, event.worker, steps, now)
    state.do(Acknowledged(lost))


def _owns(state: State, worker: str, lease: int) -> bool:
    found = state.find(lease)
    return found is not None and found[1].worker == worker and not found[1].revoking


def advance_lease(state: State, worker: str, steps: Steps, now: float) -> None:
    """Enter steps of a lease that the worker holds."""
    found = state.find(steps.lease)
    assert found is not None
    made = steps.through - found[1].through
    if made <= 0 and not steps.skipped:
        return
    _worked(state, worker, steps.lease, made, now)
    state.record({"kind": "progress", "lease": steps.lease, "through": steps.through, **_told(steps)})


def _told(steps: Steps) -> dict[str, Any]:
    told: dict[str, Any] = {}
    if steps.loss_steps:
        told["loss"] = steps.loss_sum / steps.loss_steps
    if steps.skipped:
        told["skipped"] = steps.skipped
    return told


def _worked(state: State, worker: str, lease: int, made: int, now: float) -> None:
    holder = state.holders.setdefault(worker, Holder(now))
    if made > 0:
        state.patience.stepped((now - holder.stepped.get(lease, now)) / made)
        holder.stepped[lease] = now
    state.fleet.worked(Role.WORKER)
    state.fleet.worked(Role.PS)


def acknowledge_cut(state: State, worker: str, known: int) -> None:
    """A worker has no push stamped below ``known`` in flight."""
    if state.cut is not None:
        state.cut.acknowledged(worker, known)


def closed(state: State, worker: str, lease: int, now: float) -> None:
    """A lease is not the worker's any more; the one after it is its current one from now on."""
    holder = state.holders.get(worker)
    if holder is None:
        return
    holder.stepped.pop(lease, None)
    if holder.stepped:
        holder.stepped[min(holder.stepped)] = now
    training = state.training
    if state.cut is not None and not (training and any(x.worker == worker for x in training.leases.values())):
        state.cut.let_go(worker)


def reported(state: State, event: TaskReported, now: float) -> None:
    """Enter the end of a task, if it is the worker's to report."""
    heard(state, event.worker, now)
    acknowledge_cut(state, event.worker, event.known_cut)
    if not _owns(state, event.worker, event.lease):
        state.do(Acknowledged((event.lease,)))
        return
    found = state.find(event.lease)
    assert found is not None
    kind, lease = found
    if kind == TRAINING:
        steps = event.last or Steps(event.lease, lease.steps)
        if steps.through < lease.steps:
            raise ValueError(f"lease {event.lease} was reported done after {steps.through} of {lease.steps} steps")
        _worked(state, event.worker, event.lease, lease.steps - lease.through, now)
        state.record({"kind": "done", "lease": event.lease, **_told(steps)})
    else:
        _result(state, kind, event)
    closed(state, event.worker, event.lease, now)
    state.do(Acknowledged())


def _result(state: State, kind: str, event: TaskReported) -> None:
    state.fleet.worked(Role.WORKER)
    skipped = _told(event.last) if event.last else {}
    state.record({"kind": "done", "lease": event.lease, "result": event.result, **skipped})
    if kind == DESCRIBE:
        state.record({"kind": "dataset", **event.result})
    elif kind == METRICS and state.round is not None:
        at = state.round
        state.record({"kind": "evaluated", "metrics": event.result, "step": at.step, "pin": at.pin, "final": at.final})
        state.tell("evaluation_ended", step=at.step, metrics=event.result)
        if not at.final:
            unpin(state, at.pin)
    elif kind == EXPORT:
        for path in event.result:
            state.tell("exported", path=path)


def unpin(state: State, pin: int) -> None:
    """Nobody reads the cut any more."""
    for uid, kept in state.pins.items():
        state.pins[uid] = kept - {pin}
    state.do(Unpin(pin))
