"""The job as a state machine: events in, commands out.

Its parts are functions over ``state.JobState``; nothing here waits, logs or reads a clock. For all strategies:

* ``grants``: which lease a worker gets;
* ``scaling``: which pods are started and which are told to leave;
* ``pod_events``: what a change of a pod means;
* ``revocation``: leases that are taken back;
* ``evaluation_callbacks``: what follows from the user's callbacks after an evaluation;
* ``stall``: why training stands still;
* ``program_ends``: how the programs of a job with a command ended after the last record.

With parameter servers:

* ``parameter_servers``: registration, planned handovers, lost nodes;
* ``checkpointing``: cuts and checkpoints.

Under strategy AllReduce:

* ``allreduce``: the rounds, and workers that are lost from them;
* ``silent_workers``: which workers are replaced because they are silent for minutes;
* ``stragglers``: which workers are replaced because the others wait for them; ``step_arrivals``: how far each is;
* ``member_crashes``: which minibatch is accused when a worker ends by itself;
* ``world_checkpoints``, ``world_evaluations``, ``world_model_files``: checkpoints, evaluations and files of the model.

The state and what it consists of:

* ``state``: everything together; ``events``: what comes in and goes out;
* ``journal_application``: what each journal entry changes; ``state_snapshot``: the state as JSON;
* ``ledger``: which records are done, leased or left; ``update_accounting``: which steps the PS have admitted;
* ``job_pods``, ``pod_lifecycle``: which pods there are, the states of one, and whether it is relaunched;
* ``lease_timeouts``: when a worker is silent or stuck; ``crash_suspects``: which minibatch made a worker crash;
* ``cuts``: the stages of a cut; ``checkpoint_shares``: which rank writes what;
* ``task_results``: whether the result of a task is valid; ``evaluation``: the merged metrics of a version;
* ``callback_decisions``, ``model_files``: what the user's callbacks decide, and which files they write;
* ``world_rounds``, ``rank_state``, ``world_entries``: the rounds of AllReduce, one worker's side, their entries;
* ``world_returns``: which leases return when a round of AllReduce starts;
* ``state_agreement``, ``evaluation_copies``, ``global_batch``: ranks that differ, copies to evaluate, fixed steps;
* ``record_ranges``, ``shuffle``, ``interleaving``, ``permutation``: which records there are, and in which order;
* ``priority_rule``, ``leader_election``, ``partition``, ``backoff``: policies that know nothing of the job;
* ``decision``, ``job_counters``, ``strict_json``, ``short_list``: small values and forms of text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edl.api.cluster_port import Role
from edl.api.journal_entries import (
    EvaluationAbandoned,
    EvaluationBegun,
    FinalCutPinned,
    JobPhaseChanged,
    JournalEntry,
    MasterStarted,
)
from edl.api.run_events import EvaluationStarted, WarningRaised
from edl.core import (
    allreduce,
    checkpointing,
    evaluation_callbacks,
    events,
    grants,
    parameter_servers,
    pod_events,
    program_ends,
    revocation,
    scaling,
    silent_workers,
    stall,
    world_checkpoints,
    world_model_files,
)
from edl.core.cuts import is_due
from edl.core.events import CoreCommand, CoreEvent, PhaseEntered, Unpin
from edl.core.journal_application import apply_entry, end_job, record_entry
from edl.core.ledger import DESCRIBE, EXPORT, METRICS, single_task_ledger
from edl.core.state import JobState
from edl.core.state_snapshot import restore_state, state_to_snapshot
from edl.core.world_rounds import RoundPhase

# --------------------------------------------------------------------------------------------------
# The next actions of the job, derived from its state.


def advance_job(state: JobState, now: float) -> None:
    """Start what is missing, begin what is due, finish what is complete."""
    if state.has_ended or not state.pods_synced:
        return
    parameter_servers.replace_unreachable_ps(state, now)
    scaling.reconcile_pods(state, now)
    allreduce.advance_world(state, now)
    _check_pins(state)
    world_checkpoints.advance_checkpoint(state, now)
    if state.pending_stop is None:
        parameter_servers.advance_handover(state, now)
        _advance_work(state, now)
    else:
        checkpointing.advance_final_checkpoint(state, now)
    # Must come last: the steps above may have resolved what a cut was waiting for.
    if not state.has_ended:
        checkpointing.advance_cut(state, now)
        stall.update_stall(state, now)


def _advance_work(state: JobState, now: float) -> None:
    if not state.is_dataset_known:
        # Only a worker can run the user's own reader; otherwise the master describes the data set.
        if state.settings.describe:
            state.ledgers.setdefault(DESCRIBE, single_task_ledger(DESCRIBE))
    elif state.settings.predict:
        _advance_prediction(state)
    elif state.settings.evaluate:
        _advance_evaluation(state)
    elif state.training_ledger is not None:
        _advance_training(state, now)
    else:
        end_job(state, "Failed", "the training data has no records", kind="input")


def _enter_phase(state: JobState, phase: str, reason: str) -> None:
    if state.phase != phase:
        record_entry(state, JobPhaseChanged(name=phase, reason=reason))
        state.emit(PhaseEntered(phase, reason))


def _check_pins(state: JobState) -> None:
    """Drop pins that some PS has lost: a pin is usable only while every PS keeps it."""
    if not state.pods.all_ps_ready():
        return
    # Known of every PS now: each names its pins when it attaches.
    pins_by_ps = [state.pinned_cuts.get(ps.uid, frozenset()) for ps in state.pods.live_pods(Role.PS)]
    if state.evaluation is not None and not all(state.evaluation.pin in pins for pins in pins_by_ps):
        record_entry(state, EvaluationAbandoned(reason="not every parameter server still keeps its version"))
    if state.final_pin and not all(state.final_pin in pins for pins in pins_by_ps):
        record_entry(state, FinalCutPinned(cut=0))
    _unpin_unused(state, pins_by_ps)


def _unpin_unused(state: JobState, pins_by_ps: Sequence[frozenset[int]]) -> None:
    """Release pins that nobody reads: each pin holds a copy of all parameters."""
    read = {state.final_pin, state.evaluation.pin if state.evaluation is not None else 0}
    for pin in sorted(frozenset().union(*pins_by_ps) - read):
        state.add_commands(Unpin(pin))
        for uid, pins in state.pinned_cuts.items():
            state.pinned_cuts[uid] = pins - {pin}


def _advance_prediction(state: JobState) -> None:
    main = state.main_ledger
    if main is None:
        end_job(state, "Failed", "there are no records to predict", kind="input")
    elif main.is_finished:
        end_job(state, "Done", "all records are predicted")
    else:
        _enter_phase(state, "Predicting", "the data set is known")


def _advance_evaluation(state: JobState) -> None:
    if not state.validation:
        end_job(state, "Failed", "there are no records to evaluate", kind="input")
    elif state.evaluated_final:
        end_job(state, "Done", "all records are evaluated")
    else:
        _enter_phase(state, "Evaluating", "the data set is known")
        if state.evaluation is None:
            # No parameter server keeps a version: every worker reads the same stored weights.
            record_entry(state, EvaluationBegun(pin=0, step=state.settings.weights_step, final=True))
            state.emit(EvaluationStarted(step=state.settings.weights_step))


def _advance_training(state: JobState, now: float) -> None:
    checkpointing.advance_save_failure(state, now)
    evaluation_callbacks.request_best_write(state)
    if state.has_ended:
        return
    if not state.settings.has_parameters:
        if state.is_training_over():
            end_job(state, "Done", _end_reason(state))
        else:
            _enter_phase(state, "Training", "the data set is known")
    elif state.is_training_over():
        _finish_training(state, now)
    elif state.world is not None:
        if state.world.phase is RoundPhase.RUNNING:
            _enter_phase(state, "Training", "the first workers have the same variables")
    elif checkpointing.can_begin_cut(state, now):
        _begin_due_cut(state, now)


def _begin_due_cut(state: JobState, now: float) -> None:
    s = state.settings
    # The first checkpoint comes before the first lease, so that a rollback to the start is no special
    # case.
    first = s.durable and state.checkpoint is None
    if not first:
        kept = " and in a checkpoint" if s.durable else "; no checkpoints are kept"
        _enter_phase(state, "Training", f"the parameters are initialized{kept}")
    checkpoint = first or (s.durable and is_due(state.step, state.last_checkpoint, s.checkpoint_steps))
    evaluate = bool(state.validation) and state.evaluation is None and not first
    pin = evaluate and is_due(state.step, state.last_evaluation, s.evaluation_steps)
    # The weights of any evaluation may turn out to be the best.
    checkpoint = checkpoint or (pin and s.durable and state.callbacks.keeps_best_checkpoint)
    if checkpoint or pin:
        checkpointing.begin_cut(state, checkpoint=checkpoint, pin=pin)


def _finish_training(state: JobState, now: float) -> None:
    """All records are done: take the last cut, evaluate and export it, and end the job."""
    if state.final_pin == 0 and state.world is not None:
        # No parameter server has to keep a version: the workers have the last one, and it does not change any more.
        record_entry(state, FinalCutPinned(cut=max(1, state.world.committed_step)))
    if state.final_pin == 0:
        if state.evaluation is None and checkpointing.can_begin_cut(state, now):
            checkpointing.begin_cut(state, checkpoint=state.settings.durable, pin=True)
        return
    if world_model_files.is_due(state):
        return
    if _needs_final_evaluation(state):
        _enter_phase(state, "Evaluating", _end_reason(state))
        _begin_final_evaluation(state)
    elif not evaluation_callbacks.restore_best_weights(state):
        pass
    elif state.settings.export and not state.counters.exported:
        _enter_phase(state, "Exporting", _end_reason(state))
        state.ledgers.setdefault(EXPORT, single_task_ledger(EXPORT))
    elif state.cut is None and not world_checkpoints.is_last_due(state) and state.callbacks.best_to_write is None:
        end_job(state, "Done", _end_reason(state))


def _end_reason(state: JobState) -> str:
    training = state.training_ledger
    if state.callback_stop_reason and training is not None and training.has_work:
        return state.callback_stop_reason
    if training is not None and training.has_work:
        return f"max_steps is reached: {state.step} steps are done"
    return "all records are done"


def _needs_final_evaluation(state: JobState) -> bool:
    if not state.validation or state.evaluated_final or state.has_evaluated(state.step):
        return False
    # Under AllReduce no step follows the evaluation after which a callback stopped training. As in ``keras.fit``,
    # the callbacks must not count that step twice.
    evaluated = state.callbacks.history[-1][0] if state.callbacks.history and state.counters.metrics else None
    return state.world is None or not state.callback_stop_reason or evaluated != state.step


def _begin_final_evaluation(state: JobState) -> None:
    if state.evaluation is None:
        record_entry(state, EvaluationBegun(pin=state.final_pin, step=state.step, final=True))
        state.emit(EvaluationStarted(step=state.step))


def are_metrics_due(state: JobState) -> bool:
    """Whether all records of the evaluation are done and a worker should compute the metric values."""
    evaluation = state.evaluation
    return (
        evaluation is not None
        and evaluation.ledger.is_finished
        and evaluation_callbacks.can_finish_evaluation(state, evaluation)
    )


_HOLDER_CHECK_SECONDS = 1.0
"""Seconds between two scans of all lease holders.

