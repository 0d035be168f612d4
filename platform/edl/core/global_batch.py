"""Steps of a fixed number of records under AllReduce (``strategy.global_batch``): their size, and who takes how many.

Every rank says with each step how many records it has, and rank 0 says how many the epoch has. So all ranks compute
the same shares of the next step. A step never has records of two epochs: the last step of an epoch may be smaller.
docs/design/0010-allreduce.md has the reasons.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MAX_SHARE_LEASES = 1000
"""The most leases of which a rank takes records in one step: its message names them, and has at most 64 KiB."""
SHARES_AHEAD = 8
"""Shares of a step that a worker holds, if there are so many, however short its leases are.

The ledger is some steps behind, so of these the worker has fewer left.
"""

FEW_SHARES = 3
"""A rank that has fewer shares than these leaves the larger ones to ranks with more: it may run out of records."""


@dataclass(frozen=True, slots=True)
class RankRecords:
    """The records that a rank can put into the next step.

    Attributes:
        count: how many there are.
        is_indivisible: all of them belong to one step, or none: they crashed a worker before.
    """

    count: int = 0
    is_indivisible: bool = False


NO_RECORDS = RankRecords()


def count_full_steps(start: int, end: int, epoch_records: int, global_batch: int) -> int:
    """The steps in which the records from number ``start`` up to ``end`` are trained, if none is short without need.

    Records are counted over all epochs. The last step of an epoch may have fewer, and so may the last one of all.
    """
    first, last = start // epoch_records, end // epoch_records
    if first == last:
        return -(-(end - start) // global_batch)
    parts = ((first + 1) * epoch_records - start, *[epoch_records] * (last - first - 1), end % epoch_records)
    return sum(-(-part // global_batch) for part in parts)


def lease_count_error(global_batch: int, lease_records: int, sources: Iterable[int]) -> str | None:
    """Why a step may need more leases than a single worker can name; None if it never does.

    A world may shrink to one worker. It would wait for records that it has and cannot use, without an end.

    Args:
        lease_records: records per lease. A lease has records of one source.
        sources: records of each source; with shuffling, of all together.
    """
    counts = list(sources)
    # The leases of a step come in any order: in the worst one, the smallest come first.
    smallest = sorted(rest for count in counts if (rest := count % lease_records))[:MAX_SHARE_LEASES]
    most = sum(smallest) + (MAX_SHARE_LEASES - len(smallest)) * lease_records
    if min(global_batch, sum(counts)) <= most:
        return None
    return (
        f"strategy.global_batch is {global_batch:,}, but a worker may have only {most:,} records of it, in "
        f"{MAX_SHARE_LEASES:,} leases of up to {lease_records:,} records of one file; lower strategy.global_batch, "
        "raise train.minibatches_per_task, or name fewer and larger files"
    )


def divide_step(
    size: int, ranks: Sequence[RankRecords], *, step: int = 0, may_be_short: bool = False
) -> tuple[int, ...]:
    """The number of records that each rank puts into a step of ``size`` records.

    The shares differ by one at most, and the larger ones go round. So after any number of steps all ranks have put in
    the same number of records, or one more, and each knows its next share before the others say what they have. Only
    if ranks have few records, those with more have the larger shares, so that none runs out before the others. If a
    rank has fewer records than its share, the others take more. If all together have too few, nobody takes any, and the
    step waits for more records. It does not wait if a rank has indivisible ones: this rank gets no others before they
    are done.

    Args:
        size: the records of the step.
        ranks: what each rank has.
        step: the number of steps before this one.
        may_be_short: whether a step with fewer records is made instead of waiting.
    """
    left = min(size, sum(rank.count for rank in ranks))
    waits = not may_be_short and not any(rank.is_indivisible and rank.count for rank in ranks)
    if left < size and waits:
        return (0,) * len(ranks)
    shares = [0] * len(ranks)
    for index, rank in enumerate(ranks):
        if rank.is_indivisible and 0 < rank.count <= left:
            shares[index] = rank.count
            left -= rank.count
    # From the rank with the fewest records: what it lacks is divided among the others.
    divisible = sorted(
        (index for index, rank in enumerate(ranks) if not rank.is_indivisible), key=lambda index: ranks[index].count
    )
    open_ranks = [index for index in divisible if ranks[index].count]
    while open_ranks and ranks[open_ranks[0]].count <= left // len(open_ranks):
        index = open_ranks.pop(0)
        shares[index] = ranks[index].count
        left -= shares[index]
    if open_ranks:
        share, larger = divmod(left, len(open_ranks))
        few = FEW_SHARES * (share + 1)
        turns = {index: (at - step * larger) % len(open_ranks) for at, index in enumerate(sorted(open_ranks))}
        open_ranks.sort(key=lambda index: (-min(ranks[index].count, few), turns[index]))
        for position, index in enumerate(open_ranks):
            shares[index] = share + (1 if position < larger else 0)
    return tuple(shares)


@dataclass(slots=True)
class EpochProgress:
    """How many records the epoch has left, although the ledger is some steps behind the ranks of a round.

    Attributes:
        steps: the steps of this round that are not in the ledger, with their records.
    """

    steps: deque[tuple[int, int]] = field(default_factory=deque)

    def add_step(self, step: int, records: int) -> None:
        """A step was made."""
        self.steps.append((step, records))

    def records_left(self, committed_step: int, left: int) -> int:
        """The records of the epoch that are in no step.

        Args:
            committed_step: the steps up to it are in the ledger.
            left: the records of the epoch that are not done in this ledger.
        """
        while self.steps and self.steps[0][0] <= committed_step:
            self.steps.popleft()
        return max(0, left - sum(records for _, records in self.steps))


def member_part(left: int, position: int, world: int) -> int:
    """The part of one worker of what is left, in steps or records.

    The parts of all are what is left, and differ by one at most. So if no worker holds more than its part, all run out
    of records in the same steps; and as long as there are records that nobody holds, some worker may have more.

    Args:
        left: what is not done, leased or not.
        position: of the worker among those that train.
        world: the number of workers that train.
    """
    return left // world + (1 if position < left % world else 0)


def limit_lease(left: int, held: int, leases: int, global_batch: int, position: int, world: int) -> int:
    """The most records of the next lease of a worker; 0: it gets none now.

    A worker holds at most its part of the records that the epoch has left.

    Args:
        left: records of the epoch that are not done.
        held: those that this worker holds.
        leases: how many more leases it may hold; it may hold more if they are small.
        global_batch: records of a step.
        position, world: as in ``member_part``.
    """
    share = -(-global_batch // world)
    if leases <= 0 and held >= SHARES_AHEAD * share:
        return 0
    return max(0, member_part(left, position, world) - held)
