"""How far lazy updates of an embedding end from dense ones when ids follow a Zipf law: a Markdown table.

A table learns a target for each id, from batches with noisy targets. *Lazy* is what parameter servers do: only rows
that a batch holds are updated. *Dense* is the same optimizer with the whole table's gradient, zeros where no id was, as
Keras does it. Everything else is equal: ids, noise, rates, the code of the update. No TensorFlow.

    python bench/lazy_dense.py [--steps 1000]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edl.api.tables import TableSpec
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_store import NumpyParameterStore, PushGradients, RowBatch

ROWS, DIM, BATCH, EXPONENT, NOISE = 5000, 8, 256, 1.1, 0.5
TABLE = TableSpec("emb", ROWS, DIM, {"name": "normal", "mean": 0.0, "stddev": 0.05}, seed=1)
Rows = NDArray[np.float32]
NOTHING = np.empty(0, np.float32)
EVERY = np.arange(ROWS)

OPTIMIZERS = {
    "`SGD`": (OptimizerSpec("sgd"), 1.0),
    "`SGD(weight_decay=1e-3)`": (OptimizerSpec("sgd", {"weight_decay": 1e-3}), 1.0),
    "`SGD(momentum=0.9)`": (OptimizerSpec("momentum"), 0.1),
    "`SGD(momentum=0.9, nesterov=True)`": (OptimizerSpec("momentum", {"nesterov": True}), 0.1),
    "`Adagrad`": (OptimizerSpec("adagrad"), 0.05),
    "`Adam`": (OptimizerSpec("adam"), 0.005),
    "`Adam(amsgrad=True)`": (OptimizerSpec("adam", {"amsgrad": True}), 0.005),
    "`AdamW`": (OptimizerSpec("adam", {"weight_decay": 0.004}), 0.005),
    "`Adamax`": (OptimizerSpec("adamax"), 0.005),
    "`Nadam`": (OptimizerSpec("nadam"), 0.005),
    "`RMSprop`": (OptimizerSpec("rmsprop"), 0.002),
    "`RMSprop(centered=True, momentum=0.5)`": (OptimizerSpec("rmsprop", {"centered": True, "momentum": 0.5}), 0.001),
    "`Adadelta`": (OptimizerSpec("adadelta"), 1.0),
    "`Ftrl`": (OptimizerSpec("ftrl"), 0.05),
    "`GroupFtrl(group_lasso_regularization_strength=0.01)`": (
        OptimizerSpec("ftrl", {"group_lasso_regularization_strength": 0.01}),
        0.05,
    ),
    "`Lamb`": (OptimizerSpec("lamb"), 0.01),
    "`Lion`": (OptimizerSpec("lion"), 0.001),
}
"""With learning rates at which each of them learns something."""


@dataclass(frozen=True)
class LookupPlan:
    """What all runs have in common: for each step the ids of a batch, and the noise of its targets."""

    targets: NDArray[np.float32]
    ids: tuple[NDArray[np.int64], ...]
    noise: tuple[NDArray[np.float32], ...]
    share: NDArray[np.float64]

    @classmethod
    def draw_plan(cls, steps: int) -> LookupPlan:
        rng = np.random.default_rng(0)
        share = 1 / np.arange(1, ROWS + 1) ** EXPONENT
        share /= share.sum()
        return cls(
            rng.normal(size=(ROWS, DIM)).astype(np.float32),
            tuple(rng.choice(ROWS, BATCH, p=share) for _ in range(steps)),
            tuple(rng.normal(0, NOISE, (BATCH, DIM)).astype(np.float32) for _ in range(steps)),
            share,
        )

    def row_groups(self) -> Iterator[NDArray[np.bool_]]:
        """Rows by how many steps touch them: more than half, at least one of a hundred, fewer, none."""
        touched = np.zeros(ROWS)
        for ids in self.ids:
            touched[np.unique(ids)] += 1 / len(self.ids)
        yield touched > 0.5
        yield (touched >= 0.01) & (touched <= 0.5)
        yield (touched > 0) & (touched < 0.01)
        yield touched == 0

    def expected_loss(self, values: NDArray[np.float32]) -> float:
        """Mean squared error of a record drawn like those of training, without noise."""
        return float(self.share @ ((values - self.targets) ** 2).mean(axis=1))


def train_table(accesses: LookupPlan, optimizer: OptimizerSpec, rate: float, *, dense: bool) -> NDArray[np.float32]:
    """The table at the end."""
    store = NumpyParameterStore(ModelDeclaration((), (TABLE,), optimizer, "lazy_dense"), NOTHING)
    for step, (ids, noise) in enumerate(zip(accesses.ids, accesses.noise, strict=True), start=1):
        gradients = (store.read_rows(TABLE.name, ids) - accesses.targets[ids] + noise) / np.float32(BATCH)
        if dense:
            dense_gradients = np.zeros((ROWS, DIM), np.float32)
            np.add.at(dense_gradients, ids, gradients)
            ids, gradients = EVERY, dense_gradients
        store.apply_gradients(PushGradients(NOTHING, {TABLE.name: RowBatch(ids, gradients)}, rate, 1.0), step)
    return store.read_rows(TABLE.name, EVERY)


def table_row(accesses: LookupPlan, name: str, optimizer: OptimizerSpec, rate: float) -> str:
    """A line of the table: distances of lazy from dense, as shares of the way that dense went."""
    lazy, dense = (train_table(accesses, optimizer, rate, dense=which) for which in (False, True))
    start = NumpyParameterStore(ModelDeclaration((), (TABLE,), optimizer, ""), NOTHING).read_rows(TABLE.name, EVERY)
    far = [relative_distance(lazy[g], dense[g], start[g]) for g in accesses.row_groups()]
    losses = [accesses.expected_loss(values) for values in (lazy, dense)]
    return f"| {name} | {rate:g} | {' | '.join(map(percent_text, far))} | {' | '.join(f'{x:.3f}' for x in losses)} |"


def relative_distance(lazy: Rows, dense: Rows, start: Rows) -> float:
    """Of lazy from dense, as a share of the way that dense went; 0 where both stayed."""
    way = float(np.linalg.norm(dense - start))
    return float(np.linalg.norm(lazy - dense)) / way if way else 0.0


def percent_text(share: float) -> str:
    return "0" if share < 5e-5 else f"{100 * share:.2g} %" if share < 1 else f"{100 * share:.0f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    accesses = LookupPlan.draw_plan(parser.parse_args().steps)
    often, sometimes, rarely, never = (int(group.sum()) for group in accesses.row_groups())
    start = NumpyParameterStore(ModelDeclaration((), (TABLE,), OptimizerSpec("sgd"), ""), NOTHING).read_rows(
        TABLE.name, EVERY
    )
    print(f"{len(accesses.ids)} steps, {ROWS} rows of width {DIM}, batches of {BATCH} ids, Zipf exponent {EXPONENT};")
    print(f"loss before training {accesses.expected_loss(start):.3f}.\n")
    groups = f"{often} rows in most steps | {sometimes} in 1 of 2 to 1 of 100 | {rarely} rarer | {never} never"
    print(f"| optimizer | rate | {groups} | loss, lazy | loss, dense |\n|---|---|---|---|---|---|---|---|")
    for name, (optimizer, rate) in OPTIMIZERS.items():
        print(table_row(accesses, name, optimizer, rate), flush=True)


if __name__ == "__main__":
    main()
