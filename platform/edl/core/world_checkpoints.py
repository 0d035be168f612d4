"""Checkpoints under strategy AllReduce: ranks copy the state between two steps and write it while all train on.

The writer is rank 0 of the running round, because it is also the rank that reports steps. So no step after the copied
one is in the ledger before the master hears of the copy, and the ledger position of exactly this step is known when
the step is entered. Of a large state, other ranks copy and write shares; rank 0 names them. If a writer is lost before
its file is on disk, the cut is called off, and the next rank 0 begins another one. A writer that says nothing for too
long hangs in its file: the checkpoint has failed. docs/design/0010-allreduce.md describes the protocol.
"""

from __future__ import annotations

from edl.api.journal_entries import CheckpointReplaced, CheckpointWritten, CutAnnounced, CutCalledOff
from edl.api.run_events import CheckpointSaved, RollbackDone, WarningRaised
from edl.core import world_evaluations
from edl.core.checkpoint_shares import MOST_WRITERS
from edl.core.checkpointing import RETRY_SAVING_SECONDS, RETRY_SECONDS, clear_save_failure, record_save_failure
from edl.core.cuts import WORLD_STEP_KEY, WorldCheckpoint
from edl.core.events import (
    CheckpointOrder,
    CheckpointRefused,
    CheckpointSaveFinished,
    CopiedState,
    SaveCheckpoint,
)
from edl.core.journal_application import end_job, record_entry
from edl.core.lease_timeouts import SILENCE_FLOOR
from edl.core.short_list import format_short_list
from edl.core.state import JobState
from edl.core.state_snapshot import dataset_entry
from edl.core.world_rounds import RoundPhase, WorldRounds

# --------------------------------------------------------------------------------------------------
# When a checkpoint begins and when it is called off.


def advance_checkpoint(state: JobState, now: float) -> None:
    """Call off a checkpoint that cannot be completed, and begin the next one."""
    rounds, pending = state.world, state.world_checkpoint
    if rounds is None or not state.settings.durable:
        return
    if pending is not None and (reason := _find_obstacle(state, rounds, pending)):
        call_off(state, reason, now + RETRY_SECONDS if pending.step is not None else now)
    # The copy of the best checkpoint must stay the newest one.
    if state.world_checkpoint is not None or state.copy_cut or now < state.cuts_blocked_until:
        return
    last = rounds.last_holder()
    if last is not None:
        writer, at_step = last, 0
    elif rounds.phase is RoundPhase.RUNNING and (due := _due_step(state, rounds)) is not None:
        writer, at_step = _choose_writer(state, rounds), due
    else:
        return
    number = state.cut_number + 1
    record_entry(state, CutAnnounced(cut=number, step=state.step))
    is_other = last is None and writer != rounds.members[0]
    state.world_checkpoint = WorldCheckpoint(
        number,
        writer,
        at_step,
        round=rounds.round,
        is_last=last is not None,
        when_paused=is_other and not state.is_training_over(),
    )
    if state.pending_stop is not None:
        state.pending_stop.cut_number = number
    state.notify_workers()


def _choose_writer(state: JobState, rounds: WorldRounds) -> str:
    """The member that copies and writes next.

    That is rank 0, which reports the steps. If it hangs in an older file, any other member can do it while nobody
    trains: all have the same variables, and no later step is in the ledger. But only rank 0 can announce shares.
    """
    writes, first = state.checkpoint_writes, rounds.members[0]
    if first not in writes.stuck or writes.are_shared or not (state.world_pauses or state.is_training_over()):
        return first
    unfit = writes.stuck | rounds.leaving | rounds.lost
    return next((worker for worker in rounds.members if worker not in unfit), first)


def is_last_due(state: JobState) -> bool:
    """Whether training is over and its last steps are in no checkpoint yet: the job has to wait for one."""
    rounds, saved = state.world, state.checkpoint
    if rounds is None or not state.settings.durable or _gives_up(state, rounds):
        return False
    return state.world_checkpoint is not None or saved is None or saved.step < rounds.committed_step


def _gives_up(state: JobState, rounds: WorldRounds) -> bool:
    """Whether the job does not wait for its last checkpoint: it has failed, and no other worker can write it."""
    failure, writes = state.checkpoint_failure, state.checkpoint_writes
    if failure is None:
        return False
    # If two hang, it is the volume that does not answer.
    most, stuck = min(2, len(rounds.members)), writes.stuck.intersection(rounds.members)
    return not failure.is_stuck or writes.are_shared or len(stuck) >= most


