"""The state of every optimizer survives a checkpoint, also one of an earlier version, and rules are elementwise."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numerics.optimizer_cases import CASES
from ps.shard_arrays import shard_arrays
from support.examples import examples

from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.core.partition import initial_placement
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers import ParameterUpdate, ScratchArrays, make_rule
from edl.numerics.optimizers.adam import momentum_product
from edl.numerics.parameter_store import NumpyParameterStore, PushGradients, RowBatch
from edl.ps.shard_restore import CutSnapshot, cut_from_shard, load_owned_part
from edl.storage.checkpoint_manifest import CheckpointManifest, commit_checkpoint, cut_directory
from edl.storage.checkpoint_shards import write_shard

TABLE = TableSpec("emb", 40, 3, {"name": "uniform", "minval": -1, "maxval": 1}, seed=3)
DENSE = (VariableSpec("kernel", (2, 3)), VariableSpec("bias", (3,)), VariableSpec("mean", (2,), statistic=True))
PATIENT = settings(deadline=None, max_examples=examples(30))
cases = st.sampled_from(sorted(CASES)).map(CASES.__getitem__)


@pytest.fixture(params=CASES)
def spec(request) -> OptimizerSpec:
    return CASES[request.param]


def gradients(seed: int) -> PushGradients:
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, TABLE.rows, 25)
    rows = RowBatch(ids, rng.normal(size=(len(ids), TABLE.dim)).astype(np.float32))
    return PushGradients(rng.normal(size=11).astype(np.float32), {"emb": rows}, 0.05, 1.0)


def store(spec: OptimizerSpec) -> NumpyParameterStore:
    return NumpyParameterStore(
        ModelDeclaration(DENSE, (TABLE,), spec, "model"), np.linspace(-1, 1, 11, dtype=np.float32)
    )


def trained(spec: OptimizerSpec, *steps: int, held: NumpyParameterStore | None = None) -> NumpyParameterStore:
    held = held or store(spec)
    for step in steps:
        held.apply_gradients(gradients(step), step)
    return held


def assert_same(one: NumpyParameterStore, other: NumpyParameterStore) -> None:
    mine, theirs = (shard_arrays(CutSnapshot(1, each.take_snapshot(), 1, {}))[0] for each in (one, other))
    assert mine.keys() == theirs.keys()
    for name, array in mine.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def test_training_goes_on_from_a_checkpoint_as_if_nothing_had_happened(spec, tmp_path):
    cut = CutSnapshot(1, trained(spec, 1, 2, 3).take_snapshot(), 3, {})
    directory = cut_directory(tmp_path, 1)
    shard = write_shard(directory, 0, *shard_arrays(cut))
    commit_checkpoint(directory, CheckpointManifest(1, 3, "2026-01-01T00:00:00+00:00", (shard,), {}))
    back = load_owned_part(directory, 0, initial_placement(1))
    assert back.snapshot.declaration == cut.snapshot.declaration
    assert_same(
        trained(spec, 4, 5, held=NumpyParameterStore.from_snapshot(back.snapshot)), trained(spec, 1, 2, 3, 4, 5)
    )


def test_slots_stand_in_a_shard_by_name(spec):
    arrays, _ = shard_arrays(CutSnapshot(1, trained(spec, 1).take_snapshot(), 1, {}))
    for slot in spec.slot_starts:
        assert arrays[f"slot/{slot}/kernel"].shape == (2, 3)
        assert arrays[f"rows/emb/slot/{slot}"].shape == arrays["rows/emb/values"].shape


def test_a_checkpoint_of_an_earlier_version_is_restored():
    """It called Adam's slots m and v, and knew neither amsgrad nor weight decay."""
    cut = CutSnapshot(1, trained(OptimizerSpec("adam"), 1, 2).take_snapshot(), 2, {})
    arrays, meta = shard_arrays(cut)
    former = {
        name.replace("slot/momentum", "slot/m").replace("slot/velocity", "slot/v"): array
        for name, array in arrays.items()
    }
    assert {"slot/m/kernel", "rows/emb/slot/v"} < former.keys()
    declared = json.loads(meta["declaration"])
    for added in ("amsgrad", "weight_decay"):
        del declared["optimizer"]["hyperparameters"][added]
    back = cut_from_shard(former, {**meta, "declaration": json.dumps(declared)})
    assert back.snapshot.declaration == cut.snapshot.declaration
    assert_same(NumpyParameterStore.from_snapshot(back.snapshot), NumpyParameterStore.from_snapshot(cut.snapshot))


