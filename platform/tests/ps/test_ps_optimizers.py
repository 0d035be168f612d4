"""The same numbers as Keras, over many steps, for slabs and for rows."""

from __future__ import annotations

import numpy as np
import pytest

from edl.ps.declaration import Declaration, DenseVariable, RowTable
from edl.ps.numpy_store import NumpyStore
from edl.ps.optimizers import Scratch, Update, rule
from edl.ps.store import Gradients, RowGradients
from edl.spec.optimizer import OptimizerSpec

pytestmark = pytest.mark.tensorflow

STEPS = 60
CASES = {
    "sgd": OptimizerSpec("sgd"),
    "momentum": OptimizerSpec("momentum", {"momentum": 0.8}),
    "nesterov": OptimizerSpec("momentum", {"momentum": 0.9, "nesterov": True}),
    "adagrad": OptimizerSpec("adagrad", {"initial_accumulator_value": 0.2}),
    "adam": OptimizerSpec("adam", {"beta_1": 0.85, "beta_2": 0.995, "epsilon": 1e-6}),
}
ROWS, DIM = 12, 3
TABLE = RowTable("emb", ROWS, DIM, {"name": "normal", "mean": 0.0, "stddev": 1.0}, seed=5)


def keras_optimizer(spec: OptimizerSpec):
    import keras

    arguments = dict(spec.hyperparameters)
    classes = {"sgd": keras.optimizers.SGD, "momentum": keras.optimizers.SGD}
    classes |= {"adagrad": keras.optimizers.Adagrad, "adam": keras.optimizers.Adam}
    return classes[spec.name](learning_rate=0.1, **arguments)


def keras_result(spec: OptimizerSpec, start: np.ndarray, gradients: list[np.ndarray], rates: list[float]) -> np.ndarray:
    import keras

    variable = keras.Variable(start)
    optimizer = keras_optimizer(spec)
    for gradient, rate in zip(gradients, rates, strict=True):
        optimizer.learning_rate = rate
        optimizer.apply_gradients([(keras.ops.convert_to_tensor(gradient), variable)])
    return np.asarray(variable)


@pytest.fixture(params=CASES)
def spec(request) -> OptimizerSpec:
    return CASES[request.param]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def rates() -> list[float]:
    """A schedule: the learning rate travels with each push."""
    return [0.1 / (1 + step / 10) for step in range(STEPS)]


def row_store(spec: OptimizerSpec) -> tuple[NumpyStore, np.ndarray]:
    store = NumpyStore(Declaration((), (TABLE,), spec, "model"), np.empty(0, np.float32))
    return store, store.read_rows("emb", np.arange(ROWS))


def push_rows(store: NumpyStore, ids: np.ndarray, values: np.ndarray, rate: float, step: int) -> None:
    store.apply(Gradients(np.empty(0, np.float32), {"emb": RowGradients(ids, values)}, rate, 1.0), step)


def test_the_dense_slab_moves_as_in_keras(spec, rng):
    start = rng.normal(size=300).astype(np.float32)
    gradients = [rng.normal(size=300).astype(np.float32) for _ in range(STEPS)]
    store = NumpyStore(Declaration((DenseVariable("w", (300,)),), (), spec, "model"), start)
    for step, (gradient, rate) in enumerate(zip(gradients, rates(), strict=True), start=1):
        store.apply(Gradients(gradient, {}, rate, 1.0), step)
    moved = np.empty_like(start)
    store.read_dense(moved)
    np.testing.assert_allclose(moved, keras_result(spec, start, gradients, rates()), rtol=1e-5, atol=2e-6)


def test_rows_move_as_in_keras_when_all_are_touched_and_duplicates_are_summed(spec, rng):
    store, start = row_store(spec)
    dense = []
    for step, rate in enumerate(rates(), start=1):
        ids = rng.permutation(np.concatenate([np.arange(ROWS), rng.integers(0, ROWS, 20)]))
        values = rng.normal(size=(len(ids), DIM)).astype(np.float32)
        push_rows(store, ids, values, rate, step)
        dense.append(one_hot_gradient(ids, values))
    expected = keras_result(spec, start, dense, rates())
    np.testing.assert_allclose(store.read_rows("emb", np.arange(ROWS)), expected, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["sgd", "adagrad"])
def test_sparse_sgd_and_adagrad_equal_the_dense_update(name, rng):
    store, start = row_store(CASES[name])
    dense = []
    for step, rate in enumerate(rates(), start=1):
        ids = rng.integers(0, ROWS, 5)
        values = rng.normal(size=(5, DIM)).astype(np.float32)
        push_rows(store, ids, values, rate, step)
        dense.append(one_hot_gradient(ids, values))
    expected = keras_result(CASES[name], start, dense, rates())
    np.testing.assert_allclose(store.read_rows("emb", np.arange(ROWS)), expected, rtol=1e-5, atol=2e-6)


def one_hot_gradient(ids: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The dense gradient of an embedding, as a matrix product."""
    return (np.eye(ROWS, dtype=np.float32)[:, ids] @ values).astype(np.float32)


@pytest.mark.parametrize("name", ["momentum", "nesterov", "adam"])
def test_rows_that_are_not_touched_do_not_move_at_all(name, rng):
    store, start = row_store(CASES[name])
    push_rows(store, np.arange(ROWS), rng.normal(size=(ROWS, DIM)).astype(np.float32), 0.1, 1)
    before = store.snapshot().tables["emb"]
    push_rows(store, np.array([3]), np.ones((1, DIM), np.float32), 0.1, 2)
    after = store.snapshot().tables["emb"]
    others = np.arange(ROWS) != 3
    for old, new in [(before.values, after.values), *((before.slots[s], after.slots[s]) for s in before.slots)]:
        np.testing.assert_array_equal(old[others], new[others])
        assert (old[3] != new[3]).all()
    assert not np.allclose(start, after.values)


def test_a_gradient_is_not_changed(spec):
    gradient = np.ones(4, np.float32)
    values = np.zeros(4, np.float32)
    slots = [np.full(4, initial, np.float32) for initial in spec.slots.values()]
    rule(spec)(values, slots, Update(gradient, 0.1, 1), Scratch.like(values))
    np.testing.assert_array_equal(gradient, 1)
    assert (values < 0).all()
