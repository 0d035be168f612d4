"""What follows when a pod or a lease is lost."""

from __future__ import annotations

from collections.abc import Sequence

from edl.core import snapshots
from edl.core.cluster import PodSeen, Role
from edl.core.events import (
    Acknowledged,
    AttachPs,
    DeletePod,
    PsAttached,
    PsRefused,
    PsSilent,
    Revoked,
    RevokeLeases,
    StartRefused,
    WorkerFailed,
    WorkerLeft,
)
from edl.core.fleet import Pod
from edl.core.grants import advance_lease, closed, heard
from edl.core.leases import Holder
from edl.core.pods import TERMINAL
from edl.core.pods import State as PodState
from edl.core.revocations import Revocation, Settlement, settle
from edl.core.state import TRAINING, State
from edl.core.tasks import Ledger, Work

CRASHES_OF_A_RANGE = 3


def pod_changed(state: State, what: PodSeen, now: float) -> None:
    """The cluster says something about a pod."""
    pod, before = state.fleet.see(what)
    if pod.live and pod.state is not before and pod.state is PodState.RUNNING:
        state.tell("role_started", role=pod.role.value, index=pod.index, pid=pod.pid, uid=pod.uid)
        if pod.role is Role.WORKER:
            state.record({"kind": "worker", "index": pod.index})
    if pod.live or before in TERMINAL:
        return
    # A master that comes back hears of ended pods first; from half a list nothing follows: see ``synced``.
    if state.synced:
        _ended(state, pod, now)


def _ended(state: State, pod: Pod, now: float) -> None:
    reason = pod.reason or pod.state.value
    state.tell(
        "role_ended",
        role=pod.role.value,
        index=pod.index,
        pid=pod.pid,
        uid=pod.uid,
        reason=reason,
        exit_code=pod.exit_code,
    )
    if state.ended:
        return
    on, why = state.fleet.ended(pod, now)
    if pod.role is Role.WORKER:
        state.record({"kind": "worker", "index": pod.index, "lost": 1})
        _worker_lost(state, pod, reason, now)
    else:
        _ps_lost(state, pod, reason, now)
    if not on:
        message, detail = state.failure or (f"the last {pod.role}'s log says why", "")
        state.end("Failed", f"{pod.role}s {why}: {message}", detail)


def synced(state: State, now: float) -> None:
    """All pods that exist have been seen: holders of leases that nobody saw are gone.

    Of the pods that had ended before, the master before this one has dealt with all but those that still hold leases.
    """
    state.synced = True
    state.fleet.asked.clear()
    state.revocations = []  # made anew: not all PS were known when these asked
    training = state.training
    for ledger in state.ledgers.values():
        for number, lease in list(ledger.leases.items()):
            state.holders.setdefault(lease.worker, Holder(now)).stepped[number] = now
            if lease.revoking and ledger is training:
                _revoke(state, lease.worker, [number], lease.revoking, in_flight=True, crashed=False)
    _parameters_left(state)
    for worker in [w for w, h in state.holders.items() if h.stepped and not state.fleet.is_live(w)]:
        pod = state.fleet.pods.get(worker)
        if pod is not None and state.leases_of(worker):
            _ended(state, pod, now)
        take_back(state, worker, "its pod was gone when the master came back", now)


def _parameters_left(state: State) -> None:
    """What was lost while no master was there: all parameters, or those of some PS."""
    if state.training is None or not state.cut_number or state.ended:
        return
    there = {ps.index for ps in state.fleet.live(Role.PS)}
    if not there:
        roll_back(state, "no parameter server was left when the master came back")
        return
    for index in range(state.settings.ps):
        if index not in there:
            _part_back(state, index, f"ps-{index} was gone when the master came back")


# ------------------------------------------------------------------------------------------------ workers


def _worker_lost(state: State, pod: Pod, reason: str, now: float) -> None:
    crashed = pod.state is PodState.CRASHED
    take_back(state, pod.uid, f"worker-{pod.index}: {reason}", now, crashed=crashed)
    if state.cut is not None and not _holds_training(state, pod.uid):
        state.cut.let_go(pod.uid)


def left(state: State, event: WorkerLeft, now: float) -> None:
    """A worker that was told to go says how far it got; nothing of it is in flight."""
    held = {lease.number for _, lease in state.leases_of(event.worker)}
    for steps in event.steps:
        if steps.lease in held:
            advance_lease(state, event.worker, steps, now)
    take_back(state, event.worker, event.reason, now, in_flight=False)
    state.do(Acknowledged())


def failed(state: State, event: WorkerFailed, now: float) -> None:
    """A worker says that it cannot go on."""
    state.failure = (event.message, event.detail)
    if event.kind == "crash":
        heard(state, event.worker, now)
        state.do(Acknowledged())
        return
    state.do(Acknowledged(fatal=True))
    state.end("Failed", event.message, event.detail, event.kind)


