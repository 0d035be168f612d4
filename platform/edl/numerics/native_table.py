"""Rows of one embedding table in native code: what ``numpy_table.NumpyTable`` holds, with the same bits.

The extension is built by ``make native``; importing this module without it is an ImportError.
docs/design/0007-the-parameter-table.md says how it works.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from edl.api.tables import TableSpec
from edl.core.partition import splitmix64
from edl.numerics import _native
from edl.numerics.array_types import Floats, Ids
from edl.numerics.embedding_table import EmbeddingTable, RowRetention
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.native_kernels import NATIVE_OPTIMIZERS, make_flat_rule, make_step_factory, select_kernel
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers import UpdateRule
from edl.numerics.parameter_snapshot import PinError, RowArrays
from edl.numerics.parameter_store import TableParameterStore

# --------------------------------------------------------------------------------------------------
# A native table's rows at one moment: nothing is copied when they are taken, pushes keep what they change.
#
# docs/design/0007-the-parameter-table.md says how.


CHUNK_BYTES = 8 << 20
"""Of what :meth:`NativeTableSnapshot.iter_chunks` yields at once; the table's lock is taken for smaller parts of it."""


class NativeTableSnapshot:
    """See :class:`edl.numerics.parameter_snapshot.TableSnapshot`.

    Args:
        table: is kept alive.
        dim: elements of a row.
        slot_names: names of its slot variables.
        has_last_steps: its rows say by which step they were named last.
    """

    def __init__(self, table: _native.Table, dim: int, slot_names: tuple[str, ...], *, has_last_steps: bool) -> None:
        self._snapshot = _native.Snapshot(table)
        self._row_count = len(self._snapshot)
        self._position_limit = self._snapshot.extent
        self._dim = dim
        self._slot_names = slot_names
        self._has_last_steps = has_last_steps
        self._holder_count = 1
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._row_count

    @property
    def position_limit(self) -> int:
        return self._position_limit

    @property
    def has_last_steps(self) -> bool:
        return self._has_last_steps

    def read(self, ids: Ids, table_spec: TableSpec) -> Floats:
        """As the protocol says; the table itself knows the initial values."""
        out = np.empty((len(ids), self._dim), np.float32)
        with _translate_released():
            self._snapshot.read(ids, out)
        return out

    def scan(self, start: int, limit: int) -> RowArrays:
        rows = RowArrays.allocate(count_positions(start, limit, self._position_limit), self._dim)
        return self._copy_rows(min(start, self._position_limit), rows, pass_by=False)

    def iter_chunks(self) -> Iterator[RowArrays]:
        """As the protocol says. What was given to a holder who is alone is not kept any more when it changes."""
        chunk_rows = max(1, CHUNK_BYTES // (8 + 4 * self._dim * (1 + len(self._slot_names))))
        buffer = self._allocate_rows(
            min(chunk_rows, self._position_limit)
        )  # once: new memory for each piece costs as much as its rows
        for start, end in pairwise([*range(0, self._position_limit, chunk_rows), self._position_limit]):
            chunk = self._copy_rows(start, buffer.first_rows(end - start), pass_by=self._holder_count == 1)
            if len(chunk):
                yield chunk

    def read_all(self) -> RowArrays:
        return self._copy_rows(0, self._allocate_rows(self._position_limit), pass_by=False)

    def retain(self) -> None:
        with self._lock:
            self._holder_count += 1

    def release(self) -> None:
        with self._lock:
            self._holder_count -= 1
            if self._holder_count > 0:
                return
        self._snapshot.release()

    def _allocate_rows(self, row_count: int) -> RowArrays:
        return RowArrays.allocate(row_count, self._dim, self._slot_names, with_last_steps=self._has_last_steps)

    def _copy_rows(self, start: int, rows: RowArrays, *, pass_by: bool) -> RowArrays:
        """Those of the positions from ``start`` on, as many as ``rows`` has room for, at which there are rows."""
        slots = [*rows.slots.values()]
        with _translate_released():
            return rows.first_rows(
                self._snapshot.scan(start, rows.ids, rows.values, slots, rows.last_steps, pass_by=pass_by)
            )


def count_positions(start: int, limit: int, position_limit: int) -> int:
    """How many of the positions ``start`` to ``start + limit`` there are, if start is not negative."""
    return max(0, min(limit, position_limit - max(0, start)))


@contextmanager
def _translate_released() -> Iterator[None]:
    try:
        yield
    except _native.ReleasedError as error:
        raise PinError("this version of the rows is no longer kept") from error


class NativeTable:
    """One table.

    Unlike the NumPy table it takes every 64-bit id and is safe to use by several threads at once; readers do not wait
    for each other, and the GIL is released.

    Args:
        table_spec: its shape and initial values.
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
        table_spec: TableSpec,
        optimizer: OptimizerSpec,
        *,
        threads: int = 1,
        isa: str = "",
        retention: RowRetention | None = None,
        salt: int | None = None,
    ) -> None:
        selected_kernel, slot_starts = select_kernel(optimizer), list(optimizer.slot_starts.values())
        self._table_spec = table_spec
        self._retention = retention or RowRetention()
        self._evicts_rows = self._retention.evict_after_steps is not None
        self._evicted_count = 0
        self._dim = table_spec.dim
        self._slot_names = tuple(optimizer.slot_starts)
        self._make_kernel_step = make_step_factory(optimizer, table_spec)
        self._table = _native.Table(
            table_spec.dim,
            slot_starts,
            _native_initializer(table_spec),
            selected_kernel,
            threads=threads,
            isa=isa,
            evict_after=self._retention.evict_after_steps or 0,
            salt=secrets.randbits(64) if salt is None else salt,
        )

    def __len__(self) -> int:
        return len(self._table)

    @property
    def evicted_count(self) -> int:
        return self._evicted_count

    @property
    def row_limit(self) -> int | None:
        return self._retention.row_limit

    @property
    def memory_bytes(self) -> int:
        """As the port says: what the kernel has given, for rows, index, pushes and snapshots."""
        return self.memory_usage.resident

    @property
    def position_limit(self) -> int:
        return self._table.extent

    @property
    def instruction_set(self) -> str:
        """The instruction set that its kernels use."""
        return self._table.isa

    @property
    def memory_usage(self) -> _native.Memory:
        """Bytes that it occupies now, as the kernel counts them."""
        return self._table.memory()

    def read(self, ids: Ids) -> Floats:
        """Rows ``[n, dim]``, a new array."""
        out = self._allocate_rows(len(ids))
        self._table.read(ids, out)
        return out

    def read_into(self, ids: Ids, out: Floats) -> None:
        """The same into ``out``, ``[n, dim]``."""
        self._table.read(ids, out)

    def prepare_update(self, ids: Ids, step: int) -> None:
        self._evict_rows(step)
        row_limit = self._retention.row_limit
        if row_limit is not None and len(self) + len(ids) > row_limit:
            self._retention.check_capacity(self._table_spec, len(self), self._table.missing(ids))

    def apply_gradients(self, ids: Ids, gradients: Floats, learning_rate: float, step: int) -> None:
        """Sum the gradients of equal ids, in their order, and update those rows, and no others.

        Raises:
            MemoryError: a part of the rows was updated.
        """
        self._evict_rows(step)
        self._table.apply(ids, gradients, self._make_kernel_step(learning_rate, step), step)

    def scan(self, start: int, limit: int) -> RowArrays:
        """The stored rows from a position, copied, without slot variables."""
        rows = RowArrays.allocate(count_positions(start, limit, self.position_limit), self._dim)
        return rows.first_rows(self._table.scan(start, rows.ids, rows.values)) if len(rows) else rows

    def take_snapshot(self) -> NativeTableSnapshot:
        """The stored rows as they are now; taking it copies none, and pushes go on while it is read."""
        return NativeTableSnapshot(self._table, self._dim, self._slot_names, has_last_steps=self._evicts_rows)

    def load(self, rows: RowArrays, step: int = 0) -> None:
        """As the port says; what is stored already is overwritten."""
        self._table.load(rows.ids, rows.values, [rows.slots[name] for name in self._slot_names], rows.last_steps, step)

    def _evict_rows(self, step: int) -> None:
        if self._evicts_rows:
            rows_before = len(self)
            self._table.drop(step)
            self._evicted_count += rows_before - len(self)

    def _allocate_rows(self, count: int) -> Floats:
        return np.empty((count, self._dim), np.float32)


def _native_initializer(table_spec: TableSpec) -> _native.Initializer:
    """The table's initializer; that its parameters are right was checked with the declaration."""
    parameters: Mapping[str, Any] = table_spec.initializer
    distribution, a, b = _native.Distribution.constant, 0.0, 0.0
    match parameters["name"]:
        case "constant":
            a = parameters["value"]
        case "uniform":
            distribution, a, b = _native.Distribution.uniform, parameters["minval"], parameters["maxval"]
        case "normal" | "truncated_normal" as name:
            distribution, a, b = _native.Distribution[name], parameters["mean"], parameters["stddev"]
    return _native.Initializer(distribution, a, b, splitmix64(table_spec.seed))


__all__ = ["CHUNK_BYTES", "NATIVE_OPTIMIZERS", "NativeTable", "NativeTableSnapshot", "count_positions"]


class NativeParameterStore(TableParameterStore):
    """A store with native tables, whose dense values are updated by the native kernels.

    Args:
        declaration: what it holds; its optimizer is one of ``edl.numerics.native_table.NATIVE_OPTIMIZERS``.
        initial_values: initial slab, copied.
        retention: which rows its tables keep; by default all.
        threads: that share a large batch of one table.

    Raises:
        BadInputError: the optimizer has no native kernel.
        OutOfMemoryError: for the dense values, or a table.
    """

    def __init__(
        self,
        declaration: ModelDeclaration,
        initial_values: Floats,
        retention: RowRetention | None = None,
        *,
        threads: int = 1,
    ) -> None:
        self._threads = threads
        super().__init__(declaration, initial_values, retention)

    def _make_table(self, table: TableSpec) -> EmbeddingTable:
        return NativeTable(table, self._declaration.optimizer, threads=self._threads, retention=self._retention)

    @staticmethod
    def _make_rule(optimizer: OptimizerSpec, decay: float) -> UpdateRule:
        return make_flat_rule(optimizer, decay)
