"""Lease granting: which work a worker gets, and how its progress and reports are recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError
from edl.api.journal_entries import (
    DatasetEntered,
    EvaluationCompleted,
    LeaseCompleted,
    LeaseGranted,
    LeaseProgressed,
    LeaseReturned,
    StoppedByCallback,
    WorkerWarned,
)
from edl.api.run_events import CallbackDecided, EvaluationEnded, ModelExported, RequeuedRecordsLeased, WarningRaised
from edl.core import evaluation_callbacks, revocation, world_evaluations, world_model_files
from edl.core.checkpointing import is_ledger_frozen, steps_before_pause
from edl.core.events import (
    Acknowledged,
    CoreCommand,
    LeaseProgress,
    LeaseReply,
    LeaseRequested,
    ProgressReported,
    StopWork,
    TaskReported,
    WaitForWork,
    WorkerWarning,
)
from edl.core.global_batch import lease_count_error, limit_lease, member_part
from edl.core.journal_application import end_job, record_entry
from edl.core.lease_timeouts import LeaseHolder
from edl.core.ledger import (
    BEST_MODEL,
    DESCRIBE,
    EVALUATION,
    EXPORT,
    METRICS,
    MODEL_FILE,
    PREDICTION,
    STEPLESS_KINDS,
    STEPWISE_KINDS,
    TRAINING,
    Lease,
    Ledger,
)
from edl.core.pod_lifecycle import STEPS_PER_CRASH
from edl.core.record_ranges import RecordRange
from edl.core.shuffle import SHUFFLED_SOURCE_NAME, BlockLayout, ShuffleOrder, choose_window, training_size_error
from edl.core.state import JobState
from edl.core.task_results import find_result_error


def record_heartbeat(state: JobState, worker: str, now: float) -> None:
    """Record that a worker is alive. Messages that arrive after it has ended are ignored."""
    if state.pods.has_ended(worker):
        return
    # A worker that is unknown here holds no lease of this master; it is tracked from now on.
    holder = state.holders.get(worker)
    if holder is None:
        pod = state.pods.by_uid.get(worker)
        state.holders[worker] = LeaseHolder(now, is_starting=pod is not None and pod.building)
        return
    # Without a lease a worker need not send anything, so its silence says nothing about timeouts.
    if holder.last_steps:
        state.lease_timeouts.record_gap(now - holder.last_seen, now)
    holder.last_seen = now


MAX_TRAINING_LEASES = 3
"""Training leases of one worker under AllReduce: the current one, the next one, and one that is finished.

