"""Groups of records merged by weights: the order of an epoch, and each record of it once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.core.interleaving import Interleaving
from edl.core.record_ranges import RecordSource
from edl.core.shuffle import BlockLayout, ShuffleOrder

groups = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 7)), min_size=1, max_size=4)


@given(groups)
def test_every_record_of_every_group_has_one_position(given_groups: list[tuple[int, int]]) -> None:
    counts, weights = zip(*given_groups, strict=True)
    merged = Interleaving(counts, weights)
    group_counts = Counter(merged.groups(0, merged.records))
    assert {group: group_counts[group] for group in range(len(counts))} == dict(enumerate(counts))


@given(groups, st.integers(0, 200), st.integers(0, 200))
def test_any_range_of_positions_is_that_of_the_whole_epoch(
    given_groups: list[tuple[int, int]], one: int, other: int
) -> None:
    merged = Interleaving(*zip(*given_groups, strict=True))
    start, end = sorted(min(each, merged.records) for each in (one, other))
    all_groups = merged.groups(0, merged.records)
    assert merged.groups(start, end) == all_groups[start:end]
    assert merged.count_before(start) == tuple(all_groups[:start].count(group) for group in range(len(given_groups)))


def test_groups_come_by_their_weights_until_one_is_exhausted() -> None:
    merged = Interleaving((6, 20), (3, 1))
    assert merged.groups(0, 8).count(0) == 6
    assert merged.groups(8, 26) == [1] * 18
    assert merged.groups(0, 4) == [0, 0, 1, 0]


def test_a_weight_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Interleaving((1, 1), (1, 0))


ORDER = ShuffleOrder(
    tuple(RecordSource(name, 30) for name in "abc"), (((10, 3),),) * 3, 12, 7, weights=((4, 1), (1, 2))
)


def test_an_order_with_weights_has_every_record_once_in_leases_of_any_size() -> None:
    record_counts: Counter[tuple[str, int]] = Counter()
    for start in range(0, 90, 7):
        for source, ranges in ORDER.record_ranges(1, start, min(90, start + 7)).items():
            record_counts.update((source, record) for first, after in ranges for record in range(first, after))
    assert record_counts == Counter({(source, record): 1 for source in "abc" for record in range(30)})


def test_weights_set_which_source_comes_first() -> None:
    first = ORDER.record_ranges(0, 0, 30)
    assert sum(after - start for start, after in first["a"]) == 24


def test_an_order_with_weights_survives_the_journal_and_differs_from_one_without() -> None:
    rows = [[source.name, source.records] for source in ORDER.sources]
    again = ShuffleOrder.from_json(rows, ORDER.to_json())
    assert (again, again.fingerprint) == (ORDER, ORDER.fingerprint)
    plain = ShuffleOrder(ORDER.sources, ORDER.runs, 12, 7)
    assert plain.fingerprint != ORDER.fingerprint
    assert "weights" not in plain.to_json()


def test_empty_sources_leave_their_groups() -> None:
    rows = [["a", 0], ["b", 5], ["c", 0], ["d", 5]]
    order = ShuffleOrder.from_rows(rows, ((), ((5, 1),), (), ((5, 1),)), 4, 0, ((2, 1), (3, 2), (5, 1)))
    assert order.weights == ((3, 1), (5, 1))
    layout = BlockLayout((((5, 1),),), 1, ((2, 1),))
    assert BlockLayout.from_json(layout.to_json()) == layout
