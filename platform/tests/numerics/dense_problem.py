"""The same 200 steps on the parameter server and in Keras."""

from __future__ import annotations

import numpy as np
from numerics.optimizer_cases import KERAS
from support.table_contract import StoreTable

from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_store import NumpyParameterStore, PushGradients, RowBatch

STEPS = 200
ROWS, DIM = 12, 3
TABLE = TableSpec("emb/embeddings", ROWS, DIM, {"name": "normal", "mean": 0.0, "stddev": 1.0}, seed=5)
DENSE = (
    VariableSpec("dense/kernel", (5, 7)),
    VariableSpec("dense/bias", (7,)),
    VariableSpec("small/embeddings", (4, 2)),
    VariableSpec("gain", (3,)),
)
NOTHING = np.empty(0, np.float32)


def rates() -> list[float]:
    """A schedule: the learning rate travels with each push."""
    return [0.1 / (1 + step / 20) for step in range(STEPS)]


class DenseProblem:
    """Gradients of two dense variables and of a table whose every row is touched in every step, with duplicates."""

    def __init__(self, spec: OptimizerSpec, rng: np.random.Generator) -> None:
        self.declared = ModelDeclaration(DENSE, (TABLE,), spec, "model")
        self.slab = rng.normal(size=self.declared.flat_size).astype(np.float32)
        self.slabs = [rng.normal(size=self.declared.flat_size).astype(np.float32) for _ in range(STEPS)]
        self.ids = [rng.permutation([*range(ROWS), *rng.integers(0, ROWS, 20)]) for _ in range(STEPS)]
        self.rows = [rng.normal(size=(len(ids), DIM)).astype(np.float32) for ids in self.ids]

    def on_the_ps(self) -> list[np.ndarray]:
        """Where it ends: the variables, then the table."""
        store = NumpyParameterStore(self.declared, self.slab)
        for step, (slab, ids, rows, rate) in enumerate(zip(self.slabs, self.ids, self.rows, rates(), strict=True), 1):
            store.apply_gradients(PushGradients(slab, {TABLE.name: RowBatch(ids, rows)}, rate, 1.0), step)
        store.read_flat(moved := np.empty_like(self.slab))
        return [*self._cut(moved), store.read_rows(TABLE.name, np.arange(ROWS))]

    def rows_of(self, table: StoreTable) -> np.ndarray:
        """Where a table ends that is moved alone."""
        for step, (ids, rows, rate) in enumerate(zip(self.ids, self.rows, rates(), strict=True), 1):
            table.apply_gradients(ids, rows, rate, step)
        return table.read(np.arange(ROWS))

    def in_keras(self) -> list[np.ndarray]:
        """The same, as one graph of TensorFlow."""
        import keras
        import tensorflow as tf

        start = NumpyParameterStore(self.declared, self.slab).read_rows(TABLE.name, np.arange(ROWS))
        names = [*(variable.name for variable in DENSE), TABLE.name]
        first = [*self._cut(self.slab), start]
        variables = [keras.Variable(v, name=n.rpartition("/")[2]) for n, v in zip(names, first, strict=True)]
        optimizer = keras_optimizer(self.declared.optimizer)
        optimizer.build(variables)
        apply = tf.function(lambda gradients: optimizer.apply(gradients, variables), autograph=False)
        for slab, ids, rows, rate in zip(self.slabs, self.ids, self.rows, rates(), strict=True):
            optimizer.learning_rate = rate
            dense = np.eye(ROWS, dtype=np.float32)[:, ids] @ rows
            apply([tf.constant(gradient) for gradient in (*self._cut(slab), dense)])
        return [np.asarray(variable) for variable in variables]

    def _cut(self, slab: np.ndarray) -> list[np.ndarray]:
        return [slab[place].reshape(variable.shape) for variable, place in self.declared.variable_slices()]


def keras_optimizer(spec: OptimizerSpec):
    import keras

    arguments = dict(spec.hyperparameters)
    kind = getattr(keras.optimizers, KERAS[spec.name])
    if arguments.pop("group_lasso_regularization_strength", 0.0):
        from edl.keras.group_ftrl import GroupFtrl

        arguments, kind = dict(spec.hyperparameters), GroupFtrl
    optimizer = kind(learning_rate=0.1, **arguments)
    if spec.undecayed:
        optimizer.exclude_from_weight_decay(var_names=[name.rpartition("/")[2] for name in spec.undecayed])
    return optimizer


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