A finished one is open until its steps are stable. A worker must be able to take another kind of task besides.
"""

# Order matters: work that blocks other workers comes first.
_KIND_PRIORITY = (DESCRIBE, METRICS, BEST_MODEL, MODEL_FILE, EXPORT, EVALUATION, PREDICTION, TRAINING)


def handle_lease_requested(state: JobState, event: LeaseRequested, now: float) -> None:
    """Answer a worker that asks for work."""
    state.add_commands(grant_lease(state, event.worker, event.known_leases, now))


def grant_lease(state: JobState, worker: str, known_leases: frozenset[int] | None, now: float) -> CoreCommand:
    """Grant a lease to a worker, or answer why it gets none now.

    Args:
        known_leases: the leases that the worker knows; None: it does not say.
    """
    refusal = _find_refusal(state, worker)
    if refusal is not None:
        return refusal
    # From here on this is a heartbeat, whatever the answer is: the worker's leases must not expire
    # while it waits for more work.
    record_heartbeat(state, worker, now)
    if state.pending_stop is not None:
        return WaitForWork("the job ends: a final checkpoint is being taken")
    leases = state.worker_leases(worker)
    if known_leases is not None:
        repeated = _repeat_lost_reply(state, worker, leases, known_leases)
        if repeated is not None:
            return repeated

    # A worker with suspect records gets no other work, so that its next crash identifies the
    # records. While all ranks of AllReduce pause it does not train them, and an evaluation must not wait for them.
    has_suspect = any(lease.number in state.crash_suspects.one_by_one_leases for _, lease in leases)
    if has_suspect and not state.world_pauses:
        return WaitForWork("this worker trains records that crashed another worker; it gets no other work meanwhile")

    if state.world is not None and state.crash_suspects.guilty_ranges and state.world.trains(worker):
        _quarantine_guilty(state, worker)

    # A worker that still builds its model cannot train until TensorFlow is imported. While other
    # workers are ready it gets a single training range, and nothing that the whole job waits for.
    is_slow = state.pods.by_uid[worker].building and bool(state.pods.by_role[Role.WORKER].model_built)
    for kind in _KIND_PRIORITY:
        if (is_slow and (kind != TRAINING or leases)) or (has_suspect and kind == TRAINING):
            continue
        record_range = _next_range(state, worker, kind)
        if record_range is not None:
            return _enter_lease(state, worker, kind, record_range, now)
    return WaitForWork(idle_reason(state))


def _find_refusal(state: JobState, worker: str) -> CoreCommand | None:
    """Why a worker gets no lease whatever there is to do; None if it may get one.

    Workers that can no longer contribute stop; workers that the master has not seen yet wait. A
    master that has just started cannot tell the two apart: the worker may be in the middle of a
    lease that is in the journal.
    """
    if state.has_ended:
        return StopWork(f"the job is {state.phase.lower()}")
    if not state.pods_synced:
        return WaitForWork("the master has just started and has not listed the pods yet")
    pods = state.pods
    if pods.has_ended(worker):
        return StopWork("the cluster reports that this pod has ended")
    if not pods.is_live(worker):
        return WaitForWork("the cluster has not reported this pod yet")
    pod = pods.by_uid[worker]
    if pod.has_left:
        return StopWork("this worker has already left")
    if not pod.has_run:
        return WaitForWork("the cluster has not reported this pod as running yet")
    if not pod.staying:
        return WaitForWork("this worker was told to leave")
    return None


def _repeat_lost_reply(
    state: JobState, worker: str, leases: Sequence[tuple[str, Lease]], known_leases: frozenset[int]
) -> CoreCommand | None:
    """Grant a lease of the worker again of which it does not know; None if there is none.

    The answer to an earlier request may have been lost after its lease was journaled. Without the
    repetition the range would stay idle until the lease expires.
    """
    if state.world is not None:
        named = state.holders[worker].named_leases | known_leases
        state.holders[worker].named_leases = named & {lease.number for _, lease in leases}
    for kind, lease in leases:
        if lease.number in known_leases:
            continue
        if kind == TRAINING and state.world is not None and not state.world.trains(worker):
            continue
        if kind in (EVALUATION, METRICS) and not world_evaluations.may_evaluate(state, worker, kind):
            continue
        if kind == MODEL_FILE and not world_model_files.may_write(state, worker):
            continue
        if state.world is not None and kind == TRAINING and lease.done_steps:
            # The worker gave it up when the previous master took it out of the world. One that it has named to this
            # master it still trains: this request is an older one that waited here, and nobody waits for its answer.
            if lease.number not in state.holders[worker].named_leases:
                record_entry(state, LeaseReturned(lease=lease.number, through=lease.done_steps, partial=0, repeated=0))
        elif not lease.done_steps:
            return _lease_reply(state, kind, lease)
    return None


def _next_range(state: JobState, worker: str, kind: str) -> RecordRange | None:
    """The next range of this kind of work; None if there is none, or if it may not start yet."""
    ledger = state.ledgers.get(kind)
    if ledger is None:
        return None
    if kind == TRAINING:
        if state.world is not None:
            return _next_member_range(state, ledger, worker) if state.world.trains(worker) else None
        # A push must reach every PS, and a checkpoint must exist to recover what a PS loses.
        return ledger.next_range(remaining_step_budget(state), worker) if is_serving_training(state) else None
    if kind in (EVALUATION, EXPORT) and not state.pods.all_ps_ready():
        return None
    # A job that only evaluates has the ledger as soon as it knows the data set.
    if kind == EVALUATION and state.evaluation is None:
        return None
    # Other workers do not have the variables.
    if kind == EXPORT and state.world is not None and not state.world.trains(worker):
        return None
    if kind in (EVALUATION, METRICS) and not world_evaluations.may_evaluate(state, worker, kind):
        return None
    if kind == MODEL_FILE and not world_model_files.may_write(state, worker):
        return None
    return ledger.next_range()


def _next_member_range(state: JobState, ledger: Ledger, worker: str) -> RecordRange | None:
    """The next training range of a member under AllReduce."""
    lease_count = len(ledger.worker_leases(worker))
    if world_evaluations.evaluates_copy(state, worker):
        return None
    if state.settings.global_batch is not None:
        work = _next_batch_range(state, ledger, worker, state.settings.global_batch)
    else:
        work = _next_minibatch_range(state, ledger, worker) if lease_count < MAX_TRAINING_LEASES else None
    if work is None or not world_model_files.may_begin(state, ledger, work):
        return None
    work = _isolate_suspects(state, work)
    # The worker's next crash must identify the minibatch, even if nobody is left to say which steps were applied.
    return None if lease_count and state.crash_suspects.is_suspect(work) else work


def _next_untried_range(state: JobState, ledger: Ledger, worker: str) -> RecordRange | None:
    """The next training range under AllReduce; one that ended a worker comes after others of its epoch."""
    suspects, budget = state.crash_suspects, remaining_step_budget(state)
    work = ledger.next_range(budget, worker)
    if work is None or not suspects.is_postponed(work):
        return work
    other = ledger.next_range(budget, worker, skips=suspects.is_hard_suspect)
    return other if other is not None and other.epoch == work.epoch else work


def _isolate_suspects(state: JobState, work: RecordRange) -> RecordRange:
    """The beginning of a range that may be one lease: a single minibatch if it is suspect, or a control."""
    suspects, minibatch = state.crash_suspects, state.settings.suspect_records
    work = suspects.isolate_suspects(work, minibatch)
    return suspects.add_control(work, minibatch) if suspects.controls_due and not suspects.is_suspect(work) else work


def _next_minibatch_range(state: JobState, ledger: Ledger, worker: str) -> RecordRange | None:
    """The next training range of a member that adds a minibatch to each step.

    It is shorter when few steps are left before all have to wait: for the end, or for the files of an epoch.
    """
    work, members = _next_untried_range(state, ledger, worker), world_evaluations.training_members(state)
    if work is None or worker not in members:
        return work
    # The next epoch's leases follow before this one's are done, unless its files come first (``may_begin``).
    later_epochs = ledger.epochs - 1 - work.epoch if state.model_files.has_epoch_files else 0
    # Each shard has a step at least: then everybody may hold all leases in full.
    lease_steps = -(-ledger.lease_records // ledger.minibatch)
    planned_shards = ledger.planned_shards - later_epochs * ledger.plan.shard_count
    if planned_shards >= (MAX_TRAINING_LEASES + 1) * lease_steps * len(members):
        return work
    open_steps = sum(lease.step_count - lease.done_steps for lease in ledger.worker_leases(worker))
    left = ledger.unfinished_steps - later_epochs * ledger.plan.count_steps(ledger.minibatch)
    # A run that is resumed with a new callback may have trained more of later epochs than is left of this one.
    left = max(left, -(-work.records // ledger.minibatch))
    most = member_part(left, members.index(worker), len(members)) - open_steps
    return work.split(min(work.end, work.start + most * ledger.minibatch))[0] if most > 0 else None


def _next_batch_range(state: JobState, ledger: Ledger, worker: str, global_batch: int) -> RecordRange | None:
    """The next training range of a member whose steps have a fixed number of records.

    An epoch begins when all records of the previous one are in the ledger, because no step has records of both.
    """
    work = _next_untried_range(state, ledger, worker)
    epoch, left = ledger.open_epoch()
    if work is None or work.epoch > epoch:
        return None
    suspect = _isolate_suspects(state, work)
    if state.crash_suspects.is_suspect(suspect):
        return suspect
    leases = ledger.worker_leases(worker)
    held_steps = sum(lease.step_count - lease.done_steps for lease in leases)
    members = world_evaluations.training_members(state)
    more_leases = MAX_TRAINING_LEASES - len(leases)
    most = limit_lease(left, held_steps, more_leases, global_batch, members.index(worker), len(members))
    return work.split(min(work.end, work.start + most))[0] if most else None


def _quarantine_guilty(state: JobState, worker: str) -> None:
    """Quarantine the guilty minibatches that would be leased next: nobody gets them."""
    ledger = state.ledgers[TRAINING]
    while (work := _next_untried_range(state, ledger, worker)) is not None:
        work = state.crash_suspects.isolate_suspects(work, state.settings.suspect_records)
        count = state.crash_suspects.guilty_ranges.get(work)
        if count is None:
            return
        number, row = state.next_lease_number(), (work.epoch, work.source, work.start, work.end)
        record_entry(
            state, LeaseGranted(lease=number, task=TRAINING, work=row, minibatch=ledger.minibatch, worker=worker)
        )
        revocation.report_quarantine(state, work, count)
        records = revocation.quarantined_records(state, work)
        record_entry(
            state,
            LeaseReturned(lease=number, through=0, partial=0, repeated=0, quarantine=work.records, records=records),
        )


def has_time_limits(state: JobState, kind: str) -> bool:
    """Whether leases of this kind return after the limits of ``lease_timeouts``.

    A round of AllReduce loses its silent members, and with them their training leases.
    """
    return kind != TRAINING or state.world is None


def _enter_lease(state: JobState, worker: str, kind: str, record_range: RecordRange, now: float) -> LeaseReply:
    """Journal and record a lease. The answer leaves the master only after the entry is on disk."""
    number = state.next_lease_number()
    ledger = state.ledgers[kind]
    # Must precede the entry, which removes the range from the returned ranges.
    is_repeated = bool(ledger.returned_ranges)
    row = (record_range.epoch, record_range.source, record_range.start, record_range.end)
    record_entry(state, LeaseGranted(lease=number, task=kind, work=row, minibatch=ledger.minibatch, worker=worker))
    if kind == TRAINING and state.crash_suspects.is_suspect(record_range):
        state.crash_suspects.one_by_one_leases.add(number)
    if has_time_limits(state, kind):
        state.holders[worker].add_lease(number, now, is_stepless=kind in STEPLESS_KINDS)
    state.pods.by_uid[worker].had_lease = True
    if is_repeated:
        index, source = state.pods.index_of(worker), record_range.source or SHUFFLED_SOURCE_NAME
        state.emit(RequeuedRecordsLeased(start=record_range.start, end=record_range.end, source=source, worker=index))
    return _lease_reply(state, kind, ledger.leases[number])


_DATA_SETS = {TRAINING: "training", EVALUATION: "validation", PREDICTION: "prediction"}
"""Whose records the leases of each kind have."""


def _lease_reply(state: JobState, kind: str, lease: Lease) -> LeaseReply:
    """What the worker needs to know about its lease."""
    pin, step, payload, of_copy = 0, state.step, None, False
    if kind in (EVALUATION, METRICS) and state.evaluation is not None:
        pin, step = state.evaluation.pin, state.evaluation.step
        of_copy = world_evaluations.evaluates_copy(state, lease.worker)
        payload = state.evaluation.states if kind == METRICS else None
    elif kind == EXPORT:
        pin = state.final_pin
        payload = {"checkpoint": state.checkpoint.cut} if state.best_restored and state.checkpoint is not None else None
    elif kind == BEST_MODEL:
        payload = evaluation_callbacks.best_write_payload(state)
    elif kind == MODEL_FILE:
        payload = world_model_files.task_payload(state)
    shuffled = state.shuffle_order if kind == TRAINING else None
    return LeaseReply(
        lease.number,
        kind,
        lease.record_range,
        lease.minibatch,
        state.lease_timeouts.silence_seconds,
        pin,
        step,
        payload,
        one_by_one=lease.number in state.crash_suspects.one_by_one_leases,
        window=shuffled.window if shuffled is not None else 0,
        order=shuffled.fingerprint if shuffled is not None else "",
        of_copy=of_copy,
        digests=state.file_digests.get(_DATA_SETS.get(kind, ""), ""),
    )


def remaining_step_budget(state: JobState) -> int | None:
    """Steps that may still be handed out under ``max_steps`` and without a new checkpoint; None if unlimited."""
    if state.callback_stop_reason:
        return 0
    if state.world is not None:
        training = state.training_ledger
        return 0 if training is not None and state.has_reached_limit(training) else None
    limit, training, before_pause = state.settings.max_steps, state.training_ledger, steps_before_pause(state)
    if limit is None or training is None:
        return before_pause
    left = limit - training.done_steps - training.outstanding_steps
    return left if before_pause is None else min(left, before_pause)


def is_serving_training(state: JobState) -> bool:
    """Whether training work is handed out: all PS are ready and the first checkpoint exists, if there are any.

    Under AllReduce rank 0 still has the initial state, so training does not wait for the first checkpoint.
    """
    has_start = state.checkpoint is not None or not state.settings.durable or state.world is not None
    return state.pods.all_ps_ready() and has_start


def idle_reason(state: JobState) -> str:
    """Why there is no work now, for users."""
    if not state.pods.all_ps_ready():
        return "waiting for the parameter servers"
    if state.is_dataset_known and state.world is not None and state.world.waiting_reason:
        return f"waiting for the other workers: {state.world.waiting_reason}"
    if not state.is_dataset_known:
        return "waiting for the description of the data set"
    if state.training_ledger is not None and not is_serving_training(state):
        return "waiting for the first checkpoint"
    if state.checkpoint_failure is not None and state.checkpoint_failure.paused_at is not None:
        return f"training is paused until a checkpoint can be written: {state.checkpoint_failure.reason}"
    return "all remaining work is leased to other workers"


# ------------------------------------------------------------------------------------------------ progress and results


def handle_progress_reported(state: JobState, event: ProgressReported, now: float) -> None:
    """Record a worker's progress; the answer lists leases that it no longer owns."""
    record_heartbeat(state, event.worker, now)
    lost = tuple(steps.lease for steps in event.steps if _find_owned_lease(state, event.worker, steps.lease) is None)
    for steps in event.steps:
        record_lease_progress(state, event.worker, steps, now)
    for warning in event.warnings:
        _record_warning(state, warning)
    if event.has_stopped_training:
        _stop_by_callback(state)
    state.add_commands(Acknowledged(lost))


