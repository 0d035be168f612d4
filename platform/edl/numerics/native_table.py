"""Rows of one embedding table in native code, with the same bits as ``numpy_table.NumpyTable``, and their kernels.

``make native`` builds the extension. Without it, importing this module raises ImportError.
docs/design/0007-the-parameter-table.md explains the data structures.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from edl.api.errors import BadInputError
from edl.api.tables import TableSpec
from edl.core.partition import splitmix64
from edl.numerics import _native
from edl.numerics.array_types import Floats, Ids
from edl.numerics.embedding_table import EmbeddingTable, RowRetention
from edl.numerics.extension_interface import check_extension_interface
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers import ParameterUpdate, ScratchArrays, UpdateRule, make_rule
from edl.numerics.optimizers.adam import (
    bias_correction,
    corrected_rate,
    first_moment_rate,
    nadam_factors,
    one_minus_float32,
)
from edl.numerics.optimizers.ftrl import SQUARE_ROOT_POWER, FtrlStrengths, uses_row_groups
from edl.numerics.parameter_snapshot import PinError, RowArrays
from edl.numerics.parameter_store import TableParameterStore

check_extension_interface(_native)

# --------------------------------------------------------------------------------------------------
# Kernels: maps an optimizer to a native kernel and computes the kernel's arguments. The functions of
# edl.numerics.optimizers compute the numbers, so that they are rounded as in the NumPy rules. Both
# implementations must give the same bits.


KernelNumbers = Mapping[str, float]
KernelStepFactory = Callable[[float, int], _native.Step]
"""Computes the kernel's argument from the learning rate and the count of updates up to this one."""


def select_kernel(optimizer: OptimizerSpec) -> _native.Optimizer:
    """The kernel that updates rows under this optimizer.

    Raises:
        BadInputError: the optimizer has no kernel. LAMB needs the norm of all rows of a push, and a
            kernel sees one row.
    """
    if optimizer.name not in NATIVE_OPTIMIZERS:
        raise BadInputError(
            f"optimizer '{optimizer.name}' has no native kernel",
            hint=f"optimizers with a native kernel: {', '.join(NATIVE_OPTIMIZERS)}",
        )
    # A variant that needs other slots or another formula has a kernel of its own.
    kinds = _native.Optimizer
    match optimizer.name:
        case "momentum" if optimizer.get_flag("nesterov"):
            return kinds.nesterov
        case "adam" if optimizer.get_flag("amsgrad"):
            return kinds.amsgrad
        case "rmsprop" if optimizer.get_flag("centered"):
            return kinds.centered_momentum if optimizer.get_number("momentum") else kinds.centered
        case "rmsprop" if optimizer.get_number("momentum"):
            return kinds.rmsprop_momentum
        case "ftrl" if FtrlStrengths.from_optimizer(optimizer).power != SQUARE_ROOT_POWER:
            return kinds.ftrl_power
    return kinds[optimizer.name]


def make_step_factory(optimizer: OptimizerSpec, table: TableSpec) -> KernelStepFactory:
    """A function that computes the kernel's argument for each push to a table."""
    group = float(FtrlStrengths.from_optimizer(optimizer).lasso_limit(table.dim)) if optimizer.name == "ftrl" else 0.0
    return _make_step_factory(optimizer, optimizer.weight_decay_for(table.name), group)


def make_flat_rule(optimizer: OptimizerSpec, decay: float) -> UpdateRule:
    """The kernel as an update rule, with the interface of ``edl.numerics.optimizers.make_rule``.

    It gives the same bits as the NumPy rule. For Adagrad it makes one pass over the dense
    parameters instead of seven.

    A group lasso needs the rows of an embedding, and the kernel sees flat values. For such an
    optimizer this function returns the NumPy rule.

    Raises:
        BadInputError: the optimizer has no native kernel.
    """
    if uses_row_groups(optimizer):
        return make_rule(optimizer, decay)
    chosen, step = select_kernel(optimizer), _make_step_factory(optimizer, decay, group=0.0)

    def move(values: Floats, slots: Sequence[Floats], update: ParameterUpdate, scratch: ScratchArrays) -> None:
        now = step(update.learning_rate, update.update_number)
        _native.move(chosen, now, values, slots, update.gradient, "")

    return move


def _make_step_factory(optimizer: OptimizerSpec, decay: float, group: float) -> KernelStepFactory:
    numbers = _KERNEL_NUMBERS[optimizer.name]

    def step(rate: float, count: int) -> _native.Step:
        return _native.Step(decay=decay, decay_rate=rate, group=group, **numbers(optimizer, rate, count))

    return step


def _sgd_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    return {"rate": rate}


def _momentum_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    return {"rate": rate, "momentum": optimizer.get_number("momentum")}


def _lion_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    first, second = _moment_decays(optimizer)
    return {
        "rate": rate,
        "first_keep": first,
        "first_weight": one_minus_float32(first),
        "second_keep": second,
        "second_weight": one_minus_float32(second),
    }


def _adagrad_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    return {"rate": rate, "epsilon": optimizer.get_number("epsilon")}


def _rmsprop_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    return {**_adadelta_numbers(optimizer, rate, count), "momentum": optimizer.get_number("momentum")}


def _adadelta_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    rho = optimizer.get_number("rho")
    return {**_adagrad_numbers(optimizer, rate, count), "second_keep": rho, "second_weight": 1 - rho}


def _adam_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    first, second = _moment_decays(optimizer)
    return {
        "rate": float(corrected_rate(first, second, rate, count)),
        "epsilon": optimizer.get_number("epsilon"),
        "first_weight": 1 - first,
        "second_weight": 1 - second,
    }


def _adamax_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    first, second = _moment_decays(optimizer)
    return {
        "rate": float(first_moment_rate(first, rate, count)),
        "epsilon": optimizer.get_number("epsilon"),
        "first_weight": 1 - first,
        "second_keep": second,
    }


def _nadam_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    first, second = _moment_decays(optimizer)
    of_moment, of_gradient = nadam_factors(first, count)
    return {
        "rate": rate,
        "epsilon": optimizer.get_number("epsilon"),
        "first_weight": one_minus_float32(first),
        "second_weight": one_minus_float32(second),
        "momentum": of_moment,
        "of_gradient": of_gradient,
        "correction": float(bias_correction(second, count)),
    }


def _ftrl_numbers(optimizer: OptimizerSpec, rate: float, count: int) -> KernelNumbers:
    strengths = FtrlStrengths.from_optimizer(optimizer)
    return {
        "rate": rate,
        "shrinkage": 2 * strengths.shrinkage,
        "curvature": strengths.added_curvature(rate) if rate else 0.0,
        "l1": strengths.l1,
        "power": strengths.power,
    }


def _moment_decays(optimizer: OptimizerSpec) -> tuple[float, float]:
    return optimizer.get_number("beta_1"), optimizer.get_number("beta_2")


_KERNEL_NUMBERS: Mapping[str, Callable[[OptimizerSpec, float, int], KernelNumbers]] = {
    "sgd": _sgd_numbers,
    "momentum": _momentum_numbers,
    "lion": _lion_numbers,
    "adagrad": _adagrad_numbers,
    "rmsprop": _rmsprop_numbers,
    "adadelta": _adadelta_numbers,
    "adam": _adam_numbers,
    "adamax": _adamax_numbers,
    "nadam": _nadam_numbers,
    "ftrl": _ftrl_numbers,
}
NATIVE_OPTIMIZERS = tuple(_KERNEL_NUMBERS)
"""The optimizers that have native kernels."""


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
