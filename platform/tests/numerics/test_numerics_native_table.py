"""The native table keeps the contract of tables, and has the NumPy table's bits. ``make native-test`` runs this."""

from __future__ import annotations

import importlib.util
import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.retention_contract import RetentionContract
from support.table_contract import OPTIMIZERS, PATIENT, Make, TableContract, array, declared, dyadic, initial

if importlib.util.find_spec("edl.numerics._native") is not None:
    from edl.numerics.native_table import NativeTable

pytestmark = pytest.mark.native
any_ids = st.integers(-(2**63), 2**63 - 1)
SETTINGS = [("baseline", 1), ("avx2", 1), ("avx512", 1), ("", 3)]


def table_with(isa: str, threads: int) -> Make:
    """Skips where the processor has not got those instructions."""
    try:
        NativeTable(declared(), OPTIMIZERS[0], isa=isa)
    except ValueError:
        pytest.skip(f"this processor has no {isa}")
    return partial(NativeTable, threads=threads, isa=isa)


@pytest.mark.parametrize(("isa", "threads"), SETTINGS)
class TestNativeTable(TableContract, RetentionContract):
    @pytest.fixture
    def make(self, isa: str, threads: int) -> Make:
        return table_with(isa, threads)


@PATIENT
@given(st.lists(st.lists(any_ids, max_size=60), max_size=8))
def test_every_64_bit_id_is_an_id(pushes):
    table, expected = NativeTable(declared(), OPTIMIZERS[0]), {}
    for step, ids in enumerate(pushes, start=1):
        table.apply_gradients(array(ids), np.ones((len(ids), 3), np.float32), 1.0, step)
        for row in ids:
            expected[row] = expected.get(row, 0) + 1
    copy = table.take_snapshot().read_all()
    assert sorted(copy.ids.tolist()) == sorted(expected)
    np.testing.assert_array_equal(table.read(copy.ids), copy.values)


def test_gradients_of_one_id_are_added_in_the_order_in_which_they_come():
    terms = np.array([[1e8], [1.0], [-1e8], [1.0]], np.float32)
    table = NativeTable(declared({"name": "zeros"}, dim=1), OPTIMIZERS[0])
    table.apply_gradients(array([5, 5, 5, 5]), terms, -1.0, 1)
    assert table.read(array([5]))[0, 0] == ((np.float32(1e8) + 1) - np.float32(1e8)) + 1


@pytest.mark.parametrize("threads", [1, 3])
def test_it_grows_through_many_splits(threads):
    random = np.random.default_rng(9)
    table = NativeTable(declared(dim=1), OPTIMIZERS[0], threads=threads)
    ids = random.integers(-(2**63), 2**63 - 1, 400_000)
    for part in np.array_split(ids, 23):
        table.apply_gradients(part, np.ones((len(part), 1), np.float32), 1.0, 1)
    assert len(table) == len(np.unique(ids))
    missing = random.integers(-(2**63), 2**63 - 1, 50_000)
    np.testing.assert_array_equal(table.read(ids), initial(declared(dim=1), ids) - np.float32(1))
    np.testing.assert_array_equal(table.read(missing), initial(declared(dim=1), missing))


@pytest.mark.parametrize("count", [0, 1, 23, 24, 25, 1023, 1024, 1025, 1048, 1049, 2048, 5000])
def test_batches_of_any_length_find_what_is_stored_and_nothing_else(count):
    """Lengths about those of the passes of a search; a third of the ids is stored, in a table full enough for doubt."""
    random = np.random.default_rng(count)
    table = NativeTable(declared(dim=1), OPTIMIZERS[0])
    stored = np.arange(0, 60_000, 3)
    table.apply_gradients(stored, np.ones((len(stored), 1), np.float32), 1.0, 1)
    ids = random.integers(0, 60_000, count)
    expected = initial(declared(dim=1), ids) - np.float32(1) * (ids % 3 == 0)[:, None]
    np.testing.assert_array_equal(table.read(ids), expected)
    table.apply_gradients(ids, np.zeros((count, 1), np.float32), 1.0, 2)
    np.testing.assert_array_equal(table.read(ids), expected)
    assert len(table) == len(np.union1d(ids, stored))


def test_rows_of_a_server_do_not_crowd():
    """What one of 256 servers holds: ids whose hashes end alike."""
    from edl.core.partition import slot_of_row

    ids = np.arange(2_000_000)
    ids = ids[slot_of_row(ids.astype(np.uint64)) == 7]
    table = NativeTable(declared(dim=1), OPTIMIZERS[0])
    table.apply_gradients(ids, np.ones((len(ids), 1), np.float32), 1.0, 1)
    np.testing.assert_array_equal(table.read(ids), initial(declared(dim=1), ids) - np.float32(1))
    assert table.memory_usage.index < 20 * len(ids) + 4096 * 64


def test_readers_and_a_writer_at_once():
    """A reader sees each row as it was before a push or as it is after it."""
    table = NativeTable(declared({"name": "zeros"}, dim=16), OPTIMIZERS[0], threads=2)
    ids, done, torn = np.arange(9000), threading.Event(), []

    def reading() -> None:
        while not done.is_set():
            rows = table.read(ids)
            torn.extend(rows[(rows != rows[0, 0]).any(axis=1)])

    readers = [threading.Thread(target=reading) for _ in range(2)]
    for reader in readers:
        reader.start()
    for step in range(1, 101):
        table.apply_gradients(ids, np.ones((len(ids), 16), np.float32), 1.0, step)
    done.set()
    for reader in readers:
        reader.join()
    assert not torn
    np.testing.assert_array_equal(table.read(ids), -100)


def test_memory_is_what_the_kernel_says():
    small = NativeTable(declared(), OPTIMIZERS[0])
    small.apply_gradients(array([1]), np.ones((1, 3), np.float32), 1.0, 1)
    assert small.memory_usage.resident < 64 * 1024
    table = NativeTable(declared(dim=8), OPTIMIZERS[0])
    for start in range(0, 300_000, 50_000):
        table.apply_gradients(np.arange(start, start + 50_000), np.ones((50_000, 8), np.float32), 1.0, 1)
    memory = table.memory_usage
    assert 300_000 * 40 <= memory.rows <= 300_000 * 40 + 4 * 2**20
    assert memory.rows + memory.index <= memory.resident <= memory.reserved


def test_arrays_of_another_type_or_shape_are_refused():
    table = NativeTable(declared(), OPTIMIZERS[0])
    ones = np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match="rows must be"):
        table.apply_gradients(array([1, 2]), np.ones((2, 4), np.float32), 1.0, 1)
    with pytest.raises(ValueError, match="rows must be"):
        table.apply_gradients(array([1, 2, 3]), ones, 1.0, 1)
    with pytest.raises(TypeError):
        table.read_into(array([1, 2]), np.empty((2, 3), np.float64))
    with pytest.raises(TypeError):
        table.read_into(array([1, 2]), np.empty((4, 6), np.float32)[::2, ::2])
    assert len(table) == 0


def test_a_gradient_may_be_read_only():
    table = NativeTable(declared({"name": "zeros"}), OPTIMIZERS[0])
    gradients = dyadic(np.random.default_rng(1), 2, 3)
    gradients.flags.writeable = False
    ids = array([1, 2])
    ids.flags.writeable = False
    table.apply_gradients(ids, gradients, -1.0, 1)
    np.testing.assert_array_equal(table.read(ids), gradients)
