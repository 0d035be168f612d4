"""The invariants of a simulated job: at every event, at every cut, and at the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from edl.api.cluster_port import Role
from edl.api.journal_entries import LeaseReturned
from edl.core import events as ev
from edl.core.job import JobStateMachine
from edl.core.ledger import BEST_MODEL, DESCRIBE, EXPORT, METRICS, MODEL_FILE, TRAINING, Ledger
from edl.core.scaling import count_needed_workers, has_waiting_work
from edl.simulation.counted_steps import Steps
from edl.simulation.simulated_ps import Minibatch, SnapshotContent


class BrokenPromiseError(AssertionError):
    """An invariant of the design is violated."""


def journal_is_enough(live: JobStateMachine, replayed: JobStateMachine, last: Sequence[str]) -> None:
    """Replaying the journal gives the live master's state."""
    # Called after every event, and JSON takes most of the time.
    if live.to_snapshot() == replayed.to_snapshot():
        return
    live_state, replayed_state = _journaled_state(live), _journaled_state(replayed)
    if live_state != replayed_state:
        differing = {
            name: (live_state[name], replayed_state[name])
            for name in live_state
            if live_state[name] != replayed_state[name]
        }
        raise BrokenPromiseError(f"replay differs in {differing} after {last}")


def no_more_than_wanted(master: JobStateMachine) -> None:
    """There are never more staying workers than wanted."""
    staying = len(master.pods.staying_pods(Role.WORKER))
    if master.pods_synced and not master.has_ended and staying > master.workers_max:
        raise BrokenPromiseError(f"{staying} workers stay, {master.workers_max} are wanted")


def asked_for_a_reason(master: JobStateMachine, role: Role) -> None:
    """Workers are requested only up to the wanted number, and only for waiting work.

    One worker is allowed without waiting work: it completes the job.
    """
    expected = master.pods.count_expected_workers()
    if role is Role.WORKER and (
        expected > master.workers_max or (expected > count_needed_workers(master) and not has_waiting_work(master))
    ):
        raise BrokenPromiseError(
            f"a worker is asked for, {expected} are there with it, work waits: {has_waiting_work(master)}"
        )


def granted_to_the_living(master: JobStateMachine, wanted: ev.LeaseRequested, granted: ev.LeaseReply) -> None:
    """A pod that has ended gets no lease."""
    if not master.pods.is_live(wanted.worker):
        raise BrokenPromiseError(f"{wanted.worker} has ended and got {granted}")


def cut_agrees(
    training: Ledger,
    command: ev.SaveCheckpoint,
    shards: Mapping[int, SnapshotContent],
    *,
    twice: AbstractSet[Minibatch],
) -> None:
    """Every PS holds exactly what the ledger position of the cut says is done."""
    position = training.empty_copy()
    position.restore_snapshot(json.loads(json.dumps(command.ledger)))
    done = set(done_minibatches(position))
    for index, copy in shards.items():
        applied_once(
            f"ps-{index} at cut {command.cut}", copy.applied_counts, done, lacking=copy.lacking_minibatches, twice=twice
        )


def applied_once(
    holder: str,
    applied: Counter[Minibatch],
    done: AbstractSet[Minibatch],
    *,
    lacking: AbstractSet[Minibatch],
    twice: AbstractSet[Minibatch],
) -> None:
    """A PS applied exactly the done minibatches, each once.

    Args:
        holder: name of the PS in errors.
        applied: how often the PS applied each minibatch.
        done: minibatches that are done according to the ledger.
        lacking: minibatches that the PS lost because it restarted without a checkpoint.
        twice: minibatches that may be applied twice, because only some PS had them when their
            worker was lost.
    """
    missing = done - applied.keys() - lacking
    extra = applied.keys() - done - twice
    often = {what for what, times in applied.items() if times > 1 + (what in twice)}
    if missing or extra or often:
        raise BrokenPromiseError(f"{holder}: missing {missing}, not done {extra}, applied twice {often}")


def all_is_done(master: JobStateMachine) -> None:
    """No training record is left, except quarantined ones."""
    training = master.ledgers[TRAINING]
    aside = sum(work.records for work in training.quarantined_ranges)
    whole = training.done_records + aside == training.total_records
    if master.settings.max_steps is None and (training.count_remaining_records() or not whole):
        raise BrokenPromiseError(
            f"{training.done_records} of {training.total_records} done, {training.count_remaining_records()} left"
        )


def lacking_is_counted(master: JobStateMachine, index: int, applied: Collection[tuple[int, int]], done: Steps) -> None:
    """The summary counts exactly the updates that a PS lacks, and no mismatch was reported."""
    lacking = sum((step.lease, step.step) not in applied for step in done)
    counted = master.counters.updates_of.get(str(index), 0)
    if counted != lacking:
        raise BrokenPromiseError(f"ps-{index} lacks {lacking} updates, and {counted} are counted")
    if master.counters.steps_not_applied:
        raise BrokenPromiseError(f"{master.counters.steps_not_applied} steps are said not to be applied")


def little_is_repeated(master: JobStateMachine, settled: Sequence[LeaseReturned]) -> None:
    """At most one minibatch per lost worker is repeated, and those that only some PS had applied."""
    allowed = sum(master.settings.minibatch * (1 + entry.partial) for entry in settled if entry.repeated)
    if master.counters.repeated > allowed:
        raise BrokenPromiseError(f"{master.counters.repeated} records repeated, at most {allowed} can be")


def evaluated_once(validation: Sequence[tuple[str, int]], payload: Mapping[str, Any]) -> None:
    """An evaluation covers each validation record exactly once."""
    counts: Counter[tuple[str, int]] = Counter()
    for source, start, end in payload["seen"]["states"]:
        counts.update((source, record) for record in range(start, end))
    expected = {(name, record) for name, records in validation for record in range(records)}
    if counts.keys() != expected or set(counts.values()) != {1}:
        raise BrokenPromiseError("the last evaluation did not cover every validation record once")


def done_minibatches(ledger: Ledger) -> Iterator[Minibatch]:
    """Every done minibatch: all that were ever leased, minus those that are still open."""
    todo = {
        (work.epoch, work.source, start)
        for _, work in ledger.open_ranges()
        for start in range(work.start, work.end, ledger.minibatch)
    }
    for epoch in range(min(ledger.epoch + 1, ledger.epochs)):
        for index in range(ledger.plan.shard_count if epoch < ledger.epoch else ledger.shard_index):
            shard = ledger.plan.shard(epoch, index)
            for start in range(shard.start, shard.end, ledger.minibatch):
                if (epoch, shard.source, start) not in todo:
                    yield epoch, shard.source, start


def _journaled_state(state: JobStateMachine) -> dict[str, Any]:
    """The part of the state that the journal must restore, as JSON; pending actions follow from it."""
    snapshot: dict[str, Any] = json.loads(json.dumps(state.to_snapshot()))
    for kind in (DESCRIBE, METRICS, EXPORT, BEST_MODEL, MODEL_FILE):
        ledger = snapshot["ledgers"].get(kind)
        if ledger and not ledger["leases"] and not ledger["done_records"]:
            del snapshot["ledgers"][kind]
    return snapshot
