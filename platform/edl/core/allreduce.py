"""The world of strategy AllReduce within the job: what workers report about it, and what follows.

``world_rounds`` decides about rounds; this module gives it what the job knows of its pods, journals its
decisions, and makes the view of them that a worker sees. Workers ask for this view and wait for the next
one. It is complete each time, so no message has to arrive, and none has to arrive only once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edl.api.cluster_port import Role
from edl.api.journal_entries import LeaseReturned, StoppedByCallback
from edl.api.run_events import CallbackDecided, RecordsRequeued, WarningRaised, WorldChanged
from edl.api.status import RANKS_SHOWN, WorldStatus
from edl.core import (
    member_crashes,
    world_checkpoints,
    world_entries,
    world_evaluations,
    world_model_files,
    world_returns,
)
from edl.core.checkpointing import steps_before_pause
from edl.core.events import CheckpointOrder, WorldReported, WorldView, WorldViewed
from edl.core.grants import check_corrupt_limit, record_heartbeat
from edl.core.job_pods import JobPod
from edl.core.journal_application import end_job, record_entry
from edl.core.rank_state import RankPhase
from edl.core.record_ranges import RecordRange
from edl.core.shuffle import SHUFFLED_SOURCE_NAME
from edl.core.state import JobState
from edl.core.state_agreement import DIGEST_STEPS
from edl.core.stragglers import watch_stragglers
from edl.core.world_rounds import (
    NO_ROUND,
    ChangeAtBoundary,
    CloseRound,
    MemberReport,
    RoundAnnounced,
    RoundCommand,
    RoundPhase,
    RoundStarted,
    StateDiverged,
    StepsCommitted,
    WorldRounds,
)

CLOSING_SILENCE_SECONDS = 2.0
"""A worker that is silent for so long while the others wait for its report counts as lost.