There may be a thousand holders and many events a second.
"""


class JobStateMachine(JobState):
    """The decision logic of one job."""

    __slots__ = ()

    def replay_journal(self, snapshot: Mapping[str, Any] | None, journaled: Sequence[Mapping[str, Any]]) -> None:
        """Rebuild the state from the journal: a snapshot, if there is one, and the entries after it."""
        if snapshot is not None:
            restore_state(self, snapshot)
        for entry in journaled:
            apply_entry(self, JournalEntry.from_json(entry))

    def to_snapshot(self) -> dict[str, Any]:
        """The state that all journal entries so far have produced, as JSON."""
        return state_to_snapshot(self)

    def handle(self, event: CoreEvent, now: float) -> list[CoreCommand]:
        """Process an event and return the commands that follow from it.

        Args:
            event: a fact that the shell observed.
            now: seconds of a monotonic clock.

        Returns:
            Commands in the order of execution. They contain exactly one answer to a request.
        """
        self.pending_commands = []
        if self.has_ended and type(event) in _ANSWERS_AFTER_END:
            return [_ANSWERS_AFTER_END[type(event)](self, event)]
        _EVENT_HANDLERS[type(event)](self, event, now)
        # The order matters: settled revocations return ranges, and the steps after them look for work
        # and for completed work.
        revocation.settle_revocations(self, now)
        if are_metrics_due(self):
            self.ledgers.setdefault(METRICS, single_task_ledger(METRICS))
        advance_job(self, now)
        commands, self.pending_commands = self.pending_commands, []
        return commands

    def next_deadline(self, now: float) -> float:
        """The latest time at which ``Tick`` must be handled if no other event arrives first."""
        if now >= self.next_holder_check:
            # A holder without leases cannot expire.
            times = [holder.next_expiry(self.lease_timeouts) for holder in self.holders.values() if holder.last_steps]
            self.next_holder_check = max(now, min([*times, now + _HOLDER_CHECK_SECONDS]))
        times = [self.next_holder_check]
        refused = (backoff.retry_at for backoff in self.pods.start_backoff.values())
        times += [at for at in (*self.pods.relaunch_times.values(), *refused, self.cuts_blocked_until) if at > now]
        if self.has_more_missing and not self.has_ended:
            times.append(now + scaling.BATCH_DELAY_SECONDS)
        if self.cut is not None and self.cut.may_pause_updates:
            times.append(self.cut.deadline)
        if self.pending_stop is not None:
            times.append(self.pending_stop.deadline)
        times.append(max(now, checkpointing.pause_deadline(self)))
        return min(times)

    def begin_incarnation(self, number: int) -> list[CoreCommand]:
        """Start as master number ``number`` of this run, the first one or one that was restarted.

        The state is that of the replayed journal; a cut in progress is aborted. A master restarts in this order:

        1. ``edl.storage.journal.Journal.open`` reads the journal and begins an incarnation: what an older master still
           writes does not count.
        2. ``JobStateMachine.replay_journal`` applies the snapshot and the entries.
        3. This method enters ``MasterStarted``.
        4. ``WorldRounds.handle_restart``, called from here, lets a running round of AllReduce go on, and closes one
           that not all members have confirmed.
        5. ``pod_events.handle_pods_synced``: the cluster has listed the pods. Those that are missing have ended, and
           the PS are asked again about revocations in progress.
        6. ``parameter_servers.handle_ps_registered`` attaches every PS, which has kept its parameters. Workers keep
           their leases, and report them with the next message.
        """
        self.pending_commands = []
        record_entry(self, MasterStarted(number=number))
        allreduce.restart_world(self)
        commands, self.pending_commands = self.pending_commands, []
        return commands

    def judge_program_ends(self, seconds: float | None) -> list[CoreCommand]:
        """The programs of a done job have ended, or were given up: the job fails if one did not end in order.

        Args:
            seconds: how long they had after the last record; None: the job was stopped meanwhile.
        """
        self.pending_commands = []
        program_ends.fail_for_program_ends(self, seconds)
        commands, self.pending_commands = self.pending_commands, []
        return commands

    def fail_done_job(self, reason: str) -> list[CoreCommand]:
        """All records are done, but what had to follow them failed."""
        self.pending_commands = []
        if self.phase == "Done":
            # The next master must find it, if this one ends before it has reported the end.
            record_entry(self, JobPhaseChanged(name="Failed", reason=reason))
            self.add_commands(events.EndJob("Failed", reason))
        commands, self.pending_commands = self.pending_commands, []
        return commands

    def fail_job(self, reason: str, kind: str) -> list[CoreCommand]:
        """Fail the job for a reason found outside the core."""
        self.pending_commands = []
        end_job(self, "Failed", reason, kind=kind)
        commands, self.pending_commands = self.pending_commands, []
        return commands


def _handle_dataset_described(state: JobState, event: events.DatasetDescribed, now: float) -> None:
    parts = {"training": event.training, "validation": event.validation, "prediction": event.prediction}
    # A restarted master describes the data set again; the journal's description is the valid one.
    if not state.is_dataset_known:
        rows_by_part = {name: [list(row) for row in rows] for name, rows in parts.items()}
        grants.record_dataset(state, rows_by_part, event.blocks, event.digests)


def _handle_checkpoint_refused(state: JobState, event: events.CheckpointRefused, now: float) -> None:
    module = parameter_servers if state.world is None else world_checkpoints
    module.handle_checkpoint_refused(state, event, now)


def _handle_save_finished(state: JobState, event: events.CheckpointSaveFinished, now: float) -> None:
    module = parameter_servers if state.world is None else world_checkpoints
    module.handle_save_finished(state, event, now)


def _handle_tick(state: JobState, event: events.Tick, now: float) -> None:
    revocation.handle_tick(state, event, now)
    allreduce.lose_silent_workers(state, now)
    silent_workers.replace_silent_workers(state, now)
    allreduce.lose_stragglers(state, event.late_seconds, now)
    world_checkpoints.watch_writers(state, event.late_seconds, now)


_EVENT_HANDLERS: Mapping[type, Callable[[JobState, Any, float], None]] = {
    events.PodChanged: pod_events.handle_pod_changed,
    events.PodsSynced: pod_events.handle_pods_synced,
    events.StartRefused: pod_events.handle_start_refused,
    events.PsRegistered: parameter_servers.handle_ps_registered,
    events.PsHeartbeat: parameter_servers.handle_ps_heartbeat,
    events.PsLeaving: parameter_servers.handle_ps_leaving,
    events.PsAttached: parameter_servers.handle_ps_attached,
    events.PsSilent: parameter_servers.handle_ps_silent,
    events.PsRefused: parameter_servers.handle_ps_refused,
    events.CheckpointRefused: _handle_checkpoint_refused,
    events.DatasetDescribed: _handle_dataset_described,
    events.ModelDeclared: parameter_servers.handle_model_declared,
    events.LeaseRequested: grants.handle_lease_requested,
    events.ProgressReported: grants.handle_progress_reported,
    events.TaskReported: grants.handle_task_reported,
    events.WorkerLeft: pod_events.handle_worker_left,
    events.WorkerFailed: pod_events.handle_worker_failed,
    events.LeasesRevoked: revocation.handle_leases_revoked,
    events.CutPrepared: checkpointing.handle_cut_prepared,
    events.UpdatesHeld: checkpointing.handle_updates_held,
    events.SnapshotTaken: checkpointing.handle_snapshot_taken,
    events.CheckpointSaveFinished: _handle_save_finished,
    events.CheckpointCopyFinished: evaluation_callbacks.handle_checkpoint_copied,
    events.ScaleRequested: scaling.handle_scale_requested,
    events.DesiredStateInvalid: lambda state, event, now: state.emit(WarningRaised(event.message)),
    events.StopRequested: checkpointing.handle_stop_requested,
    events.WorldReported: allreduce.handle_world_reported,
    events.WorldViewed: allreduce.handle_world_viewed,
    events.Tick: _handle_tick,
}

_ANSWERS_AFTER_END: Mapping[type, Callable[[JobState, Any], CoreCommand]] = {
    events.LeaseRequested: lambda state, event: events.StopWork(f"the job is {state.phase.lower()}"),
    events.ProgressReported: lambda state, event: events.Acknowledged(tuple(steps.lease for steps in event.steps)),
    events.TaskReported: lambda state, event: events.Acknowledged((event.lease,)),
    events.WorkerLeft: lambda state, event: events.Acknowledged(),
    events.WorkerFailed: pod_events.note_failure_after_end,
    events.WorldReported: lambda state, event: allreduce.view_world(state, event.worker),
    events.WorldViewed: lambda state, event: allreduce.view_world(state, event.worker),
    events.PsLeaving: lambda state, event: events.MayEnd(True, f"the job is {state.phase.lower()}"),
}
"""Answers to workers and PS after the job has ended; its work no longer changes."""
