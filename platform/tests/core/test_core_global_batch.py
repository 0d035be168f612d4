"""The shares of a step of ``strategy.global_batch``, and how many records its leases have."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.core.global_batch import (
    FEW_SHARES,
    MAX_SHARE_LEASES,
    EpochProgress,
    RankRecords,
    count_full_steps,
    divide_step,
    lease_count_error,
    limit_lease,
    member_part,
)

ranks = st.lists(st.integers(0, 40).map(RankRecords), min_size=1, max_size=9)


@given(st.integers(0, 300), ranks)
def test_a_step_has_its_size_or_waits(size: int, available: list[RankRecords]) -> None:
    shares = divide_step(size, available)
    total = sum(each.count for each in available)
    assert sum(shares) == (size if total >= size else 0)
    assert all(0 <= share <= each.count for share, each in zip(shares, available, strict=True))


@given(st.integers(0, 300), ranks)
def test_shares_differ_by_one_unless_a_rank_has_no_more(size: int, available: list[RankRecords]) -> None:
    shares = divide_step(size, available, may_be_short=True)
    assert sum(shares) == min(size, sum(each.count for each in available))
    open_shares = [share for share, each in zip(shares, available, strict=True) if share < each.count]
    assert max(open_shares, default=0) - min(open_shares, default=0) <= 1
    assert all(share <= min(open_shares) + 1 for share in shares if open_shares)
    # Whoever has more records takes more of them, if some rank has few.
    few = FEW_SHARES * (max(open_shares, default=0) or 1)
    with_counts = sorted((min(each.count, few), share) for each, share in zip(available, shares, strict=True))
    assert [share for _, share in with_counts] == sorted(shares)


@given(st.integers(0, 300), st.lists(st.integers(1000, 9000).map(RankRecords), min_size=1, max_size=9), st.integers(0))
def test_the_larger_shares_go_round_whatever_the_ranks_have(size: int, plenty: list[RankRecords], first: int) -> None:
    """So a rank knows its next share before the others say what they have."""
    steps = [divide_step(size, plenty, step=first + at) for at in range(2 * len(plenty))]
    assert steps[0] == divide_step(size, [RankRecords(1000)] * len(plenty), step=first)
    for count in range(1, len(steps) + 1):
        totals = [sum(shares) for shares in zip(*steps[:count], strict=True)]
        assert max(totals) - min(totals) <= 1


@given(st.integers(1, 300), ranks, st.lists(st.booleans(), min_size=9, max_size=9))
def test_indivisible_records_are_in_one_step_or_in_none(
    size: int, available: list[RankRecords], flags: list[bool]
) -> None:
    marked = [RankRecords(each.count, flag) for each, flag in zip(available, flags, strict=False)]
    shares = divide_step(size, marked, may_be_short=True)
    assert sum(shares) <= size
    for share, each in zip(shares, marked, strict=True):
        assert share <= each.count
        assert not each.is_indivisible or share in (0, each.count)
    # So a step always comes that has them.
    if any(0 < each.count <= size for each in marked):
        assert sum(shares) > 0


def test_a_step_with_indivisible_records_waits_for_no_others() -> None:
    """Their rank gets none before they are done, so it may be that nobody has more."""
    assert divide_step(6, [RankRecords(4, is_indivisible=True), RankRecords()]) == (4, 0)
    assert divide_step(6, [RankRecords(4, is_indivisible=True), RankRecords(9)]) == (4, 2)
    assert divide_step(6, [RankRecords(0, is_indivisible=True), RankRecords(5)]) == (0, 0)


def test_the_remainder_and_a_rank_with_few_records() -> None:
    assert divide_step(10, [RankRecords(50)] * 4) == (3, 3, 2, 2)
    assert divide_step(10, [RankRecords(50)] * 4, step=1) == (2, 2, 3, 3)
    assert divide_step(10, [RankRecords(50), RankRecords(51), RankRecords(50), RankRecords(52)]) == (3, 3, 2, 2)
    assert divide_step(10, [RankRecords(7), RankRecords(51), RankRecords(8), RankRecords(9)]) == (2, 3, 2, 3)
    assert divide_step(10, [RankRecords(50), RankRecords(1), RankRecords(50), RankRecords()]) == (5, 1, 4, 0)
    assert divide_step(10, [RankRecords(4), RankRecords(5)]) == (0, 0)
    assert divide_step(10, [RankRecords(4), RankRecords(5)], may_be_short=True) == (4, 5)


def test_the_ledger_may_be_some_steps_behind() -> None:
    progress = EpochProgress()
    for step in (1, 2, 3):
        progress.add_step(step, 8)
    assert progress.records_left(0, 100) == 76
    assert progress.records_left(2, 84) == 76
    assert progress.records_left(3, 76) == 76


@given(
    st.integers(1, 10_000),
    st.lists(st.integers(0, 500), min_size=1, max_size=12),
    st.integers(1, 64),
    st.integers(0, 3),
)
def test_a_step_that_waits_gets_records_if_nobody_holds_them(
    unleased: int, held: list[int], share: int, leases: int
) -> None:
    world, left = len(held), unleased + sum(held)
    limits = [limit_lease(left, each, leases, share * world, at, world) for at, each in enumerate(held)]
    # Otherwise all ranks would wait for ever.
    assert any(limits) or sum(held) >= share * world


def test_a_worker_holds_its_part_of_what_is_left() -> None:
    assert limit_lease(400, 30, 1, 20, 0, 4) == 70
    assert limit_lease(400, 100, 1, 20, 0, 4) == 0
    assert [limit_lease(402, 100, 1, 20, position, 4) for position in range(4)] == [1, 1, 0, 0]
    # It may hold more leases if they are small.
    assert limit_lease(400, 39, 0, 20, 0, 4) == 61
    assert limit_lease(400, 40, 0, 20, 0, 4) == 0


@given(st.integers(0, 10_000), st.integers(1, 12))
def test_the_parts_of_all_workers_are_what_is_left(left: int, world: int) -> None:
    parts = [member_part(left, position, world) for position in range(world)]
    assert sum(parts) == left
    assert max(parts) - min(parts) <= 1


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 3000), st.integers(1, 400), st.integers(0, 4), st.data())
def test_in_an_undisturbed_epoch_a_rank_has_no_records_in_two_steps_at_most(
    world: int, share: int, records: int, lease_records: int, lag: int, data: st.DataObject
) -> None:
    """An epoch in which the ledger is ``lag`` steps behind, and each rank sends its requests in any order."""
    # A global batch of fewer records than ranks is refused.
    size = max(world, share * world - data.draw(st.integers(0, world - 1)))
    unleased = records
    leases: list[list[int]] = [[] for _ in range(world)]
    pending: list[tuple[int, ...]] = []
    without = [0] * world
    left, first_step = records, data.draw(st.integers(0, 10))
    while left:
        left_in_ledger = left + sum(sum(shares) for shares in pending[-lag:] if lag)
        for rank in data.draw(st.permutations(range(world))):
            while unleased:
                available = sum(leases[rank])
                held_records = available + sum(shares[rank] for shares in pending[-lag:] if lag)
                limit = limit_lease(left_in_ledger, held_records, 3 - len(leases[rank]), size, rank, world)
                most = min(lease_records, limit)
                if not most:
                    break
                leases[rank].append(min(most, unleased))
                unleased -= min(most, unleased)
        stocks = [RankRecords(sum(each)) for each in leases]
        shares = divide_step(min(size, left), stocks, step=first_step + len(pending))
        assert sum(shares) == min(size, left)
        for rank, count in enumerate(shares):
            without[rank] += count == 0
            while count:
                taken_records = min(count, leases[rank][0])
                leases[rank][0] -= taken_records
                count -= taken_records
                if not leases[rank][0]:
                    leases[rank].pop(0)
        pending.append(shares)
        left -= sum(shares)
    assert max(without) <= 2


def test_the_records_of_a_step_are_in_few_enough_leases_also_for_a_single_worker() -> None:
    assert lease_count_error(MAX_SHARE_LEASES * 16, 16, [100_000]) is None
    why = lease_count_error(MAX_SHARE_LEASES * 16 + 1, 16, [100_000])
    assert why is not None
    assert why.startswith("strategy.global_batch is 16,001, but a worker may have only 16,000 records of it")
    # The step of a whole epoch is not larger than the epoch.
    assert lease_count_error(1 << 40, 16, [1000]) is None
    # Files with few records: a lease has those of one file.
    assert lease_count_error(1000, 512, [1] * 5000) is None
    assert lease_count_error(1001, 512, [1] * 5000) is not None
    assert lease_count_error(4000, 512, [1] * 900 + [10_000]) is None


@pytest.mark.parametrize(
    ("start", "end", "steps"),
    [(0, 0, 0), (0, 4, 1), (0, 5, 2), (0, 10, 3), (0, 20, 6), (4, 10, 2), (5, 20, 5), (3, 34, 9), (10, 20, 3)],
)
def test_an_epoch_of_ten_records_has_three_steps_of_four(start: int, end: int, steps: int) -> None:
    assert count_full_steps(start, end, 10, 4) == steps
