"""Decides that a lease is lost, and revokes it.

A lease expires when its worker is silent or stuck (``lease_timeouts`` has the limits), and is revoked when its pod
ends. Leases that change no parameters are revoked at once, training leases when every PS has confirmed it.

A revocation is complete when every PS has reported the steps that it applied. ``settle_leases`` then decides which
steps count, and which records return to the ledger.

Under AllReduce there is no such revocation: ``revoke_leases`` skips training leases. They return when the next round
starts without their worker, as ``world_returns`` decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from edl.api.cluster_port import Role
from edl.api.journal_entries import LeaseReturned, RevocationStarted
from edl.api.run_events import LeaseRevoked, RangeQuarantined, RecordsRequeued, WarningRaised
from edl.core import checkpointing
from edl.core.events import LeasesRevoked, RevokeLeases, Tick
from edl.core.journal_application import end_job, record_entry
from edl.core.lease_timeouts import LeaseHolder
from edl.core.ledger import EVALUATION, METRICS, TRAINING, Lease, LeaseRevocation
from edl.core.record_ranges import RecordRange, describe_ranges
from edl.core.shuffle import SHUFFLED_SOURCE_NAME
from edl.core.state import JobState


def handle_tick(state: JobState, event: Tick, now: float) -> None:
    """Revoke leases that expired. Time in which the master was blocked does not count as a worker's silence."""
    if event.late_seconds > 0:
        for holder in state.holders.values():
            holder.excuse_silence(event.late_seconds, now)
    # The message of such a worker is here and waits for the master's disk.
    for worker in event.speaking_workers & state.holders.keys():
        state.holders[worker].excuse_silence(now - state.holders[worker].last_seen, now)
    revoke_expired_leases(state, now)


def revoke_expired_leases(state: JobState, now: float) -> None:
    """Revoke the leases of workers that are silent or stuck, or that do not know of them."""
    for worker, holder in list(state.holders.items()):
        # The answer that granted these was lost, so none of their minibatches is in progress.
        unknown = holder.find_unknown_leases(state.lease_timeouts)
        if unknown:
            reason = "its worker does not report it"
            revoke_leases(state, worker, reason, now, in_flight=False, only_leases=unknown)
        reasons = holder.find_expired_leases(now, state.lease_timeouts)
        if reasons:
            if not holder.is_silent(now, state.lease_timeouts):
                _give_up_copy(state, worker, *next(iter(reasons.items())))
                state.lease_timeouts.stepless_expiries += len(holder.stepless.intersection(reasons))
            revoke_leases(state, worker, next(iter(reasons.values())), now, only_leases=list(reasons))
        _drop_closed_leases(state, holder, [*unknown, *reasons])


def _give_up_copy(state: JobState, worker: str, number: int, reason: str) -> None:
    """If it is the evaluation of a copy that hangs, this worker gets no further part of it: it would hang, too."""
    leased, running = state.find_lease(number), state.evaluation
    if state.world is None or running is None or leased is None or leased[0] not in (EVALUATION, METRICS):
        return
    if running.of_copy and state.evaluation_copies.give_up(state.world, worker, running.step):
        hung = f"worker-{state.pods.index_of(worker)} hangs in the evaluation of step {running.step:,}, {reason}"
        state.emit(WarningRaised(f"{hung}: it evaluates no more copies"))
        state.notify_workers()


def _drop_closed_leases(state: JobState, holder: LeaseHolder, numbers: Sequence[int]) -> None:
    """Forget leases that disappeared with their ledger."""
    for number in numbers:
        if state.find_lease(number) is None:
            holder.drop_lease(number)


