"""A checkpoint restores what was saved: bit for bit, and for another number of parameter servers."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ps.shard_arrays import shard_arrays

from edl.api.errors import StorageError
from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.core.partition import initial_placement, owner_of_name, slot_of_row
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_store import NumpyParameterStore, PushGradients, RowBatch
from edl.ps.shard_restore import CutSnapshot, cut_from_shard, merge_cuts, select_owned
from edl.transport.peer_errors import BulkRefusedError

TABLE = TableSpec("emb", 500, 3, {"name": "uniform", "minval": -1, "maxval": 1}, seed=3)
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
NAMES = [f"layer{i}/kernel" for i in range(9)]


def trained(variables: tuple[VariableSpec, ...], seed: int, optimizer: str = "adam", row_owner=None) -> CutSnapshot:
    rng = np.random.default_rng(seed)
    store = NumpyParameterStore(
        declared := ModelDeclaration(variables, (TABLE,), OptimizerSpec(optimizer), "model"),
        rng.normal(size=declared.flat_size).astype(np.float32),
    )
    for step in range(1, 4):
        ids = rng.integers(0, TABLE.rows, 60)
        if row_owner is not None:
            ids = ids[row_owner(ids)]
        rows = RowBatch(ids, rng.normal(size=(len(ids), TABLE.dim)).astype(np.float32))
        slab = rng.normal(size=declared.flat_size).astype(np.float32)
        store.apply_gradients(PushGradients(slab, {"emb": rows}, 0.1, 1.0), step)
    return CutSnapshot(7, store.take_snapshot(), 3, {11: 2})


def variables(*names: str) -> tuple[VariableSpec, ...]:
    """In slab order: every third name is a statistic."""
    specs = [VariableSpec(name, (2, i % 3 + 1), statistic=i % 3 == 2) for i, name in enumerate(NAMES) if name in names]
    return tuple(sorted(specs, key=lambda variable: variable.statistic))


def spread(count: int) -> list[CutSnapshot]:
    """The shards of ``count`` PS."""
    slots = initial_placement(count)
    owners = np.array(slots)
    parts = []
    for index in range(count):
        own = variables(*(name for name in NAMES if owner_of_name(name, slots) == index))
        mine = lambda ids, i=index: owners[slot_of_row(ids.astype(np.uint64))] == i  # noqa: E731
        parts.append(trained(own, seed=index, row_owner=mine))
    return parts


def contents(cuts: list[CutSnapshot]) -> dict[str, bytes]:
    """Everything by name, however it is spread; rows by id."""
    bytes_by_name: dict[str, bytes] = {}
    for cut in cuts:
        arrays, _ = shard_arrays(cut)
        for name, array in arrays.items():
            if not name.startswith("rows/"):
                assert name not in bytes_by_name
                bytes_by_name[name] = array.tobytes()
        rows = cut.snapshot.tables["emb"].read_all()
        for position, row in enumerate(rows.ids.tolist()):
            assert f"row/{row}" not in bytes_by_name
            slots = [slot[position].tobytes() for slot in rows.slots.values()]
            bytes_by_name[f"row/{row}"] = b"".join([rows.values[position].tobytes(), *slots])
    return bytes_by_name


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adagrad", "adam"])
def test_a_shard_gives_the_cut_back_bit_for_bit_and_training_goes_on_alike(optimizer):
    cut = trained(variables(*NAMES), seed=1, optimizer=optimizer)
    back = cut_from_shard(*shard_arrays(cut))
    assert (back.cut_number, back.version, back.applied_steps) == (7, 3, {11: 2})
    assert back.snapshot.declaration == cut.snapshot.declaration
    assert contents([back]) == contents([cut])
    gradients = PushGradients(
        np.ones(cut.snapshot.declaration.flat_size, np.float32),
        {"emb": RowBatch(np.arange(500), np.ones((500, 3), np.float32))},
        0.1,
        0.5,
    )
    stores = [NumpyParameterStore.from_snapshot(c.snapshot) for c in (cut, back)]
    for store in stores:
        store.apply_gradients(gradients, 4)
    after = [CutSnapshot(8, store.take_snapshot(), 4, {}) for store in stores]
    assert contents(after[:1]) == contents(after[1:])


@PATIENT
@given(st.integers(1, 4), st.integers(1, 4))
def test_another_number_of_ps_holds_the_same_values_each_once(before, after):
    saved = spread(before)
    slots = initial_placement(after)
    restored = [merge_cuts([select_owned(cut, index, slots) for cut in saved]) for index in range(after)]
    assert contents(restored) == contents(saved)
    for index, cut in enumerate(restored):
        assert all(owner_of_name(v.name, slots) == index for v in cut.snapshot.declaration.variables)
    if before == after:
        assert [cut.snapshot.declaration for cut in restored] == [cut.snapshot.declaration for cut in saved]
        assert all(cut.has_slab_order for cut in restored)


def test_shards_of_two_models_are_not_mixed():
    cut = trained(variables(NAMES[0]), seed=0)
    other = replace(cut, snapshot=replace(cut.snapshot, declaration=replace(cut.snapshot.declaration, fingerprint="x")))
    with pytest.raises(StorageError, match="two models"):
        merge_cuts([cut, other])
    with pytest.raises(StorageError, match="no shards"):
        merge_cuts([])


def test_a_shard_that_lacks_an_array_is_no_shard():
    arrays, meta = shard_arrays(trained(variables(*NAMES), seed=0))
    for name in list(arrays):
        with pytest.raises(StorageError):
            cut_from_shard({other: array for other, array in arrays.items() if other != name}, meta)
    with pytest.raises(StorageError):
        cut_from_shard(arrays, {**meta, "applied": "nonsense"})


@pytest.mark.parametrize("field", ["declaration", "applied"])
@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, r'{"\ud800": 1}', '{"1": 1e999}', '{"1": ' + "9" * 400 + "}"],
    ids=["deep", "half of a pair", "infinite", "long"],
)
def test_a_shard_with_json_that_no_parameter_server_writes_is_no_shard(field, text):
    arrays, meta = shard_arrays(trained(variables(*NAMES), seed=0))
    with pytest.raises(StorageError, match="is not the shard"):
        cut_from_shard(arrays, {**meta, field: text})


def test_a_shard_whose_strings_or_shapes_are_of_another_kind_is_no_shard():
    arrays, meta = shard_arrays(trained(variables(*NAMES), seed=0))
    declared = json.loads(meta["declaration"])
    for changed in (
        {"dense": [3]},
        {"tables": [["emb"]]},
        {"optimizer": {"name": "x"}},
        {"dense": [["w", [-1], False]]},
    ):
        with pytest.raises(StorageError, match="is not the shard"):
            cut_from_shard(arrays, {**meta, "declaration": json.dumps({**declared, **changed})})
    turned = {name: array.T if name.startswith("dense/") else array for name, array in arrays.items()}
    with pytest.raises(StorageError, match=r"variable 'layer0/kernel' .*\[1, 2\].*\[2, 1\]"):
        cut_from_shard(turned, meta)


def test_of_a_lease_the_part_that_knows_most_counts():
    """A PS that was restored alone after the lease was granted knows less of it."""
    first, other = (
        replace(cut, applied_steps=applied) for cut, applied in zip(spread(2), ({11: 2}, {11: 5, 12: 1}), strict=True)
    )
    assert merge_cuts([first, other]).applied_steps == merge_cuts([other, first]).applied_steps == {11: 5, 12: 1}


def test_one_ps_resumes_what_two_saved_in_the_order_that_a_worker_declares(start, tmp_path):
    slots = initial_placement(2)
    values = {name: np.full(2, i, np.float32) for i, name in enumerate(NAMES)}
    servers = [start(0), start(1)]
    for ps in servers:
        ps.attach()
        worker = ps.worker()
        worker.declare({n: v for n, v in values.items() if owner_of_name(n, slots) == ps.index}, optimizer="momentum")
    directory = servers[0].checkpoint(servers, 1, tmp_path)

    resumed = start(0)
    assert resumed.attach(restore=str(directory), slots=initial_placement(1)).initialized
    worker = resumed.worker()
    with pytest.raises(BulkRefusedError, match="declared"):
        worker.pull()
    with pytest.raises(BulkRefusedError, match="fingerprint"):
        worker.declare(dict(reversed(values.items())), optimizer="momentum", fingerprint="another")
    wider = {**values, NAMES[3]: np.zeros((2, 7), np.float32)}
    with pytest.raises(BulkRefusedError, match=rf"'{NAMES[3]}' is \[2, 7\].*\[2\]\n  .*model"):
        worker.declare(wider, optimizer="momentum", fingerprint="another")
    more = {**values, "more": np.zeros(1, np.float32)}
    with pytest.raises(BulkRefusedError, match=r"'more' \[1\]"):
        worker.declare(more, optimizer="momentum", fingerprint="another")
    del more["more"], more[NAMES[5]]
    with pytest.raises(BulkRefusedError, match=rf"'{NAMES[5]}' \[2\]"):
        worker.declare(more, optimizer="momentum", fingerprint="another")
    assert not worker.declare(values, optimizer="momentum").first
    np.testing.assert_array_equal(worker.pull()[1], np.repeat(np.arange(len(NAMES)), 2))


def test_an_attachment_that_is_repeated_restores_once_and_a_broken_checkpoint_changes_nothing(start, tmp_path):
    lease = (1 << 32) + 1
    ps = start()
    ps.attach()
    ps.worker().declare({"w": np.zeros(1, np.float32)})
    directory = ps.checkpoint([ps], 1, tmp_path)
    fresh = start()
    again = {"restore": str(directory), "slots": initial_placement(1), "live": [lease], "cut": 1}
    fresh.attach(**again)
    worker = fresh.worker()
    worker.push(lease, 0, [1])
    assert fresh.attach(**again).version == 1
    np.testing.assert_array_equal(worker.pull()[1], [-1])
    with pytest.raises(Exception, match="manifest"):
        fresh.attach(2, restore=str(tmp_path / "nowhere"), slots=initial_placement(1))
    np.testing.assert_array_equal(worker.pull()[1], [-1])