def _due_step(state: JobState, rounds: WorldRounds) -> int | None:
    """The step after which the next checkpoint is to be taken; None: there is none to take."""
    training, saved = state.training_ledger, state.checkpoint
    if training is None:
        return None
    if saved is None:
        # A rollback to the start is no special case then, and an unwritable volume is found at once.
        return 0
    if state.pending_stop is not None or state.is_training_over():
        # A last checkpoint that fails is tried again only if the job waits for it.
        gives_up = state.pending_stop is None and _gives_up(state, rounds)
        return rounds.committed_step if saved.step < rounds.committed_step and not gives_up else None
    every, steps = state.settings.checkpoint_steps, []
    if every:
        steps.append((state.last_checkpoint // every + 1) * every)
    if state.callbacks.keeps_best_checkpoint and (evaluated := _evaluated_step(state, saved.step)):
        steps.append(evaluated)
    return min(steps, default=None)


def _evaluated_step(state: JobState, saved_step: int) -> int:
    """The step of the evaluation in progress, if it is in no checkpoint, or of the next one; 0: there is none."""
    running = state.evaluation
    if running is not None and saved_step < running.step:
        return running.step
    return world_evaluations.pause_step(state)


def _find_obstacle(state: JobState, rounds: WorldRounds, pending: WorldCheckpoint) -> str:
    """Why a checkpoint in progress cannot be completed; empty if it can."""
    if pending.is_committing:
        return ""
    for worker in pending.writers or (pending.writer,):
        if worker not in pending.shards and not state.pods.is_live(worker):
            return f"worker-{state.pods.index_of(worker)}, which writes it, has ended"
    if rounds.round != pending.round and not set(pending.writers) <= pending.copied_by:
        # A reduction broke: some may not have heard of this step, and so have copied nothing.
        return "the workers have changed before all of them said that they copied their shares"
    if pending.step is None and not pending.is_last and _may_be_announced(rounds, pending):
        # Another rank would write the shard that one of the round before is writing.
        return "the workers have changed"
    writer_left = pending.writer not in rounds.members or pending.writer in rounds.lost
    if pending.step is not None and pending.ledger is None and writer_left:
        # The others may make this step anew, with other records.
        return f"worker-{state.pods.index_of(pending.writer)}, which has copied it, has left the others"
    if pending.step is None and pending.is_last != (rounds.last_holder() is not None):
        return "the workers that have the newest state leave, or stay after all"
    if pending.step is None and rounds.phase is RoundPhase.RUNNING and pending.writer != _choose_writer(state, rounds):
        return "another worker reports the steps now, or can write it"
    if pending.step is None and state.pending_stop is not None and state.pending_stop.cut_number != pending.number:
        return "the job stops"
    if pending.step is None and not pending.is_last and pending.at_step > (_due_step(state, rounds) or 0):
        return "training ends before its step"
    if pending.step is not None and pending.ledger is None and rounds.committed_step > pending.step:
        return f"step {pending.step} was entered in the ledger together with later ones"
    return ""


def _may_be_announced(rounds: WorldRounds, pending: WorldCheckpoint) -> bool:
    """Whether rank 0 may have announced the checkpoint to the others in a round that has ended since."""
    is_other_round = rounds.phase is RoundPhase.RUNNING and rounds.round != pending.round
    return is_other_round and len(rounds.members) > 1 and rounds.committed_step + 1 >= pending.at_step


def call_off(state: JobState, reason: str, blocked_until: float) -> None:
    """Call off the checkpoint in progress, if any; the next one has another number."""
    pending = state.world_checkpoint
    if pending is None:
        return
    record_entry(state, CutCalledOff(cut=pending.number, reason=reason))
    if pending.step is not None:
        state.emit(WarningRaised(f"checkpoint {pending.number} was not written; the previous one is kept: {reason}"))
    _clear(state, blocked_until)
    if state.pending_stop is not None:
        state.pending_stop.obstacle = reason


def _clear(state: JobState, blocked_until: float) -> None:
    state.world_checkpoint = None
    state.cuts_blocked_until = max(state.cuts_blocked_until, blocked_until)
    state.notify_workers()


def order_for(state: JobState, worker: str) -> CheckpointOrder | None:
    """What a worker must do for the checkpoint in progress; None: nothing."""
    pending = state.world_checkpoint
    if pending is None or worker not in (pending.writers or (pending.writer,)):
        return None
    if worker != pending.writer and worker in pending.shards:
        return None
    # While other ranks may train, a copy would lack the steps that follow it.
    return CheckpointOrder(
        pending.number,
        pending.at_step,
        when_paused=pending.when_paused or (state.pending_stop is not None and not pending.is_last),
    )


# --------------------------------------------------------------------------------------------------
# How a checkpoint goes on.


def handle_copied(state: JobState, worker: str, copied: CopiedState, now: float) -> None:
    """A writer has copied its share of the state, and perhaps written it.

    Call this before the steps of the same message.
    """
    pending, rounds = state.world_checkpoint, state.world
    if pending is None or rounds is None or copied.cut != pending.number or pending.is_committing:
        return
    if pending.step is None and worker == pending.writer:
        pending.step, pending.done = copied.step, copied.done
        pending.writers = _check_writers(worker, copied.writers)
        state.checkpoint_writes.are_shared = len(pending.writers) > 1
        # No round will enter the steps of a last state: training goes on from the checkpoint.
        if pending.is_last or copied.step == rounds.committed_step:
            _capture_ledger(state, pending)
        if len(pending.writers) > 1:
            # The others report their shares when their views name the checkpoint.
            state.notify_workers()
    if worker not in pending.writers:
        return
    if copied.step != pending.step:
        index = state.pods.index_of(worker)
        call_off(state, f"worker-{index} has copied step {copied.step} instead of {pending.step}", now + RETRY_SECONDS)
        return
    if worker not in pending.copied_by:
        pending.copied_by.add(worker)
        pending.waited = 0.0
    pending.pause = max(pending.pause, copied.pause)
    if copied.shard is not None and worker not in pending.shards:
        pending.shards[worker] = copied.shard
        if not copied.shard.error:
            state.checkpoint_writes.record_written(worker, pending.waited)
    commit_if_complete(state)


def _check_writers(worker: str, writers: tuple[str, ...]) -> tuple[str, ...]:
    is_valid = writers[:1] == (worker,) and len(set(writers)) == len(writers) <= MOST_WRITERS
    return writers if is_valid else (worker,)


def capture_ledger(state: JobState, until: int) -> None:
    """Keep the ledger position of the copied step, if it is one of those up to ``until`` that are entered next."""
    pending = state.world_checkpoint
    if pending is None or pending.step is None or pending.ledger is not None or state.world is None:
        return
    if state.world.committed_step < pending.step <= until:
        _capture_ledger(state, pending)


def _capture_ledger(state: JobState, pending: WorldCheckpoint) -> None:
    training = state.training_ledger
    if training is None:
        return
    included = {number: lease.done_steps for number, lease in training.leases.items()}
    for number, records in pending.done.items():
        if (lease := training.leases.get(number)) is not None:
            steps = min(-(-records // lease.minibatch), lease.step_count)
            included[number] = max(included[number], steps)
    pending.ledger = {**training.snapshot_at_cut(included), WORLD_STEP_KEY: pending.step}


def commit_if_complete(state: JobState) -> None:
    """Write the manifest when all files are on disk and the ledger position is known."""
    pending = state.world_checkpoint
    if pending is None or pending.is_committing or pending.step is None:
        return
    shards = tuple(pending.shards[worker] for worker in pending.writers if worker in pending.shards)
    # An error needs neither the others nor a ledger position: the attempt ends, and its files are removed.
    is_complete = pending.ledger is not None and len(shards) == len(pending.writers)
    if not is_complete and not any(shard.error for shard in shards):
        return
    pending.is_committing = True
    state.add_commands(
        SaveCheckpoint(
            pending.number,
            pending.step,
            pending.step,
            pending.ledger or {},
            pending.pause,
            dataset_entry(state),
            shards,
        )
    )


def handle_save_finished(state: JobState, event: CheckpointSaveFinished, now: float) -> None:
    """The manifest is on disk, or the checkpoint failed: then the previous one stays the newest."""
    pending = state.world_checkpoint
    if pending is None or pending.number != event.cut or not pending.is_committing:
        return
    if event.error:
        _fail(state, pending, event.error, now)
        return
    assert pending.step is not None
    assert pending.ledger is not None
    record_entry(
        state, CheckpointWritten(cut=pending.number, step=pending.step, version=pending.step, ledger=pending.ledger)
    )
    state.emit(CheckpointSaved(cut=pending.number, step=pending.step, pause_seconds=pending.pause))
    clear_save_failure(state)
    state.checkpoint_writes.failures = 0
    _clear(state, now)


def _fail(state: JobState, pending: WorldCheckpoint, reason: str, now: float, *, is_stuck: bool = False) -> None:
    """A checkpoint could not be written: another one is tried after a while."""
    record_entry(state, CutCalledOff(cut=pending.number, reason=reason))
    state.emit(WarningRaised(f"checkpoint {pending.number} was not written; the previous one is kept: {reason}"))
    record_save_failure(state, reason, is_stuck=is_stuck)
    if state.pending_stop is not None:
        state.pending_stop.obstacle = reason
    _clear(state, now + RETRY_SAVING_SECONDS)


# --------------------------------------------------------------------------------------------------
# Writers that say nothing: a thread of theirs hangs in a file system that does not answer.


def watch_writers(state: JobState, late_seconds: float, now: float) -> None:
    """Tell users whose file a checkpoint waits for, and let one fail that has waited for too long.

    Nobody knows how far a file is, so the limit follows what others have taken. Call this in a tick.
    """
    rounds, pending, writes = state.world, state.world_checkpoint, state.checkpoint_writes
    # A worker that leaves has its grace period, and a manifest is the master's own.
    if rounds is None or pending is None or state.has_ended or pending.is_last or pending.is_committing:
        return
    since, pending.watched_at = pending.watched_at, now
    if since is not None and _waits_for_writers(state, rounds, pending, now):
        pending.waited += max(0.0, now - since - late_seconds)
    missing = pending.missing_writers
    if not missing or pending.waited < writes.report_seconds:
        return
    reason = describe_missing(state)
    if pending.waited < writes.limit_seconds:
        if not pending.is_reported:
            pending.is_reported = True
            state.emit(WarningRaised(reason))
        return
    writes.stuck.update(missing)
    writes.failures += 1
    if pending.step is None and pending.writer != rounds.members[0]:
        # It copies nothing alone if the state is written in shares, as a new master does not know before.
        writes.are_shared = True
    _fail(state, pending, reason, now, is_stuck=True)


def _waits_for_writers(state: JobState, rounds: WorldRounds, pending: WorldCheckpoint, now: float) -> bool:
    """Whether nothing but its writers delays a checkpoint."""
    holders = [state.holders.get(worker) for worker in pending.missing_writers]
    if any(holder is None or now - holder.last_seen >= SILENCE_FLOOR for holder in holders):
        return False
    if pending.step is not None:
        return True
    # Its main thread copies between two exchanges: it has done so, or cannot, while these go on.
    goes_on = rounds.phase is RoundPhase.RUNNING and now - state.step_arrivals.since < SILENCE_FLOOR
    return goes_on and pending.at_step <= rounds.committed_step


def describe_missing(state: JobState) -> str:
    """Whose files the checkpoint in progress waits for; empty: for none, or not for long."""
    pending = state.world_checkpoint
    if pending is None or pending.is_committing or pending.waited < state.checkpoint_writes.report_seconds:
        return ""
    names = format_short_list([f"worker-{state.pods.index_of(worker)}" for worker in pending.missing_writers])
    has, its = ("has", "its file") if len(pending.missing_writers) == 1 else ("have", "their files")
    if pending.step is None:
        return f"{names} {has} not copied its state for checkpoint {pending.number} in {pending.waited:.0f} s"
    return f"{names} {has} not written {its} of checkpoint {pending.number} in {pending.waited:.0f} s"


# --------------------------------------------------------------------------------------------------
# Back to a checkpoint: no worker has a state that counts.


def handle_checkpoint_refused(state: JobState, event: CheckpointRefused, now: float) -> None:
    """Rank 0 cannot read the newest checkpoint: fall back to the newest older one that is intact."""
    rounds, newest = state.world, state.checkpoint
    if rounds is None or newest is None or state.has_ended or newest.cut != event.cut:
        return
    # A round that has holders, or that runs, needs no checkpoint.
    if rounds.holders or rounds.restore_cut != event.cut or rounds.phase is RoundPhase.RUNNING:
        return
    older = event.fallback
    if older is None:
        end_job(state, "Failed", f"{event.message}; {event.skipped_reasons}", kind="storage")
        return
    reason = f"checkpoint {newest.cut} cannot be used"
    record_entry(
        state,
        CheckpointReplaced(
            cut=older.cut, step=older.step, version=older.version, ledger=dict(older.ledger), reason=reason
        ),
    )
    state.emit(WarningRaised(f"{reason}; falling back to checkpoint {older.cut}: {event.message}"))


def emit_rollback(state: JobState, records: int, updates: int, cut: int, reason: str) -> None:
    """Report that training goes back to a checkpoint, or to the start of the job."""
    if records or updates:
        state.emit(RollbackDone(records=records, updates=updates, to_cut=cut or None, reason=reason))
