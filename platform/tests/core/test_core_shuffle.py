"""The shuffled order of an epoch: a permutation of its records that needs no state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.api.errors import BadInputError
from edl.core.record_ranges import RecordSource, describe_ranges
from edl.core.shuffle import MAX_BLOCKS, MAX_WINDOW_RECORDS, BlockLayout, RecordPosition, ShuffleOrder, choose_window

sizes = st.lists(st.lists(st.integers(1, 30), max_size=8), min_size=1, max_size=4)


def order_of(blocks: Sequence[Sequence[int]], window: int, seed: int = 0) -> ShuffleOrder:
    sources = tuple(RecordSource(f"part-{at}", sum(block_sizes)) for at, block_sizes in enumerate(blocks))
    return ShuffleOrder(sources, BlockLayout.from_sizes(blocks, 1).runs, window, seed)


def places(order: ShuffleOrder, epoch: int) -> list[RecordPosition]:
    epoch_order = order.epoch_order(epoch)
    return [epoch_order.locate_record(position) for position in range(order.records)]


@given(sizes, st.integers(1, 300), st.integers(0, 2**40), st.integers(0, 3))
def test_an_epoch_has_every_record_exactly_once(blocks: list[list[int]], window: int, seed: int, epoch: int) -> None:
    order = order_of(blocks, window, seed)
    expected = {RecordPosition(source.name, record) for source in order.sources for record in range(source.records)}
    positions = places(order, epoch)
    assert len(positions) == order.records
    assert set(positions) == expected


@given(sizes, st.integers(1, 300), st.lists(st.integers(0, 900), max_size=6))
def test_leases_cut_anywhere_hold_every_record_once(blocks: list[list[int]], window: int, cuts: list[int]) -> None:
    """Each cut is asked of an order of its own: no worker needs what another one computed."""
    order = order_of(blocks, window)
    edges = sorted({0, order.records, *(cut % (order.records + 1) for cut in cuts)})
    record_counts: Counter[tuple[str, int]] = Counter()
    for start, end in pairwise(edges):
        for source, ranges in order_of(blocks, window).epoch_order(1).record_ranges(start, end).items():
            record_counts.update((source, record) for first, after in ranges for record in range(first, after))
    assert record_counts == Counter({(s.name, record): 1 for s in order.sources for record in range(s.records)})


@given(sizes, st.integers(1, 300))
def test_a_window_holds_records_of_its_own_blocks_only(blocks: list[list[int]], window: int) -> None:
    """What a worker has in memory for a window: its records, and the rest of the blocks at its two ends."""
    epoch = order_of(blocks, window).epoch_order(0)
    for start in range(0, epoch.records, window):
        end = min(start + window, epoch.records)
        numbers = epoch.block_range(start, end)
        block_positions = {
            RecordPosition(block.source, record)
            for block in (epoch.blocks[number] for number in numbers)
            for record in range(block.start, block.end)
        }
        assert {epoch.locate_record(position) for position in range(start, end)} <= block_positions
        inner = [epoch.blocks[number] for number in numbers[1:-1]]
        assert sum(block.end - block.start for block in inner) <= end - start


def test_epochs_and_seeds_differ_and_repeat() -> None:
    blocks = [[40] * 10, [25] * 4]
    orders = [places(order_of(blocks, 100, seed), epoch) for seed in range(3) for epoch in range(3)]
    assert all(one != other for at, one in enumerate(orders) for other in orders[at + 1 :])
    assert orders == [places(order_of(blocks, 100, seed), epoch) for seed in range(3) for epoch in range(3)]


def test_the_order_of_a_seed_is_the_same_in_every_version() -> None:
    """A journal of an old version names positions: what position 5 meant then it must mean now."""
    order = order_of([[4, 4, 3], [4]], 8, seed=7)
    assert [(place.source[-1], place.record) for place in places(order, 1)] == [
        ("0", 8),
        ("0", 10),
        ("1", 1),
        ("0", 9),
        ("1", 2),
        ("1", 0),
        ("0", 4),
        ("1", 3),
        ("0", 3),
        ("0", 5),
        ("0", 7),
        ("0", 2),
        ("0", 0),
        ("0", 1),
        ("0", 6),
    ]
    assert order.fingerprint == "0cb824557facaeab"


def test_blocks_are_mixed_and_not_only_moved() -> None:
    """Records sorted by their label: each minibatch of a window has about as many of one half as of the other."""
    order = order_of([[256] * 32], 8192)
    in_first_half = [place.record < 4096 for place in places(order, 0)]
    minibatches = [sum(in_first_half[at : at + 64]) for at in range(0, 8192, 64)]
    assert min(minibatches) >= 8
    assert max(minibatches) <= 56
    assert 30 <= sum(minibatches) / len(minibatches) <= 34


def test_a_window_smaller_than_its_blocks_mixes_within_the_window() -> None:
    order = order_of([[100, 100]], 10, seed=3)
    positions = places(order, 0)
    windows = [{place.record // 10 for place in positions[at : at + 10]} for at in range(0, 200, 10)]
    assert all(len(tens) == 1 for tens in windows)
    assert [place.record for place in positions[:10]] != sorted(place.record for place in positions[:10])


def test_too_many_blocks_are_put_together() -> None:
    blocks = BlockLayout.from_sizes([[3] * MAX_BLOCKS, [5] * 10], 1)
    sizes = [sum(times for _, times in runs) for runs in blocks.runs]
    assert sum(sizes) <= MAX_BLOCKS
    assert [sum(records * times for records, times in runs) for runs in blocks.runs] == [3 * MAX_BLOCKS, 50]
    assert BlockLayout.from_json(blocks.to_json()) == blocks


def test_blocks_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ValueError, match=r"part-0 .*5 records"):
        ShuffleOrder((RecordSource("part-0", 5),), (((2, 2),),), 10, 0)


def test_an_order_comes_back_from_the_journal() -> None:
    order = order_of([[4, 4, 3], [4]], 8, seed=7)
    rows = [[source.name, source.records] for source in order.sources]
    assert ShuffleOrder.from_json(rows, order.to_json()) == order
    assert order_of([[4, 4, 3], [4]], 9, seed=7).fingerprint != order.fingerprint


# ---------------------------------------------------------------------- how large a window is

small, images = BlockLayout((), 100), BlockLayout((), 1 << 20)


@given(st.integers(1, 10**7), st.integers(1, 10**5), st.none() | st.integers(1, 10**6))
def test_a_window_is_never_larger_than_wanted_but_for_the_last_lease_of_an_epoch(
    records: int, portion: int, wanted: int | None
) -> None:
    window = choose_window(wanted, records, portion, small)
    most = MAX_WINDOW_RECORDS if wanted is None else wanted
    assert 1 <= window <= max(most, 1)
    if most >= portion:
        assert window % portion == 0
        count = -(-records // window)
        assert count == 1 or window - (records - (count - 1) * window) <= portion * count


@pytest.mark.parametrize(
    ("wanted", "records", "blocks", "expected"),
    [
        (0, 10_000, small, 0),
        (None, 10_000, None, 0),
        (None, 0, small, 0),
        (None, 8_000, small, 8_192),
        (None, 70_000, small, 36_864),
        (None, 70_000, images, 64),
        (1_000, 70_000, images, 1_000),
    ],
)
def test_the_window_of_a_run(wanted: int | None, records: int, blocks: BlockLayout | None, expected: int) -> None:
    assert choose_window(wanted, records, 4_096, blocks) == expected


def test_a_window_needs_random_access() -> None:
    with pytest.raises(BadInputError, match="no random access"):
        choose_window(500, 10_000, 4_096, None)


def test_records_are_named_for_people() -> None:
    ranges = {"a.csv": [[3, 4], [17, 20]], "b.csv": [[4, 5]]}
    assert describe_ranges(ranges) == "records 3, 17 to 19 of a.csv, record 4 of b.csv"
    assert describe_ranges(ranges, max_ranges=1) == "record 3 of a.csv, and 2 more"