def _stop_by_callback(state: JobState) -> None:
    """Hand out no more training records: the job ends when those that workers hold are done.

    Under AllReduce the ranks agree on the step first; see module ``allreduce``.
    """
    if state.world is None and state.training_ledger is not None and not state.callback_stop_reason:
        record_entry(state, StoppedByCallback(step=state.step))
        decision = state.callback_stop_reason
        state.emit(CallbackDecided(step=state.step, callback="callbacks()", decision=decision))


_MAX_WARNING_TOPICS, _MAX_WARNINGS_OF_TOPIC = 32, 3
"""All workers may warn of the same, and of every minibatch; the journal and the summary must stay small."""


def _record_warning(state: JobState, warning: WorkerWarning) -> None:
    """Tell users of a worker's warning, unless another worker, or this one, has said the same."""
    known = state.counters.warnings
    texts = known.get(warning.topic, [])
    if warning.text in texts or len(texts) >= _MAX_WARNINGS_OF_TOPIC:
        return
    if texts or len(known) < _MAX_WARNING_TOPICS:
        record_entry(state, WorkerWarned(topic=warning.topic, text=warning.text))
        state.emit(WarningRaised(warning.text))


def _find_owned_lease(state: JobState, worker: str, number: int) -> tuple[str, Lease] | None:
    """The kind and lease with this number, if this worker holds it and it is not being revoked."""
    owned = state.find_lease(number)
    if owned is None or owned[1].worker != worker or owned[1].revoke_reason is not None:
        return None
    return owned


