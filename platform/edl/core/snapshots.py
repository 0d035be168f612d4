"""When a cut is begun, and what follows from each answer to it.

The protocol is in docs/design/0002-record-accounting.md.
"""

from __future__ import annotations

from edl.core import cuts
from edl.core.cluster import Role
from edl.core.cuts import Stage
from edl.core.events import AnnounceCut, CheckpointSaved, ReleaseCut, SaveCheckpoint, SnapshotTaken, TakeSnapshot
from edl.core.state import State
from edl.core.tasks import Ledger

RETRY_SECONDS = 1.0
RETRY_SAVING_SECONDS = 30.0


def begin(state: State, now: float, *, checkpoint: bool, pin: bool) -> None:
    """Announce a cut."""
    assert state.training is not None
    number = state.cut_number + 1
    state.record({"kind": "cut_announced", "cut": number, "step": state.step})
    state.cut = cuts.begin(
        number,
        checkpoint=checkpoint,
        pin=pin,
        step=state.step,
        holders={lease.worker for lease in state.training.leases.values()},
        slowest_step=state.patience.step,
        now=now,
    )
    state.do(AnnounceCut(number))


def advance(state: State, now: float) -> None:
    """Take the snapshot when nobody can push below the cut any more, or call the cut off when that takes too long."""
    cut = state.cut
    if cut is None:
        return
    if cut.stage is Stage.ANNOUNCED and not cut.holders and not state.revocations:
        assert state.training is not None
        cut.stage = Stage.SNAPSHOT
        cut.parts = {ps.uid for ps in state.fleet.live(Role.PS)}
        state.frozen = state.training.snapshot()
        state.do(TakeSnapshot(cut.number, cut.checkpoint, cut.pin, state.floor()))
    elif cut.overdue(now):
        revoked = {ps for revocation in state.revocations for ps in revocation.waiting}
        waiting = (cut.holders or revoked) if cut.stage is Stage.ANNOUNCED else cut.parts
        call_off(state, f"no answer from {', '.join(sorted(waiting))} for {now - cut.began:.1f} s", now)


def call_off(state: State, reason: str, now: float, retry: float = RETRY_SECONDS) -> None:
    """Give the cut on its way up; it is tried again under another number."""
    assert state.cut is not None
    state.record({"kind": "cut_off", "cut": state.cut.number, "reason": reason})
    state.do(ReleaseCut(state.cut.number))
    state.tell("warning", message=f"cut {state.cut.number} is off: {reason}")
    state.cut, state.held_cuts = None, now + retry


def taken(state: State, event: SnapshotTaken, now: float) -> None:
    """A PS holds its part; with the last one, the cut's ledger position is complete."""
    cut = state.cut
    if cut is None or cut.number != event.cut or cut.stage is not Stage.SNAPSHOT:
        return
    cut.parts.discard(event.ps)
    cut.applied[event.ps], cut.versions[event.ps] = dict(event.applied), event.version
    if event.ps in state.fleet.pods:
        state.fleet.pods[event.ps].version = event.version
    if not cut.parts:
        _complete(state, now)


def _complete(state: State, now: float) -> None:
    cut, training = state.cut, state.training
    assert cut is not None
    assert training is not None
    agreed = cut.steps(state.fleet.born)
    if agreed.value is None:
        state.end("Failed", f"cut {cut.number} is not the same on all parameter servers: {agreed.reason}")
        return
    frozen = Ledger(training.plan, training.epochs, training.minibatch)
    frozen.restore(state.frozen)
    position = frozen.position(agreed.value)
    cut.pause, version = now - cut.began, max(cut.versions.values(), default=0)
    applied = {str(number): through for number, through in agreed.value.items()}
    entry = {"kind": "cut_taken", "cut": cut.number, "step": position["done_steps"], "version": version}
    state.record({**entry, "applied": applied, "pause": round(cut.pause, 6)})
    if cut.pin:
        for uid in cut.versions:
            state.pins[uid] = state.pins.get(uid, frozenset()) | {cut.number}
        frozen.restore(position)
        lasting = cut.checkpoint or not state.settings.durable
        _pinned(state, cut.number, frozen.done_steps, final=lasting and state.over(frozen))
    if cut.checkpoint:
        cut.stage = Stage.SAVING
        state.do(SaveCheckpoint(cut.number, position["done_steps"], version, position, cut.pause))
        state.frozen = position
    else:
        state.cut = None


def _pinned(state: State, pin: int, step: int, *, final: bool) -> None:
    if final:
        state.record({"kind": "final", "cut": pin})
    if state.validation:
        state.record({"kind": "evaluation", "pin": pin, "step": step, "final": final})
        state.tell("evaluation_started", step=step, final=final)


def saved(state: State, event: CheckpointSaved, now: float) -> None:
    """The checkpoint is on disk, or could not be written: then the one before stays the newest."""
    cut = state.cut
    if cut is None or cut.number != event.cut or cut.stage is not Stage.SAVING:
        return
    if event.error:
        state.record({"kind": "cut_off", "cut": cut.number, "reason": event.error})
        state.tell("warning", message=f"checkpoint {cut.number} was not written, the one before stays: {event.error}")
        state.held_cuts = now + RETRY_SAVING_SECONDS
    else:
        step, version = state.frozen["done_steps"], max(cut.versions.values(), default=0)
        entry = {"kind": "saved", "cut": cut.number, "step": step, "version": version, "ledger": state.frozen}
        state.record(entry)
        state.tell("checkpoint_saved", cut=cut.number, step=step, pause_seconds=cut.pause)
    state.cut = None
