"""What must hold in a simulated job: at every event, at every cut, and at the end."""

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
from edl.core.ledger import BEST_MODEL, DESCRIBE, EXPORT, METRICS, TRAINING, Ledger
from edl.core.scaling import has_waiting_work
from edl.simulation.counted_steps import Steps
from edl.simulation.simulated_ps import Copy, Minibatch


class BrokenPromiseError(AssertionError):
    """Something happened that the design rules out."""


def journal_is_enough(live: JobStateMachine, replayed: JobStateMachine, last: Sequence[str]) -> None:
    """What replays the journal is where the live master is."""
    one, other = _essence(live), _essence(replayed)
    if one != other:
        differing = {name: (one[name], other[name]) for name in one if one[name] != other[name]}
        raise BrokenPromiseError(f"replay differs in {differing} after {last}")


def no_more_than_wanted(master: JobStateMachine) -> None:
    """Never more workers that stay than are wanted."""
    staying = len(master.pods.staying_pods(Role.WORKER))
    if master.pods_synced and not master.has_ended and staying > master.workers_max:
        raise BrokenPromiseError(f"{staying} workers stay, {master.workers_max} are wanted")


def asked_for_a_reason(master: JobStateMachine, role: Role) -> None:
    """Never more workers asked for than are wanted, and none for nothing; one is needed to come to an end."""
    there = master.pods.count_expected_workers()
    if role is Role.WORKER and (there > master.workers_max or (there > 1 and not has_waiting_work(master))):
        raise BrokenPromiseError(
            f"a worker is asked for, {there} are there with it, work waits: {has_waiting_work(master)}"
        )


def granted_to_the_living(master: JobStateMachine, wanted: ev.LeaseRequested, granted: ev.LeaseReply) -> None:
    """No work for a pod that has ended."""
    if not master.pods.is_live(wanted.worker):
        raise BrokenPromiseError(f"{wanted.worker} has ended and got {granted}")


def cut_agrees(
    training: Ledger, command: ev.SaveCheckpoint, shards: Mapping[int, Copy], *, twice: AbstractSet[Minibatch]
) -> None:
    """Every PS holds exactly what the ledger position of the cut says is done."""
    position = training.empty_copy()
    position.restore_snapshot(json.loads(json.dumps(command.ledger)))
    done = set(done_minibatches(position))
    for index, copy in shards.items():
        applied_once(f"ps-{index} at cut {command.cut}", copy.applied, done, lacking=copy.lacking, twice=twice)


def applied_once(
    who: str,
    applied: Counter[Minibatch],
    done: AbstractSet[Minibatch],
    *,
    lacking: AbstractSet[Minibatch],
    twice: AbstractSet[Minibatch],
) -> None:
    """A PS applied what is done, and each of it once.

    Args:
        who: the PS, for the error.
        applied: how often it applied each minibatch.
        done: what the ledger counts as done.
        lacking: what it cannot have, since it began anew without a checkpoint.
        twice: what may have been applied twice: sent to some PS when its worker was lost.
    """
    missing = done - applied.keys() - lacking
    extra = applied.keys() - done - twice
    often = {what for what, times in applied.items() if times > 1 + (what in twice)}
    if missing or extra or often:
        raise BrokenPromiseError(f"{who}: missing {missing}, not done {extra}, applied twice {often}")


def all_is_done(master: JobStateMachine) -> None:
    """No training record is left, but for those set aside."""
    training = master.ledgers[TRAINING]
    aside = sum(work.records for work in training.quarantined_ranges)
    whole = training.done_records + aside == training.total_records
    if master.settings.max_steps is None and (training.count_remaining_records() or not whole):
        raise BrokenPromiseError(
            f"{training.done_records} of {training.total_records} done, {training.count_remaining_records()} left"
        )


def lacking_is_counted(master: JobStateMachine, index: int, applied: Collection[tuple[int, int]], done: Steps) -> None:
    """The summary says, to the update, what a PS lacks of the steps that are done; nobody lied about any."""
    lacking = sum((step.lease, step.step) not in applied for step in done)
    counted = master.counters.updates_of.get(str(index), 0)
    if counted != lacking:
        raise BrokenPromiseError(f"ps-{index} lacks {lacking} updates, and {counted} are counted")
    if master.counters.steps_not_applied:
        raise BrokenPromiseError(f"{master.counters.steps_not_applied} steps are said not to be applied")


def little_is_repeated(master: JobStateMachine, settled: Sequence[LeaseReturned]) -> None:
    """At most one minibatch for each lost worker, and what was sent to some PS only."""
    allowed = sum(master.settings.minibatch * (1 + entry.partial) for entry in settled if entry.repeated)
    if master.counters.repeated > allowed:
        raise BrokenPromiseError(f"{master.counters.repeated} records repeated, at most {allowed} can be")


def evaluated_once(validation: Sequence[tuple[str, int]], payload: Mapping[str, Any]) -> None:
    """An evaluation covers each validation record, and none twice."""
    seen: Counter[tuple[str, int]] = Counter()
    for source, start, end in payload["seen"]["states"]:
        seen.update((source, record) for record in range(start, end))
    expected = {(name, record) for name, records in validation for record in range(records)}
    if seen.keys() != expected or set(seen.values()) != {1}:
        raise BrokenPromiseError("the last evaluation did not cover every validation record once")


def done_minibatches(ledger: Ledger) -> Iterator[Minibatch]:
    """Every minibatch that is done, found by taking away from all that was ever handed out what is still to do."""
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


def _essence(state: JobStateMachine) -> dict[str, Any]:
    """What of a state the journal must bring back, as JSON: things to do that nobody has begun follow from the rest."""
    snapshot: dict[str, Any] = json.loads(json.dumps(state.to_snapshot()))
    for kind in (DESCRIBE, METRICS, EXPORT, BEST_MODEL):
        ledger = snapshot["ledgers"].get(kind)
        if ledger and not ledger["leases"] and not ledger["done_records"]:
            del snapshot["ledgers"][kind]
    return snapshot
