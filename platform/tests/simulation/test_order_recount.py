"""The second count of a shuffled journal works out by itself which records are meant."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from edl.core.shuffle import BlockLayout, ShuffleOrder
from edl.simulation import counted_steps, ledger_recount, order_recount
from edl.simulation.order_recount import RecordedOrder

blocks_of_sources = st.lists(st.lists(st.integers(1, 30), max_size=8), min_size=1, max_size=4)


@given(blocks_of_sources, st.integers(1, 300), st.integers(0, 2**64 - 1), st.integers(0, 3))
def test_it_finds_the_records_that_the_master_and_workers_find(
    blocks: list[list[int]], window: int, seed: int, epoch: int
) -> None:
    rows = [[f"part-{at}", sum(sizes)] for at, sizes in enumerate(blocks)]
    order = ShuffleOrder.from_rows(rows, BlockLayout.from_sizes(blocks, 1).runs, window, seed)
    records = RecordedOrder.from_entry(rows, order.to_json()).epoch(epoch).records_between(0, order.records)
    expected = [order.epoch_order(epoch).locate_record(position) for position in range(order.records)]
    assert records == [(place.source, place.record) for place in expected]


def test_a_part_of_a_window_is_the_same_part_of_the_whole() -> None:
    epoch = RecordedOrder((("a", 0, 7), ("a", 7, 5), ("b", 0, 9)), window=6, seed=3).epoch(2)
    all_records = epoch.records_between(0, 21)
    assert sorted(all_records) == sorted([*(("a", i) for i in range(12)), *(("b", i) for i in range(9))])
    for start in range(21):
        for end in range(start, 22):
            assert epoch.records_between(start, end) == all_records[start:end]


def test_it_shares_no_code_with_the_product() -> None:
    for module in (counted_steps, ledger_recount, order_recount):
        owners = {getattr(value, "__module__", None) or "" for value in vars(module).values()}
        modules = {value.__name__ for value in vars(module).values() if isinstance(value, type(sys))}
        strangers = {name for name in owners | modules if name.startswith("edl.")}
        assert all(name.startswith("edl.simulation.") for name in strangers), (module.__name__, strangers)
