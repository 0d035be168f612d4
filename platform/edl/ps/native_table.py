"""Rows of one embedding table in native code: what :class:`edl.ps.numpy_table.NumpyTable` holds, with the same bits.

The extension is built by ``make native``; importing this module without it is an ImportError.
docs/design/0007-the-parameter-table.md says how it works.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from edl.core.errors import BadInputError
from edl.core.partition import mix
from edl.ps import _native
from edl.ps.arrays import Floats, Ids
from edl.ps.declaration import RowTable
from edl.ps.optimizers.adam import correction
from edl.ps.snapshot import StoredRows
from edl.spec.optimizer import OptimizerSpec

OPTIMIZERS = ("sgd", "momentum", "adagrad", "adam", "adamw")
"""Those that have native kernels."""

_ADAMS = ("adam", "adamw")


class NativeTable:
    """One table.

    Unlike the NumPy table it takes every 64-bit id and is safe to use by several threads at once; readers do not wait
    for each other, and the GIL is released.

    Args:
        declared: its shape and initial values.
        optimizer: one of OPTIMIZERS.
        threads: that share a large batch.
        isa: ``baseline``, ``avx2`` or ``avx512``; empty for the best that this processor has.

    Raises:
        BadInputError: the optimizer has no native kernel.
    """

    def __init__(self, declared: RowTable, optimizer: OptimizerSpec, *, threads: int = 1, isa: str = "") -> None:
        self._dim = declared.dim
        self._slots = tuple(optimizer.slots)
        self._step = partial(_step, optimizer, optimizer.decay_of(declared.name))
        starts = list(optimizer.slots.values())
        self._table = _native.Table(
            declared.dim, starts, _initializer(declared), _kernel(optimizer), threads=threads, isa=isa
        )

    def __len__(self) -> int:
        return len(self._table)

    @property
    def isa(self) -> str:
        """The instruction set that its kernels use."""
        return self._table.isa

    @property
    def memory(self) -> _native.Memory:
        """Bytes that it occupies now, as the kernel counts them."""
        return self._table.memory()

    def read(self, ids: Ids) -> Floats:
        """Rows ``[n, dim]``, a new array."""
        out = self._rows(len(ids))
        self._table.read(ids, out)
        return out

    def read_into(self, ids: Ids, out: Floats) -> None:
        """The same into ``out``, ``[n, dim]``."""
        self._table.read(ids, out)

    def apply(self, ids: Ids, gradients: Floats, learning_rate: float, step: int) -> None:
        """Sum the gradients of equal ids, in their order, and update those rows, and no others.

        Raises:
            MemoryError: a part of the rows was updated.
        """
        self._table.apply(ids, gradients, self._step(learning_rate, step))

    def scan(self, start: int, limit: int) -> StoredRows:
        """The stored rows from a position, copied, without slot variables."""
        return self._copied(start, min(limit, max(0, len(self) - start)), ())

    def copy(self) -> StoredRows:
        """All stored rows with their slot variables, copied."""
        return self._copied(0, len(self), self._slots)

    def load(self, rows: StoredRows) -> None:
        """Store rows with their slot variables; what is stored already is overwritten."""
        self._table.load(rows.ids, rows.values, [rows.slots[name] for name in self._slots])

    def _copied(self, start: int, count: int, slots: tuple[str, ...]) -> StoredRows:
        rows = StoredRows(np.empty(count, np.int64), self._rows(count), {name: self._rows(count) for name in slots})
        if count:
            self._table.scan(start, rows.ids, rows.values, list(rows.slots.values()))
        return rows

    def _rows(self, count: int) -> Floats:
        return np.empty((count, self._dim), np.float32)


def _kernel(optimizer: OptimizerSpec) -> _native.Optimizer:
    match optimizer.name:
        case "sgd":
            return _native.Optimizer.sgd
        case "momentum":
            return _native.Optimizer.nesterov if optimizer.flag("nesterov") else _native.Optimizer.momentum
        case "adagrad":
            return _native.Optimizer.adagrad
        case "adam" | "adamw":
            return _native.Optimizer.amsgrad if len(optimizer.slots) == 3 else _native.Optimizer.adam
    raise BadInputError(f"optimizer '{optimizer.name}' has no native kernel", hint=f"those that have: {OPTIMIZERS}")


def _initializer(declared: RowTable) -> _native.Initializer:
    """The table's initializer; that its parameters are right was checked with the declaration."""
    given: Mapping[str, Any] = declared.initializer
    distribution, a, b = _native.Distribution.constant, 0.0, 0.0
    match given["name"]:
        case "constant":
            a = given["value"]
        case "uniform":
            distribution, a, b = _native.Distribution.uniform, given["minval"], given["maxval"]
        case "normal":
            distribution, a, b = _native.Distribution.normal, given["mean"], given["stddev"]
    return _native.Initializer(distribution, a, b, mix(declared.seed))


def _step(optimizer: OptimizerSpec, decay: float, learning_rate: float, step: int) -> _native.Step:
    """One step in the kernels' terms; 1 - beta is taken in float64, as the NumPy rules do."""
    adam = optimizer.name in _ADAMS
    return _native.Step(
        rate=_corrected(optimizer, learning_rate, step) if adam else learning_rate,
        decay=decay,
        decay_rate=learning_rate,
        momentum=optimizer.number("momentum") if optimizer.name == "momentum" else 0.0,
        epsilon=optimizer.number("epsilon") if adam or optimizer.name == "adagrad" else 0.0,
        first_weight=1 - optimizer.number("beta_1") if adam else 0.0,
        second_weight=1 - optimizer.number("beta_2") if adam else 0.0,
    )


def _corrected(optimizer: OptimizerSpec, learning_rate: float, step: int) -> float:
    first, second = (correction(optimizer.number(beta), step) for beta in ("beta_1", "beta_2"))
    return float(np.float32(learning_rate) * np.sqrt(second) / first)
