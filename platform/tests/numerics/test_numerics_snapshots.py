"""Snapshots of native tables: what they keep while pushes go on, and that nothing of them stays."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path

import numpy as np
import pytest
from ps.shard_arrays import shard_arrays
from support.repetition import repetition
from support.table_contract import array, declared

from edl.api.errors import StorageError
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_snapshot import PinError, TableSnapshot
from edl.numerics.parameter_store import PushGradients, RowBatch
from edl.ps.messages import MasterAttachment
from edl.ps.model_state import StoreFactory
from edl.ps.parameter_server import ParameterServer
from edl.ps.shard_restore import CutSnapshot
from edl.ps.shard_writer import SavedShard, ShardWriter
from edl.storage.safetensors_writer import read_array_file

if importlib.util.find_spec("edl.numerics._native") is not None:
    from edl.numerics import native_table
    from edl.numerics.native_table import NativeParameterStore, NativeTable

pytestmark = pytest.mark.native
ADAGRAD = OptimizerSpec("adagrad")
SHAPE = declared(dim=16, rows=1 << 20)
ROW_BYTES = 8 + 2 * 16 * 4
SLACK = 2 * 4096


def filled(rows: int, threads: int = 1) -> NativeTable:
    table = NativeTable(SHAPE, ADAGRAD, threads=threads)
    push(table, np.arange(rows), 1)
    return table


def push(table: NativeTable, ids, step: int) -> None:
    random = np.random.default_rng(step)
    table.apply_gradients(array(ids), random.standard_normal((len(ids), SHAPE.dim)).astype(np.float32), 0.1, step)


def assert_same(rows: TableSnapshot, copy) -> None:
    start = 0
    for piece in rows.iter_chunks():
        part = slice(start, start := start + len(piece))
        np.testing.assert_array_equal(piece.ids, copy.ids[part])
        np.testing.assert_array_equal(piece.values, copy.values[part])
        np.testing.assert_array_equal(piece.slots["accumulator"], copy.slots["accumulator"][part])
    assert start == len(copy)


@pytest.mark.parametrize("threads", [repetition(1), 3])
def test_pushes_of_several_threads_do_not_reach_a_snapshot(threads, monkeypatch):
    monkeypatch.setattr(native_table, "CHUNK_BYTES", 50_000)
    table, moment, done = filled(20_000, threads), threading.Lock(), threading.Event()

    def pushing(number: int) -> None:
        random = np.random.default_rng(number)
        while not done.is_set():
            with moment:
                push(table, random.integers(0, 60_000, 12_000), 2)

    pushers = [threading.Thread(target=pushing, args=(number,)) for number in range(3)]
    for pusher in pushers:
        pusher.start()
    for _ in range(4):
        with moment:
            early, late = table.take_snapshot(), table.take_snapshot()
            copy, read = early.read_all(), table.read(np.arange(60_000))
        assert_same(early, copy)
        early.release()
        np.testing.assert_array_equal(late.read(np.arange(60_000), SHAPE), read)
        assert_same(late, copy)
        late.release()
    done.set()
    for pusher in pushers:
        pusher.join()
    assert table.memory_usage.snapshots == 0


def test_memory_of_a_snapshot_is_what_pushes_change_and_no_more_than_the_rows():
    table = filled(40_000)
    without = table.memory_usage.resident
    snapshot = table.take_snapshot()
    assert table.memory_usage.snapshots == 0
    push(table, np.arange(1000), 2)
    once = table.memory_usage.snapshots
    assert 1000 * (ROW_BYTES + 4) <= once <= 1000 * (ROW_BYTES + 4) + SLACK
    push(table, np.arange(1000), 3)
    assert table.memory_usage.snapshots == once
    push(table, np.arange(100_000), 4)
    everything = table.memory_usage
    assert everything.snapshots <= 40_000 * (ROW_BYTES + 4) + 2 * SLACK + (2 << 20)
    assert everything.resident >= without + everything.snapshots
    snapshot.release()
    assert table.memory_usage.snapshots == 0


def test_rows_that_the_only_reader_has_passed_are_not_kept(monkeypatch):
    monkeypatch.setattr(native_table, "CHUNK_BYTES", 100 * ROW_BYTES)
    table = filled(2000)
    alone, shared = table.take_snapshot(), table.take_snapshot()
    shared.retain()
    copy, reading = alone.read_all(), [rows.iter_chunks() for rows in (alone, shared)]
    for pieces in reading:
        assert sum(len(next(pieces)) for _ in range(10)) == 1000
    push(table, np.arange(2000), 2)
    kept_bytes = (1000 + 2000) * (ROW_BYTES + 4)
    assert kept_bytes <= table.memory_usage.snapshots <= kept_bytes + 2 * SLACK
    for pieces in reading:
        np.testing.assert_array_equal(np.concatenate([piece.values.copy() for piece in pieces]), copy.values[1000:])
    np.testing.assert_array_equal(shared.read_all().values, copy.values)


def test_who_is_told_that_a_snapshot_is_gone():
    table = filled(10)
    rows = table.take_snapshot()
    rows.retain()
    rows.release()
    assert len(rows.read_all()) == 10
    rows.release()
    assert len(rows) == 10
    for use in (rows.read_all, lambda: rows.read(array([1]), SHAPE), lambda: next(rows.iter_chunks())):
        with pytest.raises(PinError, match="no longer kept"):
            use()


def trained() -> tuple[NativeParameterStore, PushGradients]:
    declaration = ModelDeclaration((), (SHAPE,), ADAGRAD, "model")
    store = NativeParameterStore(declaration, np.empty(0, np.float32))
    values = np.random.default_rng(3).standard_normal((900, SHAPE.dim)).astype(np.float32)
    gradients = PushGradients(np.empty(0, np.float32), {SHAPE.name: RowBatch(np.arange(900), values)}, 0.1, 1.0)
    store.apply_gradients(gradients, 1)
    return store, gradients


def test_a_shard_is_written_in_pieces_while_pushes_go_on_and_the_snapshot_goes_with_the_last_holder(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(native_table, "CHUNK_BYTES", 7 * ROW_BYTES)
    store, gradients = trained()
    cut = CutSnapshot(3, store.take_snapshot(), 1, {})
    expected, meta = shard_arrays(CutSnapshot(3, store.take_snapshot(), 1, {}))
    writer = ShardWriter(0)
    writer.start_writing(tmp_path, cut)
    for step in range(2, 30):
        store.apply_gradients(gradients, step)
    saved = writer.wait_until_saved(3, 60)
    arrays, strings = read_array_file(tmp_path / saved.file)
    assert strings == meta
    for name, values in expected.items():
        np.testing.assert_array_equal(arrays[name], values)
    rows = cut.snapshot.tables[SHAPE.name]
    all_rows = rows.read_all()  # not of pieces, which share their memory
    np.testing.assert_array_equal(arrays[f"rows/{SHAPE.name}/ids"], all_rows.ids)
    np.testing.assert_array_equal(arrays[f"rows/{SHAPE.name}/values"], all_rows.values)
    np.testing.assert_array_equal(arrays[f"rows/{SHAPE.name}/slot/accumulator"], all_rows.slots["accumulator"])
    assert len(rows.read_all()) == 900
    cut.snapshot.release()
    with pytest.raises(PinError):
        rows.read_all()


def test_a_server_keeps_a_pin_until_it_is_unpinned_also_beside_a_checkpoint(tmp_path):
    server = ParameterServer(0, ShardWriter(0), store_factory=StoreFactory("native"))
    server.attach_master(MasterAttachment(1, 0))
    server.declare_model(ModelDeclaration((), (SHAPE,), ADAGRAD, "model"), np.empty(0, np.float32))
    assert server.take_snapshot(1, 1, tmp_path, pin=True) == server.take_snapshot(1, 1, tmp_path, pin=True)
    server.take_snapshot(1, 2, None, pin=True)
    assert server.wait_until_saved(1, 1, 60).file
    for cut, end in ((1, server.unpin_cut), (2, server.release_cut)):
        snapshot = server.pinned_cut(cut).snapshot
        assert snapshot.read_rows(SHAPE.name, array([5])).shape == (1, 16)
        end(1, cut)
        with pytest.raises(PinError):
            snapshot.read_rows(SHAPE.name, array([5]))


def test_a_shard_that_cannot_be_written_lets_go_of_its_snapshot(tmp_path):
    def full(directory: Path, index: int, cut: CutSnapshot) -> SavedShard:
        raise StorageError("the disk is full")

    cut = CutSnapshot(3, trained()[0].take_snapshot(), 1, {})
    writer = ShardWriter(0, full)
    with cut.snapshot:
        writer.start_writing(tmp_path, cut)
    assert writer.wait_until_saved(3, 60).error == "the disk is full"
    with pytest.raises(PinError):
        cut.snapshot.tables[SHAPE.name].read_all()
