"""Rows of one embedding table in native code: what ``numpy_table.NumpyTable`` holds, with the same bits.

The extension is built by ``make native``; importing this module without it is an ImportError.
docs/design/0007-the-parameter-table.md says how it works.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

from edl.api.tables import TableSpec
from edl.core.partition import splitmix64
from edl.numerics import _native
from edl.numerics.array_types import Floats, Ids
from edl.numerics.native_kernels import NATIVE_OPTIMIZERS, make_step_factory, select_kernel
from edl.numerics.native_snapshot import NativeTableSnapshot, count_positions
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_snapshot import RowArrays
from edl.numerics.row_retention import RowRetention

__all__ = ["NATIVE_OPTIMIZERS", "NativeTable"]


class NativeTable:
    """One table.

    Unlike the NumPy table it takes every 64-bit id and is safe to use by several threads at once; readers do not wait
    for each other, and the GIL is released.

    Args:
        declared: its shape and initial values.
        optimizer: one of OPTIMIZERS.
        threads: that share a large batch.
        isa: ``baseline``, ``avx2`` or ``avx512``; empty for the best that this processor has.
        retention: which rows it keeps.
        salt: 64 bits, of its hash tables; by default secret, so that nobody can choose ids that crowd. No result
            depends on it.

    Raises:
        BadInputError: the optimizer has no native kernel.
    """

    def __init__(
        self,
        declared: TableSpec,
        optimizer: OptimizerSpec,
        *,
        threads: int = 1,
        isa: str = "",
        retention: RowRetention | None = None,
        salt: int | None = None,
    ) -> None:
        chosen, starts = select_kernel(optimizer), list(optimizer.slots.values())
        self._table_spec = declared
        self._retention = retention or RowRetention()
        self._evicts_rows = self._retention.evict_after_steps is not None
        self._evicted_count = 0
        self._dim = declared.dim
        self._slots = tuple(optimizer.slots)
        self._step = make_step_factory(optimizer, declared)
        self._table = _native.Table(
            declared.dim,
            starts,
            _native_initializer(declared),
            chosen,
            threads=threads,
            isa=isa,
            evict_after=self._retention.evict_after_steps or 0,
            salt=secrets.randbits(64) if salt is None else salt,
        )

    def __len__(self) -> int:
        return len(self._table)

    @property
    def evicted_count(self) -> int:
        """As the port says."""
        return self._evicted_count

    @property
    def bound(self) -> int | None:
        """As the port says."""
        return self._retention.share

    @property
    def occupied(self) -> int:
        """As the port says: what the kernel has given, for rows, index, pushes and snapshots."""
        return self.memory.resident

    @property
    def position_limit(self) -> int:
        """As the port says."""
        return self._table.extent

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

    def prepare_update(self, ids: Ids, step: int) -> None:
        """As the port says."""
        self._evict_rows(step)
        bound = self._retention.share
        if bound is not None and len(self) + len(ids) > bound:
            self._retention.check(self._table_spec, len(self), self._table.missing(ids))

    def apply(self, ids: Ids, gradients: Floats, learning_rate: float, step: int) -> None:
        """Sum the gradients of equal ids, in their order, and update those rows, and no others.

        Raises:
            MemoryError: a part of the rows was updated.
        """
        self._evict_rows(step)
        self._table.apply(ids, gradients, self._step(learning_rate, step), step)

    def scan(self, start: int, limit: int) -> RowArrays:
        """The stored rows from a position, copied, without slot variables."""
        rows = RowArrays.empty(count_positions(start, limit, self.position_limit), self._dim)
        return rows.first(self._table.scan(start, rows.ids, rows.values)) if len(rows) else rows

    def snapshot(self) -> NativeTableSnapshot:
        """The stored rows as they are now; taking it copies none, and pushes go on while it is read."""
        return NativeTableSnapshot(self._table, self._dim, self._slots, tracked=self._evicts_rows)

    def load(self, rows: RowArrays, step: int = 0) -> None:
        """As the port says; what is stored already is overwritten."""
        self._table.load(rows.ids, rows.values, [rows.slots[name] for name in self._slots], rows.seen, step)

    def _evict_rows(self, step: int) -> None:
        if self._evicts_rows:
            before = len(self)
            self._table.drop(step)
            self._evicted_count += before - len(self)

    def _rows(self, count: int) -> Floats:
        return np.empty((count, self._dim), np.float32)


def _native_initializer(declared: TableSpec) -> _native.Initializer:
    """The table's initializer; that its parameters are right was checked with the declaration."""
    given: Mapping[str, Any] = declared.initializer
    distribution, a, b = _native.Distribution.constant, 0.0, 0.0
    match given["name"]:
        case "constant":
            a = given["value"]
        case "uniform":
            distribution, a, b = _native.Distribution.uniform, given["minval"], given["maxval"]
        case "normal" | "truncated_normal" as name:
            distribution, a, b = _native.Distribution[name], given["mean"], given["stddev"]
    return _native.Initializer(distribution, a, b, splitmix64(declared.seed))
