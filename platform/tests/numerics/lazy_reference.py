"""The optimizers once more, for the tests: on one row at a time, in float64, from the papers' formulas.

Nothing is shared with ``edl.numerics.optimizers``. A row that is not touched stands still, and so do its slot
variables: they are not even looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edl.numerics.optimizer_spec import OptimizerSpec

Row = NDArray[np.float64]


@dataclass
class RowState:
    """One row with its slot variables, by names of this module's own."""

    w: Row
    slots: dict[str, Row] = field(default_factory=dict)

    def slot(self, name: str, start: float = 0.0) -> Row:
        return self.slots.setdefault(name, np.full_like(self.w, start))


Formula = Callable[[OptimizerSpec, RowState, Row, float, int], None]


def sgd(o: OptimizerSpec, row: RowState, g: Row, rate: float, t: int) -> None:
    row.w -= rate * g


def momentum(o: OptimizerSpec, row: RowState, g: Row, rate: float, t: int) -> None:
    v = row.slot("v")
    v[:] = o.get_number("momentum") * v - rate * g
    row.w += o.get_number("momentum") * v - rate * g if o.get_flag("nesterov") else v


def adagrad(o: OptimizerSpec, row: RowState, g: Row, rate: float, t: int) -> None:
    total = row.slot("a", o.get_number("initial_accumulator_value"))
    total += g**2
    row.w -= rate * g / np.sqrt(total + o.get_number("epsilon"))


def moments(o: OptimizerSpec, row: RowState, g: Row, t: int) -> tuple[Row, Row]:
    """Both moments with their bias corrected."""
    m, v, b1, b2 = row.slot("m"), row.slot("v"), o.get_number("beta_1"), o.get_number("beta_2")
    m[:] = b1 * m + (1 - b1) * g
    v[:] = b2 * v + (1 - b2) * g**2
    return m / (1 - b1**t), v / (1 - b2**t)


def adam(o: OptimizerSpec, row: RowState, g: Row, rate: float, t: int) -> None:
    m, v = moments(o, row, g, t)
    if o.get_flag("amsgrad"):
        largest = row.slot("largest")
        largest[:] = np.maximum(largest, row.slot("v"))
        v = largest / (1 - o.get_number("beta_2") ** t)
    # Keras adds epsilon before the correction of v
    corrected = o.get_number("epsilon") / np.sqrt(1 - o.get_number("beta_2") ** t)
    row.w -= rate * m / (np.sqrt(v) + corrected)


def rmsprop(o: OptimizerSpec, row: RowState, g: Row, rate: float, t: int) -> None:
    rho, mean_square, mean, v = o.get_number("rho"), row.slot("g²"), row.slot("g"), row.slot("v")
    mean_square[:] = rho * mean_square + (1 - rho) * g**2
    mean[:] = rho * mean + (1 - rho) * g
    variance = mean_square - mean**2 if o.get_flag("centered") else mean_square
    v[:] = o.get_number("momentum") * v + rate * g / np.sqrt(variance + o.get_number("epsilon"))
    row.w -= v


def adadelta(o: OptimizerSpec, row: RowState, g: Row, rate: float, t: int) -> None:
    rho, epsilon, squares, steps = o.get_number("rho"), o.get_number("epsilon"), row.slot("g²"), row.slot("dx²")
    squares[:] = rho * squares + (1 - rho) * g**2
    step = np.sqrt((steps + epsilon) / (squares + epsilon)) * g
    steps[:] = rho * steps + (1 - rho) * step**2
    row.w -= rate * step


def adamax(o: OptimizerSpec, row: RowState, g: Row, rate: float, t: int) -> None:
    m, largest, b1 = row.slot("m"), row.slot("u"), o.get_number("beta_1")
    m[:] = b1 * m + (1 - b1) * g
    largest[:] = np.maximum(o.get_number("beta_2") * largest, np.abs(g))
    row.w -= rate / (1 - b1**t) * m / (largest + o.get_number("epsilon"))


