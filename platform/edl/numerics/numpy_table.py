"""One embedding table in NumPy arrays that double in size when full.

A row is stored when it is first updated; until then its initial value is computed on each read. So reading changes
nothing, in training as in evaluation.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping

import numpy as np

from edl.api.tables import TableSpec
from edl.core.partition import splitmix64
from edl.numerics.array_types import Floats, Ids
from edl.numerics.embedding_table import RowRetention
from edl.numerics.initializers import initial_rows
from edl.numerics.optimizers import ParameterUpdate, ScratchArrays, UpdateRule
from edl.numerics.parameter_snapshot import RowArrays

_FIRST_CAPACITY = 256


class NumpyTable:
    """One table.

    Args:
        table_spec: shape and initial values.
        slot_starts: start value of each slot variable.
        rule: update rule of the rows.
        retention: which rows are kept.
        salt: 64-bit salt of the index, used if ids are any int64; by default secret. Results do not
            depend on it.
    """

    def __init__(
        self,
        table_spec: TableSpec,
        slot_starts: Mapping[str, float],
        rule: UpdateRule,
        retention: RowRetention | None = None,
        *,
        salt: int | None = None,
    ) -> None:
        self._retention = retention or RowRetention()
        self._table_spec = table_spec
        self._slot_starts = slot_starts
        self._rule = rule
        # Position + 1 of each id. The kernel allocates only the pages that are written.
        self._position_index = np.zeros(table_spec.rows, np.int32) if table_spec.rows else _SparsePositionIndex(salt)
        self._used_positions = 0
        self._ids = np.empty(_FIRST_CAPACITY, np.int64)
        self._values = np.empty((_FIRST_CAPACITY, table_spec.dim), np.float32)
        self._slots = {name: np.empty_like(self._values) for name in slot_starts}
        # The step that last used each row; 0 for free positions.
        self._last_steps = np.zeros(_FIRST_CAPACITY, np.int64)
        self._free_positions: list[int] = []
        self._evicted_count = 0
        self._newest_step = 0

    def __len__(self) -> int:
        return self._used_positions - len(self._free_positions)

    @property
    def evicted_count(self) -> int:
        return self._evicted_count

    @property
    def row_limit(self) -> int | None:
        return self._retention.row_limit

    @property
    def memory_bytes(self) -> int:
        """The size of the arrays in bytes; the kernel may have provided only a part of it."""
        arrays: list[np.ndarray] = [self._ids, self._values, self._last_steps, *self._slots.values()]
        return self._position_index.nbytes + sum(array.nbytes for array in arrays)

    @property
    def position_limit(self) -> int:
        return self._used_positions

    def prepare_update(self, ids: Ids, step: int) -> None:
        self._evict_rows(step)
        new_rows = int(np.count_nonzero(self._position_index[np.unique(ids)] == 0))
        self._retention.check_capacity(self._table_spec, len(self), new_rows)
        self._ensure_capacity(self._used_positions + max(0, new_rows - len(self._free_positions)))

    def read(self, ids: Ids) -> Floats:
        """Rows ``[n, dim]``, a new array."""
        positions = self._position_index[ids] - 1
        missing = positions < 0
        if not missing.any():
            return self._values[positions]
        values = np.empty((len(ids), self._table_spec.dim), np.float32)
        values[~missing] = self._values[positions[~missing]]
        values[missing] = self._initial_rows(ids[missing])
        return values

    def apply_gradients(self, ids: Ids, gradients: Floats, learning_rate: float, step: int) -> None:
        self._evict_rows(step)
        if not len(ids):
            return
        ids, gradients = sum_duplicates(ids, gradients)
        positions = self._store_missing_rows(ids)
        values = self._values[positions]
        slots = {name: slot[positions] for name, slot in self._slots.items()}
        self._rule(
            values,
            tuple(slots.values()),
            ParameterUpdate(gradients, learning_rate, step),
            ScratchArrays.allocate_like(values),
        )
        self._values[positions] = values
        self._last_steps[positions] = max(step, self._newest_step)
        for name, slot in slots.items():
            self._slots[name][positions] = slot

    def scan(self, start: int, limit: int) -> RowArrays:
        part = start + np.flatnonzero(self._last_steps[start : min(start + limit, self._used_positions)])
        return RowArrays(self._ids[part], self._values[part], {})

    def take_snapshot(self) -> RowArrays:
        """All stored rows with their slot variables, copied."""
        part = np.flatnonzero(self._last_steps[: self._used_positions])
        slots = {name: slot[part] for name, slot in self._slots.items()}
        last_steps = None if self._retention.evict_after_steps is None else self._last_steps[part].astype(np.uint32)
        return RowArrays(self._ids[part], self._values[part], slots, last_steps)

    def load(self, rows: RowArrays, step: int = 0) -> None:
        """Load rows that are not stored yet."""
        positions = self._assign_positions(rows.ids)
        self._values[positions] = rows.values
        self._last_steps[positions] = np.maximum(step if rows.last_steps is None else rows.last_steps, 1)
        self._newest_step = max(self._newest_step, step, int(self._last_steps[positions].max(initial=0)))
        for name, slot in self._slots.items():
            slot[positions] = rows.slots[name]

    def _evict_rows(self, step: int) -> None:
        """Free the positions of rows that no push has used for too long."""
        max_unused_steps = self._retention.evict_after_steps
        if max_unused_steps is None or step <= self._newest_step:
            return
        self._newest_step = step
        last_steps = self._last_steps[: self._used_positions]
        due_positions = np.flatnonzero((last_steps > 0) & (last_steps + max_unused_steps < step))
        self._position_index[self._ids[due_positions]] = np.zeros(len(due_positions), np.int32)
        last_steps[due_positions] = 0
        self._free_positions += due_positions.tolist()
        self._evicted_count += len(due_positions)

    def _store_missing_rows(self, ids: Ids) -> np.ndarray:
        """The positions of the rows; rows that are not stored yet are added."""
        missing = ids[self._position_index[ids] == 0]
        if len(missing):
            positions = self._assign_positions(missing)
            self._values[positions] = self._initial_rows(missing)
            for name, slot in self._slots.items():
                slot[positions] = self._slot_starts[name]
        return self._position_index[ids] - 1

    def _assign_positions(self, ids: Ids) -> np.ndarray:
        reused_count = min(len(self._free_positions), len(ids))
        count = self._used_positions + len(ids) - reused_count
        self._ensure_capacity(count)
        reused = [self._free_positions.pop() for _ in range(reused_count)]
        positions = np.array([*reused, *range(self._used_positions, count)], np.int32)
        self._used_positions = count
        self._ids[positions] = ids
        self._position_index[ids] = positions + 1
        return positions

    def _ensure_capacity(self, count: int) -> None:
        capacity = len(self._ids)
        if count <= capacity:
            return
        while capacity < count:
            capacity *= 2
        # Allocate all of them before replacing one: memory may run out in between.
        ids, values, last_steps = (
            _copy_extended(array, capacity) for array in (self._ids, self._values, self._last_steps)
        )
        slots = {name: _copy_extended(slot, capacity) for name, slot in self._slots.items()}
        self._ids, self._values, self._last_steps, self._slots = ids, values, last_steps, slots

    def _initial_rows(self, ids: Ids) -> Floats:
        table = self._table_spec
        return initial_rows(table.initializer, table.seed, ids, table.dim)


class _SparsePositionIndex:
    """Position + 1 of each id, for arbitrary int64 ids; 0 if absent.

    The keys are the ids mixed with a salt, which is a bijection of 64 bits. Python hashes an int to itself,
    so without the salt somebody could choose ids that all collide in a dict.
    """

    def __init__(self, salt: int | None) -> None:
        self._positions: dict[int, int] = {}
        self._salt = np.uint64(secrets.randbits(64) if salt is None else salt)

    @property
    def nbytes(self) -> int:
        """The size of the mapping itself, and of two numbers per id."""
        return sys.getsizeof(self._positions) + len(self._positions) * 2 * sys.getsizeof(1 << 40)

    def __getitem__(self, ids: Ids) -> np.ndarray:
        return np.fromiter((self._positions.get(each, 0) for each in self._salted_keys(ids)), np.int32, len(ids))

    def __setitem__(self, ids: Ids, positions: np.ndarray) -> None:
        self._positions.update(zip(self._salted_keys(ids), positions.tolist(), strict=True))

    def _salted_keys(self, ids: Ids) -> list[int]:
        keys: list[int] = splitmix64(ids.astype(np.uint64) ^ self._salt).tolist()
        return keys


def sum_duplicates(ids: Ids, gradients: Floats) -> tuple[Ids, Floats]:
    """Sum the gradients of duplicate ids; returns the arguments themselves if there are none."""
    order = np.argsort(ids, kind="stable")
    in_order = ids[order]
    first = np.flatnonzero(np.concatenate(([True], in_order[1:] != in_order[:-1])))
    if len(first) == len(ids):
        return ids, gradients
    return in_order[first], np.add.reduceat(gradients[order], first, axis=0)


def _copy_extended(array: np.ndarray, capacity: int) -> np.ndarray:
    larger = np.zeros((capacity, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger
