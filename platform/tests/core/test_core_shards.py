from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.core.partition import SLOT_COUNT, initial_placement, owner_of_name, slot_of_name, slot_of_row, splitmix64
from edl.core.permutation import permute_index
from edl.core.record_ranges import RecordRange, RecordSource, ShardPlan

sources = st.lists(st.integers(0, 60), min_size=1, max_size=5).map(
    lambda counts: tuple(RecordSource(f"part-{i}", n) for i, n in enumerate(counts))
)


def plan_epoch(parts: Sequence[RecordSource], size: int, seed: int | None, epoch: int) -> list[RecordRange]:
    plan = ShardPlan(tuple(parts), size, seed)
    return [plan.shard(epoch, index) for index in range(plan.shard_count)]


@given(sources, st.integers(1, 20), st.none() | st.integers(0, 2**40), st.integers(0, 5))
def test_every_record_is_covered_exactly_once_an_epoch(
    parts: tuple[RecordSource, ...], size: int, seed: int | None, epoch: int
) -> None:
    shards = plan_epoch(parts, size, seed, epoch)
    covered = Counter((shard.source, record) for shard in shards for record in range(shard.start, shard.end))
    assert covered == Counter({(part.name, record): 1 for part in parts for record in range(part.records)})
    assert all(0 < shard.end - shard.start <= size for shard in shards)
    assert sum(shard.end - shard.start for shard in shards) == ShardPlan(parts, size, seed).records


@given(st.integers(1, 400), st.integers(0, 2**64 - 1))
def test_the_permutation_is_a_bijection(count: int, key: int) -> None:
    assert sorted(permute_index(index, count, key) for index in range(count)) == list(range(count))


@given(st.integers(1, 10**12), st.integers(0, 2**64 - 1), st.data())
def test_an_index_of_a_huge_plan_is_computed_alone(count: int, key: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, count - 1))
    assert 0 <= permute_index(index, count, key) < count
    assert permute_index(index, count, key) == permute_index(index, count, key)


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_outside_of_the_plan_is_refused(index: int) -> None:
    with pytest.raises(ValueError, match="not in a plan of 3"):
        permute_index(index, 3, 0)


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    parts = (RecordSource("a", 1000),)
    assert plan_epoch(parts, 10, 1, 0) == plan_epoch(parts, 10, 1, 0)
    orders = [plan_epoch(parts, 10, seed, epoch) for seed in range(3) for epoch in range(3)]
    assert all(one != other for one, other in pairwise(orders))


def test_the_order_of_a_seed_is_the_same_in_every_version() -> None:
    """A journal of an old version is replayed by a new one: what index 5 meant then it must mean now."""
    assert [permute_index(i, 10, 42) for i in range(10)] == [1, 3, 4, 8, 7, 9, 5, 2, 0, 6]
    shards = plan_epoch((RecordSource("a", 25), RecordSource("b", 12)), 10, 7, 1)
    assert [(shard.source, shard.start) for shard in shards] == [("a", 20), ("b", 0), ("a", 0), ("a", 10), ("b", 10)]


def test_without_a_seed_the_order_is_that_of_the_sources() -> None:
    shards = plan_epoch((RecordSource("a", 3), RecordSource("empty", 0), RecordSource("b", 2)), 2, None, 4)
    assert [(shard.source, shard.start, shard.end) for shard in shards] == [("a", 0, 2), ("a", 2, 3), ("b", 0, 2)]


def test_a_shard_holds_a_record_at_least() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        ShardPlan((RecordSource("a", 3),), 0)


# ---------------------------------------------------------------------- who owns a key


@given(st.integers(1, 64))
def test_every_slot_has_an_owner_and_every_ps_its_share(count: int) -> None:
    slots = initial_placement(count)
    assert len(slots) == SLOT_COUNT
    shares = Counter(slots)
    assert shares.keys() == set(range(count))
    assert max(shares.values()) - min(shares.values()) <= 1


def test_there_is_no_placement_on_no_ps() -> None:
    with pytest.raises(ValueError, match="at least one parameter server"):
        initial_placement(0)


@given(st.text(), st.integers(1, 9))
def test_every_name_has_an_owner(name: str, count: int) -> None:
    slots = initial_placement(count)
    assert owner_of_name(name, slots) == slots[slot_of_name(name)]


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=50))
def test_numpy_and_python_agree_on_the_slot_of_a_row(rows: list[int]) -> None:
    assert slot_of_row(np.array(rows, dtype=np.uint64)).tolist() == [slot_of_row(row) for row in rows]


def test_slots_never_change() -> None:
    """Checkpoints of every version agree on them."""
    assert [splitmix64(key) for key in (0, 1, 2**64 - 1)] == [
        16294208416658607535,
        10451216379200822465,
        16490336266968443936,
    ]
    assert [slot_of_row(row) for row in range(6)] == [175, 193, 206, 237, 202, 90]
    assert [slot_of_name(name) for name in ("", "dense/kernel", "dense/bias", "überlauf")] == [228, 32, 119, 109]