def record_lease_progress(state: JobState, worker: str, progress: LeaseProgress, now: float) -> None:
    """Record steps of a lease if the worker holds it."""
    owned = _find_owned_lease(state, worker, progress.lease)
    if owned is None:
        return
    kind, lease = owned
    if kind == TRAINING and state.world is not None:
        # Only steps that every member of the world has applied count; ``WorldReported`` reports them.
        return
    if kind == TRAINING and is_ledger_frozen(state):
        # The final checkpoint is already being copied; these steps are too late for it.
        return
    holder = state.holders.get(worker)
    if holder is not None:
        holder.last_mentioned[progress.lease] = now
    if kind in STEPWISE_KINDS:
        new_steps = min(progress.done_steps, lease.step_count) - lease.done_steps
        if new_steps > 0:
            _credit_steps(state, worker, progress.lease, new_steps, now)
            loss, skipped = _loss(progress), progress.skipped_records or None
            record_entry(
                state,
                LeaseProgressed(
                    lease=progress.lease,
                    through=progress.done_steps,
                    loss=loss,
                    skipped=skipped,
                    updates_skipped=progress.skipped_updates or None,
                ),
            )
            check_corrupt_limit(state)
    elif holder is not None and progress.done_steps > holder.partial_steps.get(progress.lease, 0):
        # These tasks have only one result for the whole range. A lost worker leaves no partial
        # result.
        new_steps = progress.done_steps - holder.partial_steps.get(progress.lease, 0)
        holder.partial_steps[progress.lease] = progress.done_steps
        _record_task(state, worker, kind, now)
        _credit_steps(state, worker, progress.lease, new_steps, now)


