"""The journal entries of strategy AllReduce, and their effect on the rounds and on the training ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edl.api.journal_entries import StepsApplied, WorldAnnounced, WorldStarted
from edl.api.round_id import RoundId
from edl.core.cuts import SavedCheckpoint
from edl.core.ledger import Ledger
from edl.core.record_ranges import RecordRange
from edl.core.world_returns import find_returned_leases
from edl.core.world_rounds import RoundAnnounced, RoundStarted, StepsCommitted, WorldRounds


def announced_entry(
    announced: RoundAnnounced, training: Ledger | None, checkpoint: SavedCheckpoint | None
) -> WorldAnnounced:
    """The journal entry of an announced round.

    Nobody may have a state. Then rank 0 loads the newest checkpoint, or builds the initial state, and the ledger goes
    back with it.
    """
    ledger: Mapping[str, Any] | None = None
    records: int | None = None
    if not announced.holders and training is not None:
        if checkpoint is not None:
            ledger = dict(checkpoint.ledger)
        elif training.done_records or training.leases:
            ledger = training.empty_copy().to_snapshot()
        if ledger is not None:
            records = max(0, training.done_records - ledger["done_records"])
    return WorldAnnounced(
        incarnation=announced.round.incarnation,
        round=announced.round.number,
        members=announced.members,
        step=announced.step,
        holders=announced.holders,
        joined=announced.joined,
        reason=announced.reason,
        ledger=ledger,
        records=records,
        cut=checkpoint.cut if ledger is not None and checkpoint is not None else None,
        left=list(announced.left) or None,
    )


def started_entry(
    started: RoundStarted, rounds: WorldRounds, training: Ledger | None, lost_shares: Sequence[RecordRange]
) -> WorldStarted:
    """The journal entry of a round that all its members confirmed.

    Leases of everybody else return: with this entry it is known which of their records are in the state.
    """
    return WorldStarted(
        step=started.step,
        done=_done_rows(started.done, started.skipped),
        returned=tuple(find_returned_leases(started, rounds, training)),
        repeated=sum(share.records for share in lost_shares),
        difference=started.difference,
        updates_skipped=started.updates_skipped or None,
    )


def committed_entry(committed: StepsCommitted, loss: float | None) -> StepsApplied:
    """The journal entry of stable steps."""
    return StepsApplied(
        step=committed.step,
        done=_done_rows(committed.done, committed.skipped),
        loss=loss,
        updates_skipped=committed.updates_skipped or None,
    )


def apply_announced_entry(rounds: WorldRounds, entry: WorldAnnounced) -> None:
    """Replay from the journal that a round was announced, and the checkpoint that it begins with."""
    number = RoundId(entry.incarnation, entry.round)
    left = tuple(entry.left or ())
    rounds.apply_announced(
        RoundAnnounced(number, entry.members, entry.step, entry.holders, entry.reason, entry.joined, left)
    )
    rounds.restore_cut = entry.cut or 0


def apply_started_entry(rounds: WorldRounds, training: Ledger | None, entry: WorldStarted) -> dict[int, int]:
    """Apply that the newest round runs: steps are done, and leases have returned.

    Returns, by epoch, the corrupt records that were skipped in these steps.
    """
    rounds.apply_started(RoundStarted(rounds.round, entry.step, {}, entry.difference))
    if training is None:
        return {}
    skipped = _record_done(training, entry.done)
    # Newest first: each range is put at the head of the queue, so the oldest is leased next.
    for number in sorted(entry.returned, reverse=True):
        training.return_lease(number, training.leases[number].done_steps)
    return skipped


def apply_steps_entry(rounds: WorldRounds, training: Ledger | None, entry: StepsApplied) -> dict[int, int]:
    """Apply that steps are done; returns the same as ``apply_started_entry``."""
    rounds.apply_committed(StepsCommitted(entry.step, {}))
    return _record_done(training, entry.done) if training is not None else {}


def rounds_to_snapshot(rounds: WorldRounds) -> dict[str, Any]:
    """The rounds as all journal entries so far have made them."""
    return {
        "round": list(rounds.round),
        "started_round": list(rounds.started_round),
        "valid_from": list(rounds.valid_from),
        "members": list(rounds.members),
        "base_step": rounds.base_step,
        "holders": list(rounds.holders),
        "joined": sorted(rounds.joined),
        "committed_step": rounds.committed_step,
        "restore_cut": rounds.restore_cut,
        "difference": rounds.difference,
        "states_taken": rounds.states_taken,
        **({"left": sorted(rounds.left_at_boundary)} if rounds.left_at_boundary else {}),
    }


def restore_rounds(rounds: WorldRounds, snapshot: Mapping[str, Any]) -> None:
    """Restore what ``rounds_to_snapshot`` returned."""
    rounds.round = RoundId(*snapshot["round"])
    rounds.started_round = RoundId(*snapshot["started_round"])
    rounds.valid_from = RoundId(*snapshot["valid_from"])
    rounds.members, rounds.holders = tuple(snapshot["members"]), tuple(snapshot["holders"])
    rounds.base_step, rounds.committed_step = snapshot["base_step"], snapshot["committed_step"]
    rounds.joined = frozenset(snapshot["joined"])
    rounds.restore_cut = snapshot.get("restore_cut", 0)
    rounds.difference = snapshot.get("difference", "")
    rounds.states_taken = snapshot.get("states_taken", 0)
    rounds.left_at_boundary = set(snapshot.get("left", ()))
    rounds.is_closing = False


def _done_rows(done: Mapping[int, int], skipped: Mapping[int, int]) -> list[list[int]]:
    rows = ((lease, records, skipped.get(lease, 0)) for lease, records in sorted(done.items()))
    return [[lease, records, count] if count else [lease, records] for lease, records, count in rows]


def _record_done(training: Ledger, done: Sequence[Sequence[int]]) -> dict[int, int]:
    newly_skipped: dict[int, int] = {}
    for number, records, *skipped in done:
        lease = training.leases.get(number)
        # A share of a lease that was closed has been counted before.
        if lease is None:
            continue
        if skipped:
            epoch, count = lease.record_range.epoch, training.record_skipped(number, skipped[0])
            newly_skipped[epoch] = newly_skipped.get(epoch, 0) + count
        steps = -(-records // lease.minibatch)
        if steps >= lease.step_count:
            training.finish_lease(number)
        else:
            training.record_progress(number, steps)
    return newly_skipped
