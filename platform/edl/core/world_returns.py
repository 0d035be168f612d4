"""Which leases return to the ledger when a round of strategy AllReduce starts, and which records are computed again.

With parameter servers ``revocation`` takes leases back; training leases of AllReduce return here, because only the
started round tells which of their records are in the state of its members.
"""

from __future__ import annotations

from collections.abc import Mapping

from edl.core.ledger import Lease, Ledger
from edl.core.record_ranges import RecordRange
from edl.core.world_rounds import RoundStarted, WorldRounds


def find_returned_leases(started: RoundStarted, rounds: WorldRounds, training: Ledger | None) -> dict[int, Lease]:
    """By number, the training leases of workers that do not go on with them, less those that the members finished."""
    leases = training.leases if training is not None else {}
    finished = _finished_leases(training, started.done)
    return {
        number: lease
        for number, lease in leases.items()
        if not rounds.keeps_leases(lease.worker) and number not in finished
    }


def find_lost_shares(
    started: RoundStarted, rounds: WorldRounds, training: Ledger | None, global_batch: int | None
) -> dict[str, RecordRange]:
    """By worker, the records that lost workers may have computed in vain when a round starts without them.

    Nobody knows whether a lost worker was computing. So it is the most that one can have computed: the next minibatch
    of its oldest lease, or with a global batch its part of a step. A worker that left at a boundary had computed
    nothing. What the state of the others has is done, and not repeated.
    """
    returned = find_returned_leases(started, rounds, training)
    lost = {lease.worker for lease in returned.values()} - rounds.left_at_boundary
    keeping = [worker for worker in rounds.members if rounds.keeps_leases(worker)]
    shares: dict[str, RecordRange] = {}
    for number in sorted(returned):
        lease = returned[number]
        if lease.worker not in lost or lease.worker in shares:
            continue
        done = max(lease.done_steps, -(-started.done.get(number, 0) // lease.minibatch))
        records = lease.minibatch if global_batch is None else -(-global_batch // (len(keeping) + len(lost)))
        rest = lease.record_range.split(lease.record_after_steps(done))[1]
        shares[lease.worker] = rest.split(min(rest.end, rest.start + records))[0]
    return shares


def _finished_leases(training: Ledger | None, done: Mapping[int, int]) -> set[int]:
    leases = training.leases if training is not None else {}
    return {
        number
        for number, records in done.items()
        if number in leases and -(-records // leases[number].minibatch) >= leases[number].step_count
    }