def _loss(steps: LeaseProgress) -> float | None:
    """The mean loss over the reported steps; None if no step has a loss."""
    return steps.loss_sum / steps.loss_steps if steps.loss_steps else None


def _credit_steps(state: JobState, worker: str, lease: int, new_steps: int, now: float) -> None:
    holder = state.holders.get(worker)
    pod = state.pods.by_uid.get(worker)
    # Its declaration may have gone to the previous master.
    if pod is not None and pod.building:
        state.pods.mark_model_built(worker)
    if new_steps > 0:
        state.last_step = now
    if new_steps > 0 and holder is not None:
        # Seconds per step: the time since the lease last progressed, divided by the steps that
        # arrived together.
        holder.is_starting = False
        state.lease_timeouts.record_step((now - holder.last_steps.get(lease, now)) / new_steps, now)
        holder.last_steps[lease] = now
        holder.step_count += new_steps
    state.pods.credit_steps(Role.WORKER, new_steps)
    state.pods.credit_steps(Role.PS, new_steps)


def _record_task(state: JobState, worker: str, kind: str, now: float) -> None:
    """A worker goes on with a task that it does not finish step by step."""
    if not world_evaluations.runs_on_copy(state, worker, kind):
        state.step_arrivals.record_task(worker, now)


def handle_task_reported(state: JobState, event: TaskReported, now: float) -> None:
    """Record the end of a task if this worker owns it."""
    record_heartbeat(state, event.worker, now)
    owned = _find_owned_lease(state, event.worker, event.lease)
    if owned is None:
        state.add_commands(Acknowledged((event.lease,)))
        return
    kind, lease = owned
    if kind == TRAINING and (is_ledger_frozen(state) or state.world is not None):
        state.add_commands(Acknowledged((event.lease,)))
        return
    problem = find_result_error(kind, lease, event.last_progress, event.result, state.evaluation)
    if problem:
        state.add_commands(Acknowledged(refusal=problem))
        return
    if kind in STEPWISE_KINDS:
        # The report completes the range; steps that were not reported before are credited with it.
        steps = event.last_progress or LeaseProgress(event.lease, lease.step_count)
        _credit_steps(state, event.worker, event.lease, lease.step_count - lease.done_steps, now)
        record_entry(
            state,
            LeaseCompleted(
                lease=event.lease,
                loss=_loss(steps),
                skipped=steps.skipped_records or None,
                updates_skipped=steps.skipped_updates or None,
            ),
        )
        state.crash_suspects.close_lease(lease, lease.step_count)
    else:
        _record_task(state, event.worker, kind, now)
        _record_result(state, kind, event)
    # The next evaluation covers the same ranges again.
    state.range_crashes.pop((kind, lease.record_range), None)
    check_corrupt_limit(state)
    revocation.close_lease(state, event.worker, event.lease, now)
    state.add_commands(Acknowledged())