def expire(state: State, now: float) -> None:
    """Take back the leases of workers that were silent or stuck for too long."""
    for worker, holder in list(state.holders.items()):
        reasons = holder.expired(now, state.patience)
        for number in reasons:
            if state.find(number) is None:
                holder.stepped.pop(number, None)
        numbers = [number for number in reasons if number in holder.stepped]
        if numbers:
            take_back(state, worker, reasons[numbers[0]], now, only=numbers)


def take_back(
    state: State,
    worker: str,
    reason: str,
    now: float,
    *,
    in_flight: bool = True,
    crashed: bool = False,
    only: Sequence[int] | None = None,
) -> None:
    """Take a worker's leases back: at once those that touch no parameters, by way of the PS those that do."""
    training = []
    for kind, lease in reversed(state.leases_of(worker)):
        if only is not None and lease.number not in only:
            continue
        if kind == TRAINING:
            training.append(lease.number)
        else:
            state.record({"kind": "returned", "lease": lease.number, "through": 0, "partial": 0, "repeated": 0})
            state.tell("records_returned", **_where(lease.work), worker=worker, reason=reason, task=kind)
        closed(state, worker, lease.number, now)
    if training:
        state.record({"kind": "revoking", "leases": sorted(training), "reason": reason})
        for number in sorted(training):
            where = _where(state.ledgers[TRAINING].leases[number].work)
            state.tell("lease_revoked", **where, worker=worker, lease=number, reason=reason)
        _revoke(state, worker, training, reason, in_flight=in_flight, crashed=crashed)


def _where(work: Work) -> dict[str, int | str]:
    return {"epoch": work.epoch, "source": work.source, "start": work.start, "end": work.end}


def _revoke(state: State, worker: str, leases: Sequence[int], reason: str, *, in_flight: bool, crashed: bool) -> None:
    asked = {ps.uid for ps in state.fleet.live(Role.PS)}
    revocation = Revocation(worker, tuple(sorted(leases)), reason, in_flight, crashed, asked)
    state.revocations.append(revocation)
    for uid in sorted(asked):
        if state.fleet.pods[uid].attached:
            state.do(RevokeLeases(uid, revocation.leases, state.floor()))


def revoked(state: State, event: Revoked, now: float) -> None:
    """A PS says how far it got with revoked leases."""
    for revocation in state.revocations:
        revocation.answered(event.ps, event.applied)


def settle_revocations(state: State, now: float) -> None:
    """Return what nobody is waited for any more to the head of the queue."""
    if not state.synced:
        return
    done = [x for x in state.revocations if not x.waiting and not state.ended]
    state.revocations = [x for x in state.revocations if x.waiting]
    for revocation in done:
        training = state.ledgers[TRAINING]
        settlements = settle(revocation, training.leases, state.fleet.born)
        quarantine = _crashing(state, revocation, settlements)
        for s in reversed(settlements):
            _return(state, revocation, s, quarantine.get(s.lease, 0))
        if state.cut is not None and not _holds_training(state, revocation.worker):
            state.cut.let_go(revocation.worker)


def _return(state: State, revocation: Revocation, s: Settlement, quarantine: int) -> None:
    lease = state.ledgers[TRAINING].leases[s.lease]
    rest = lease.work.split(lease.position(s.through))[1]
    entry = {"kind": "returned", "lease": s.lease, "through": s.through, "partial": s.partial, "repeated": s.repeated}
    state.record({**entry, "quarantine": quarantine} if quarantine else entry)
    if rest.records:
        told = _where(rest)
        state.tell("records_returned", **told, worker=revocation.worker, reason=revocation.reason, repeated=s.repeated)


def _crashing(state: State, revocation: Revocation, settlements: Sequence[Settlement]) -> dict[int, int]:
    """Count a crash against the minibatch it happened in; how many records of which lease are to be put aside."""
    if not revocation.crashed:
        return {}
    for s in settlements:
        lease = state.ledgers[TRAINING].leases[s.lease]
        if s.through == lease.steps:
            continue
        start, end = lease.position(s.through), lease.position(s.through + 1)
        work = Work(lease.work.epoch, lease.work.source, start, end)
        count = state.range_crashes[work] = state.range_crashes.get(work, 0) + 1
        if count < CRASHES_OF_A_RANGE:
            return {}
        what = f"records {start} to {end} of {work.source} made workers crash {count} times"
        if not state.settings.skip_crashing:
            message, detail = state.failure or ("the workers' logs say why", "")
            state.end("Failed", f"{what}: {message}", detail)
            return {}
        state.tell("quarantined", **_where(work), reason=what)
        return {s.lease: work.records}
    return {}


def _holds_training(state: State, worker: str) -> bool:
    training = state.training
    return training is not None and any(lease.worker == worker for lease in training.leases.values())


# ------------------------------------------------------------------------------------------------ parameter servers


def ps_registered(state: State, uid: str, now: float) -> None:
    """A PS says where it listens: make it listen to this incarnation of the master."""
    known = state.fleet.pods.get(uid)
    if known is not None and (known.attached or not known.live):
        return
    _attach(state, uid, None)