def nadam(o: OptimizerSpec, row: RowState, g: Row, rate: float, t: int) -> None:
    """Dozat (2016), with the schedule of momentum that he proposes."""
    factors = [o.get_number("beta_1") * (1 - 0.5 * 0.96**i) for i in range(1, t + 2)]
    _, v = moments(o, row, g, t)
    ahead = factors[t] * row.slot("m") / (1 - np.prod(factors))
    row.w -= (
        rate * (ahead + (1 - factors[t - 1]) * g / (1 - np.prod(factors[:t]))) / (np.sqrt(v) + o.get_number("epsilon"))
    )


def lion(o: OptimizerSpec, row: RowState, g: Row, rate: float, t: int) -> None:
    m, b1, b2 = row.slot("m"), o.get_number("beta_1"), o.get_number("beta_2")
    row.w -= rate * np.sign(b1 * m + (1 - b1) * g)
    m[:] = b2 * m + (1 - b2) * g


def ftrl(o: OptimizerSpec, row: RowState, g: Row, rate: float, t: int) -> None:
    a, z, p = (
        row.slot("n", o.get_number("initial_accumulator_value")),
        row.slot("z"),
        -o.get_number("learning_rate_power"),
    )
    l1, l2 = o.get_number("l1_regularization_strength"), o.get_number("l2_regularization_strength")
    before = a**p
    a += g**2
    z += g + 2 * o.get_number("l2_shrinkage_regularization_strength") * row.w - (a**p - before) / rate * row.w
    curvature = (o.get_number("beta") + a**p) / rate + 2 * l2
    pull = np.where(np.abs(z) <= l1, 0.0, np.sign(z) * l1 - z)
    limit = o.get_number("group_lasso_regularization_strength") * np.sqrt(len(row.w))
    length = np.linalg.norm(pull)
    row.w[:] = 0.0 if limit and length <= limit else (1 - limit / length if limit else 1.0) * pull / curvature


FORMULAS: Mapping[str, Formula] = {
    "sgd": sgd,
    "momentum": momentum,
    "adagrad": adagrad,
    "adam": adam,
    "rmsprop": rmsprop,
    "adadelta": adadelta,
    "adamax": adamax,
    "nadam": nadam,
    "lion": lion,
    "ftrl": ftrl,
}


def lamb(o: OptimizerSpec, touched: Sequence[tuple[RowState, Row]], rate: float, t: int) -> None:
    """You et al. (2019), both moments corrected. Of a table, the rows that a push touches are the variable."""
    corrected = [moments(o, row, g, t) for row, g in touched]
    steps = np.stack([m / (np.sqrt(v) + o.get_number("epsilon")) for m, v in corrected])
    length = np.linalg.norm(np.stack([row.w for row, _ in touched]))
    for (row, _), step in zip(touched, steps, strict=True):
        row.w -= rate * length / np.linalg.norm(steps) * step


class LazyReference:
    """A table of rows that moves only where it is touched.

    Args:
        optimizer: which formula, and with what.
        start: initial rows, ``[rows, dim]``.
    """

    def __init__(self, optimizer: OptimizerSpec, start: NDArray[np.float32]) -> None:
        self._optimizer = optimizer
        self._rows = [RowState(row.astype(np.float64)) for row in start]

    def apply(self, ids: NDArray[np.int64], gradients: NDArray[np.float32], rate: float, step: int) -> None:
        """One push; gradients of equal ids are summed."""
        summed: dict[int, Row] = {}
        for row, gradient in zip(ids.tolist(), gradients.astype(np.float64), strict=True):
            summed[row] = summed.get(row, 0.0) + gradient
        touched = [(self._rows[row], gradient) for row, gradient in summed.items()]
        for state, _ in touched:
            state.w -= self._optimizer.get_number("weight_decay") * rate * state.w
        if self._optimizer.name == "lamb":
            lamb(self._optimizer, touched, rate, step)
            return
        for state, gradient in touched:
            FORMULAS[self._optimizer.name](self._optimizer, state, gradient, rate, step)

    @property
    def values(self) -> NDArray[np.float64]:
        """All rows."""
        return np.stack([row.w for row in self._rows])