def record_dataset(
    state: JobState, parts: Mapping[str, Any], blocks: BlockLayout | None, digests: Mapping[str, str] | None = None
) -> None:
    """Record the data set, and whether and how its training records are shuffled.

    Ends a job whose epochs would not fill a single minibatch: it would take one small step per epoch and
    export an untrained model as a success.

    Args:
        parts: ``[name, records]`` of each source, by part of the data set.
        blocks: the blocks of the training sources; None: their reader has no random access.
        digests: of the files of each part.
    """
    s, rows = state.settings, parts.get(TRAINING) or ()
    training, order = parts.get("training"), None
    if s.main_kind == TRAINING:
        records = sum(int(row[1]) for row in rows)
        # Module ``job`` ends a job without any records, with a message of its own.
        if records and (problem := training_size_error(s.minibatch, records, s.epochs, s.global_batch)) is not None:
            end_job(state, "Failed", problem, kind="input")
            return
        try:
            window = choose_window(s.shuffle, records, s.task_records, blocks) if rows else 0
        except BadInputError as error:
            end_job(state, "Failed", str(error), kind="input")
            return
        counts = [records] if window else [int(row[1]) for row in rows]
        if s.global_batch is not None and (problem := lease_count_error(s.global_batch, s.task_records, counts)):
            end_job(state, "Failed", problem, kind="input")
            return
        if window and blocks is not None:
            order = ShuffleOrder.from_rows(
                rows, blocks.runs, window, s.seed or 0, blocks.weights, s.task_records if s.buckets else 0
            ).to_json()
            training = [row for row in rows if row[1]]
    validation, prediction = parts.get("validation"), parts.get("prediction")
    record_entry(
        state,
        DatasetEntered(
            training=training, validation=validation, prediction=prediction, order=order, digests=digests or None
        ),
    )


