"""Rows of one embedding table in native code, with the same bits as ``numpy_table.NumpyTable``.

``make native`` builds the extension. Without it, importing this module raises ImportError.
docs/design/0007-the-parameter-table.md explains the data structures.
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
from edl.numerics.native_kernels import make_flat_rule, make_step_factory, select_kernel
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers import UpdateRule
from edl.numerics.parameter_snapshot import PinError, RowArrays
from edl.numerics.parameter_store import TableParameterStore

# --------------------------------------------------------------------------------------------------
# A snapshot of a native table. Taking it copies no rows. A push saves the old row to the snapshot
# before it changes it (docs/design/0007-the-parameter-table.md).


CHUNK_BYTES = 8 << 20
"""Size of a chunk of :meth:`NativeTableSnapshot.iter_chunks`.

Reading holds the table's lock for smaller parts of a chunk, so that a push does not wait for 8 MB.
"""


class NativeTableSnapshot:
    """See :class:`edl.numerics.parameter_snapshot.TableSnapshot`.

    Args:
        table: the table. The snapshot keeps it alive.
        dim: elements of a row.
        slot_names: names of the table's slot variables.
        has_last_steps: whether rows contain the step that named them last.
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
        """See the protocol. ``table_spec`` is unused: the native table has its initializer."""
        out = np.empty((len(ids), self._dim), np.float32)
        with _translate_released():
            self._snapshot.read(ids, out)
        return out

    def scan(self, start: int, limit: int) -> RowArrays:
        rows = RowArrays.allocate(count_positions(start, limit, self._position_limit), self._dim)
        return self._copy_rows(min(start, self._position_limit), rows, pass_by=False)

    def iter_chunks(self) -> Iterator[RowArrays]:
        """See the protocol.

        If the snapshot has one holder, pushes no longer save the rows that were yielded already: no
        one else can ask for them.
        """
        # One row takes 8 bytes for its id and 4 for each value, of the row and of its slots.
        chunk_rows = max(1, CHUNK_BYTES // (8 + 4 * self._dim * (1 + len(self._slot_names))))
        buffer = self._allocate_rows(
            min(chunk_rows, self._position_limit)
        )  # allocated once: new memory for each chunk costs as much as copying its rows
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
            # A pin and a checkpoint writer may hold one snapshot. The last holder frees the memory.
            if self._holder_count > 0:
                return
        self._snapshot.release()

    def _allocate_rows(self, row_count: int) -> RowArrays:
        return RowArrays.allocate(row_count, self._dim, self._slot_names, with_last_steps=self._has_last_steps)

    def _copy_rows(self, start: int, rows: RowArrays, *, pass_by: bool) -> RowArrays:
        """Copy the rows at the positions from ``start`` on, as many positions as fit into ``rows``.

        Some positions have no row, so fewer rows than positions may be returned.
        """
        slots = [*rows.slots.values()]
        with _translate_released():
            return rows.first_rows(
                self._snapshot.scan(start, rows.ids, rows.values, slots, rows.last_steps, pass_by=pass_by)
            )


def count_positions(start: int, limit: int, position_limit: int) -> int:
    """How many positions from ``start`` to ``start + limit`` exist; a negative start counts as 0."""
    return max(0, min(limit, position_limit - max(0, start)))


@contextmanager
def _translate_released() -> Iterator[None]:
    try:
        yield
    except _native.ReleasedError as error:
        raise PinError("this version of the rows is no longer kept") from error


class NativeTable:
    """One table.

    Unlike the NumPy table it accepts every 64-bit id, and several threads may use it at once.
    Readers do not wait for each other, and calls release the GIL.

    Args:
        table_spec: shape and initial values of the table.
        optimizer: one of NATIVE_OPTIMIZERS.
        threads: number of threads that share a large batch.
        isa: ``baseline``, ``avx2`` or ``avx512``; empty for the best that this processor supports.
        retention: which rows the table keeps.
        salt: salt of the hash tables, 64 bits. It is random and secret by default, so that nobody
            can choose ids that collide. No result depends on it.

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
        """See the protocol: resident memory of rows, index, pushes and snapshots."""
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
        """Bytes that the table occupies now, as the operating system counts them."""
        return self._table.memory()

    def read(self, ids: Ids) -> Floats:
        """Rows ``[n, dim]``, a new array."""
        out = self._allocate_rows(len(ids))
        self._table.read(ids, out)
        return out

    def read_into(self, ids: Ids, out: Floats) -> None:
        """Like ``read``, into ``out``, ``[n, dim]``."""
        self._table.read(ids, out)

    def prepare_update(self, ids: Ids, step: int) -> None:
        # Evict before counting: rows that are due make room for new ones.
        self._evict_rows(step)
        row_limit = self._retention.row_limit
        # Searching for missing ids costs a lookup per id. Skip it while all ids would fit if new.
        if row_limit is not None and len(self) + len(ids) > row_limit:
            self._retention.check_capacity(self._table_spec, len(self), self._table.missing(ids))

    def apply_gradients(self, ids: Ids, gradients: Floats, learning_rate: float, step: int) -> None:
        """Sum the gradients of equal ids in the order of the push, and update the rows of these
        ids.

        Raises:
            MemoryError: only a part of the rows was updated. There is no undo; the server must
                restore a checkpoint.
        """
        self._evict_rows(step)
        self._table.apply(ids, gradients, self._make_kernel_step(learning_rate, step), step)

    def scan(self, start: int, limit: int) -> RowArrays:
        """A copy of the stored rows from a position on, without slot variables."""
        rows = RowArrays.allocate(count_positions(start, limit, self.position_limit), self._dim)
        return rows.first_rows(self._table.scan(start, rows.ids, rows.values)) if len(rows) else rows

    def take_snapshot(self) -> NativeTableSnapshot:
        """A snapshot of the stored rows.

        Taking it copies none, and pushes continue during reads.
        """
        return NativeTableSnapshot(self._table, self._dim, self._slot_names, has_last_steps=self._evicts_rows)

    def load(self, rows: RowArrays, step: int = 0) -> None:
        """See the protocol. Rows that are stored already are overwritten."""
        self._table.load(rows.ids, rows.values, [rows.slots[name] for name in self._slot_names], rows.last_steps, step)

    def _evict_rows(self, step: int) -> None:
        if self._evicts_rows:
            rows_before = len(self)
            self._table.drop(step)
            self._evicted_count += rows_before - len(self)

    def _allocate_rows(self, count: int) -> Floats:
        return np.empty((count, self._dim), np.float32)


def _native_initializer(table_spec: TableSpec) -> _native.Initializer:
    """The table's initializer. The declaration has checked its parameters."""
    # ``zeros`` matches no case below: it is the constant 0.
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


class NativeParameterStore(TableParameterStore):
    """A store with native tables. The native kernels update its dense values, too.

    Args:
        declaration: variables, tables and optimizer. The optimizer is one of
            ``edl.numerics.native_table.NATIVE_OPTIMIZERS``.
        initial_values: initial slab, copied.
        retention: which rows the tables keep; by default all.
        threads: number of threads that share a large batch of one table.

    Raises:
        BadInputError: the optimizer has no native kernel.
        OutOfMemoryError: there is no memory for the dense values or for a table.
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