Its messages come from a thread of their own, at least twice a second.
"""


# ------------------------------------------------------------------------------------------------ what workers say


_LAST_STEP = 2**62 - 1
"""The largest number that a message has. An interval may be longer: no step of it is ever reached."""


def handle_world_reported(state: JobState, event: WorldReported, now: float) -> None:
    """A worker reported what it knows of the rounds; the answer is its view of them."""
    record_heartbeat(state, event.worker, now)
    rounds, pod = state.world, state.pods.by_uid.get(event.worker)
    if rounds is not None and pod is not None and pod.live and pod.has_run and state.pods_synced:
        before, was_running = rounds.committed_step, rounds.phase is RoundPhase.RUNNING
        if event.copied is not None:
            world_checkpoints.handle_copied(state, event.worker, event.copied, now)
        _obey(state, rounds, _handle_report(state, rounds, event, pod), event.loss)
        if rounds.committed_step > before:
            state.last_step = now
        _record_arrival(state, rounds, event, rounds.committed_step - before if was_running else 0, now)
        state.evaluation_copies.record_report(rounds, event.worker, event.round, event.evaluation_copy)
        if event.is_paused and event.round == rounds.round and event.stable_step == rounds.committed_step:
            _stop_by_callback(state, rounds, event)
            world_evaluations.begin_if_paused(state, rounds)
            world_model_files.begin_if_paused(state, rounds)
        world_evaluations.advance_evaluation(state, now)
        world_checkpoints.commit_if_complete(state)
        # Before the view: rank 0 would copy its state for a checkpoint that the change of the world calls off.
        world_checkpoints.advance_checkpoint(state, now)
    # Before the view: it names the next evaluation already, so without the pause the ranks would train on.
    _update_pause(state)
    state.add_commands(view_world(state, event.worker))


def _record_arrival(state: JobState, rounds: WorldRounds, event: WorldReported, new_steps: int, now: float) -> None:
    """Note how far the sender's main thread is, and how long steps take.

    Args:
        new_steps: so many were entered in the ledger while the round ran; when it starts, it enters those of the round
            before.
    """
    arrivals = state.step_arrivals
    arrivals.follow_round(rounds.round, rounds.phase, now)
    if new_steps > 0 and rounds.phase is RoundPhase.RUNNING:
        arrivals.record_committed(new_steps, now)
    is_member = event.worker in rounds.members and event.worker not in rounds.lost
    if event.entered is not None and event.round == rounds.round and is_member and not rounds.is_closing:
        arrivals.record_entered(event.worker, event.entered, event.report.step or 0, now)


def _handle_report(state: JobState, rounds: WorldRounds, event: WorldReported, pod: JobPod) -> list[RoundCommand]:
    leaves = event.is_leaving or not pod.staying
    commands = rounds.handle_leaving(event.worker) if leaves and event.worker not in rounds.leaving else []
    return commands + _handle_phase(state, rounds, event, pod, leaves=leaves)


def _handle_phase(
    state: JobState, rounds: WorldRounds, event: WorldReported, pod: JobPod, *, leaves: bool
) -> list[RoundCommand]:
    if event.phase is RankPhase.OUTSIDE:
        # A worker that was told to leave only has to end.
        if leaves and event.worker not in rounds.members:
            return []
        return rounds.handle_candidate(event.worker, pod.index, event.round, _check_shares(state, rounds, event.report))
    if event.phase in (RankPhase.FOLLOWING, RankPhase.CAUGHT_UP):
        # Like a candidate: the master that sent it out of the round may have been replaced.
        if event.worker in rounds.members and event.worker not in rounds.lost:
            return rounds.handle_report(event.worker, event.round, _check_shares(state, rounds, event.report))
        if leaves:
            return []
        is_caught_up = event.phase is RankPhase.CAUGHT_UP
        return rounds.handle_follower(event.worker, pod.index, event.round, is_caught_up=is_caught_up)
    if event.phase is RankPhase.ENDED:
        return rounds.handle_report(event.worker, event.round, _check_shares(state, rounds, event.report))
    if event.phase is RankPhase.CONFIRMED:
        return rounds.handle_confirmed(event.worker, event.round, event.report.digest, event.difference)
    if event.phase is RankPhase.RUNNING:
        reported = _check_shares(state, rounds, replace(event.report, step=event.stable_step))
        if reported.step is None:
            return []
        return rounds.handle_stable(event.round, reported.step, reported.done, reported.skipped, reported.skipped_steps)
    return []


def _check_shares(state: JobState, rounds: WorldRounds, report: MemberReport) -> MemberReport:
    """A report as it may be believed: without the shares of a step, the state of that step counts for nothing."""
    if report.step is None:
        return report
    training = state.training_ledger
    # A step has at least one record that is not in the ledger.
    most = training.total_records - training.done_records if training is not None else 0
    if report.after > rounds.committed_step or report.step - rounds.committed_step > most:
        return replace(report, step=None, done={}, skipped={}, skipped_steps=())
    return report


def handle_world_viewed(state: JobState, event: WorldViewed, now: float) -> None:
    """Answer with the present view, after a wait."""
    record_heartbeat(state, event.worker, now)
    state.add_commands(view_world(state, event.worker))


def view_world(state: JobState, worker: str) -> WorldView:
    """The rounds as one worker must see them.

    Raises:
        ValueError: the job has another strategy.
    """
    rounds, training = state.world, state.training_ledger
    if rounds is None:
        raise ValueError("only a job of strategy AllReduce has a world")
    leases = {lease.number: lease for lease in training.worker_leases(worker)} if training is not None else {}
    has_batch = training is not None and state.settings.global_batch is not None
    sources = _find_sources(rounds, state.pods.by_uid.get(worker))
    return WorldView(
        version=state.world_version,
        round=rounds.round,
        phase=rounds.phase,
        is_member=rounds.counts_as_member(worker),
        members=rounds.members,
        step=rounds.base_step,
        holders=rounds.holders,
        committed_step=rounds.committed_step,
        must_change=bool(rounds.pending_change),
        reason=rounds.pending_change or rounds.waiting_reason,
        leases={n: x.record_after_steps(x.done_steps) - x.record_range.start for n, x in leases.items()},
        last_lease=state.next_lease_number() - 1,
        must_pause=state.world_pauses,
        evaluate_at=min(_pause_step(state), _LAST_STEP),
        restore_cut=rounds.restore_cut,
        checkpoint=_limit_step(world_checkpoints.order_for(state, worker)),
        learning_rate=state.callbacks.learning_rate,
        epoch_left=training.open_epoch()[1] if training is not None and has_batch else 0,
        # A worker with suspect records gets no others, and one with others gets no suspect ones.
        may_be_short=has_batch and bool(state.crash_suspects.suspect_ranges),
        source=sources[0] if sources else "",
        helpers=sources[1:],
        copy_at=min(state.evaluation_copies.at_step, _LAST_STEP) if worker in state.evaluation_copies.evaluators else 0,
        evaluated_step=world_evaluations.evaluated_step(state, worker),
        epoch=training.open_epoch()[0] if training is not None else 0,
    )


def _pause_step(state: JobState) -> int:
    """The step after which all ranks pause by themselves; 0: there is none."""
    steps = (world_evaluations.pause_step(state), world_model_files.pause_step(state))
    return min((step for step in steps if step), default=0)


def _limit_step(order: CheckpointOrder | None) -> CheckpointOrder | None:
    return order and replace(order, at_step=min(order.at_step, _LAST_STEP))


MOST_SOURCES = 4
"""Members from which a worker that joins gets its state."""


def _find_sources(rounds: WorldRounds, pod: JobPod | None) -> tuple[str, ...]:
    """The members that let a worker outside follow the running round; several workers get different ones.

    The first one sends it the steps, and each sends a part of the state. They are on different nodes: what they send
    takes a share of a network connection which the members need for their own steps. A member on the worker's own node
    sends everything, because this crosses no network.
    """
    if pod is None or rounds.phase is not RoundPhase.RUNNING or pod.uid in rounds.members:
        return ()
    staying = [worker for worker in rounds.members if worker not in rounds.leaving]
    own_node = rounds.node_of(pod.uid)
    near = [worker for worker in staying if own_node and rounds.node_of(worker) == own_node]
    candidates = near or staying
    if not candidates:
        return ()
    at = pod.index % len(candidates)
    first, *others = candidates[at:] + candidates[:at]
    by_node = {rounds.node_of(first): first}
    if "" in by_node or near:
        return (first,)
    for worker in others:
        by_node.setdefault(rounds.node_of(worker), worker)
    by_node.pop("", None)
    return tuple(by_node.values())[:MOST_SOURCES]


# ------------------------------------------------------------------------------------------------ what the job knows


def restart_world(state: JobState) -> None:
    """A new master has replayed the journal."""
    if state.world is not None and state.world.round != NO_ROUND:
        _obey(state, state.world, state.world.handle_restart())


def advance_world(state: JobState, now: float) -> None:
    """Tell the rounds which workers are gone or leave, and how many there must be."""
    rounds = state.world
    if rounds is None:
        return
    # There may be a thousand members and thousands of messages a second. Reports check their own sender.
    if state.world_pods_version != state.pods.version:
        state.world_pods_version = state.pods.version
        for worker in (*rounds.members, *rounds.candidates):
            if worker not in rounds.lost:
                _obey(state, rounds, _check_worker(state, rounds, worker))
    if rounds.members_min != state.members_needed:
        rounds.members_min = state.members_needed
        _obey(state, rounds, rounds.announce_if_possible())
    _return_leases_after_limit(state)
    world_evaluations.advance_evaluation(state, now)
    _update_pause(state)


def _update_pause(state: JobState) -> None:
    pauses = (
        world_evaluations.pauses(state)
        or state.pending_stop is not None
        or steps_before_pause(state) == 0
        # A callback ended training at the evaluation for which all paused.
        or bool(state.callback_stop_reason)
        # No best model is skipped, as with ``keras.fit``; all would wait for the worker that writes it in any case.
        or state.callbacks.best_to_write is not None
        or world_model_files.is_due(state)
    )
    if pauses != state.world_pauses:
        state.world_pauses = pauses
        state.notify_workers()


def _check_worker(state: JobState, rounds: WorldRounds, worker: str) -> list[RoundCommand]:
    pod = state.pods.by_uid.get(worker)
    if pod is None or not pod.live:
        return rounds.handle_lost(worker, pod.describe_end() if pod is not None else "its pod is gone")
    if not pod.staying and worker not in rounds.leaving:
        return rounds.handle_leaving(worker)
    return []


def lose_silent_workers(state: JobState, now: float) -> None:
    """Tell the rounds which workers are silent.

    Call this in a tick only, after the silence that the master caused is excused: when a stopped master goes on,
    the first message finds all other workers silent.
    """
    rounds = state.world
    if rounds is None or state.has_ended or not state.pods_synced:
        return
    for worker in (*rounds.members, *rounds.candidates):
        if worker not in rounds.lost:
            _obey(state, rounds, _check_silence(state, rounds, worker, now))


def lose_stragglers(state: JobState, late_seconds: float, now: float) -> None:
    """Tell the rounds which members' main threads hang. Call this in a tick only.

    Their processes live, and what they say counts again when they ask to join.
    """
    for worker, reason in watch_stragglers(state, late_seconds, now).items():
        if state.world is not None:
            _obey(state, state.world, state.world.handle_lost(worker, reason))


def _check_silence(state: JobState, rounds: WorldRounds, worker: str, now: float) -> list[RoundCommand]:
    record = state.holders.get(worker)
    if record is None:
        # A worker that this master has not heard yet is silent from now on.
        record_heartbeat(state, worker, now)
        return []
    limit = record.silence_limit(state.lease_timeouts)
    is_awaited = worker in rounds.members or worker in rounds.joining
    if rounds.phase is RoundPhase.CLOSING and is_awaited and worker not in rounds.reports:
        limit = CLOSING_SILENCE_SECONDS
    silent = now - record.last_seen
    return rounds.handle_lost(worker, f"it sent nothing for {silent:.1f} s") if silent > limit else []


def _return_leases_after_limit(state: JobState) -> None:
    """With ``train.max_steps`` steps applied, or after a callback's stop, every lease returns: no step follows."""
    rounds, training = state.world, state.training_ledger
    if rounds is None or training is None or not training.leases:
        return
    if not state.has_reached_limit(training) and not state.callback_stop_reason:
        return
    if rounds.phase is RoundPhase.RUNNING:
        for number, lease in sorted(training.leases.items(), reverse=True):
            record_entry(state, LeaseReturned(lease=number, through=lease.done_steps, partial=0, repeated=0))
        state.notify_workers()


