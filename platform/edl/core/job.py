"""The whole job as one state: events in, commands out.

Parts: ``grants`` (what a worker gets), ``staffing`` (which pods are asked for and which are told to go), ``recovery``
(pods that are lost), ``reclaim`` (leases that are taken back),
``parameters`` (who holds them), ``snapshots`` (cuts and checkpoints), ``handover`` (PS that are told to go),
``unreachable_ps`` (those on nodes that are lost), ``stall`` (what people hear of a job that stands),
``phases`` (what the job does next). Each is a
set of functions over ``state.State``; nothing here waits, logs or asks what time it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edl.api.events import Warned
from edl.api.journal_entries import MasterStarted
from edl.core import (
    checkpoint_failures,
    evaluation_callbacks,
    events,
    final_checkpoint,
    grants,
    job_phases,
    parameter_servers,
    pod_events,
    ps_handover,
    revocation,
    scaling,
    snapshots,
)
from edl.core.events import Command, Event
from edl.core.state import State
from edl.core.task_kinds import METRICS, unit

_LOOK = 1.0
"""Seconds between two looks at all holders: there may be a thousand of them, and many events a second."""


class JobState(State):
    """A job that decides."""

    __slots__ = ()

    def handle(self, event: Event, now: float) -> list[Command]:
        """Decide what follows from an event.

        Args:
            event: a fact.
            now: seconds of a monotonic clock.

        Returns:
            Commands in the order in which they are to be carried out; a request gets exactly one answer among them.
        """
        self.out = []
        if self.ended and type(event) in _AFTERWARDS:
            return [_AFTERWARDS[type(event)](self, event)]
        _HANDLERS[type(event)](self, event, now)
        revocation.settle_revocations(self, now)
        if job_phases.metrics_due(self):
            self.ledgers.setdefault(METRICS, unit(METRICS))
        job_phases.advance(self, now)
        commands, self.out = self.out, []
        return commands

    def deadline(self, now: float) -> float:
        """When ``Tick`` should be handled at the latest, if nothing happens before."""
        if now >= self.next_look:
            times = [holder.deadline(self.patience) for holder in self.holders.values() if holder.stepped]
            self.next_look = max(now, min([*times, now + _LOOK]))
        times = [self.next_look]
        refused = (backoff.until for backoff in self.fleet.backoff.values())
        times += [at for at in (*self.fleet.not_before.values(), *refused, self.held_cuts) if at > now]
        if self.more_missing and not self.ended:
            times.append(now + scaling.SOON)
        if self.cut is not None and self.cut.holds:
            times.append(self.cut.deadline)
        if self.stopping is not None:
            times.append(self.stopping.deadline)
        times.append(max(now, checkpoint_failures.wait_ends(self)))
        return min(times)

    def new_incarnation(self, number: int) -> list[Command]:
        """Begin to decide as the ``number``-th master of this run; a cut that was on its way is off."""
        self.out = []
        self.record(MasterStarted(number=number))
        commands, self.out = self.out, []
        return commands

    def give_up(self, reason: str, kind: str) -> list[Command]:
        """Fail the job for a reason that was found outside."""
        self.out = []
        self.end("Failed", reason, kind=kind)
        commands, self.out = self.out, []
        return commands


def _dataset(state: State, event: events.DatasetDescribed, now: float) -> None:
    parts = {"training": event.training, "validation": event.validation, "prediction": event.prediction}
    if not state.described:
        grants.enter_dataset(state, {name: [list(row) for row in rows] for name, rows in parts.items()}, event.blocks)


_HANDLERS: Mapping[type, Callable[[State, Any, float], None]] = {
    events.PodChanged: lambda state, event, now: pod_events.pod_changed(state, event.pod, now),
    events.PodsSynced: lambda state, event, now: pod_events.synced(state, now),
    events.StartRefused: pod_events.start_refused,
    events.PsRegistered: lambda state, event, now: parameter_servers.registered(state, event.uid, now),
    events.PsHeard: parameter_servers.heard,
    events.PsLeaving: ps_handover.leaving,
    events.PsAttached: parameter_servers.attached,
    events.PsSilent: parameter_servers.silent,
    events.PsRefused: parameter_servers.refused,
    events.CheckpointRefused: parameter_servers.unreadable,
    events.DatasetDescribed: _dataset,
    events.ModelDeclared: parameter_servers.declared,
    events.LeaseWanted: grants.wanted,
    events.Progressed: grants.progressed,
    events.TaskReported: grants.reported,
    events.WorkerLeft: pod_events.left,
    events.WorkerFailed: pod_events.failed,
    events.Revoked: revocation.revoked,
    events.CutPrepared: snapshots.prepared,
    events.UpdatesHeld: snapshots.held,
    events.SnapshotTaken: snapshots.taken,
    events.CheckpointSaved: ps_handover.saved,
    events.CheckpointCopied: evaluation_callbacks.copied,
    events.ScaleWanted: lambda state, event, now: scaling.scale(state, event),
    events.WishUnreadable: lambda state, event, now: state.emit(Warned(event.message)),
    events.StopWanted: final_checkpoint.stop,
    events.Tick: lambda state, event, now: revocation.passed(state, event, now),
}

_AFTERWARDS: Mapping[type, Callable[[State, Any], Command]] = {
    events.LeaseWanted: lambda state, event: events.StopWork(f"the job is {state.phase.lower()}"),
    events.Progressed: lambda state, event: events.Acknowledged(tuple(steps.lease for steps in event.steps)),
    events.TaskReported: lambda state, event: events.Acknowledged((event.lease,)),
    events.WorkerLeft: lambda state, event: events.Acknowledged(),
    events.WorkerFailed: lambda state, event: events.Acknowledged(fatal=True),
    events.PsLeaving: lambda state, event: events.MayEnd(True, f"the job is {state.phase.lower()}"),
}
"""What workers and PS hear once the job has ended; nothing changes any more."""