def revoke_leases(
    state: JobState,
    worker: str,
    reason: str,
    now: float,
    *,
    in_flight: bool = True,
    crashed: bool = False,
    only_leases: Sequence[int] | None = None,
) -> None:
    """Revoke leases of a worker.

    Args:
        in_flight: whether the worker may have been in the middle of a minibatch.
        crashed: whether the worker ended by an error of its own.
        only_leases: the leases to revoke; by default all of them.
    """
    training = []
    # Newest first: each range is put at the head of the queue, so the oldest is leased next.
    for kind, lease in reversed(state.worker_leases(worker)):
        if only_leases is not None and lease.number not in only_leases:
            continue
        # Under AllReduce the next round says which of its records are in the variables of the others.
        if kind == TRAINING and state.world is not None:
            continue
        if kind == TRAINING:
            # Only the PS know the progress: they may have applied pushes that no worker has
            # reported.
            training.append(lease.number)
        else:
            # These tasks have a single result; without it there is no partial progress, and no PS
            # needs to be asked.
            repeated = _records_begun(state, worker, kind, lease)
            record_entry(state, LeaseReturned(lease=lease.number, through=0, partial=0, repeated=repeated))
            _tell_returned(state, lease.record_range, worker, reason)
        close_lease(state, worker, lease.number, now)
    if training:
        leases = tuple(sorted(training))
        _begin_revocation(
            state,
            RevocationStarted(worker=worker, leases=leases, reason=reason, in_flight=in_flight, crashed=crashed),
            now,
        )


def _records_begun(state: JobState, worker: str, kind: str, lease: Lease) -> int:
    """The records of a lost task that another worker evaluates or predicts again, in a job that does nothing else.

    The master does not know how far the worker was: all records of the task that it was at count. If it has reported
    steps, the user's code has their predictions and another one was in progress.
    """
    if kind == TRAINING or kind != state.settings.main_kind:
        return 0
    pod = state.pods.by_uid.get(worker)
    is_current = lease is state.worker_leases(worker)[0][1]
    if not is_current or (pod is not None and pod.building):
        return 0
    steps = lease.done_steps + 1 if lease.done_steps else lease.step_count
    return lease.record_after_steps(steps) - lease.record_after_steps(lease.done_steps)


def close_lease(state: JobState, worker: str, lease: int, now: float) -> None:
    """Remove a lease from its worker; the worker's next lease becomes its current one."""
    holder = state.holders.get(worker)
    if holder is not None:
        holder.drop_lease(lease, now)


def _tell_returned(state: JobState, work: RecordRange, worker: str, reason: str) -> None:
    index, source = state.pods.index_of(worker), work.source or SHUFFLED_SOURCE_NAME
    state.emit(RecordsRequeued(start=work.start, end=work.end, source=source, worker=index, reason=reason))


def _begin_revocation(state: JobState, revocation: RevocationStarted, now: float) -> None:
    if state.cut is not None and state.cut.may_pause_updates:
        # A step that only some PS applied may never reach the others, and the cut would wait for
        # it.
        checkpointing.abort_cut(
            state, f"leases of {revocation.worker} were revoked meanwhile", now, checkpointing.RETRY_SECONDS
        )
    record_entry(state, revocation)
    for number in revocation.leases:
        work = state.ledgers[TRAINING].leases[number].record_range
        state.emit(
            LeaseRevoked(
                worker=state.pods.index_of(revocation.worker),
                source=work.source or SHUFFLED_SOURCE_NAME,
                start=work.start,
                end=work.end,
                reason=revocation.reason,
            )
        )
    request_revocation(state, state.revocations[-1])


def request_revocation(state: JobState, revocation: LeaseRevocation) -> None:
    """Ask every live PS to revoke; those that are not attached yet are asked when they attach."""
    live = state.pods.live_pods(Role.PS)
    # Wait for unattached PS too: one of them may hold pushes that the others do not have.
    revocation.waiting_ps = {ps.uid for ps in live}
    for ps in live:
        if ps.attached:
            state.add_commands(RevokeLeases(ps.uid, revocation.leases, state.lowest_open_lease()))


def handle_leases_revoked(state: JobState, event: LeasesRevoked, now: float) -> None:
    """A PS reported its progress on revoked leases."""
    for revocation in state.revocations:
        revocation.record_answer(event.ps, event.applied_steps, event.first_steps)


def settle_revocations(state: JobState, now: float) -> None:
    """Put the ranges of completed revocations back at the head of the queue."""
    if state.has_ended or not state.pods_synced or checkpointing.is_ledger_frozen(state):
        return
    # While a PS is missing, the progress of a lease is unknown.
    if state.paused_cut:
        return
    for revocation in [x for x in state.revocations if not x.waiting_ps]:
        settlements = settle_leases(revocation, state.ledgers[TRAINING].leases)
        # Before any range is requeued: the cause of a crash must not be leased again as if nothing
        # had happened.
        quarantine = _judge_crash(state, revocation, settlements)
        for s in reversed(settlements):
            _requeue_records(state, revocation, s, quarantine.get(s.lease, 0))


