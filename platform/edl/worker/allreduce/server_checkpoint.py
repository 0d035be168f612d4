"""Reads checkpoints of parameter servers as the state of a Keras model and its optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edl.api.errors import BadInputError, StorageError
from edl.numerics.array_types import Floats, Ids
from edl.numerics.keras_state import KerasState, check_same_slots
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers.adam import momentum_product
from edl.storage.checkpoint_contents import StoredTable, read_checkpoint_contents
from edl.storage.checkpoint_manifest import CheckpointManifest, load_manifest
from edl.storage.checkpoint_shards import read_shard
from edl.worker.stored_weights import StoredTableRows

Arrays = Mapping[str, np.ndarray[Any, Any]]

_NEW_RUN_HINT = "restore the model that this run started with, or start a new run, without --resume"


class ServerCheckpointConverter:
    """Converts checkpoints of strategy ParameterServer for one model.

    Args:
        state: the meaning of the arrays of this model and its optimizer.
        initial_arrays: the arrays of the model before training. What parameter servers do not store keeps these
            values: the learning rate, which follows from the optimizer and the callbacks, and constants.
    """

    def __init__(self, state: KerasState, initial_arrays: Arrays) -> None:
        stored = {array for arrays in state.slots.values() for array in arrays.values()}
        self._state = state
        self._specs = {name: (array.shape, array.dtype) for name, array in initial_arrays.items()}
        self._kept = {
            name: array
            for name, array in initial_arrays.items()
            if name not in stored and not name.startswith("dense/")
        }

    def convert(self, directory: Path) -> Arrays:
        """The arrays of a checkpoint, by their names under strategy AllReduce.

        Raises:
            StorageError: the checkpoint is damaged or cannot be read.
            BadInputError: the optimizer has no such state, or the checkpoint belongs to another model.
        """
        stored = _ServerArrays.read(directory)
        try:
            present = self._state.require_optimizer()
            check_same_slots(stored.optimizer, present, was="ParameterServer", now="AllReduce")
            return dict(self._convert_arrays(stored))
        except BadInputError as error:
            raise BadInputError(error.message, where=str(directory), hint=error.hint) from error

    def _convert_arrays(self, stored: _ServerArrays) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        for name in self._specs:
            if name.startswith("dense/"):
                variable = name.removeprefix("dense/")
                yield name, self._check(name, stored.values_of(variable), f"variable '{variable}'")
        for variable, arrays in self._state.slots.items():
            for slot, name in arrays.items():
                yield name, self._check(name, stored.slot_of(variable, slot), f"{slot} of the variable '{variable}'")
        computed: dict[str, Any] = {self._state.iterations: stored.version}
        if self._state.momentum_product:
            beta_1 = self._state.require_optimizer().get_number("beta_1")
            computed[self._state.momentum_product] = momentum_product(beta_1, stored.version) if stored.version else 1.0
        for name, array in self._kept.items():
            yield name, np.asarray(computed[name], array.dtype) if name in computed else array

    def _check(self, name: str, values: np.ndarray[Any, Any] | None, described: str) -> np.ndarray[Any, Any]:
        shape, dtype = self._specs[name]
        if values is None:
            raise BadInputError(
                f"the checkpoint of the parameter servers has no {described}, which the model has", hint=_NEW_RUN_HINT
            )
        if values.shape != shape:
            raise BadInputError(
                f"the {described} has the shape {list(shape)} in the model, and {list(values.shape)} in the checkpoint "
                "of the parameter servers",
                hint=_NEW_RUN_HINT,
            )
        return values.astype(dtype, copy=False)


@dataclass(slots=True)
class _ServerArrays:
    """The arrays of all parameter servers.

    Attributes:
        optimizer: the rule that the parameter servers applied.
        version: number of applied updates.
        dense: dense variables by name.
        slots: slot variables by slot and variable.
        tables: declared tables by name.
        rows: ids and arrays of each shard, by table; the arrays are ``values`` and ``slot/<slot>``.
    """

    optimizer: OptimizerSpec
    version: int = 0
    dense: dict[str, Floats] = field(default_factory=dict)
    slots: dict[tuple[str, str], Floats] = field(default_factory=dict)
    tables: dict[str, StoredTable] = field(default_factory=dict)
    rows: dict[str, list[tuple[Ids, Mapping[str, Floats]]]] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> _ServerArrays:
        manifest = load_manifest(directory)
        if not isinstance(manifest, CheckpointManifest):
            raise StorageError(f"cannot be used: {manifest.reason}", where=str(directory))
        paths = [directory / shard.file for shard in manifest.shards]
        contents = read_checkpoint_contents(paths)
        try:
            server_arrays = cls(OptimizerSpec.from_json(contents.optimizer or {}))
            server_arrays.tables = {table.name: table for table in contents.tables}
            for path in paths:
                arrays, metadata = read_shard(path)
                server_arrays.version = max(server_arrays.version, int(metadata["version"]))
                server_arrays._add(arrays)
        except (BadInputError, KeyError, ValueError) as error:
            raise StorageError(f"is not a checkpoint of parameter servers: {error}", where=str(directory)) from error
        return server_arrays

    def _add(self, arrays: Mapping[str, Any]) -> None:
        former = {old: new for new, old in self.optimizer.former_slot_names.items()}
        for name, array in arrays.items():
            kind, _, rest = name.partition("/")
            if kind == "dense":
                self.dense[rest] = array
            elif kind == "slot":
                slot, _, variable = rest.partition("/")
                self.slots[former.get(slot, slot), variable] = array
        for table in self.tables:
            start = f"rows/{table}/"
            parts = {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
            named = {
                f"slot/{former.get(slot, slot)}" if kind == "slot" else part: array
                for part, array in parts.items()
                for kind, _, slot in [part.partition("/")]
            }
            if "ids" in named:
                self.rows.setdefault(table, []).append((named["ids"].astype(np.int64), named))

    def values_of(self, variable: str) -> Floats | None:
        """The values of a variable, or all rows of a table."""
        table = self.tables.get(variable)
        return self.dense.get(variable) if table is None else self._all_rows(table, "values", None)

    def slot_of(self, variable: str, slot: str) -> Floats | None:
        """A slot variable; rows without one have the start value."""
        table = self.tables.get(variable)
        if table is None:
            return self.slots.get((slot, variable))
        return self._all_rows(table, f"slot/{slot}", self.optimizer.slot_starts[slot])

    def _all_rows(self, table: StoredTable, part: str, start_value: float | None) -> Floats:
        if table.spec is None or not table.spec.rows:
            raise BadInputError(
                f"the table '{table.name}' has no fixed number of rows, which a variable of this strategy needs",
                hint="keep strategy ParameterServer for this model",
            )
        parts = [(ids, arrays[part]) for ids, arrays in self.rows.get(table.name, ())]
        rows = StoredTableRows.from_shards(table, parts)
        if start_value is not None:
            start = {"name": "constant", "value": start_value}
            rows = replace(rows, spec=replace(rows.spec, initializer=start))
        return rows.read_rows(np.arange(table.spec.rows))