def _stop_by_callback(state: JobState, rounds: WorldRounds, event: WorldReported) -> None:
    """Callbacks of the user's ended training. All ranks have heard of it, and every step is in the ledger."""
    if not event.is_stopped or rounds.phase is not RoundPhase.RUNNING or state.callback_stop_reason:
        return
    record_entry(state, StoppedByCallback(step=rounds.committed_step))
    decision = state.callback_stop_reason
    state.emit(CallbackDecided(step=rounds.committed_step, callback="callbacks()", decision=decision))


# ------------------------------------------------------------------------------------------------ effects


def _obey(state: JobState, rounds: WorldRounds, commands: list[RoundCommand], loss: float | None = None) -> None:
    """Carry out what the rounds decided: entries first."""
    for command in commands:
        if isinstance(command, CloseRound | ChangeAtBoundary):
            if isinstance(command, CloseRound) and command.warning:
                state.emit(WarningRaised(command.warning))
            state.notify_workers()
        elif isinstance(command, RoundAnnounced):
            _announce(state, rounds, command)
            state.notify_workers()
        elif isinstance(command, RoundStarted):
            _credit_workers(state, command.done)
            returned = [lease for lease in member_crashes.open_leases(state) if not rounds.keeps_leases(lease.worker)]
            world_checkpoints.capture_ledger(state, command.step)
            training = state.training_ledger
            known_difference = rounds.difference
            lost = world_returns.find_lost_shares(command, rounds, training, state.settings.global_batch)
            record_entry(state, world_entries.started_entry(command, rounds, training, tuple(lost.values())))
            check_corrupt_limit(state)
            _emit_repeated(state, lost)
            member_crashes.judge_returned_leases(state, returned, is_progress_known=True)
            _emit_change(state, rounds)
            if command.difference and command.difference != known_difference:
                state.emit(WarningRaised(_describe_difference(command.difference)))
            _credit(state)
            state.notify_workers()
            _obey(state, rounds, rounds.request_pending_leaves())
        elif isinstance(command, StepsCommitted):
            _credit_workers(state, command.done)
            world_checkpoints.capture_ledger(state, command.step)
            record_entry(state, world_entries.committed_entry(command, loss))
            check_corrupt_limit(state)
            _credit(state)
        else:
            _fail_diverged(state, command)


