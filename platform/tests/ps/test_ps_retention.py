"""A bound and dropped rows in a whole server: what is refused, what a checkpoint says of it, what its share is."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.text_keys import missing_keys

from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.core.partition import initial_placement
from edl.numerics.embedding_table import RowRetention, TableFullError
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_store import PushGradients, RowBatch
from edl.ps.applied_steps import AdmissionOutcome, PushId
from edl.ps.messages import MasterAttachment
from edl.ps.model_state import NATIVE_STORE, NUMPY_STORE, NativeExtension, StoreFactory
from edl.ps.parameter_server import ParameterServer
from edl.ps.push_updates import PendingPush
from edl.ps.shard_restore import CutSnapshot, cut_from_shard, load_owned_part, merge_cuts
from edl.ps.shard_writer import ShardWriter, write_cut_shard
from edl.storage.checkpoint_contents import read_checkpoint_contents
from edl.storage.checkpoint_manifest import CheckpointManifest, ShardInfo, commit_checkpoint, cut_directory
from edl.storage.safetensors_writer import read_array_file

SMALL, LARGE = (TableSpec(name, 1000, 2, {"name": "zeros"}, seed=1) for name in ("small", "large"))
DECLARED = ModelDeclaration((VariableSpec("w", (2,)),), (SMALL, LARGE), OptimizerSpec("adagrad"), "model")
LEASE = (1 << 32) + 1
HERE = [NUMPY_STORE, *([NATIVE_STORE] if importlib.util.find_spec("edl.numerics._native") else [])]


@pytest.fixture(params=HERE)
def stores(request):
    return lambda retention: StoreFactory(request.param, retention=retention)


def push(**ids: list[int]) -> PushGradients:
    rows = {name: RowBatch(np.array(each, np.int64), np.ones((len(each), 2), np.float32)) for name, each in ids.items()}
    return PushGradients(np.ones(2, np.float32), rows, 0.5, 1.0)


@given(st.integers(1, 10**9), st.integers(1, 100))
def test_the_shares_of_all_servers_hold_a_table_of_the_bound(bound, servers):
    share = RowRetention(bound, server_count=servers).row_limit
    assert share is not None
    assert bound <= share * servers < bound + servers
    assert RowRetention(None, server_count=servers).row_limit is None


def test_a_full_table_says_its_shape_and_which_part_of_the_bound_is_here():
    any_id = TableSpec("users/embeddings", 0, 8, {"name": "zeros"}, seed=1)
    with pytest.raises(TableFullError) as refused:
        RowRetention(60, 5, server_count=2).check_capacity(any_id, 24, 10)
    first, remedy = str(refused.value).splitlines()
    assert not missing_keys(
        first, "'users/embeddings' (any id x 8)", "24 rows", "10 new", "30", "ps.max_rows 60", "2 parameter servers"
    )
    assert not missing_keys(remedy, "ps.max_rows", "ps.count", "ps.evict_after_steps (5)", "--resume")


def test_a_push_of_stored_rows_alone_is_taken_by_a_table_above_its_share():
    """With more servers than before a share is smaller, and one server may have got more rows than that."""
    table = TableSpec("emb", 0, 8, {"name": "zeros"}, 1)
    RowRetention(9, server_count=3).check_capacity(table, 4, 0)
    with pytest.raises(TableFullError, match="1 new"):
        RowRetention(9, server_count=3).check_capacity(table, 4, 1)


def test_a_push_that_one_table_has_no_room_for_changes_nothing_at_all(stores):
    server = ParameterServer(0, ShardWriter(0), store_factory=stores(RowRetention(max_rows=3)))
    server.attach_master(MasterAttachment(1, 0))
    server.declare_model(DECLARED, np.zeros(2, np.float32))
    declaration, slab = server.require_declaration(), np.empty(2, np.float32)
    for _ in range(2):
        with pytest.raises(TableFullError, match=r"table 'large' \(1000 x 2\).*0 rows.*4 new"):
            server.push(PendingPush(PushId(LEASE, 0), declaration, push(small=[1, 2], large=[1, 2, 3, 4])))
        assert server.pull(declaration, slab) == 0
        np.testing.assert_array_equal(slab, 0)
        assert server.position_limit("small") == 0
    assert (
        server.push(PendingPush(PushId(LEASE, 0), declaration, push(small=[1, 2], large=[1, 2, 3])))[0]
        is AdmissionOutcome.ADMITTED
    )
    assert server.pull(declaration, slab) == 1


def test_a_checkpoint_says_which_step_named_each_row_last(stores, tmp_path):
    factory = stores(RowRetention(evict_after_steps=3))
    store = factory.make_store(DECLARED, np.zeros(2, np.float32))
    for step, ids in enumerate(([1, 2, 3], [2, 3], [3]), start=1):
        store.apply_gradients(push(small=ids), step)
    directory = cut_directory(tmp_path, 1)
    with store.take_snapshot() as snapshot:
        saved = write_cut_shard(directory, 0, CutSnapshot(1, snapshot, 3, {}))
    commit_checkpoint(
        directory,
        CheckpointManifest(
            1, 3, "2026-01-01T00:00:00+00:00", (ShardInfo(saved.file, saved.size, int(saved.checksum, 16)),), {}
        ),
    )
    (small_table,) = (
        table for table in read_checkpoint_contents([directory / saved.file]).tables if table.name == "small"
    )
    assert (small_table.row_count, small_table.slots) == (3, ("accumulator",))

    back = load_owned_part(directory, 0, initial_placement(1))
    restored = factory.restore_store(back.snapshot, back.version)
    for step, left in ((4, [1, 2, 3]), (5, [2, 3]), (6, [3]), (7, [])):
        restored.apply_gradients(push(large=[5], small=[]), step)
        rows = restored.take_snapshot().tables["small"].read_all()
        assert sorted(rows.ids.tolist()) == left


def test_rows_of_a_checkpoint_that_does_not_say_it_count_as_named_by_its_last_step(stores):
    """As after `--resume --set ps.evict_after_steps=3`: nothing is dropped for what happened before."""
    store = stores(RowRetention()).make_store(DECLARED, np.zeros(2, np.float32))
    store.apply_gradients(push(small=[1, 2]), 1)
    with store.take_snapshot() as snapshot:
        restored = stores(RowRetention(evict_after_steps=3)).restore_store(snapshot, 8)
    for step, left in ((9, [1, 2]), (10, [1, 2]), (11, [1, 2]), (12, [])):
        restored.apply_gradients(push(small=[]), step)
        assert sorted(restored.take_snapshot().tables["small"].read_all().ids.tolist()) == left


def test_rows_of_shards_of_which_one_does_not_say_it_count_as_named_at_the_checkpoint(tmp_path):
    cuts = []
    for index, retention in enumerate((RowRetention(), RowRetention(evict_after_steps=3))):
        store = StoreFactory(NUMPY_STORE, native_extension=NativeExtension(), retention=retention).make_store(
            ModelDeclaration((), (SMALL,), OptimizerSpec("sgd"), "model"), np.empty(0, np.float32)
        )
        values = np.ones((1, 2), np.float32)
        rows = {"small": RowBatch(np.array([index]), values)}
        store.apply_gradients(PushGradients(np.empty(0, np.float32), rows, 1.0, 1.0), 1)
        saved = write_cut_shard(tmp_path / str(index), index, CutSnapshot(1, store.take_snapshot(), 9, {}))
        cuts.append(cut_from_shard(*read_array_file(tmp_path / str(index) / saved.file)))
    assert [cut.snapshot.tables["small"].has_last_steps for cut in cuts] == [False, True]
    merged = merge_cuts(cuts)
    assert not merged.snapshot.tables["small"].has_last_steps
    assert len(merged.snapshot.tables["small"]) == 2
