"""Weights from a checkpoint directory instead of live parameter servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from edl.api.errors import BadInputError, StorageError
from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.core.short_list import format_short_list
from edl.numerics.array_types import Floats, Ids
from edl.numerics.initializers import initial_rows
from edl.numerics.parameter_store import RowBatch, RowsByTable
from edl.storage.checkpoint_contents import StoredTable, read_checkpoint_contents

_MAX_LISTED_NAMES = 10
"""Maximum number of a checkpoint's variables or tables named in a message."""
_OTHER_MODEL_HINT = (
    "Restore the model of that run (layers, their names and sizes, model.params), or name a run of this model: "
    "edl predict --from RUN."
)
_DAMAGED_HINT = (
    "edl checkpoint ls --verify shows which checkpoints of the run are intact; edl predict uses the newest intact one."
)


class StoredWeights:
    """The weights of a model from a checkpoint, in memory.

    A table that is PS-backed now may have been dense when it was trained, or the reverse.

    Args:
        directory: the checkpoint's directory, for messages.
        dense: the checkpoint's variables by name. Under strategy Local they include all tables.
        table_rows: the checkpoint's tables by name.
        tables: the PS-backed tables of the model.
        states: the checkpoint's variables outside the flat buffer by number, of strategies Local and AllReduce.

    Raises:
        BadInputError: a table is missing or has another shape: the checkpoint belongs to another model.
    """

    def __init__(
        self,
        directory: Path,
        dense: Mapping[str, Floats],
        table_rows: Mapping[str, StoredTableRows],
        tables: Iterable[TableSpec],
        states: Mapping[int, Any] = MappingProxyType({}),
    ) -> None:
        self.states = states
        self._directory = directory
        self._dense = dense
        self._table_rows = table_rows
        self._tables = {table.name: self._find_table_rows(table) for table in tables}

    @classmethod
    def empty(cls) -> StoredWeights:
        """No weights: for a ``.keras`` file, whose model has no PS-backed table."""
        return cls(Path(), {}, {}, ())

    @classmethod
    def from_checkpoint(
        cls, directory: Path, tables: Iterable[TableSpec], written_as: Path | None = None
    ) -> StoredWeights:
        """The weights of a committed checkpoint.

        Args:
            directory: the checkpoint's directory.
            tables: the PS-backed tables of the model.
            written_as: the directory in the run that wrote it, which messages name; None: the same one.

        Raises:
            StorageError: the checkpoint is incomplete or damaged.
            BadInputError: it belongs to another model.
        """
        # Imports safetensors.
        from edl.storage import checkpoint_manifest, checkpoint_shards

        manifest = checkpoint_manifest.load_manifest(directory)
        if isinstance(manifest, checkpoint_manifest.SkippedCheckpoint):
            raise BadInputError(f"is not a checkpoint: {manifest.reason}", where=str(directory), hint=_DAMAGED_HINT)
        paths = [directory / shard.file for shard in manifest.shards]
        dense: dict[str, Floats] = {}
        row_parts: dict[str, list[tuple[Ids, Floats]]] = {}
        states: dict[int, Any] = {}
        try:
            for path in paths:
                _sort_arrays(checkpoint_shards.read_shard(path)[0], dense, row_parts, states)
            declared = read_checkpoint_contents(paths).tables
        except StorageError as error:
            raise StorageError(error.message, where=error.where, hint=error.hint or _DAMAGED_HINT) from error
        return cls(
            written_as or directory,
            dense,
            {table.name: StoredTableRows.from_shards(table, row_parts[table.name]) for table in declared},
            tables,
            states,
        )

    def flat_values(self, variables: Iterable[VariableSpec]) -> Floats:
        """The dense values in the order of a model's variables.

        Raises:
            BadInputError: a variable is missing or has another shape: the checkpoint belongs to another model.
        """
        return np.concatenate(
            # All variables of a model may be PS-backed tables; NumPy cannot concatenate an empty list.
            [np.empty(0, np.float32), *(self._find_variable_values(variable).ravel() for variable in variables)]
        )

    def pull_rows(self, ids: Mapping[str, Ids], pin: int = 0) -> RowsByTable:
        """Rows by table; rows that were never trained have their initial values."""
        # A checkpoint is a single version.
        del pin
        return {table: RowBatch(wanted, self._tables[table].read_rows(wanted)) for table, wanted in ids.items()}

    def row_chunks(self, table: str) -> Iterator[tuple[Ids, Floats]]:
        """The stored rows of a table, with their ids."""
        yield self._tables[table].ids, self._tables[table].stored_values

    def _find_table_rows(self, table: TableSpec) -> StoredTableRows:
        shape = (table.rows, table.dim)
        served, dense = self._table_rows.get(table.name), self._dense.get(table.name)
        if served is not None and served.shape == shape:
            return served
        # All rows of a dense table are stored, so the initializer is never used.
        if dense is not None and dense.shape == shape:
            return StoredTableRows(replace(table, initializer={"name": "zeros"}), np.arange(len(dense)), dense)
        raise self._mismatch_error("table", table.name, _format_shape(shape))

    def _find_variable_values(self, variable: VariableSpec) -> Floats:
        shape = variable.shape
        served, dense = self._table_rows.get(variable.name), self._dense.get(variable.name)
        if dense is not None and dense.shape == shape:
            return dense
        if served is not None and served.shape == shape:
            return served.read_rows(np.arange(shape[0]))
        raise self._mismatch_error("variable", variable.name, str(list(shape)))

    def _mismatch_error(self, kind: str, name: str, model_shape: str) -> BadInputError:
        served, dense = self._table_rows.get(name), self._dense.get(name)
        hint = _OTHER_MODEL_HINT
        if served is not None:
            stored_shape = f"a PS-backed table of the shape {_format_shape(served.shape)}"
            problem = f"the {kind} '{name}' is {model_shape} in the model, and {stored_shape} in the checkpoint"
        elif dense is not None:
            stored_shape = f"a variable of the shape {list(dense.shape)}"
            problem = f"the {kind} '{name}' is {model_shape} in the model, and {stored_shape} in the checkpoint"
        else:
            problem = (
                f"the {kind} '{name}' {model_shape} of the model is not in the checkpoint, "
                f"which has {self._describe_contents(kind)}"
            )
            hint = f"If the layer was renamed, restore its old name (name=...). {_OTHER_MODEL_HINT}"
        return BadInputError(problem, where=str(self._directory), hint=hint)

    def _describe_contents(self, first: str) -> str:
        """The checkpoint's content for users; the given kind comes first."""
        shapes = {
            "table": {name: _format_shape(rows.shape) for name, rows in self._table_rows.items()},
            "variable": {name: str(list(array.shape)) for name, array in self._dense.items()},
        }
        kinds = sorted((kind for kind in shapes if shapes[kind]), key=lambda kind: kind != first)
        return " and ".join(_describe_shapes(kind, shapes[kind]) for kind in kinds) or "nothing"


