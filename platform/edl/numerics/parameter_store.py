"""The port to the parameters of a server, its implementation for NumPy, and the values that pass through it.

Only one thread uses a store at a time; the server's lock ensures that. A store trusts its arguments:
``edl.ps.bulk_handler`` has checked sizes and ids against the declaration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, TypeAlias

import numpy as np

from edl.api.tables import TableSpec
from edl.numerics.array_types import Floats, Ids
from edl.numerics.embedding_table import EmbeddingTable, RowRetention
from edl.numerics.memory_errors import out_of_memory_error, partial_update_error
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.numpy_table import NumpyTable
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers import ParameterUpdate, ScratchArrays, UpdateRule, make_blocks, make_rule
from edl.numerics.parameter_snapshot import ParameterSnapshot, RowArrays, TableSnapshot


class RowBatch(NamedTuple):
    """Rows of a table: ids ``[n]``, and their values or gradients, ``[n, dim]`` float32.

    Pulled rows contain each id once. Gradients may contain an id several times; the table sums
    them.
    """

    ids: Ids
    values: Floats


RowsByTable: TypeAlias = Mapping[str, RowBatch]


@dataclass(frozen=True, slots=True)
class PushGradients:
    """The content of one push.

    Attributes:
        flat: gradients of the trained variables, then deltas of the statistics, in slab order.
        rows: ids and gradients by table.
        learning_rate: learning rate of this step.
        record_weight: factor of the deltas: records of this minibatch / records of a full one.
    """

    flat: Floats
    rows: RowsByTable
    learning_rate: float
    record_weight: float


class ParameterStore(Protocol):
    """Dense slab, rows and slot variables of one parameter server."""

    @property
    def declaration(self) -> ModelDeclaration:
        """What it holds."""

    @property
    def tables(self) -> Mapping[str, EmbeddingTable]:
        """The tables by name; read-only."""

    def read_flat(self, out: Floats) -> None:
        """Copy the slab to ``out``, ``[declaration.size]``."""

    def read_rows(self, table: str, ids: Ids) -> Floats:
        """Rows ``[n, dim]``, a new array. A row that was never updated has its initial value and is not stored.

        Raises:
            OutOfMemoryError: for the new array.
        """

    def apply_gradients(self, gradients: PushGradients, update_number: int) -> None:
        """Apply one push: duplicate ids are summed first, statistics get ``weight`` times their delta.

        Args:
            gradients: the content of the push.
            update_number: number of this push, from 1.

        Raises:
            TableFullError: a table has no room for the rows; nothing was changed.
            OutOfMemoryError: there is no memory for the rows; nothing was changed.
            PartialUpdateError: memory ran out during the update; the store must not be used any more.
        """

    def position_limit(self, table: str) -> int:
        """Exclusive upper bound of a table's row positions; some positions may be free."""

    def scan_rows(self, table: str, start: int, limit: int) -> RowArrays:
        """The stored rows at positions ``start`` to ``start + limit``; see ``EmbeddingTable.scan``."""

    def preallocate_copy(self) -> None:
        """Allocate memory for the next snapshot, which then takes less time. Any thread may call this at any time.

        Raises:
            OutOfMemoryError: for the copy.
        """

    def take_snapshot(self) -> ParameterSnapshot:
        """Take a snapshot. The slab and its slots are copied; tables may share memory (``parameter_snapshot``).

        Raises:
            OutOfMemoryError: for the copy.
        """


# --------------------------------------------------------------------------------------------------
# The dense parameters: every variable that is no table, one behind the other in a float32 slab.


RuleFactory = Callable[[OptimizerSpec, float], UpdateRule]


@dataclass(frozen=True, slots=True)
class FlatCopy:
    """A copy of a slab: its values, and its slot variables by name."""

    values: Floats
    slots: dict[str, Floats]