def _emit_repeated(state: JobState, lost_shares: Mapping[str, RecordRange]) -> None:
    for worker, share in lost_shares.items():
        if not share.records:
            continue
        state.emit(
            RecordsRequeued(
                start=share.start,
                end=share.end,
                source=share.source or SHUFFLED_SOURCE_NAME,
                worker=state.pods.index_of(worker),
                reason="the worker was lost, and may have computed them",
            )
        )


def _announce(state: JobState, rounds: WorldRounds, announced: RoundAnnounced) -> None:
    entry = world_entries.announced_entry(announced, state.training_ledger, state.checkpoint)
    if entry.ledger is not None:
        # A copy of a later state belongs to steps that are made again.
        world_checkpoints.call_off(state, "training went back to the newest checkpoint", state.cuts_blocked_until)
        updates = max(0, rounds.committed_step - entry.step)
        world_checkpoints.emit_rollback(
            state, entry.records or 0, updates, entry.cut or 0, "no worker is left that has the newest parameters"
        )
    lost = member_crashes.open_leases(state)
    record_entry(state, entry)
    for worker in announced.joined:
        member_crashes.forget_returned_leases(state, worker)
    # The ledger goes back: nobody knows how far the lost workers were.
    if entry.ledger is not None:
        member_crashes.judge_returned_leases(state, lost, is_progress_known=False)