@dataclass(frozen=True, slots=True)
class StoredTableRows:
    """The stored rows of a table, and how to compute the others.

    Attributes:
        spec: the table as the trained model declared it.
        ids: the ids of the stored rows, ascending.
        stored_values: the values of these rows.
    """

    spec: TableSpec
    ids: Ids
    stored_values: Floats

    @classmethod
    def from_shards(cls, table: StoredTable, row_parts: Sequence[tuple[Ids, Floats]]) -> StoredTableRows:
        """Collect the rows from all shards.

        Raises:
            StorageError: no shard declares the table.
        """
        if table.spec is None:
            raise StorageError(f"the checkpoint has rows of table '{table.name}' but does not declare it")
        ids = np.concatenate([ids for ids, _ in row_parts])
        stored = np.concatenate([values for _, values in row_parts])
        # Rows are distributed by a hash of their ids, so the ids of different shards interleave.
        order = np.argsort(ids)
        return cls(table.spec, ids[order], stored[order])

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows (0: any id) and length of a row."""
        return self.spec.rows, self.spec.dim

    def read_rows(self, row_ids: Ids) -> Floats:
        """Rows of these ids."""
        # Rows that were never trained are not stored: their values follow from the seed.
        values = initial_rows(self.spec.initializer, self.spec.seed, row_ids, self.spec.dim)
        insertion_points = np.searchsorted(self.ids, row_ids)
        is_stored = insertion_points < len(self.ids)
        is_stored[is_stored] = self.ids[insertion_points[is_stored]] == row_ids[is_stored]
        values[is_stored] = self.stored_values[insertion_points[is_stored]]
        return values


def _sort_arrays(
    arrays: Mapping[str, Any],
    dense: dict[str, Floats],
    row_parts: dict[str, list[tuple[Ids, Floats]]],
    states: dict[int, Any],
) -> None:
    """Keep the variables and rows of a shard, and drop slot variables, which prediction does not need."""
    for name, array in arrays.items():
        kind, _, rest = name.partition("/")
        if kind == "dense":
            dense[rest] = array
        elif kind == "state":
            states[int(rest)] = array
        elif kind == "rows" and rest.endswith("/ids"):
            table = rest.removesuffix("/ids")
            row_parts.setdefault(table, []).append((array, arrays[f"rows/{table}/values"]))


def _describe_shapes(kind: str, shapes: Mapping[str, str]) -> str:
    """Names and shapes, limited in number."""
    listed = format_short_list([f"'{name}' {shapes[name]}" for name in sorted(shapes)], _MAX_LISTED_NAMES)
    return f"the {kind}{'s' if len(shapes) > 1 else ''} {listed}"


def _format_shape(shape: Sequence[int]) -> str:
    """The shape of a PS-backed table."""
    rows, dim = shape
    return f"[{rows or 'any id'}, {dim}]"