def check_corrupt_limit(state: JobState) -> None:
    """End the job when the corrupt records of all workers together exceed the limit."""
    for one_pass, corrupt_records in state.counters.corrupt.items():
        if corrupt_records > state.settings.max_corrupt and not state.has_ended:
            kind, _, epoch = one_pass.partition(" ")
            where = f"epoch {int(epoch) + 1}" if kind == TRAINING else kind
            limit = state.settings.max_corrupt
            counts = f"{corrupt_records} corrupt records in {where}; data.max_corrupt_records allows {limit}"
            message = f"{counts}: see the workers' logs"
            end_job(state, "Failed", message, kind="input")


def _record_result(state: JobState, kind: str, event: TaskReported) -> None:
    """Record a result in a single journal entry: a crash between two entries would leave half of it."""
    # A whole task is progress enough to offset one crash.
    state.pods.credit_steps(Role.WORKER, STEPS_PER_CRASH)
    if kind == DESCRIBE:
        parts = dict(event.result)
        blocks, digests = parts.pop("blocks", None), parts.pop("digests", None)
        record_dataset(state, parts, None if blocks is None else BlockLayout.from_json(blocks), digests)
    elif kind == METRICS and state.evaluation is not None:
        evaluation = state.evaluation
        callbacks = evaluation_callbacks.decide_after_evaluation(state, evaluation, event.result)
        record_entry(
            state,
            EvaluationCompleted(
                metrics=event.result,
                step=evaluation.step,
                pin=evaluation.pin,
                final=evaluation.final,
                callbacks=callbacks,
            ),
        )
        state.emit(EvaluationEnded(step=evaluation.step, metrics=event.result))
        evaluation_callbacks.refuse_missing_monitors(state, event.result)
    else:
        last = event.last_progress or LeaseProgress(event.lease, 0)
        loss, skipped = _loss(last), last.skipped_records or None
        record_entry(state, LeaseCompleted(lease=event.lease, result=event.result, loss=loss, skipped=skipped))
    if kind == EXPORT:
        for path in state.counters.exported:
            state.emit(ModelExported(path=path, loading=state.counters.loading or None))
    if kind == MODEL_FILE:
        for path in event.result["paths"]:
            state.emit(CallbackDecided(step=state.step, callback="ModelCheckpoint", decision=f"wrote {path}"))