def _attach(state: State, uid: str, restore: int | None) -> None:
    training = state.training
    leases = training.leases if training else {}
    revoking = {n for n, lease in leases.items() if lease.revoking} | {n for n in state.revoked if n >= state.floor()}
    live = tuple(n for n in leases if n not in revoking)
    state.do(AttachPs(uid, state.floor(), tuple(sorted(revoking)), live, passed_cut(state), restore))


def passed_cut(state: State) -> int:
    """Pushes stamped up to this cut need not wait for it."""
    return state.cut_number - 1 if state.cut is not None and state.cut.awaited else state.cut_number


def ps_attached(state: State, event: PsAttached, now: float) -> None:
    """A PS listens. One that holds nothing though there is a checkpoint is told to load it first."""
    pod = state.fleet.pods.get(event.uid)
    if pod is None or not pod.live:
        return
    if not event.initialized and state.checkpoint is not None:
        state.record({"kind": "restored", "ps": event.uid, "born": state.next_number()})
        _attach(state, event.uid, state.checkpoint.cut)
        return
    pod.attached, pod.initialized, pod.version = True, event.initialized, event.version
    state.pins[event.uid] = frozenset(event.pins)
    for revocation in state.revocations:
        if event.uid in revocation.waiting:
            state.do(RevokeLeases(event.uid, revocation.leases, state.floor()))


def ps_silent(state: State, event: PsSilent, now: float) -> None:
    """A PS lives and does not answer: it is made to go, and what follows is what follows a lost PS."""
    pod = state.fleet.pods.get(event.uid)
    if pod is not None and pod.live and not state.ended:
        state.tell("warning", message=f"ps-{pod.index} has not answered for {event.seconds:.0f} s: it is replaced")
        state.do(DeletePod(event.uid, 0.0))


def ps_refused(state: State, event: PsRefused, now: float) -> None:
    """A PS refuses: a cut can be tried again, for a restore or a revocation nothing can stand in."""
    pod = state.fleet.pods.get(event.uid)
    if pod is None or not pod.live or state.ended:
        return
    if not event.cut:
        state.end("Failed", event.message, kind="storage" if event.kind == "storage" else "refused")
    elif state.cut is not None and state.cut.number == event.cut and state.cut.awaited:
        snapshots.call_off(state, event.message, now)


def declared(state: State, now: float) -> None:
    """A worker told every PS what the variables are."""
    for ps in state.fleet.live(Role.PS):
        ps.initialized |= ps.attached


def _ps_lost(state: State, pod: Pod, reason: str, now: float) -> None:
    state.pins.pop(pod.uid, None)
    if state.cut is not None:
        snapshots.call_off(state, f"ps-{pod.index} was lost", now)
    for revocation in state.revocations:
        revocation.lost(pod.uid)
    if state.round is not None:
        state.record({"kind": "evaluation_off", "reason": f"ps-{pod.index} was lost"})
    held_state = pod.initialized or state.checkpoint is not None
    if state.training is None or not held_state:
        return
    if any(ps.initialized for ps in state.fleet.live(Role.PS)):
        _part_back(state, pod.index, f"ps-{pod.index}: {reason}")
    else:
        roll_back(state, f"ps-{pod.index}: {reason}")


def _part_back(state: State, index: int, reason: str) -> None:
    """Others survive: the slots of this PS go back to the newest checkpoint, the ledger stays."""
    cut, step = (state.checkpoint.cut, state.checkpoint.step) if state.checkpoint else (0, 0)
    updates = max(0, state.step - step)
    entry = {"kind": "rolled_back", "cut": cut, "records": 0, "ledger": None, "updates": updates, "ps": index}
    state.record({**entry, "reason": reason})
    state.tell("rolled_back", records=0, updates=updates, to_cut=cut, reason=reason)


def roll_back(state: State, reason: str) -> None:
    """No PS is left: parameters and ledger go back to the newest checkpoint, or to the start."""
    training = state.ledgers[TRAINING]
    if state.checkpoint is not None:
        cut, ledger = state.checkpoint.cut, dict(state.checkpoint.ledger)
    else:
        cut, ledger = 0, Ledger(training.plan, training.epochs, training.minibatch).snapshot()
    records = training.done_records - ledger["done_records"]
    state.revocations = []
    for holder in state.holders.values():
        for number in [n for n in holder.stepped if n in training.leases]:
            del holder.stepped[number]
    state.record({"kind": "rolled_back", "cut": cut, "records": records, "ledger": ledger, "reason": reason})
    state.tell("rolled_back", records=records, updates=0, to_cut=cut, reason=reason)


def start_refused(state: State, event: StartRefused, now: float) -> None:
    """The cluster would not start a pod."""
    state.fleet.asked.discard((event.role, event.index))
    if event.retry:
        state.fleet.not_before[event.role] = now + 1.0
        state.tell("warning", message=f"{event.role}-{event.index} was not started: {event.reason}")
    else:
        state.end("Failed", f"{event.role}-{event.index} cannot be started: {event.reason}")