def settle_leases(revocation: LeaseRevocation, leases: Mapping[int, Lease]) -> list[LeaseReturned]:
    """The journal entries that return the leases of a completed revocation, oldest first.

    Steps that the worker reported were applied by all PS; a PS that has fewer of them has rolled back to a
    checkpoint since. Steps that were not reported count as done only if every PS has applied them.
    """
    settlements = []
    # At most one minibatch was in progress: that of the first unfinished lease.
    in_flight = revocation.in_flight
    for number in sorted(revocation.leases):
        lease = leases.get(number)
        # Already closed in another way.
        if lease is None:
            continue
        # Clamp to the range: a faulty worker can push a step beyond its end.
        reported_steps = [min(applied[number], lease.step_count) for applied in revocation.applied_steps.values()]
        applied_steps = [max(steps, lease.done_steps) for steps in reported_steps] or [lease.done_steps]
        low, high = min(applied_steps), max(applied_steps)
        repeated = 0
        if low < lease.step_count and (in_flight or high > low):
            repeated = lease.record_after_steps(max(high, low + 1)) - lease.record_after_steps(low)
            in_flight = False
        # Steps that only some PS applied are pushed again under a new lease number. Those PS then
        # count them twice.
        extra = revocation.admitted_steps(number, low) or None
        settlements.append(LeaseReturned(lease=number, through=low, partial=high - low, repeated=repeated, extra=extra))
    return settlements


def _requeue_records(state: JobState, revocation: LeaseRevocation, settlement: LeaseReturned, quarantine: int) -> None:
    lease = state.ledgers[TRAINING].leases[settlement.lease]
    rest = lease.record_range.split(lease.record_after_steps(settlement.through))[1]
    records = quarantined_records(state, rest.split(min(rest.end, rest.start + quarantine))[0])
    record_entry(state, replace(settlement, quarantine=quarantine or None, records=records))
    if rest.records:
        _tell_returned(state, rest, revocation.worker, revocation.reason)


def quarantined_records(state: JobState, work: RecordRange) -> Any:
    """The records at the positions of a quarantined range, by file; None if they are not shuffled.

    Positions of a shuffled order mean nothing to users or to programs that read the files.
    """
    if state.shuffle_order is None or not work.records:
        return None
    return state.shuffle_order.record_ranges(work.epoch, work.start, work.end)


def _judge_crash(state: JobState, revocation: LeaseRevocation, settlements: Sequence[LeaseReturned]) -> dict[int, int]:
    """What a crash implies about the worker's minibatches; returns the lease with records to quarantine."""
    leases = state.ledgers[TRAINING].leases
    applied = [(leases[s.lease], s.through) for s in settlements]
    guilty = state.crash_suspects.record_crash(applied) if revocation.crashed else None
    for lease, applied_steps in applied:
        state.crash_suspects.close_lease(lease, applied_steps)
    if guilty is None or not punish_range(state, *guilty):
        return {}
    work = guilty[0]
    state.crash_suspects.clear_range(work)
    report_quarantine(state, *guilty)
    at_work = next(lease.number for lease, applied_steps in applied if applied_steps < lease.step_count)
    return {at_work: work.records}


def punish_range(state: JobState, work: RecordRange, count: int) -> bool:
    """Follow ``train.on_crashing_range``: end the job, or return that the guilty minibatch is to be quarantined."""
    if state.settings.skip_crashing:
        # The range was to blame.
        state.pods.forgive_crashes(Role.WORKER, count)
        return True
    message, detail = state.last_failure or ("see the workers' logs", "")
    end_job(
        state, "Failed", f"{_describe_range(state, work)} made workers crash {count} times: {message}", detail, "crash"
    )
    return False


def report_quarantine(state: JobState, work: RecordRange, count: int) -> None:
    """Tell users that a guilty minibatch is skipped from now on."""
    source = work.source or SHUFFLED_SOURCE_NAME
    reason = f"{_describe_range(state, work)} made workers crash {count} times"
    state.emit(RangeQuarantined(source=source, start=work.start, end=work.end, reason=reason))


def _describe_range(state: JobState, work: RecordRange) -> str:
    if state.shuffle_order is not None:
        return describe_ranges(state.shuffle_order.record_ranges(work.epoch, work.start, work.end))
    return f"records {work.start} to {work.end - 1} of {work.source}"
