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

from edl.api.events import WarningRaised
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
from edl.core.events import CoreCommand, CoreEvent
from edl.core.state import JobState
from edl.core.task_kinds import METRICS, single_task_ledger

_HOLDER_CHECK_SECONDS = 1.0
"""Seconds between two looks at all holders: there may be a thousand of them, and many events a second."""


class JobStateMachine(JobState):
    """A job that decides."""

    __slots__ = ()

    def handle(self, event: CoreEvent, now: float) -> list[CoreCommand]:
        """Decide what follows from an event.

        Args:
            event: a fact.
            now: seconds of a monotonic clock.

        Returns:
            Commands in the order in which they are to be carried out; a request gets exactly one answer among them.
        """
        self.out = []
        if self.ended and type(event) in _ANSWERS_AFTER_END:
            return [_ANSWERS_AFTER_END[type(event)](self, event)]
        _EVENT_HANDLERS[type(event)](self, event, now)
        revocation.settle_revocations(self, now)
        if job_phases.are_metrics_due(self):
            self.ledgers.setdefault(METRICS, single_task_ledger(METRICS))
        job_phases.advance_job(self, now)
        commands, self.out = self.out, []
        return commands

    def deadline(self, now: float) -> float:
        """When ``Tick`` should be handled at the latest, if nothing happens before."""
        if now >= self.next_holder_check:
            times = [holder.deadline(self.patience) for holder in self.holders.values() if holder.stepped]
            self.next_holder_check = max(now, min([*times, now + _HOLDER_CHECK_SECONDS]))
        times = [self.next_holder_check]
        refused = (backoff.until for backoff in self.pods.start_backoff.values())
        times += [at for at in (*self.pods.relaunch_times.values(), *refused, self.cuts_blocked_until) if at > now]
        if self.has_more_missing and not self.ended:
            times.append(now + scaling.BATCH_DELAY_SECONDS)
        if self.cut is not None and self.cut.holds:
            times.append(self.cut.deadline)
        if self.stopping is not None:
            times.append(self.stopping.deadline)
        times.append(max(now, checkpoint_failures.pause_deadline(self)))
        return min(times)

    def begin_incarnation(self, number: int) -> list[CoreCommand]:
        """Begin to decide as the ``number``-th master of this run; a cut that was on its way is off."""
        self.out = []
        self.record(MasterStarted(number=number))
        commands, self.out = self.out, []
        return commands

    def fail_job(self, reason: str, kind: str) -> list[CoreCommand]:
        """Fail the job for a reason that was found outside."""
        self.out = []
        self.end("Failed", reason, kind=kind)
        commands, self.out = self.out, []
        return commands


def _handle_dataset_described(state: JobState, event: events.DatasetDescribed, now: float) -> None:
    parts = {"training": event.training, "validation": event.validation, "prediction": event.prediction}
    if not state.is_dataset_known:
        grants.record_dataset(state, {name: [list(row) for row in rows] for name, rows in parts.items()}, event.blocks)


_EVENT_HANDLERS: Mapping[type, Callable[[JobState, Any, float], None]] = {
    events.PodChanged: lambda state, event, now: pod_events.handle_pod_changed(state, event.pod, now),
    events.PodsSynced: lambda state, event, now: pod_events.handle_pods_synced(state, now),
    events.StartRefused: pod_events.handle_start_refused,
    events.PsRegistered: lambda state, event, now: parameter_servers.handle_ps_registered(state, event.uid, now),
    events.PsHeartbeat: parameter_servers.handle_ps_heartbeat,
    events.PsLeaving: ps_handover.handle_ps_leaving,
    events.PsAttached: parameter_servers.handle_ps_attached,
    events.PsSilent: parameter_servers.handle_ps_silent,
    events.PsRefused: parameter_servers.handle_ps_refused,
    events.CheckpointRefused: parameter_servers.handle_checkpoint_refused,
    events.DatasetDescribed: _handle_dataset_described,
    events.ModelDeclared: parameter_servers.handle_model_declared,
    events.LeaseRequested: grants.handle_lease_requested,
    events.ProgressReported: grants.handle_progress_reported,
    events.TaskReported: grants.handle_task_reported,
    events.WorkerLeft: pod_events.handle_worker_left,
    events.WorkerFailed: pod_events.handle_worker_failed,
    events.LeasesRevoked: revocation.handle_leases_revoked,
    events.CutPrepared: snapshots.handle_cut_prepared,
    events.UpdatesHeld: snapshots.handle_updates_held,
    events.SnapshotTaken: snapshots.handle_snapshot_taken,
    events.CheckpointSaveFinished: ps_handover.handle_save_finished,
    events.CheckpointCopyFinished: evaluation_callbacks.handle_checkpoint_copied,
    events.ScaleRequested: lambda state, event, now: scaling.handle_scale_requested(state, event),
    events.DesiredStateInvalid: lambda state, event, now: state.emit(WarningRaised(event.message)),
    events.StopRequested: final_checkpoint.handle_stop_requested,
    events.Tick: lambda state, event, now: revocation.handle_tick(state, event, now),
}

_ANSWERS_AFTER_END: Mapping[type, Callable[[JobState, Any], CoreCommand]] = {
    events.LeaseRequested: lambda state, event: events.StopWork(f"the job is {state.phase.lower()}"),
    events.ProgressReported: lambda state, event: events.Acknowledged(tuple(steps.lease for steps in event.steps)),
    events.TaskReported: lambda state, event: events.Acknowledged((event.lease,)),
    events.WorkerLeft: lambda state, event: events.Acknowledged(),
    events.WorkerFailed: lambda state, event: events.Acknowledged(fatal=True),
    events.PsLeaving: lambda state, event: events.MayEnd(True, f"the job is {state.phase.lower()}"),
}
"""What workers and PS hear once the job has ended; nothing changes any more."""