def _credit(state: JobState) -> None:
    """Steps show that training goes on: they offset crashes, and end the time in which workers may be slow."""
    if state.world is None:
        return
    for worker in state.world.members:
        pod, holder = state.pods.by_uid.get(worker), state.holders.get(worker)
        if pod is not None and pod.building:
            state.pods.mark_model_built(worker)
        if holder is not None:
            holder.is_starting = False


def _credit_workers(state: JobState, done: Mapping[int, int]) -> None:
    """Count the steps of each worker's records before they are entered: their rate, and what offsets crashes."""
    training = state.training_ledger
    for number, records in done.items():
        lease = training.leases.get(number) if training is not None else None
        if lease is None:
            continue
        applied = min(-(-records // lease.minibatch), lease.step_count)
        steps = applied - lease.done_steps
        if applied == lease.step_count:
            state.crash_suspects.close_lease(lease, applied)
        holder = state.holders.get(lease.worker)
        if steps > 0:
            state.crash_suspects.fruitless_losses = 0
        if holder is not None and steps > 0:
            holder.step_count += steps
        minibatches = -(-steps * lease.minibatch // state.settings.minibatch)
        state.pods.credit_steps(Role.WORKER, max(0, minibatches))


def _emit_change(state: JobState, rounds: WorldRounds) -> None:
    reason = _name_workers(state, rounds.change_reason)
    state.emit(
        WorldChanged(round=rounds.round.number, workers=len(rounds.members), step=rounds.base_step, reason=reason)
    )


def _describe_difference(difference: str) -> str:
    return f"workers may round differently, so all take the variables of one every {DIGEST_STEPS} steps: {difference}"


def _name_workers(state: JobState, reason: str) -> str:
    """A reason for users, who know workers by their index and not by their uid."""
    for uid, pod in state.pods.by_uid.items():
        reason = reason.replace(uid, f"{pod.role.value}-{pod.index}")
    return reason


def describe_world(state: JobState) -> WorldStatus | None:
    """The world as users see it; None under other strategies."""
    rounds = state.world
    if rounds is None:
        return None
    is_running = rounds.phase is RoundPhase.RUNNING
    indices = [state.pods.index_of(worker) for worker in rounds.members[:RANKS_SHOWN]]
    return WorldStatus(
        round=rounds.round.number,
        running=is_running,
        size=len(rounds.members),
        # A new master knows the members from its journal before the cluster reports their pods.
        ranks=tuple(-1 if index is None else index for index in indices),
        step=rounds.committed_step,
        changed=_name_workers(state, rounds.change_reason),
        reason=_name_workers(state, rounds.pending_change if is_running else rounds.waiting_reason),
        difference=rounds.difference,
        states_taken=rounds.states_taken,
        evaluation=world_evaluations.describe_evaluation(state) or world_model_files.describe_pause(state),
        # After the end no tick clears it.
        awaited="" if state.has_ended else state.step_arrivals.description or _describe_unsaved(state),
    )


def _describe_unsaved(state: JobState) -> str:
    """Whose files of a checkpoint all wait for."""
    waits = state.world_pauses or state.is_training_over()
    return world_checkpoints.describe_missing(state) if waits else ""


def _fail_diverged(state: JobState, diverged: StateDiverged) -> None:
    first, second = (f"worker-{state.pods.index_of(worker)}" for worker in diverged.workers)
    end_job(
        state,
        "Failed",
        f"{first} and {second} have different variables after step {diverged.step}: "
        "their model, their packages or their processors compute different values",
        kind="input",
    )