class FlatParameters:
    """The slab: trained variables with their slot variables, then statistics.

    Args:
        declaration: the variables and the optimizer.
        values: initial values ``[declaration.size]``, copied.
        rule_factory: makes the update rule of an optimizer and a weight decay.
    """

    def __init__(self, declaration: ModelDeclaration, values: Floats, rule_factory: RuleFactory = make_rule) -> None:
        optimizer, trained_size = declaration.optimizer, declaration.trained_size
        self.values: Floats = np.array(values, np.float32)
        self.slots: dict[str, Floats] = {
            name: np.full(trained_size, start, np.float32) for name, start in optimizer.slot_starts.items()
        }
        self._trained_values, self._statistic_values = self.values[:trained_size], self.values[trained_size:]
        self._blocks = tuple(
            (block, rule_factory(optimizer, block.weight_decay))
            for block in make_blocks(optimizer, declaration.variable_slices())
        )
        self._scratch = ScratchArrays.allocate_like(self._trained_values)
        self._spare_copy: FlatCopy | None = None

    def apply_gradients(self, gradients: PushGradients, step: int) -> None:
        """Update the trained variables by the rule, and add ``weight`` times their deltas to the statistics."""
        trained_size = len(self._trained_values)
        update = ParameterUpdate(gradients.flat[:trained_size], gradients.learning_rate, step)
        for block, block_rule in self._blocks:
            block.apply_rule(block_rule, self._trained_values, self.slots.values(), update, self._scratch)
        if len(self._statistic_values):
            self._statistic_values += gradients.flat[trained_size:] * np.float32(gradients.record_weight)

    def preallocate_copy(self) -> None:
        """Touch the memory of the next copy, because new pages cost far more than copying.

        May run while other threads use the slab.
        """
        spare_copy = self._allocate_copy()
        for array in (spare_copy.values, *spare_copy.slots.values()):
            array.fill(0)
        self._spare_copy = spare_copy

    def copy_values(self) -> FlatCopy:
        """Copy the slab; fast if ``preallocate_copy`` ran before."""
        copied, self._spare_copy = self._spare_copy or self._allocate_copy(), None
        np.copyto(copied.values, self.values)
        for name, slot in self.slots.items():
            np.copyto(copied.slots[name], slot)
        return copied

    def _allocate_copy(self) -> FlatCopy:
        return FlatCopy(np.empty_like(self.values), {name: np.empty_like(slot) for name, slot in self.slots.items()})


