"""Over 200 steps: the same numbers as Keras where every row is touched, and as a float64 reference where few are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numerics.dense_problem import DIM, NOTHING, ROWS, TABLE, DenseProblem, close, rates
from numerics.lazy_reference import FORMULAS, LazyReference
from numerics.optimizer_cases import CASES, KERAS
from support.repetition import repetition

from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OPTIMIZER_DEFINITIONS, OptimizerSpec
from edl.numerics.parameter_store import NumpyParameterStore, PushGradients, RowBatch


@pytest.fixture(params=CASES)
def spec(request) -> OptimizerSpec:
    return CASES[request.param]


def in_third_if_a_variant(name: str) -> object:
    """`make test` compares each optimizer with Keras once, `make third` with its options."""
    return repetition(name) if "," in name else name


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@pytest.mark.tensorflow
@pytest.mark.parametrize("spec", [in_third_if_a_variant(name) for name in CASES], indirect=True)
@pytest.mark.first_cases(5)
def test_dense_variables_and_rows_move_as_in_keras(spec, rng):
    problem = DenseProblem(spec, rng)
    for moved, expected in zip(problem.on_the_ps(), problem.in_keras(), strict=True):
        close(moved, expected)


@pytest.mark.tensorflow
def test_variables_that_are_excluded_from_weight_decay_are_left_alone(rng):
    spec = OptimizerSpec("adam", {"weight_decay": 0.1}, ("dense/bias", "small/embeddings", TABLE.name))
    problem = DenseProblem(spec, rng)
    kernel, bias, embedding, gain, rows = problem.on_the_ps()
    for moved, expected in zip((kernel, bias, embedding, gain, rows), problem.in_keras(), strict=True):
        close(moved, expected)
    problem.declared = replace(problem.declared, optimizer=OptimizerSpec("adam"))
    undecayed = problem.on_the_ps()
    np.testing.assert_array_equal(bias, undecayed[1])
    np.testing.assert_array_equal(rows, undecayed[4])
    assert not np.allclose(kernel, undecayed[0])
    assert not np.allclose(gain, undecayed[3])


def row_store(spec: OptimizerSpec) -> tuple[NumpyParameterStore, np.ndarray]:
    store = NumpyParameterStore(ModelDeclaration((), (TABLE,), spec, "model"), NOTHING)
    return store, store.read_rows(TABLE.name, np.arange(ROWS))


def push_rows(store: NumpyParameterStore, ids: np.ndarray, values: np.ndarray, rate: float, step: int) -> None:
    store.apply_gradients(PushGradients(NOTHING, {TABLE.name: RowBatch(ids, values)}, rate, 1.0), step)


@pytest.mark.first_cases(9)
def test_sparse_access_equals_a_float64_reference_in_which_untouched_rows_stand_still(spec, rng):
    store, start = row_store(spec)
    reference = LazyReference(spec, start)
    for step, rate in enumerate(rates(), start=1):
        ids = np.minimum(rng.zipf(1.5, 6) - 1, ROWS - 1)
        values = rng.normal(size=(6, DIM)).astype(np.float32)
        push_rows(store, ids, values, rate, step)
        reference.apply(ids, values, rate, step)
    close(store.read_rows(TABLE.name, np.arange(ROWS)), reference.values)


def test_rows_that_are_not_touched_do_not_move_at_all(spec, rng):
    store, start = row_store(spec)
    push_rows(store, np.arange(ROWS), rng.normal(size=(ROWS, DIM)).astype(np.float32), 0.1, 1)
    before = store.take_snapshot().tables[TABLE.name]
    push_rows(store, np.array([3]), np.full((1, DIM), 9, np.float32), 0.1, 2)
    after = store.take_snapshot().tables[TABLE.name]
    others = np.arange(ROWS) != 3
    for old, new in [(before.values, after.values), *((before.slots[s], after.slots[s]) for s in before.slots)]:
        np.testing.assert_array_equal(old[others], new[others])
        assert (old[3] != new[3]).all()
    assert not np.allclose(start, after.values)


def test_l1_makes_rows_exactly_zero_and_a_rate_of_zero_moves_nothing():
    store, start = row_store(OptimizerSpec("ftrl", {"l1_regularization_strength": 1.0}))
    push_rows(store, np.arange(ROWS), np.full((ROWS, DIM), 0.01, np.float32), 0.0, 1)
    np.testing.assert_array_equal(store.read_rows(TABLE.name, np.arange(ROWS)), start)
    push_rows(store, np.arange(ROWS), np.full((ROWS, DIM), 0.01, np.float32), 0.1, 2)
    np.testing.assert_array_equal(store.read_rows(TABLE.name, np.arange(ROWS)), 0)


def test_a_group_lasso_makes_whole_rows_zero(rng):
    store, _ = row_store(OptimizerSpec("ftrl", {"group_lasso_regularization_strength": 20.0}))
    pushed = rng.normal(size=(ROWS, DIM)).astype(np.float32) + np.arange(ROWS, dtype=np.float32)[:, None] * 4
    push_rows(store, np.arange(ROWS), pushed, 0.1, 1)
    zeros = store.read_rows(TABLE.name, np.arange(ROWS)) == 0
    np.testing.assert_array_equal(zeros.any(axis=1), zeros.all(axis=1))
    assert 0 < zeros.all(axis=1).sum() < ROWS


def test_every_optimizer_has_its_cases():
    assert {spec.name for spec in CASES.values()} == set(OPTIMIZER_DEFINITIONS) == set(KERAS) == {*FORMULAS, "lamb"}
