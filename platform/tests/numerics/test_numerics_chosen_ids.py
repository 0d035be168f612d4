"""Ids that were chosen for the salt of a table end no push in a loop, take no memory, and change no result."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numerics.chosen_ids import alike_in_a_product, with_hashes
from support.examples import examples
from support.table_contract import OPTIMIZERS, declared, initial

from edl.core.partition import splitmix64
from edl.numerics.embedding_table import RowRetention
from edl.numerics.numpy_table import NumpyTable
from edl.numerics.optimizers import make_rule

if importlib.util.find_spec("edl.numerics._native") is not None:
    from edl.numerics.native_table import NativeTable
    from edl.numerics.native_unique_ids import NativeUniqueFinder

pytestmark = [pytest.mark.native, pytest.mark.timeout(300)]
SALT = 0xA0761D6478BD642F
SHAPE = declared(dim=1, rows=0)  # any id


def table(**settings_: Any) -> NativeTable:
    return NativeTable(SHAPE, OPTIMIZERS[0], **({"salt": SALT} | settings_))


def push(made: Any, ids: np.ndarray, step: int = 1) -> None:
    made.apply_gradients(ids, np.ones((len(ids), 1), np.float32), 1.0, step)


def holds(made: NativeTable, ids: np.ndarray) -> None:
    np.testing.assert_array_equal(made.read(ids), initial(SHAPE, ids) - np.float32(1))
    assert len(made) == len(ids)


def hashes(count: int, leading: int, low: int) -> np.ndarray:
    """Distinct ones: the first ``leading`` bits and the first ``low`` bits of the lower half are 0, others random."""
    random = np.random.default_rng(leading * 64 + low)
    free = ~np.uint64((((1 << leading) - 1) << (64 - leading)) | (((1 << low) - 1) << (32 - low)))
    drawn = random.integers(0, 1 << 64, 2 * count, dtype=np.uint64) & free
    return random.permutation(np.unique(drawn))[:count]


def test_the_inverse_of_the_hash_is_one():
    wanted = np.random.default_rng(1).integers(0, 1 << 64, 1000, dtype=np.uint64)
    np.testing.assert_array_equal(splitmix64(with_hashes(wanted, SALT).astype(np.uint64) ^ np.uint64(SALT)), wanted)


@pytest.mark.parametrize(
    ("count", "leading", "low"),
    [(18_900, 1, 0), (18_900, 40, 0), (18_900, 24, 20), (60_000, 1, 0), (60_000, 24, 0), (60_000, 0, 20)],
)
def test_ids_that_all_fall_into_one_part_of_the_index_are_stored(count: int, leading: int, low: int):
    ids = with_hashes(hashes(count, leading, low), SALT)
    crowded, ordinary = table(), table(salt=7)
    for each in (crowded, ordinary):
        for part in np.array_split(ids, 7):
            push(each, part)
    holds(crowded, ids)
    assert crowded.memory_usage.index < 3 * ordinary.memory_usage.index + 2**20


@settings(deadline=None, max_examples=examples(15), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), threads=st.sampled_from([1, 3]))
def test_any_mixture_of_chosen_ids_and_others_is_what_numpy_holds(data: st.DataObject, threads: int):
    """Bits agree of rows, of positions and of snapshots, rows that are dropped among them, whatever the salt is."""
    retention = RowRetention(evict_after_steps=2)
    tables = [
        table(threads=threads, retention=retention),
        table(salt=data.draw(st.integers(0, 2**64 - 1)), retention=retention),
        NumpyTable(SHAPE, OPTIMIZERS[0].slot_starts, make_rule(OPTIMIZERS[0], 0.0), retention),
    ]
    recent_ids, snapshots = [np.zeros(0, np.int64)], []
    for step in range(1, 6):
        count, leading, low = (data.draw(st.integers(0, most)) for most in (22_000, 44, 20))
        ids = with_hashes(hashes(max(count, 1), leading, low), SALT)
        for each in tables:
            push(each, ids, step)
        recent_ids = [*recent_ids[-3:], ids]
        if step == 3:
            snapshots = [each.take_snapshot() for each in tables[:2]]
            expected = tables[2].take_snapshot()
            frozen_ids = np.concatenate(recent_ids)
            frozen = tables[2].read(frozen_ids)
    every = np.concatenate(recent_ids)
    first, second, numpys = (each.read(every) for each in tables)
    np.testing.assert_array_equal(first, numpys)
    np.testing.assert_array_equal(second, numpys)
    wholes = [snapshot.read_all() for snapshot in snapshots]
    np.testing.assert_array_equal(wholes[0].ids, wholes[1].ids, "the salt moves no row")
    np.testing.assert_array_equal(wholes[0].values, wholes[1].values)
    assert sorted(wholes[0].ids.tolist()) == sorted(expected.ids.tolist())
    for snapshot in snapshots:
        np.testing.assert_array_equal(snapshot.read(frozen_ids, SHAPE), frozen)


def test_equal_ids_are_found_among_those_that_crowd():
    """Without another salt each would be compared with most of those before it."""
    ids = alike_in_a_product(40_000, SALT)
    batch = np.concatenate([ids, ids[::-1]])
    distinct, positions = NativeUniqueFinder(SALT)(batch)
    np.testing.assert_array_equal(distinct, ids)
    np.testing.assert_array_equal(distinct[positions], batch)
    crowded = table()
    push(crowded, ids)
    holds(crowded, ids)


def test_dropped_ids_that_crowd_in_a_snapshot_are_found():
    ids = with_hashes(hashes(20_000, 0, 0) & ~np.uint64(0xFFFFFFFF), SALT)
    crowded = table(retention=RowRetention(evict_after_steps=1))
    push(crowded, ids, 1)
    snapshot = crowded.take_snapshot()
    push(crowded, ids[:1], 9)
    assert len(crowded) == 1
    np.testing.assert_array_equal(snapshot.read(ids, SHAPE), initial(SHAPE, ids) - np.float32(1))


def test_each_table_draws_a_salt_of_its_own():
    """Ids that were chosen for the salt of one crowd in no other: its index is as large as that of any ids."""
    ids = with_hashes(hashes(60_000, 40, 20), SALT)
    sizes = []
    for _ in range(2):
        new_table = NativeTable(SHAPE, OPTIMIZERS[0])
        push(new_table, ids)
        holds(new_table, ids)
        sizes.append(new_table.memory_usage.index)
    assert max(sizes) < 20 * len(ids) + 2**20