class TableParameterStore(ABC):
    """A :class:`edl.numerics.parameter_store.ParameterStore`.

    Args:
        declaration: what it holds.
        initial_values: initial slab, copied.
        retention: which rows its tables keep; by default all.

    Raises:
        OutOfMemoryError: for the dense values, or a table.
    """

    def __init__(
        self, declaration: ModelDeclaration, initial_values: Floats, retention: RowRetention | None = None
    ) -> None:
        self._declaration = declaration
        self._retention = retention or RowRetention()
        self._flat_parameters = self._make_flat_parameters(initial_values)
        self._tables = {table.name: self._make_empty_table(table) for table in declaration.tables}

    def _make_flat_parameters(self, initial_values: Floats) -> FlatParameters:
        try:
            return FlatParameters(self._declaration, initial_values, self._make_rule)
        except MemoryError as error:
            raise out_of_memory_error(f"{self._flat_description}, with their slot variables") from error

    def _make_empty_table(self, table: TableSpec) -> EmbeddingTable:
        try:
            return self._make_table(table)
        except MemoryError as error:
            raise out_of_memory_error(table.described) from error

    @abstractmethod
    def _make_table(self, table: TableSpec) -> EmbeddingTable:
        """Make an empty table."""

    @staticmethod
    def _make_rule(optimizer: OptimizerSpec, decay: float) -> UpdateRule:
        """Make the update rule of the slab."""
        return make_rule(optimizer, decay)

    @classmethod
    def from_snapshot(cls, snapshot: ParameterSnapshot) -> Self:
        """Make a store with the content of a snapshot."""
        store = cls(snapshot.declaration, snapshot.flat_values)
        store.load_snapshot(snapshot)
        return store

    def load_snapshot(self, snapshot: ParameterSnapshot, version: int = 0) -> None:
        """Load a snapshot of the same declaration after ``version`` steps. The store must be new.

        Raises:
            OutOfMemoryError: only a part was loaded.
        """
        np.copyto(self._flat_parameters.values, snapshot.flat_values)
        for name, slot in self._flat_parameters.slots.items():
            np.copyto(slot, snapshot.slots[name])
        for name, rows in snapshot.tables.items():
            try:
                for chunk in rows.iter_chunks():
                    self._tables[name].load(chunk, version)
            except MemoryError as error:
                raise out_of_memory_error(
                    f"{len(rows)} rows of {self._declaration.get_table(name).described}"
                ) from error

    @property
    def declaration(self) -> ModelDeclaration:
        """What it holds."""
        return self._declaration

    @property
    def tables(self) -> Mapping[str, EmbeddingTable]:
        return self._tables

    def read_flat(self, out: Floats) -> None:
        np.copyto(out, self._flat_parameters.values)

    def read_rows(self, table: str, ids: Ids) -> Floats:
        try:
            return self._tables[table].read(ids)
        except MemoryError as error:
            raise out_of_memory_error(self._describe_rows(table, ids)) from error

    def apply_gradients(self, gradients: PushGradients, update_number: int) -> None:
        # Whatever can refuse a push is asked before any value changes: a table that is full, and memory for new rows.
        for name, rows in gradients.rows.items():
            try:
                self._tables[name].prepare_update(rows.ids, update_number)
            except MemoryError as error:
                raise out_of_memory_error(self._describe_rows(name, rows.ids)) from error
        # From here on memory that runs out leaves values of no step. The dense part has its scratch arrays since the
        # start, and a NumPy table has grown above; a native table grows while it is updated.
        try:
            self._flat_parameters.apply_gradients(gradients, update_number)
        except MemoryError as error:
            raise partial_update_error(self._flat_description) from error
        for name, rows in gradients.rows.items():
            try:
                self._tables[name].apply_gradients(rows.ids, rows.values, gradients.learning_rate, update_number)
            except MemoryError as error:
                raise partial_update_error(self._describe_rows(name, rows.ids)) from error

    def position_limit(self, table: str) -> int:
        return self._tables[table].position_limit

    def scan_rows(self, table: str, start: int, limit: int) -> RowArrays:
        return self._tables[table].scan(start, limit)

    def take_snapshot(self) -> ParameterSnapshot:
        tables: dict[str, TableSnapshot] = {}
        try:
            flat_copy = self._flat_parameters.copy_values()
            for name, table in self._tables.items():
                tables[name] = table.take_snapshot()
        except MemoryError as error:
            for rows in tables.values():
                rows.release()
            raise out_of_memory_error(f"a copy of {self._copy_description}") from error
        return ParameterSnapshot(self._declaration, flat_copy.values, flat_copy.slots, tables)

    def preallocate_copy(self) -> None:
        try:
            self._flat_parameters.preallocate_copy()
        except MemoryError as error:
            raise out_of_memory_error(f"a copy of {self._flat_description}") from error

    def _describe_rows(self, table: str, ids: Ids) -> str:
        return f"{len(ids)} rows of {self._declaration.get_table(table).described}"

    @property
    def _flat_description(self) -> str:
        return f"the {self._declaration.flat_size} dense values"

    @property
    def _copy_description(self) -> str:
        return ", ".join([self._flat_description, *(table.described for table in self._declaration.tables)])


class NumpyParameterStore(TableParameterStore):
    """A store whose tables are NumPy arrays."""

    def _make_table(self, table: TableSpec) -> EmbeddingTable:
        optimizer = self._declaration.optimizer
        return NumpyTable(
            table, optimizer.slot_starts, make_rule(optimizer, optimizer.weight_decay_for(table.name)), self._retention
        )