@PATIENT
@given(cases.filter(lambda spec: spec.name != "lamb"), st.integers(1, 500), st.integers(0, 9))
def test_a_rule_on_many_values_is_the_rule_on_each_part(spec, step, seed):
    """What lets one function serve slabs, rows, and parts of both in any order."""
    rng = np.random.default_rng(seed)
    values, gradient = (rng.normal(size=(6, 4)).astype(np.float32) for _ in range(2))
    slots = [np.abs(rng.normal(size=(6, 4))).astype(np.float32) for _ in spec.slot_starts]
    apply = make_rule(spec, spec.get_number("weight_decay"))
    parts = [[array.copy() for array in (values, *slots)] for _ in range(2)]
    apply(parts[0][0], parts[0][1:], ParameterUpdate(gradient, 0.1, step), ScratchArrays.allocate_like(values))
    for row in rng.permutation(6):
        value, *slot = (array[row : row + 1] for array in parts[1])
        apply(value, slot, ParameterUpdate(gradient[row : row + 1], 0.1, step), ScratchArrays.allocate_like(value))
    for at_once, by_row in zip(*parts, strict=True):  # powers may differ in the last bit with the length of an array
        np.testing.assert_allclose(at_once, by_row, rtol=1e-5, atol=1e-6)


@PATIENT
@given(cases, st.sets(st.integers(0, TABLE.rows - 1), min_size=2, max_size=12), st.data())
def test_updates_of_disjoint_rows_commute(spec, ids, data):
    """Within one step: only bias corrections know the order of pushes."""
    order = data.draw(st.permutations(sorted(ids)))
    cut = data.draw(st.integers(1, len(order) - 1))
    pushes = [np.array(part, np.int64) for part in (order[:cut], order[cut:])]
    stores = [trained(spec, 1, 2) for _ in range(2)]
    for updated, turn in zip(stores, (pushes, pushes[::-1]), strict=True):
        for rows in turn:
            values = np.sin(np.outer(rows + 1, np.arange(1, 4))).astype(np.float32)
            updated.apply_gradients(
                PushGradients(np.zeros(11, np.float32), {"emb": RowBatch(rows, values)}, 0.1, 0.0), 3
            )
    row_ids = np.arange(TABLE.rows)
    np.testing.assert_array_equal(*(updated.read_rows("emb", row_ids) for updated in stores))


@PATIENT
@given(st.floats(0.01, 100), st.integers(0, 9))
def test_a_step_of_lamb_is_as_long_as_the_variable(scale, seed):
    rng = np.random.default_rng(seed)
    values, gradient = (rng.normal(size=(6, 4)).astype(np.float32) for _ in range(2))
    before = values * np.float32(scale)
    after, slots = before.copy(), [np.zeros_like(values) for _ in range(2)]
    make_rule(OptimizerSpec("lamb"), 0.0)(
        after, slots, ParameterUpdate(gradient, 0.1, 1), ScratchArrays.allocate_like(values)
    )
    assert np.linalg.norm(after - before) == pytest.approx(0.1 * np.linalg.norm(before), rel=1e-5)


@PATIENT
@given(st.integers(1, 3000), st.floats(0.5, 0.9999))
def test_nadams_product_is_a_function_of_the_step(step, beta_1):
    factors = [beta_1 * (1 - 0.5 * 0.96**i) for i in range(1, step + 1)]
    assert momentum_product(beta_1, step) == pytest.approx(np.prod(factors), rel=1e-9, abs=1e-300)


def test_ftrl_keeps_a_value_whose_gradients_were_all_zero():
    """Keras divides zero by zero here."""
    spec = OptimizerSpec("ftrl", {"initial_accumulator_value": 0.0})
    values, slots = np.ones(4, np.float32), [np.zeros(4, np.float32) for _ in spec.slot_starts]
    gradient = np.array([0, 1, 0, -1], np.float32)
    make_rule(spec, 0.0)(values, slots, ParameterUpdate(gradient, 0.1, 1), ScratchArrays.allocate_like(values))
    assert np.isfinite(values).all()
    np.testing.assert_array_equal(values[[0, 2]], 1)


@PATIENT
@given(st.floats(-1e3, 1e3, width=32), st.integers(1, 300))
def test_a_centered_rmsprop_is_finite_under_a_constant_gradient(constant, steps):
    """Its variance goes to 0, where rounding makes it negative."""
    spec = OptimizerSpec("rmsprop", {"centered": True})
    values = np.zeros(3, np.float32)
    slots, gradient = [np.zeros(3, np.float32) for _ in spec.slot_starts], np.full_like(values, constant)
    scratch = ScratchArrays.allocate_like(values)
    for step in range(1, steps + 1):
        make_rule(spec, 0.0)(values, slots, ParameterUpdate(gradient, 1e-3, step), scratch)
    assert np.isfinite(values).all()


def test_a_gradient_is_not_changed(spec):
    gradient, values = np.ones(4, np.float32), np.zeros(4, np.float32)
    slots = [np.full(4, initial, np.float32) for initial in spec.slot_starts.values()]
    make_rule(spec, spec.get_number("weight_decay"))(
        values, slots, ParameterUpdate(gradient, 0.1, 1), ScratchArrays.allocate_like(values)
    )
    np.testing.assert_array_equal(gradient, 1)
    assert (values < 0).all()
